//! What two interfaces of `verbs` tell each other, version 1, little-endian, each of fixed length.
//!
//! The address of an interface, a secret:
//!
//! ```text
//!   0 context_uuid [16]   whose service to call
//!  16 token [16]          the interface's secret
//!  32 instance [8]        which interface it is of all that the context has ever had: the subject of a call
//!  40 kind u16            the kind of a call to it
//!  42 count u8            socket addresses: 1 to 4
//!  43 link u8             its port: 1 Ethernet (RoCE), 2 InfiniBand
//!  44 reserved [4] = 0
//!  48 sockets 4 × [24]    ip [16], IPv4 as ::ffff:a.b.c.d; port u16, not 0; reserved [6] = 0. Beyond `count` all is 0
//! ```
//!
//! A call, by which one connects:
//!
//! ```text
//!   0 queue pair [32]     of who connects, with receives posted ([`QpAddress`])
//!  32 context_uuid [16]   of who connects
//!  48 life u64            the connection with whose end the endpoint ends, by the number in an earlier reply; 0: this one
//!  56 receives u16        that are posted for messages: 2 to 32767
//!  58 reserved [6] = 0
//! ```
//!
//! Its reply:
//!
//! ```text
//!   0 queue pair [32]     that is connected with the caller's, with receives posted
//!  32 life u64            the number of the connection that was asked on, not 0
//!  40 receives u16        as in a call
//!  42 reserved [6] = 0
//! ```
//!
//! What begins each SEND on the connection of the queue pairs:
//!
//! ```text
//!   0 tag u24             the message's number; 0 but of a message
//!   3 kind u8             1 message, 2 greeting: the first of who has connected, 3 credits, 4 the end
//!   4 credits u16         receives that its sender has posted again since it said so last
//!   6 reserved u16 = 0
//! ```

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::export::Token;
use crate::transports::verbs::wire::{self as qp, QpAddress};
use crate::wire::{NoRoom, Reader, Truncated, Writer};

/// Bytes of an address.
pub const ADDRESS_LEN: usize = 48 + MAX_SOCKETS * 24;
/// Most socket addresses in an address.
pub const MAX_SOCKETS: usize = 4;
/// Bytes of a call.
pub const CALL_LEN: usize = qp::LEN + 32;
/// Bytes of a reply.
pub const REPLY_LEN: usize = qp::LEN + 16;
/// Bytes before a message's own.
pub const HEADER_LEN: usize = 8;

/// What kind of network a port is in: the two do not reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// RoCE v2.
    Ethernet = 1,
    /// InfiniBand.
    InfiniBand = 2,
}

/// The address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Its context.
    pub context_uuid: [u8; 16],
    /// Its secret.
    pub token: Token,
    /// Itself.
    pub instance: [u8; 8],
    /// The kind of a call to it.
    pub kind: u16,
    /// Its port.
    pub link: Link,
    /// Where its context's service listens: one at least, [`MAX_SOCKETS`] at most.
    pub sockets: Vec<SocketAddr>,
}

impl Address {
    /// Its bytes. Of more than [`MAX_SOCKETS`] addresses the first ones are written.
    #[must_use]
    pub fn encode(&self) -> [u8; ADDRESS_LEN] {
        let mut bytes = [0; ADDRESS_LEN];
        let written = self.write(&mut Writer::new(&mut bytes));
        debug_assert!(written.is_ok(), "ADDRESS_LEN holds an address");
        bytes
    }

    fn write(&self, to: &mut Writer<'_>) -> Result<(), NoRoom> {
        let count = u8::try_from(self.sockets.len().min(MAX_SOCKETS)).unwrap_or(0);
        to.bytes(&self.context_uuid)?.bytes(self.token.as_bytes())?.bytes(&self.instance)?;
        to.u16(self.kind)?.u8(count)?.u8(self.link as u8)?.bytes(&[0; 4])?;
        for socket in self.sockets.iter().take(MAX_SOCKETS) {
            let ip = match socket.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            to.bytes(&ip.octets())?.u16(socket.port())?.bytes(&[0; 6])?;
        }
        Ok(())
    }

