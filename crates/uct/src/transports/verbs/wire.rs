//! Where a queue pair is: 32 bytes, little-endian. Both sides of a connection tell each other.
//!
//! ```text
//!   0 number u32        of the queue pair: 24 bits, not 0
//!   4 psn u32           of its first packet: 24 bits
//!   8 gid [16]          its port's, in network byte order; all 0: it has none, and is reached by its LID
//!  24 lid u16
//!  26 mtu u8            1 to 5: 256 bytes to 4096, as in `enum ibv_mtu`
//!  27 reads u8          READs and atomics that it answers at once, not 0
//!  28 reserved [4]      0
//! ```

use crate::wire::{NoRoom, Reader, Truncated, Writer};

/// Bytes of an address.
pub const LEN: usize = 32;
/// Beyond what 24 bits hold.
const LIMIT_24: u32 = 1 << 24;

/// Where a queue pair is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAddress {
    /// Its number.
    pub number: u32,
    /// The number of the first packet it sends.
    pub psn: u32,
    /// Its port's address in an Ethernet network, or a routed one.
    pub gid: Option<[u8; 16]>,
    /// Its port's address in an InfiniBand subnet.
    pub lid: u16,
    /// Its port's MTU, as a power of two: 1 is 256 bytes, 5 is 4096.
    pub mtu: u8,
    /// READs and atomics that it answers at once.
    pub reads: u8,
}

impl QpAddress {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        let written = self.write(&mut Writer::new(&mut bytes));
        debug_assert!(written.is_ok(), "LEN holds an address");
        bytes
    }

    /// Writes it to `to`.
    ///
    /// # Errors
    /// There is no room for [`LEN`] bytes.
    pub fn write(&self, to: &mut Writer<'_>) -> Result<(), NoRoom> {
        to.u32(self.number)?.u32(self.psn)?.bytes(&self.gid.unwrap_or_default())?;
        to.u16(self.lid)?.u8(self.mtu)?.u8(self.reads)?.bytes(&[0; 4])?;
        Ok(())
    }

    /// Reads an address: total, and canonical.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        if bytes.len() != LEN {
            return Err("the address of a queue pair has 32 bytes");
        }
        Self::read(&mut Reader::new(bytes)).unwrap_or(Err("it ends too early"))
    }

    /// Reads an address that other bytes may follow.
    ///
    /// # Errors
    /// The outer: it ends too early; the inner: what is wrong with it.
    pub fn read(from: &mut Reader<'_>) -> Result<Result<Self, &'static str>, Truncated> {
        let (number, psn, gid) = (from.u32()?, from.u32()?, from.array::<16>()?);
        let (lid, mtu, reads) = (from.u16()?, from.u8()?, from.u8()?);
        let reserved = from.array::<4>()?;
        Ok(match () {
            () if number == 0 || number >= LIMIT_24 => Err("the queue pair's number has not 24 bits"),
            () if psn >= LIMIT_24 => Err("the packet's number has not 24 bits"),
            () if !(1..=5).contains(&mtu) => Err("the MTU is none"),
            () if reads == 0 => Err("it answers no READs"),
            () if reserved != [0; 4] => Err("a reserved byte is not zero"),
            () => {
                let gid = Some(gid).filter(|gid| *gid != [0; 16]);
                Ok(Self { number, psn, gid, lid, mtu, reads })
            }
        })
    }
}
