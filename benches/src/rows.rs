//! Collecting rows.

use std::time::Duration;

use crate::{Comparison, Options, Standing, Standings, Target, interleave_timed};

/// The rows measured so far, and how to measure more.
#[derive(Debug)]
pub struct Rows {
    options: Options,
    standings: Standings,
}

/// A row to be measured.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// The operation.
    pub name: &'a str,
    /// What runs by turns with it.
    pub reference: &'a str,
    /// What it is to reach, where that was said.
    pub target: Option<Target>,
}

/// How many samples a row takes whose operation lasts milliseconds.
const FEW: usize = 21;

impl Rows {
    /// None yet.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self { options, standings: Standings::default() }
    }

    /// Whether the row is wanted: ask before anything expensive is set up for it.
    #[must_use]
    pub fn wants(&self, row: Row<'_>) -> bool {
        self.options.wants(row.name) || self.options.wants(row.reference)
    }

    /// Measures a row, if it is wanted. Each side runs as often as it is told, and tells how long that took.
    pub fn measure(
        &mut self,
        row: Row<'_>,
        ours: impl FnMut(u64) -> Duration,
        reference: impl FnMut(u64) -> Duration,
    ) {
        if self.wants(row) {
            let comparison = interleave_timed(&self.options, ours, reference);
            self.push(row, comparison);
        }
    }

    /// As [`Rows::measure`], of what takes milliseconds.
    pub fn measure_slow(
        &mut self,
        row: Row<'_>,
        ours: impl FnMut(u64) -> Duration,
        reference: impl FnMut(u64) -> Duration,
    ) {
        if self.wants(row) {
            let options = Options { samples: self.options.samples.min(FEW), ..self.options.clone() };
            let comparison = interleave_timed(&options, ours, reference);
            self.push(row, comparison);
        }
    }

    fn push(&mut self, row: Row<'_>, comparison: Comparison) {
        let (name, reference, target) = (row.name.to_owned(), row.reference.to_owned(), row.target);
        self.standings.0.push(Standing { name, reference, comparison, target });
    }

    /// What was measured.
    #[must_use]
    pub fn into_standings(self) -> Standings {
        self.standings
    }
}

/// `bytes` in words.
#[must_use]
pub fn size(bytes: usize) -> String {
    match bytes {
        _ if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
        _ if bytes >= 1 << 10 => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}
