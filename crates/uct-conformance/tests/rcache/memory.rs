//! Memory that is unmapped, moved and mapped again.
//!
//! # Safety
//! [`Memory`] is addresses that nobody else has: what is mapped there is replaced only within them, and touched by volatile accesses,
//! never by references. They lie where the kernel puts no mapping of its own choice, so nobody gets them while they are unmapped.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_int, c_void};

pub(crate) const PAGE: usize = 4096;
pub(crate) const READ_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;
const ANONYMOUS: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// Addresses of this process.
#[derive(Debug)]
pub(crate) struct Memory {
    start: usize,
    len: usize,
}

fn pointer(address: usize) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address)
}

fn ok(what: &str, answer: c_int) {
    assert_eq!(answer, 0, "{what}: {}", io::Error::last_os_error());
}

impl Memory {
    /// Private memory that may be read and written, far from where the kernel puts mappings: what is unmapped here stays free.
    pub(crate) fn new(len: usize) -> Self {
        Self::aligned(len, PAGE)
    }

    /// As [`Memory::new`], at a multiple of `align`, of at most 2 MiB.
    pub(crate) fn aligned(len: usize, align: usize) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0x2000_0000_0000);
        const APART: usize = 2 << 20;
        assert!(align <= APART);
        let start = NEXT.fetch_add(len.next_multiple_of(APART) + APART, Ordering::Relaxed);
        let flags = ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: replaces no mapping.
        let at = unsafe { libc::mmap(pointer(start), len, READ_WRITE, flags, -1, 0) };
        assert_eq!(at, pointer(start), "mmap: {}", io::Error::last_os_error());
        Self { start, len }
    }

    /// As [`Memory::new`], where the kernel puts it: at the same addresses again, as soon as they are free.
    pub(crate) fn anywhere(len: usize) -> Self {
        // SAFETY: a null hint without MAP_FIXED replaces no mapping.
        let at = unsafe { libc::mmap(ptr::null_mut(), len, READ_WRITE, ANONYMOUS, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED, "mmap: {}", io::Error::last_os_error());
        Self { start: at.expose_provenance(), len }
    }

    /// Memory that others have mapped, as long as it is there.
    pub(crate) fn of_others(start: usize, len: usize) -> Self {
        Self { start, len }
    }

    pub(crate) fn address(&self, at: usize) -> usize {
        self.start + at
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn at(&self, at: usize, len: usize) -> *mut c_void {
        assert!(at + len <= self.len, "within the range");
        pointer(self.start + at)
    }

    pub(crate) fn write(&self, at: usize, value: u64) {
        // SAFETY: an aligned word within the range (module rule).
        unsafe { self.at(at, 8).cast::<u64>().write_volatile(value) };
    }

    pub(crate) fn read(&self, at: usize) -> u64 {
        // SAFETY: an aligned word within the range (module rule).
        unsafe { self.at(at, 8).cast::<u64>().read_volatile() }
    }

    pub(crate) fn unmap(&self, at: usize, len: usize) {
        // SAFETY: within the range (module rule).
        ok("munmap", unsafe { libc::munmap(self.at(at, len), len) });
    }

    /// Unmaps, and maps fresh memory at the same address.
    pub(crate) fn unmap_and_map(&self, at: usize, len: usize) {
        self.unmap(at, len);
        self.map_over(at, len);
    }

    /// As [`Memory::unmap_and_map`], past the C library.
    pub(crate) fn unmap_and_map_raw(&self, at: usize, len: usize) {
        let address = self.at(at, len);
        // SAFETY: within the range (module rule).
        assert_eq!(unsafe { libc::syscall(libc::SYS_munmap, address, len) }, 0);
        let flags = ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: within the range (module rule).
        let mapped = unsafe { libc::syscall(libc::SYS_mmap, address, len, READ_WRITE, flags, -1, 0) };
        assert_ne!(mapped, -1, "mmap: {}", io::Error::last_os_error());
    }

    /// Maps fresh memory over what is there.
    pub(crate) fn map_over(&self, at: usize, len: usize) {
        self.try_map(at, len, READ_WRITE, ANONYMOUS, -1).unwrap();
    }

    /// Maps a file over what is there, from its beginning.
    pub(crate) fn map_file(&self, at: usize, len: usize, access: c_int, sharing: c_int, file: RawFd) {
        self.try_map(at, len, access, sharing, file).unwrap();
    }

    pub(crate) fn try_map(
        &self,
        at: usize,
        len: usize,
        access: c_int,
        flags: c_int,
        file: RawFd,
    ) -> io::Result<()> {
        let address = self.at(at, len);
        // SAFETY: within the range (module rule).
        let mapped = unsafe { libc::mmap(address, len, access, flags | libc::MAP_FIXED, file, 0) };
        if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Drops the pages; new ones come with the next access.
    pub(crate) fn drop_pages(&self, at: usize, len: usize) {
        self.advise(at, len, libc::MADV_DONTNEED).unwrap();
    }

    pub(crate) fn advise(&self, at: usize, len: usize, advice: c_int) -> io::Result<()> {
        // SAFETY: within the range (module rule).
        let answer = unsafe { libc::madvise(self.at(at, len), len, advice) };
        if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// As [`Memory::advise`], as one process advises another: here itself.
    pub(crate) fn advise_by_pidfd(&self, at: usize, len: usize, advice: c_int) -> io::Result<()> {
        use std::os::fd::{AsFd as _, AsRawFd as _};
        let me = rustix::process::getpid();
        let pidfd = rustix::process::pidfd_open(me, rustix::process::PidfdFlags::empty())?;
        let part = libc::iovec { iov_base: self.at(at, len), iov_len: len };
        let fd = pidfd.as_fd().as_raw_fd();
        // SAFETY: within the range (module rule); `part` outlives the call.
        let advised = unsafe { libc::syscall(libc::SYS_process_madvise, fd, &raw const part, 1, advice, 0) };
        if usize::try_from(advised).is_ok_and(|advised| advised == len) {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    pub(crate) fn protect(&self, at: usize, len: usize, access: c_int) {
        // SAFETY: within the range (module rule).
        ok("mprotect", unsafe { libc::mprotect(self.at(at, len), len, access) });
    }

    /// Makes the mapping at `at` longer or shorter, in place.
    pub(crate) fn resize(&self, at: usize, old: usize, new: usize) {
        let address = self.at(at, old.max(new));
        // SAFETY: within the range (module rule).
        let moved = unsafe { libc::mremap(address, old, new, 0) };
        assert_eq!(moved, address, "mremap: {}", io::Error::last_os_error());
    }

    /// Moves what is mapped at `at` onto the place `to` of `other`.
    pub(crate) fn move_to(&self, at: usize, len: usize, other: &Self, to: usize) {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let target = other.at(to, len);
        // SAFETY: from within one range to within another (module rule).
        let moved = unsafe { libc::mremap(self.at(at, len), len, len, flags, target) };
        assert_eq!(moved, target, "mremap: {}", io::Error::last_os_error());
    }

    /// Attaches a System V segment at `at`, also over what is there.
    pub(crate) fn attach(&self, at: usize, segment: &Segment, over: bool) {
        let flags = if over { libc::SHM_REMAP } else { 0 };
        // SAFETY: within the range (module rule).
        let attached = unsafe { libc::shmat(segment.0, self.at(at, Segment::LEN), flags) };
        assert_eq!(attached, self.at(at, 0), "shmat: {}", io::Error::last_os_error());
    }

    pub(crate) fn detach(&self, at: usize) {
        // SAFETY: within the range (module rule).
        ok("shmdt", unsafe { libc::shmdt(self.at(at, 0)) });
    }
}

/// A System V segment.
#[derive(Debug)]
pub(crate) struct Segment(c_int);

impl Segment {
    pub(crate) const LEN: usize = 4 * PAGE;

    /// A new one, that goes when it is attached nowhere any more.
    pub(crate) fn new() -> Option<Self> {
        // SAFETY: makes a segment, touches no memory.
        let id = unsafe { libc::shmget(libc::IPC_PRIVATE, Self::LEN, 0o600) };
        (id >= 0).then_some(Self(id))
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: removes a segment of ours; what is attached stays.
        unsafe { libc::shmctl(self.0, libc::IPC_RMID, ptr::null_mut()) };
    }
}
