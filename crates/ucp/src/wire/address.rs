//! The address of a worker, version 1, little-endian. `docs/wire-format/address.md` draws it.
//!
//! ```text
//! header   magic "RXWA" · version u16 = 1 · entry_count u16 · total_len u32 · crc32c u32
//! entry_count × { component u16 · reserved u16 = 0 · len u32 · the interface's own bytes }
//! ```
//!
//! The checksum is over all bytes, its own four taken as zero. Entries are in ascending order of the component, no two alike. One
//! content thus has one byte string.

use std::fmt;

use uct::wire::{NoRoom, Reader, Truncated, Writer};

/// First four bytes.
pub const MAGIC: [u8; 4] = *b"RXWA";
/// The version written and read.
pub const VERSION: u16 = 1;
/// Bytes of the header.
pub const HEADER_LEN: usize = 16;
/// Bytes an entry has before the interface's own.
pub const ENTRY_HEADER_LEN: usize = 8;
/// Most bytes of an address.
pub const MAX_LEN: usize = 16 << 10;
/// Most entries of an address.
pub const MAX_ENTRIES: usize = 32;
/// Most bytes of one interface's own.
pub const MAX_ENTRY_LEN: usize = 1024;

/// Where the number of entries lies.
const COUNT_OFFSET: usize = 6;
/// Where the checksum lies.
const CRC_OFFSET: usize = 12;

/// Where one interface of a worker is reached.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// The number of the component.
    pub component: u16,
    /// The interface's own bytes: a secret.
    pub bytes: Vec<u8>,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { component, bytes } = self;
        write!(f, "Entry {{ component: {component}, bytes: <{} secret bytes> }}", bytes.len())
    }
}

/// What is wrong with bytes that are no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// They end too early.
    #[error("it ends too early: {needed} more bytes are needed at byte {offset}")]
    Truncated {
        /// Where they end.
        offset: usize,
        /// Bytes that are missing there.
        needed: usize,
    },
    /// They go on after the end, or are more than any address has.
    #[error("{found} bytes where {expected} are announced")]
    Length {
        /// Bytes that are there.
        found: usize,
        /// Bytes announced, or the most that an address can have.
        expected: usize,
    },
    /// They begin otherwise.
    #[error("it does not begin with \"RXWA\": {hint}")]
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
    /// Bytes were changed on the way.
    #[error("its checksum is wrong: it was changed on the way")]
    Checksum,
    /// A field has a value that none has.
    #[error("{what} is not as it must be, at byte {offset}")]
    Field {
        /// Which.
        what: &'static str,
        /// Where.
        offset: usize,
    },
}

impl From<Truncated> for AddressError {
    fn from(Truncated { offset, needed }: Truncated) -> Self {
        Self::Truncated { offset, needed }
    }
}

