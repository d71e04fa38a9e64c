//! Which processor runs what.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Keeps this thread, and those that it starts, to the first processor it may use; answers that one, and the last.
///
/// # Errors
/// There is only one, or the system refuses.
pub fn pin() -> Result<(usize, usize), String> {
    let allowed = sched_getaffinity(None).map_err(|error| format!("sched_getaffinity: {error}"))?;
    let mut usable = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    let (Some(first), Some(last)) = (usable.next(), usable.next_back()) else {
        return Err("--pin needs two processors".to_owned());
    };
    keep_to(first)?;
    Ok((first, last))
}

/// Keeps this thread, and those that it starts, to that processor.
///
/// # Errors
/// The system refuses.
pub fn keep_to(cpu: usize) -> Result<(), String> {
    let mut one = CpuSet::new();
    one.set(cpu);
    sched_setaffinity(None, &one).map_err(|error| format!("sched_setaffinity: {error}"))
}