    /// Reads an address: total, and canonical.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        if bytes.len() > ADDRESS_LEN {
            return Err("the address goes on too long");
        }
        Self::read(&mut Reader::new(bytes)).unwrap_or(Err("the address ends too early"))
    }

    fn read(from: &mut Reader<'_>) -> Result<Result<Self, &'static str>, Truncated> {
        let (context_uuid, token, instance) =
            (from.array()?, Token::from_bytes(from.array()?), from.array()?);
        let (kind, count, link, reserved) = (from.u16()?, from.u8()?, from.u8()?, from.array::<4>()?);
        let mut sockets = Vec::with_capacity(MAX_SOCKETS);
        for _ in 0..MAX_SOCKETS {
            sockets.push((from.array::<16>()?, from.u16()?, from.array::<6>()?));
        }
        let link = match link {
            1 => Link::Ethernet,
            2 => Link::InfiniBand,
            _ => return Ok(Err("the port is of no kind that is known")),
        };
        let count = usize::from(count);
        if reserved != [0; 4] {
            return Ok(Err("a reserved field of the address is not 0"));
        }
        if !(1..=MAX_SOCKETS).contains(&count) {
            return Ok(Err("the address has no socket addresses, or too many"));
        }
        if sockets.iter().skip(count).any(|socket| *socket != ([0; 16], 0, [0; 6])) {
            return Ok(Err("the address has more socket addresses than it says"));
        }
        let sockets = sockets.iter().take(count).map(socket_of).collect::<Result<_, _>>();
        Ok(sockets.map(|sockets| Self { context_uuid, token, instance, kind, link, sockets }))
    }
}

fn socket_of((ip, port, reserved): &([u8; 16], u16, [u8; 6])) -> Result<SocketAddr, &'static str> {
    let ip = Ipv6Addr::from(*ip).to_canonical();
    match () {
        () if *reserved != [0; 6] => Err("a reserved field of the address is not 0"),
        () if ip.is_unspecified() || *port == 0 => Err("a socket address names nobody"),
        () => Ok(SocketAddr::new(ip, *port)),
    }
}

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The caller's queue pair.
    pub qp: QpAddress,
    /// The caller's context.
    pub context_uuid: [u8; 16],
    /// The connection that the endpoint ends with; 0: the one of this call.
    pub life: u64,
    /// Receives posted for messages.
    pub receives: u16,
}

/// Receives for messages that a side may have posted: so many that half of them can be told of, and that counting them never goes
/// beyond 16 bits.
pub const RECEIVES: std::ops::RangeInclusive<u16> = 2..=0x7fff;

impl Call {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; CALL_LEN] {
        let mut bytes = [0; CALL_LEN];
        let written = self.write(&mut Writer::new(&mut bytes));
        debug_assert!(written.is_ok(), "CALL_LEN holds a call");
        bytes
    }

    fn write(&self, to: &mut Writer<'_>) -> Result<(), NoRoom> {
        self.qp.write(to)?;
        to.bytes(&self.context_uuid)?.u64(self.life)?.u16(self.receives)?.bytes(&[0; 6])?;
        Ok(())
    }

    /// Reads a call: total, and canonical.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        if bytes.len() != CALL_LEN {
            return Err("a call has 64 bytes");
        }
        Self::read(&mut Reader::new(bytes)).unwrap_or(Err("it ends too early"))
    }

    fn read(from: &mut Reader<'_>) -> Result<Result<Self, &'static str>, Truncated> {
        let (qp, context_uuid, life) = (QpAddress::read(from)?, from.array()?, from.u64()?);
        let tail = Tail::read(from)?;
        Ok(qp.and_then(|qp| Ok(Self { qp, context_uuid, life, receives: tail.receives()? })))
    }
}

