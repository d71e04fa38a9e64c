//! Samples, and what changes bytes.

use ucp::wire::handle::{Entry, Handle, HandleError};

/// Where the checksum lies.
pub(crate) const CRC: std::ops::Range<usize> = 64..68;

/// Components that a reader of the golden vectors knows: those are as they were when there were two.
pub(crate) fn known(component: u16) -> bool {
    (1..=2).contains(&component)
}

/// Decodes as a process with two components does.
pub(crate) fn decode(bytes: &[u8]) -> Result<Handle, HandleError> {
    Handle::decode(bytes, known)
}

/// Decodes as a process of this version does, which has four.
pub(crate) fn decode_living(bytes: &[u8]) -> Result<Handle, HandleError> {
    Handle::decode(bytes, |component| (1..=4).contains(&component))
}

/// Writes the right checksum: over all bytes, its own four taken as zero.
pub(crate) fn repair(bytes: &mut [u8]) {
    if bytes.len() >= CRC.end {
        bytes[CRC].fill(0);
        let crc = crc32c::crc32c(bytes);
        bytes[CRC].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Two entries with keys and ids of odd lengths.
pub(crate) fn sample() -> Handle {
    Handle {
        address: 0x7f42_0000_1000,
        length: 12_288,
        context_uuid: *b"made-up context!",
        registration_id: 7,
        epoch: 3,
        entries: vec![entry(1, b"id", b"key of 1"), entry(2, b"identity", b"another key")],
    }
}

/// An optional entry.
pub(crate) fn entry(component: u16, global_id: &[u8], mkey: &[u8]) -> Entry {
    Entry { component, mandatory: false, global_id: global_id.to_vec(), mkey: mkey.to_vec() }
}

/// The bytes of `handle`.
pub(crate) fn encode(handle: &Handle) -> Vec<u8> {
    handle.encode().expect("within the caps")
}
