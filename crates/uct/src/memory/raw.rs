//! Address ranges of the user's, named and not owned.
//!
//! # Safety
//! The owner may unmap a raw range at any time, so its bytes are only touched through system calls that answer EFAULT:
//! `process_vm_readv(2)` and `process_vm_writev(2)` on this very process.

#![allow(unsafe_code)]

use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::thread::gettid;

use super::{AccessError, DeniedReason, StaleReason};
use crate::process::vm::{self, Mapped};

/// A range of this process's addresses, made by the user: whatever is mapped there when it is accessed.
///
/// The first thing to know: an export of it names the *address*. As long as it is exported, peers reach whatever is mapped
/// there. Revoke before the address is used for private data.
#[derive(Debug)]
pub struct RawMem {
    start: *mut u8,
    len: usize,
}

// SAFETY: it is an address; accesses are system calls.
unsafe impl Send for RawMem {}
// SAFETY: as above.
unsafe impl Sync for RawMem {}

impl RawMem {
    /// Names the `len` bytes at `start`.
    ///
    /// # Safety
    /// As long as a region of it lives, peers (and the region's own methods) may read and, unless it is read-only, write
    /// whatever is mapped in the range; an operation that it is given to reads or writes what is, until it has ended. So no Rust reference to any of these bytes may be used meanwhile, and the bytes must
    /// not belong to something that breaks when they change. Unmapping the range is allowed at any time. Moving its pages to another
    /// address (`mremap(2)`) is not while an operation on it is under way, nor while it is exported with the promise to keep it mapped
    /// (`RegMode::Cached`): they would be used there.
    #[must_use]
    pub unsafe fn new(start: *mut u8, len: usize) -> Self {
        Self { start, len }
    }

    /// Where it begins.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.start.addr() as u64
    }

    /// How many bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn range(&self) -> (NonNull<u8>, usize) {
        (NonNull::new(self.start).unwrap_or(NonNull::dangling()), self.len)
    }
}

/// Copies from a raw range into `dst`.
pub(super) fn read(src: NonNull<u8>, dst: &mut [u8]) -> Result<(), AccessError> {
    let from = src.addr().get() as u64;
    transfer(dst.len(), false, from, |done| vm::read(gettid(), from + done as u64, &mut dst[done..]))
}

/// Copies `src` into a raw range.
pub(super) fn write(dst: NonNull<u8>, src: &[u8]) -> Result<(), AccessError> {
    let to = dst.addr().get() as u64;
    transfer(src.len(), true, to, |done| {
        // SAFETY: RawMem::new's caller promised that the bytes there may be written at any time.
        unsafe { vm::write(gettid(), to + done as u64, &src[done..]) }
    })
}

/// Repeats `call` until all is moved: it may move less than asked for (`process_vm_readv(2)`, "Return value").
fn transfer(
    len: usize,
    for_writing: bool,
    address: u64,
    mut call: impl FnMut(usize) -> Result<usize, Errno>,
) -> Result<(), AccessError> {
    let (mut done, mut tries) = (0, Tries::default());
    while done < len {
        let errno = match call(done) {
            Ok(moved @ 1..) => {
                done += moved;
                continue;
            }
            Ok(0) => Errno::FAULT,
            Err(errno) => errno,
        };
        let (done, address) = (done as u64, address + done as u64);
        match errno {
            Errno::FAULT => {
                fault(vm::mapped_at("/proc/thread-self", address, for_writing), done, &mut tries)?;
            }
            Errno::NOMEM => {
                return Err(AccessError::Unsupported {
                    why: "the kernel had no memory for process_vm_readv/writev",
                });
            }
            _ => {
                return Err(AccessError::Unsupported {
                    why: "the kernel or a seccomp filter refuses process_vm_readv/writev, which raw memory needs",
                });
            }
        }
    }
    Ok(())
}

/// How often an access has been tried again: at one place, and in all.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tries {
    done: u64,
    count: u8,
    all: u8,
}

impl Tries {
    /// An owner may unmap and map a page again and again; that it meets each try of so many is next to impossible.
    const MOST: u8 = 8;
    /// Each try looks through all of a process's mappings: an owner must not hold up an access for ever.
    const MOST_OF_ALL: u8 = 64;

    /// Whether it may be tried once more after `done` bytes.
    fn again(&mut self, done: u64) -> bool {
        if self.done != done {
            *self = Self { done, count: 0, ..*self };
        }
        self.count += 1;
        self.all += 1;
        self.count <= Self::MOST && self.all <= Self::MOST_OF_ALL
    }
}

/// Why an access stopped after `done` bytes at a page with this mapping. None if the page has been mapped meanwhile, and the access
/// may go on.
///
/// # Errors
/// [`AccessError`].
#[cold]
pub(crate) fn fault(mapped: Mapped, done: u64, tries: &mut Tries) -> Result<(), AccessError> {
    match mapped {
        Mapped::Allowed if tries.again(done) => Ok(()),
        Mapped::Allowed => Err(AccessError::AccessDenied { done, why: DeniedReason::NotBacked }),
        Mapped::Denied => Err(AccessError::AccessDenied { done, why: DeniedReason::Protection }),
        Mapped::No => Err(AccessError::Stale { done, why: StaleReason::Unmapped }),
        Mapped::Unknown => Err(AccessError::AccessDenied { done, why: DeniedReason::Untold }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page that another thread maps between the access and the look at the mappings is tried again, a few times at each place.
    #[test]
    fn pages_mapped_meanwhile_are_tried_again() {
        let mut tries = Tries::default();
        let mut at = |mapped, done| fault(mapped, done, &mut tries).map_err(|error| error.to_string());
        for done in [0, 4096] {
            for _ in 0..Tries::MOST {
                assert_eq!(at(Mapped::Allowed, done), Ok(()));
            }
        }
        assert_eq!(at(Mapped::No, 4096).unwrap_err(), "stale after 4096 bytes: the owner has unmapped it");
        let beyond = at(Mapped::Allowed, 4096).unwrap_err();
        assert!(
            beyond.starts_with(
                "access denied after 4096 bytes: the pages are mapped, but the kernel does not reach them"
            ),
            "{beyond}"
        );
        let denied = at(Mapped::Denied, 0).unwrap_err();
        assert_eq!(denied, "access denied after 0 bytes: the pages are mapped, but not for this access");
    }
}
