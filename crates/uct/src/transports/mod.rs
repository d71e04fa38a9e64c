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

/// Names in `UCX_TLS` that stand for others, or for several, as in C UCX. What `verbs` does is its `rc_verbs`.
pub const ALIASES: &[(&str, &[&str])] = &[
    ("sm", &["shm", "cma"]),
    ("shm", &["shm", "cma"]),
    ("mm", &["shm"]),
    ("posix", &["shm"]),
    ("ib", &["verbs"]),
    ("rc", &["verbs"]),
    ("rc_v", &["verbs"]),
    ("rc_verbs", &["verbs"]),
];

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
    "rc_x",
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

#[cfg(test)]
mod tests {
    use ucs::config::AllowList;

    use super::*;

    #[test]
    fn names_of_c_ucx_mean_what_they_mean_there() {
        let known: Vec<&str> = [&["self", "shm", "cma", "verbs"], NOT_HERE].concat();
        let allows = |text: &str| {
            let list: AllowList = text.parse().unwrap();
            let list = list.resolve(&known, ALIASES).unwrap();
            ["self", "shm", "cma", "verbs"].map(|name| list.allows(name))
        };
        assert_eq!(allows("rc,sm"), [false, true, true, true]);
        assert_eq!(allows("rc_verbs,self"), [true, false, false, true]);
        assert_eq!(allows("^ib"), [true, true, true, false]);
        assert_eq!(allows("^rc_v,posix"), [true, false, true, false]);
        assert_eq!(allows("rc_mlx5,ud,mm"), [false, true, false, false], "other transports than rucx has");
    }
}
