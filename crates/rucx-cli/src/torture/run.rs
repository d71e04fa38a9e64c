//! One run: started, watched, ended.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ucs::monitor::{Active, Monitor, MonitorStats, Wanted};
use ucs::rcache::{Mode, Stats};

use super::report::Problem;
use super::world::{NoWorld, World};
use super::{Plan, Tells, churn, sys};
use crate::signals::Signals;
use crate::ui::Ui;
use crate::units;

/// How often something is said.
const PROGRESS: Duration = Duration::from_millis(200);
/// How long a thread may need to end after it was told to.
const PATIENCE: Duration = Duration::from_secs(20);

/// Why there is nothing to report.
#[derive(Debug)]
pub(super) enum Stopped {
    Output(io::Error),
    Trouble(Problem),
}

impl From<io::Error> for Stopped {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

fn trouble(what: &str, why: impl ToString, remedy: impl Into<String>) -> Stopped {
    stopped(what, why, remedy, false)
}

/// The system has not what is needed.
fn lacking(what: &str, why: impl ToString, remedy: impl Into<String>) -> Stopped {
    stopped(what, why, remedy, true)
}

fn stopped(what: &str, why: impl ToString, remedy: impl Into<String>, lacking: bool) -> Stopped {
    let (what, why, remedy) = (what.to_owned(), why.to_string(), remedy.into());
    Stopped::Trouble(Problem { what, why, remedy, lacking })
}

/// What a run has measured.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) active: Active,
    /// How hits are checked at the end.
    pub(super) mode: Mode,
    pub(super) stats: Stats,
    pub(super) told: MonitorStats,
    pub(super) operations: u64,
    pub(super) corrupted: u64,
    pub(super) refused: u64,
    pub(super) changes: u64,
    pub(super) bystander_operations: u64,
    pub(super) bystander_one_shots: u64,
    pub(super) bystander_lost: u64,
    pub(super) first: Option<String>,
    pub(super) refusal: Option<String>,
    /// A user ended it before its time.
    pub(super) interrupted: bool,
    pub(super) elapsed: Duration,
}

/// Runs it.
///
/// # Errors
/// It cannot be run here, or a thread failed or hangs.
pub(super) fn run(plan: &Plan, ui: &mut Ui) -> Result<Measured, Stopped> {
    let active = start_monitor(plan)?;
    let world =
        World::new(plan.scheme.monitor(), plan.settings.options, plan.announce).map_err(
            |error| match error {
                NoWorld::Nic(error) => {
                    lacking("there is no page-bound NIC to test with", error.why, error.remedy)
                }
                NoWorld::Cache(error) => trouble("there is no memory for a cache", error, "free memory"),
            },
        )?;
    let world = Arc::new(world);
    sys::set_up_malloc();
    let workers = churn::workers(&world, plan.threads, &plan.patterns, plan.seed)
        .map_err(|error| trouble("there are no addresses to work on", error, "raise RLIMIT_AS"))?;
    let rounds: Vec<Arc<AtomicU64>> = workers.iter().map(|worker| Arc::clone(&worker.rounds)).collect();
    let signals = Signals::catch()?;
    let begin = Instant::now();
    let mut threads = Vec::new();
    for (number, worker) in workers.into_iter().enumerate() {
        let started = thread::Builder::new().name(format!("churn-{number}")).spawn(|| worker.run());
        let thread = started.map_err(|error| {
            trouble("a thread cannot be started", error, "raise RLIMIT_NPROC, or --threads")
        });
        match thread {
            Ok(thread) => threads.push(thread),
            Err(stopped) => {
                end(&world, threads)?;
                return Err(stopped);
            }
        }
    }
    let watched = watch(plan, &world, &threads, &signals, begin, ui);
    let elapsed = begin.elapsed();
    end(&world, threads)?;
    let interrupted = watched?;
    if let Some(idle) = rounds.iter().position(|rounds| rounds.load(Ordering::Relaxed) == 0) {
        let why = format!("thread {idle} has not finished a single round");
        return Err(trouble("a thread did nothing", why, "give it more --seconds"));
    }
    if plan.scheme.uses_monitor()
        && let Active::None { why } = Monitor::process().mode()
        && plan.tells != Tells::None
    {
        return Err(trouble("the monitor stopped working", why, why.remedy()));
    }
    let tally = &world.tally;
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let measured = Measured {
        active,
        mode: world.cache.mode(),
        stats: world.cache.stats(),
        told: Monitor::process().stats(),
        operations: of(&tally.operations),
        corrupted: of(&tally.corrupted),
        refused: of(&tally.refused),
        changes: of(&tally.changes),
        bystander_operations: of(&tally.bystander_operations),
        bystander_one_shots: of(&tally.bystander_one_shots),
        bystander_lost: of(&tally.bystander_lost),
        first: world.first.get().cloned(),
        refusal: world.refusal.get().cloned(),
        interrupted,
        elapsed,
    };
    match &measured.refusal {
        Some(why) if measured.operations == 0 => {
            Err(trouble("no memory could be registered", why, "raise the limit that it names"))
        }
        _ => Ok(measured),
    }
}

