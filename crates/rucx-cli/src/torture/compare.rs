//! All schemes, one after the other, each in a process of its own.

use std::io::{self, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::report::{self, NotRun, Problem, Report};
use super::schemes::Scheme;
use super::{Args, Outcome, name_of, not_run};
use crate::signals::Signals;
use crate::ui::{Tone, Ui};
use crate::units::grouped;

/// How long a process may take beside the time it was given.
const PATIENCE: Duration = Duration::from_secs(40);

/// All of them.
#[derive(Debug, Serialize)]
struct Comparison {
    rucx: &'static str,
    ok: bool,
    schemes: Vec<Report>,
}

/// Runs all; whether each has shown what it should.
pub(super) fn run(args: &Args, seed: u64, ui: &mut Ui) -> io::Result<Outcome> {
    ui.title(
        concat!("rucx ", env!("CARGO_PKG_VERSION"), " rcache-torture: ways to keep a cache"),
        &format!("seed {seed:#x}"),
    )?;
    let signals = Signals::catch()?;
    let mut schemes: Vec<Report> = Vec::new();
    ui.figure("corrupted", "operations", "way", Tone::Dim)?;
    for scheme in Scheme::ALL {
        let report = match child(args, (scheme, args.seconds, seed), &signals, ui)? {
            Ok(report) => report,
            Err(error) => {
                let what = format!("{}: {}", scheme.words(), error.what);
                return not_run(args, Problem { what, ..error }, ui);
            }
        };
        let tone = if report.corrupted == 0 { Tone::Good } else { Tone::Bad };
        let share = report.hits * 100 / report.gets.max(1);
        let way = format!("{} ({share} % hits)", report.scheme_in_words);
        ui.end_progress()?;
        ui.figure(&grouped(report.corrupted), &grouped(report.operations), &way, tone)?;
        schemes.push(report);
    }
    // A weaker one may have been lucky.
    let wrong = schemes.iter().any(|one| one.protected && !one.ok);
    let shown = schemes.iter().filter(|one| !one.protected && one.corrupted > 0).count();
    let weaker = schemes.iter().filter(|one| !one.protected).count();
    let ok = !wrong && shown > 0;
    let by_rucx: u64 = schemes.iter().filter(|one| one.protected).map(|one| one.corrupted).sum();
    let text = format!("corrupted by rucx: {by_rucx}; {shown} of {weaker} other ways were wrong");
    if args.json {
        report::json(&Comparison { rucx: env!("CARGO_PKG_VERSION"), ok, schemes })?;
    } else {
        ui.close(ok, &text)?;
    }
    Ok(Outcome::of(ok))
}

/// Runs one, for so many seconds and with that seed; its report, or why there is none.
pub(super) fn child(
    args: &Args,
    (scheme, seconds, seed): (Scheme, u32, u64),
    signals: &Signals,
    ui: &mut Ui,
) -> io::Result<Result<Report, Problem>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("rcache-torture").arg("--json").args(scheme.arguments());
    command.args(["--seconds", &seconds.to_string(), "--threads", &args.threads.to_string()]);
    command.args(["--pattern", &name_of(args.pattern)]);
    if let Some(regions) = args.regions {
        command.args(["--regions", &regions.to_string()]);
    }
    command.args(["--handler-delay", &format!("{}ns", args.handler_delay.as_nanos())]);
    command.args(["--seed", &seed.to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Running(command.spawn()?);
    let begin = Instant::now();
    let time = Duration::from_secs(seconds.into());
    // What it prints fits into a pipe.
    loop {
        if child.0.try_wait()?.is_some() {
            break;
        }
        if begin.elapsed() > time + PATIENCE {
            return Ok(Err(hitch("it has not ended")));
        }
        if signals.wait(Duration::from_millis(50))? {
            return Ok(Err(hitch("interrupted")));
        }
        let seconds = begin.elapsed().min(time).as_secs();
        ui.progress(&format!("{seconds} of {} s: {}", time.as_secs(), scheme.words()))?;
    }
    let (mut document, mut errors) = (String::new(), String::new());
    child.0.stdout.take().map(|mut out| out.read_to_string(&mut document)).transpose()?;
    child.0.stderr.take().map(|mut out| out.read_to_string(&mut errors)).transpose()?;
    let said = || {
        let line = errors.lines().last().unwrap_or("it has reported nothing");
        hitch(line.strip_prefix("rucx: ").unwrap_or(line))
    };
    let problem = || serde_json::from_str(&document).map_or_else(|_| said(), |not_run: NotRun| not_run.error);
    Ok(serde_json::from_str(&document).map_err(|_| problem()))
}

/// Why a run has no report, as far as is known.
fn hitch(why: &str) -> Problem {
    let remedy = "run it by itself to see more".to_owned();
    Problem { what: "a run has not come to its end".to_owned(), why: why.to_owned(), remedy, lacking: false }
}

/// A process, killed when it is not waited for.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Of one that has ended, neither does anything.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
