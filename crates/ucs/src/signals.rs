//! Threads of ours that the application's signals leave alone.
//!
//! # Safety
//! Each call gets pointers to locals that live through it, of the types the man pages name.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;

/// Runs `f` with all signals blocked in this thread: a thread that `f` starts has them blocked for ever, so that the application's
/// handlers run on the application's threads. Afterwards this thread has those blocked that it had before.
pub fn with_signals_blocked<R>(f: impl FnOnce() -> R) -> R {
    let before = block_signals();
    let result = f();
    restore_signals(&before);
    result
}

/// While it lives, all signals are blocked in its thread.
#[cfg(all(feature = "hooks", not(loom)))]
#[derive(Debug)]
pub(crate) struct Blocked {
    before: libc::sigset_t,
    _of_this_thread: std::marker::PhantomData<*const ()>,
}

#[cfg(all(feature = "hooks", not(loom)))]
impl Blocked {
    pub(crate) fn new() -> Self {
        Self { before: block_signals(), _of_this_thread: std::marker::PhantomData }
    }
}

#[cfg(all(feature = "hooks", not(loom)))]
impl Drop for Blocked {
    fn drop(&mut self) {
        restore_signals(&self.before);
    }
}

/// Nothing: only hooks of memory calls could have a signal handler wait for what its own thread holds.
#[cfg(not(all(feature = "hooks", not(loom))))]
#[derive(Debug)]
pub(crate) struct Blocked {
    _of_this_thread: std::marker::PhantomData<*const ()>,
}

#[cfg(not(all(feature = "hooks", not(loom))))]
impl Blocked {
    #[inline]
    pub(crate) fn new() -> Self {
        Self { _of_this_thread: std::marker::PhantomData }
    }
}

/// Blocks all signals in this thread (`pthread_sigmask(3)`); answers which were blocked before.
fn block_signals() -> libc::sigset_t {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises the set it is given.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    let mut before = all;
    // SAFETY: both sets are initialised, the second as a copy of the first; pthread_sigmask writes the old mask to it.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    // SAFETY: initialised, by the copy if not by the call.
    unsafe { before.assume_init() }
}

/// Blocks those signals and no others.
fn restore_signals(before: &libc::sigset_t) {
    // SAFETY: the set is initialised; the old one is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, ptr::null_mut()) };
}
