//! The memory of a peer of an endpoint, read by its addresses.

use rustix::io::Errno;

use super::md::Nonces;
use super::transfer::{Nonce, Stopped, Target, Why};
use crate::api::PeerMemory;
use crate::channel::Channel;
use crate::memory::{AccessError, LocalMut, StaleReason};

/// Bytes that are read at once for an operand that others may use meanwhile.
const PIECE: usize = 256 << 10;

/// A peer's memory.
#[derive(Debug)]
pub(super) struct CmaPeer {
    target: Target,
    channel: Channel,
    nonces: Nonces,
}

impl CmaPeer {
    /// `None`: the peer's memory cannot be read, or the peer cannot be told from another process.
    pub(super) fn new(channel: Channel) -> Option<Self> {
        let target = Target { pid: channel.pid()?, address: 0 };
        let peer = Self { target, channel, nonces: Nonces::default() };
        let probed = peer.target.probe(peer.nonce()?);
        probed.inspect_err(|why| tracing::debug!(?why, "a peer's memory cannot be read")).ok()?;
        Some(peer)
    }

    /// The next one, where the peer's memory is to show it.
    fn nonce(&self) -> Option<Nonce> {
        let value = self.nonces.next();
        Some(Nonce { at: self.channel.set_nonce(value)?, value })
    }

    fn read(&self, address: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        let gone = AccessError::Stale { done: 0, why: StaleReason::ExporterGone };
        let nonce = self.nonce().ok_or_else(|| gone.clone())?;
        self.target.read(nonce, address, dst, 0).map_err(|Stopped { why, .. }| match why {
            Why::Fault => AccessError::Stale { done: 0, why: StaleReason::Unmapped },
            Why::AnotherProcess => gone,
            Why::Errno(Errno::PERM | Errno::ACCESS | Errno::NOSYS) => {
                AccessError::Unsupported { why: "the kernel refuses process_vm_readv" }
            }
            Why::Errno(_) => AccessError::Stale { done: 0, why: StaleReason::Unmapped }, // this time
        })
    }
}

impl PeerMemory for CmaPeer {
    fn get(&mut self, address: u64, dst: &mut LocalMut<'_>) -> Result<(), AccessError> {
        dst.in_pieces(PIECE, |at, piece| self.read(address.wrapping_add(at as u64), piece))?;
        if self.channel.was_open() {
            Ok(())
        } else {
            Err(AccessError::Stale { done: 0, why: StaleReason::Revoked })
        }
    }
}
