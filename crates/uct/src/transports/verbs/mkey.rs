//! The exported key of `verbs`: 96 bytes, little-endian.
//!
//! ```text
//!   0 head [64]        as of shm and cma (transports/mkey.rs)
//!  64 device_guid [8]  the exporter's device, in network byte order
//!  72 service_kind u8
//!  73 flags u8         bit 0: it registers its memory in domains of processes of its user; bit 1: by the address
//!  74 kind u16         of calls to the service of other machines
//!  76 port u16         where that listens (TCP); 0: it does not
//!  78 reserved u16     0
//!  80 address [16]     IPv6, or an IPv4 address mapped to one (RFC 4291, 2.5.5.2)
//! ```

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::export::Token;
use crate::process::Identity;
use crate::transports::mkey::{is_in_directory, read_head, service_kind, write_head};
use crate::wire::{NoRoom, Reader, Truncated, Writer};

/// Bytes of a key.
pub const LEN: usize = 96;
/// The flag of an exporter that registers its memory in domains of others.
const SHARES: u8 = 1;
/// The flag of an exporter whose registrations reach whatever is mapped at the address.
const BY_ADDRESS: u8 = 2;

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
    /// Whether it registers its memory in domains of processes of its user.
    pub shares: bool,
    /// Whether its registrations reach whatever is mapped at the address, and nothing where nothing is.
    pub by_address: bool,
    /// The kind of calls to the service of other machines, and where that listens.
    pub net: Option<(u16, SocketAddr)>,
}

impl Mkey {
    /// Writes the key to all of `out`.
    ///
    /// # Errors
    /// `out` has less than [`LEN`] bytes.
    pub fn encode(&self, out: &mut [u8]) -> Result<(), NoRoom> {
        let mut to = Writer::new(out);
        write_head(&mut to, &self.exporter, self.slot, &self.token)?;
        to.bytes(&self.guid)?.u8(service_kind(self.in_directory))?;
        to.u8(if self.shares { SHARES } else { 0 } | if self.by_address { BY_ADDRESS } else { 0 })?;
        let (kind, port, address) = match self.net {
            Some((kind, at)) => (kind, at.port(), mapped(at.ip())),
            None => (0, 0, [0; 16]),
        };
        to.u16(kind)?.u16(port)?.u16(0)?.bytes(&address)?;
        Ok(())
    }

    /// Reads a key: total, and canonical (what it accepts, `encode` writes again).
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        if bytes.len() != LEN {
            return Err("a key of verbs has 96 bytes");
        }
        Self::read(&mut Reader::new(bytes)).unwrap_or(Err("it ends too early"))
    }

    fn read(from: &mut Reader<'_>) -> Result<Result<Self, &'static str>, Truncated> {
        let (exporter, slot, token) = read_head(from)?;
        let (guid, service, flags) = (from.array()?, from.u8()?, from.u8()?);
        let (kind, port, reserved) = (from.u16()?, from.u16()?, from.u16()?);
        let address = from.array::<16>()?;
        let in_directory = match is_in_directory(service) {
            Ok(in_directory) => in_directory,
            Err(wrong) => return Ok(Err(wrong)),
        };
        if reserved != 0 || flags & !(SHARES | BY_ADDRESS) != 0 {
            return Ok(Err("a reserved field is not zero"));
        }
        if port == 0 && (kind != 0 || address != [0; 16]) {
            return Ok(Err("an address without a port"));
        }
        let at = SocketAddr::new(Ipv6Addr::from(address).to_canonical(), port);
        let net = (port != 0).then_some((kind, at));
        let (shares, by_address) = (flags & SHARES != 0, flags & BY_ADDRESS != 0);
        Ok(Ok(Self { exporter, slot, token, guid, in_directory, shares, by_address, net }))
    }
}

/// An address as IPv6.
fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}
