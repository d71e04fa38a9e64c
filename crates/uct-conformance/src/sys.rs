//! Raw memory, and other memory at the same address.
//!
//! # Safety
//! Both name mappings whose bytes are never borrowed: [`Mapping`] and [`LocalMem`] access them as shared bytes only.

#![allow(unsafe_code)]

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use ucs::mem::Mapping;
use ucs::sync::{AtomicUsize, Ordering};
use uct::memory::{LocalMem, RawMem};

/// Names all of `map`.
pub(crate) fn raw(map: &Mapping) -> RawMem {
    // SAFETY: no reference to bytes of a Mapping exists, ever, and nothing breaks when these change.
    unsafe { RawMem::new(map.bytes().as_ptr(), map.bytes().len()) }
}

/// Puts new, zeroed memory at the address of `mem`, whose length is a multiple of the page size.
pub(crate) fn replace(mem: &LocalMem) {
    let (address, len) = (usize::try_from(mem.address()).unwrap(), mem.len());
    let page = ucs::mem::page::page_size();
    assert!(address.is_multiple_of(page) && len.is_multiple_of(page) && len > 0, "whole pages");
    let at = std::ptr::with_exposed_provenance_mut(address);
    let flags = MapFlags::PRIVATE | MapFlags::FIXED;
    // SAFETY: the range is exactly one mapping, which `mem` (or what it names) has, and unmaps by address when it is dropped: it
    // then unmaps the new one. Its bytes are never borrowed (module rule), and stay readable and writable.
    let put = unsafe { mmap_anonymous(at, len, ProtFlags::READ | ProtFlags::WRITE, flags) };
    assert_eq!(put.unwrap().addr(), address);
}

/// Names `len` bytes of addresses that are mapped but for the page at `hole`, for as long as the process runs: far from where the kernel
/// puts mappings of its own choice, so that nobody else's comes to lie in the hole.
pub(crate) fn with_a_hole(len: usize, hole: usize) -> RawMem {
    static NEXT: AtomicUsize = AtomicUsize::new(0x2100_0000_0000);
    let page = ucs::mem::page::page_size();
    let start = NEXT.fetch_add(len.next_multiple_of(page) + page, Ordering::Relaxed);
    let start = std::ptr::with_exposed_provenance_mut(start);
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: replaces no mapping.
    let at = unsafe { mmap_anonymous(start, len, ProtFlags::READ | ProtFlags::WRITE, flags) }.unwrap();
    // SAFETY: within the mapping made above, which nobody else has.
    unsafe { munmap(at.wrapping_byte_add(hole), page) }.unwrap();
    // SAFETY: nobody has references to these bytes, ever.
    unsafe { RawMem::new(at.cast(), len) }
}
