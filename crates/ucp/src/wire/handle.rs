//! The packed handle, version 1, little-endian. `docs/wire-format/handle.md` draws it.
//!
//! ```text
//! header   magic "RXMH" · version u16 = 1 · header_len u16 = 72 · total_len u32 · flags u16 (bit 0: EXPORTED) · mem_type u8 ·
//!          md_count u8 · address u64 · length u64 · context_uuid [16] · registration_id u64 · epoch u64 · crc32c u32 ·
//!          reserved u32 = 0
//! md_count × { component u16 · flags u16 (bit 0: mandatory) · body_len u32 · global_id_len u8 · reserved u8 = 0 · mkey_len u16 ·
//!          global_id · mkey · zeros up to a multiple of 8 }
//! ```
//!
//! The checksum is over all bytes, its own four taken as zero. Entries are in ascending order of (component, global id), no two
//! alike. One content thus has one byte string.

use std::fmt;
use std::ops::Range;

use uct::wire::{NoRoom, Reader, Truncated, Writer};

use super::address::hint;

/// First four bytes.
pub const MAGIC: [u8; 4] = *b"RXMH";
/// The version written and read.
pub const VERSION: u16 = 1;
/// Bytes of the header.
pub const HEADER_LEN: usize = 72;
/// Bytes an entry has before its global id.
pub const ENTRY_HEADER_LEN: usize = 12;
/// Most bytes of a handle.
pub const MAX_LEN: usize = 64 << 10;
/// Most entries of a handle.
pub const MAX_ENTRIES: usize = 32;
/// Most bytes of an entry's key.
pub const MAX_MKEY_LEN: usize = 1024;

const EXPORTED: u16 = 1;
const MANDATORY: u16 = 1;
const HOST_MEMORY: u8 = 0;
/// Where the checksum lies.
const CRC_OFFSET: usize = 64;
/// Where an entry's body begins, as its `body_len` counts.
const BODY_OFFSET: usize = 8;

/// What one memory domain of the exporter offers.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// The number of the component.
    pub component: u16,
    /// Whether an importer that does not know the component must refuse the handle.
    pub mandatory: bool,
    /// Where the key means something: at most 255 bytes.
    pub global_id: Vec<u8>,
    /// The component's own bytes, with the token: at most [`MAX_MKEY_LEN`].
    pub mkey: Vec<u8>,
}

impl Entry {
    fn outline(&self) -> Outline<'_> {
        let Self { component, mandatory, global_id, mkey } = self;
        Outline { component: *component, mandatory: *mandatory, global_id, mkey_len: mkey.len() }
    }
}

/// A handle's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handle {
    /// Where the memory begins in the exporter's address space.
    pub address: u64,
    /// How many bytes.
    pub length: u64,
    /// The exporting context.
    pub context_uuid: [u8; 16],
    /// The export's id in that context; 0 for no bytes.
    pub registration_id: u64,
    /// The epoch in which it lives: odd; 0 for no bytes.
    pub epoch: u64,
    /// What each memory domain offers.
    pub entries: Vec<Entry>,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("component", &self.component)
            .field("mandatory", &self.mandatory)
            .field("global_id", &self.global_id)
            .field("mkey", &format_args!("<{} secret bytes>", self.mkey.len()))
            .finish()
    }
}

/// What is wrong with bytes that are no handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandleReason {
    /// They end too early.
    #[error("it ends too early: {needed} more bytes are needed")]
    Truncated {
        /// Bytes that are missing there.
        needed: usize,
    },
    /// They go on after the end.
    #[error("{extra} bytes follow the end")]
    Trailing {
        /// How many.
        extra: usize,
    },
    /// More than any handle has.
    #[error("{found} bytes are more than the {MAX_LEN} a handle can have")]
    TooLong {
        /// How many.
        found: usize,
    },
    /// They begin otherwise.
    #[error("it does not begin with \"RXMH\": {hint}")]
    Magic {
        /// What it seems to be.
        hint: &'static str,
    },
    /// Another version.
    #[error("version {found} is not known here, which is version {VERSION}")]
    Version {
        /// Which.
        found: u16,
    },
    /// The checksum is another.
    #[error("the checksum is wrong: some bytes were changed on the way")]
    Checksum,
    /// It is not the handle of an export.
    #[error("it is not an exported handle")]
    NotExported,
    /// A field has a value without meaning.
    #[error("{0}")]
    Field(&'static str),
    /// A part must be understood, and is not.
    #[error("component {component} is not known here, and the exporter says that it must be")]
    UnknownMandatory {
        /// Which component.
        component: u16,
    },
}

