//! The exported key of `cma`, version 1, little-endian, of fixed length.
//!
//! ```text
//!   0 pid u32                exporter, in its own pid namespace
//!   4 slot u32               line of the export table
//!   8 pidfd_inode u64        0: unknown (kernels before 6.9)
//!  16 start_time u64         clock ticks since boot
//!  24 pid_ns u64             inodes of namespaces; 0: unknown
//!  32 net_ns u64
//!  40 user_ns u64
//!  48 token [16]
//!  64 service_kind u8        bit 0: abstract unix socket; bit 1: also in the directory of UCX_SERVICE_DIR
//!  65 reserved [7] = 0
//! ```
//!
//! The service socket's name follows from the context's uuid, which the handle tells.

use crate::export::{Claim, Token};
use crate::process::Identity;
use crate::wire::{NoRoom, Reader, Truncated, Writer};

/// Bytes of a key.
pub const LEN: usize = 72;

/// An abstract unix socket.
const BY_NAME: u8 = 1;
/// And one in the directory that `UCX_SERVICE_DIR` names, on either side.
const IN_DIRECTORY: u8 = 2;

/// Where the two parts lie that differ from export to export.
const SLOT: usize = 4;
const TOKEN: usize = 48;

/// Makes the key of one export that of another export of the same memory: writing it anew would take longer.
pub(super) fn readdress(key: &mut [u8; LEN], claim: &Claim) {
    key[SLOT..SLOT + 4].copy_from_slice(&claim.slot.to_le_bytes());
    key[TOKEN..TOKEN + 16].copy_from_slice(claim.token.as_bytes());
}

/// The key's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mkey {
    /// Who exports.
    pub exporter: Identity,
    /// The line of the export table.
    pub slot: u32,
    /// The export's secret.
    pub token: Token,
    /// Whether the exporter also listens in the directory that its UCX_SERVICE_DIR names.
    pub in_directory: bool,
}

impl Mkey {
    /// Writes the key to all of `out`.
    ///
    /// # Errors
    /// `out` has less than [`LEN`] bytes.
    pub fn encode(&self, out: &mut [u8]) -> Result<(), NoRoom> {
        let exporter = &self.exporter;
        let kind = if self.in_directory { BY_NAME | IN_DIRECTORY } else { BY_NAME };
        let mut to = Writer::new(out);
        to.u32(exporter.pid)?.u32(self.slot)?;
        to.u64(exporter.pidfd_inode)?.u64(exporter.start_time)?;
        to.u64(exporter.pid_ns)?.u64(exporter.net_ns)?.u64(exporter.user_ns)?;
        to.bytes(self.token.as_bytes())?.u8(kind)?.bytes(&[0; 7])?;
        Ok(())
    }

    /// Reads a key: total, and canonical (what it accepts, `encode` writes again).
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        if bytes.len() != LEN {
            return Err("a cma key has 72 bytes");
        }
        Self::read(&mut Reader::new(bytes)).unwrap_or(Err("it ends too early"))
    }

    fn read(from: &mut Reader<'_>) -> Result<Result<Self, &'static str>, Truncated> {
        let (pid, slot) = (from.u32()?, from.u32()?);
        let (pidfd_inode, start_time) = (from.u64()?, from.u64()?);
        let (pid_ns, net_ns, user_ns) = (from.u64()?, from.u64()?, from.u64()?);
        let token = Token::from_bytes(from.array()?);
        let (kind, reserved) = (from.u8()?, from.array::<7>()?);
        let in_directory = match kind {
            BY_NAME => false,
            kind if kind == BY_NAME | IN_DIRECTORY => true,
            _ => return Ok(Err("unknown kind of service address")),
        };
        if reserved != [0; 7] {
            return Ok(Err("a reserved byte is not zero"));
        }
        let exporter = Identity { pid, pidfd_inode, start_time, pid_ns, net_ns, user_ns };
        Ok(Ok(Self { exporter, slot, token, in_directory }))
    }
}
