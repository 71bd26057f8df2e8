//! Text from elsewhere on a terminal.

/// A text in which what would steer a terminal, or turn the direction of reading, is shown instead: run files and programs' outputs come from
/// elsewhere.
pub fn visible(text: &str) -> String {
    let steers = |letter: char| {
        let turns =
            matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        turns || letter.is_control() && letter != '\n' && letter != '\t'
    };
    if !text.chars().any(steers) {
        return text.into();
    }
    let shown = text
        .chars()
        .map(|letter| if steers(letter) { letter.escape_default().to_string() } else { letter.to_string() });
    shown.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_steers_the_terminal() {
        assert_eq!(visible("a\tb\nü ± µ"), "a\tb\nü ± µ");
        assert_eq!(visible("\u{1b}]0;x\u{7}\r\u{9b}2J\u{202e}"), "\\u{1b}]0;x\\u{7}\\r\\u{9b}2J\\u{202e}");
    }
}