/// Bytes are no handle: what is wrong, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at byte {offset}: {reason}")]
pub struct HandleError {
    /// What is wrong.
    pub reason: HandleReason,
    /// Where, in bytes from the beginning.
    pub offset: usize,
}

impl From<Truncated> for HandleError {
    fn from(error: Truncated) -> Self {
        Self { reason: HandleReason::Truncated { needed: error.needed }, offset: error.offset }
    }
}

fn check(holds: bool, offset: usize, reason: HandleReason) -> Result<(), HandleError> {
    if holds { Ok(()) } else { Err(HandleError { reason, offset }) }
}

fn padding(len: usize) -> usize {
    len.next_multiple_of(8) - len
}

/// Bytes of an entry with these lengths.
#[must_use]
pub fn entry_len(global_id_len: usize, mkey_len: usize) -> usize {
    (ENTRY_HEADER_LEN + global_id_len + mkey_len).next_multiple_of(8)
}

/// What the header says of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// See [`Handle::address`].
    pub address: u64,
    /// See [`Handle::length`].
    pub length: u64,
    /// See [`Handle::context_uuid`].
    pub context_uuid: [u8; 16],
    /// See [`Handle::registration_id`].
    pub registration_id: u64,
    /// See [`Handle::epoch`].
    pub epoch: u64,
}

/// An entry but for its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outline<'a> {
    /// See [`Entry::component`].
    pub component: u16,
    /// See [`Entry::mandatory`].
    pub mandatory: bool,
    /// See [`Entry::global_id`].
    pub global_id: &'a [u8],
    /// Bytes of the key.
    pub mkey_len: usize,
}

/// A handle but for what differs from export to export of the same memory: keys, id and epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    bytes: Vec<u8>,
    /// Where the keys lie.
    mkeys: Vec<Range<usize>>,
}

/// Where the id lies; the epoch follows.
const REGISTRATION_ID_OFFSET: usize = 48;

