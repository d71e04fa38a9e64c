//! The messages between services of two machines, version 1, little-endian, on a stream: hellos, then calls and their replies.
//!
//! A token is never sent: each call proves by HMAC-SHA256 that its sender has it, and each answer that the other side has it, too.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use ucs::Status;

use crate::export::Token;
use crate::service::wire::check;
use crate::wire::{NoRoom, Reader, Writer};

pub use crate::service::wire::DecodeError;

/// Bytes of the hello of the side that listens.
pub const WELCOME_LEN: usize = 24;
/// Bytes of the hello of the side that connects.
pub const HELLO_LEN: usize = 40;
/// Bytes of a call before its subject, and of a reply before its content.
pub const HEADER_LEN: usize = 48;
/// Most bytes of a subject.
pub const MAX_SUBJECT: usize = 256;
/// Most bytes of a request, and of a reply's content.
pub const MAX_BODY: usize = 1024;
/// Most bytes of a message.
pub const MAX_FRAME: usize = HEADER_LEN + MAX_SUBJECT + MAX_BODY;

const MAGIC: [u8; 4] = *b"RXNS";
const VERSION: u16 = 1;
const WELCOME: u16 = 1;
const HELLO: u16 = 2;
const CALL_LABEL: &[u8; 16] = b"rucx net call 1\0";
const REPLY_LABEL: &[u8; 16] = b"rucx net reply1\0";

/// Bytes of a proof.
pub const MAC_LEN: usize = 32;

fn exactly(bytes: &[u8], expected: usize) -> Result<Reader<'_>, DecodeError> {
    if bytes.len() != expected {
        return Err(DecodeError::Length { expected, found: bytes.len() });
    }
    Ok(Reader::new(bytes))
}

fn whole_header(bytes: &[u8]) -> Result<Reader<'_>, DecodeError> {
    let is_whole = bytes.len() >= HEADER_LEN;
    if is_whole { Ok(Reader::new(bytes)) } else { exactly(bytes, HEADER_LEN) }
}

fn begin(from: &mut Reader<'_>, role: u16) -> Result<(), DecodeError> {
    check(from.array()? == MAGIC, "magic")?;
    check(from.u16()? == VERSION, "version")?;
    check(from.u16()? == role, "role")
}

/// What the side that listens says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Random, of this connection.
    pub nonce: [u8; 16],
}

impl Welcome {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; WELCOME_LEN] {
        let mut bytes = [0; WELCOME_LEN];
        let written = self.write(&mut Writer::new(&mut bytes));
        debug_assert!(written.is_ok(), "WELCOME_LEN holds it");
        bytes
    }

    fn write(&self, to: &mut Writer<'_>) -> Result<(), NoRoom> {
        to.bytes(&MAGIC)?.u16(VERSION)?.u16(WELCOME)?.bytes(&self.nonce)?;
        Ok(())
    }

    /// Reads it: total, and canonical.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut from = exactly(bytes, WELCOME_LEN)?;
        begin(&mut from, WELCOME)?;
        Ok(Self { nonce: from.array()? })
    }
}

/// What the side that connects says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The context it wants.
    pub uuid: [u8; 16],
    /// Random, of this connection.
    pub nonce: [u8; 16],
}

impl Hello {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HELLO_LEN] {
        let mut bytes = [0; HELLO_LEN];
        let written = self.write(&mut Writer::new(&mut bytes));
        debug_assert!(written.is_ok(), "HELLO_LEN holds it");
        bytes
    }

    fn write(&self, to: &mut Writer<'_>) -> Result<(), NoRoom> {
        to.bytes(&MAGIC)?.u16(VERSION)?.u16(HELLO)?.bytes(&self.uuid)?.bytes(&self.nonce)?;
        Ok(())
    }

    /// Reads it: total, and canonical.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut from = exactly(bytes, HELLO_LEN)?;
        begin(&mut from, HELLO)?;
        Ok(Self { uuid: from.array()?, nonce: from.array()? })
    }
}

/// What both sides of a connection have said: each proof is of this connection, and of no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// The context that answers.
    pub uuid: [u8; 16],
    /// Of the side that listens.
    pub server: [u8; 16],
    /// Of the side that connects.
    pub client: [u8; 16],
}

