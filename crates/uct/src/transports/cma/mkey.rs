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

use crate::export::Token;
use crate::process::Identity;
use crate::transports::mkey::{is_in_directory, read_head, service_kind, write_head};
use crate::wire::{NoRoom, Reader, Truncated, Writer};

/// Bytes of a key.
pub const LEN: usize = 72;

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
        let mut to = Writer::new(out);
        write_head(&mut to, &self.exporter, self.slot, &self.token)?;
        to.u8(service_kind(self.in_directory))?.bytes(&[0; 7])?;
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
        let (exporter, slot, token) = read_head(from)?;
        let (kind, reserved) = (from.u8()?, from.array::<7>()?);
        let in_directory = match is_in_directory(kind) {
            Ok(in_directory) => in_directory,
            Err(wrong) => return Ok(Err(wrong)),
        };
        if reserved != [0; 7] {
            return Ok(Err("a reserved byte is not zero"));
        }
        Ok(Ok(Self { exporter, slot, token, in_directory }))
    }
}
