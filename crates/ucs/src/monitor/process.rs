//! The one monitor of the process, and a new one for a fork's child.
//!
//! # Safety
//! The pointer is null or that of a monitor that lives for ever: one of an arena, discarded only by who did not get to publish it.
//! Descriptors of a parent's monitor are closed in its child once, by who has put another in its place.

#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
// std's atomics: a static, and a pointer; this is no part of a model.
use std::sync::atomic::{AtomicPtr, Ordering};

use super::{Monitor, arena, fds};

static CURRENT: AtomicPtr<Monitor> = AtomicPtr::new(ptr::null_mut());

/// The monitor of this process.
#[inline]
pub(super) fn current() -> &'static Monitor {
    let published = CURRENT.load(Ordering::Acquire);
    // SAFETY: null, or a monitor that lives for ever.
    match unsafe { published.as_ref() } {
        Some(monitor) if monitor.generation.is_current() => monitor,
        old => renew(old),
    }
}

/// The monitor of this process, if there is one.
#[cfg(all(feature = "hooks", target_arch = "x86_64"))]
pub(super) fn published() -> Option<&'static Monitor> {
    // SAFETY: null, or a monitor that lives for ever.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }.filter(|monitor| monitor.generation.is_current())
}

/// Publishes a new one in the place of `old`: none yet, or the parent's.
#[cold]
fn renew(old: Option<&'static Monitor>) -> &'static Monitor {
    // Without a lock: a fork could leave it taken in the child for ever.
    let fresh = Monitor::create(true, true);
    let expected = old.map_or(ptr::null_mut(), |old| ptr::from_ref(old).cast_mut());
    let new = ptr::from_ref(fresh).cast_mut();
    match CURRENT.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            // What the child has of its parent's are copies of the descriptors. The parent's registrations are left alone.
            if let Some(old) = old {
                close_inherited(old);
            }
            fresh
        }
        Err(_) => {
            if let Some(arena) = fresh.arena {
                // SAFETY: nobody has seen it, and `fresh` is used no more; it has not started.
                unsafe { arena::discard(arena) };
            }
            current()
        }
    }
}

/// Closes the copies that a fork's child has of its parent's descriptors: while they are open, so is the parent's userfaultfd.
///
/// The child may have closed them itself, and opened others by the same numbers: so what they are is looked at first. No allocation:
/// in a child that was made by a bare `clone`, the allocator may be locked for ever.
fn close_inherited(old: &Monitor) {
    let uffd = old.uffd.get().map(AsFd::as_fd).filter(|fd| fds::is_userfaultfd(*fd));
    let maps = old.maps.get().and_then(|maps| maps.fd()).filter(|fd| fds::is_maps(*fd));
    for fd in [uffd, maps].into_iter().flatten() {
        // SAFETY: the child's copy of a descriptor of the old monitor, which never uses it in this process.
        unsafe { libc::close(fd.as_raw_fd()) };
    }
}
