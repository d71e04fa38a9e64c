//! What the tests in the guest of `cargo xtask rxe` share. The guest has one RDMA device, [`DEVICE`], of the kernel's Soft-RoCE; tests between
//! two hosts have one at each [`Host`].
//!
//! A test binary is a `[[test]]` of this package with `required-features = ["guest"]`, or one of any other package; its row is in
//! `ROWS` of `xtask/src/rxe/rows.rs`.
//!
//! | module | subject |
//! |---|---|
//! | [`hosts`](mod@hosts) | the two hosts: network namespaces of one guest, or two guests |
//! | [`guest`] | what a test does to the guest: cables, rights |
//! | [`counters`](mod@counters) | what a device has counted: proof that bytes went by it |

#![forbid(unsafe_code)]

pub mod counters;
pub mod guest;
pub mod hosts;

use std::io;
use std::net::Ipv6Addr;
use std::path::PathBuf;

pub use counters::{Counters, counters};
pub use hosts::{Host, Hosts, hosts};

/// The device's name.
pub const DEVICE: &str = "rxe0";

/// The index of the GID that stands for the port's IPv4 address.
pub const GID_INDEX: u32 = 1;

/// A file of the device's first port, without the line's end.
///
/// # Errors
/// What reading it says.
pub fn port(file: &str) -> io::Result<String> {
    port_of(DEVICE, file)
}

/// A file of the first port of any device, without the line's end.
///
/// # Errors
/// What reading it says.
pub fn port_of(device: &str, file: &str) -> io::Result<String> {
    let path: PathBuf = ["/sys/class/infiniband", device, "ports/1", file].iter().collect();
    Ok(std::fs::read_to_string(path)?.trim_end().to_owned())
}

/// A GID of the first port.
///
/// # Errors
/// What reading it says, or that it is no GID.
pub fn gid(index: u32) -> io::Result<Ipv6Addr> {
    gid_of(DEVICE, index)
}

/// A GID of the first port of any device.
///
/// # Errors
/// What reading it says, or that it is no GID.
pub fn gid_of(device: &str, index: u32) -> io::Result<Ipv6Addr> {
    port_of(device, &format!("gids/{index}"))?.parse().map_err(io::Error::other)
}
