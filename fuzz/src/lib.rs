//! Fuzz targets: each takes arbitrary bytes, panics when a promise of the code under test is broken, and answers whether the
//! bytes were accepted.
//!
//! | target | promise |
//! |---|---|
//! | [`handle_decode`] | a packed handle is refused or canonical, with any checksum and with the right one |
//! | [`handle_import`] | an import of a changed handle never panics and never reaches another region than the token's |
//! | [`service_request`], [`service_reply`] | a message is refused or canonical; an export table grants what it published only |
//! | [`net_hello`], [`net_call`], [`net_reply`] | a message between services of two machines is refused or canonical; a proof is that of the token alone |
//! | [`worker_address`], [`address_self`], [`address_shm`], [`address_verbs`] | an address is refused or canonical, with any checksum and with the right one |
//! | [`am_message`] | a message of an endpoint is refused or canonical |
//! | [`rkey`] | a packed rkey is refused or canonical, and so is the handle in it |
//! | [`ring`] | a ring loses nothing between its ends, and bears all that a third one writes |
//! | [`mkey_cma`], [`mkey_self`], [`mkey_shm`], [`mkey_verbs`] | a key is refused or canonical |
//! | [`verbs_call`], [`verbs_reply`], [`verbs_header`] | what interfaces of `verbs` tell each other is refused or canonical |
//! | [`verbs_queue_pair`], [`verbs_remote`] | the address of a queue pair, and what importers of other machines ask of `verbs`, is refused or canonical |
//!
//! libFuzzer drives them through the programs in `fuzz_targets`; `cargo test -p rucx-fuzz` replays the corpora.

#![forbid(unsafe_code)]

use std::ops::Range;

mod formats;
mod import;
mod input;
mod ring;

pub use formats::{
    address_self, address_shm, address_verbs, am_message, handle_decode, mkey_cma, mkey_self, mkey_shm,
    mkey_verbs, net_call, net_hello, net_reply, rkey, service_reply, service_request, verbs_call,
    verbs_header, verbs_queue_pair, verbs_remote, verbs_reply, worker_address,
};
pub use import::handle_import;
pub use ring::ring;

/// A fuzz target.
pub type Target = fn(&[u8]) -> bool;

/// All targets, with their names.
pub const TARGETS: &[(&str, Target)] = &[
    ("address_self", address_self),
    ("address_shm", address_shm),
    ("address_verbs", address_verbs),
    ("am_message", am_message),
    ("handle_decode", handle_decode),
    ("handle_import", handle_import),
    ("mkey_cma", mkey_cma),
    ("mkey_self", mkey_self),
    ("mkey_shm", mkey_shm),
    ("mkey_verbs", mkey_verbs),
    ("net_call", net_call),
    ("net_hello", net_hello),
    ("net_reply", net_reply),
    ("ring", ring),
    ("rkey", rkey),
    ("service_reply", service_reply),
    ("service_request", service_request),
    ("verbs_call", verbs_call),
    ("verbs_header", verbs_header),
    ("verbs_queue_pair", verbs_queue_pair),
    ("verbs_remote", verbs_remote),
    ("verbs_reply", verbs_reply),
    ("worker_address", worker_address),
];

/// Where the checksum of a handle lies.
const CRC: Range<usize> = 64..68;
/// Where that of a worker's address lies.
const ADDRESS_CRC: Range<usize> = 12..16;

/// Writes the right checksum of a handle.
fn repair(bytes: &mut [u8]) {
    repair_at(bytes, CRC);
}

/// Writes the right checksum: over all bytes, its own four taken as zero.
fn repair_at(bytes: &mut [u8], at: Range<usize>) {
    if bytes.len() >= at.end {
        bytes[at.clone()].fill(0);
        let crc = crc32c::crc32c(bytes);
        bytes[at].copy_from_slice(&crc.to_le_bytes());
    }
}
