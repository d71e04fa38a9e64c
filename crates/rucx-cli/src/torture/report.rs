//! What a run has shown: a table, or a JSON document.
//!
//! # The JSON document
//! One object. Keys are never renamed or taken away; others may be added. See [`Report`]; where it cannot be run, [`NotRun`]. With
//! `--scheme all`, one object with `rucx`, `ok` and `schemes`, a list of reports; with `--prove`, one with `rucx`, `ok`, `lacks` (what was
//! not shown), and two reports, `protected` and `unprotected`.

use std::fmt;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};
use ucs::config::Value;
use ucs::mem::page::page_size;
use ucs::rcache::Mode;

use super::run::Measured;
use super::schemes::Scheme;
use super::{Args, Plan, name_of};
use crate::ui::{Tone, Ui};
use crate::units::{self, grouped};

/// What keeps it from being run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Problem {
    pub(super) what: String,
    pub(super) why: String,
    pub(super) remedy: String,
    /// Whether the system has not what is needed.
    pub(super) lacking: bool,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; remedy: {}", self.what, self.why, self.remedy)
    }
}

/// There is nothing to report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct NotRun {
    pub(super) rucx: String,
    pub(super) ok: bool,
    pub(super) error: Problem,
}

/// What a run has shown.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Report {
    /// The version.
    pub(super) rucx: String,
    /// Null: it was run.
    pub(super) error: Option<Problem>,
    /// Whether it has shown what it should have.
    pub(super) ok: bool,
    pub(super) scheme: String,
    pub(super) scheme_in_words: String,
    /// Whether no operation must be wrong.
    pub(super) protected: bool,
    pub(super) monitor: String,
    pub(super) mode: String,
    pub(super) pattern: String,
    pub(super) threads: usize,
    pub(super) seed: u64,
    pub(super) milliseconds: u64,
    pub(super) interrupted: bool,
    pub(super) operations: u64,
    pub(super) corrupted: u64,
    /// The first operation that was wrong, in words.
    pub(super) first_corrupted: Option<String>,
    /// Changes of memory that the threads made.
    pub(super) changes: u64,
    /// Changes of watched memory that the kernel told of.
    pub(super) events: u64,
    pub(super) gets: u64,
    pub(super) hits: u64,
    pub(super) misses: u64,
    pub(super) merges: u64,
    pub(super) invalidations: u64,
    pub(super) hit_invalidations: u64,
    pub(super) checks: u64,
    pub(super) pending: u64,
    pub(super) replaced: u64,
    pub(super) poisoned: u64,
    pub(super) one_shots: u64,
    pub(super) evictions: u64,
    pub(super) deregistrations: u64,
    pub(super) pinned_bytes: u64,
    pub(super) refused: u64,
    pub(super) first_refused: Option<String>,
    pub(super) bystander_operations: u64,
    pub(super) bystander_one_shots: u64,
    /// Bystanders whose registration did not last.
    pub(super) bystander_lost: u64,
}

impl Report {
    pub(super) fn of(args: &Args, plan: &Plan, measured: Measured) -> Self {
        let Measured { stats, told, .. } = measured;
        let protected = plan.scheme.protects();
        // What was evicted is no fault, nor what was registered together with its neighbours, which change.
        let apart = plan.settings.options.alignment <= page_size();
        let bystanders_last = measured.bystander_lost == 0 || stats.evictions > 0 || !apart;
        let ok = if protected { measured.corrupted == 0 && bystanders_last } else { measured.corrupted > 0 };
        let mode = plan.settings.options.mode;
        let words = match mode {
            Mode::Off if protected => "rucx: nothing kept",
            _ => plan.scheme.words(),
        };
        let mode = if protected { measured.mode.print() } else { "none".to_owned() };
        Self {
            rucx: env!("CARGO_PKG_VERSION").to_owned(),
            error: None,
            ok,
            scheme: plan.scheme.name().to_owned(),
            scheme_in_words: words.to_owned(),
            protected,
            monitor: match plan.scheme {
                Scheme::Nothing => "none: --unsafe-no-protection".to_owned(),
                Scheme::PreHooks => "the threads announce changes before they make them".to_owned(),
                _ => measured.active.to_string(),
            },
            mode,
            pattern: name_of(args.pattern),
            threads: plan.threads,
            seed: plan.seed,
            milliseconds: u64::try_from(measured.elapsed.as_millis()).unwrap_or(u64::MAX),
            interrupted: measured.interrupted,
            operations: measured.operations,
            corrupted: measured.corrupted,
            first_corrupted: measured.first,
            changes: measured.changes,
            events: told.unmapped + told.moved + told.removed,
            gets: stats.gets,
            hits: stats.hits,
            misses: stats.misses,
            merges: stats.merges,
            invalidations: stats.invalidations,
            hit_invalidations: stats.hit_invalidations,
            checks: if protected { stats.checks } else { 0 },
            pending: stats.pending,
            replaced: stats.replaced,
            poisoned: stats.poisoned,
            one_shots: stats.one_shots,
            evictions: stats.evictions,
            deregistrations: stats.deregistrations,
            pinned_bytes: stats.pinned_bytes,
            refused: measured.refused,
            first_refused: measured.refusal,
            bystander_operations: measured.bystander_operations,
            bystander_one_shots: measured.bystander_one_shots,
            bystander_lost: measured.bystander_lost,
        }
    }

