//! Memory that only this process sees: plain references to it are allowed.
//!
//! # Safety
//! A [`PrivateMem`] holds the only `Arc` of a `LocalMem` that was allocated here and never packed for a peer: no other process
//! can have a mapping or key of it, and no other thread a reference.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::{fmt, slice};

use super::operand::{Destination, Local, LocalMut, Source};
use super::{AccessError, LocalMem};

/// Allocated memory that nobody else can reach: `&[u8]` and `&mut [u8]` at full speed.
pub struct PrivateMem {
    /// The only Arc, and no Weak: it is fresh, or Arc::get_mut succeeded in `reclaim`.
    mem: Arc<LocalMem>,
}

impl PrivateMem {
    /// Takes memory that was just allocated.
    ///
    /// # Errors
    /// The memory itself, when it was not allocated here, or a key to it was packed.
    pub fn new(mem: LocalMem) -> Result<Self, Arc<LocalMem>> {
        Self::reclaim(Arc::new(mem))
    }

    /// Takes back memory that was shared: possible when it was allocated here, was never packed for a peer, and nothing else
    /// refers to it.
    ///
    /// # Errors
    /// The memory itself, when one of these does not hold.
    pub fn reclaim(mut mem: Arc<LocalMem>) -> Result<Self, Arc<LocalMem>> {
        if mem.is_allocated() && !mem.was_packed() && Arc::get_mut(&mut mem).is_some() {
            Ok(Self { mem })
        } else {
            Err(mem)
        }
    }

    /// Gives it up for sharing: from here on there are no references to its bytes.
    #[must_use]
    pub fn share(self) -> Arc<LocalMem> {
        self.mem
    }

    /// In a fork's child the bytes are not there: better a clear end than a segmentation fault, or somebody else's bytes.
    fn check_fork(&self) {
        assert!(
            self.mem.generation.is_current(),
            "this buffer belongs to the parent process: a fork's child must make its own"
        );
    }

    /// Its bytes.
    ///
    /// # Panics
    /// In a fork's child, which does not have them.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.check_fork();
        // SAFETY: initialised (fresh mappings are zeroed), mapped as long as `mem`, and reachable through `self` only.
        unsafe { slice::from_raw_parts(self.mem.bytes.as_ptr(), self.mem.len()) }
    }

    /// Its bytes, for writing.
    ///
    /// # Panics
    /// In a fork's child, which does not have them.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.check_fork();
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.mem.bytes.as_ptr(), self.mem.len()) }
    }
}

impl Source for PrivateMem {
    fn local(&self) -> Local<'_> {
        Local::private(self.as_slice(), &self.mem)
    }

    fn check(&self) -> Result<(), AccessError> {
        if self.mem.generation.is_current() { Ok(()) } else { Err(AccessError::Forked) }
    }
}

impl Destination for PrivateMem {
    fn local_mut(&mut self) -> LocalMut<'_> {
        self.check_fork();
        // SAFETY: as in `as_mut_slice`; of `mem` itself nothing is borrowed but what is not its bytes.
        let bytes = unsafe { slice::from_raw_parts_mut(self.mem.bytes.as_ptr(), self.mem.len()) };
        LocalMut::private(bytes, &self.mem)
    }

    fn check(&self) -> Result<(), AccessError> {
        if self.mem.generation.is_current() { Ok(()) } else { Err(AccessError::Forked) }
    }
}

impl fmt::Debug for PrivateMem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrivateMem").field("len", &self.mem.len()).finish_non_exhaustive()
    }
}
