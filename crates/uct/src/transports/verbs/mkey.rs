//! The exported key of `verbs`: 80 bytes, little-endian.
//!
//! ```text
//!   0 head [64]        as of shm and cma (transports/mkey.rs)
//!  64 device_guid [8]  the exporter's device, in network byte order
//!  72 service_kind u8
//!  73 reserved [7]     0
//! ```

use crate::export::Token;
use crate::process::Identity;
use crate::transports::mkey::{is_in_directory, read_head, service_kind, write_head};
use crate::wire::{NoRoom, Reader, Truncated, Writer};

/// Bytes of a key.
pub const LEN: usize = 80;

/// What an exported key says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mkey {
    /// Who exports.
    pub exporter: Identity,
    /// The line of the export table.
    pub slot: u32,
    /// The export's secret.
    pub token: Token,
    /// The exporter's device.
    pub guid: [u8; 8],
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
        to.bytes(&self.guid)?.u8(service_kind(self.in_directory))?.bytes(&[0; 7])?;
        Ok(())
    }

    /// Reads a key: total, and canonical (what it accepts, `encode` writes again).
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        if bytes.len() != LEN {
            return Err("a key of verbs has 80 bytes");
        }
        Self::read(&mut Reader::new(bytes)).unwrap_or(Err("it ends too early"))
    }

    fn read(from: &mut Reader<'_>) -> Result<Result<Self, &'static str>, Truncated> {
        let (exporter, slot, token) = read_head(from)?;
        let (guid, kind, reserved) = (from.array()?, from.u8()?, from.array::<7>()?);
        let in_directory = match is_in_directory(kind) {
            Ok(in_directory) => in_directory,
            Err(wrong) => return Ok(Err(wrong)),
        };
        if reserved != [0; 7] {
            return Ok(Err("a reserved byte is not zero"));
        }
        Ok(Ok(Self { exporter, slot, token, guid, in_directory }))
    }
}