impl Template {
    /// The handle of this memory: exactly as many bytes as [`HEADER_LEN`] and the [`entry_len`] of each entry. Entries must be in
    /// ascending order of (component, global id), no two alike.
    ///
    /// # Errors
    /// [`NoRoom`]: more entries, or longer ones, than the format allows.
    pub fn new(head: &Head, entries: &[Outline<'_>]) -> Result<Self, NoRoom> {
        let lens = entries.iter().map(|entry| entry_len(entry.global_id.len(), entry.mkey_len));
        let total = HEADER_LEN + lens.sum::<usize>();
        let too_long = NoRoom { offset: MAX_LEN, needed: total.saturating_sub(MAX_LEN) };
        if total > MAX_LEN || entries.len() > MAX_ENTRIES {
            return Err(too_long);
        }
        let (mut bytes, mut mkeys) = (vec![0; total], Vec::with_capacity(entries.len()));
        let mut to = Writer::new(&mut bytes);
        to.bytes(&MAGIC)?.u16(VERSION)?.u16(u16::try_from(HEADER_LEN).map_err(|_| too_long)?)?;
        to.u32(u32::try_from(total).map_err(|_| too_long)?)?.u16(EXPORTED)?.u8(HOST_MEMORY)?;
        to.u8(u8::try_from(entries.len()).map_err(|_| too_long)?)?;
        to.u64(head.address)?.u64(head.length)?.bytes(&head.context_uuid)?;
        to.u64(head.registration_id)?.u64(head.epoch)?.u32(0)?.u32(0)?;
        for entry in entries {
            let id_len = u8::try_from(entry.global_id.len()).map_err(|_| too_long)?;
            let mkey_len = u16::try_from(entry.mkey_len).map_err(|_| too_long)?;
            if entry.mkey_len > MAX_MKEY_LEN {
                return Err(NoRoom { offset: to.offset(), needed: entry.mkey_len - MAX_MKEY_LEN });
            }
            let body = entry_len(entry.global_id.len(), entry.mkey_len) - BODY_OFFSET;
            to.u16(entry.component)?.u16(if entry.mandatory { MANDATORY } else { 0 })?;
            to.u32(u32::try_from(body).map_err(|_| too_long)?)?.u8(id_len)?.u8(0)?.u16(mkey_len)?;
            to.bytes(entry.global_id)?;
            mkeys.push(to.offset()..to.offset() + entry.mkey_len);
            to.reserve(entry.mkey_len)?;
            let used = ENTRY_HEADER_LEN + entry.global_id.len() + entry.mkey_len;
            to.bytes(&[0; 8][..padding(used)])?;
        }
        Ok(Self { bytes, mkeys })
    }

    /// The bytes of one export's handle. `write_mkey` writes the key of entry `index` in place.
    ///
    /// # Errors
    /// That of `write_mkey`.
    pub fn fill<E>(
        &self,
        registration_id: u64,
        epoch: u64,
        mut write_mkey: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<Vec<u8>, E> {
        let mut bytes = self.bytes.clone();
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(REGISTRATION_ID_OFFSET, &registration_id.to_le_bytes());
        put(REGISTRATION_ID_OFFSET + 8, &epoch.to_le_bytes());
        for (index, mkey) in self.mkeys.iter().enumerate() {
            write_mkey(index, &mut bytes[mkey.clone()])?;
        }
        let crc = checksum(&bytes).to_le_bytes();
        bytes[CRC_OFFSET..CRC_OFFSET + crc.len()].copy_from_slice(&crc);
        Ok(bytes)
    }
}

impl Handle {
    /// Its bytes: see [`Template`].
    ///
    /// # Errors
    /// [`NoRoom`]: more entries, or longer ones, than the format allows.
    pub fn encode(&self) -> Result<Vec<u8>, NoRoom> {
        let Self { address, length, context_uuid, registration_id, epoch, .. } = *self;
        let head = Head { address, length, context_uuid, registration_id, epoch };
        let outlines: Vec<Outline<'_>> = self.entries.iter().map(Entry::outline).collect();
        let write = |index: usize, out: &mut [u8]| {
            out.copy_from_slice(&self.entries[index].mkey);
            Ok(())
        };
        Template::new(&head, &outlines)?.fill(registration_id, epoch, write)
    }

    /// Reads a handle: total, bounded, and canonical (what it accepts, [`Handle::encode`] writes again). `known` says which
    /// components this process knows.
    ///
    /// # Errors
    /// [`HandleError`]: the first thing that is wrong.
    pub fn decode(bytes: &[u8], known: impl Fn(u16) -> bool) -> Result<Self, HandleError> {
        let too_long = HandleReason::TooLong { found: bytes.len() };
        check(bytes.len() <= MAX_LEN, MAX_LEN, too_long)?;
        let mut from = Reader::new(bytes);
        let total = read_total_len(&mut from)?;
        let missing = HandleReason::Truncated { needed: total.saturating_sub(bytes.len()) };
        check(total <= bytes.len(), bytes.len(), missing)?;
        let trailing = HandleReason::Trailing { extra: bytes.len().saturating_sub(total) };
        check(total == bytes.len(), total, trailing)?;
        let stored = Reader::new(&bytes[CRC_OFFSET..]).u32()?;
        check(stored == checksum(bytes), CRC_OFFSET, HandleReason::Checksum)?;
        let flags = from.u16()?;
        check(flags & EXPORTED != 0, 12, HandleReason::NotExported)?;
        check(flags == EXPORTED, 12, HandleReason::Field("a flag is set that has no meaning"))?;
        check(from.u8()? == HOST_MEMORY, 14, HandleReason::Field("unknown memory type"))?;
        let count = usize::from(from.u8()?);
        check(count <= MAX_ENTRIES, 15, HandleReason::Field("too many entries"))?;
        let (address, length) = (from.u64()?, from.u64()?);
        let end = HandleReason::Field("the memory reaches beyond the address space");
        check(address.checked_add(length).is_some(), 16, end)?;
        let context_uuid = from.array()?;
        let (registration_id, epoch) = (from.u64()?, from.u64()?);
        let _checksum = from.u32()?;
        check(from.u32()? == 0, 68, HandleReason::Field("a reserved byte is not zero"))?;
        let empty = length == 0;
        let named = HandleReason::Field("memory without bytes has no export, and all other memory has one");
        check((registration_id == 0) == empty, 48, named)?;
        // The epoch word of an export is odd while it lives; see `uct::export`.
        let living = if empty { epoch == 0 } else { epoch % 2 == 1 };
        check(living, 56, HandleReason::Field("no export lives in this epoch"))?;
        check(!empty || count == 0, 15, HandleReason::Field("memory without bytes has no entries"))?;
        let mut entries = Vec::with_capacity(count);
        for _ in 0..count {
            let begin = from.offset();
            let entry = read_entry(&mut from, &known)?;
            let order = |entry: &Entry| (entry.component, entry.global_id.clone());
            let ascending = entries.last().is_none_or(|last| order(last) < order(&entry));
            check(ascending, begin, HandleReason::Field("entries are not in order"))?;
            entries.push(entry);
        }
        let rest = HandleReason::Trailing { extra: from.remaining() };
        check(from.remaining() == 0, from.offset(), rest)?;
        Ok(Self { address, length, context_uuid, registration_id, epoch, entries })
    }
}

/// Reads up to `total_len`, and leaves the reader behind it.
fn read_total_len(from: &mut Reader<'_>) -> Result<usize, HandleError> {
    let magic = from.array()?;
    check(magic == MAGIC, 0, HandleReason::Magic { hint: hint(&magic, "this is no packed memory handle") })?;
    let version = from.u16()?;
    check(version == VERSION, 4, HandleReason::Version { found: version })?;
    let header = HandleReason::Field("the header has another length than in this version");
    check(usize::from(from.u16()?) == HEADER_LEN, 6, header)?;
    let total = from.u32()? as usize;
    check(total <= MAX_LEN, 8, HandleReason::TooLong { found: total })?;
    check(total >= HEADER_LEN, 8, HandleReason::Field("the whole is shorter than its header"))?;
    Ok(total)
}

/// How many bytes a reader needs before [`total_len`] can tell the handle's length.
pub const PREFIX_LEN: usize = 12;

/// The length of a handle from its first [`PREFIX_LEN`] bytes.
///
/// # Errors
/// [`HandleError`]: these are not the first bytes of a handle.
pub fn total_len(prefix: &[u8]) -> Result<usize, HandleError> {
    read_total_len(&mut Reader::new(prefix))
}

fn read_entry(from: &mut Reader<'_>, known: &impl Fn(u16) -> bool) -> Result<Entry, HandleError> {
    let begin = from.offset();
    let component = from.u16()?;
    let flags = from.u16()?;
    check(flags & !MANDATORY == 0, begin + 2, HandleReason::Field("a flag is set that has no meaning"))?;
    let mandatory = flags == MANDATORY;
    let unknown = HandleReason::UnknownMandatory { component };
    check(!mandatory || known(component), begin, unknown)?;
    let body = from.u32()? as usize;
    let id_len = usize::from(from.u8()?);
    check(from.u8()? == 0, begin + 9, HandleReason::Field("a reserved byte is not zero"))?;
    let mkey_len = usize::from(from.u16()?);
    check(mkey_len <= MAX_MKEY_LEN, begin + 10, HandleReason::Field("a key is too long"))?;
    let expected = entry_len(id_len, mkey_len) - BODY_OFFSET;
    check(body == expected, begin + 4, HandleReason::Field("an entry's length is not that of its parts"))?;
    let global_id = from.bytes(id_len)?.to_vec();
    let mkey = from.bytes(mkey_len)?.to_vec();
    let at = from.offset();
    let zeros = from.bytes(padding(ENTRY_HEADER_LEN + id_len + mkey_len))?;
    check(zeros.iter().all(|byte| *byte == 0), at, HandleReason::Field("a reserved byte is not zero"))?;
    Ok(Entry { component, mandatory, global_id, mkey })
}

fn checksum(bytes: &[u8]) -> u32 {
    let (before, rest) = bytes.split_at(CRC_OFFSET.min(bytes.len()));
    let after = rest.get(4..).unwrap_or_default();
    crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(before), &[0; 4]), after)
}
