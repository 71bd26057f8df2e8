//! Commands that show what was measured.

use std::fs;
use std::path::Path;

use cli::output;
use report::page::{self, Options};
use report::plot::Font;
use report::question::Question;
use report::run::Run;
use report::table;

use super::{CompareArgs, ReportArgs};
use crate::error::{Context, Error, Result};
use crate::session::write_whole;

/// A run file.
///
/// # Errors
/// When it cannot be read, or is none.
pub fn read_run(path: &Path) -> Result<Run> {
    let shown = path.display();
    let bytes = fs::read(path).map_err(|error| Error::usage(format!("{shown}")).because(error))?;
    Run::parse(&bytes).map_err(|error| Error::usage(format!("{shown}")).because(error))
}

/// What a run came to, for a terminal.
pub fn summary(run: &Run) -> String {
    let options = Options::default();
    let mut parts: Vec<String> = table::metrics(run)
        .into_iter()
        .map(|metric| table::values(run, metric))
        .filter(|table| !table.rows.is_empty())
        .map(|table| table.text())
        .collect();
    let mut said = match run.question.and_then(Question::of) {
        Some(question) => question.here(run, &options),
        None => page::sentences(run, &options),
    };
    said.extend(page::missing(run).into_iter().map(|missing| format!("Not measured: {missing}")));
    said.extend(run.notes.iter().map(|note| format!("To know: {note}")));
    parts.push(said.join("\n"));
    parts.join("\n")
}

/// Pictures are so many times as large as the plots on a page, so that they are sharp in print.
const ENLARGED: u8 = 3;

/// Makes a page, and pictures.
///
/// # Errors
/// When a file is no run file, or one cannot be written.
pub fn report(args: &ReportArgs) -> Result<()> {
    let runs = args.runs.iter().map(|path| read_run(path)).collect::<Result<Vec<Run>>>()?;
    let options = Options { baseline: args.baseline.clone(), without_papers: args.without_papers };
    check_baseline(&runs, args.baseline.as_deref())?;
    if args.markdown {
        let parts: Vec<String> = runs.iter().map(|run| page::markdown(run, &options)).collect();
        output::print(&parts.join("\n"));
        return Ok(());
    }
    let first = args.runs.first().ok_or_else(|| Error::usage("there is no run file"))?;
    let out = args.out.clone().unwrap_or_else(|| first.with_extension("html"));
    let html = page::page(&runs, &options).doing("the page")?;
    write_whole(&out, html.as_bytes())?;
    output::print(&format!("{}", out.display()));
    if let Some(directory) = &args.plots {
        fs::create_dir_all(directory).doing(directory.display())?;
        let font = if args.png { Some(font(&args.font)?) } else { None };
        for (index, run) in runs.iter().enumerate() {
            pictures(run, index, &options, directory, font.as_ref())?;
        }
    }
    Ok(())
}

fn check_baseline(runs: &[Run], baseline: Option<&str>) -> Result<()> {
    let Some(name) = baseline else { return Ok(()) };
    if runs.iter().any(|run| run.target(name).is_some()) {
        return Ok(());
    }
    let names = runs.iter().flat_map(|run| run.targets.iter().map(|target| target.name.as_str()));
    let names: Vec<&str> = names.collect();
    Err(Error::usage(format!("there is no target `{name}` for --baseline; there are {}", names.join(", "))))
}

fn font(path: &Path) -> Result<Font> {
    let bytes = fs::read(path).map_err(|error| {
        Error::usage(format!(
            "{}: install Debian's package fonts-dejavu-core, or name a TrueType file with --font",
            path.display()
        ))
        .because(error)
    })?;
    Font::new(bytes).doing(path.display())
}

fn pictures(run: &Run, index: usize, options: &Options, directory: &Path, font: Option<&Font>) -> Result<()> {
    for plot in page::plots(run, options) {
        let words: String = plot
            .title
            .to_lowercase()
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .collect();
        let words: Vec<&str> = words.split('-').filter(|word| !word.is_empty()).collect();
        let path = directory.join(format!("{}-{}.svg", index + 1, words.join("-")));
        write_whole(&path, plot.svg().doing(&plot.title)?.as_bytes())?;
        if let Some(font) = font {
            write_whole(&path.with_extension("png"), &plot.png(font, ENLARGED).doing(&plot.title)?)?;
        }
    }
    Ok(())
}

/// Prints ratios.
///
/// # Errors
/// When a file is no run file, or the two have nothing in common.
pub fn compare(args: &CompareArgs) -> Result<()> {
    let first = read_run(&args.first)?;
    let Some(second) = &args.second else {
        check_baseline(std::slice::from_ref(&first), args.baseline.as_deref())?;
        let options = Options { baseline: args.baseline.clone(), without_papers: true };
        let baseline = options
            .baseline(&first)
            .ok_or_else(|| Error::usage("the run has no baseline; name one with --baseline"))?;
        output::print(&table::ratios(&first, baseline).text());
        output::print(&page::sentences(&first, &options).join("\n"));
        return Ok(());
    };
    let second = read_run(second)?;
    let table = table::across(&first, &second);
    if table.rows.is_empty() {
        return Err(Error::usage(
            "the two runs have no target in common that both measured at the same case",
        ));
    }
    output::print(&table.text());
    for case in changed(&first, &second) {
        output::print(&format!(
            "{case} was measured with another command in the second run: its ratio says nothing."
        ));
    }
    output::print(
        "The two runs were not taken in turns: what changed on the machine between them is part of the ratio.",
    );
    Ok(())
}

/// Cases of one name whose commands differ.
fn changed<'a>(first: &'a Run, second: &Run) -> Vec<&'a str> {
    let differs = |case: &&report::run::Case| {
        second.case(&case.name).is_some_and(|other| other.command != case.command)
    };
    first.cases.iter().filter(differs).map(|case| case.name.as_str()).collect()
}
