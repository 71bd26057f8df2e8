//! One HTML page about one run or more, with everything in it: no script, no font and no picture from elsewhere.

mod parts;
mod style;

use std::fmt::Write;

use crate::plot::{Plot, PlotError};
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
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n\
         <title>{}</title>\n<style>{}</style>\n</head>\n<body>\n<main>\n",
        escape(&title),
        style::CSS
    );
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

/// Everything about one run.
fn section(run: &Run, options: &Options) -> Result<String, PlotError> {
    let mut html =
        format!("<section>\n<h1>{}</h1>\n<p class=\"muted\">{}</p>\n", escape(&run.title), about(run));
    if run.emulated {
        let _ = writeln!(html, "<p class=\"warning\">{EMULATED}</p>");
    }
    match run.state {
        State::Complete => {}
        State::Interrupted => html += "<p class=\"warning\">Interrupted: not everything was measured.</p>\n",
        State::Running => {
            html += "<p class=\"warning\">The run had not ended when this was written, or was killed.</p>\n";
        }
    }
    html += &match run.question.and_then(Question::of) {
        Some(question) => list(&question.title(), &question.answer(run, options)),
        None => String::new(),
    };
    let glance = parts::glance(run, options);
    if !glance.rows.is_empty() {
        html += &format!("<h2>At a glance</h2>\n{}", glance.html());
    }
    html += &figures(&plots(run, options))?;
    if run.question.is_none() {
        html += &list("In words", &sentences(run, options));
    }
    for metric in table::metrics(run) {
        html += &table::values(run, metric).html();
    }
    if let Some(baseline) = options.baseline(run) {
        html += &filled(&table::ratios(run, baseline));
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

fn filled(table: &Table) -> String {
    if table.rows.is_empty() { String::new() } else { table.html() }
}

/// One run against another.
fn between(first: &Run, second: &Run) -> Result<String, PlotError> {
    let mut html =
        format!("<section>\n<h1>{} against {}</h1>\n", escape(&second.title), escape(&first.title));
    html += &figures(&parts::plots_between(first, second))?;
    html += &table::across(first, second).html();
    html += "<p class=\"muted\">The two runs were not taken in turns: what changed on the machine between them is part of the ratio.</p>\n</section>\n";
    Ok(html)
}

/// Plots, each with its name for those who cannot see it.
fn figures(plots: &[Plot]) -> Result<String, PlotError> {
    let mut html = String::from("<div class=\"figures\">\n");
    for plot in plots {
        let _ = writeln!(
            html,
            "<figure role=\"img\" aria-label=\"{}\">{}</figure>",
            escape(&plot.title),
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

/// A summary for a document in Markdown: sentences and tables.
pub fn markdown(run: &Run, options: &Options) -> String {
    let mut text = format!("## {}\n\n", run.title);
    if run.emulated {
        let _ = writeln!(text, "**{EMULATED}**\n");
    }
    let _ = writeln!(text, "    cvmio bench {}\n", run.command.join(" "));
    let said = match run.question.and_then(Question::of) {
        Some(question) => question.answer(run, options),
        None => sentences(run, options),
    };
    for sentence in said {
        let _ = writeln!(text, "* {sentence}");
    }
    text.push('\n');
    let mut tables: Vec<Table> =
        table::metrics(run).into_iter().map(|metric| table::values(run, metric)).collect();
    if let Some(baseline) = options.baseline(run) {
        tables.push(table::ratios(run, baseline));
    }
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
