//! The messages on the service socket, version 1, little-endian: one request, introduction or placing, one reply, each of fixed length.

use crate::export::{Claim, Refusal, Token};
use crate::memory::Rights;
use crate::wire::{NoRoom, Reader, Truncated, Writer};

/// Bytes of a request.
pub const REQUEST_LEN: usize = 88;
/// Bytes of a reply.
pub const REPLY_LEN: usize = 32;
/// Most descriptors a reply carries: the memory, the table, the in-flight page, in this order, as far as they were wanted.
pub const MAX_FDS: usize = 3;

const REQUEST_MAGIC: [u8; 4] = *b"RXSQ";
const REPLY_MAGIC: [u8; 4] = *b"RXSA";
const PLACED_MAGIC: [u8; 4] = *b"RXSP";
const VERSION: u16 = 1;
const ATTACH: u16 = 1;
const CONNECT: u16 = 2;
const PLACE: u16 = 3;
const UNPLACE: u16 = 4;
const WANT_CONTROL: u32 = 1;
const WITHOUT_MEMORY: u32 = 4;

/// An importer asks for an export's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Comes back in the reply.
    pub sequence: u32,
    /// Whether the table and an in-flight page are wanted, too.
    pub want_control: bool,
    /// Whether the memory's descriptor is wanted; without it the exporter only takes note that the importer accesses the export.
    pub want_memory: bool,
    /// The context that exports.
    pub uuid: [u8; 16],
    /// What the handle says, with the token.
    pub claim: Claim,
}

/// A worker asks to be connected with a worker of the context asked: with it comes the descriptor of the memory that both are to share.
///
/// As long as a [`Request`], so that one message is read before it is known which it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Introduction {
    /// Comes back in the reply.
    pub sequence: u32,
    /// The context asked.
    pub uuid: [u8; 16],
    /// The number of its worker.
    pub worker: u32,
    /// That worker's secret, from its address.
    pub token: Token,
    /// The context that asks, as it says.
    pub from: [u8; 16],
    /// Bytes of the memory that comes along.
    pub length: u64,
}

/// An importer asks to have an export's memory registered in a protection domain of its own RDMA device: the command descriptor of the
/// domain's context comes along.
///
/// As long as a [`Request`], as which it is laid out, with the domain where that has nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placing {
    /// Comes back in the reply.
    pub sequence: u32,
    /// The context that exports.
    pub uuid: [u8; 16],
    /// What the handle says, with the token.
    pub claim: Claim,
    /// The kernel's number of the domain, in its context.
    pub domain: u32,
}

/// The reply that grants a [`Placing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedKeys {
    /// The placing's.
    pub sequence: u32,
    /// For requests that use the memory as their local buffer.
    pub lkey: u32,
    /// For requests that reach it over a queue pair of the same domain.
    pub rkey: u32,
    /// The kernel's number of the registration, in the domain's context.
    pub handle: u32,
}

/// One of the messages that a service is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// To place an export's memory.
    Place(Placing),
    /// What was placed by the message with this sequence number is needed no more. There is no reply.
    Unplace(u32),
    /// For an export's memory.
    Attach(Request),
    /// For a connection of two workers.
    Connect(Introduction),
}

impl Message {
    /// Reads either: total, and canonical.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        match begin(bytes)?.1 {
            ATTACH => Request::decode(bytes).map(Self::Attach),
            CONNECT => Introduction::decode(bytes).map(Self::Connect),
            PLACE => Placing::decode(bytes).map(Self::Place),
            UNPLACE => decode_unplace(bytes).map(Self::Unplace),
            _ => Err(DecodeError::Unknown("kind")),
        }
    }
}

