//! Processes that this program starts of itself, as they see the one that did.

use std::io;

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

/// Has this process killed when its parent, `parent`, ends.
///
/// Source: `PR_SET_PDEATHSIG(2const)`. A parent that had ended before is noticed by its number.
///
/// # Errors
/// The kernel's, or it has ended.
pub(crate) fn die_with(parent: u32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let is_parent = getppid().is_some_and(|pid| u32::try_from(pid.as_raw_nonzero().get()) == Ok(parent));
    if is_parent { Ok(()) } else { Err(io::Error::other("who has started this process has ended")) }
}
