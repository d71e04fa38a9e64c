//! The address of a worker's `self` interface, version 1, of fixed length.
//!
//! ```text
//!   0 context_uuid [16]
//!  16 secret [16]            random: no two interfaces have the same
//! ```

use crate::export::Token;
use crate::wire::{Reader, Truncated};

/// Bytes of an address.
pub const LEN: usize = 32;

/// An address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The worker's context.
    pub context_uuid: [u8; 16],
    /// What tells the worker from others.
    pub secret: Token,
}

impl Address {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..16].copy_from_slice(&self.context_uuid);
        bytes[16..].copy_from_slice(self.secret.as_bytes());
        bytes
    }

    /// Reads an address: total, and canonical.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let truncated = |_: Truncated| "the address ends too early";
        if bytes.len() > LEN {
            return Err("the address goes on too long");
        }
        let mut from = Reader::new(bytes);
        let context_uuid = from.array().map_err(truncated)?;
        let secret = Token::from_bytes(from.array().map_err(truncated)?);
        Ok(Self { context_uuid, secret })
    }
}
