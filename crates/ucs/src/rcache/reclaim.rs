//! Deregistering what is stale when nobody else comes to do it: one thread a process, asleep while there is nothing to do.
//!
//! # Safety
//! The pointer is null or that of a reclaimer that lives for ever: one for each process of a line of forks that makes a cache.

#![allow(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
// std's atomics: a static, and a pointer; this is no part of a model.
use std::sync::atomic::AtomicPtr;
use std::sync::{OnceLock, Weak};
use std::thread::{self, Thread};

use parking_lot::Mutex;

use super::MemMonitor;
use crate::fork::{self, Generation};
use crate::mem::page::PageRange;
use crate::sync::{AtomicBool, Ordering};

/// What has stale registrations now and then.
pub(super) trait Reclaim: Send + Sync {
    /// Deregisters what is stale and not in use.
    fn reclaim(&self);

    /// Asks `monitor`, if it is this one's, whether what is registered in `range` is still what is mapped there, and ends what is not.
    fn recheck(&self, range: PageRange, monitor: &dyn MemMonitor);
}

struct Reclaimer {
    generation: Generation,
    caches: Mutex<Vec<Weak<dyn Reclaim>>>,
    work: AtomicBool,
    thread: OnceLock<Thread>,
}

static CURRENT: AtomicPtr<Reclaimer> = AtomicPtr::new(ptr::null_mut());

/// The one of this process, if there is one. A fork's child does not touch its parent's, whose lock may be taken for ever there.
fn current() -> Option<&'static Reclaimer> {
    // SAFETY: null, or one that lives for ever (module rule).
    let published = unsafe { CURRENT.load(Ordering::Acquire).as_ref() };
    published.filter(|reclaimer| reclaimer.generation.is_current())
}

/// The one of this process.
fn current_or_new() -> &'static Reclaimer {
    loop {
        let published = CURRENT.load(Ordering::Acquire);
        if let Some(reclaimer) = current() {
            return reclaimer;
        }
        let fresh = Box::into_raw(Box::new(Reclaimer {
            generation: fork::generation(),
            caches: Mutex::new(Vec::new()),
            work: AtomicBool::new(false),
            thread: OnceLock::new(),
        }));
        if CURRENT.compare_exchange(published, fresh, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: from `into_raw` just now, and nobody has seen it.
            drop(unsafe { Box::from_raw(fresh) });
        }
    }
}

/// Has the stale registrations of `cache` reclaimed as long as it lives. Where no thread can be had, they are when a `get` needs room.
pub(super) fn enroll(cache: Weak<dyn Reclaim>) {
    let reclaimer = current_or_new();
    let mut caches = reclaimer.caches.lock();
    caches.retain(|cache| cache.strong_count() > 0);
    caches.push(cache);
    if reclaimer.thread.get().is_none() {
        let started = crate::signals::with_signals_blocked(|| {
            thread::Builder::new().name("rucx-reclaim".to_owned()).spawn(move || reclaimer.run())
        });
        match started {
            Ok(handle) => {
                drop(reclaimer.thread.set(handle.thread().clone()));
                handle.thread().unpark(); // who woke it before found nobody to wake
            }
            Err(error) => tracing::warn!(%error, "stale registrations wait until their cache needs room"),
        }
    }
}

/// Has all caches with this monitor but the one at `own` look whether what they have in `range` is still mapped: before somebody has it
/// watched anew. Of a few changes no event tells. The exact check finds them as long as what is mapped there now is not watched.
pub(super) fn recheck(range: PageRange, monitor: &dyn MemMonitor, own: *const ()) {
    let Some(reclaimer) = current() else { return };
    let caches = reclaimer.caches.lock();
    if caches.len() <= 1 {
        return;
    }
    let others = caches.iter().filter(|cache| !ptr::addr_eq(cache.as_ptr(), own));
    let others: Vec<_> = others.filter_map(Weak::upgrade).collect();
    drop(caches);
    others.iter().for_each(|cache| cache.recheck(range, monitor));
}

/// Wakes the thread: neither allocates nor waits, and may be called by the handler of memory events.
pub(super) fn wake() {
    if let Some(reclaimer) = current()
        && !reclaimer.work.swap(true, Ordering::AcqRel)
        && let Some(thread) = reclaimer.thread.get()
    {
        thread.unpark();
    }
}

impl Reclaimer {
    fn run(&self) {
        loop {
            while self.work.swap(false, Ordering::AcqRel) {
                let caches: Vec<_> = self.caches.lock().iter().filter_map(Weak::upgrade).collect();
                for cache in caches {
                    // One transport that panics must not end this for all others. It has told by its panic.
                    let _ = catch_unwind(AssertUnwindSafe(move || cache.reclaim()));
                }
            }
            thread::park();
        }
    }
}
