//! Memory of a process by its addresses: `process_vm_readv(2)` and `process_vm_writev(2)`.
//!
//! The kernel checks the other process's addresses, page by page, and answers EFAULT; it moves whole pages before the one that
//! it cannot reach, and tells how many bytes that were.
//!
//! # Safety
//! The local side of each call is a slice that is borrowed for the call, exclusively where the kernel writes to it. The remote side
//! is another process's memory, or this one's: [`write()`] has a contract for that case.

#![allow(unsafe_code)]

use std::io::{BufRead, BufReader};
use std::ops::Range;

use libc::{c_ulong, iovec};
use rustix::io::Errno;
use rustix::process::Pid;

/// Bytes of a nonce.
pub const NONCE_LEN: usize = 8;

fn answer(moved: isize) -> Result<usize, Errno> {
    usize::try_from(moved)
        .map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

// An address of another process is cast to one of this.
#[cfg(not(target_pointer_width = "64"))]
compile_error!("rucx runs on 64-bit systems");

#[allow(clippy::cast_possible_truncation)] // an address is a usize
fn remote(address: u64, len: usize) -> iovec {
    iovec { iov_base: std::ptr::without_provenance_mut(address as usize), iov_len: len }
}

/// Copies from `from` in process `pid` on into `into`; answers how many bytes, which are fewer when a page cannot be reached.
///
/// # Errors
/// EFAULT: the first page cannot be reached. EPERM: no ptrace rights over the process, or the call itself is not allowed. ESRCH: it
/// has ended.
pub fn read(pid: Pid, from: u64, into: &mut [u8]) -> Result<usize, Errno> {
    let local = iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = remote(from, into.len());
    let pid = pid.as_raw_nonzero().get();
    // SAFETY: one iovec each; the local one names `into`, which is borrowed exclusively for the call.
    answer(unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) })
}

/// As [`read`], and in the same call, so from the same address space, [`NONCE_LEN`] bytes at `nonce_at`, which come first. Answers
/// how many bytes came behind them.
///
/// # Errors
/// As [`read`]; EFAULT also when the nonce cannot be read, and `None` in the place of a number when it came in part.
pub fn read_with_nonce(
    pid: Pid,
    (nonce_at, nonce): (u64, &mut [u8; NONCE_LEN]),
    from: u64,
    into: &mut [u8],
) -> Result<Option<usize>, Errno> {
    let local = [
        iovec { iov_base: nonce.as_mut_ptr().cast(), iov_len: NONCE_LEN },
        iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() },
    ];
    let remote = [remote(nonce_at, NONCE_LEN), remote(from, into.len())];
    let pid = pid.as_raw_nonzero().get();
    // SAFETY: two iovecs each; the local ones name `nonce` and `into`, which are borrowed exclusively for the call.
    let moved = answer(unsafe {
        libc::process_vm_readv(pid, local.as_ptr(), 2 as c_ulong, remote.as_ptr(), 2 as c_ulong, 0)
    })?;
    Ok(moved.checked_sub(NONCE_LEN))
}

/// Copies `bytes` to `to` in process `pid`; answers how many bytes, as [`read`].
///
/// # Errors
/// As [`read`].
///
/// # Safety
/// Where `pid` is this process, the range must be memory that may be written at any time: no Rust reference to any of its bytes
/// may be used meanwhile.
pub unsafe fn write(pid: Pid, to: u64, bytes: &[u8]) -> Result<usize, Errno> {
    let local = iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let remote = remote(to, bytes.len());
    let pid = pid.as_raw_nonzero().get();
    // SAFETY: one iovec each; the local one names `bytes`, which the kernel only reads; the caller promises that the remote one may
    // be written.
    answer(unsafe { libc::process_vm_writev(pid, &raw const local, 1, &raw const remote, 1, 0) })
}

