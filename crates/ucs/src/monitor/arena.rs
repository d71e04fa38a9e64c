//! The monitor's own memory: itself, and the stack of its handler.
//!
//! It comes from no allocator, is filled with pages from the start, and is never watched, so that nothing the handler touches can make
//! it wait for itself.
//!
//! # Safety
//! An arena is one mapping, at an address of the kernel's choice, that nobody else knows of. It holds a monitor, which is written
//! before anybody can see it, then a page that cannot be touched, then the stack. It is unmapped only by
//! [`discard`], whose caller has shown it to nobody.

#![allow(unsafe_code)]

use std::ptr;

use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use super::Monitor;
use crate::mem::page::{PageRange, align_up, page_size};

/// Bytes of the handler's stack, on which the C library also puts thread-local storage.
const STACK: usize = 256 << 10;

/// The parts of an arena.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arena {
    /// All of it.
    pub(super) all: PageRange,
    /// The handler's stack.
    pub(super) stack: PageRange,
}

/// A monitor in an arena of its own, made by `make`.
pub(super) fn place(make: impl FnOnce(Arena) -> Monitor) -> Result<&'static Monitor, Errno> {
    let page = page_size();
    let head = align_up(size_of::<Monitor>(), page).ok_or(Errno::NOMEM)? + page;
    let len = head + STACK;
    let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
    // SAFETY: a null hint without MAP_FIXED replaces no mapping.
    let base = unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
    let guard = base.wrapping_byte_add(head - page);
    // Best effort: without it, an overflow of the stack is as bad as it is anywhere without a guard.
    // SAFETY: a page of the mapping made just now, in which nothing is.
    let _ = unsafe { mprotect(guard, page, MprotectFlags::empty()) };
    let start = base.expose_provenance();
    let parts = PageRange::new(start, start + len).zip(PageRange::new(start + head, start + len));
    let (all, stack) = parts.ok_or(Errno::INVAL)?;
    let monitor = base.cast::<Monitor>();
    // SAFETY: page-aligned, writable and large enough; nothing is there yet.
    unsafe { monitor.write(make(Arena { all, stack })) };
    // SAFETY: initialised, and there for ever unless discarded before anybody sees it.
    Ok(unsafe { &*monitor })
}

/// Unmaps an arena.
///
/// # Safety
/// Nobody has a reference into it, or will use one; no handler runs on it.
pub(super) unsafe fn discard(arena: Arena) {
    let base = ptr::with_exposed_provenance_mut(arena.all.start());
    // SAFETY: the caller's promise is passed on.
    let unmapped = unsafe { munmap(base, arena.all.len()) };
    debug_assert!(unmapped.is_ok());
}
