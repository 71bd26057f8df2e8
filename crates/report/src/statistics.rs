//! Medians, spreads, and confidence intervals of few samples.
//!
//! Interleaved turns give pairs: both values of a pair were taken within seconds, so what slows the machine for a while slows both. The ratio
//! of a pair is therefore steadier than the values are, and ratios are what conclusions rest on.

/// The confidence that intervals aim at.
pub const CONFIDENCE: f64 = 0.95;

/// An estimate with an interval around it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The estimate.
    pub value: f64,
    /// The interval's lower end; 0 if the samples do not bound it.
    pub low: f64,
    /// Its upper end; infinity if the samples do not bound it.
    pub high: f64,
    /// How often such an interval holds the true value.
    pub confidence: f64,
    /// How many samples, or pairs of samples, it rests on.
    pub count: usize,
}

impl Estimate {
    /// Whether the interval holds a value.
    pub fn holds(&self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }

    /// Half the interval's width as a share of the estimate.
    pub fn reach(&self) -> f64 {
        (self.high - self.low) / 2.0 / self.value
    }
}

/// A number of things, to divide by.
fn count(number: usize) -> f64 {
    u32::try_from(number).map_or(f64::INFINITY, f64::from)
}

/// Median, quartiles and extremes of a set of samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// The median with its interval.
    pub median: Estimate,
    /// The least sample.
    pub least: f64,
    /// The greatest sample.
    pub greatest: f64,
    /// The difference between the upper and the lower quartile, as a share of the median.
    pub spread: f64,
}

impl Summary {
    /// Of at least one sample.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (least, greatest) = (*sorted.first()?, *sorted.last()?);
        let middle = quantile(&sorted, 0.5)?;
        let spread = (quantile(&sorted, 0.75)? - quantile(&sorted, 0.25)?) / middle;
        let (low, high, confidence) = median_interval(&sorted);
        let median = Estimate { value: middle, low, high, confidence, count: sorted.len() };
        Some(Self { median, least, greatest, spread })
    }
}

/// A quantile of sorted samples, interpolated linearly between order statistics. Source: Hyndman and Fan (1996), definition 7.
fn quantile(sorted: &[f64], at: f64) -> Option<f64> {
    let place = at * count(sorted.len().checked_sub(1)?);
    let below = place.floor();
    let index = sorted.iter().enumerate().map(|(index, _)| index).find(|index| count(*index) >= below)?;
    let low = sorted.get(index)?;
    let high = sorted.get(index + 1).unwrap_or(low);
    Some(low + (high - low) * (place - below))
}

/// The interval of the median between two order statistics, with its confidence: the narrowest symmetric one that reaches [`CONFIDENCE`], or
/// the whole range if none does. It assumes nothing about the distribution. Source: Conover, "Practical Nonparametric Statistics", 3.2.
fn median_interval(sorted: &[f64]) -> (f64, f64, f64) {
    let size = sorted.len();
    let mut found = None;
    for cut in 0..size / 2 {
        let confidence = 1.0 - 2.0 * tail(size, cut);
        if cut > 0 && confidence < CONFIDENCE {
            break;
        }
        found = Some((sorted[cut], sorted[size - 1 - cut], confidence));
    }
    found.unwrap_or((0.0, f64::INFINITY, 1.0))
}

/// The probability that at most `most` of `size` fair coins show heads.
fn tail(size: usize, most: usize) -> f64 {
    let mut probability = 0.5f64.powf(count(size));
    let mut sum = 0.0;
    for heads in 0..=most {
        sum += probability;
        probability *= count(size - heads) / count(heads + 1);
    }
    sum
}

/// Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom. Source: NIST/SEMATECH e-Handbook, section 1.3.6.7.2.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// The quantile for so many degrees of freedom, which may be broken (Welch); the next lower whole number, so that the interval is not too
/// narrow.
fn student(freedom: f64) -> f64 {
    let beyond = STUDENT.iter().zip(1u32..).filter(|(_, degrees)| f64::from(*degrees) <= freedom);
    match beyond.last() {
        Some((_, 30)) if freedom >= 31.0 => 1.96,
        Some((quantile, _)) => *quantile,
        None => f64::INFINITY,
    }
}

/// Geometric mean of the ratios of pairs, with the t interval of its logarithm. One pair bounds nothing.
pub fn paired_ratio(ratios: &[f64]) -> Option<Estimate> {
    if ratios.is_empty() {
        return None;
    }
    let logarithms: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
    let (mean, variance) = moments(&logarithms);
    let reach = match logarithms.len() {
        1 => f64::INFINITY,
        size => student(count(size - 1)) * (variance / count(size)).sqrt(),
    };
    Some(around(mean, reach, logarithms.len()))
}

