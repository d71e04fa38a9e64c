//! The packed rkey, version 1, little-endian: a header, and a handle ([`super::handle`]) of the same export. `docs/wire-format/rkey.md`
//! draws it.
//!
//! ```text
//! magic "RXRK" · version u16 = 1 · reserved u16 = 0 · the handle
//! ```
//!
//! It is another thing than a handle: an rkey is for endpoints to the worker's context, a handle for whoever imports it.

use super::address::hint;

/// First four bytes.
pub const MAGIC: [u8; 4] = *b"RXRK";
/// The version written and read.
pub const VERSION: u16 = 1;
/// Bytes before the handle.
pub const HEADER_LEN: usize = 8;

/// Bytes are no rkey.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RkeyFormatError {
    /// They begin otherwise.
    #[error("it does not begin with \"RXRK\": {hint}")]
    Magic {
        /// What it seems to be.
        hint: &'static str,
    },
    /// Another version.
    #[error("version {found} is not known here")]
    Version {
        /// Which.
        found: u16,
    },
    /// They end too early, or a reserved field is not 0.
    #[error("its header is not as it must be")]
    Header,
}

/// Puts the header before a handle.
#[must_use]
pub fn encode(handle: &[u8]) -> Vec<u8> {
    let [low, high] = VERSION.to_le_bytes();
    let [a, b, c, d] = MAGIC;
    [&[a, b, c, d, low, high, 0, 0], handle].concat()
}

/// The handle in it.
///
/// # Errors
/// [`RkeyFormatError`].
pub fn decode(bytes: &[u8]) -> Result<&[u8], RkeyFormatError> {
    let Some((header, handle)) = bytes.split_first_chunk::<HEADER_LEN>() else {
        return Err(RkeyFormatError::Header);
    };
    let [a, b, c, d, low, high, reserved @ ..] = *header;
    let version = u16::from_le_bytes([low, high]);
    match () {
        () if [a, b, c, d] != MAGIC => {
            Err(RkeyFormatError::Magic { hint: hint(bytes, "this is no packed rkey") })
        }
        () if version != VERSION => Err(RkeyFormatError::Version { found: version }),
        () if reserved != [0; 2] => Err(RkeyFormatError::Header),
        () => Ok(handle),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_back_or_says_why_not() {
        let bytes = encode(b"handle");
        assert_eq!(decode(&bytes), Ok(&b"handle"[..]));
        assert_eq!(
            decode(b"RXMH\x01\0\x48\0").unwrap_err(),
            RkeyFormatError::Magic { hint: hint(b"RXMH", "") }
        );
        assert_eq!(decode(b"RXRK\x02\0\0\0"), Err(RkeyFormatError::Version { found: 2 }));
        assert_eq!(decode(b"RXRK\x01\0\0\x01"), Err(RkeyFormatError::Header));
        assert_eq!(decode(b"RXRK"), Err(RkeyFormatError::Header));
    }
}