/// A reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The queue pair that is connected with the caller's.
    pub qp: QpAddress,
    /// The connection that was asked on.
    pub life: u64,
    /// Receives posted for messages.
    pub receives: u16,
}

impl Reply {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; REPLY_LEN] {
        let mut bytes = [0; REPLY_LEN];
        let written = self.write(&mut Writer::new(&mut bytes));
        debug_assert!(written.is_ok(), "REPLY_LEN holds a reply");
        bytes
    }

    fn write(&self, to: &mut Writer<'_>) -> Result<(), NoRoom> {
        self.qp.write(to)?;
        to.u64(self.life)?.u16(self.receives)?.bytes(&[0; 6])?;
        Ok(())
    }

    /// Reads a reply: total, and canonical.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        if bytes.len() != REPLY_LEN {
            return Err("a reply has 48 bytes");
        }
        Self::read(&mut Reader::new(bytes)).unwrap_or(Err("it ends too early"))
    }

    fn read(from: &mut Reader<'_>) -> Result<Result<Self, &'static str>, Truncated> {
        let (qp, life, tail) = (QpAddress::read(from)?, from.u64()?, Tail::read(from)?);
        Ok(qp.and_then(|qp| {
            let receives = tail.receives()?;
            if life == 0 { Err("it names no connection") } else { Ok(Self { qp, life, receives }) }
        }))
    }
}

/// How calls and replies end.
struct Tail {
    receives: u16,
    reserved: [u8; 6],
}

impl Tail {
    fn read(from: &mut Reader<'_>) -> Result<Self, Truncated> {
        Ok(Self { receives: from.u16()?, reserved: from.array()? })
    }

    fn receives(&self) -> Result<u16, &'static str> {
        match () {
            () if self.reserved != [0; 6] => Err("a reserved field is not 0"),
            () if !RECEIVES.contains(&self.receives) => Err("so many receives are never posted"),
            () => Ok(self.receives),
        }
    }
}

/// What a SEND is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A message, with its number of 24 bits.
    Message(u32),
    /// The first of who has connected.
    Greeting,
    /// Credits alone.
    Credits,
    /// The last.
    End,
}

/// What begins each SEND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it is.
    pub kind: Kind,
    /// Receives that the sender has posted again.
    pub credits: u16,
}

impl Header {
    /// Its bytes. Of a message's number the lower 24 bits are written.
    #[inline]
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let word = match self.kind {
            Kind::Message(tag) => 1 << 24 | tag & 0xff_ffff,
            Kind::Greeting => 2 << 24,
            Kind::Credits => 3 << 24,
            Kind::End => 4 << 24,
        };
        let (word, credits): ([u8; 4], _) = (u32::to_le_bytes(word), self.credits.to_le_bytes());
        let ([a, b, c, d], [e, f]) = (word, credits);
        [a, b, c, d, e, f, 0, 0]
    }

    /// Reads the header of a SEND of `len` bytes that begins with `bytes`: total, and canonical.
    ///
    /// # Errors
    /// What is wrong with it.
    #[inline]
    pub fn decode(bytes: &[u8; HEADER_LEN], len: usize) -> Result<Self, &'static str> {
        let [a, b, c, kind, e, f, reserved @ ..] = *bytes;
        let tag = u32::from_le_bytes([a, b, c, 0]);
        let kind = match kind {
            1 => Kind::Message(tag),
            2 => Kind::Greeting,
            3 => Kind::Credits,
            4 => Kind::End,
            _ => return Err("it is of no kind that is known"),
        };
        match kind {
            _ if len < HEADER_LEN => Err("it is shorter than its header"),
            _ if reserved != [0; 2] => Err("a reserved field is not 0"),
            Kind::Message(_) => Ok(()),
            _ if tag != 0 => Err("what is no message has no number"),
            _ if len > HEADER_LEN => Err("what is no message has no bytes"),
            _ => Ok(()),
        }?;
        Ok(Self { kind, credits: u16::from_le_bytes([e, f]) })
    }
}