/// Has memory watched as the plan wants it.
fn start_monitor(plan: &Plan) -> Result<Active, Stopped> {
    let monitor = Monitor::process();
    let wanted = match plan.tells {
        Tells::Uffd if plan.scheme.uses_monitor() => Wanted::Auto,
        Tells::Explicit => Wanted::Explicit,
        _ => Wanted::Off,
    };
    monitor.want(wanted);
    plan.settings
        .prepare(monitor)
        .map_err(|error| lacking("registrations cannot be kept", error, error.remedy()))?;
    let active = monitor.start();
    match active {
        Active::None { why } if wanted == Wanted::Auto => {
            Err(lacking("nothing tells of changes of memory", active, why.remedy()))
        }
        active => {
            monitor.slow_down(plan.delay);
            Ok(active)
        }
    }
}

/// Waits until the time is over, and says how it goes; whether a user ended it before.
fn watch(
    plan: &Plan,
    world: &World,
    threads: &[JoinHandle<io::Result<()>>],
    signals: &Signals,
    begin: Instant,
    ui: &mut Ui,
) -> Result<bool, Stopped> {
    loop {
        let left = plan.time.saturating_sub(begin.elapsed());
        if left.is_zero() {
            return Ok(false);
        }
        if signals.wait(left.min(PROGRESS))? {
            ui.end_progress()?;
            return Ok(true);
        }
        if threads.iter().any(JoinHandle::is_finished) {
            ui.end_progress()?;
            return Ok(false); // it failed: `end` says how
        }
        let of = |counter: &AtomicU64| units::grouped(counter.load(Ordering::Relaxed));
        ui.progress(&format!(
            "{} of {} s: {} operations, {} changes, corrupted: {}",
            begin.elapsed().as_secs(),
            plan.time.as_secs(),
            of(&world.tally.operations),
            of(&world.tally.changes),
            of(&world.tally.corrupted)
        ))?;
    }
}

/// Ends the threads, and waits for them.
fn end(world: &World, threads: Vec<JoinHandle<io::Result<()>>>) -> Result<(), Stopped> {
    world.stop.store(true, Ordering::Relaxed);
    let deadline = Instant::now() + PATIENCE;
    let bug = "this is a bug: report it with the seed";
    for (number, thread) in threads.into_iter().enumerate() {
        while !thread.is_finished() {
            if Instant::now() > deadline {
                let why = format!("thread {number} has not ended for {} s", PATIENCE.as_secs());
                return Err(trouble("a thread hangs", why, bug));
            }
            thread::sleep(Duration::from_millis(1));
        }
        match thread.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let why = format!("thread {number}: {error}");
                return Err(trouble(
                    "memory could not be changed",
                    why,
                    "free memory, raise vm.max_map_count",
                ));
            }
            Err(_) => return Err(trouble("a thread panicked", format!("thread {number}"), bug)),
        }
    }
    Ok(())
}
