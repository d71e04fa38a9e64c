//! The address of a worker's `shm` interface, version 1, little-endian, of fixed length.
//!
//! ```text
//!   0 head [64]              as in the exported keys of `shm`; its slot is the worker's number in its context
//!  64 context_uuid [16]      names the service socket, too
//!  80 service_kind u8        bit 0: abstract unix socket; bit 1: also in the directory of UCX_SERVICE_DIR
//!  81 reserved [7] = 0
//!  88 boot_id [16]           the system's boot: other systems do not reach it
//! ```

use crate::export::Token;
use crate::process::Identity;
use crate::transports::mkey::{is_in_directory, read_head, service_kind, write_head};
use crate::wire::{NoRoom, Reader, Truncated, Writer};

/// Bytes of an address.
pub const LEN: usize = 104;

/// An address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The worker's process.
    pub process: Identity,
    /// Its number in its context.
    pub worker: u32,
    /// Its secret.
    pub token: Token,
    /// Its context.
    pub context_uuid: [u8; 16],
    /// Whether its context's service is also in a directory.
    pub in_directory: bool,
    /// Its system's boot.
    pub boot: [u8; 16],
}

impl Address {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        let written = self.write(&mut Writer::new(&mut bytes));
        debug_assert!(written.is_ok(), "LEN holds an address");
        bytes
    }

    fn write(&self, to: &mut Writer<'_>) -> Result<(), NoRoom> {
        write_head(to, &self.process, self.worker, &self.token)?;
        to.bytes(&self.context_uuid)?.u8(service_kind(self.in_directory))?.bytes(&[0; 7])?;
        to.bytes(&self.boot)?;
        Ok(())
    }

    /// Reads an address: total, and canonical.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let truncated = |_: Truncated| "the address ends too early";
        if bytes.len() > LEN {
            return Err("the address goes on too long");
        }
        let mut from = Reader::new(bytes);
        let (process, worker, token) = read_head(&mut from).map_err(truncated)?;
        let context_uuid = from.array().map_err(truncated)?;
        let in_directory = is_in_directory(from.u8().map_err(truncated)?)?;
        let reserved: [u8; 7] = from.array().map_err(truncated)?;
        if reserved != [0; 7] {
            return Err("a reserved field of the address is not 0");
        }
        let boot = from.array().map_err(truncated)?;
        Ok(Self { process, worker, token, context_uuid, in_directory, boot })
    }
}
