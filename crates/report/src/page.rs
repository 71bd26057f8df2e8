//! One HTML page about one run or more, with everything in it: no script, no font and no picture from elsewhere.

mod inside;
mod lines;
mod parts;
mod style;

use std::fmt::Write;

use crate::plot::{Font, Lines, Plot, PlotError};
use crate::question::Question;
use crate::run::{Run, State};
use crate::table::{self, Table};

pub use parts::{Pair, missing, plots, sentences, sentences_of};

/// What is said beside every figure of an emulated machine.
pub const EMULATED: &str = "emulated: for function, not for speed";

/// What to show.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The target that ratios refer to; the run's own baseline if this is not said.
    pub baseline: Option<String>,
    /// Whether to leave out what the papers found.
    pub without_papers: bool,
}

impl Options {
    /// The baseline of a run.
    pub fn baseline<'a>(&'a self, run: &'a Run) -> Option<&'a str> {
        let chosen = self.baseline.as_deref().filter(|name| run.target(name).is_some());
        chosen.or(run.baseline.as_deref())
    }
}

/// Text as HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// What a page of ours begins with.
const HEAD: &str = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"generator\" content=\"cvmio bench report\">\n";

/// Whether a file that begins like this is a page of ours.
pub fn is_page(head: &[u8]) -> bool {
    head.starts_with(HEAD.as_bytes())
}

/// The page.
///
/// # Errors
/// When a plot cannot be drawn.
pub fn page(runs: &[Run], options: &Options) -> Result<String, PlotError> {
    let title = match runs {
        [run] => run.title.clone(),
        _ => format!("{} runs", runs.len()),
    };
    let mut html = format!(
        "{HEAD}<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n\
         <title>{}</title>\n<style>{}</style>\n</head>\n<body>\n<main>\n",
        escape(&title),
        style::CSS
    );
    if runs.len() > 1 {
        let titles: Vec<String> = runs.iter().map(|run| format!("{} ({})", run.title, run.started)).collect();
        let titles: String = titles.iter().map(|title| format!("<li>{}</li>\n", escape(title))).collect();
        let _ = writeln!(html, "<section>\n<h1>{} runs</h1>\n<ol>\n{titles}</ol>", runs.len());
        html += &figures(&pictures_of_all(runs))?;
        html += "</section>\n";
    }
    for run in runs {
        html += &section(run, options)?;
    }
    if let [first, others @ ..] = runs {
        for other in others {
            html += &between(first, other)?;
        }
    }
    html += "</main>\n</body>\n</html>\n";
    Ok(html)
}

/// A plot of whatever kind.
#[derive(Debug, Clone, PartialEq)]
pub enum Picture {
    /// Bars.
    Bars(Plot),
    /// Lines.
    Lines(Lines),
}

impl Picture {
    /// What is shown.
    pub fn title(&self) -> &str {
        match self {
            Self::Bars(plot) => &plot.title,
            Self::Lines(lines) => &lines.title,
        }
    }

    /// As an SVG document.
    ///
    /// # Errors
    /// When the library cannot draw it.
    pub fn svg(&self) -> Result<String, PlotError> {
        match self {
            Self::Bars(plot) => plot.svg(),
            Self::Lines(lines) => lines.svg(),
        }
    }

    /// As a PNG picture, so many times as large.
    ///
    /// # Errors
    /// When the library cannot draw or encode it.
    pub fn png(&self, font: &Font, scale: u8) -> Result<Vec<u8>, PlotError> {
        match self {
            Self::Bars(plot) => plot.png(font, scale),
            Self::Lines(lines) => lines.png(font, scale),
        }
    }
}

/// All plots of a run.
pub fn pictures(run: &Run, options: &Options) -> Vec<Picture> {
    let bars = plots(run, options).into_iter().map(Picture::Bars);
    bars.chain(
        lines::sweeps(run)
            .into_iter()
            .chain(lines::course(run))
            .chain(inside::inside(run))
            .map(Picture::Lines),
    )
    .collect()
}

/// The plots that have several runs in them.
pub fn pictures_of_all(runs: &[Run]) -> Vec<Picture> {
    lines::together(runs).into_iter().map(Picture::Bars).collect()
}

