//! Times of single operations.

use std::time::{Duration, Instant};

use crate::units::in_nanos;

/// The times of so many operations, of which only some may have been made.
#[derive(Debug)]
pub(super) struct Samples {
    nanos: Vec<u64>,
    taken: usize,
    last: Instant,
}

impl Samples {
    /// Room for `count`. It is written to now: later, the kernel would give pages while others are being timed.
    pub(super) fn of(count: u32) -> Self {
        let room = usize::try_from(count).unwrap_or(usize::MAX);
        Self { nanos: vec![1; room], taken: 0, last: Instant::now() }
    }

    /// The next operation begins now.
    pub(super) fn begin(&mut self) {
        self.last = Instant::now();
    }

    /// It has ended, and the next one begins.
    #[inline]
    pub(super) fn end(&mut self) -> Instant {
        let now = Instant::now();
        if let Some(place) = self.nanos.get_mut(self.taken) {
            *place = in_nanos(now.duration_since(self.last));
            self.taken += 1;
        }
        self.last = now;
        now
    }

    /// In order of their length.
    pub(super) fn sorted(mut self) -> Sorted {
        self.nanos.truncate(self.taken);
        self.nanos.sort_unstable();
        Sorted(self.nanos)
    }
}

/// Times, the shortest first.
#[derive(Debug)]
pub(super) struct Sorted(Vec<u64>);

impl Sorted {
    /// The time that so many of a thousand do not exceed.
    pub(super) fn per_mille(&self, of_thousand: usize) -> Duration {
        let rank = (self.0.len() * of_thousand).div_ceil(1000).max(1);
        Duration::from_nanos(self.0.get(rank - 1).copied().unwrap_or(0))
    }

    /// All together.
    pub(super) fn sum(&self) -> Duration {
        Duration::from_nanos(self.0.iter().sum())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_taken() {
        let sorted = Sorted((1..=1000).collect());
        let nanos = |of_thousand| sorted.per_mille(of_thousand).as_nanos();
        assert_eq!([nanos(500), nanos(900), nanos(990), nanos(999)], [500, 900, 990, 999]);
        let one = Sorted(vec![7]);
        assert_eq!(one.per_mille(500), one.per_mille(999));
        assert_eq!(Sorted(Vec::new()).per_mille(500), Duration::ZERO);
    }

    #[test]
    fn what_is_not_taken_does_not_count() {
        let mut samples = Samples::of(10);
        samples.begin();
        samples.end();
        samples.end();
        assert_eq!(samples.sorted().len(), 2);
    }
}
