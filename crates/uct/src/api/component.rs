//! Components: a transport's entry.

use std::fmt;
use std::sync::Arc;

use ucs::config::{AnyVar, Config};

use super::{Capability, Md, OpenError};
use crate::export::ExportTable;
use crate::service::Service;

/// The number of a component in packed handles.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ComponentId(pub u16);

impl ComponentId {
    /// This process's own memory.
    pub const SELF: Self = Self(1);
    /// Shared memory files.
    pub const SHM: Self = Self(2);
    /// Another process's memory, by its addresses.
    pub const CMA: Self = Self(3);
    /// RDMA devices.
    pub const VERBS: Self = Self(4);

    /// Its name, for those this version knows.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::SELF => Some("self"),
            Self::SHM => Some("shm"),
            Self::CMA => Some("cma"),
            Self::VERBS => Some("verbs"),
            _ => None,
        }
    }
}

impl fmt::Display for ComponentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "component {}", self.0),
        }
    }
}

impl fmt::Debug for ComponentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A memory domain that can be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MdResource {
    /// Its name, unique within the component.
    pub name: String,
}

/// What a memory domain is opened with.
#[derive(Clone, Debug)]
pub struct MdParams {
    /// The context's exports.
    pub exports: Arc<ExportTable>,
    /// The context's service socket.
    pub service: Arc<Service>,
    /// The configuration: it knows [`crate::config::VARS`] and each component's own variables.
    pub config: Config,
}

/// A transport (`uct_component_t`).
#[doc(alias = "uct_component_t")]
pub trait Component: Send + Sync + fmt::Debug {
    /// Its number in packed handles.
    fn id(&self) -> ComponentId;

    /// Its name, as in `UCX_TLS`.
    fn name(&self) -> &'static str;

    /// The variables it reads, beside [`crate::config::VARS`].
    fn vars(&self) -> &'static [&'static dyn AnyVar] {
        &[]
    }

    /// What it can do and what it cannot, line by line.
    fn capabilities(&self) -> &'static [Capability];

    /// The memory domains that can be opened here. None is no error.
    #[doc(alias = "uct_component_query")]
    fn query_mds(&self) -> Vec<MdResource>;

    /// The network devices there are, among which `UCX_NET_DEVICES` ([`crate::config::NET_DEVICES`]) chooses: [`Component::open_md`] refuses those
    /// that it does not allow. `None`, as by default: a transport without such, which it does not restrict.
    fn net_devices(&self) -> Option<Vec<String>> {
        None
    }

    /// Opens a memory domain.
    ///
    /// # Errors
    /// [`OpenError`]: the kernel lacks something it needs, or a variable of its own is wrong.
    #[doc(alias = "uct_md_open")]
    fn open_md(&self, resource: &MdResource, params: &MdParams) -> Result<Arc<dyn Md>, OpenError>;
}
