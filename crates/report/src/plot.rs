//! Grouped bars with error bars, as SVG and as PNG.
//!
//! Bars lie, under the name of their case: so names of any length fit, and a plot is readable on a narrow page. Absolute values begin at 0.
//! Ratios begin at 1, on a logarithmic axis, so that twice and half reach equally far.

mod axis;
mod lines;

use std::fmt;

use plotters::backend::{BitMapBackend, SVGBackend};
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::element::{PathElement, Rectangle, Text};
use plotters::prelude::{Cartesian2d, Color, DrawingArea, DrawingBackend, IntoDrawingArea, RGBColor};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{FontStyle, IntoFont, TextStyle};

use crate::figure::number;
use axis::Axis;
pub use lines::{Line, Lines};

/// Colour of text and of error bars; a page that is dark replaces it.
pub const INK: RGBColor = RGBColor(0x24, 0x29, 0x2F);
/// Colour of what is less important.
pub const MUTED: RGBColor = RGBColor(0x57, 0x60, 0x6A);
/// Colour of lines behind bars.
pub const FAINT: RGBColor = RGBColor(0xD0, 0xD7, 0xDE);

/// Colours of the series, which people with any colour vision tell apart. Source: Okabe and Ito, "Color Universal Design", 2008; black left
/// out, since it is the ink.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0x8C, 0x95, 0x9F),
    RGBColor(0x00, 0x72, 0xB2),
    RGBColor(0xE6, 0x9F, 0x00),
    RGBColor(0x00, 0x9E, 0x73),
    RGBColor(0xCC, 0x79, 0xA7),
    RGBColor(0x56, 0xB4, 0xE9),
    RGBColor(0xD5, 0x5E, 0x00),
    RGBColor(0xB8, 0xA9, 0x00),
];

/// Width of a plot in pixels.
const WIDTH: i32 = 480;
const BAR: i32 = 13;
const GAP: i32 = 3;
const LINE: i32 = 18;
const MARGIN: i32 = 12;
const AXIS: i32 = 26;

/// What bars are measured on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// From 0.
    Absolute,
    /// From 1, logarithmic.
    Ratio,
}

/// One bar.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bar {
    /// Index of its series.
    pub series: usize,
    /// Its length.
    pub value: f64,
    /// Lower end of the error bar.
    pub low: f64,
    /// Upper end of the error bar; no error bar is drawn if it is not finite.
    pub high: f64,
}

/// The bars of one case.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// The case.
    pub label: String,
    /// From top to bottom.
    pub bars: Vec<Bar>,
}

/// A plot.
#[derive(Debug, Clone, PartialEq)]
pub struct Plot {
    /// What is shown.
    pub title: String,
    /// Unit, and which direction is better.
    pub note: String,
    /// What a reader must not miss.
    pub warning: Option<String>,
    /// Names of the series, for the legend.
    pub series: Vec<String>,
    /// From top to bottom.
    pub groups: Vec<Group>,
    /// What bars are measured on.
    pub scale: Scale,
}

/// The program that made a picture, as the picture says it.
const PROGRAM: &str = "cvmio bench report";
const SIGN: &str = "<!-- cvmio bench report -->";

/// Whether a file that begins like this is an SVG picture of ours.
pub fn is_svg(head: &[u8]) -> bool {
    head.starts_with(b"<svg") && head.windows(SIGN.len()).any(|part| part == SIGN.as_bytes())
}

/// Whether a file that begins like this is a PNG picture of ours.
pub fn is_png(head: &[u8]) -> bool {
    head.starts_with(b"\x89PNG") && head.windows(PROGRAM.len()).any(|part| part == PROGRAM.as_bytes())
}

/// Why there is no picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlotError(String);

impl fmt::Display for PlotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a plot cannot be drawn: {}", self.0)
    }
}

impl std::error::Error for PlotError {}

/// A font for PNG pictures.
pub struct Font(());

