//! Long operations from attached memory to attached memory, both reached by system calls: one thread reads while another one writes.
//!
//! The thread that reads ahead lives no longer than the operation. Bytes are read in order and written in order, as by one thread; an
//! error is that of the first fragment that has one, and tells what one thread would tell.

mod pipe;
#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;

use ucs::signals::with_signals_blocked;

use self::pipe::{BUFFERS, End, Pipe};
use super::{AccessError, Local, LocalMut, pieces};
use crate::api::Attachment;

/// Bytes from which another thread is worth what it costs: to start it, to have bytes pass from one processor to the other, and to wait for it
/// where other work keeps it from running. Measured where it helps least, on memory that is in the caches
/// (`docs/decisions/0019-pipeline.md`).
const WORTH_IT: usize = 8 << 20;

/// How bytes go by two threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    /// Bytes that are read at once, and written at once.
    fragment: usize,
    /// Bytes of the other thread's stack.
    stack: usize,
}

/// Whether `len` bytes are to go by two threads, where pieces of `good` bytes are good for both sides, on so many processors, and how.
fn plan(len: usize, good: usize, cpus: usize) -> Option<Plan> {
    let fragment = good.clamp(pieces::SHORT, pieces::LONGEST);
    (len >= WORTH_IT && cpus > 1).then_some(Plan { fragment, stack: 256 << 10 })
}

/// How many processors this thread may use (`sched_getaffinity(2)`), whatever else runs there.
fn cpus() -> usize {
    rustix::thread::sched_getaffinity(None).map_or(1, |allowed| usize::try_from(allowed.count()).unwrap_or(1))
}

/// Copies all of `src` to `offset` by two threads; `None`: it is nothing for two, or there is no other, and nothing has been done.
#[inline]
pub(crate) fn put(
    src: &Local<'_>,
    to: &(impl Attachment + ?Sized),
    offset: u64,
) -> Option<Result<(), AccessError>> {
    if src.len() < WORTH_IT || !to.is_by_system_calls() {
        return None;
    }
    let from = src.as_imported().filter(|from| from.memory.is_by_system_calls())?;
    let plan = plan(from.len, from.memory.good_piece().max(to.good_piece()), cpus())?;
    run(plan, from.len, |at, piece| from.read(at, piece), |at, piece| to.write(offset + at as u64, piece))
}

/// Copies from `offset` on into all of `dst`, as [`put`].
#[inline]
pub(crate) fn get(
    dst: &LocalMut<'_>,
    from: &(impl Attachment + ?Sized),
    offset: u64,
) -> Option<Result<(), AccessError>> {
    if dst.len() < WORTH_IT || !from.is_by_system_calls() {
        return None;
    }
    let to = dst.as_imported().filter(|to| to.memory.is_by_system_calls())?;
    let plan = plan(to.len, to.memory.good_piece().max(from.good_piece()), cpus())?;
    run(plan, to.len, |at, piece| from.read(offset + at as u64, piece), |at, piece| to.write(at, piece))
}

/// Has `read` fill and `write` take `len` bytes, a fragment at a time; `None`: another thread, or memory for both, cannot be had.
#[cold]
fn run(
    plan: Plan,
    len: usize,
    read: impl Fn(usize, &mut [u8]) -> Result<(), AccessError> + Sync,
    write: impl Fn(usize, &[u8]) -> Result<(), AccessError>,
) -> Option<Result<(), AccessError>> {
    pieces::lend(BUFFERS * plan.fragment, |memory| {
        let pipe = Pipe::new(len, plan.fragment, memory)?;
        thread::scope(|scope| {
            // A thread begins with the signals of the one that starts it blocked.
            let ahead = with_signals_blocked(|| {
                let thread = thread::Builder::new().name("rucx-ahead".to_owned()).stack_size(plan.stack);
                thread.spawn_scoped(scope, || pipe.ahead(&read))
            });
            let ahead = ahead.ok()?;
            // Joined also where this thread panics: the sanitizer does not see how a scope waits.
            let moved = catch_unwind(AssertUnwindSafe(|| {
                let _end = End(&pipe);
                pipe.through(&read, &write)
            }));
            match (moved, ahead.join()) {
                (Ok(moved), Ok(())) => moved,
                (Err(panic), _) | (_, Err(panic)) => resume_unwind(panic),
            }
        })
    })
}
