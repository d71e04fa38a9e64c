//! The socket ioctl that rustix does not have.
//!
//! # Safety
//! The call gets a pointer to a local that lives through it, of the type the man page names.

#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};

/// Bytes that were sent and the peer has not received, as the kernel accounts for them (SIOCOUTQ, `unix(7)`; it has the number of
/// TIOCOUTQ, `ioctl_tty(2)`).
pub(super) fn unread_bytes(socket: BorrowedFd<'_>) -> Option<u32> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCOUTQ writes one int through the pointer.
    let answer = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if answer == 0 { u32::try_from(bytes).ok() } else { None }
}