    pub(super) fn json(&self) -> io::Result<()> {
        json(self)
    }

    pub(super) fn print(&self, ui: &mut Ui) -> io::Result<()> {
        ui.end_progress()?;
        let gets = self.gets.max(1);
        let share = |number: u64| format!("{}.{} %", number * 100 / gets, number * 1000 / gets % 10);
        ui.figure("scheme", "", &self.scheme_in_words, Tone::Plain)?;
        ui.figure("monitor", "", &self.monitor, Tone::Plain)?;
        let how = format!("{}, {} threads, mode {}", self.pattern, self.threads, self.mode);
        ui.figure("pattern", "", &how, Tone::Plain)?;
        let rate = self.operations * 1000 / self.milliseconds.max(1);
        let rows: [(&str, u64, String); 14] = [
            ("operations", self.operations, format!("compared; {} a second", grouped(rate))),
            ("changes", self.changes, format!("of memory; the kernel told of {}", grouped(self.events))),
            ("hits", self.hits, format!("{} of {} look-ups", share(self.hits), grouped(self.gets))),
            ("misses", self.misses, format!("registered; {} by merging others", grouped(self.merges))),
            (
                "invalidations",
                self.invalidations,
                format!("{} of registrations that had been hit", grouped(self.hit_invalidations)),
            ),
            ("checks", self.checks, "of hits, by asking the kernel".to_owned()),
            ("pending", self.pending, "checks that found an event not read yet (EAGAIN)".to_owned()),
            ("replaced", self.replaced, "checks that found other memory".to_owned()),
            ("poisoned", self.poisoned, "changed while they were registered: given up".to_owned()),
            ("one-shots", self.one_shots, "registered for one use, never found again".to_owned()),
            ("evictions", self.evictions, "to make room".to_owned()),
            ("refused", self.refused, self.first_refused.clone().unwrap_or_default()),
            (
                "bystanders",
                self.bystander_operations,
                format!(
                    "on memory left alone: {} lost, {} one-shots",
                    grouped(self.bystander_lost),
                    grouped(self.bystander_one_shots)
                ),
            ),
            ("pinned now", self.pinned_bytes, units::bytes(self.pinned_bytes)),
        ];
        for (name, number, text) in &rows {
            let shown = grouped(*number);
            if *name != "refused" || *number > 0 {
                ui.figure(name, &shown, text, Tone::Plain)?;
            }
        }
        let tone = if self.corrupted == 0 { Tone::Good } else { Tone::Bad };
        let first = self.first_corrupted.as_ref().map(|first| format!("first: {first}")).unwrap_or_default();
        ui.figure("corrupted", &grouped(self.corrupted), &first, tone)?;
        ui.close(self.ok, &self.verdict())
    }

    /// In one line.
    pub(super) fn verdict(&self) -> String {
        let (corrupted, operations) = (grouped(self.corrupted), grouped(self.operations));
        let counts = format!("corrupted: {corrupted} of {operations} operations");
        let share = self.hits * 100 / self.gets.max(1);
        let seed = format!("(seed {:#x})", self.seed);
        let counts = if self.interrupted { format!("interrupted; {counts}") } else { counts };
        let first = self.first_corrupted.as_deref().unwrap_or_default();
        match (self.protected, self.corrupted) {
            (true, 0) if !self.ok => {
                let lost = grouped(self.bystander_lost);
                format!("{counts}, but {lost} registrations of unchanged memory were lost {seed}")
            }
            (true, 0) => {
                let ended = grouped(self.hit_invalidations);
                format!("{counts}; {share} % hits, {ended} hit entries invalidated {seed}")
            }
            (true, _) => format!("{counts}: the cache was wrong. Please report it {seed}. {first}"),
            (false, 0) => format!("{counts}: no corruption seen, so this run proves nothing {seed}"),
            (false, _) => format!("{counts}, as was to be shown: {} {seed}", self.scheme_in_words),
        }
    }
}

pub(super) fn json(document: &impl Serialize) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, document)?;
    writeln!(out)?;
    out.flush()
}
