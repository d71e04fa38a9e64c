//! Which processor runs what.

use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processor of what is measured, and that of the threads beside it; unset: any.
static PINNED: OnceLock<(usize, usize)> = OnceLock::new();

/// Keeps this thread to the first processor it may use, and those that are started [`beside`] it to the last.
pub(crate) fn pin() -> Result<(), String> {
    let allowed = sched_getaffinity(None).map_err(|error| format!("sched_getaffinity: {error}"))?;
    let mut usable = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    let (Some(first), Some(last)) = (usable.next(), usable.next_back()) else {
        return Err("--pin needs two processors".to_owned());
    };
    let _ = PINNED.set((first, last));
    keep_to(first)
}

/// Makes something whose threads run beside what is measured.
pub(crate) fn beside<T>(make: impl FnOnce() -> T) -> T {
    let Some((first, last)) = PINNED.get() else { return make() };
    keep_to(*last).expect("it was allowed");
    let made = make();
    keep_to(*first).expect("it was allowed");
    made
}

fn keep_to(cpu: usize) -> Result<(), String> {
    let mut one = CpuSet::new();
    one.set(cpu);
    sched_setaffinity(None, &one).map_err(|error| format!("sched_setaffinity: {error}"))
}
