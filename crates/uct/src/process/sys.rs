//! The socket options that rustix does not have.
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
