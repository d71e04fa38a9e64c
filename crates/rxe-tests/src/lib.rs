//! What the tests in the guest of `cargo xtask rxe` share. The guest has one RDMA device, [`DEVICE`], of the kernel's Soft-RoCE.
//!
//! A test binary is a `[[test]]` of this package with `required-features = ["guest"]`, or one of any other package; its row is in
//! `TESTS` of `xtask/src/rxe/guest.rs`.

#![forbid(unsafe_code)]

use std::io;
use std::net::Ipv6Addr;
use std::path::PathBuf;

/// The device's name.
pub const DEVICE: &str = "rxe0";

/// The index of the GID that stands for the port's IPv4 address.
pub const GID_INDEX: u32 = 1;

/// A file of the device's first port, without the line's end.
///
/// # Errors
/// What reading it says.
pub fn port(file: &str) -> io::Result<String> {
    let path: PathBuf = ["/sys/class/infiniband", DEVICE, "ports/1", file].iter().collect();
    Ok(std::fs::read_to_string(path)?.trim_end().to_owned())
}

/// A GID of the first port.
///
/// # Errors
/// What reading it says, or that it is no GID.
pub fn gid(index: u32) -> io::Result<Ipv6Addr> {
    port(&format!("gids/{index}"))?.parse().map_err(io::Error::other)
}