/// The ratio of two sets of samples that were not taken in turns, `subject` : `baseline`, by Welch's interval of the difference of the
/// logarithms' means.
pub fn unpaired_ratio(baseline: &[f64], subject: &[f64]) -> Option<Estimate> {
    if baseline.is_empty() || subject.is_empty() {
        return None;
    }
    let logarithms = |values: &[f64]| values.iter().map(|value| value.ln()).collect::<Vec<_>>();
    let (base, base_variance) = moments(&logarithms(baseline));
    let (mean, variance) = moments(&logarithms(subject));
    let (n, m) = (count(subject.len()), count(baseline.len()));
    let (a, b) = (variance / n, base_variance / m);
    let reach = match (subject.len(), baseline.len()) {
        (1, _) | (_, 1) => f64::INFINITY,
        _ if a + b == 0.0 => 0.0,
        _ => {
            let freedom = (a + b).powi(2) / (a * a / (n - 1.0) + b * b / (m - 1.0));
            student(freedom) * (a + b).sqrt()
        }
    };
    Some(around(mean - base, reach, subject.len().min(baseline.len())))
}

/// An estimate from a logarithm and its reach to both sides.
fn around(mean: f64, reach: f64, count: usize) -> Estimate {
    let (low, high) = ((mean - reach).exp(), (mean + reach).exp());
    Estimate { value: mean.exp(), low, high, confidence: CONFIDENCE, count }
}

/// Mean and variance (with n - 1); one value has the variance 0.
fn moments(values: &[f64]) -> (f64, f64) {
    let size = count(values.len());
    let mean = values.iter().sum::<f64>() / size;
    let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    (mean, if values.len() > 1 { squares / (size - 1.0) } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-3 * b.abs().max(1.0)
    }

    #[test]
    fn the_median_has_an_exact_interval() {
        let of = |size: u32| Summary::of((1..=size).map(f64::from)).unwrap();
        // By the binomial distribution with p = 1/2: 1 - 2 * 0.5^5, 1 - 2 * 0.5^6, and for ten 1 - 2 * 11 / 1024.
        let five = of(5);
        assert!(near(five.median.confidence, 0.9375) && five.median.holds(1.0) && five.median.holds(5.0));
        let six = of(6);
        assert!(
            near(six.median.value, 3.5) && near(six.median.confidence, 0.96875) && near(six.median.low, 1.0)
        );
        let ten = of(10);
        assert!(near(ten.median.low, 2.0) && near(ten.median.high, 9.0), "{ten:?}");
        assert!(near(ten.median.confidence, 1.0 - 22.0 / 1024.0));
        assert!(near(ten.spread, 4.5 / 5.5) && near(ten.least, 1.0) && near(ten.greatest, 10.0), "{ten:?}");
    }

    #[test]
    fn one_sample_bounds_nothing_and_none_is_nothing() {
        let one = Summary::of([7.0]).unwrap();
        assert!(near(one.median.value, 7.0) && one.median.high.is_infinite() && near(one.spread, 0.0));
        assert!(
            Summary::of([]).is_none() && paired_ratio(&[]).is_none() && unpaired_ratio(&[], &[1.0]).is_none()
        );
        assert!(paired_ratio(&[0.5]).unwrap().high.is_infinite());
    }

    #[test]
    fn the_interval_of_ratios_is_students() {
        // Logarithms -1, 0, 1: mean 0, standard deviation 1, so the reach is 4.303 / sqrt(3).
        let ratio = paired_ratio(&[(-1.0f64).exp(), 1.0, 1.0f64.exp()]).unwrap();
        assert!(near(ratio.value, 1.0) && near(ratio.high.ln(), 2.4843) && near(ratio.low.ln(), -2.4843));
    }

    #[test]
    fn ratios_of_other_runs_are_welchs() {
        let e = std::f64::consts::E;
        // Logarithms 0, 1, 2 against 0, 0, 0: difference 1, variance 1/3, freedom 2.
        let ratio = unpaired_ratio(&[1.0, 1.0, 1.0], &[1.0, e, e * e]).unwrap();
        assert!(near(ratio.value, e) && near(ratio.high.ln(), 1.0 + 4.303 / 3.0f64.sqrt()), "{ratio:?}");
    }

    #[test]
    fn intervals_hold_the_truth_as_often_as_they_say() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut normal = || -> f64 { (0..12).map(|_| random.f64()).sum::<f64>() - 6.0 };
        let rounds = 4000u32;
        let (mut held, mut median_held) = (0u32, 0u32);
        for _ in 0..rounds {
            let ratios: Vec<f64> = (0..6).map(|_| (0.5 + 0.1 * normal()).exp()).collect();
            held += u32::from(paired_ratio(&ratios).unwrap().holds(0.5f64.exp()));
            let summary = Summary::of((0..6).map(|_| 10.0 + normal())).unwrap();
            median_held += u32::from(summary.median.holds(10.0));
        }
        let share = |held: u32| f64::from(held) / f64::from(rounds);
        assert!((share(held) - 0.95).abs() < 0.012, "{}", share(held));
        assert!((share(median_held) - 0.96875).abs() < 0.012, "{}", share(median_held));
    }
}
