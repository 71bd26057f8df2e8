//! The table of what was tried.

/// What the host tried, and what came of it.
pub struct Attempt {
    pub attack: &'static str,
    pub host: String,
    pub guest: String,
    pub caught: bool,
}

const WIDTHS: [usize; 4] = [22, 35, 46, 11];

/// All attempts, for people.
pub fn table(attempts: &[Attempt]) -> String {
    let line = WIDTHS.map(|width| "-".repeat(width)).join("-+-");
    let mut lines = row(&["attack", "what the host did", "what the guest saw", "verdict"]);
    for attempt in attempts {
        lines.push(line.clone());
        let verdict = if attempt.caught { "caught" } else { "GOT THROUGH" };
        lines.extend(row(&[attempt.attack, &attempt.host, &attempt.guest, verdict]));
    }
    lines.join("\n")
}

fn row(cells: &[&str; 4]) -> Vec<String> {
    let cells: Vec<Vec<String>> = cells.iter().zip(WIDTHS).map(|(cell, width)| wrap(cell, width)).collect();
    let height = cells.iter().map(Vec::len).max().unwrap_or(0);
    (0..height)
        .map(|at| {
            let parts: Vec<String> = cells
                .iter()
                .zip(WIDTHS)
                .map(|(cell, width)| format!("{:<width$}", cell.get(at).map_or("", String::as_str)))
                .collect();
            parts.join(" | ").trim_end().to_string()
        })
        .collect()
}

/// Breaks text between words, and words that are longer than a line.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let mut word: Vec<char> = word.chars().collect();
        while !word.is_empty() {
            let line = lines.last_mut().expect("there is always one");
            let used = line.chars().count();
            let gap = usize::from(used > 0);
            if used + gap + word.len() <= width {
                if gap == 1 {
                    line.push(' ');
                }
                line.extend(word.drain(..));
            } else if used == 0 {
                line.extend(word.drain(..width));
                lines.push(String::new());
            } else {
                lines.push(String::new());
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_wider_than_its_column_and_no_word_is_lost() {
        let text = "a wordthatisfartoolongforonelineofthetable and more";
        let lines = wrap(text, 10);
        assert!(lines.iter().all(|line| line.chars().count() <= 10), "{lines:?}");
        assert_eq!(lines.concat().replace(' ', ""), text.replace(' ', ""));
    }

    #[test]
    fn what_got_through_stands_out() {
        let attempt = |caught| Attempt { attack: "a", host: "b".into(), guest: "c".into(), caught };
        assert!(!table(&[attempt(true)]).contains("GOT THROUGH"));
        assert!(table(&[attempt(true), attempt(false)]).contains("GOT THROUGH"));
    }
}
