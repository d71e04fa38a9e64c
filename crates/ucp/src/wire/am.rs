//! The messages of endpoints, version 1, little-endian. `docs/wire-format/am.md` draws them.
//!
//! A transport carries a message's 24-bit tag and its bytes. The tag is `id u16 · kind u8`, and the bytes begin, by kind, with
//!
//! ```text
//! EAGER    nothing: they are the data, without a header
//! HEADER   header_len u16 · header
//! RTS      request u32 · header_len u16 · reserved u16 = 0 · length u64 · header       "I have so much for you"
//! CTS      request u32 · receive u32                                                  "send it, to this receive"
//! DATA     receive u32 · reserved u32 = 0 · the next bytes of it
//! DROP     request u32 · status u8                                                    "I do not want it", or cannot
//! ABORT    receive u32 · status u8                                                    "the rest does not come"
//! ```

use uct::wire::{Reader, Truncated};

/// Most bytes of a user's header.
pub const MAX_HEADER: usize = 4096;
/// Most bytes of what comes before the user's header.
pub const MAX_PREFIX: usize = 16;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Data without a header.
    Eager,
    /// A header and data.
    Header,
    /// Ready to send.
    Rts,
    /// Clear to send.
    Cts,
    /// A part of the data.
    Data,
    /// The receiver does not take it.
    Drop,
    /// The sender cannot go on.
    Abort,
}

impl Kind {
    const ALL: [Self; 7] =
        [Self::Eager, Self::Header, Self::Rts, Self::Cts, Self::Data, Self::Drop, Self::Abort];

    /// The tag of a message of this kind, for handlers of that number.
    #[inline]
    #[must_use]
    pub fn tag(self, id: u16) -> u32 {
        u32::from(id) | (self as u32) << 16
    }

    /// What a tag tells; `None`: no such kind.
    #[inline]
    #[must_use]
    #[allow(clippy::cast_possible_truncation)] // the lower half
    pub fn of_tag(tag: u32) -> Option<(Self, u16)> {
        Self::ALL.get((tag >> 16) as usize).map(|kind| (*kind, tag as u16))
    }
}

/// The bytes are no message of their kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes that are no message of their kind")]
pub struct Malformed;

impl From<Truncated> for Malformed {
    fn from(_: Truncated) -> Self {
        Self
    }
}

/// The first bytes of a message, as long as they must be.
#[derive(Clone, Copy, Debug, Default)]
pub struct Prefix {
    bytes: [u8; MAX_PREFIX],
    len: usize,
}

impl Prefix {
    fn of(parts: &[&[u8]]) -> Self {
        let mut prefix = Self::default();
        for part in parts {
            let end = (prefix.len + part.len()).min(MAX_PREFIX);
            prefix.bytes[prefix.len..end].copy_from_slice(&part[..end - prefix.len]);
            prefix.len = end;
        }
        prefix
    }

    /// Them.
    #[inline]
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Data that is announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rts {
    /// The sender's number of it.
    pub request: u32,
    /// Bytes of the header, which follows.
    pub header_len: u16,
    /// Bytes of the data.
    pub length: u64,
}

impl Rts {
    /// Bytes of it, before the header.
    pub const LEN: usize = 16;

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Prefix {
        let Self { request, header_len, length } = self;
        Prefix::of(&[&request.to_le_bytes(), &header_len.to_le_bytes(), &[0; 2], &length.to_le_bytes()])
    }

    /// Reads it from the beginning of a message.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(bytes);
        let (request, header_len) = (from.u32()?, from.u16()?);
        let reserved = from.u16()?;
        let length = from.u64()?;
        let whole = reserved == 0 && from.remaining() == usize::from(header_len);
        if whole { Ok(Self { request, header_len, length }) } else { Err(Malformed) }
    }
}

/// A number, and another number or a status: what CTS, DATA, DROP and ABORT begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair(pub u32, pub u32);

impl Pair {
    /// Bytes of it.
    pub const LEN: usize = 8;

    /// Its bytes.
    #[inline]
    #[must_use]
    pub fn encode(self) -> Prefix {
        Prefix::of(&[&self.0.to_le_bytes(), &self.1.to_le_bytes()])
    }

    /// Reads it from bytes of its length.
    #[inline]
    #[must_use]
    pub fn decode(bytes: [u8; Self::LEN]) -> Self {
        let [a, b, c, d, e, f, g, h] = bytes;
        Self(u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]))
    }
}

/// What comes before a header of an eager message, of [`MAX_HEADER`] bytes at most: its length.
#[inline]
#[must_use]
pub fn header_len(header: &[u8]) -> Prefix {
    let len = u16::try_from(header.len()).unwrap_or(u16::MAX);
    Prefix::of(&[&len.to_le_bytes()])
}

/// The header and the data of an eager message that has a header.
///
/// # Errors
/// [`Malformed`].
pub fn split(bytes: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let mut from = Reader::new(bytes);
    let len = usize::from(from.u16()?);
    let header = from.bytes(len)?;
    Ok((header, from.bytes(from.remaining())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_come_back() {
        for kind in Kind::ALL {
            for id in [0, 1, 0x1234, u16::MAX] {
                assert_eq!(Kind::of_tag(kind.tag(id)), Some((kind, id)));
            }
        }
        assert_eq!(Kind::of_tag(7 << 16), None);
        assert_eq!(Kind::of_tag(u32::MAX), None);
    }

    #[test]
    fn announcements_come_back_whole_or_not_at_all() {
        let rts = Rts { request: 7, header_len: 3, length: 1 << 40 };
        let bytes = [rts.encode().as_bytes(), b"abc"].concat();
        assert_eq!(Rts::decode(&bytes), Ok(rts));
        for len in 0..bytes.len() {
            assert_eq!(Rts::decode(&bytes[..len]), Err(Malformed), "{len}");
        }
        assert_eq!(Rts::decode(&[&bytes[..], b"d"].concat()), Err(Malformed));
        let pair = Pair(1, u32::MAX);
        assert_eq!(Pair::decode(pair.encode().as_bytes().try_into().unwrap()), pair);
    }

    #[test]
    fn headers_are_split_off() {
        assert_eq!(split(b"\x02\0hdata"), Ok((&b"hd"[..], &b"ata"[..])));
        assert_eq!(split(b"\0\0"), Ok((&b""[..], &b""[..])));
        assert_eq!(split(b"\x03\0hd"), Err(Malformed));
        assert_eq!(split(b"\x03"), Err(Malformed));
        assert_eq!(header_len(&[0; MAX_HEADER]).as_bytes(), [0, 16]);
    }
}
