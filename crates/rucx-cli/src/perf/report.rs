//! What was measured: a table, or a JSON document.

use std::io::{self, Write};
use std::time::Duration;

use serde::Serialize;

use super::measure::{Bench, Measured, Plan};
use super::place::Placement;
use super::{Problem, Test, clock_ps, name_of};
use crate::ui::{Tone, Ui};
use crate::units;

/// What was measured, and where.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    rucx: &'static str,
    pub(super) error: Option<Problem>,
    /// The transport of messages; null if it came to none.
    messages_by: Option<&'static str>,
    /// What reads the data of long messages; null: it goes by messages, too.
    data_by: Option<&'static str>,
    /// That of put, get and fadd.
    memory_by: Option<&'static str>,
    /// That of the imported memory that operands are of; null: they are the process's own.
    operands_by: Option<&'static str>,
    placement: Placement,
    /// What one look at the clock takes.
    clock_us: f64,
    rows: Vec<Row>,
    /// All of it.
    seconds: f64,
}

#[derive(Debug, Serialize)]
struct Row {
    test: String,
    mode: String,
    size: u64,
    transport: &'static str,
    iterations: u64,
    seconds: f64,
    mean_us: f64,
    p50_us: Option<f64>,
    p90_us: Option<f64>,
    p99_us: Option<f64>,
    p999_us: Option<f64>,
    bytes_per_second: f64,
    messages_per_second: f64,
}

impl Default for Report {
    fn default() -> Self {
        Self {
            rucx: env!("CARGO_PKG_VERSION"),
            error: None,
            messages_by: None,
            data_by: None,
            memory_by: None,
            operands_by: None,
            placement: Placement::default(),
            clock_us: 0.0,
            rows: Vec::new(),
            seconds: 0.0,
        }
    }
}

impl Report {
    /// The two have met.
    pub(super) fn begin(&mut self, bench: &Bench, placement: &Placement) {
        (self.messages_by, self.memory_by) = (Some(bench.messages()), Some(bench.memory()));
        self.operands_by = bench.imported();
        self.placement = placement.clone();
        self.clock_us = micros(Duration::from_nanos(clock_ps())) / 1000.0;
    }

    /// What is known before the first row.
    pub(super) fn head(&self, ui: &mut Ui) -> io::Result<()> {
        let by = |name: Option<&'static str>| name.unwrap_or("nothing");
        let how = format!("messages by {}, memory by {}", by(self.messages_by), by(self.memory_by));
        ui.figure("transports", "", &how, Tone::Plain)?;
        if let Some(by) = self.operands_by {
            let whose = format!("memory of the other process, imported over {by}");
            ui.figure("operands", "", &whose, Tone::Plain)?;
        }
        ui.figure("placement", "", &self.placement.words, Tone::Plain)?;
        let clock = format!("{} a look; each latency contains one", units::time(clock_ps()));
        ui.figure("clock", "", &clock, Tone::Plain)?;
        let head = cells(["test", "size", "p50 us", "p90 us", "p99 us", "p99.9 us", "GB/s", "a second"]);
        ui.whole_lines(&[String::new(), head])
    }

    /// The two have talked.
    pub(super) fn met(&mut self, bench: &Bench) {
        self.data_by = bench.data();
    }

    /// Another row.
    pub(super) fn row(&mut self, ui: &mut Ui, plan: &Plan, measured: &Measured) -> io::Result<()> {
        let by = if plan.test == Test::Am { self.messages_by } else { self.memory_by };
        let row = Row::of(plan, measured, by.unwrap_or_default());
        let line = row.line();
        self.rows.push(row);
        ui.whole_lines(&[line])
    }

    pub(super) fn took(&mut self, time: Duration) {
        self.seconds = time.as_secs_f64();
    }

    /// The last lines.
    pub(super) fn end(&self, ui: &mut Ui) -> io::Result<()> {
        match &self.error {
            None => {
                let seconds = units::nanos(units::in_nanos(ui.elapsed()));
                ui.close(true, &format!("measured, in {seconds}"))
            }
            Some(problem) => {
                ui.note(&problem.why)?;
                ui.note(&format!("remedy: {}", problem.remedy))?;
                ui.close(false, &problem.what)
            }
        }
    }

    pub(super) fn json(&self) -> io::Result<()> {
        if let Some(problem) = &self.error {
            crate::ui::complain(&format!("{}: {}; remedy: {}", problem.what, problem.why, problem.remedy));
        }
        let mut out = io::stdout().lock();
        serde_json::to_writer_pretty(&mut out, self)?;
        writeln!(out)?;
        out.flush()
    }
}

impl Row {
    fn of(plan: &Plan, measured: &Measured, transport: &'static str) -> Self {
        let seconds = measured.time.as_secs_f64();
        #[allow(clippy::cast_precision_loss)] // three digits are shown
        let (count, size) = (measured.iterations as f64 * f64::from(measured.ways), plan.size as f64);
        let per_second = count / seconds.max(1e-9);
        let way = |of_thousand: usize| {
            let each = measured.each.as_ref()?;
            Some(micros(each.per_mille(of_thousand)) / f64::from(measured.ways))
        };
        Self {
            test: name_of(plan.test),
            mode: name_of(plan.mode),
            size: plan.size,
            transport,
            iterations: measured.iterations,
            seconds,
            mean_us: 1e6 / per_second.max(1e-9),
            p50_us: way(500),
            p90_us: way(900),
            p99_us: way(990),
            p999_us: way(999),
            bytes_per_second: per_second * size,
            messages_per_second: per_second,
        }
    }

    fn line(&self) -> String {
        let time = |time: Option<f64>| time.map_or_else(|| "–".to_owned(), |time| format!("{time:.3}"));
        // Whole operations: there are more than a few a second.
        let rate =
            format!("{:.0}", self.messages_per_second).parse().map_or_else(|_| String::new(), units::grouped);
        cells([
            &self.test,
            &units::bytes(self.size),
            &time(self.p50_us),
            &time(self.p90_us),
            &time(self.p99_us),
            &time(self.p999_us),
            &gigabytes(self.bytes_per_second),
            &rate,
        ])
    }
}

/// Three digits, where there are so many.
fn gigabytes(bytes_per_second: f64) -> String {
    let value = bytes_per_second / 1e9;
    if value < 0.1 { format!("{value:.4}") } else { format!("{value:.2}") }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn cells(cells: [&str; 8]) -> String {
    let [test, size, p50, p90, p99, p999, rate, ops] = cells;
    format!("{test:<5}{size:>8}{p50:>10}{p90:>10}{p99:>10}{p999:>11}{rate:>9}{ops:>14}")
}

#[cfg(test)]
mod tests {
    use super::super::Mode;
    use super::*;

    #[test]
    fn a_round_trip_is_two_ways() {
        let plan = Plan {
            test: Test::Put,
            mode: Mode::Lat,
            size: 1000,
            iters: 10,
            warmup: 0,
            limit: Duration::from_secs(1),
        };
        let measured = Measured { iterations: 10, time: Duration::from_micros(40), each: None, ways: 2 };
        let row = Row::of(&plan, &measured, "shm");
        assert!((row.mean_us - 2.0).abs() < 1e-9, "{row:?}");
        assert!((row.bytes_per_second - 0.5e9).abs() < 1.0, "{row:?}");
        assert_eq!(row.line().split_whitespace().last(), Some("500,000"));
        assert!(row.line().chars().count() <= crate::ui::WIDTH);
    }

    #[test]
    fn small_figures_keep_their_digits() {
        assert_eq!([gigabytes(12.345e9), gigabytes(0.0123e9)], ["12.35", "0.0123"]);
    }
}
