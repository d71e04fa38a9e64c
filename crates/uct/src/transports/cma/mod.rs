//! `cma`: any memory of another process, by its addresses: `process_vm_readv(2)` and `process_vm_writev(2)` ("cross memory attach").
//!
//! An export names an address range of the exporter: whatever is mapped there when it is accessed. An importer needs two things: the
//! token, which it shows on the exporter's service socket, and ptrace rights over the exporter (`ptrace(2)`, "Ptrace access mode
//! checking"), which the kernel asks for at each access. Who has these rights can reach *all* of the exporter's memory: token,
//! bounds, rights and epoch are kept by the importer's library.
//!
//! A pid is not a process. The process behind the socket is held by a pidfd; each read fetches, in the same system call and so from
//! the same address space, a fresh nonce that the importer has just written to the in-flight page which both share, and each write is
//! preceded by a read of it.

mod md;
pub mod mkey;
mod peer;
#[cfg(test)]
mod tests;
mod transfer;

use std::sync::Arc;

use ucs::config::{AnyVar, Var};

use crate::api::{Capability, Component, ComponentId, Md, MdParams, MdResource, OpenError};

pub use md::CmaMd;

/// Whether an exporter lets every process of its user trace it, under Yama.
pub const CMA_PTRACER_ANY: Var<bool> = Var::new(
    "UCX_CMA_PTRACER_ANY",
    "n",
    "Whether an exporter allows every process of its user to access its memory where kernel.yama.ptrace_scope is 1",
);

/// The component `cma`.
#[derive(Clone, Copy, Debug)]
pub struct CmaComponent;

/// What `cma` can do.
pub const CAPABILITIES: &[Capability] = &[
    Capability { name: "alloc", supported: false, note: "shm or the context allocates" },
    Capability { name: "reg", supported: true, note: "any memory of the process" },
    Capability {
        name: "export",
        supported: true,
        note: "to processes of this boot with ptrace rights over the exporter",
    },
    Capability { name: "read-only", supported: true, note: "kept by the library" },
    Capability { name: "mapped-view", supported: false, note: "every access is a system call" },
    Capability { name: "invalidate", supported: true, note: "" },
    Capability { name: "address-bound", supported: true, note: "whatever is mapped at the address" },
    Capability {
        name: "revocable",
        supported: true,
        note: "a revocation waits for accesses and ends them all",
    },
    Capability { name: "atomics", supported: false, note: "the kernel copies only" },
    Capability { name: "survives-exporter-stop", supported: true, note: "once attached" },
    Capability {
        name: "peer-memory",
        supported: true,
        note: "of peers in other processes, with ptrace rights over them",
    },
    Capability { name: "messages", supported: false, note: "it moves memory only" },
];

impl Component for CmaComponent {
    fn id(&self) -> ComponentId {
        ComponentId::CMA
    }

    fn name(&self) -> &'static str {
        "cma"
    }

    fn capabilities(&self) -> &'static [Capability] {
        CAPABILITIES
    }

    fn vars(&self) -> &'static [&'static dyn AnyVar] {
        &[&CMA_PTRACER_ANY]
    }

    fn query_mds(&self) -> Vec<MdResource> {
        vec![MdResource { name: "memory".to_owned() }]
    }

    fn open_md(&self, _resource: &MdResource, params: &MdParams) -> Result<Arc<dyn Md>, OpenError> {
        Ok(Arc::new(CmaMd::new(super::this_boot()?, params)))
    }
}
