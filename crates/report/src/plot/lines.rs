//! Lines over a number: depth, jobs, size or time.

use plotters::backend::{BitMapBackend, SVGBackend};
use plotters::coord::Shift;
use plotters::element::{Circle, PathElement, Text};
use plotters::prelude::{Color, DrawingArea, DrawingBackend, IntoDrawingArea};
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::axis::{round_step, shortest};
use super::{
    FAINT, Font, INK, LINE, MARGIN, MUTED, PlotError, WIDTH, colour, draw_legend, encoded, failed, fitting,
    font, legend, signed, title_size,
};

/// Height of what the lines run in.
const HEIGHT: i32 = 220;
/// Room for the numbers at the left, and for those below and what they count.
const LEFT: i32 = 46;
const BELOW: i32 = 40;
/// Names below the axis closer than this would touch.
const CLOSEST: i32 = 34;

/// A line.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// Index of its series.
    pub series: usize,
    /// Place on the axis, value, and the ends of its interval, which are the value itself if it has none.
    pub points: Vec<(f64, f64, f64, f64)>,
}

/// A plot of lines. Values begin at 0.
#[derive(Debug, Clone, PartialEq)]
pub struct Lines {
    /// What is shown.
    pub title: String,
    /// Unit, and which direction is better.
    pub note: String,
    /// What a reader must not miss.
    pub warning: Option<String>,
    /// What the axis below counts.
    pub axis: String,
    /// Marks on that axis, with their names; places in between if there are none.
    pub marks: Vec<(f64, String)>,
    /// Names of the series, for the legend.
    pub series: Vec<String>,
    /// In the order in which they are drawn.
    pub lines: Vec<Line>,
    /// Whether places double from one to the next.
    pub logarithmic: bool,
}

impl Lines {
    /// As an SVG document.
    ///
    /// # Errors
    /// When the library cannot draw it.
    pub fn svg(&self) -> Result<String, PlotError> {
        let frame = Frame::of(self, 1);
        let mut text = String::new();
        let root = SVGBackend::with_string(&mut text, frame.size()).into_drawing_area();
        frame.draw(&root)?;
        root.present().map_err(failed)?;
        drop(root);
        Ok(signed(text))
    }

    /// As a PNG picture on white, `scale` times as large.
    ///
    /// # Errors
    /// When the library cannot draw or encode it.
    pub fn png(&self, _font: &Font, scale: u8) -> Result<Vec<u8>, PlotError> {
        let frame = Frame::of(self, i32::from(scale.max(1)));
        encoded(frame.size(), |pixels, size| {
            let root = BitMapBackend::with_buffer(pixels, size).into_drawing_area();
            frame.draw(&root)?;
            root.present().map_err(failed)
        })
    }

    /// The greatest end of an interval, as far as it does not squeeze all others.
    fn most(&self) -> f64 {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let most = points()
            .map(|(_, value, _, high)| if high.is_finite() { high.min(value * 1.6) } else { *value })
            .fold(0.0, f64::max);
        if most > 0.0 { most } else { 1.0 }
    }
}

/// Where everything stands.
struct Frame<'a> {
    plot: &'a Lines,
    scale: i32,
    legend: Vec<Vec<usize>>,
    head: i32,
    /// Least and greatest place.
    ends: (f64, f64),
    most: f64,
}

impl<'a> Frame<'a> {
    fn of(plot: &'a Lines, scale: i32) -> Self {
        let legend = legend(&plot.series, |index| plot.lines.iter().any(|line| line.series == index));
        let lines = i32::try_from(legend.len() + 2 + usize::from(plot.warning.is_some())).unwrap_or(i32::MAX);
        let places = || plot.lines.iter().flat_map(|line| &line.points).map(|point| plot.place(point.0));
        let least = places().fold(f64::INFINITY, f64::min);
        let most = places().fold(f64::NEG_INFINITY, f64::max);
        let ends = if most > least { (least, most) } else { (least - 1.0, least + 1.0) };
        Self { plot, scale, legend, head: MARGIN + 6 + lines.saturating_mul(LINE), ends, most: plot.most() }
    }

    fn size(&self) -> (u32, u32) {
        let pixels = |length: i32| u32::try_from(length.saturating_mul(self.scale)).unwrap_or(1);
        (pixels(WIDTH), pixels(self.head + HEIGHT + BELOW))
    }

    /// A share of a length, in whole pixels.
    #[expect(clippy::cast_possible_truncation, reason = "a share between 0 and 1 of some hundred pixels")]
    fn share(length: i32, share: f64) -> i32 {
        (f64::from(length) * share.clamp(0.0, 1.0)).round() as i32
    }

