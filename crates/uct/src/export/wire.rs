//! Where things lie in the memory that exporter and importers share.
//!
//! All words are in the machine's byte order: both sides run on one machine. The formats are those of handle version 1; the
//! wire-format document draws them.
//!
//! | memory | who maps it | holds |
//! |---|---|---|
//! | table | importers, for reading; sealed against every other writer than the exporter | a header line, then a line per export |
//! | in-flight page | one importer, for reading and writing | 64 lines, each one in-flight slot |
//! | vault | only processes with ptrace rights over the exporter | an in-flight page to be shared out, then the tokens |

use ucs::mem::SharedBytes;
use ucs::sync::Word64;

use crate::memory::Rights;

/// Bytes of a line of the table or of an in-flight page: a cache line.
pub const LINE: usize = 64;
/// Lines of the table: one header and 65,535 exports.
pub const TABLE_LINES: usize = 65_536;
/// Bytes of the table.
pub const TABLE_LEN: usize = TABLE_LINES * LINE;
/// In-flight slots of a page.
pub const SLOTS: usize = 64;
/// Bytes of an in-flight page.
pub const SLOTS_LEN: usize = SLOTS * LINE;
/// Where the tokens begin in the vault.
pub const TOKENS: usize = SLOTS_LEN;
/// Bytes of a token.
pub const TOKEN_LEN: usize = 16;
/// Bytes of the vault.
pub const VAULT_LEN: usize = TOKENS + TABLE_LINES * TOKEN_LEN;

/// First word of the table: "RXTABLE1", least significant byte first.
pub const TABLE_MAGIC: u64 = u64::from_le_bytes(*b"RXTABLE1");

// A line of the table: byte offsets within it.
const EPOCH: u64 = 0;
const ID: u64 = 8;
const ADDRESS: u64 = 16;
const LENGTH: u64 = 24;
const RIGHTS: u64 = 32;

// A line of an in-flight page: byte offsets within it.
const ANNOUNCED: u64 = 0;
const OWNER: u64 = 8;
const OWNER_INODE: u64 = 16;
const NONCE: u64 = 24;
/// In the first line only.
const ADDRESS_OF_PAGE: u64 = 32;

/// What a line of the table tells of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// The export's id, never used again in this context.
    pub id: u64,
    /// Where its memory begins in the exporter's address space.
    pub address: u64,
    /// How many bytes.
    pub length: u64,
    /// What importers may do.
    pub rights: Rights,
}

#[inline]
fn line(index: u32) -> u64 {
    u64::from(index) * LINE as u64
}

/// The epoch of a table line now, if there is such a line, loaded with sequentially consistent order.
#[inline]
pub fn epoch_now(table: &SharedBytes, index: u32) -> Option<u64> {
    table.load_in_order(line(index) + EPOCH).ok()
}

/// The epoch word of a table line, if there is such a line: for the exporter, who has it mapped for writing.
#[inline]
pub(super) fn epoch(table: &SharedBytes, index: u32) -> Option<&Word64> {
    table.atomic_u64(line(index) + EPOCH).ok()
}

/// Writes a line (not its epoch).
pub(super) fn write_line(table: &SharedBytes, index: u32, content: &Line) -> Option<()> {
    let at = line(index);
    table.store(at + ID, content.id).ok()?;
    table.store(at + ADDRESS, content.address).ok()?;
    table.store(at + LENGTH, content.length).ok()?;
    table.store(at + RIGHTS, content.rights.bits()).ok()
}

/// Reads a line (not its epoch: whoever relies on the line reads the epoch before and after).
pub fn read_line(table: &SharedBytes, index: u32) -> Option<Line> {
    let at = line(index);
    Some(Line {
        id: table.load(at + ID).ok()?,
        address: table.load(at + ADDRESS).ok()?,
        length: table.load(at + LENGTH).ok()?,
        rights: Rights::from_bits_truncate(table.load(at + RIGHTS).ok()?),
    })
}

/// The word of in-flight slot `slot`: 0, or the id of the export accessed.
#[inline]
pub fn announced(page: &SharedBytes, slot: usize) -> Option<&Word64> {
    page.atomic_u64((slot * LINE) as u64 + ANNOUNCED).ok()
}

/// Where the nonce of slot `slot` lies in its page: a word that the importer sets anew for each access.
#[inline]
#[must_use]
pub fn nonce_offset(slot: usize) -> u64 {
    (slot * LINE) as u64 + NONCE
}

/// The nonce of slot `slot`.
#[inline]
pub fn nonce(page: &SharedBytes, slot: usize) -> Option<&Word64> {
    page.atomic_u64(nonce_offset(slot)).ok()
}

/// Tells the importer where the exporter has the page mapped.
pub(super) fn tell_address(page: &SharedBytes) {
    let told = page.store(ADDRESS_OF_PAGE, page.as_ptr().addr() as u64);
    debug_assert!(told.is_ok(), "a page has a first line");
}

/// Where the exporter says that it has the page mapped.
pub fn told_address(page: &SharedBytes) -> Option<u64> {
    page.load(ADDRESS_OF_PAGE).ok()
}

/// The pid of the importer that has taken slot `slot` of the vault; 0 when it is free.
#[inline]
pub fn owner(page: &SharedBytes, slot: usize) -> Option<&Word64> {
    page.atomic_u64((slot * LINE) as u64 + OWNER).ok()
}

/// The pidfd inode of that importer; 0 while unknown.
pub fn owner_inode(page: &SharedBytes, slot: usize) -> Option<&Word64> {
    page.atomic_u64((slot * LINE) as u64 + OWNER_INODE).ok()
}

/// Writes the token of table line `index` to the vault.
pub(super) fn write_token(vault: &SharedBytes, index: u32, token: &[u8; TOKEN_LEN]) -> Option<()> {
    vault.write(TOKENS as u64 + u64::from(index) * TOKEN_LEN as u64, token).ok()
}

/// Reads the token of table line `index` from the vault.
pub fn read_token(vault: &SharedBytes, index: u32) -> Option<[u8; TOKEN_LEN]> {
    let mut token = [0; TOKEN_LEN];
    vault.read(TOKENS as u64 + u64::from(index) * TOKEN_LEN as u64, &mut token).ok()?;
    Some(token)
}
