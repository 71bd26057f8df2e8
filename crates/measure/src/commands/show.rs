//! Commands that show what was measured.

use std::fs;
use std::path::{Path, PathBuf};

use report::export;
use report::page::{self, Options, Picture};
use report::plot::{self, Font};
use report::question::Question;
use report::run::Run;
use report::table;

use super::{CompareArgs, ReportArgs};
use crate::error::{Context, Error, Result};
use crate::outfile::write_whole;
use crate::visible::visible;

/// A run file.
///
/// # Errors
/// When it cannot be read, or is none.
pub fn read_run(path: &Path) -> Result<Run> {
    let shown = path.display();
    let bytes = fs::read(path).map_err(|error| Error::usage(format!("{shown}")).because(error))?;
    Run::parse(&bytes).map_err(|error| Error::usage(format!("{shown}")).because(error))
}

/// Prints what may come from elsewhere.
pub fn print(text: &str) {
    cli::output::print(&visible(text));
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
    let more =
        [table::percentiles(run), table::processors(run)].into_iter().filter(|table| !table.rows.is_empty());
    parts.extend(more.map(|table| table.text()));
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
    let (runs, left_out) = readable(&args.runs)?;
    let options = Options { baseline: args.baseline.clone(), without_papers: args.without_papers };
    check_baseline(&runs, args.baseline.as_deref())?;
    if args.markdown {
        let parts: Vec<String> = runs.iter().map(|run| page::markdown(run, &options)).collect();
        print(&parts.join("\n"));
        return left_out;
    }
    if args.csv {
        print(&export::csv(&runs));
        return left_out;
    }
    if args.latex {
        let tables =
            runs.iter().flat_map(|run| page::tables(run, &options)).filter(|table| !table.rows.is_empty());
        print(&tables.map(|table| export::latex(&table)).collect::<Vec<_>>().join("\n"));
        return left_out;
    }
    let first = args.runs.first().ok_or_else(|| Error::usage("there is no run file"))?;
    let out = args.out.clone().unwrap_or_else(|| first.with_extension("html"));
    let html = page::page(&runs, &options).doing("the page")?;
    write_whole(&out, html.as_bytes(), page::is_page)?;
    print(&format!("{}", out.display()));
    if let Some(directory) = &args.plots {
        fs::create_dir_all(directory).doing(directory.display())?;
        let font = if args.png { Some(font(&args.font)?) } else { None };
        for (index, run) in runs.iter().enumerate() {
            save(&page::pictures(run, &options), &format!("{}", index + 1), directory, font.as_ref())?;
        }
        if runs.len() > 1 {
            save(&page::pictures_of_all(&runs), "all", directory, font.as_ref())?;
        }
    }
    left_out
}

/// The run files that are some, and whether one was left out: the others are worth a page all the same.
fn readable(paths: &[PathBuf]) -> Result<(Vec<Run>, Result<()>)> {
    let mut runs = Vec::new();
    let mut bad = Vec::new();
    for path in paths {
        match read_run(path) {
            Ok(run) => runs.push(run),
            Err(error) => bad.push(error),
        }
    }
    let count = bad.len();
    match bad.into_iter().next() {
        None => Ok((runs, Ok(()))),
        Some(error) if runs.is_empty() => Err(error),
        Some(error) => {
            let message =
                format!("{count} of {} run files were left out, the first because of this", paths.len());
            Ok((runs, Err(Error::io(message).because(error))))
        }
    }
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

/// Writes plots, each named by its title.
fn save(pictures: &[Picture], prefix: &str, directory: &Path, font: Option<&Font>) -> Result<()> {
    for picture in pictures {
        let title = picture.title();
        let words: String =
            title.to_lowercase().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let words: Vec<&str> = words.split('-').filter(|word| !word.is_empty()).collect();
        // A file's name has at most 255 bytes.
        let name: String = format!("{prefix}-{}", words.join("-")).chars().take(200).collect();
        let path = directory.join(format!("{name}.svg"));
        write_whole(&path, picture.svg().doing(title)?.as_bytes(), plot::is_svg)?;
        if let Some(font) = font {
            write_whole(
                &path.with_extension("png"),
                &picture.png(font, ENLARGED).doing(title)?,
                plot::is_png,
            )?;
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
        print(&table::ratios(&first, baseline).text());
        print(&page::sentences(&first, &options).join("\n"));
        return Ok(());
    };
    let second = read_run(second)?;
    let table = table::across(&first, &second);
    if table.rows.is_empty() {
        return Err(Error::usage(
            "the two runs have no target in common that both measured at the same case",
        ));
    }
    print(&table.text());
    for case in changed(&first, &second) {
        print(&format!(
            "{case} was measured with another command in the second run: its ratio says nothing."
        ));
    }
    print(&table::about_across(&first, &second));
    Ok(())
}

/// Cases of one name whose commands differ.
fn changed<'a>(first: &'a Run, second: &Run) -> Vec<&'a str> {
    let differs = |case: &&report::run::Case| {
        second.case(&case.name).is_some_and(|other| other.command != case.command)
    };
    first.cases.iter().filter(differs).map(|case| case.name.as_str()).collect()
}
