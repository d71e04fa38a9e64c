//! The handler's thread, on a stack of the monitor's.
//!
//! # Safety
//! The thread runs on pages that are mapped for it alone and never unmapped, and is given a monitor that lives for ever.
//!
//! It blocks all signals from its first instruction: the application's handlers run on the application's threads.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;

use libc::{c_int, c_void};
use rustix::io::Errno;

use super::handler;
use crate::monitor::Monitor;
use crate::signals::with_signals_blocked;

extern "C" fn main(monitor: *mut c_void) -> *mut c_void {
    // SAFETY: `spawn` passes a `&'static Monitor`.
    let monitor = unsafe { &*monitor.cast_const().cast::<Monitor>() };
    let _ = rustix::thread::set_name(c"rucx-memory");
    handler::serve(monitor);
    ptr::null_mut()
}

fn check(answer: c_int) -> Result<(), Errno> {
    if answer == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(answer)) }
}

/// Starts the handler of `monitor`, on the stack of its arena.
///
/// The stack is the monitor's own (`pthread_attr_setstack(3)`), because it must not be one that the application could come to have
/// watched, and because nothing of it should have to be made or dropped while memory calls wait.
pub(in crate::monitor) fn spawn(monitor: &Monitor) -> Result<(), Errno> {
    let stack = monitor.arena.ok_or(Errno::NOMEM)?.stack;
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: initialises the attributes it is given.
    check(unsafe { libc::pthread_attr_init(attributes.as_mut_ptr()) })?;
    // SAFETY: initialised by the call above, which has succeeded.
    let attributes = unsafe { attributes.assume_init_mut() };
    // SAFETY: initialised.
    unsafe { libc::pthread_attr_setdetachstate(attributes, libc::PTHREAD_CREATE_DETACHED) };
    let base = ptr::with_exposed_provenance_mut(stack.start());
    // SAFETY: the range is for this thread alone: a monitor starts one, once.
    let set = check(unsafe { libc::pthread_attr_setstack(attributes, base, stack.len()) });
    let spawned = set.and_then(|()| {
        let mut thread = MaybeUninit::uninit();
        let argument = ptr::from_ref(monitor).cast_mut().cast();
        with_signals_blocked(|| {
            // SAFETY: `main` takes a `&'static Monitor`: one that starts lives for ever (`Monitor::create`, `process::renew`).
            check(unsafe { libc::pthread_create(thread.as_mut_ptr(), attributes, main, argument) })
        })
    });
    // SAFETY: initialised, and used no more.
    unsafe { libc::pthread_attr_destroy(attributes) };
    spawned
}
