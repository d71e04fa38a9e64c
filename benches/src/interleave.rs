//! Measuring two things by turns.

use std::time::{Duration, Instant};

use crate::Options;

/// What came of measuring A and B by turns.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// Median nanoseconds of one iteration of A.
    pub a_ns: f64,
    /// Median nanoseconds of one iteration of B.
    pub b_ns: f64,
    /// How many times as fast as A is B: above 1, B is faster. The median of all samples.
    pub ratio: f64,
    /// The 10th percentile of the ratios.
    pub ratio_low: f64,
    /// The 90th percentile of the ratios.
    pub ratio_high: f64,
}

/// Measures `a` and `b`, each of which runs as many iterations as it is told.
pub fn interleave(options: &Options, a: impl FnMut(u64), b: impl FnMut(u64)) -> Comparison {
    interleave_timed(options, timed(a), timed(b))
}

/// As [`interleave`], where each side tells how long it took: what it prepares and clears away is not counted.
pub fn interleave_timed(
    options: &Options,
    mut a: impl FnMut(u64) -> Duration,
    mut b: impl FnMut(u64) -> Duration,
) -> Comparison {
    let iterations = calibrate(options.sample, &mut a);
    b(iterations);
    let mut a_times = vec![per_iteration(iterations, &mut a)];
    let mut b_times = Vec::new();
    for _ in 0..options.samples {
        b_times.push(per_iteration(iterations, &mut b));
        a_times.push(per_iteration(iterations, &mut a));
    }
    compare(&a_times, &b_times)
}

/// All of what `run` does, timed.
pub fn timed(mut run: impl FnMut(u64)) -> impl FnMut(u64) -> Duration {
    move |iterations| {
        let start = Instant::now();
        run(iterations);
        start.elapsed()
    }
}

/// How many iterations take about `sample`, once warm; at least one.
fn calibrate(sample: Duration, run: &mut impl FnMut(u64) -> Duration) -> u64 {
    let mut iterations = 1;
    // The fastest of a few: the first time brings pages in, and others may disturb. Twice as many, while the time is too short to
    // tell how much is missing.
    while (0..3).map(|_| run(iterations)).min() < Some(sample) && iterations < 1 << 40 {
        iterations *= 2;
    }
    iterations
}

/// Nanoseconds of one iteration.
fn per_iteration(iterations: u64, run: &mut impl FnMut(u64) -> Duration) -> f64 {
    run(iterations).as_nanos() as f64 / iterations as f64
}

/// `a` has one sample more than `b`: those before and after each of `b`.
fn compare(a: &[f64], b: &[f64]) -> Comparison {
    let ratios = sorted(a.windows(2).zip(b).map(|(a, b)| (a[0] + a[1]) / 2.0 / b));
    Comparison {
        a_ns: percentile(&sorted(a.iter().copied()), 50),
        b_ns: percentile(&sorted(b.iter().copied()), 50),
        ratio: percentile(&ratios, 50),
        ratio_low: percentile(&ratios, 10),
        ratio_high: percentile(&ratios, 90),
    }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The value that `percent` of the sorted ones are below.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    sorted.get(sorted.len().saturating_sub(1) * percent / 100).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drift_cancels() {
        let a: Vec<f64> = (0..=100).map(|i| 100.0 + f64::from(i)).collect();
        let b: Vec<f64> = (0..100).map(|i| (100.5 + f64::from(i)) / 2.0).collect();
        let found = compare(&a, &b);
        assert!((found.ratio - 2.0).abs() < 1e-9, "{found:?}");
        assert!((found.ratio_high - found.ratio_low).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn one_disturbance_does_not_count() {
        let mut a = vec![10.0; 12];
        a[5] = 10_000.0;
        let found = compare(&a, &[5.0; 11]);
        assert!((found.ratio - 2.0).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn calibration_is_by_what_it_takes() {
        let mut runs = |n: u64| Duration::from_micros(100) * u32::try_from(n).unwrap();
        assert_eq!(calibrate(Duration::from_millis(2), &mut runs), 32);
        let mut cold = Duration::from_secs(1);
        let mut warms_up =
            |n: u64| std::mem::take(&mut cold) + Duration::from_micros(100) * u32::try_from(n).unwrap();
        assert_eq!(calibrate(Duration::from_millis(2), &mut warms_up), 32);
    }
}
