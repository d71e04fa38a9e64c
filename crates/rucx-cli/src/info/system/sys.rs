//! The system calls whose wrappers are unsafe, tried on this very process.
//!
//! # Safety
//! `process_vm_readv(2)` and `process_vm_writev(2)` get vectors of one element each, which name two arrays on this function's
//! stack; both live through the call, and no reference to the one that is written is used during it. `userfaultfd(2)` answers a
//! descriptor that watches nothing until a range is registered; it is closed at once.

#![allow(unsafe_code)]

use rustix::io::Errno;
use rustix::mm::{UserfaultfdFlags, userfaultfd};

/// Bytes that are copied.
const LEN: usize = 8;
const PATTERN: [u8; LEN] = *b"rucxinfo";

/// `process_vm_readv(2)` of this process's own memory.
pub(super) fn process_vm_readv() -> Result<(), Errno> {
    let mut from = PATTERN;
    let mut to = [0; LEN];
    let (local, remote) = (iovec(&mut to), iovec(&mut from));
    // SAFETY: both vectors have one element, of an array of LEN bytes that lives through the call.
    let copied = unsafe { libc::process_vm_readv(pid(), &raw const local, 1, &raw const remote, 1, 0) };
    outcome(copied, &to)
}

/// `process_vm_writev(2)` to this process's own memory.
pub(super) fn process_vm_writev() -> Result<(), Errno> {
    let mut from = PATTERN;
    let mut to = [0; LEN];
    let (local, remote) = (iovec(&mut from), iovec(&mut to));
    // SAFETY: both vectors have one element, of an array of LEN bytes that lives through the call.
    let copied = unsafe { libc::process_vm_writev(pid(), &raw const local, 1, &raw const remote, 1, 0) };
    outcome(copied, &to)
}

/// `userfaultfd(2)`: for all faults, or for those of user mode only, which needs no privilege (Linux 5.11).
pub(super) fn userfault(user_mode_only: bool) -> Result<(), Errno> {
    /// `UFFD_USER_MODE_ONLY` of `linux/userfaultfd.h`.
    const USER_MODE_ONLY: u32 = 1;
    let only = if user_mode_only { USER_MODE_ONLY } else { 0 };
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::from_bits_retain(only);
    // SAFETY: no range is registered with the descriptor, which is closed here.
    unsafe { userfaultfd(flags) }.map(drop)
}

fn pid() -> libc::pid_t {
    rustix::process::getpid().as_raw_nonzero().get()
}

fn iovec(bytes: &mut [u8; LEN]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: LEN }
}

fn outcome(copied: libc::ssize_t, to: &[u8; LEN]) -> Result<(), Errno> {
    if copied < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    if *to == PATTERN { Ok(()) } else { Err(Errno::IO) }
}
