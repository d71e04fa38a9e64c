//! The messages of endpoints, version 1, little-endian. `docs/wire-format/am.md` draws them.
//!
//! A transport carries a message's 24-bit tag and its bytes. The tag is `id u16 · kind u8`, and the bytes begin, by kind, with
//!
//! ```text
//! EAGER    nothing: they are the data, without a header
//! HEADER   header_len u16, not 0 · header · the data
//! RTS      request u32 · header_len u16 · reserved u16 = 0 · length u64 · header       "I have so much for you"
//! CTS      request u32 · receive u32                                                  "send it, to this receive"
//! DATA     receive u32 · reserved u32 = 0 · the next bytes of it, not none
//! DROP     request u32 · status u32 < 256                                             "I do not want it", or cannot
//! ABORT    receive u32 · status u32 < 256                                             "the rest does not come"
//! OFFER    as RTS, with address u64, not 0, before the header                         "it lies there: read it, or ask for it"
//! ```
//!
//! The id is 0 in those that are no handler's: CTS, DATA, DROP and ABORT. A header has at most [`MAX_HEADER`] bytes.

use std::num::NonZeroU64;

use uct::wire::{Reader, Truncated};

/// Most bytes of a user's header.
pub const MAX_HEADER: usize = 4096;
/// Most bytes of what comes before the user's header.
pub const MAX_PREFIX: usize = 24;

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
    /// Ready to send, or to be read.
    Offer,
}

impl Kind {
    const ALL: [Self; 8] =
        [Self::Eager, Self::Header, Self::Rts, Self::Cts, Self::Data, Self::Drop, Self::Abort, Self::Offer];

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
    /// Where the data lies in the sender's process, for who can read it there.
    pub address: Option<NonZeroU64>,
}

impl Rts {
    /// The kind of message that it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        if self.address.is_some() { Kind::Offer } else { Kind::Rts }
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Prefix {
        let Self { request, header_len, length, address } = self;
        let address = address.map(|address| address.get().to_le_bytes());
        let address = address.as_ref().map_or(&[][..], |bytes| bytes);
        let (request, header_len) = (request.to_le_bytes(), header_len.to_le_bytes());
        Prefix::of(&[&request, &header_len, &[0; 2], &length.to_le_bytes(), address])
    }

