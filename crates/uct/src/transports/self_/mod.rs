//! `self`: memory of this very process, within one context.

mod iface;
mod md;
pub mod mkey;
pub mod wire;

use std::sync::Arc;

use crate::api::{Capability, Component, ComponentId, Md, MdParams, MdResource, OpenError};

pub use md::SelfMd;

/// The component `self`.
#[derive(Clone, Copy, Debug)]
pub struct SelfComponent;

/// What `self` can do.
pub const CAPABILITIES: &[Capability] = &[
    Capability { name: "alloc", supported: false, note: "the context allocates anonymous memory itself" },
    Capability { name: "reg", supported: true, note: "any memory of the process" },
    Capability { name: "export", supported: true, note: "within the context that exported" },
    Capability { name: "read-only", supported: true, note: "kept by the library" },
    Capability { name: "mapped-view", supported: false, note: "every access is mediated" },
    Capability { name: "invalidate", supported: true, note: "" },
    Capability { name: "address-bound", supported: true, note: "raw memory: whatever is mapped there" },
    Capability {
        name: "revocable",
        supported: true,
        note: "a revocation waits for accesses and ends them all",
    },
    Capability { name: "atomics", supported: true, note: "32 and 64 bits; not on raw memory" },
    Capability { name: "survives-exporter-stop", supported: false, note: "it is the same process" },
    Capability { name: "peer-memory", supported: false, note: "there are no peers but the worker itself" },
    Capability { name: "messages", supported: true, note: "to its own worker" },
];

impl Component for SelfComponent {
    fn id(&self) -> ComponentId {
        ComponentId::SELF
    }

    fn name(&self) -> &'static str {
        "self"
    }

    fn capabilities(&self) -> &'static [Capability] {
        CAPABILITIES
    }

    fn query_mds(&self) -> Vec<MdResource> {
        vec![MdResource { name: "self".to_owned() }]
    }

    fn open_md(&self, _resource: &MdResource, params: &MdParams) -> Result<Arc<dyn Md>, OpenError> {
        Ok(Arc::new(SelfMd::new(params)))
    }
}
