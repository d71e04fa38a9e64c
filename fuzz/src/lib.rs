//! Fuzz targets: each takes arbitrary bytes, panics when a promise of the code under test is broken, and answers whether the
//! bytes were accepted.
//!
//! | target | promise |
//! |---|---|
//! | [`handle_decode`] | a packed handle is refused or canonical, with any checksum and with the right one |
//! | [`handle_import`] | an import of a changed handle never panics and never reaches another region than the token's |
//! | [`service_request`], [`service_reply`] | a message is refused or canonical; an export table grants what it published only |
//! | [`ring`] | a ring loses nothing between its ends, and bears all that a third one writes |
//! | [`mkey_cma`], [`mkey_self`], [`mkey_shm`] | a key is refused or canonical |
//!
//! libFuzzer drives them through the programs in `fuzz_targets`; `cargo test -p rucx-fuzz` replays the corpora.

#![forbid(unsafe_code)]

mod formats;
mod import;
mod input;
mod ring;

pub use formats::{handle_decode, mkey_cma, mkey_self, mkey_shm, service_reply, service_request};
pub use import::handle_import;
pub use ring::ring;

/// A fuzz target.
pub type Target = fn(&[u8]) -> bool;

/// All targets, with their names.
pub const TARGETS: &[(&str, Target)] = &[
    ("handle_decode", handle_decode),
    ("handle_import", handle_import),
    ("mkey_cma", mkey_cma),
    ("mkey_self", mkey_self),
    ("mkey_shm", mkey_shm),
    ("ring", ring),
    ("service_reply", service_reply),
    ("service_request", service_request),
];

/// Where the checksum of a handle lies.
const CRC: std::ops::Range<usize> = 64..68;

/// Writes the right checksum of a handle: over all bytes, its own four taken as zero.
fn repair(bytes: &mut [u8]) {
    if bytes.len() >= CRC.end {
        bytes[CRC].fill(0);
        let crc = crc32c::crc32c(bytes);
        bytes[CRC].copy_from_slice(&crc.to_le_bytes());
    }
}
