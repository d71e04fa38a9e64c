//! A file of the user's, mapped, and named as raw memory.
//!
//! # Safety
//! [`File::raw`] names a mapping that nothing else in this process uses: it is shared with whoever has the file, there is no
//! reference to any of its bytes, and nothing breaks when they change. It may be unmapped at any time: raw memory is accessed
//! by system calls that answer EFAULT.

#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;

use ucp::{MemError, RawMem};
use ucs::mem::{Access, Mapping};

/// A mapped file. Keep it longer than the region: after that, an export would name whatever is mapped there next.
#[derive(Debug)]
pub(super) struct File {
    mapping: Mapping,
}

impl File {
    /// Maps the first `len` bytes (> 0), shared with whoever has the file.
    ///
    /// # Errors
    /// [`MemError`].
    pub(super) fn map(fd: BorrowedFd<'_>, len: usize, writable: bool) -> Result<Self, MemError> {
        let access = if writable { Access::ReadWrite } else { Access::Read };
        Ok(Self { mapping: Mapping::of_file(fd, len, access)? })
    }

    /// Names its bytes.
    pub(super) fn raw(&self) -> RawMem {
        let bytes = self.mapping.bytes();
        // SAFETY: the bytes are a file's, and no reference to them is ever made (module rule).
        unsafe { RawMem::new(bytes.as_ptr(), bytes.len()) }
    }
}