/// Whether this process may use the calls at all: tried on itself, where no other rights are needed.
///
/// # Errors
/// ENOSYS: a kernel without CONFIG_CROSS_MEMORY_ATTACH. EPERM and others: a seccomp filter.
pub fn allowed_here() -> Result<(), Errno> {
    let (source, mut seen) = ([1_u8], [0_u8]);
    let me = rustix::thread::gettid(); // any thread will do, and the first one may have ended
    read(me, source.as_ptr().addr() as u64, &mut seen)?;
    let (target, bytes) = ([0_u8; 0], [0_u8; 0]);
    // SAFETY: no bytes are written.
    unsafe { write(me, target.as_ptr().addr() as u64, &bytes) }.map(|_| ())
}

/// What is mapped at an address (`proc_pid_maps(5)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapped {
    /// Nothing.
    No,
    /// Pages that can be read, or written, as asked.
    Allowed,
    /// Pages that cannot.
    Denied,
    /// That cannot be told.
    Unknown,
}

/// What is mapped at `address` in the process with this directory in `/proc`.
#[must_use]
pub fn mapped_at(directory: &str, address: u64, for_writing: bool) -> Mapped {
    let Ok(file) = std::fs::File::open(format!("{directory}/maps")) else { return Mapped::Unknown };
    let mut lines = BufReader::new(file);
    let mut line = Vec::new();
    let mut any = false;
    loop {
        line.clear();
        match lines.read_until(b'\n', &mut line) {
            Ok(1..) => {}
            Ok(0) if any => return Mapped::No,
            _ => return Mapped::Unknown, // nothing at all: it has ended
        }
        any = true;
        let Some((range, permissions)) = parse(&line) else { continue };
        if range.start > address {
            return Mapped::No; // they come in order
        }
        if range.contains(&address) {
            let allowed = permissions.get(usize::from(for_writing)).is_some_and(|byte| *byte != b'-');
            return if allowed { Mapped::Allowed } else { Mapped::Denied };
        }
    }
}

/// Range and permissions of a line of `/proc/PID/maps`, whose path may hold any bytes.
fn parse(line: &[u8]) -> Option<(Range<u64>, &[u8])> {
    let mut words = line.split(|byte| *byte == b' ');
    let (from, to) = std::str::from_utf8(words.next()?).ok()?.split_once('-')?;
    let bound = |text| u64::from_str_radix(text, 16).ok();
    Some((bound(from)?..bound(to)?, words.next()?))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use ucs::mem::{Access, Mapping, Memfd};

    use super::*;

    #[test]
    fn the_calls_work_here() {
        assert_eq!(allowed_here(), Ok(()));
    }

    #[test]
    fn reads_with_a_nonce_that_comes_first() {
        let (nonce, bytes) = (*b"8 bytes.", *b"content");
        let (mut seen, mut into) = ([0; NONCE_LEN], [0; 7]);
        let at = |bytes: &[u8]| bytes.as_ptr().addr() as u64;
        let pid = rustix::process::getpid();
        let moved = read_with_nonce(pid, (at(&nonce), &mut seen), at(&bytes), &mut into);
        assert_eq!((moved, seen, into), (Ok(Some(7)), nonce, bytes));
        assert_eq!(read_with_nonce(pid, (8, &mut seen), at(&bytes), &mut into), Err(Errno::FAULT));
        assert_eq!(read_with_nonce(pid, (at(&nonce), &mut seen), 8, &mut into), Ok(Some(0)));
    }

    #[test]
    fn tells_what_is_mapped() {
        let (file, map) = Memfd::create("test", 4096, false).unwrap();
        let read_only = Mapping::of_file(file.as_fd(), 4096, Access::Read).unwrap();
        let at = |map: &Mapping| map.bytes().as_ptr().addr() as u64;
        let here = |address, write| mapped_at("/proc/self", address, write);
        assert_eq!((here(at(&map), false), here(at(&map), true)), (Mapped::Allowed, Mapped::Allowed));
        assert_eq!(
            (here(at(&read_only), false), here(at(&read_only), true)),
            (Mapped::Allowed, Mapped::Denied)
        );
        assert_eq!(here(8, false), Mapped::No);
        assert_eq!(mapped_at("/proc/0", 8, false), Mapped::Unknown);
    }
}
