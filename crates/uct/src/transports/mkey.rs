//! What the exported keys of `shm` and `cma` have in common: their first 64 bytes, and how they tell where the exporter's service is.
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
//! ```

use crate::export::{Claim, Token};
use crate::process::Identity;
use crate::wire::{NoRoom, Reader, Truncated, Writer};

/// An abstract unix socket.
const BY_NAME: u8 = 1;
/// And one in the directory that `UCX_SERVICE_DIR` names, on either side.
const IN_DIRECTORY: u8 = 2;

/// Where the two parts lie that differ from export to export.
const SLOT: usize = 4;
const TOKEN: usize = 48;

/// Makes the key of one export that of another export of the same memory: writing it anew would take longer.
pub(super) fn readdress<const LEN: usize>(key: &mut [u8; LEN], claim: &Claim) {
    const { assert!(LEN >= TOKEN + 16) }
    key[SLOT..SLOT + 4].copy_from_slice(&claim.slot.to_le_bytes());
    key[TOKEN..TOKEN + 16].copy_from_slice(claim.token.as_bytes());
}

/// Writes the part in common.
pub(super) fn write_head(
    to: &mut Writer<'_>,
    exporter: &Identity,
    slot: u32,
    token: &Token,
) -> Result<(), NoRoom> {
    to.u32(exporter.pid)?.u32(slot)?;
    to.u64(exporter.pidfd_inode)?.u64(exporter.start_time)?;
    to.u64(exporter.pid_ns)?.u64(exporter.net_ns)?.u64(exporter.user_ns)?;
    to.bytes(token.as_bytes())?;
    Ok(())
}

/// Reads it.
pub(super) fn read_head(from: &mut Reader<'_>) -> Result<(Identity, u32, Token), Truncated> {
    let (pid, slot) = (from.u32()?, from.u32()?);
    let (pidfd_inode, start_time) = (from.u64()?, from.u64()?);
    let (pid_ns, net_ns, user_ns) = (from.u64()?, from.u64()?, from.u64()?);
    let token = Token::from_bytes(from.array()?);
    Ok((Identity { pid, pidfd_inode, start_time, pid_ns, net_ns, user_ns }, slot, token))
}

/// The byte `service_kind`.
pub(super) fn service_kind(in_directory: bool) -> u8 {
    if in_directory { BY_NAME | IN_DIRECTORY } else { BY_NAME }
}

/// Whether the service is also in a directory, by the byte `service_kind`.
pub(super) fn is_in_directory(kind: u8) -> Result<bool, &'static str> {
    match kind {
        BY_NAME => Ok(false),
        kind if kind == BY_NAME | IN_DIRECTORY => Ok(true),
        _ => Err("unknown kind of service address"),
    }
}
