//! Mappings that are replaced, protected and unmapped while registered.
//!
//! # Safety
//! [`Pages`] owns a range of addresses. Its bytes are never borrowed: they are read and written one volatile access at a time, so
//! that whatever a NIC writes to them is fine.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd as _, OwnedFd};

use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect,
    mremap_fixed, munmap,
};
use uct_conformance::nic::{DmaError, Mr, Nic, PendingIn, RegisterError};

pub(crate) const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// Bytes a test may pin that needs few: with all that run beside it, within the 8 MiB a user usually may.
pub(crate) const FEW: usize = 4 << 20;

/// Bytes of a page.
pub(crate) fn page() -> usize {
    rustix::param::page_size()
}

/// A mapping, or a hole where one was.
#[derive(Debug)]
pub(crate) struct Pages {
    addr: usize,
    len: usize,
}

impl Pages {
    /// `n` pages of anonymous memory.
    pub(crate) fn new(n: usize) -> Self {
        Self::anonymous(n * page(), READ_WRITE, MapFlags::PRIVATE).unwrap()
    }

    pub(crate) fn anonymous(len: usize, prot: ProtFlags, flags: MapFlags) -> Result<Self, Errno> {
        // SAFETY: a new mapping, anywhere.
        let addr = unsafe { mmap_anonymous(std::ptr::null_mut(), len, prot, flags) }?;
        Ok(Self { addr: addr.expose_provenance(), len })
    }

    pub(crate) fn of_file(fd: impl AsFd, len: usize, prot: ProtFlags, flags: MapFlags) -> Self {
        // SAFETY: a new mapping, anywhere.
        let addr = unsafe { mmap(std::ptr::null_mut(), len, prot, flags, fd, 0) }.unwrap();
        Self { addr: addr.expose_provenance(), len }
    }