impl Introduction {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; REQUEST_LEN] {
        let mut bytes = [0; REQUEST_LEN];
        let written = self.write(&mut Writer::new(&mut bytes));
        debug_assert!(written.is_ok(), "REQUEST_LEN holds an introduction");
        bytes
    }

    fn write(&self, to: &mut Writer<'_>) -> Result<(), NoRoom> {
        to.bytes(&REQUEST_MAGIC)?.u16(VERSION)?.u16(CONNECT)?;
        to.u32(self.sequence)?.u32(0)?;
        to.bytes(&self.uuid)?.bytes(&self.from)?;
        to.u64(self.length)?.u64(0)?;
        to.u32(self.worker)?.u32(0)?.bytes(self.token.as_bytes())?;
        Ok(())
    }

    /// Reads an introduction: total, and canonical.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (mut from, kind) = begin(bytes)?;
        check(kind == CONNECT, "kind")?;
        let sequence = from.u32()?;
        check(from.u32()? == 0, "flag")?;
        let (uuid, sender) = (from.array()?, from.array()?);
        let length = from.u64()?;
        check(from.u64()? == 0, "reserved field")?;
        let worker = from.u32()?;
        check(from.u32()? == 0, "reserved field")?;
        let token = Token::from_bytes(from.array()?);
        Ok(Self { sequence, uuid, worker, token, from: sender, length })
    }
}

impl Placing {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; REQUEST_LEN] {
        let mut bytes = [0; REQUEST_LEN];
        let written = write_claim(
            &mut Writer::new(&mut bytes),
            PLACE,
            (self.sequence, 0),
            (&self.uuid, &self.claim),
            self.domain,
        );
        debug_assert!(written.is_ok(), "REQUEST_LEN holds a placing");
        bytes
    }

    /// Reads a placing: total, and canonical.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let ((sequence, flags), uuid, claim, domain) = read_claim(bytes, PLACE)?;
        check(flags == 0, "flag")?;
        Ok(Self { sequence, uuid, claim, domain })
    }
}

impl PlacedKeys {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; REPLY_LEN] {
        let mut bytes = [0; REPLY_LEN];
        let written = self.write(&mut Writer::new(&mut bytes));
        debug_assert!(written.is_ok(), "REPLY_LEN holds the keys");
        bytes
    }

    fn write(&self, to: &mut Writer<'_>) -> Result<(), NoRoom> {
        to.bytes(&PLACED_MAGIC)?.u16(VERSION)?.u16(0)?.u32(self.sequence)?;
        to.u32(self.lkey)?.u32(self.rkey)?.u32(self.handle)?.u64(0)?;
        Ok(())
    }

    /// Reads the keys: total, and canonical. `None`: it is another reply.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, DecodeError> {
        if bytes.len() != REPLY_LEN {
            return Err(DecodeError::Length { expected: REPLY_LEN, found: bytes.len() });
        }
        let mut from = Reader::new(bytes);
        if from.array()? != PLACED_MAGIC {
            return Ok(None);
        }
        check(from.u16()? == VERSION, "version")?;
        check(from.u16()? == 0, "reserved field")?;
        let (sequence, lkey, rkey, handle) = (from.u32()?, from.u32()?, from.u32()?, from.u32()?);
        check(from.u64()? == 0, "reserved field")?;
        Ok(Some(Self { sequence, lkey, rkey, handle }))
    }
}

/// The message that a placement is needed no more: the sequence number of the one that asked for it.
#[must_use]
pub fn encode_unplace(sequence: u32) -> [u8; REQUEST_LEN] {
    let mut bytes = [0; REQUEST_LEN];
    let written = write_unplace(&mut Writer::new(&mut bytes), sequence);
    debug_assert!(written.is_ok(), "REQUEST_LEN holds it");
    bytes
}

fn write_unplace(to: &mut Writer<'_>, sequence: u32) -> Result<(), NoRoom> {
    to.bytes(&REQUEST_MAGIC)?.u16(VERSION)?.u16(UNPLACE)?.u32(sequence)?;
    Ok(())
}

