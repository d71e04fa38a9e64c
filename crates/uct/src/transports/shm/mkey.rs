//! The exported key of `shm`, version 1, little-endian, of fixed length.
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
//!  64 region_inode u64
//!  72 table_inode u64
//!  80 vault_inode u64
//!  88 region_fd u32          as the exporter numbers them
//!  92 table_fd u32
//!  96 vault_fd u32
//! 100 service_kind u8        bit 0: abstract unix socket; bit 1: also in the directory of UCX_SERVICE_DIR
//! 101 service_len u8
//! 102 reserved u16 = 0
//! 104 service_name [108]     service_len bytes, then zeros
//! 212 reserved u32 = 0
//! ```

use crate::export::Token;
use crate::export::table::FileNumbers;
use crate::process::Identity;
use crate::transports::mkey::{is_in_directory, read_head, service_kind, write_head};
use crate::wire::{NoRoom, Reader, Truncated, Writer};

/// Bytes of a key.
pub const LEN: usize = 216;
/// Most bytes of a service name: `sun_path` of `unix(7)`.
pub const NAME_MAX: usize = 108;

/// The key's content; `S` is bytes, owned by those that were decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mkey<S = Vec<u8>> {
    /// Who exports.
    pub exporter: Identity,
    /// The line of the export table.
    pub slot: u32,
    /// The export's secret.
    pub token: Token,
    /// Descriptor and inode of the region's memfd.
    pub region: (u32, u64),
    /// Descriptors and inodes of the export table and the vault.
    pub files: FileNumbers,
    /// The name of the abstract service socket.
    pub service: S,
    /// Whether the exporter also listens in the directory that its UCX_SERVICE_DIR names.
    pub in_directory: bool,
}

impl<S: AsRef<[u8]>> Mkey<S> {
    /// Writes the key to all of `out`.
    ///
    /// # Errors
    /// `out` has less than [`LEN`] bytes, or the service name more than [`NAME_MAX`].
    pub fn encode(&self, out: &mut [u8]) -> Result<(), NoRoom> {
        let service = self.service.as_ref();
        let mut name = [0; NAME_MAX];
        let room = NoRoom { offset: 104, needed: service.len() };
        name.get_mut(..service.len()).ok_or(room)?.copy_from_slice(service);
        let len = u8::try_from(service.len()).map_err(|_| room)?;
        let mut to = Writer::new(out);
        write_head(&mut to, &self.exporter, self.slot, &self.token)?;
        to.u64(self.region.1)?.u64(self.files.table.1)?.u64(self.files.vault.1)?;
        to.u32(self.region.0)?.u32(self.files.table.0)?.u32(self.files.vault.0)?;
        to.u8(service_kind(self.in_directory))?.u8(len)?.u16(0)?.bytes(&name)?.u32(0)?;
        Ok(())
    }
}

impl Mkey {
    /// Reads a key: total, and canonical (what it accepts, `encode` writes again).
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        if bytes.len() != LEN {
            return Err("an shm key has 216 bytes");
        }
        Self::read(&mut Reader::new(bytes)).unwrap_or(Err("it ends too early"))
    }

    fn read(from: &mut Reader<'_>) -> Result<Result<Self, &'static str>, Truncated> {
        let (exporter, slot, token) = read_head(from)?;
        let inodes = (from.u64()?, from.u64()?, from.u64()?);
        let fds = (from.u32()?, from.u32()?, from.u32()?);
        let (kind, len, reserved) = (from.u8()?, from.u8()?, from.u16()?);
        let name = from.bytes(NAME_MAX)?;
        let end = from.u32()?;
        let in_directory = match is_in_directory(kind) {
            Ok(in_directory) => in_directory,
            Err(wrong) => return Ok(Err(wrong)),
        };
        let Some((service, padding)) = name.split_at_checked(usize::from(len)) else {
            return Ok(Err("the service name is too long"));
        };
        if reserved != 0 || end != 0 || padding.iter().any(|byte| *byte != 0) {
            return Ok(Err("a reserved byte is not zero"));
        }
        Ok(Ok(Self {
            exporter,
            slot,
            token,
            region: (fds.0, inodes.0),
            files: FileNumbers { table: (fds.1, inodes.1), vault: (fds.2, inodes.2) },
            service: service.to_vec(),
            in_directory,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn sample() -> Mkey {
        Mkey {
            exporter: Identity { pid: 1, pidfd_inode: 2, start_time: 3, pid_ns: 4, net_ns: 5, user_ns: 6 },
            slot: 7,
            token: Token::from_bytes(*b"a token of 16 by"),
            region: (8, 9),
            files: FileNumbers { table: (10, 11), vault: (12, 13) },
            service: b"rucx-name".to_vec(),
            in_directory: true,
        }
    }

    #[test]
    fn comes_back_as_it_went() {
        let mut bytes = [0xff; LEN];
        sample().encode(&mut bytes).unwrap();
        assert_eq!(Mkey::decode(&bytes), Ok(sample()));
    }

    #[test]
    fn is_canonical_in_every_byte() {
        let mut bytes = [0; LEN];
        sample().encode(&mut bytes).unwrap();
        for at in 0..LEN {
            let mut changed = bytes;
            changed[at] ^= 0x55;
            if let Ok(key) = Mkey::decode(&changed) {
                let mut again = [0; LEN];
                key.encode(&mut again).unwrap();
                assert_eq!(again, changed, "byte {at}");
            }
        }
    }

    #[test]
    fn every_truncation_is_refused() {
        let mut bytes = [0; LEN];
        sample().encode(&mut bytes).unwrap();
        for len in 0..LEN {
            assert!(Mkey::decode(&bytes[..len]).is_err(), "{len} bytes");
        }
    }
}
