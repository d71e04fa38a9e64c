//! The transports: each a folder with its capability table (`mod.rs`), memory domain (`md.rs`) and key bytes (`mkey.rs`); those that
//! send messages have an interface (`iface.rs`), and its address (`wire.rs`).

#[cfg(feature = "cma")]
pub mod cma;
#[cfg(any(feature = "shm", feature = "cma", feature = "verbs"))]
mod mkey;
#[cfg(any(feature = "self", feature = "shm", feature = "verbs"))]
mod places;
#[cfg(feature = "self")]
pub mod self_;
#[cfg(feature = "shm")]
pub mod shm;
#[cfg(feature = "verbs")]
pub mod verbs;

use crate::api::Component;
#[cfg(any(feature = "shm", feature = "cma", feature = "verbs"))]
use crate::api::OpenError;

/// All transports of this build, the most direct first.
#[must_use]
pub fn components() -> &'static [&'static dyn Component] {
    &[
        #[cfg(feature = "self")]
        &self_::SelfComponent,
        #[cfg(feature = "shm")]
        &shm::ShmComponent,
        #[cfg(feature = "cma")]
        &cma::CmaComponent,
        #[cfg(feature = "verbs")]
        &verbs::VerbsComponent,
    ]
}

/// This system's boot: the global id of memory domains that reach other processes of it.
#[cfg(any(feature = "shm", feature = "cma", feature = "verbs"))]
fn this_boot() -> Result<[u8; 16], OpenError> {
    crate::process::boot_id().ok_or(OpenError::Missing {
        what: "/proc/sys/kernel/random/boot_id, which tells one system from another,",
        remedy: "mount /proc",
    })
}

/// Names in `UCX_TLS` that stand for several transports, as in C UCX.
pub const ALIASES: &[(&str, &[&str])] =
    &[("sm", &["shm", "cma"]), ("shm", &["shm", "cma"]), ("mm", &["shm"]), ("posix", &["shm"])];

/// Transports of C UCX that rucx does not have in this version: allowed in `UCX_TLS`, where they change nothing.
pub const NOT_HERE: &[&str] = &[
    #[cfg(not(feature = "cma"))]
    "cma",
    #[cfg(not(feature = "verbs"))]
    "verbs",
    "tcp",
    "sysv",
    "xpmem",
    "knem",
    "ib",
    "rc",
    "rc_v",
    "rc_x",
    "rc_verbs",
    "rc_mlx5",
    "ud",
    "ud_v",
    "ud_x",
    "ud_verbs",
    "ud_mlx5",
    "dc",
    "dc_x",
    "dc_mlx5",
    "cuda",
    "cuda_copy",
    "cuda_ipc",
    "gdr_copy",
    "rocm",
    "rocm_copy",
    "rocm_ipc",
    "ugni",
    "gga",
    "gga_mlx5",
];
