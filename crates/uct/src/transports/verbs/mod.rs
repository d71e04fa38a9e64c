//! `verbs`: RDMA devices, by libibverbs: memory of another process, reached by a device that both of them use.
//!
//! ```text
//!   exporter                                    importer
//!   memory ◀── registered there by the exporter ── protection domain ── queue pair, connected to itself
//!                  ▲                                      │
//!                  └───── command descriptor, over the service socket
//! ```
//!
//! The importer passes the command descriptor of its device's context; the exporter registers its own memory with it, in the
//! importer's protection domain. From then on the importer's device reads and writes that memory by the exporter's addresses: nothing is mapped, and no
//! processor copies. Who holds a command descriptor controls that context: it is done between processes of one user only, when both allow it by
//! [`SHARE`].
//!
//! Workers of any two machines talk by reliable connections: [`rc`].

pub mod address;
mod atomic;
mod between;
mod command;
mod connection;
#[cfg(all(test, feature = "rxe-tests"))]
mod contexts;
mod device;
mod events;
mod import;
mod md;
pub mod mkey;
mod odp;
#[cfg(all(test, feature = "rxe-tests"))]
mod opt_in;
mod placer;
mod port;
mod queue;
pub mod rc;
pub mod remote;
mod sys;
#[cfg(all(test, feature = "rxe-tests"))]
mod tests;
pub mod wire;

use std::sync::{Arc, Once};

use ucs::config::{AnyVar, OrAuto, Var};

use crate::api::{Capability, Component, ComponentId, Md, MdParams, MdResource, OpenError};

pub use md::VerbsMd;
pub use odp::ODP;

/// Whether memory is exported to, and imported from, processes of the same user by registering it in the importer's protection domain.
pub const SHARE: Var<bool> = Var::new(
    "UCX_VERBS_SHARE",
    "n",
    "Whether exported memory is registered in importers' RDMA protection domains: processes of one user, which trust each other fully",
);

/// Whether memory is exported to, and imported from, other machines.
pub const REMOTE: Var<bool> = Var::new(
    "UCX_VERBS_REMOTE",
    "y",
    "Whether exported memory is offered to other machines: a service listens at the IP address of the device's port (TCP)",
);

/// Which entry of its port's table of GIDs a device is used by.
pub const GID_INDEX: Var<OrAuto<u32>> = Var::new(
    "UCX_IB_GID_INDEX",
    "auto",
    "Which of its port's GIDs an RDMA device is reached by: its index; auto takes one of RoCE v2, IPv4 first",
);

/// The component `verbs`.
#[derive(Clone, Copy, Debug)]
pub struct VerbsComponent;

/// What `verbs` can do.
pub const CAPABILITIES: &[Capability] = &[
    Capability { name: "alloc", supported: false, note: "shm or the context allocates" },
    Capability { name: "reg", supported: true, note: "memory that can be pinned" },
    Capability {
        name: "export",
        supported: true,
        note: "to any process that a network of its device reaches; with UCX_VERBS_SHARE=y also to those of its user on this device",
    },
    Capability {
        name: "read-only",
        supported: true,
        note: "kept by the library, and for other machines by the device",
    },
    Capability { name: "mapped-view", supported: false, note: "a device moves the bytes" },
    Capability { name: "invalidate", supported: true, note: "" },
    Capability {
        name: "address-bound",
        supported: false,
        note: "the pages that were mapped at the import; the address where the memory domain says va_bound (UCX_VERBS_ODP)",
    },
    Capability {
        name: "revocable",
        supported: true,
        note: "a revocation waits for accesses, then ends the registrations",
    },
    Capability {
        name: "atomics",
        supported: false,
        note: "with UCX_ATOMIC_MODE=device: words of 64 bits, atomic towards each other, not towards processors",
    },
    Capability { name: "survives-exporter-stop", supported: true, note: "once attached" },
    Capability { name: "peer-memory", supported: false, note: "a peer's memory is reached by keys only" },
    Capability {
        name: "messages",
        supported: true,
        note: "to any worker that a network of its device reaches",
    },
];

impl Component for VerbsComponent {
    fn id(&self) -> ComponentId {
        ComponentId::VERBS
    }

    fn name(&self) -> &'static str {
        "verbs"
    }

    fn capabilities(&self) -> &'static [Capability] {
        CAPABILITIES
    }

    fn vars(&self) -> &'static [&'static dyn AnyVar] {
        &[&SHARE, &REMOTE, &ODP, &address::SERVICE_ADDRESS, &GID_INDEX]
    }

    fn query_mds(&self) -> Vec<MdResource> {
        device::names().into_iter().map(|name| MdResource { name }).collect()
    }

    fn net_devices(&self) -> Option<Vec<String>> {
        Some(device::names())
    }

    fn open_md(&self, resource: &MdResource, params: &MdParams) -> Result<Arc<dyn Md>, OpenError> {
        static FORKS: Once = Once::new();
        FORKS.call_once(sys::be_safe_from_forks);
        Ok(Arc::new(VerbsMd::open(super::this_boot()?, &resource.name, params)?))
    }
}
