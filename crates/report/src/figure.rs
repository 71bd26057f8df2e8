//! Figures for people: units, and as many digits as can be told apart.

use crate::run::Metric;

/// A unit in which values of about the same size are shown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unit {
    /// How many of the metric's own unit it has.
    pub size: f64,
    /// Its name.
    pub name: &'static str,
}

impl Unit {
    /// The unit for values like this one, which is in the metric's own unit.
    pub fn of(metric: Metric, value: f64) -> Self {
        let all: &[(f64, &str)] = match metric {
            Metric::Bandwidth => {
                &[(1.0, "B/s"), (1024.0, "KiB/s"), (1_048_576.0, "MiB/s"), (1_073_741_824.0, "GiB/s")]
            }
            Metric::Iops => &[(1.0, "IOPS"), (1000.0, "thousand IOPS")],
            Metric::Latency => &[(1.0, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s")],
            Metric::Duration => &[(1e-3, "ms"), (1.0, "s")],
            Metric::Rate => &[(1.0, "operations/s"), (1000.0, "thousand operations/s")],
        };
        let fits = |(size, _): &&(f64, &str)| value >= *size * if *size > 1.0 { 2.0 } else { 1.0 };
        let (size, name) = all.iter().rev().find(fits).unwrap_or(&all[0]);
        Self { size: *size, name }
    }

    /// A value in this unit.
    pub fn show(self, value: f64) -> String {
        number(value / self.size)
    }
}

/// A number with three digits that count.
pub fn number(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if !value.is_finite() => "unbounded".into(),
        _ if size == 0.0 => "0".into(),
        _ if size >= 99.95 => format!("{value:.0}"),
        _ if size >= 9.995 => format!("{value:.1}"),
        _ if size >= 0.9995 => format!("{value:.2}"),
        _ if size >= 0.09995 => format!("{value:.3}"),
        // Never a row of zeros.
        _ if size >= 0.009_995 => format!("{value:.4}"),
        _ if size >= 0.000_999_5 => format!("{value:.5}"),
        _ => format!("{value:.2e}"),
    }
}

/// A share in percent.
pub fn percent(share: f64) -> String {
    format!("{} %", number(share * 100.0))
}

/// An interval.
pub fn interval(low: f64, high: f64) -> String {
    if high.is_finite() { format!("{} to {}", number(low), number(high)) } else { "unbounded".into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_fit_their_values() {
        let show = |metric, value: f64| {
            let unit = Unit::of(metric, value);
            format!("{} {}", unit.show(value), unit.name)
        };
        assert_eq!(show(Metric::Bandwidth, 2_068_866_712.0), "1973 MiB/s");
        assert_eq!(show(Metric::Bandwidth, 5e9), "4.66 GiB/s");
        assert_eq!(show(Metric::Latency, 36732.7), "36.7 µs");
        assert_eq!(show(Metric::Iops, 24324.4), "24.3 thousand IOPS");
        assert_eq!(show(Metric::Iops, 950.0), "950 IOPS");
        assert_eq!(show(Metric::Duration, 0.25), "250 ms");
        assert_eq!(show(Metric::Latency, 0.5), "0.500 ns");
    }

    #[test]
    fn three_digits_count() {
        let shown =
            [1234.5, 99.96, 12.345, 9.996, 1.0, 0.99951, 0.01234, 0.00456, 0.000_123_4, 0.0].map(number);
        assert_eq!(
            shown,
            ["1234", "100", "12.3", "10.0", "1.00", "1.00", "0.0123", "0.00456", "1.23e-4", "0"]
        );
        assert_eq!(interval(0.5, f64::INFINITY), "unbounded");
    }
}