/// What bytes that begin so seem to be; otherwise, that they are no `what`.
pub(crate) fn hint(bytes: &[u8], what: &'static str) -> &'static str {
    match bytes.first_chunk() {
        Some(b"RXMH") => "these are the bytes of memh_pack, which Context::mem_import takes",
        Some(b"RXRK") => "these are the bytes of rkey_pack, which Endpoint::rkey_unpack takes",
        Some(b"RXWA") => "these are the bytes of a worker's address, which Worker::connect takes",
        _ => what,
    }
}

/// Writes the address of a worker with these interfaces, which are in ascending order of their components.
///
/// # Errors
/// [`NoRoom`]: more of them, or longer ones, than the format allows.
pub fn encode(entries: &[Entry]) -> Result<Vec<u8>, NoRoom> {
    let len = entries.iter().fold(HEADER_LEN, |len, entry| len + ENTRY_HEADER_LEN + entry.bytes.len());
    let too_long = NoRoom { offset: MAX_LEN, needed: len.saturating_sub(MAX_LEN) };
    let is_long = |entry: &Entry| entry.bytes.len() > MAX_ENTRY_LEN;
    if len > MAX_LEN || entries.len() > MAX_ENTRIES || entries.iter().any(is_long) {
        return Err(too_long);
    }
    let mut bytes = vec![0; len];
    let mut to = Writer::new(&mut bytes);
    let number = |value: usize| u32::try_from(value).map_err(|_| too_long);
    to.bytes(&MAGIC)?.u16(VERSION)?.u16(u16::try_from(entries.len()).map_err(|_| too_long)?)?;
    to.u32(number(len)?)?.u32(0)?;
    for Entry { component, bytes } in entries {
        to.u16(*component)?.u16(0)?.u32(number(bytes.len())?)?.bytes(bytes)?;
    }
    let crc = crc32c::crc32c(&bytes);
    bytes[CRC_OFFSET..HEADER_LEN].copy_from_slice(&crc.to_le_bytes());
    Ok(bytes)
}

/// Reads an address: total, bounded and canonical (what it accepts, [`encode`] writes again).
///
/// # Errors
/// [`AddressError`].
pub fn decode(bytes: &[u8]) -> Result<Vec<Entry>, AddressError> {
    let mut from = Reader::new(bytes);
    let field = |what, offset| AddressError::Field { what, offset };
    if bytes.len() > MAX_LEN {
        return Err(AddressError::Length { found: bytes.len(), expected: MAX_LEN });
    }
    if from.array()? != MAGIC {
        return Err(AddressError::Magic { hint: hint(bytes, "this is no worker's address") });
    }
    let version = from.u16()?;
    if version != VERSION {
        return Err(AddressError::Version { found: version });
    }
    let count = usize::from(from.u16()?);
    let total = from.u32()? as usize;
    if total < bytes.len() {
        return Err(AddressError::Length { found: bytes.len(), expected: total });
    }
    if total > bytes.len() {
        return Err(AddressError::Truncated { offset: bytes.len(), needed: total - bytes.len() });
    }
    let crc = from.u32()?;
    let rest = crc32c::crc32c_append(crc32c::crc32c(&bytes[..CRC_OFFSET]), &[0; 4]);
    if crc32c::crc32c_append(rest, &bytes[HEADER_LEN..]) != crc {
        return Err(AddressError::Checksum);
    }
    if count > MAX_ENTRIES {
        return Err(field("the number of interfaces", COUNT_OFFSET));
    }
    let mut entries: Vec<Entry> = Vec::with_capacity(count);
    for _ in 0..count {
        let begin = from.offset();
        let component = from.u16()?;
        if entries.last().is_some_and(|last| last.component >= component) {
            return Err(field("the order of interfaces", begin));
        }
        if from.u16()? != 0 {
            return Err(field("a reserved field", begin + 2));
        }
        let len = from.u32()? as usize;
        if len > MAX_ENTRY_LEN {
            return Err(field("the length of an interface's address", begin + 4));
        }
        entries.push(Entry { component, bytes: from.bytes(len)?.to_vec() });
    }
    if from.remaining() != 0 {
        return Err(AddressError::Length { found: bytes.len(), expected: from.offset() });
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(component: u16, bytes: &[u8]) -> Entry {
        Entry { component, bytes: bytes.to_vec() }
    }

    #[test]
    fn comes_back_and_every_change_is_told() {
        let entries = [entry(1, b"one"), entry(2, &[]), entry(300, &[7; MAX_ENTRY_LEN])];
        let bytes = encode(&entries).unwrap();
        assert_eq!(decode(&bytes).unwrap(), entries);
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&changed).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(decode(&bytes[..len]).is_err(), "{len} bytes");
        }
        assert!(decode(&[&bytes[..], &[0]].concat()).is_err());
        assert_eq!(decode(&encode(&[]).unwrap()).unwrap(), []);
    }

    #[test]
    fn what_is_no_address_says_what_it_seems_to_be() {
        let handle = decode(b"RXMH\x01\0\0\0").unwrap_err();
        assert!(handle.to_string().contains("Context::mem_import"), "{handle}");
        assert!(decode(b"RXRK\x01\0\0\0").unwrap_err().to_string().contains("rkey_unpack"));
        assert_eq!(decode(b"RXWA\x02\0\0\0").unwrap_err(), AddressError::Version { found: 2 });
        let order = [entry(2, b""), entry(2, b"")];
        assert_eq!(
            decode(&encode(&order).unwrap()).unwrap_err(),
            AddressError::Field { what: "the order of interfaces", offset: HEADER_LEN + ENTRY_HEADER_LEN }
        );
        assert!(encode(&[entry(1, &[0; MAX_LEN])]).is_err());
        assert!(encode(&[entry(1, &[0; MAX_ENTRY_LEN + 1])]).is_err(), "it would not be read");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_refused_or_canonical(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(entries) = decode(&bytes) {
                prop_assert_eq!(encode(&entries).unwrap(), bytes);
            }
        }
    }
}
