//! userfaultfd by hand: [userfaultfd(2)](https://man7.org/linux/man-pages/man2/userfaultfd.2.html) and
//! [ioctl_userfaultfd(2)](https://man7.org/linux/man-pages/man2/ioctl_userfaultfd.2.html). Numbers and layouts are those of
//! `include/uapi/linux/userfaultfd.h`.
//!
//! # Safety
//! Each ioctl is given a structure of exactly the size its number says, which the kernel reads and writes during the call only. None
//! of those used here changes a byte that somebody may read: `UFFDIO_ZEROPAGE` puts zeros only where no page is, which is what a
//! reader would have found there; `UFFDIO_WRITEPROTECT` only ever takes a protection away that nobody has put there.

#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, Updater, ioctl, opcode};

use super::events::Message;
use crate::mem::page::PageRange;
use crate::monitor::fds;

/// `UFFD_API`.
const API: u64 = 0xAA;
/// `UFFDIO`, the type of the ioctls; also `USERFAULTFD_IOC`.
const TYPE: u8 = 0xAA;
/// `_UFFDIO_ZEROPAGE`, also a bit of what `UFFDIO_REGISTER` answers.
const NR_ZEROPAGE: u8 = 0x04;

const UFFDIO_API: Opcode = opcode::read_write::<Api>(TYPE, 0x3F);
const UFFDIO_REGISTER: Opcode = opcode::read_write::<Register>(TYPE, 0x00);
const UFFDIO_ZEROPAGE: Opcode = opcode::read_write::<ZeroPage>(TYPE, NR_ZEROPAGE);
const UFFDIO_WRITEPROTECT: Opcode = opcode::read_write::<WriteProtect>(TYPE, 0x06);
/// `USERFAULTFD_IOC_NEW`, of `/dev/userfaultfd`.
const IOC_NEW: Opcode = opcode::none(TYPE, 0x00);

/// `UFFD_USER_MODE_ONLY`: no faults of the kernel's are handled, so no privilege is needed (Linux 5.11).
const USER_MODE_ONLY: libc::c_int = 1;
/// `UFFDIO_REGISTER_MODE_WP`.
const REGISTER_MODE_WP: u64 = 1 << 1;
/// `UFFDIO_ZEROPAGE_MODE_DONTWAKE`.
const ZEROPAGE_DONTWAKE: u64 = 1 << 0;

bitflags::bitflags! {
    /// `UFFD_FEATURE_*`: those used here.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct Features: u64 {
        /// Write protection of anonymous memory (Linux 5.7).
        const PAGEFAULT_FLAG_WP = 1 << 0;
        /// Tells of mremap.
        const EVENT_REMAP = 1 << 2;
        /// Tells of madvise's ways to drop pages.
        const EVENT_REMOVE = 1 << 3;
        /// Tells of munmap and all that unmaps.
        const EVENT_UNMAP = 1 << 6;
        /// Write protection of shared and huge pages (Linux 5.19).
        const WP_HUGETLBFS_SHMEM = 1 << 12;
        /// Write protection that no message tells of, of all kinds of memory (Linux 6.7).
        const WP_ASYNC = 1 << 15;

        /// What is always needed.
        const NEEDED = 1 << 0 | 1 << 2 | 1 << 3 | 1 << 6;
    }
}

/// `struct uffdio_api`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_range`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Range {
    start: u64,
    len: u64,
}

impl From<PageRange> for Range {
    fn from(range: PageRange) -> Self {
        Self { start: range.start() as u64, len: range.len() as u64 }
    }
}