    fn x(&self, place: f64) -> i32 {
        let share = (place - self.ends.0) / (self.ends.1 - self.ends.0);
        (LEFT + Self::share(WIDTH - LEFT - 2 * MARGIN, share)) * self.scale
    }

    fn y(&self, value: f64) -> i32 {
        (self.head + HEIGHT - Self::share(HEIGHT, value / self.most)) * self.scale
    }

    fn draw<B: DrawingBackend>(&self, root: &DrawingArea<B, Shift>) -> Result<(), PlotError> {
        let plot = self.plot;
        let mut y = MARGIN + 6;
        let left = Pos::new(HPos::Left, VPos::Center);
        let mut put = |text: &str, style: plotters::style::TextStyle<'static>| {
            let at = (MARGIN * self.scale, y * self.scale);
            y += LINE;
            root.draw(&Text::new(text.to_string(), at, style.pos(left))).map_err(failed)
        };
        put(&plot.title, font(self.scale, title_size(&plot.title), true))?;
        put(&fitting(&plot.note, 0), font(self.scale, 12, false).color(&MUTED))?;
        if let Some(warning) = &plot.warning {
            put(warning, font(self.scale, 12, true))?;
        }
        draw_legend((&self.legend, &plot.series, self.scale), &font(self.scale, 12, false), root, y)?;
        self.draw_axes(root)?;
        for line in &plot.lines {
            self.draw_line(root, line)?;
        }
        Ok(())
    }

    fn draw_axes<B: DrawingBackend>(&self, root: &DrawingArea<B, Shift>) -> Result<(), PlotError> {
        let small = font(self.scale, 11, false).color(&MUTED);
        let (begin, end) = (LEFT * self.scale, (WIDTH - MARGIN) * self.scale);
        let step = round_step(self.most / 6.0);
        let values = (0..10).map(|index| f64::from(index) * step).filter(|value| *value <= self.most);
        for value in values {
            let y = self.y(value);
            let colour = if value == 0.0 { INK } else { FAINT };
            root.draw(&PathElement::new(vec![(begin, y), (end, y)], colour.stroke_width(1)))
                .map_err(failed)?;
            let style = small.clone().pos(Pos::new(HPos::Right, VPos::Center));
            root.draw(&Text::new(shortest(value), (begin - 5 * self.scale, y), style)).map_err(failed)?;
        }
        let below = self.head + HEIGHT;
        let centre = small.clone().pos(Pos::new(HPos::Center, VPos::Center));
        let mut last = i32::MIN;
        for (place, name) in self.plot.marks() {
            let x = self.x(self.plot.place(place));
            if x.saturating_sub(last) >= CLOSEST * self.scale {
                last = x;
                root.draw(&Text::new(name, (x, (below + 12) * self.scale), centre.clone()))
                    .map_err(failed)?;
            }
        }
        let middle = (LEFT + (WIDTH - LEFT) / 2) * self.scale;
        root.draw(&Text::new(self.plot.axis.clone(), (middle, (below + 28) * self.scale), centre))
            .map_err(failed)
    }

    fn draw_line<B: DrawingBackend>(
        &self,
        root: &DrawingArea<B, Shift>,
        line: &Line,
    ) -> Result<(), PlotError> {
        let colour = colour(line.series);
        let thick = u32::try_from(self.scale * 2).unwrap_or(2);
        let points: Vec<(i32, i32)> = line
            .points
            .iter()
            .map(|(place, value, ..)| (self.x(self.plot.place(*place)), self.y(*value)))
            .collect();
        root.draw(&PathElement::new(points.clone(), colour.stroke_width(thick))).map_err(failed)?;
        for ((x, y), (_, _, low, high)) in points.into_iter().zip(&line.points) {
            if high.is_finite() && high > low {
                let ends = vec![(x, self.y(*low)), (x, self.y(*high))];
                let stroke = colour.stroke_width(u32::try_from(self.scale).unwrap_or(1));
                root.draw(&PathElement::new(ends, stroke)).map_err(failed)?;
            }
            root.draw(&Circle::new((x, y), 3 * self.scale, colour.filled())).map_err(failed)?;
        }
        Ok(())
    }
}

impl Lines {
    fn place(&self, place: f64) -> f64 {
        if self.logarithmic { place.max(f64::MIN_POSITIVE).log2() } else { place }
    }

    fn marks(&self) -> Vec<(f64, String)> {
        if !self.marks.is_empty() {
            return self.marks.clone();
        }
        let most = self.lines.iter().flat_map(|line| &line.points).map(|point| point.0).fold(0.0, f64::max);
        let step = round_step((most / 5.0).max(f64::MIN_POSITIVE));
        (0..10)
            .map(|index| f64::from(index) * step)
            .filter(|place| *place <= most)
            .map(|place| (place, shortest(place)))
            .collect()
    }
}
