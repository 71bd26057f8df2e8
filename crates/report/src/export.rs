//! What other programs read: samples as CSV, tables as LaTeX.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::run::Run;
use crate::table::Table;

/// All samples, a line each, with a head. The format is that of RFC 4180 with plain line ends; units are those of the run file.
pub fn csv(runs: &[Run]) -> String {
    let samples = || runs.iter().flat_map(|run| &run.samples);
    let figures: BTreeSet<&str> =
        samples().flat_map(|sample| sample.figures.keys().map(String::as_str)).collect();
    let head = [
        "run", "title", "started", "target", "spec", "case", "metric", "turn", "at", "value", "others",
        "steal",
    ];
    let mut text =
        line(head.into_iter().map(String::from).chain(figures.iter().map(|name| (*name).to_string())));
    for (number, run) in (1..).zip(runs) {
        let number: u32 = number;
        for sample in &run.samples {
            let metric = run.case(&sample.case).map(|case| case.metric.title()).unwrap_or_default();
            let spec = run.target(&sample.target).map(|target| target.spec.clone()).unwrap_or_default();
            let cells = [
                number.to_string(),
                run.title.clone(),
                run.started.clone(),
                sample.target.clone(),
                spec,
                sample.case.clone(),
                metric.to_lowercase(),
                sample.turn.to_string(),
                sample.at.to_string(),
                sample.value.to_string(),
                sample.meanwhile.others.to_string(),
                sample.meanwhile.steal.to_string(),
            ];
            let figures =
                figures.iter().map(|name| sample.figures.get(*name).map(f64::to_string).unwrap_or_default());
            text += &line(cells.into_iter().chain(figures));
        }
    }
    text
}

fn line(cells: impl Iterator<Item = String>) -> String {
    let quoted = cells.map(|cell| {
        // A spreadsheet takes a cell that begins so for a formula.
        let cell = if cell.starts_with(['=', '+', '@']) { format!("'{cell}") } else { cell };
        if cell.contains([',', '"', '\n', '\r']) {
            format!("\"{}\"", cell.replace('"', "\"\""))
        } else {
            cell
        }
    });
    quoted.collect::<Vec<_>>().join(",") + "\n"
}

/// A table in LaTeX, with the rules of the package booktabs.
pub fn latex(table: &Table) -> String {
    let row = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| escaped(cell)).collect();
        format!("{} \\\\\n", cells.join(" & "))
    };
    let columns = "l".to_string() + &"r".repeat(table.head.len().saturating_sub(1));
    let mut text = format!(
        "\\begin{{table}}\n\\caption{{{}}}\n\\begin{{tabular}}{{{columns}}}\n\\toprule\n",
        escaped(&table.caption)
    );
    text += &row(&table.head);
    text += "\\midrule\n";
    for cells in &table.rows {
        text += &row(cells);
    }
    let _ = writeln!(text, "\\bottomrule\n\\end{{tabular}}\n\\end{{table}}");
    text
}

/// Text with what LaTeX would read as a command taken literally.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for letter in text.chars() {
        match letter {
            '&' | '%' | '$' | '#' | '_' | '{' | '}' => {
                out.push('\\');
                out.push(letter);
            }
            '\\' => out += "\\textbackslash{}",
            '~' => out += "\\textasciitilde{}",
            '^' => out += "\\textasciicircum{}",
            '<' => out += "\\textless{}",
            '>' => out += "\\textgreater{}",
            '±' => out += "$\\pm$",
            'µ' => out += "\\textmu{}",
            '…' => out += "\\ldots{}",
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_is_a_line() {
        let run = Run::parse(include_bytes!("../tests/it/golden/run.json")).unwrap();
        let text = csv(&[run.clone(), run]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 1 + 2 * 145);
        assert!(lines[0].starts_with(
            "run,title,started,target,spec,case,metric,turn,at,value,others,steal,iops,processors,read-p50"
        ));
        assert!(lines[1].starts_with("1,fio: cvm-io,2026-11-27T03:00:00Z,file,/srv,bandwidth-read,bandwidth,0,1.5,2000000000,0.5,0,"), "{}", lines[1]);
        let cells = |line: &str| line.split(',').count();
        assert!(lines.iter().all(|line| cells(line) == cells(lines[0])));
        assert_eq!(
            line(["a,b", "say \"x\"", "=1+1"].map(String::from).into_iter()),
            "\"a,b\",\"say \"\"x\"\"\",'=1+1\n"
        );
    }

    #[test]
    fn a_table_is_taken_literally() {
        let mut table = Table::new("50 % of a_b", &["case", "x & y"]);
        table.rows.push(vec!["c#1".into(), "1 ± 2 µs".into()]);
        let text = latex(&table);
        for line in [
            "\\caption{50 \\% of a\\_b}",
            "\\begin{tabular}{lr}",
            "case & x \\& y \\\\",
            "c\\#1 & 1 $\\pm$ 2 \\textmu{}s \\\\",
        ] {
            assert!(text.lines().any(|own| own == line), "{line}: {text}");
        }
    }
}
