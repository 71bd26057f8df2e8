//! A page at 1280 pixels, computed: where there is no browser, `browser.rs` sees nothing.
//!
//! Letters are taken to be as wide as the widest usual ones, so what fits here fits in a browser.

use report::page::{Options, page};
use report::run::{Run, Sample};

use super::golden;

/// Pixels of the window, and what is left of them in the page's middle: its width there and its padding are in the style sheet.
const WINDOW: f64 = 1280.0;
const CONTENT: f64 = 1240.0 - 2.0 * 16.0;
/// Of a letter, as a share of its size: a digit of the usual sans-serif fonts has 0.56.
const LETTER: f64 = 0.6;
/// The size of letters in a table, and the padding of a cell.
const CELL: f64 = 13.5;
const PADDING: f64 = 16.0;

/// The golden run with more of everything: targets with long names, and a course inside each turn.
fn wide() -> Run {
    let mut run = golden();
    let names = ["suite=aegis-128x2,level=interval,front=loop", "suite=aes-256-gcm,level=strict,front=nbd"];
    for number in 0..6 {
        let name = format!("cvmio:{},memory={number}g", names[number % 2]);
        let mut target = run.targets[0].clone();
        (target.name, target.control_of) = (name.clone(), None);
        let own = run.samples.iter().filter(|sample| sample.target == run.targets[0].name);
        let more: Vec<Sample> = own.map(|sample| Sample { target: name.clone(), ..sample.clone() }).collect();
        run.samples.extend(more);
        run.targets.push(target);
    }
    for sample in &mut run.samples {
        sample.course = (1..=10).map(|at| (f64::from(at) * 0.5, sample.value)).collect();
    }
    Run::parse(run.to_json().unwrap().as_bytes()).unwrap()
}

fn between<'a>(text: &'a str, begin: &str, end: &str) -> impl Iterator<Item = &'a str> {
    text.split(begin).skip(1).map(move |rest| rest.split(end).next().unwrap_or_default())
}

fn letters(text: &str) -> f64 {
    // `&amp;` and the like are one.
    let text = text.replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"");
    f64::from(u32::try_from(text.chars().count()).unwrap())
}

/// The least width of a table: words of its cells are not broken, those of its head are.
fn least(table: &str) -> f64 {
    let mut columns = Vec::new();
    for row in between(table, "<tr>", "</tr>") {
        for (at, cell) in between(row, "<td", "</td>").enumerate() {
            let text = cell.split_once('>').unwrap().1;
            let word = text.split_whitespace().map(letters).fold(0.0, f64::max);
            columns.resize(columns.len().max(at + 1), 0.0);
            columns[at] = f64::max(columns[at], word * CELL * LETTER + PADDING);
        }
    }
    assert!(!columns.is_empty(), "{table}");
    columns.iter().sum()
}

fn attribute(element: &str, name: &str) -> Option<String> {
    between(element, &format!(" {name}=\""), "\"").next().map(String::from)
}

fn number(element: &str, name: &str) -> f64 {
    attribute(element, name)
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| panic!("{name} of {element}"))
}

#[test]
fn tables_fit_on_the_page() {
    for run in [golden(), wide()] {
        let html = page(&[run.clone(), run], &Options::default()).unwrap();
        // What this counts on.
        for rule in
            ["main { max-width: 1240px; margin: 0 auto; padding: 16px; }", "* { box-sizing: border-box; }"]
        {
            assert!(html.contains(rule), "{rule}");
        }
        let breaks =
            html.lines().find_map(|line| line.strip_suffix(" { overflow-wrap: anywhere; }")).unwrap();
        for element in ["h1", "h2", "p", "ul", "ol", "summary", "caption", "th"] {
            assert!(breaks.trim().split(", ").any(|one| one == element), "{element} is not in {breaks}");
        }
        let mut tables = 0;
        for table in between(&html, "<table>", "</table>") {
            let least = least(table);
            assert!(least <= CONTENT, "{least} pixels of {CONTENT}: {table}");
            tables += 1;
        }
        assert!(tables >= 8, "{tables}");
    }
}

#[test]
fn every_word_of_a_plot_is_in_its_picture() {
    let html = page(&[wide()], &Options::default()).unwrap();
    // Two stand beside each other, each as wide as its place and not more than 620 pixels.
    assert!(
        html.contains("minmax(min(100%, 460px), 1fr)")
            && html.contains("svg { display: block; width: 100%; max-width: 620px;")
    );
    const { assert!(2.0 * 460.0 + 16.0 <= CONTENT && CONTENT < WINDOW) };
    let mut words = 0;
    for svg in between(&html, "<svg", "</svg>") {
        let width = number(svg, "width");
        let view = attribute(svg, "viewBox").expect("it is as wide as its place");
        assert!(view.starts_with(&format!("0 0 {width} ")), "{view}");
        for text in between(svg, "<text", "</text>") {
            let (element, said) = text.split_once('>').unwrap();
            let element = format!(" {element}");
            let long = letters(said.trim()) * number(&element, "font-size") * LETTER * 0.9;
            let at = number(&element, "x");
            let (left, right) = match attribute(&element, "text-anchor").as_deref() {
                Some("end") => (at - long, at),
                Some("middle") => (at - long / 2.0, at + long / 2.0),
                _ => (at, at + long),
            };
            assert!(left >= -1.0 && right <= width + 1.0, "{left} to {right} of {width}: {said}");
            words += 1;
        }
        for element in ["rect", "line", "circle"] {
            for one in between(svg, &format!("<{element}"), "/>") {
                for name in ["x", "x1", "x2", "cx"] {
                    let at =
                        attribute(&format!(" {one}"), name).map_or(0.0, |text| text.parse::<f64>().unwrap());
                    assert!((0.0..=width).contains(&at), "{name} of {element} is {at} of {width}");
                }
            }
        }
    }
    assert!(words > 100, "{words}");
}
