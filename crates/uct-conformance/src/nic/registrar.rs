//! The NIC as what a registration cache registers with.
//!
//! # Safety
//! Nothing is ever written through these registrations but by callers who own the memory ([`Nic::dma_in`] is unsafe itself).

#![allow(unsafe_code)]

use std::sync::Arc;

use ucs::mem::Access;
use ucs::mem::page::PageRange;
use ucs::rcache::Registrar;

use super::{Mr, Nic, RegisterError};

/// A [`Nic`] for a [`ucs::rcache::Cache`].
#[derive(Clone, Debug)]
pub struct NicRegistrar(pub Arc<Nic>);

impl Registrar for NicRegistrar {
    type Handle = Mr;
    type Error = RegisterError;

    fn register(&self, range: PageRange, _access: Access) -> Result<Mr, RegisterError> {
        // SAFETY: pinning changes nothing of the memory; what is written through it later is the caller's promise there.
        unsafe { self.0.register(range.start(), range.len()) }
    }

    fn deregister(&self, mr: Mr) {
        let ended = self.0.deregister(mr);
        debug_assert!(ended.is_ok(), "a registration is ended once: {ended:?}");
    }
}