fn decode_unplace(bytes: &[u8]) -> Result<u32, DecodeError> {
    let (mut from, kind) = begin(bytes)?;
    check(kind == UNPLACE, "kind")?;
    let sequence = from.u32()?;
    check(from.bytes(from.remaining())?.iter().all(|byte| *byte == 0), "reserved field")?;
    Ok(sequence)
}

/// Writes a message with a claim.
fn write_claim(
    to: &mut Writer<'_>,
    kind: u16,
    (sequence, flags): (u32, u32),
    (uuid, claim): (&[u8; 16], &Claim),
    last: u32,
) -> Result<(), NoRoom> {
    to.bytes(&REQUEST_MAGIC)?.u16(VERSION)?.u16(kind)?;
    to.u32(sequence)?.u32(flags)?;
    to.bytes(uuid)?;
    to.u64(claim.id)?.u64(claim.epoch)?.u64(claim.address)?.u64(claim.length)?;
    to.u32(claim.slot)?.u32(last)?.bytes(claim.token.as_bytes())?;
    Ok(())
}

/// Sequence and flags, uuid, claim, and the word behind the slot, of a message of this kind.
type WithClaim = ((u32, u32), [u8; 16], Claim, u32);

/// Reads a message with a claim.
fn read_claim(bytes: &[u8], wanted: u16) -> Result<WithClaim, DecodeError> {
    let (mut from, kind) = begin(bytes)?;
    check(kind == wanted, "kind")?;
    let (sequence, flags) = (from.u32()?, from.u32()?);
    let uuid = from.array()?;
    let (id, epoch, address, length) = (from.u64()?, from.u64()?, from.u64()?, from.u64()?);
    let (slot, last) = (from.u32()?, from.u32()?);
    let token = Token::from_bytes(from.array()?);
    Ok(((sequence, flags), uuid, Claim { slot, id, epoch, address, length, token }, last))
}

/// Reads what all messages begin with; answers the kind.
fn begin(bytes: &[u8]) -> Result<(Reader<'_>, u16), DecodeError> {
    if bytes.len() != REQUEST_LEN {
        return Err(DecodeError::Length { expected: REQUEST_LEN, found: bytes.len() });
    }
    let mut from = Reader::new(bytes);
    check(from.array()? == REQUEST_MAGIC, "magic")?;
    check(from.u16()? == VERSION, "version")?;
    let kind = from.u16()?;
    Ok((from, kind))
}

/// What the exporter says to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Granted; descriptors come along.
    Granted,
    /// Refused.
    Refused(Refusal),
    /// The memory is of a kind that has no descriptor.
    NoDescriptor,
    /// The exporter has not the means now.
    NoResource,
    /// The worker has as many connections as it lets come, or half of them are of the process that asks.
    TooMany,
    /// The memory is not placed in other processes' domains: not allowed here, or no such device.
    NotPlaced,
}

/// The exporter's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The request's.
    pub sequence: u32,
    /// Yes or no.
    pub verdict: Verdict,
    /// What the importer may do.
    pub rights: Rights,
    /// Bytes of the region.
    pub length: u64,
    /// How many descriptors come along.
    pub fds: u32,
}

/// Bytes are no message of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// They end too early, or go on too long.
    #[error("a message of {found} bytes where {expected} were expected")]
    Length {
        /// Bytes a message has.
        expected: usize,
        /// Bytes that came.
        found: usize,
    },
    /// Another kind, another version, or a value that has no meaning.
    #[error("a message with an unknown {0}")]
    Unknown(&'static str),
}

impl From<Truncated> for DecodeError {
    fn from(error: Truncated) -> Self {
        Self::Length { expected: error.offset + error.needed, found: error.offset }
    }
}

pub(super) fn check(holds: bool, what: &'static str) -> Result<(), DecodeError> {
    if holds { Ok(()) } else { Err(DecodeError::Unknown(what)) }
}

