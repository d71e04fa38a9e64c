//! Address ranges of the user's, named and not owned.
//!
//! # Safety
//! The owner may unmap a raw range at any time, so its bytes are only touched through system calls that answer EFAULT:
//! `process_vm_readv(2)` and `process_vm_writev(2)` on this very process.

#![allow(unsafe_code)]

use std::ptr::NonNull;

use libc::{c_ulong, iovec};

use super::{AccessError, StaleReason};

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
    /// whatever is mapped in the range. So no Rust reference to any of these bytes may be used meanwhile, and the bytes must
    /// not belong to something that breaks when they change. Unmapping the range is allowed at any time.
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
    let local = iovec { iov_base: dst.as_mut_ptr().cast(), iov_len: dst.len() };
    let remote = iovec { iov_base: src.as_ptr().cast(), iov_len: dst.len() };
    transfer(local, remote, |pid, local, remote| {
        // SAFETY: one iovec each; the local one names `dst`, which is borrowed mutably for the call; the kernel checks the
        // remote one.
        unsafe { libc::process_vm_readv(pid, local, 1 as c_ulong, remote, 1 as c_ulong, 0) }
    })
}

/// Copies `src` into a raw range.
pub(super) fn write(dst: NonNull<u8>, src: &[u8]) -> Result<(), AccessError> {
    let local = iovec { iov_base: src.as_ptr().cast_mut().cast(), iov_len: src.len() };
    let remote = iovec { iov_base: dst.as_ptr().cast(), iov_len: src.len() };
    transfer(local, remote, |pid, local, remote| {
        // SAFETY: one iovec each; the local one names `src`, which is only read; the kernel checks the remote one, and
        // RawMem::new's caller promised that the bytes there may be written.
        unsafe { libc::process_vm_writev(pid, local, 1 as c_ulong, remote, 1 as c_ulong, 0) }
    })
}

/// Repeats `call` until all is moved: it may move less than asked for (`process_vm_readv(2)`, "Return value").
fn transfer(
    mut local: iovec,
    mut remote: iovec,
    call: impl Fn(libc::pid_t, *const iovec, *const iovec) -> isize,
) -> Result<(), AccessError> {
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    let mut done = 0;
    while local.iov_len > 0 {
        match usize::try_from(call(pid, &raw const local, &raw const remote)) {
            Ok(0) => return Err(AccessError::Stale { done, why: StaleReason::Unmapped }),
            Ok(moved) => {
                for side in [&mut local, &mut remote] {
                    side.iov_base = side.iov_base.wrapping_byte_add(moved);
                    side.iov_len -= moved;
                }
                done += moved as u64;
            }
            Err(_) => return Err(failure(remote, done)),
        }
    }
    Ok(())
}

fn failure(at: iovec, done: u64) -> AccessError {
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EFAULT) if is_mapped(at.iov_base.addr()) => {
            AccessError::AccessDenied { done, why: "the pages are mapped, but not for this access" }
        }
        Some(libc::EFAULT) => AccessError::Stale { done, why: StaleReason::Unmapped },
        Some(libc::ENOMEM) => {
            AccessError::Unsupported { why: "the kernel had no memory for process_vm_readv/writev" }
        }
        _ => AccessError::Unsupported {
            why: "the kernel or a seccomp filter refuses process_vm_readv/writev, which raw memory needs",
        },
    }
}

/// Whether anything is mapped at `address` (`proc_pid_maps(5)`).
fn is_mapped(address: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().any(|line| {
        let range = line.split(' ').next().unwrap_or_default();
        let bound = |text| usize::from_str_radix(text, 16).ok();
        range.split_once('-').and_then(|(from, to)| Some((bound(from)?..bound(to)?).contains(&address)))
            == Some(true)
    })
}