impl Greeting {
    fn mac(&self, token: &Token, label: &[u8; 16], sequence: u32) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(token.as_bytes()).ok()?;
        for part in [label, &self.uuid, &self.server, &self.client] {
            mac.update(part);
        }
        mac.update(&sequence.to_le_bytes());
        Some(mac)
    }

    fn of_call(&self, token: &Token, call: &Call<'_>) -> Option<Hmac<Sha256>> {
        let mut mac = self.mac(token, CALL_LABEL, call.sequence)?;
        mac.update(&call.kind.to_le_bytes());
        mac.update(&(call.subject.len() as u64).to_le_bytes());
        mac.update(call.subject);
        mac.update(call.request);
        Some(mac)
    }

    fn of_reply(&self, token: &Token, call: &[u8; MAC_LEN], reply: &Reply<'_>) -> Option<Hmac<Sha256>> {
        let mut mac = self.mac(token, REPLY_LABEL, reply.sequence)?;
        mac.update(call);
        mac.update(&reply.verdict.code().to_le_bytes());
        mac.update(&reply.verdict.status_code().to_le_bytes());
        mac.update(reply.content);
        Some(mac)
    }

    /// Has `call` prove that its sender has `token`.
    pub fn prove(&self, token: &Token, call: &mut Call<'_>) {
        call.mac = self.of_call(token, call).map_or([0; MAC_LEN], finish);
    }

    /// Whether `call` proves it, in constant time.
    #[must_use]
    pub fn is_proven(&self, token: &Token, call: &Call<'_>) -> bool {
        self.of_call(token, call).is_some_and(|mac| mac.verify_slice(&call.mac).is_ok())
    }

    /// Has `reply` prove that its sender has `token`, and that it answers the call with this proof.
    pub fn prove_reply(&self, token: &Token, call: &[u8; MAC_LEN], reply: &mut Reply<'_>) {
        reply.mac = self.of_reply(token, call, reply).map_or([0; MAC_LEN], finish);
    }

    /// Whether `reply` proves it, in constant time.
    #[must_use]
    pub fn is_reply_proven(&self, token: &Token, call: &[u8; MAC_LEN], reply: &Reply<'_>) -> bool {
        self.of_reply(token, call, reply).is_some_and(|mac| mac.verify_slice(&reply.mac).is_ok())
    }
}

fn finish(mac: Hmac<Sha256>) -> [u8; MAC_LEN] {
    mac.finalize().into_bytes().into()
}

/// A call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Call<'a> {
    /// 1 for the first of a connection, and one more each time.
    pub sequence: u32,
    /// Who is to answer it.
    pub kind: u16,
    /// What it is about.
    pub subject: &'a [u8],
    /// What is wanted.
    pub request: &'a [u8],
    /// The proof.
    pub mac: [u8; MAC_LEN],
}

impl fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("sequence", &self.sequence)
            .field("kind", &self.kind)
            .field("subject", &Bytes(self.subject.len()))
            .field("request", &Bytes(self.request.len()))
            .finish_non_exhaustive()
    }
}

/// Bytes of the user's, whose number alone is shown.
struct Bytes(usize);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} bytes>", self.0)
    }
}

impl<'a> Call<'a> {
    /// Its bytes.
    ///
    /// # Errors
    /// [`NoRoom`]: the subject or the request is too long.
    pub fn encode(&self) -> Result<Vec<u8>, NoRoom> {
        let subject = short(self.subject, MAX_SUBJECT)?;
        let request = short(self.request, MAX_BODY)?;
        let mut bytes = vec![0; HEADER_LEN + self.subject.len() + self.request.len()];
        let mut to = Writer::new(&mut bytes);
        to.u32(self.sequence)?.u16(self.kind)?.u16(subject)?.u16(request)?.u16(0)?.u32(0)?;
        to.bytes(&self.mac)?.bytes(self.subject)?.bytes(self.request)?;
        Ok(bytes)
    }

    /// Bytes of the whole message that begins with this header.
    ///
    /// # Errors
    /// [`DecodeError`]: a part is too long, or the header is not whole.
    pub fn frame_len(header: &[u8]) -> Result<usize, DecodeError> {
        let (_, subject, request) = Self::lengths(&mut whole_header(header)?)?;
        Ok(HEADER_LEN + subject + request)
    }

    fn lengths(from: &mut Reader<'_>) -> Result<((u32, u16), usize, usize), DecodeError> {
        let (sequence, kind) = (from.u32()?, from.u16()?);
        let (subject, request) = (usize::from(from.u16()?), usize::from(from.u16()?));
        check(subject <= MAX_SUBJECT, "length of a subject")?;
        check(request <= MAX_BODY, "length of a request")?;
        Ok(((sequence, kind), subject, request))
    }

    /// Reads it: total, and canonical.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut from = whole_header(bytes)?;
        let ((sequence, kind), subject, request) = Self::lengths(&mut from)?;
        exactly(bytes, HEADER_LEN + subject + request)?;
        check(from.u16()? == 0 && from.u32()? == 0, "reserved field")?;
        let mac = from.array()?;
        Ok(Self { sequence, kind, mac, subject: from.bytes(subject)?, request: from.bytes(request)? })
    }
}

fn short(bytes: &[u8], most: usize) -> Result<u16, NoRoom> {
    let no_room = NoRoom { offset: most, needed: bytes.len().saturating_sub(most) };
    u16::try_from(bytes.len()).ok().filter(|len| usize::from(*len) <= most).ok_or(no_room)
}

/// What became of a hello or a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The call was proven, and this is what its responder says: with a proof and, if it is [`Status::Ok`], a content.
    Answered(Status),
    /// To a hello: calls may come.
    Ready,
    /// To a hello: this is another context.
    OtherContext,
    /// The call was proven with the token of something that has ended: with a proof, too.
    Stale,
    /// The call is not proven. It has no proof: who alters a call on its way could have any peer say it.
    Denied,
    /// No such subject is known, or nobody answers the kind: there is no token to prove it with.
    Unknown,
}