impl Request {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; REQUEST_LEN] {
        let mut bytes = [0; REQUEST_LEN];
        let written = self.write(&mut Writer::new(&mut bytes));
        debug_assert!(written.is_ok(), "REQUEST_LEN holds a request");
        bytes
    }

    fn flags(&self) -> u32 {
        let control = if self.want_control { WANT_CONTROL } else { 0 };
        control | if self.want_memory { 0 } else { WITHOUT_MEMORY }
    }

    /// How many descriptors come with the reply that grants it.
    #[must_use]
    pub fn fds(&self) -> usize {
        usize::from(self.want_memory) + if self.want_control { 2 } else { 0 }
    }

    fn write(&self, to: &mut Writer<'_>) -> Result<(), NoRoom> {
        write_claim(to, ATTACH, (self.sequence, self.flags()), (&self.uuid, &self.claim), 0)
    }

    /// Reads a request: total, and canonical (what it accepts, `encode` writes again).
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let ((sequence, flags), uuid, claim, last) = read_claim(bytes, ATTACH)?;
        check(flags & !(WANT_CONTROL | WITHOUT_MEMORY) == 0, "flag")?;
        check(last == 0, "reserved field")?;
        let (want_control, want_memory) = (flags & WANT_CONTROL != 0, flags & WITHOUT_MEMORY == 0);
        Ok(Self { sequence, want_control, want_memory, uuid, claim })
    }
}

impl Verdict {
    fn code(self) -> u16 {
        match self {
            Self::Granted => 0,
            Self::Refused(Refusal::Stale) => 1,
            Self::Refused(Refusal::WrongToken) => 2,
            Self::Refused(Refusal::Mismatch) => 3,
            Self::NoDescriptor => 4,
            Self::NoResource => 5,
            Self::TooMany => 7,
            Self::NotPlaced => 8,
        }
    }

    fn from_code(code: u16) -> Option<Self> {
        Some(match code {
            0 => Self::Granted,
            1 => Self::Refused(Refusal::Stale),
            2 => Self::Refused(Refusal::WrongToken),
            3 => Self::Refused(Refusal::Mismatch),
            4 => Self::NoDescriptor,
            5 => Self::NoResource,
            7 => Self::TooMany,
            8 => Self::NotPlaced,
            _ => return None,
        })
    }
}

impl Reply {
    /// A reply that grants nothing.
    #[must_use]
    pub fn without(verdict: Verdict, sequence: u32) -> Self {
        Self { sequence, verdict, rights: Rights::empty(), length: 0, fds: 0 }
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; REPLY_LEN] {
        let mut bytes = [0; REPLY_LEN];
        let written = self.write(&mut Writer::new(&mut bytes));
        debug_assert!(written.is_ok(), "REPLY_LEN holds a reply");
        bytes
    }

    fn write(&self, to: &mut Writer<'_>) -> Result<(), NoRoom> {
        to.bytes(&REPLY_MAGIC)?.u16(VERSION)?.u16(self.verdict.code())?;
        to.u32(self.sequence)?.u32(self.rights.bits())?.u64(self.length)?.u32(self.fds)?.u32(0)?;
        Ok(())
    }

    /// Reads a reply: total, and canonical.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        if bytes.len() != REPLY_LEN {
            return Err(DecodeError::Length { expected: REPLY_LEN, found: bytes.len() });
        }
        let mut from = Reader::new(bytes);
        check(from.array()? == REPLY_MAGIC, "magic")?;
        check(from.u16()? == VERSION, "version")?;
        let verdict = Verdict::from_code(from.u16()?).ok_or(DecodeError::Unknown("verdict"))?;
        let sequence = from.u32()?;
        let rights = Rights::from_bits(from.u32()?).ok_or(DecodeError::Unknown("right"))?;
        let length = from.u64()?;
        let fds = from.u32()?;
        check(fds as usize <= MAX_FDS, "number of descriptors")?;
        check(from.u32()? == 0, "reserved field")?;
        Ok(Self { sequence, verdict, rights, length, fds })
    }
}
