//! Mappings of this process, unmapped when dropped.
//!
//! # Safety
//! A [`Mapping`] is the only owner of its address range: it is made by an mmap without MAP_FIXED, or by one in the place of a mapping that is
//! given up for it, and unmapped once, in its drop. All access goes through [`SharedBytes`], which never makes references to the bytes.

#![allow(unsafe_code)]

use std::mem;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, ProtFlags};

use super::error::MemError;
use super::shared::SharedBytes;
use crate::fork::{self, Generation};

/// What a mapping allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading only.
    Read,
    /// Reading and writing.
    ReadWrite,
}

impl From<Access> for ProtFlags {
    fn from(access: Access) -> Self {
        match access {
            Access::Read => Self::READ,
            Access::ReadWrite => Self::READ | Self::WRITE,
        }
    }
}

/// A mapping owned by this value. A fork's child does not have it (`MADV_DONTFORK`, `madvise(2)`).
#[derive(Debug)]
pub struct Mapping {
    bytes: SharedBytes,
    access: Access,
    generation: Generation,
}

impl Mapping {
    /// Maps the first `len` bytes (> 0) of a file, shared with everybody who maps it.
    ///
    /// Where the file shrinks while the mapping lives, an access raises SIGBUS (`mmap(2)`): files of others are mapped by
    /// [`super::Memfd::map_foreign`], which checks that they cannot.
    ///
    /// # Errors
    /// [`MemError`], naming the limit where it was one.
    pub fn of_file(fd: BorrowedFd<'_>, len: usize, access: Access) -> Result<Self, MemError> {
        // SAFETY: a null hint without MAP_FIXED replaces no mapping.
        let address = unsafe { mm::mmap(ptr::null_mut(), len, access.into(), MapFlags::SHARED, fd, 0) };
        Self::adopt(address, len, access)
    }

    /// Maps `len` bytes (> 0) of fresh zeroed memory of this process alone.
    ///
    /// # Errors
    /// [`MemError`], naming the limit where it was one.
    pub fn anonymous(len: usize) -> Result<Self, MemError> {
        let access = Access::ReadWrite;
        // SAFETY: a null hint without MAP_FIXED replaces no mapping.
        let address = unsafe { mm::mmap_anonymous(ptr::null_mut(), len, access.into(), MapFlags::PRIVATE) };
        Self::adopt(address, len, access)
    }

    fn adopt(
        address: Result<*mut core::ffi::c_void, Errno>,
        len: usize,
        access: Access,
    ) -> Result<Self, MemError> {
        let address = address.map_err(|errno| MemError::of("mmap", errno, len))?;
        let start =
            NonNull::new(address.cast::<u8>()).ok_or(MemError::Sys { call: "mmap", errno: Errno::NOMEM })?;
        // SAFETY: the range was mapped just now, with this access, and stays so until `map` below is dropped; `bytes` does
        // not leave `map` except by borrow.
        let bytes = unsafe { SharedBytes::new(start, len, access) };
        let map = Self { bytes, access, generation: fork::generation() };
        // SAFETY: the range is a mapping of ours; DONTFORK changes what a child gets, not what is here.
        unsafe { mm::madvise(address, len, Advice::LinuxDontFork) }
            // It may have to cut the range out of its neighbours: mappings can run out here, too.
            .map_err(|errno| match errno {
                Errno::NOMEM => MemError::of("mmap", errno, len),
                errno => MemError::Sys { call: "madvise(MADV_DONTFORK)", errno },
            })?;
        Ok(map)
    }

    /// Unmaps what is mapped here; fresh zeroed memory of this process alone is mapped at the same address, in one step (`MAP_FIXED`,
    /// `mmap(2)`): nothing else can come to lie there in between.
    ///
    /// # Errors
    /// [`MemError`]. The addresses are lost then: what was mapped there may be gone or not. So in a fork's child, whose it is not.
    pub fn map_anew(self) -> Result<Self, MemError> {
        let (at, len, access) = (self.bytes.as_ptr().cast(), self.bytes.len(), self.access);
        let is_mine = self.generation.is_current();
        // Dropped, it would unmap what another thread may have mapped there after a failure.
        mem::forget(self);
        if !is_mine {
            return Err(MemError::Sys { call: "mmap", errno: Errno::FAULT });
        }
        // SAFETY: the range was the mapping's alone, and nobody holds its bytes any more: they were lent by borrow.
        let address =
            unsafe { mm::mmap_anonymous(at, len, access.into(), MapFlags::PRIVATE | MapFlags::FIXED) };
        Self::adopt(address, len, access)
    }

    /// Leaves it out of core dumps (`MADV_DONTDUMP`, `madvise(2)`): for secrets.
    ///
    /// # Errors
    /// What `madvise(2)` answers.
    pub fn leave_out_of_dumps(&self) -> Result<(), MemError> {
        let advice = Advice::LinuxDontDump;
        // SAFETY: the range is a mapping of ours; DONTDUMP changes what a dump holds, not what is here.
        unsafe { mm::madvise(self.bytes.as_ptr().cast(), self.bytes.len(), advice) }
            .map_err(|errno| MemError::Sys { call: "madvise(MADV_DONTDUMP)", errno })
    }

    /// Its bytes.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &SharedBytes {
        &self.bytes
    }

    /// What it allows.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // In a fork's child the range is not ours: it was never inherited, and may by now be somebody else's.
        if self.generation.is_current() {
            let (start, len) = (self.bytes.as_ptr().cast(), self.bytes.len());
            // SAFETY: the range is this value's alone, and nobody holds its bytes any more: they were lent by borrow.
            if let Err(error) = unsafe { mm::munmap(start, len) } {
                // At vm.max_map_count the kernel cannot cut it out of what it was merged with. The addresses are lost; their
                // memory is not.
                // SAFETY: as above.
                let freed = unsafe { mm::madvise(start, len, Advice::LinuxDontNeed) };
                tracing::error!(%error, ?freed, len, "memory cannot be unmapped");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::page::page_size;
    use super::*;

    #[test]
    fn what_is_mapped_anew_is_zeros_at_the_same_address() {
        let map = Mapping::anonymous(3 * page_size()).unwrap();
        let at = map.bytes().as_ptr();
        map.bytes().write(page_size() as u64 - 4, &[7; 8]).unwrap();
        let map = map.map_anew().unwrap();
        assert_eq!((map.bytes().as_ptr(), map.bytes().len()), (at, 3 * page_size()));
        let mut seen = vec![1; 3 * page_size()];
        map.bytes().read(0, &mut seen).unwrap();
        assert!(seen.iter().all(|byte| *byte == 0));
        map.bytes().write(0, b"new").unwrap();
    }
}