    pub(crate) fn addr(&self) -> usize {
        self.addr
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset + len <= self.len, "within the range");
        std::ptr::with_exposed_provenance_mut(self.addr + offset)
    }

    fn start(&self) -> *mut c_void {
        self.at(0, 0).cast()
    }

    pub(crate) fn put(&self, offset: usize, bytes: &[u8]) {
        for (at, byte) in (offset..).zip(bytes) {
            // SAFETY: within the range, of which nothing is borrowed.
            unsafe { self.at(at, 1).write_volatile(*byte) };
        }
    }

    pub(crate) fn get(&self, offset: usize, len: usize) -> Vec<u8> {
        // SAFETY: within the range; whatever bytes are there are good.
        (offset..offset + len).map(|at| unsafe { self.at(at, 1).read_volatile() }).collect()
    }

    pub(crate) fn put_u64(&self, offset: usize, value: u64) {
        self.put(offset, &value.to_ne_bytes());
    }

    pub(crate) fn get_u64(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.get(offset, 8).try_into().unwrap())
    }

    /// Registers all of it.
    pub(crate) fn register(&self, nic: &Nic) -> Result<Mr, RegisterError> {
        self.register_part(nic, 0, self.len)
    }

    pub(crate) fn register_part(&self, nic: &Nic, offset: usize, len: usize) -> Result<Mr, RegisterError> {
        let addr = self.at(offset, len).addr();
        // SAFETY: own memory, whose bytes nobody relies on being unread.
        unsafe { nic.register(addr, len) }
    }

    /// Writes through a registration of this range.
    pub(crate) fn dma_in(&self, nic: &Nic, mr: &Mr, offset: usize, bytes: &[u8]) -> Result<(), DmaError> {
        // SAFETY: own memory, never borrowed.
        unsafe { nic.dma_in(mr, self.addr.wrapping_add(offset), bytes) }
    }

    pub(crate) fn dma_in_u64(&self, nic: &Nic, mr: &Mr, offset: usize, value: u64) -> Result<(), DmaError> {
        // SAFETY: own memory, never borrowed.
        unsafe { nic.dma_in_u64(mr, self.addr.wrapping_add(offset), value) }
    }

    pub(crate) fn start_in<'nic>(
        &self,
        nic: &'nic Nic,
        mr: &Mr,
        offset: usize,
        len: usize,
    ) -> Result<PendingIn<'nic>, DmaError> {
        // SAFETY: own memory, never borrowed.
        unsafe { nic.start_in(mr, self.addr.wrapping_add(offset), len) }
    }

    /// Puts new, zeroed memory at the address, in one step.
    pub(crate) fn replace(&self) {
        self.replace_part(0, self.len);
    }

    /// Unmaps, then maps new memory there. Only in tests that run alone: else another thread could get the address in between.
    pub(crate) fn unmap_and_map(&self) {
        // SAFETY: exactly the own range, of which nothing is borrowed.
        unsafe { munmap(self.start(), self.len) }.unwrap();
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: replaces nothing.
        let put = unsafe { mmap_anonymous(self.start(), self.len, READ_WRITE, flags) };
        assert_eq!(put.unwrap().addr(), self.addr);
    }

    /// As [`Self::replace`], for a part.
    pub(crate) fn replace_part(&self, offset: usize, len: usize) {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: replaces a part of the own range, of which nothing is borrowed.
        let put = unsafe { mmap_anonymous(self.at(offset, len).cast(), len, READ_WRITE, flags) };
        assert_eq!(put.unwrap().addr(), self.addr + offset);
    }

    /// Unmaps a part for good. Only in tests that run alone, as [`Self::unmap_and_map`].
    pub(crate) fn unmap_part(&self, offset: usize, len: usize) {
        // SAFETY: a part of the own range, of which nothing is borrowed.
        unsafe { munmap(self.at(offset, len).cast(), len) }.unwrap();
    }

    pub(crate) fn advise(&self, advice: Advice) -> Result<(), Errno> {
        // SAFETY: exactly the own range, of which nothing is borrowed.
        unsafe { madvise(self.start(), self.len, advice) }
    }

    pub(crate) fn protect(&self, offset: usize, len: usize, prot: MprotectFlags) {
        // SAFETY: within the own range, of which nothing is borrowed.
        unsafe { mprotect(self.at(offset, len).cast(), len, prot) }.unwrap();
    }

    /// Moves the pages to `target`, whose own are gone then; here is a hole, into which zeroed memory is put.
    pub(crate) fn move_to(&self, target: &Self) {
        assert_eq!(self.len, target.len);
        // SAFETY: both are own ranges, of which nothing is borrowed.
        let moved =
            unsafe { mremap_fixed(self.start(), self.len, self.len, MremapFlags::MAYMOVE, target.start()) };
        assert_eq!(moved.unwrap().addr(), target.addr);
        self.replace();
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: exactly the own range, of which nothing is borrowed.
        let _ = unsafe { munmap(self.start(), self.len) };
    }
}

/// Registers a range that is to be refused.
pub(crate) fn register_foreign(nic: &Nic, addr: usize, len: usize) -> Result<Mr, RegisterError> {
    // SAFETY: refused. Where it is not, the test fails, and the registration is used by nobody.
    unsafe { nic.register(addr, len) }
}

/// A memfd only this process can see; `None` where the kernel has none.
pub(crate) fn secret_memfd() -> Option<OwnedFd> {
    // Source: memfd_secret(2).
    // SAFETY: takes no pointer.
    let fd = unsafe { libc::syscall(libc::SYS_memfd_secret, libc::O_CLOEXEC) };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
    // SAFETY: a new descriptor, which nobody else has.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Frees a page of a file.
pub(crate) fn punch_hole(fd: BorrowedFd<'_>, offset: usize, len: usize) -> io::Result<()> {
    let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    Ok(rustix::fs::fallocate(fd, flags, offset as u64, len as u64)?)
}

/// Runs `f` in a child of a fork and returns its answer. In roles only: they have one thread that does anything.
pub(crate) fn in_a_child(f: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs `f` and ends without running anything of its parent's; no other thread holds locks it needs.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let code = i32::from(!std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).unwrap_or(false));
        // SAFETY: ends this process.
        unsafe { libc::_exit(code) };
    }
    let pid = rustix::process::Pid::from_raw(pid).expect("fork");
    let ended = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()).unwrap();
    ended.unwrap().1.exit_status() == Some(0)
}

/// A figure of `/proc/self/status`, in bytes.
pub(crate) fn status(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}