/// Everything about one run.
fn section(run: &Run, options: &Options) -> Result<String, PlotError> {
    let mut html =
        format!("<section>\n<h1>{}</h1>\n<p class=\"muted\">{}</p>\n", escape(&run.title), about(run));
    if run.emulated {
        let _ = writeln!(html, "<p class=\"warning\">{EMULATED}</p>");
    }
    if let Some(unfinished) = unfinished(run) {
        let _ = writeln!(html, "<p class=\"warning\">{unfinished}</p>");
    }
    html += &match run.question.and_then(Question::of) {
        Some(question) => list(&question.title(), &question.answer(run, options)),
        None => String::new(),
    };
    let glance = parts::glance(run, options);
    if !glance.rows.is_empty() {
        html += &format!("<h2>At a glance</h2>\n{}", glance.html());
    }
    html += &figures(&pictures(run, options))?;
    if run.question.is_none() {
        html += &list("In words", &sentences(run, options));
    }
    for table in tables(run, options) {
        html += &filled(&table);
    }
    if !options.without_papers {
        html += &filled(&parts::papers(run, options));
        html += &list("What the papers say in words", &parts::statements(run));
    }
    html += &filled(&parts::meanwhile(run));
    html += &list("Not measured", &parts::missing(run));
    html += &list("To know", &run.notes);
    html += &parts::details(run);
    html += "</section>\n";
    Ok(html)
}

/// What must be said of a run that did not come to its end.
pub fn unfinished(run: &Run) -> Option<&'static str> {
    match run.state {
        State::Complete => None,
        State::Interrupted => Some("Interrupted: not everything was measured."),
        State::Running => Some("The run had not ended when this was written, or was killed."),
    }
}

/// The tables of figures, those without a row among them.
pub fn tables(run: &Run, options: &Options) -> Vec<Table> {
    let mut tables: Vec<Table> =
        table::metrics(run).into_iter().map(|metric| table::values(run, metric)).collect();
    tables.extend(options.baseline(run).map(|baseline| table::ratios(run, baseline)));
    tables.extend([table::percentiles(run), table::processors(run)]);
    tables
}

fn filled(table: &Table) -> String {
    if table.rows.is_empty() { String::new() } else { table.html() }
}

/// One run against another.
fn between(first: &Run, second: &Run) -> Result<String, PlotError> {
    let mut html =
        format!("<section>\n<h1>{} against {}</h1>\n", escape(&second.title), escape(&first.title));
    let plots = parts::plots_between(first, second).into_iter().map(Picture::Bars);
    html += &figures(&plots.collect::<Vec<_>>())?;
    html += &table::across(first, second).html();
    let _ =
        writeln!(html, "<p class=\"muted\">{}</p>\n</section>", escape(&table::about_across(first, second)));
    Ok(html)
}

/// Plots, each with its name for those who cannot see it.
fn figures(plots: &[Picture]) -> Result<String, PlotError> {
    let mut html = String::from("<div class=\"figures\">\n");
    for plot in plots {
        let _ = writeln!(
            html,
            "<figure role=\"img\" aria-label=\"{}\">{}</figure>",
            escape(plot.title()),
            plot.svg()?
        );
    }
    html += "</div>\n";
    Ok(html)
}

fn list(title: &str, items: &[String]) -> String {
    if items.is_empty() {
        return String::new();
    }
    let items: String = items.iter().map(|item| format!("<li>{}</li>\n", escape(item))).collect();
    format!("<h2>{}</h2>\n<ul>\n{items}</ul>\n", escape(title))
}

/// Machine and time, in a line.
fn about(run: &Run) -> String {
    let machine = &run.machine;
    let confidential = machine.confidential.as_deref().unwrap_or("not a confidential guest");
    escape(&format!(
        "{} · {} · {} cores · {} GiB · Linux {} · {confidential} · {}",
        run.started,
        machine.cpu,
        machine.cores,
        machine.memory >> 30,
        machine.kernel,
        table::turns(run)
    ))
}

/// Words as they are typed: those with blanks and the like in quotes.
fn words(words: &[String]) -> String {
    let plain = |letter: char| letter.is_alphanumeric() || "-_./:=,+@%".contains(letter);
    let word = |word: &String| match !word.is_empty() && word.chars().all(plain) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    };
    words.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// A summary for a document in Markdown: sentences and tables.
pub fn markdown(run: &Run, options: &Options) -> String {
    let mut text = format!("## {}\n\n", run.title);
    if run.emulated {
        let _ = writeln!(text, "**{EMULATED}**\n");
    }
    if let Some(unfinished) = unfinished(run) {
        let _ = writeln!(text, "**{unfinished}**\n");
    }
    let _ = writeln!(text, "    cvmio bench {}\n", words(&run.command));
    let said = match run.question.and_then(Question::of) {
        Some(question) => question.answer(run, options),
        None => sentences(run, options),
    };
    for sentence in said {
        let _ = writeln!(text, "* {sentence}");
    }
    text.push('\n');
    let mut tables = tables(run, options);
    tables.push(parts::meanwhile(run));
    for table in tables.iter().filter(|table| !table.rows.is_empty()) {
        text += &table.markdown();
        text.push('\n');
    }
    for missing in parts::missing(run) {
        let _ = writeln!(text, "* Not measured: {missing}");
    }
    for note in &run.notes {
        let _ = writeln!(text, "* To know: {note}");
    }
    text
}
