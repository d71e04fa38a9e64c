//! Copies between memory of two other processes, both reached by one device.
//!
//! Memory registered in this device's own protection domain is read or written by the requests to the other one themselves: nothing passes through this
//! process's memory. Between two exporters of other machines it does, fragment by fragment: while one is written, the next ones are read.
//!
//! # Safety
//! As of [`super::import`] and [`super::remote`]: both are exported memory, which others may change at any time. Fragments are memory of a lane,
//! which a flight has for itself; the flight that reads them ends before it.

#![allow(unsafe_code)]

use super::import::VerbsImport;
use super::queue::{FRAGMENT, FRAGMENTS, Queue, Remote, Way, pause};
use super::remote::RemoteImport;
use crate::api::Attachment;
use crate::memory::{AccessError, DeniedReason, StaleReason};

/// Which of two memories an error is of.
#[derive(Debug)]
pub(super) enum Side<E> {
    /// That which is read.
    Source(E),
    /// That which is written.
    Target(E),
}

impl Side<AccessError> {
    /// The error of an operation on attached memory whose operand is the other one: the source of a put, the target of a get.
    pub(super) fn of_operation(self, way: Way) -> AccessError {
        match (self, way) {
            (Self::Target(error), Way::Put) | (Self::Source(error), Way::Get) => error,
            (Self::Source(error) | Self::Target(error), _) => error.of_imported_operand(),
        }
    }
}

/// A part of memory of another machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Far<'a> {
    pub(super) import: &'a RemoteImport,
    pub(super) offset: u64,
}

/// Moves `len` bytes between memory of this device's protection domain, from its byte `at` on, and memory of another machine: [`Way::Put`] is
/// towards that.
pub(super) fn direct(
    way: Way,
    (near, at): (&VerbsImport, u64),
    far: Far<'_>,
    len: usize,
) -> Result<(), Side<AccessError>> {
    let mut is_far = false;
    let moved = near.in_steps(len, |part| {
        let from = near.near(at, part.start);
        let to = far.import.remote(far.offset).at(part.start);
        // SAFETY: exported memory, registered as long as its gate is passed (module rule).
        let moved = unsafe { far.import.move_near(way, from, to, part.len()) };
        is_far = moved.is_err();
        moved
    });
    moved.map_err(|error| {
        // A registration that was ended meanwhile fails the request, whatever that says of it.
        let (is_far, error) = match near.check() {
            Err(why) => (false, AccessError::Stale { done: error.done(), why }),
            Ok(()) => match error {
                // This side's device finds nothing there.
                AccessError::AccessDenied { done, why: DeniedReason::Protection } if near.is_by_address() => {
                    (false, AccessError::Stale { done, why: StaleReason::Unmapped })
                }
                error => (is_far, error),
            },
        };
        if is_far == (way == Way::Put) { Side::Target(error) } else { Side::Source(error) }
    })
}

/// Copies `len` bytes from one exporter of another machine to another one. `None`: both are the same, and it is nothing for two queues.
pub(super) fn relay(from: Far<'_>, to: Far<'_>, len: usize) -> Option<Result<(), Side<AccessError>>> {
    let (source, target) = (from.import.queue(), to.import.queue());
    if std::ptr::eq(source, target) {
        return None;
    }
    Some(relayed((source, from), (target, to), len))
}

fn relayed(
    (source, from): (&Queue, Far<'_>),
    (target, to): (&Queue, Far<'_>),
    len: usize,
) -> Result<(), Side<AccessError>> {
    // In one order, whoever else copies between them. Dropped last, and so ended last, is that whose memory the fragments are.
    let early = (source as *const Queue > target as *const Queue).then(|| target.long(to.import));
    let reads = source.long(from.import);
    let mut writes = early.unwrap_or_else(|| target.long(to.import)).map_err(Side::Target)?;
    let mut reads = reads.map_err(Side::Source)?;
    writes.have_bounce().map_err(Side::Target)?;
    let (from, to) = (from.import.remote(from.offset), to.import.remote(to.offset));
    let count = len.div_ceil(FRAGMENT);
    let part = |index: usize| (index * FRAGMENT, FRAGMENT.min(len - index * FRAGMENT));
    let at = |remote: Remote, index: usize| remote.at(part(index).0);
    let mut rounds = 0;
    let mut step = |reads: &mut super::queue::Flight<'_>, writes: &mut super::queue::Flight<'_>| {
        let before = (reads.completed, writes.completed);
        while reads.posted < count && reads.posted < writes.completed + FRAGMENTS {
            let index = reads.posted;
            let near = writes.fragment(index).map_err(Side::Target)?;
            // SAFETY: a fragment that nobody uses: what was in it has been written (module rule).
            let posted = unsafe { reads.post(Way::Get, near, at(from, index), part(index).1) };
            posted.map_err(Side::Source)?;
        }
        if reads.completed < reads.posted {
            reads.poll().map_err(Side::Source)?;
        }
        while writes.posted < reads.completed {
            let index = writes.posted;
            let near = writes.fragment(index).map_err(Side::Target)?;
            // SAFETY: a fragment that has come, and is not read into before this has completed (module rule).
            let posted = unsafe { writes.post(Way::Put, near, at(to, index), part(index).1) };
            posted.map_err(Side::Target)?;
        }
        if writes.completed < writes.posted {
            writes.poll().map_err(Side::Target)?;
        }
        if before == (reads.completed, writes.completed) {
            pause(&mut rounds);
        } else {
            rounds = 0;
        }
        Ok(())
    };
    while writes.completed < count {
        if let Err(error) = step(&mut reads, &mut writes) {
            // What had been read is written, or is known not to be.
            let _ = writes.drain();
            let done = (writes.completed * FRAGMENT).min(len) as u64;
            return Err(match error {
                Side::Source(error) => Side::Source(error.moved(done)),
                Side::Target(error) => Side::Target(error.moved(done)),
            });
        }
    }
    Ok(())
}