    /// Reads it from the beginning of a message of that kind; answers it, and the header behind it.
    ///
    /// # Errors
    /// [`Malformed`]; also where the kind is another one's.
    pub fn decode(kind: Kind, bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let mut from = Reader::new(bytes);
        let (request, header_len) = (from.u32()?, from.u16()?);
        let reserved = from.u16()?;
        let length = from.u64()?;
        let address = match kind {
            Kind::Rts => None,
            Kind::Offer => Some(NonZeroU64::new(from.u64()?).ok_or(Malformed)?),
            _ => return Err(Malformed),
        };
        let header = from.bytes(from.remaining())?;
        if reserved != 0 || header.len() != usize::from(header_len) || header.len() > MAX_HEADER {
            return Err(Malformed);
        }
        Ok((Self { request, header_len, length, address }, header))
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

    /// Reads it from the first bytes of a message of that kind and id, which has `len` in all.
    ///
    /// # Errors
    /// [`Malformed`]; also where a message of that kind does not begin with one.
    #[inline]
    pub fn decode(kind: Kind, id: u16, bytes: [u8; Self::LEN], len: usize) -> Result<Self, Malformed> {
        let [a, b, c, d, e, f, g, h] = bytes;
        let pair = Self(u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        let is_one = match kind {
            Kind::Cts => len == Self::LEN,
            Kind::Data => pair.1 == 0 && len > Self::LEN,
            Kind::Drop | Kind::Abort => pair.1 <= u32::from(u8::MAX) && len == Self::LEN,
            Kind::Eager | Kind::Header | Kind::Rts | Kind::Offer => false,
        };
        if is_one && id == 0 { Ok(pair) } else { Err(Malformed) }
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
    // Without a header it would have been sent as another kind.
    if len == 0 || len > MAX_HEADER {
        return Err(Malformed);
    }
    let header = from.bytes(len)?;
    Ok((header, from.bytes(from.remaining())?))
}

/// A whole message, as who looks at messages sees it. A worker reads the parts that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// For a handler: its number, the header, and the data.
    Data(u16, &'a [u8], &'a [u8]),
    /// Announced for a handler: its number, and the header.
    Announced(u16, Rts, &'a [u8]),
    /// Of a rendezvous: what else, and the bytes that follow, which are data.
    Control(Kind, Pair, &'a [u8]),
}

impl<'a> Message<'a> {
    /// Reads it: total, and canonical.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(tag: u32, bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (kind, id) = Kind::of_tag(tag).ok_or(Malformed)?;
        Ok(match kind {
            Kind::Eager => Self::Data(id, &[], bytes),
            Kind::Header => split(bytes).map(|(header, data)| Self::Data(id, header, data))?,
            Kind::Rts | Kind::Offer => {
                let (rts, header) = Rts::decode(kind, bytes)?;
                Self::Announced(id, rts, header)
            }
            _ => {
                let mut from = Reader::new(bytes);
                let pair = Pair::decode(kind, id, from.array()?, bytes.len())?;
                Self::Control(kind, pair, from.bytes(from.remaining())?)
            }
        })
    }

    /// Its tag and bytes.
    #[must_use]
    pub fn encode(&self) -> (u32, Vec<u8>) {
        match *self {
            Self::Data(id, [], data) => (Kind::Eager.tag(id), data.to_vec()),
            Self::Data(id, header, data) => {
                (Kind::Header.tag(id), [header_len(header).as_bytes(), header, data].concat())
            }
            Self::Announced(id, rts, header) => {
                (rts.kind().tag(id), [rts.encode().as_bytes(), header].concat())
            }
            Self::Control(kind, pair, data) => (kind.tag(0), [pair.encode().as_bytes(), data].concat()),
        }
    }
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
        assert_eq!(Kind::of_tag(8 << 16), None);
        assert_eq!(Kind::of_tag(u32::MAX), None);
    }

    #[test]
    fn announcements_come_back_whole_or_not_at_all() {
        for address in [None, NonZeroU64::new(1 << 46)] {
            let rts = Rts { request: 7, header_len: 3, length: 1 << 40, address };
            let kind = rts.kind();
            let bytes = [rts.encode().as_bytes(), b"abc"].concat();
            assert_eq!(Rts::decode(kind, &bytes), Ok((rts, &b"abc"[..])));
            for len in 0..bytes.len() {
                assert_eq!(Rts::decode(kind, &bytes[..len]), Err(Malformed), "{len}");
            }
            assert_eq!(Rts::decode(kind, &[&bytes[..], b"d"].concat()), Err(Malformed));
            let long = Rts { header_len: 4097, ..rts };
            assert_eq!(Rts::decode(kind, &[long.encode().as_bytes(), &[0; 4097]].concat()), Err(Malformed));
        }
        let nowhere = [&[0; 8][..], &7_u64.to_le_bytes(), &[0; 8]].concat();
        assert_eq!(Rts::decode(Kind::Offer, &nowhere), Err(Malformed), "that is no offer");
        assert_eq!(Rts::decode(Kind::Cts, &nowhere[..16]), Err(Malformed));
    }

    #[test]
    fn pairs_are_those_of_their_kind() {
        let decode = |kind, id, Pair(a, b), len| {
            let bytes: [u8; 8] = Pair(a, b).encode().as_bytes().try_into().unwrap();
            Pair::decode(kind, id, bytes, len).is_ok()
        };
        let any = Pair(1, u32::MAX);
        assert!(
            decode(Kind::Cts, 0, any, 8) && !decode(Kind::Cts, 1, any, 8) && !decode(Kind::Cts, 0, any, 9)
        );
        assert!(decode(Kind::Data, 0, Pair(1, 0), 9) && !decode(Kind::Data, 0, Pair(1, 0), 8));
        assert!(!decode(Kind::Data, 0, Pair(1, 1), 9));
        for kind in [Kind::Drop, Kind::Abort] {
            assert!(decode(kind, 0, Pair(1, 255), 8) && !decode(kind, 0, Pair(1, 256), 8));
            assert!(!decode(kind, 0, Pair(1, 0), 9));
        }
        assert!(!decode(Kind::Rts, 0, Pair(1, 0), 8) && !decode(Kind::Eager, 0, Pair(1, 0), 8));
    }

    #[test]
    fn headers_are_split_off() {
        assert_eq!(split(b"\x02\0hdata"), Ok((&b"hd"[..], &b"ata"[..])));
        assert_eq!(split(b"\0\0"), Err(Malformed), "no header is another kind");
        assert_eq!(split(&[&[1, 16][..], &[0; 4097]].concat()), Err(Malformed), "longer than any");
        assert_eq!(split(b"\x03\0hd"), Err(Malformed));
        assert_eq!(split(b"\x03"), Err(Malformed));
        assert_eq!(header_len(&[0; MAX_HEADER]).as_bytes(), [0, 16]);
    }
}
