//! A source with its registration, for as long as a device may read it.

use std::fmt;
use std::sync::Arc;

use ucs::mem::Access;
use ucs::rcache::RegionRef;

use super::{Mds, Needs, RegisterError, Registrations, here};
use crate::api::LocalMemh;
use crate::memory::{Local, Source};

/// A source, registered: neither ends before this is dropped. Send + Sync.
///
/// Who posts a request for a device to read its bytes keeps it until that request has completed, or its queue pair is gone. A device reads
/// the pages that were mapped there at some instant while this was made.
pub struct Held {
    // Dropped before the memory that it is of.
    by: By,
    source: Arc<dyn Source>,
    needs: Needs,
    /// What is registered: what the source says later is not believed.
    address: usize,
    len: usize,
}

/// By what it is registered.
enum By {
    Cached(RegionRef<Mds>),
    /// The memory that it is a part of has a registration of its own.
    Kept,
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Registrations {
    /// Registers all of `source`, and keeps both.
    ///
    /// # Errors
    /// [`RegisterError`]; also of no bytes, and of attached memory.
    pub fn hold(&self, needs: Needs, source: Arc<dyn Source>) -> Result<Held, RegisterError> {
        self.check(needs)?;
        source.check()?;
        let (address, len, by) = {
            let src = source.local();
            src.check()?;
            let (address, len) = (here(src.address())?, src.len());
            if len == 0 {
                return Err(RegisterError::BadRange { address, len });
            }
            let by = match src.whole().and_then(|mem| self.kept(mem, len)) {
                Some(_) => By::Kept,
                // Without waiting: what cannot be registered goes some other way.
                None => By::Cached(self.get((address, len), Access::Read, &[0])?),
            };
            (address, len, by)
        };
        Ok(Held { by, source, needs, address, len })
    }
}

impl Held {
    /// Its bytes, with their registration; without one where the source says now that they are others.
    pub fn local(&self) -> Local<'_> {
        let src = self.source.local();
        if src.address() != Some(self.address) || src.len() != self.len {
            return src;
        }
        match self.memh(&src) {
            // SAFETY: of these very addresses, and as the source, it is there as long as this is (module rule).
            Some(memh) => unsafe { src.registered(memh) },
            None => src,
        }
    }

    fn memh<'h>(&'h self, src: &Local<'h>) -> Option<&'h dyn LocalMemh> {
        match &self.by {
            By::Cached(region) => Some(region.of(self.needs)),
            By::Kept => Some(src.whole()?.registered().get()?.as_ref()?.memhs.of(self.needs)),
        }
    }
}
