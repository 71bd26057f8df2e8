//! Where a value stands on a plot's axis, and which values are marked there.

use std::ops::Range;

use super::{Bar, Plot, Scale};
use crate::figure::number;

/// Error bars that reach further than this share beyond their value do not stretch the axis.
const LONGEST_ERROR: f64 = 1.6;
/// Marks closer than this share of the axis would touch.
const CLOSEST: f64 = 0.11;
/// The share of the axis that half of a mark's name takes.
const HALF_NAME: f64 = 0.055;
/// The share of the axis that a bar's number takes.
const NUMBER: f64 = 0.12;

/// Ratios that are marked if there is room, the more important ones first.
const RATIOS: [f64; 27] = [
    1.0, 2.0, 0.5, 4.0, 0.25, 8.0, 0.125, 16.0, 0.0625, 32.0, 64.0, 128.0, 0.031_25, 256.0, 0.015_625, 1.5,
    0.7, 3.0, 1.2, 0.8, 0.9, 1.1, 1.05, 0.95, 1.02, 0.98, 0.6,
];

/// The axis of a plot; places on it are values, or of ratios their logarithms with base 2.
pub struct Axis {
    scale: Scale,
    range: Range<f64>,
    /// Where bars and error bars end; beyond there is room for numbers.
    inner: Range<f64>,
}

impl Axis {
    pub fn of(plot: &Plot) -> Self {
        let scale = plot.scale;
        let bars = || plot.groups.iter().flat_map(|group| &group.bars);
        let reach = |bar: &Bar| {
            if bar.high.is_finite() { bar.high.min(bar.value * LONGEST_ERROR) } else { bar.value }
        };
        let most = bars().map(reach).fold(0.0, f64::max);
        match scale {
            Scale::Absolute => {
                let most = if most > 0.0 { most } else { 1.0 };
                Self { scale, range: 0.0..most / (1.0 - NUMBER), inner: 0.0..most }
            }
            Scale::Ratio => {
                let least = bars().map(|bar| bar.low.max(bar.value / LONGEST_ERROR)).fold(1.0, f64::min);
                let (low, high) = (least.log2().min(-0.1), most.max(1.0).log2().max(0.1));
                let room = (high - low) * NUMBER / (1.0 - 2.0 * NUMBER);
                Self { scale, range: low - room..high + room, inner: low..high }
            }
        }
    }

    pub fn range(&self) -> Range<f64> {
        self.range.clone()
    }

    fn length(&self) -> f64 {
        self.range.end - self.range.start
    }

    /// The distance between a bar and its number.
    pub fn gap(&self) -> f64 {
        self.length() * 0.008
    }

    /// Where bars begin.
    pub fn origin(&self) -> f64 {
        0.0
    }

    /// Where a value stands; what lies outside of the axis stands at the end of what bars may take.
    pub fn place(&self, value: f64) -> f64 {
        let place = match self.scale {
            Scale::Absolute => value,
            Scale::Ratio => value.max(f64::MIN_POSITIVE).log2(),
        };
        place.clamp(self.inner.start, self.inner.end)
    }

    /// The marks, with their labels.
    pub fn ticks(&self) -> Vec<(f64, String)> {
        match self.scale {
            Scale::Absolute => {
                let step = round_step(self.length() / 4.0);
                let places = (0..10).map(|index| f64::from(index) * step);
                places
                    .filter(|place| *place <= self.range.end)
                    .map(|place| (place, shortest(place)))
                    .collect()
            }
            Scale::Ratio => self.ratio_ticks(),
        }
    }

    fn ratio_ticks(&self) -> Vec<(f64, String)> {
        let mut ticks: Vec<(f64, String)> = Vec::new();
        for ratio in RATIOS {
            let place = ratio.log2();
            let free = |(other, _): &(f64, String)| (other - place).abs() >= CLOSEST * self.length();
            // A name reaches to both sides of its mark.
            let margin = HALF_NAME * self.length();
            let inner = self.range.start + margin..self.range.end - margin;
            if inner.contains(&place) && ticks.iter().all(free) {
                ticks.push((place, format!("{}×", shortest(ratio))));
            }
        }
        ticks
    }
}

/// A number without zeros behind its point.
pub fn shortest(ratio: f64) -> String {
    let text = number(ratio);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}

/// The next larger of 1, 2, 5, 10, 20, ...
pub fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0].map(|step| step * power).into_iter().find(|step| *step >= least).unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::Group;

    fn axis(scale: Scale, bars: &[(f64, f64, f64)]) -> Axis {
        let bars =
            bars.iter().map(|(value, low, high)| Bar { series: 0, value: *value, low: *low, high: *high });
        let groups = vec![Group { label: String::new(), bars: bars.collect() }];
        let (title, note) = (String::new(), String::new());
        Axis::of(&Plot { title, note, warning: None, series: Vec::new(), groups, scale })
    }

    #[test]
    fn every_bar_is_on_the_axis() {
        let absolute = axis(Scale::Absolute, &[(10.0, 9.0, 12.0), (3.0, 0.0, f64::INFINITY)]);
        assert!(absolute.range().start == 0.0 && absolute.range().end > 12.0);
        let ratio = axis(Scale::Ratio, &[(0.25, 0.2, 0.3), (3.0, 2.0, 1e9)]);
        assert!(ratio.range().start < 0.2f64.log2() && ratio.range().end > 3.0f64.log2());
        assert!(ratio.range().end < 5.0, "one wide error bar must not squeeze all others");
    }

    #[test]
    fn marks_keep_their_distance() {
        for bars in [vec![(0.98, 0.97, 0.99)], vec![(0.02, 0.01, 0.03), (90.0, 80.0, 100.0)]] {
            let axis = axis(Scale::Ratio, &bars);
            let mut places: Vec<f64> = axis.ticks().iter().map(|(place, _)| *place).collect();
            places.sort_by(f64::total_cmp);
            assert!(places.contains(&0.0) && places.len() >= 2, "{places:?}");
            let half = HALF_NAME * axis.length();
            assert!(
                places
                    .iter()
                    .all(|place| place - half >= axis.range().start && place + half <= axis.range().end)
            );
            assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= CLOSEST * axis.length()), "{places:?}");
        }
        let labels: Vec<String> = axis(Scale::Absolute, &[(87.0, 80.0, 90.0)])
            .ticks()
            .into_iter()
            .map(|(_, label)| label)
            .collect();
        assert_eq!(labels, ["0", "50", "100"]);
    }
}