/// All that a responder may say.
const STATUSES: [Status; 32] = [
    Status::Ok,
    Status::NoMessage,
    Status::NoResource,
    Status::IoError,
    Status::NoMemory,
    Status::InvalidParam,
    Status::Unreachable,
    Status::InvalidAddr,
    Status::NotImplemented,
    Status::MessageTruncated,
    Status::NoProgress,
    Status::BufferTooSmall,
    Status::NoElem,
    Status::NoDevice,
    Status::Busy,
    Status::Canceled,
    Status::ShmemSegment,
    Status::AlreadyExists,
    Status::OutOfRange,
    Status::TimedOut,
    Status::ExceedsLimit,
    Status::Unsupported,
    Status::Rejected,
    Status::NotConnected,
    Status::ConnectionReset,
    Status::EndpointTimeout,
    Status::InProgress,
    Status::Stale,
    Status::AccessDenied,
    Status::InvalidHandle,
    Status::NotRevoked,
    Status::Forked,
];

impl Verdict {
    /// Whether its reply proves that its sender has the token.
    fn has_proof(self) -> bool {
        matches!(self, Self::Answered(_) | Self::Stale)
    }

    fn code(self) -> u16 {
        match self {
            Self::Answered(_) => 0,
            Self::Ready => 1,
            Self::OtherContext => 2,
            Self::Stale => 3,
            Self::Denied => 4,
            Self::Unknown => 5,
        }
    }

    fn status_code(self) -> u16 {
        if let Self::Answered(status) = self { u16::from(status as u8) } else { 0 }
    }

    fn from_codes(code: u16, status: u16) -> Option<Self> {
        if code == 0 {
            let status = STATUSES.into_iter().find(|known| u16::from(*known as u8) == status)?;
            return Some(Self::Answered(status));
        }
        let verdict = [Self::Ready, Self::OtherContext, Self::Stale, Self::Denied, Self::Unknown]
            .into_iter()
            .find(|verdict| verdict.code() == code);
        verdict.filter(|_| status == 0)
    }
}

/// The answer to a hello or a call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Reply<'a> {
    /// The call's; 0 to a hello.
    pub sequence: u32,
    /// Yes or no.
    pub verdict: Verdict,
    /// What the responder says, if it says [`Status::Ok`].
    pub content: &'a [u8],
    /// The proof, of an answer and of [`Verdict::Stale`]; else zeros.
    pub mac: [u8; MAC_LEN],
}

impl fmt::Debug for Reply<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply")
            .field("sequence", &self.sequence)
            .field("verdict", &self.verdict)
            .field("content", &Bytes(self.content.len()))
            .finish_non_exhaustive()
    }
}

impl<'a> Reply<'a> {
    /// One without a content or, yet, a proof.
    #[must_use]
    pub fn without(sequence: u32, verdict: Verdict) -> Self {
        Self { sequence, verdict, content: &[], mac: [0; MAC_LEN] }
    }

    /// Its bytes.
    ///
    /// # Errors
    /// [`NoRoom`]: the content is too long.
    pub fn encode(&self) -> Result<Vec<u8>, NoRoom> {
        let content = short(self.content, MAX_BODY)?;
        let mut bytes = vec![0; HEADER_LEN + self.content.len()];
        let mut to = Writer::new(&mut bytes);
        to.u32(self.sequence)?.u16(self.verdict.code())?.u16(self.verdict.status_code())?;
        to.u16(content)?.u16(0)?.u32(0)?.bytes(&self.mac)?.bytes(self.content)?;
        Ok(bytes)
    }

    /// Bytes of the whole message that begins with this header.
    ///
    /// # Errors
    /// [`DecodeError`]: its content is too long, or the header is not whole.
    pub fn frame_len(header: &[u8]) -> Result<usize, DecodeError> {
        let mut from = whole_header(header)?;
        from.bytes(8)?;
        let content = usize::from(from.u16()?);
        check(content <= MAX_BODY, "length of a reply")?;
        Ok(HEADER_LEN + content)
    }

    /// Reads it: total, and canonical.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        exactly(bytes, Self::frame_len(bytes)?)?;
        let mut from = Reader::new(bytes);
        let sequence = from.u32()?;
        let verdict = Verdict::from_codes(from.u16()?, from.u16()?).ok_or(DecodeError::Unknown("verdict"))?;
        let len = usize::from(from.u16()?);
        check(from.u16()? == 0 && from.u32()? == 0, "reserved field")?;
        let (mac, content) = (from.array()?, from.bytes(len)?);
        check(content.is_empty() || verdict == Verdict::Answered(Status::Ok), "content")?;
        check(verdict.has_proof() || mac == [0; MAC_LEN], "proof")?;
        Ok(Self { sequence, verdict, content, mac })
    }
}
