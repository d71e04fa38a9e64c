//! The socket option and the signal mask that rustix does not have.
//!
//! # Safety
//! Each call gets pointers to locals that live through it, of the types the man pages name.

#![allow(unsafe_code)]

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
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    // SAFETY: the kernel has just made this descriptor for us (close-on-exec, as all pidfds).
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Keeps all signals from this thread: the application's handlers run on its own threads (`pthread_sigmask(3)`).
pub(super) fn block_signals() {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises the set it is given.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: the set was initialised just now; the old one is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut()) };
}