impl Font {
    /// Takes a TrueType or OpenType file as the font of all pictures of this process, from now on.
    ///
    /// # Errors
    /// When it is no font.
    pub fn new(file: Vec<u8>) -> Result<Self, PlotError> {
        // The library keeps it for the life of the process.
        let file: &'static [u8] = Box::leak(file.into_boxed_slice());
        for style in [FontStyle::Normal, FontStyle::Bold] {
            plotters::style::register_font("sans-serif", style, file)
                .map_err(|_| PlotError("the font file is no TrueType or OpenType font".into()))?;
        }
        Ok(Self(()))
    }
}

impl Plot {
    /// As an SVG document. Its texts are texts, in the reader's sans-serif font.
    ///
    /// # Errors
    /// When the library cannot draw it.
    pub fn svg(&self) -> Result<String, PlotError> {
        let layout = Layout::of(self, 1);
        let mut text = String::new();
        let root = SVGBackend::with_string(&mut text, layout.size()).into_drawing_area();
        layout.draw(self, &root)?;
        root.present().map_err(failed)?;
        drop(root);
        Ok(signed(text))
    }

    /// As a PNG picture on white, `scale` times as large as the SVG document.
    ///
    /// # Errors
    /// When the library cannot draw or encode it.
    pub fn png(&self, _font: &Font, scale: u8) -> Result<Vec<u8>, PlotError> {
        let layout = Layout::of(self, i32::from(scale.max(1)));
        encoded(layout.size(), |pixels, size| {
            let root = BitMapBackend::with_buffer(pixels, size).into_drawing_area();
            layout.draw(self, &root)?;
            root.present().map_err(failed)
        })
    }

    /// Lines of the legend: which series stand on each.
    fn legend(&self) -> Vec<Vec<usize>> {
        let drawn =
            |index: usize| self.groups.iter().flat_map(|group| &group.bars).any(|bar| bar.series == index);
        legend(&self.series, drawn)
    }
}

/// A document with what says that it is ours; behind the first tag, since a page takes the document as it is.
fn signed(mut text: String) -> String {
    let tag = text.find('>').map_or(0, |end| end + 1);
    text.insert_str(tag, SIGN);
    text
}

/// A picture as a PNG file.
fn encoded(
    (width, height): (u32, u32),
    draw: impl FnOnce(&mut [u8], (u32, u32)) -> Result<(), PlotError>,
) -> Result<Vec<u8>, PlotError> {
    let bytes = usize::try_from(u64::from(width) * u64::from(height) * 3).map_err(failed)?;
    let mut pixels = vec![0xFF; bytes];
    draw(&mut pixels, (width, height))?;
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.add_text_chunk("Software".into(), PROGRAM.into()).map_err(failed)?;
    let mut writer = encoder.write_header().map_err(failed)?;
    writer.write_image_data(&pixels).map_err(failed)?;
    writer.finish().map_err(failed)?;
    Ok(file)
}

/// Which of the series that are drawn stand on each line of a legend.
fn legend(series: &[String], drawn: impl Fn(usize) -> bool) -> Vec<Vec<usize>> {
    let mut lines: Vec<Vec<usize>> = Vec::new();
    let mut room = 0;
    for (index, name) in series.iter().enumerate().filter(|(index, _)| drawn(*index)) {
        let width = swatch_width(name);
        if room < width {
            lines.push(Vec::new());
            room = WIDTH - 2 * MARGIN;
        }
        room -= width;
        if let Some(line) = lines.last_mut() {
            line.push(index);
        }
    }
    lines
}

/// Pixels beside a series' name in the legend: its colour, and room.
const SWATCH: i32 = 28;
/// Pixels of a letter, generously.
const LETTER: i32 = 7;

/// A generous guess of how wide a series' entry in the legend is.
fn swatch_width(name: &str) -> i32 {
    SWATCH + LETTER * i32::try_from(fitting(name, SWATCH).chars().count()).unwrap_or(WIDTH)
}

