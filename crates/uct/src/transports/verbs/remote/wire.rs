//! What importers of other machines ask of `verbs`, little-endian. The frames that carry it, and the proof of the token, are the service's.
//!
//! The subject of all calls, 48 bytes:
//!
//! ```text
//!   0 device_guid [8]   the exporter's, as in the key
//!   8 slot u32          line of the export table
//!  12 reserved u32      0
//!  16 id u64
//!  24 epoch u64
//!  32 address u64
//!  40 length u64
//! ```
//!
//! Requests begin with eight bytes: `kind` u8, `lane` u8 (of a connection only), and six that are 0.
//!
//! ```text
//!  kind         request                            reply
//!  1 attach     8 bytes                            16: rkey u32, rights u32 (bit 0 read, bit 1 write), reserved u64 = 0
//!  2 connect    40: and the importer's QpAddress   32: the exporter's QpAddress
//!  3 detach     8 bytes                            none
//!  4 check      8 bytes                            none
//! ```

use crate::export::Claim;
use crate::memory::Rights;
use crate::transports::verbs::wire::{self, QpAddress};
use crate::wire::{NoRoom, Reader, Truncated, Writer};

/// Bytes of a subject.
pub const SUBJECT_LEN: usize = 48;
/// Lanes that an importer may have.
pub const LANES: u8 = 2;
/// Bytes of a request without an address.
const SHORT_LEN: usize = 8;
/// Bytes of the reply to an attachment.
pub const ATTACHED_LEN: usize = 16;

const ATTACH: u8 = 1;
const CONNECT: u8 = 2;
const DETACH: u8 = 3;
const CHECK: u8 = 4;

/// Which export a call is about. Its token is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The exporter's device.
    pub guid: [u8; 8],
    /// The line of the export table.
    pub slot: u32,
    /// The export's id.
    pub id: u64,
    /// The epoch in which it lives.
    pub epoch: u64,
    /// Where the memory begins in the exporter's address space.
    pub address: u64,
    /// How many bytes.
    pub length: u64,
}

impl Subject {
    /// What a claim is about.
    #[must_use]
    pub fn new(guid: [u8; 8], claim: &Claim) -> Self {
        let Claim { slot, id, epoch, address, length, .. } = *claim;
        Self { guid, slot, id, epoch, address, length }
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; SUBJECT_LEN] {
        let mut bytes = [0; SUBJECT_LEN];
        let written = self.write(&mut Writer::new(&mut bytes));
        debug_assert!(written.is_ok(), "SUBJECT_LEN holds a subject");
        bytes
    }

    fn write(&self, to: &mut Writer<'_>) -> Result<(), NoRoom> {
        to.bytes(&self.guid)?.u32(self.slot)?.u32(0)?;
        to.u64(self.id)?.u64(self.epoch)?.u64(self.address)?.u64(self.length)?;
        Ok(())
    }

    /// Reads a subject: total, and canonical.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        if bytes.len() != SUBJECT_LEN {
            return Err("a subject has 48 bytes");
        }
        let mut from = Reader::new(bytes);
        let mut read = || -> Result<(Self, u32), Truncated> {
            let (guid, slot, reserved) = (from.array()?, from.u32()?, from.u32()?);
            let (id, epoch, address, length) = (from.u64()?, from.u64()?, from.u64()?, from.u64()?);
            Ok((Self { guid, slot, id, epoch, address, length }, reserved))
        };
        match read() {
            Ok((subject, 0)) => Ok(subject),
            Ok(_) => Err("a reserved field is not zero"),
            Err(_) => Err("it ends too early"),
        }
    }
}

/// What an importer asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// To register the memory for it.
    Attach,
    /// To connect a queue pair with its own, in the place of the one that this lane had.
    Connect {
        /// The lane: less than [`LANES`].
        lane: u8,
        /// Where the importer's is.
        address: QpAddress,
    },
    /// To end an attachment: the last one ends the registration.
    Detach,
    /// To say whether the export lives: its answer is the proof.
    Check,
}

impl Request {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (kind, lane) = match self {
            Self::Attach => (ATTACH, 0),
            Self::Connect { lane, .. } => (CONNECT, *lane),
            Self::Detach => (DETACH, 0),
            Self::Check => (CHECK, 0),
        };
        let mut bytes = vec![kind, lane, 0, 0, 0, 0, 0, 0];
        if let Self::Connect { address, .. } = self {
            bytes.extend_from_slice(&address.encode());
        }
        bytes
    }

    /// Reads a request: total, and canonical.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let (head, rest) = bytes.split_at_checked(SHORT_LEN).ok_or("it ends too early")?;
        let &[kind, lane, ref reserved @ ..] = head else { return Err("it ends too early") };
        if reserved.iter().any(|byte| *byte != 0) {
            return Err("a reserved byte is not zero");
        }
        if rest.len() != if kind == CONNECT { wire::LEN } else { 0 } {
            return Err("it is not as long as its kind");
        }
        match kind {
            CONNECT if lane < LANES => Ok(Self::Connect { lane, address: QpAddress::decode(rest)? }),
            CONNECT => Err("there are two lanes"),
            _ if lane != 0 => Err("a reserved byte is not zero"),
            ATTACH => Ok(Self::Attach),
            DETACH => Ok(Self::Detach),
            CHECK => Ok(Self::Check),
            _ => Err("unknown kind of request"),
        }
    }
}

/// The reply to an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The key of the registration.
    pub rkey: u32,
    /// What the importer may do.
    pub rights: Rights,
}

impl Attached {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; ATTACHED_LEN] {
        let mut bytes = [0; ATTACHED_LEN];
        let mut to = Writer::new(&mut bytes);
        let written = to.u32(self.rkey).and_then(|to| to.u32(self.rights.bits())).map(|_| ());
        debug_assert!(written.is_ok(), "ATTACHED_LEN holds it");
        bytes
    }

    /// Reads a reply: total, and canonical.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        if bytes.len() != ATTACHED_LEN {
            return Err("the reply to an attachment has 16 bytes");
        }
        let mut from = Reader::new(bytes);
        let mut read =
            || -> Result<(u32, u32, u64), Truncated> { Ok((from.u32()?, from.u32()?, from.u64()?)) };
        let (rkey, rights, reserved) = read().map_err(|_| "it ends too early")?;
        let rights = Rights::from_bits(rights).ok_or("unknown rights")?;
        if reserved != 0 {
            return Err("a reserved field is not zero");
        }
        Ok(Self { rkey, rights })
    }
}
