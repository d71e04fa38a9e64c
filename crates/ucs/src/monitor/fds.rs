//! What is behind a descriptor: an application may have closed ours, and opened others by the same number.
//!
//! Nothing is allocated: the handler asks, and a fork's child in which the allocator may be locked for ever.

use std::ffi::CStr;
use std::io::Write;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::{CWD, readlinkat_raw};

/// Whether it is a userfaultfd.
pub(super) fn is_userfaultfd(fd: BorrowedFd<'_>) -> bool {
    is(fd, b"anon_inode:[userfaultfd]", b"")
}

/// Whether it is the mappings of some process.
pub(super) fn is_maps(fd: BorrowedFd<'_>) -> bool {
    is(fd, b"/proc/", b"/maps")
}

/// Whether the descriptor's link in `/proc/self/fd` (`proc_pid_fd(5)`) begins and ends like that.
fn is(fd: BorrowedFd<'_>, begin: &[u8], end: &[u8]) -> bool {
    let mut path = [0; 32];
    let written = write!(&mut path[..], "/proc/self/fd/{}\0", fd.as_raw_fd());
    let (Ok(()), Ok(path)) = (written, CStr::from_bytes_until_nul(&path)) else { return false };
    let mut buffer = [0; 64];
    readlinkat_raw(CWD, path, &mut buffer[..])
        .is_ok_and(|len| buffer.get(..len).is_some_and(|link| link.starts_with(begin) && link.ends_with(end)))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn tells_them_apart() {
        let maps = std::fs::File::open("/proc/self/maps").unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(is_maps(maps.as_fd()) && !is_userfaultfd(maps.as_fd()));
        assert!(!is_maps(null.as_fd()) && !is_userfaultfd(null.as_fd()));
    }
}
