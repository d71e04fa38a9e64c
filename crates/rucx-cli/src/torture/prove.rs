//! A run that has shown enough, and the same without protection, which must be wrong: else neither proves anything.

use std::io;

use serde::Serialize;

use super::compare::child;
use super::report::{self, Report};
use super::schemes::Scheme;
use super::{Args, Outcome};
use crate::signals::Signals;
use crate::ui::{Tone, Ui};
use crate::units::grouped;

/// What a run must have had, for that nothing was wrong to mean something.
const HITS: u64 = 30;
const HIT_INVALIDATIONS: u64 = 10_000;
/// Seconds that the unprotected run takes at most: it is wrong at once.
const TWIN: u32 = 5;

/// What was run.
#[derive(Debug, Serialize)]
struct Proof {
    rucx: &'static str,
    ok: bool,
    /// What it did not show.
    lacks: Vec<String>,
    protected: Report,
    unprotected: Report,
}

/// Runs both.
pub(super) fn run(args: &Args, seed: u64, ui: &mut Ui) -> io::Result<Outcome> {
    let title = concat!("rucx ", env!("CARGO_PKG_VERSION"), " rcache-torture: a proof");
    ui.title(title, &format!("seed {seed:#x}"))?;
    ui.figure("corrupted", "operations", "way", Tone::Dim)?;
    let signals = Signals::catch()?;
    let mut reports = Vec::new();
    for (scheme, seconds) in [(Scheme::Rucx, args.seconds), (Scheme::Nothing, args.seconds.min(TWIN))] {
        let report = match child(args, (scheme, seconds, seed), &signals, ui)? {
            Ok(report) => report,
            Err(error) => return super::not_run(args, error, ui),
        };
        ui.end_progress()?;
        let tone = if report.ok { Tone::Good } else { Tone::Bad };
        ui.figure(&grouped(report.corrupted), &grouped(report.operations), &report.scheme_in_words, tone)?;
        reports.push(report);
    }
    let (Some(unprotected), Some(protected)) = (reports.pop(), reports.pop()) else {
        return Ok(Outcome::Wrong); // there are two
    };
    let lacks = lacks(&protected, &unprotected);
    let ok = lacks.is_empty();
    let verdict = if ok {
        format!("{}; without protection {} were", protected.verdict(), grouped(unprotected.corrupted))
    } else {
        let remedy = if protected.corrupted == 0 { "; remedy: more --seconds" } else { "" };
        format!("nothing is proven (seed {seed:#x}): {}{remedy}", lacks.join("; "))
    };
    if args.json {
        report::json(&Proof { rucx: env!("CARGO_PKG_VERSION"), ok, lacks, protected, unprotected })?;
    } else {
        ui.close(ok, &verdict)?;
    }
    Ok(if ok { Outcome::Shown } else { Outcome::Wrong })
}

/// What was not shown.
fn lacks(protected: &Report, unprotected: &Report) -> Vec<String> {
    let mut lacks = Vec::new();
    let mut demand = |is_met: bool, text: String| {
        if !is_met {
            lacks.push(text);
        }
    };
    demand(protected.ok, protected.verdict());
    let share = protected.hits * 100 / protected.gets.max(1);
    demand(share >= HITS, format!("{share} % hits, of {HITS} % at least"));
    let ended = protected.hit_invalidations;
    demand(
        ended >= HIT_INVALIDATIONS,
        format!("{} hit entries invalidated, of {} at least", grouped(ended), grouped(HIT_INVALIDATIONS)),
    );
    demand(protected.pending > 0, "no check has found an event that was not read yet".to_owned());
    demand(unprotected.ok, unprotected.verdict());
    lacks
}
