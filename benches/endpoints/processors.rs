//! Which processor runs what.

use std::sync::OnceLock;

use rucx_benches::processors::{self, keep_to};

/// The processor of what is measured, and that of the threads beside it; unset: any.
static PINNED: OnceLock<(usize, usize)> = OnceLock::new();

/// Keeps this thread to the first processor it may use, and those that are started [`beside`] it to the last.
pub(crate) fn pin() -> Result<(), String> {
    let _ = PINNED.set(processors::pin()?);
    Ok(())
}

/// Makes something whose threads run beside what is measured.
pub(crate) fn beside<T>(make: impl FnOnce() -> T) -> T {
    let Some((first, last)) = PINNED.get() else { return make() };
    keep_to(*last).expect("it was allowed");
    let made = make();
    keep_to(*first).expect("it was allowed");
    made
}
