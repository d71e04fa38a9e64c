//! The socket option and the signal mask that rustix does not have.
//!
//! # Safety
//! Each call gets pointers to locals that live through it, of the types the man pages name.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

/// `SO_PEERPIDFD` of `asm-generic/socket.h`, Linux 6.5 (`unix(7)`); libc has it for some targets only.
const SO_PEERPIDFD: libc::c_int = 77;

/// A pidfd of the process at the other end of a unix socket.
pub(super) fn peer_pidfd(socket: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let mut fd: libc::c_int = -1;
    let mut len: libc::socklen_t = 4;
    // SAFETY: fd and len are valid for the call, and len is the size of fd.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut len,
        )
    };
    if answer != 0 {
        return Err(last_error());
    }
    // SAFETY: the kernel has just made this descriptor for us (close-on-exec, as all pidfds).
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The pid of the process at the other end of a unix socket, as seen from here; 0 when it is not visible from this pid namespace
/// (`SO_PEERCRED`, `unix(7)`). rustix's type for it has no 0.
pub(super) fn peer_pid(socket: BorrowedFd<'_>) -> Result<i32, Errno> {
    let mut cred = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = libc::socklen_t::try_from(size_of::<libc::ucred>()).map_err(|_| Errno::INVAL)?;
    // SAFETY: cred and len are valid for the call, and len is the size of cred.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut cred).cast(),
            &raw mut len,
        )
    };
    if answer == 0 { Ok(cred.pid) } else { Err(last_error()) }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Blocks all signals in this thread (`pthread_sigmask(3)`); answers which were blocked before.
pub(super) fn block_signals() -> libc::sigset_t {
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
pub(super) fn restore_signals(before: &libc::sigset_t) {
    // SAFETY: the set is initialised; the old one is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
}
