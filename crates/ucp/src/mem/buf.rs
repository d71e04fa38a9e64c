//! Private buffers.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use uct::LocalMem;
use uct::memory::{AccessError, Destination, Local, LocalMut, PrivateMem, Rights, Source};

use super::{MapError, RegMode, Region};
use crate::context::{ContextInner, private};

/// Memory of this process alone: plain slices, at full speed.
///
/// [`Buf::share`] makes a [`Region`] of it, which can be exported. In a fork's child it is not there: using it panics. Send +
/// Sync.
pub struct Buf {
    ctx: Arc<ContextInner>,
    mem: PrivateMem,
}

impl Buf {
    pub(crate) fn allocate(ctx: &Arc<ContextInner>, len: usize) -> Result<Self, MapError> {
        if ctx.is_forked() {
            return Err(MapError::Forked);
        }
        let rights = Rights::READ_WRITE;
        let mem = if len == 0 { LocalMem::empty(rights) } else { ctx.alloc(len, rights)? };
        Ok(Self::from_private(ctx, private(mem)?))
    }

    pub(super) fn from_private(ctx: &Arc<ContextInner>, mem: PrivateMem) -> Self {
        Self { ctx: Arc::clone(ctx), mem }
    }

    /// Makes it a region: from here on peers may be given access, and there are no more slices of it.
    #[must_use]
    pub fn share(self) -> Region {
        Region::register(&self.ctx, self.mem.share(), RegMode::Auto)
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.mem.as_slice()
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.mem.as_mut_slice()
    }
}

impl AsRef<[u8]> for Buf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Source for Buf {
    fn local(&self) -> Local<'_> {
        self.mem.local()
    }

    fn check(&self) -> Result<(), AccessError> {
        Source::check(&self.mem)
    }
}

impl Destination for Buf {
    fn local_mut(&mut self) -> LocalMut<'_> {
        self.mem.local_mut()
    }

    fn check(&self) -> Result<(), AccessError> {
        Destination::check(&self.mem)
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buf").field("mem", &self.mem).finish_non_exhaustive()
    }
}
