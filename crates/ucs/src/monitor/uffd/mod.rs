//! userfaultfd: the kernel tells of changes of the memory that is registered with it.
//!
//! The mode is write protection that is never armed, so no page fault is added. What it is used for is the events, and that a
//! registered mapping can be told from any that replaced it.

pub(super) mod events;
pub(super) mod handler;
mod sys;
pub(super) mod thread;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use self::events::Message;
use self::sys::Features;
pub(super) use self::sys::{Found, Registered};
use super::Why;
use crate::mem::page::PageRange;

/// A userfaultfd with the features that are needed.
#[derive(Debug)]
pub(super) struct Uffd {
    fd: OwnedFd,
    wp_async: bool,
}

impl Uffd {
    /// Opens one, with asynchronous write protection where the kernel has it and `wp_async` allows.
    pub(super) fn open(wp_async: bool) -> Result<Self, Why> {
        let with_shared = Features::NEEDED | Features::WP_HUGETLBFS_SHMEM;
        let wanted = [with_shared | Features::WP_ASYNC, with_shared, Features::NEEDED];
        for features in wanted {
            let is_async = features.contains(Features::WP_ASYNC);
            if is_async && !wp_async {
                continue;
            }
            // One that refused features is of no use any more on all kernels.
            let fd = sys::open().map_err(|errno| match errno {
                Errno::NOSYS => Why::NoUserfaultfd,
                Errno::PERM | Errno::ACCESS => Why::Denied,
                Errno::MFILE | Errno::NFILE => Why::Descriptors,
                _ => Why::Failed,
            })?;
            if sys::enable(fd.as_fd(), features).is_ok() {
                return Ok(Self { fd, wp_async: is_async });
            }
        }
        Err(Why::OldKernel)
    }

    pub(super) fn wp_async(&self) -> bool {
        self.wp_async
    }

    /// Has events told of the mappings in `range`, from now on.
    pub(super) fn register(&self, range: PageRange) -> Result<Registered, Errno> {
        sys::register(self.fd.as_fd(), range)
    }

    /// Whether `range` is one registered mapping, by asking for zeros where no page is.
    pub(super) fn zero_page(&self, range: PageRange) -> Found {
        sys::zero_page(self.fd.as_fd(), range)
    }

    /// Whether `range`, one page, is registered, by taking away a protection that it does not have.
    pub(super) fn unprotect(&self, range: PageRange) -> Found {
        match sys::unprotect(self.fd.as_fd(), range) {
            Ok(()) => Found::Live,
            Err(Errno::AGAIN) => Found::Pending,
            Err(errno) => Found::Other(errno),
        }
    }

    /// Reads events that are there.
    fn read(&self, into: &mut [Message]) -> Result<usize, Errno> {
        sys::read(self.fd.as_fd(), into)
    }

    /// Is served no more: all threads that wait go on.
    pub(super) fn disconnect(&self) {
        sys::disconnect(self.fd.as_fd());
    }
}

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