/// A name that fits on a line of its own beside so many pixels: what is too long loses its middle, since names differ at both ends.
fn fitting(name: &str, beside: i32) -> String {
    let room = usize::try_from((WIDTH - 2 * MARGIN - beside) / LETTER).unwrap_or(1);
    let letters: Vec<char> = name.chars().collect();
    if letters.len() <= room {
        return name.into();
    }
    let (head, tail) = (room / 2, room - room / 2 - 1);
    let begin = letters.iter().take(head);
    begin.chain(&['…']).chain(letters.iter().skip(letters.len() - tail)).collect()
}

/// Draws a legend's lines from a height on; the height below them.
fn draw_legend<B: DrawingBackend>(
    (legend, series, scale): (&[Vec<usize>], &[String], i32),
    font: &TextStyle<'static>,
    root: &DrawingArea<B, Shift>,
    mut y: i32,
) -> Result<i32, PlotError> {
    let at = |x: i32, y: i32| (x * scale, y * scale);
    for line in legend {
        let mut x = MARGIN;
        for index in line {
            let name = series.get(*index).map_or("", String::as_str);
            let corners = [at(x, y - 5), at(x + 10, y + 5)];
            root.draw(&Rectangle::new(corners, colour(*index).filled())).map_err(failed)?;
            let style = font.clone().pos(Pos::new(HPos::Left, VPos::Center));
            root.draw(&Text::new(fitting(name, SWATCH), at(x + 15, y), style)).map_err(failed)?;
            x += swatch_width(name);
        }
        y += LINE;
    }
    Ok(y)
}

/// The style of a text. The library makes the size of a text that of its line.
fn font(scale: i32, size: i32, bold: bool) -> TextStyle<'static> {
    let style = if bold { FontStyle::Bold } else { FontStyle::Normal };
    ("sans-serif", f64::from(size * scale) * 1.24, style).into_font().color(&INK)
}

/// The size of a title's letters: smaller for one that would be cut off at the right.
fn title_size(title: &str) -> i32 {
    let letters = i32::try_from(title.chars().count()).unwrap_or(i32::MAX).max(1);
    // A bold letter takes six tenths of its height.
    let fits = (WIDTH - 2 * MARGIN).saturating_mul(10) / letters.saturating_mul(6);
    fits.clamp(8, 15)
}

fn failed(error: impl fmt::Display) -> PlotError {
    PlotError(error.to_string())
}

/// The colour of a series.
fn colour(series: usize) -> RGBColor {
    let RGBColor(red, green, blue) = COLOURS[series % COLOURS.len()];
    // A second round is paler, a third one darker.
    let mix = |part: u8| match series / COLOURS.len() % 3 {
        0 => part,
        1 => part / 2 + 0x70,
        _ => part / 2,
    };
    RGBColor(mix(red), mix(green), mix(blue))
}

/// Where everything stands.
struct Layout {
    scale: i32,
    legend: Vec<Vec<usize>>,
    /// Height above the bars.
    head: i32,
    /// Height of the bars.
    body: i32,
    /// Where the bars of each group begin and end, below its name.
    rows: Vec<(i32, i32)>,
}

type Area<'a, B> = DrawingArea<B, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

impl Layout {
    fn of(plot: &Plot, scale: i32) -> Self {
        let legend = plot.legend();
        let lines = i32::try_from(legend.len() + 2 + usize::from(plot.warning.is_some())).unwrap_or(i32::MAX);
        let bars = |group: &Group| i32::try_from(group.bars.len()).unwrap_or(0);
        let (mut body, mut rows) = (0, Vec::new());
        for group in &plot.groups {
            let end = body + LINE + bars(group) * (BAR + GAP);
            rows.push((body + LINE - GAP, end));
            body = end + 8;
        }
        Self { scale, legend, head: MARGIN + 6 + lines.saturating_mul(LINE), body, rows }
    }