/// `struct uffdio_register`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Register {
    range: Range,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_zeropage`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ZeroPage {
    range: Range,
    mode: u64,
    zeropage: i64,
}

/// `struct uffdio_writeprotect`.
#[repr(C)]
#[derive(Clone, Copy)]
struct WriteProtect {
    range: Range,
    mode: u64,
}

const _: () = assert!(size_of::<Api>() == 24 && size_of::<Register>() == 32);
const _: () = assert!(size_of::<ZeroPage>() == 32 && size_of::<WriteProtect>() == 24);

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Which descriptor `answer`, of a call that makes one, stands for.
fn adopt(answer: libc::c_long) -> Result<OwnedFd, Errno> {
    let fd = libc::c_int::try_from(answer).map_err(|_| Errno::BADF)?;
    if fd < 0 {
        return Err(last_error());
    }
    // SAFETY: the call has made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A new userfaultfd that does not block, by the call, or by `/dev/userfaultfd` (Linux 6.1) where the call is denied.
pub(super) fn open() -> Result<OwnedFd, Errno> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: makes a descriptor.
    let unprivileged = adopt(unsafe { libc::syscall(libc::SYS_userfaultfd, flags | USER_MODE_ONLY) });
    let opened = match unprivileged {
        // A kernel that does not know USER_MODE_ONLY.
        // SAFETY: as above.
        Err(Errno::INVAL) => adopt(unsafe { libc::syscall(libc::SYS_userfaultfd, flags) }),
        opened => opened,
    };
    let Err(error) = opened else { return opened };
    let device = rustix::fs::open(c"/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let device = device.map_err(|_| error)?;
    // SAFETY: an ioctl whose argument is a number, the flags; it makes a descriptor.
    adopt(unsafe { libc::ioctl(device.as_raw_fd(), u64::from(IOC_NEW) as _, flags) }.into())
        .map_err(|_| error)
}

/// Enables those features; EINVAL when the kernel has not all of them.
pub(super) fn enable(fd: BorrowedFd<'_>, features: Features) -> Result<(), Errno> {
    let mut api = Api { api: API, features: features.bits(), ioctls: 0 };
    // SAFETY: the number is that of a structure of this layout.
    let request = unsafe { Updater::<'_, UFFDIO_API, Api>::new(&mut api) };
    // SAFETY: as the module says.
    unsafe { ioctl(fd, request) }
}

/// What `UFFDIO_REGISTER` says of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::monitor) struct Registered {
    /// Some of it is of huge pages of hugetlbfs: those have no `UFFDIO_ZEROPAGE`.
    pub(in crate::monitor) hugetlb: bool,
}

/// `UFFDIO_REGISTER` for write protection, which is never armed.
pub(super) fn register(fd: BorrowedFd<'_>, range: PageRange) -> Result<Registered, Errno> {
    let mut register = Register { range: range.into(), mode: REGISTER_MODE_WP, ioctls: 0 };
    // SAFETY: the number is that of a structure of this layout.
    let request = unsafe { Updater::<'_, UFFDIO_REGISTER, Register>::new(&mut register) };
    // SAFETY: as the module says.
    unsafe { ioctl(fd, request) }?;
    Ok(Registered { hugetlb: register.ioctls & (1 << NR_ZEROPAGE) == 0 })
}

/// What is found where zeros were to be put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::monitor) enum Found {
    /// Registered memory, of one mapping, with a page at its beginning.
    Live,
    /// The memory is being changed: an event was not read, or its thread not woken.
    Pending,
    /// No page at its beginning.
    Missing,
    /// No registered memory, or not all of one mapping, or of a kind that this ioctl is not for.
    Other(Errno),
}

/// `UFFDIO_ZEROPAGE` over the whole range: it looks at the mapping and the first page only, as long as there is one.
pub(super) fn zero_page(fd: BorrowedFd<'_>, range: PageRange) -> Found {
    let mut zero = ZeroPage { range: range.into(), mode: ZEROPAGE_DONTWAKE, zeropage: 0 };
    // SAFETY: the number is that of a structure of this layout.
    let request = unsafe { Updater::<'_, UFFDIO_ZEROPAGE, ZeroPage>::new(&mut zero) };
    // SAFETY: as the module says.
    match unsafe { ioctl(fd, request) } {
        Err(Errno::EXIST) => Found::Live,
        // EAGAIN also tells that it stopped after some pages: then their bytes are in the last field.
        Err(Errno::AGAIN) if zero.zeropage <= 0 => Found::Pending,
        Ok(()) | Err(Errno::AGAIN) => Found::Missing,
        Err(errno) => Found::Other(errno),
    }
}

/// `UFFDIO_WRITEPROTECT` that takes the protection away, and wakes who waits for it. ENOENT: that is not registered memory. EAGAIN:
/// as [`Found::Pending`].
pub(super) fn unprotect(fd: BorrowedFd<'_>, range: PageRange) -> Result<(), Errno> {
    let wp = WriteProtect { range: range.into(), mode: 0 };
    // SAFETY: the number is that of a structure of this layout, which the kernel only reads.
    let request = unsafe { Setter::<UFFDIO_WRITEPROTECT, WriteProtect>::new(wp) };
    // SAFETY: as the module says.
    unsafe { ioctl(fd, request) }
}

/// Reads events, as many as there are and fit; answers how many. EAGAIN: there are none.
pub(super) fn read(fd: BorrowedFd<'_>, into: &mut [Message]) -> Result<usize, Errno> {
    let len = size_of_val(into);
    // SAFETY: the buffer is borrowed exclusively and has `len` bytes, all patterns of which are messages.
    let read = unsafe { libc::read(fd.as_raw_fd(), into.as_mut_ptr().cast(), len) };
    let bytes = usize::try_from(read).map_err(|_| last_error())?;
    if bytes == 0 || bytes % size_of::<Message>() != 0 {
        return Err(Errno::BADMSG); // no userfaultfd
    }
    Ok(bytes / size_of::<Message>())
}

/// Lets go of what is open as `fd`, which is open as `/dev/null` from now on: nobody else gets the number while others may still use
/// it. Releases the threads that wait for their events to be read. What is no userfaultfd any more is somebody else's, and is left
/// alone.
pub(super) fn disconnect(fd: BorrowedFd<'_>) {
    if !fds::is_userfaultfd(fd) {
        return;
    }
    let null = rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    match null {
        Ok(null) => {
            // SAFETY: puts another file behind a descriptor that stays open; who uses it gets errors.
            unsafe { libc::dup3(null.as_fd().as_raw_fd(), fd.as_raw_fd(), libc::O_CLOEXEC) };
        }
        Err(_) => {
            // SAFETY: the owner of the descriptor never closes it, and uses it only for ioctls that mean nothing to other files.
            unsafe { libc::close(fd.as_raw_fd()) };
        }
    }
}
