//! The figures that a program can read, after an exercise of this one.

use serde::Serialize;
use ucs::Status;
use ucs::mem::page::PageRange;
use ucs::mem::{Access, Mapping, MemError};
use ucs::monitor::Monitor;
use ucs::rcache::{Cache, Mode, Registrar};

use super::{Problem, config, system};

/// Buffers that are mapped, and how often each is looked up.
const BUFFERS: usize = 1000;
const LOOK_UPS: usize = 4;
const LEN: usize = 64 << 10;

/// A figure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Figure {
    /// `rcache` or `monitor`.
    pub(crate) group: &'static str,
    /// The field of `ucs::rcache::Stats` or `ucs::monitor::MonitorStats`.
    pub(crate) name: &'static str,
    pub(crate) value: u64,
    /// What it counts.
    pub(crate) doc: &'static str,
}

/// What was counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Exercise {
    /// What was done, in words.
    pub(crate) what: String,
    /// Why it was not done; null if it was.
    pub(crate) error: Option<Problem>,
    pub(crate) figures: Vec<Figure>,
}

/// Registers nothing: there need be no device.
struct Nothing;

impl Registrar for Nothing {
    type Handle = ();
    type Error = std::convert::Infallible;

    fn register(&self, _: PageRange, _: Access) -> Result<(), Self::Error> {
        Ok(())
    }

    fn deregister(&self, (): ()) {}
}

/// Maps buffers, looks each of them up in a registration cache as its user would, and unmaps it.
pub(super) fn exercise() -> Exercise {
    let what = format!(
        "{BUFFERS} buffers of 64 KiB were mapped, looked up {LOOK_UPS} times each, and unmapped: most at the addresses of those before"
    );
    match figures() {
        Ok(figures) => Exercise { what, error: None, figures },
        Err(error) => Exercise { what, error: Some(error), figures: Vec::new() },
    }
}

fn trouble(text: impl ToString, remedy: &str, status: Status) -> Problem {
    Problem { text: text.to_string(), remedy: remedy.to_owned(), status: format!("{status:?}") }
}

fn figures() -> Result<Vec<Figure>, Problem> {
    let settings = config::settings()
        .ok_or_else(|| trouble("a variable has no value", "see rucx info -c", Status::InvalidParam))?
        .map_err(|error| Problem::of_settings(&error))?;
    if settings.options.mode != Mode::Off && !system::monitor_can_start() {
        let why = "a seccomp filter kills whoever starts the memory monitor, or nobody can find out";
        return Err(trouble(why, "see rucx info -s; or set UCX_MEM_EVENTS=n", Status::Unsupported));
    }
    let monitor = Monitor::process();
    settings.prepare(monitor).map_err(|error| trouble(error, &error.remedy(), error.status()))?;
    let memory = |error: MemError| trouble(&error, error.remedy(), error.status());
    let cache = Cache::new(Nothing, monitor, settings.options).map_err(memory)?;
    for _ in 0..BUFFERS {
        let buffer = Mapping::anonymous(LEN).map_err(memory)?;
        let out = |error| trouble(error, "report it", Status::OutOfRange);
        buffer.bytes().write(0, &[1]).map_err(out)?; // its first page is there
        for _ in 0..LOOK_UPS {
            let at = buffer.bytes().as_ptr().addr();
            let failed = |error| trouble(error, "report it", Status::InvalidParam);
            drop(cache.get(at, LEN, Access::ReadWrite).map_err(failed)?);
        }
    }
    let figure = |group| move |(name, value, doc)| Figure { group, name, value, doc };
    let monitored = monitor.stats();
    Ok(cache.stats().rows().map(figure("rcache")).chain(monitored.rows().map(figure("monitor"))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_figures_are_told_with_what_they_count() {
        let done = exercise();
        assert_eq!(done.error, None);
        let of = |group, name| {
            let found = done.figures.iter().find(|one| (one.group, one.name) == (group, name));
            found.unwrap_or_else(|| panic!("{group}.{name}")).value
        };
        let look_ups = (BUFFERS * LOOK_UPS) as u64;
        assert_eq!(of("rcache", "gets"), look_ups);
        assert_eq!(of("rcache", "hits") + of("rcache", "misses") + of("rcache", "one_shots"), look_ups);
        // Where nothing tells of changes, they are for one use.
        assert!(of("rcache", "hits") + of("rcache", "one_shots") > look_ups / 2);
        assert!(of("monitor", "unmapped") <= of("monitor", "watches") + 1000);
        assert!(done.figures.iter().all(|one| !one.doc.is_empty() && one.doc.len() < 120));
    }
}
