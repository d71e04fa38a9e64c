//! `shm`: memory files, mapped by exporter and importer alike.
//!
//! Every exported allocation is a memfd of its own, sealed, without a name. An importer gets its descriptor from the exporter's
//! service socket, or, where that does not answer and it has ptrace rights over the exporter, from `/proc/PID/fd` or by
//! `pidfd_getfd(2)`; it checks seals and size before it maps.

mod direct;
mod iface;
mod md;
pub mod mkey;
pub mod wire;

use std::sync::Arc;

use bitflags::bitflags;
use ucs::config::{AllowList, AnyVar, Var};

use crate::api::{Capability, Component, ComponentId, Md, MdParams, MdResource, OpenError};

pub use md::ShmMd;

bitflags! {
    /// Ways to get at another process's memfd, tried in this order.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Methods: u32 {
        /// The exporter passes it over its service socket, to who shows the token.
        const SOCKET = 1;
        /// `/proc/PID/fd`: needs ptrace rights (PTRACE_MODE_READ_FSCREDS, `proc_pid_fd(5)`).
        const PROC = 2;
        /// `pidfd_getfd(2)`: needs ptrace rights (PTRACE_MODE_ATTACH_REALCREDS).
        const PIDFD = 4;
    }
}

/// The names of the [`Methods`], as in `UCX_SHM_ATTACH`.
const METHOD_NAMES: &[(&str, Methods)] =
    &[("socket", Methods::SOCKET), ("proc", Methods::PROC), ("pidfd", Methods::PIDFD)];

/// Ways to get another process's memfds.
pub const SHM_ATTACH: Var<AllowList> = Var::new(
    "UCX_SHM_ATTACH",
    "all",
    "How shm gets another process's memory: socket (its service passes it), proc (/proc/PID/fd), pidfd (pidfd_getfd)",
);

/// The component `shm`.
#[derive(Clone, Copy, Debug)]
pub struct ShmComponent;

/// What `shm` can do.
pub const CAPABILITIES: &[Capability] = &[
    Capability { name: "alloc", supported: true, note: "a sealed memfd per allocation" },
    Capability { name: "reg", supported: false, note: "only memory it allocated" },
    Capability {
        name: "export",
        supported: true,
        note: "to any process of this boot that gets the descriptor",
    },
    Capability { name: "read-only", supported: true, note: "kept by the kernel: F_SEAL_FUTURE_WRITE" },
    Capability { name: "mapped-view", supported: true, note: "load and store, zero-copy" },
    Capability { name: "invalidate", supported: false, note: "a mapping cannot be taken back" },
    Capability { name: "address-bound", supported: false, note: "an export names the memory object" },
    Capability {
        name: "revocable",
        supported: false,
        note: "a revocation ends read and write calls; a view held stays a view of the memory",
    },
    Capability { name: "atomics", supported: true, note: "32 and 64 bits" },
    Capability { name: "survives-exporter-stop", supported: true, note: "once attached" },
    Capability { name: "peer-memory", supported: false, note: "it reads what was exported only" },
    Capability { name: "messages", supported: true, note: "to any worker of this boot" },
];

impl Component for ShmComponent {
    fn id(&self) -> ComponentId {
        ComponentId::SHM
    }

    fn name(&self) -> &'static str {
        "shm"
    }

    fn capabilities(&self) -> &'static [Capability] {
        CAPABILITIES
    }

    fn vars(&self) -> &'static [&'static dyn AnyVar] {
        &[&SHM_ATTACH]
    }

    fn query_mds(&self) -> Vec<MdResource> {
        vec![MdResource { name: "memory".to_owned() }]
    }

    fn open_md(&self, _resource: &MdResource, params: &MdParams) -> Result<Arc<dyn Md>, OpenError> {
        let boot = super::this_boot()?;
        let names: Vec<&str> = METHOD_NAMES.iter().map(|(name, _)| *name).collect();
        let allowed = params
            .config
            .get(&SHM_ATTACH)
            .resolve(&names, &[])
            .map_err(|error| OpenError::UnknownNames { variable: SHM_ATTACH.name(), error })?;
        let methods = METHOD_NAMES
            .iter()
            .filter(|(name, _)| allowed.allows(name))
            .fold(Methods::empty(), |all, (_, method)| all | *method);
        Ok(Arc::new(ShmMd::new(boot, params, methods)))
    }
}
