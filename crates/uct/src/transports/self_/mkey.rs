//! The exported key of `self`, version 1, little-endian, 32 bytes: `slot u32 · reserved u32 = 0 · token [16] · reserved u64 = 0`.

use crate::export::{Claim, Token};
use crate::wire::{NoRoom, Reader, Truncated, Writer};

/// Bytes of a key.
pub const LEN: usize = 32;

/// The key's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mkey {
    /// The line of the export table.
    pub slot: u32,
    /// The export's secret.
    pub token: Token,
}

impl Mkey {
    /// The key of an export.
    #[must_use]
    pub fn of(claim: &Claim) -> Self {
        Self { slot: claim.slot, token: claim.token }
    }

    /// Writes the key.
    ///
    /// # Errors
    /// `out` has less than [`LEN`] bytes.
    pub fn encode(&self, out: &mut [u8]) -> Result<(), NoRoom> {
        Writer::new(out).u32(self.slot)?.u32(0)?.bytes(self.token.as_bytes())?.u64(0)?;
        Ok(())
    }

    /// Reads a key: total, and canonical. `None`: these bytes are none.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let read = || -> Result<_, Truncated> {
            let mut from = Reader::new(bytes);
            let (slot, reserved, token, end) = (from.u32()?, from.u32()?, from.array()?, from.u64()?);
            Ok((slot, reserved == 0 && end == 0, token))
        };
        let (slot, canonical, token) = read().ok()?;
        (canonical && bytes.len() == LEN).then(|| Self { slot, token: Token::from_bytes(token) })
    }
}