    fn size(&self) -> (u32, u32) {
        let pixels = |length: i32| u32::try_from(length.saturating_mul(self.scale)).unwrap_or(1);
        (pixels(WIDTH), pixels(self.head + self.body + AXIS + MARGIN))
    }

    fn font(&self, size: i32, bold: bool) -> TextStyle<'static> {
        font(self.scale, size, bold)
    }

    fn draw<B: DrawingBackend>(&self, plot: &Plot, root: &DrawingArea<B, Shift>) -> Result<(), PlotError> {
        self.draw_head(plot, root)?;
        let pixels = |length: i32| length * self.scale;
        let (_, body) = root.split_vertically(pixels(self.head));
        let area = body.margin(0, pixels(MARGIN), pixels(MARGIN), pixels(MARGIN));
        let axis = Axis::of(plot);
        let (width, height) = area.dim_in_pixel();
        let ends = |end: u32| 0..i32::try_from(end).unwrap_or(i32::MAX);
        let (x, y) = (axis.range(), 0.0..f64::from(self.body + AXIS));
        let (left, top) = area.get_base_pixel();
        let shift = |range: std::ops::Range<i32>, by: i32| range.start + by..range.end + by;
        let place = (shift(ends(width), left), shift(ends(height), top));
        let area: Area<'_, B> = area.apply_coord_spec(Cartesian2d::new(x, y, place));
        self.draw_axis(&area, &axis)?;
        let mut top = 0;
        for group in &plot.groups {
            self.draw_group(&area, &axis, group, top)?;
            top += LINE + i32::try_from(group.bars.len()).unwrap_or(0) * (BAR + GAP) + 8;
        }
        self.draw_origin(&area, &axis)
    }

    fn draw_head<B: DrawingBackend>(
        &self,
        plot: &Plot,
        root: &DrawingArea<B, Shift>,
    ) -> Result<(), PlotError> {
        let at = |x: i32, y: i32| (x * self.scale, y * self.scale);
        let put = |text: &str, x: i32, y: i32, style: TextStyle<'_>| {
            let style = style.pos(Pos::new(HPos::Left, VPos::Center));
            root.draw(&Text::new(text.to_string(), at(x, y), style)).map_err(failed)
        };
        let mut y = MARGIN + 6;
        put(&plot.title, MARGIN, y, self.font(title_size(&plot.title), true))?;
        y += LINE;
        put(&fitting(&plot.note, 0), MARGIN, y, self.font(12, false).color(&MUTED))?;
        y += LINE;
        if let Some(warning) = &plot.warning {
            put(warning, MARGIN, y, self.font(12, true))?;
            y += LINE;
        }
        draw_legend((&self.legend, &plot.series, self.scale), &self.font(12, false), root, y).map(drop)
    }

    fn draw_axis<B: DrawingBackend>(&self, area: &Area<'_, B>, axis: &Axis) -> Result<(), PlotError> {
        let bottom = f64::from(self.body);
        // Names of cases stand in the gaps: a line across them could not be read.
        let style = self.font(11, false).color(&MUTED).pos(Pos::new(HPos::Center, VPos::Center));
        for (place, label) in axis.ticks() {
            for (top, bottom) in &self.rows {
                let ends = vec![(place, f64::from(*top)), (place, f64::from(*bottom))];
                area.draw(&PathElement::new(ends, FAINT.stroke_width(1))).map_err(failed)?;
            }
            area.draw(&Text::new(label, (place, bottom + 14.0), style.clone())).map_err(failed)?;
        }
        Ok(())
    }

    fn draw_origin<B: DrawingBackend>(&self, area: &Area<'_, B>, axis: &Axis) -> Result<(), PlotError> {
        let stroke = INK.stroke_width(u32::try_from(self.scale).unwrap_or(1));
        for (top, bottom) in &self.rows {
            let ends = vec![(axis.origin(), f64::from(*top)), (axis.origin(), f64::from(*bottom))];
            area.draw(&PathElement::new(ends, stroke)).map_err(failed)?;
        }
        Ok(())
    }

    fn draw_group<B: DrawingBackend>(
        &self,
        area: &Area<'_, B>,
        axis: &Axis,
        group: &Group,
        top: i32,
    ) -> Result<(), PlotError> {
        let style = self.font(12, true).pos(Pos::new(HPos::Left, VPos::Center));
        let middle = f64::from(top) + f64::from(LINE) / 2.0;
        let place = (axis.range().start + axis.gap(), middle);
        area.draw(&Text::new(fitting(&group.label, 0), place, style)).map_err(failed)?;
        for (bar, row) in group.bars.iter().zip(0..) {
            self.draw_bar(area, axis, bar, f64::from(top + LINE + row * (BAR + GAP)))?;
        }
        Ok(())
    }

    fn draw_bar<B: DrawingBackend>(
        &self,
        area: &Area<'_, B>,
        axis: &Axis,
        bar: &Bar,
        top: f64,
    ) -> Result<(), PlotError> {
        let height = f64::from(BAR);
        let [value, low, high] = [bar.value, bar.low, bar.high].map(|value| axis.place(value));
        let corners = [(axis.origin(), top), (value, top + height)];
        area.draw(&Rectangle::new(corners, colour(bar.series).filled())).map_err(failed)?;
        let middle = top + height / 2.0;
        let mut ends = (value, value);
        if bar.high.is_finite() && bar.high > bar.low {
            ends = (low.min(value), high.max(value));
            let stroke = INK.stroke_width(u32::try_from(self.scale).unwrap_or(1));
            let cap = height / 4.0;
            for line in [
                vec![(low, middle), (high, middle)],
                vec![(low, middle - cap), (low, middle + cap)],
                vec![(high, middle - cap), (high, middle + cap)],
            ] {
                area.draw(&PathElement::new(line, stroke)).map_err(failed)?;
            }
        }
        let left = value < axis.origin();
        let (x, side) = match left {
            true => (ends.0.min(axis.origin()) - axis.gap(), HPos::Right),
            false => (ends.1.max(axis.origin()) + axis.gap(), HPos::Left),
        };
        let style = self.font(11, false).pos(Pos::new(side, VPos::Center));
        area.draw(&Text::new(number(bar.value), (x, middle), style)).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_is_as_large_as_there_is_room() {
        assert_eq!(title_size("Latency: ratio to file"), 15);
        let long = "Time to completion: ratio to vm disk=virtio-scsi,bounce=on";
        assert!((10..15).contains(&title_size(long)), "{}", title_size(long));
        assert_eq!(title_size(&"x".repeat(1000)), 8);
        assert_eq!(title_size(""), 15);
    }

    #[test]
    fn names_end_at_the_edge() {
        let long = format!("cvmio suite={},level=strict", "aes-256-gcm-and-more-".repeat(9));
        let shown = fitting(&long, SWATCH);
        assert!(
            shown.starts_with("cvmio suite=") && shown.ends_with("level=strict") && shown.contains('…'),
            "{shown}"
        );
        assert!(swatch_width(&long) <= WIDTH - 2 * MARGIN);
        assert_eq!(fitting("cvmio", SWATCH), "cvmio");
    }

    #[test]
    fn no_line_runs_through_a_name() {
        let bar = |value: f64| Bar { series: 0, value, low: value, high: value };
        let group = |label: &str| Group { label: label.into(), bars: vec![bar(0.5), bar(2.0)] };
        let groups = vec![group("a"), group("b")];
        let (title, note) = (String::new(), String::new());
        let plot = Plot { title, note, warning: None, series: vec!["x".into()], groups, scale: Scale::Ratio };
        let layout = Layout::of(&plot, 1);
        // The names stand at 9 and 67, and are 12 high.
        assert_eq!(layout.rows, [(LINE - GAP, 50), (58 + LINE - GAP, 108)]);
    }
}
