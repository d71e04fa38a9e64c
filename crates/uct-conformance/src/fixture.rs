//! What the suite is run on: a component, and where its importers can be.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ucs::config::{Config, ConfigBuilder};
use ucs::mem::Mapping;
use uct::api::{Component, Md, MdFlags, MdParams};
use uct::export::ExportTable;
use uct::memory::{LocalMem, OwnedBytes, RawMem, Rights};
use uct::service::Service;

use crate::sys;

/// Where an importer is, seen from the exporter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the same context.
    SameContext,
    /// In another context of the same process.
    TwoContexts,
    /// In another process.
    TwoProcesses,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SameContext => "same_context",
            Self::TwoContexts => "two_contexts",
            Self::TwoProcesses => "two_processes",
        })
    }
}

/// A transport under test.
#[derive(Clone, Copy, Debug)]
pub struct Fixture {
    /// What [`Fixture::of`] knows it by, in another process.
    pub name: &'static str,
    /// The transport.
    pub component: &'static dyn Component,
    /// Where its importers can be: in all other places an attachment must be refused.
    pub places: &'static [Place],
    /// Variables that contexts of this process are opened with, and their values; the environment is not looked at.
    pub settings: &'static [(&'static str, &'static str)],
}

impl Fixture {
    /// The transport of this name, with what it needs to be set to export; `verbs-remote` is `verbs` as between machines.
    #[must_use]
    pub fn of(name: &str, places: &'static [Place]) -> Self {
        let (component, settings): (_, &[_]) = match name {
            "verbs" => (component(name), &[("UCX_VERBS_SHARE", "y"), ("UCX_VERBS_REMOTE", "n")]),
            REMOTE => (component("verbs"), &[]),
            _ => (component(name), &[]),
        };
        let name = if name == REMOTE { REMOTE } else { component.name() };
        Self { name, component, places, settings }
    }
}

const REMOTE: &str = "verbs-remote";

/// The transport of this name.
pub(crate) fn component(name: &str) -> &'static dyn Component {
    let mut found = uct::transports::components().iter().filter(|component| component.name() == name);
    let component = *found.next().unwrap_or_else(|| panic!("this build has no transport {name:?}"));
    assert!(found.next().is_none(), "two transports are called {name:?}");
    component
}

/// Bound of every wait of an import.
pub(crate) const IMPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Bound of every wait of a revocation.
const REVOKE_TIMEOUT: Duration = Duration::from_secs(5);

/// A context, as far as one transport needs it: a memory domain, an export table, a service.
#[derive(Clone, Debug)]
pub(crate) struct Side {
    pub(crate) md: Arc<dyn Md>,
    pub(crate) exports: Arc<ExportTable>,
    pub(crate) params: MdParams,
}

impl Side {
    /// A new context.
    pub(crate) fn open(fixture: &Fixture) -> Self {
        let exports = Arc::new(ExportTable::new(REVOKE_TIMEOUT).unwrap());
        let service = Arc::new(Service::new(Arc::clone(&exports), None));
        let component = fixture.component;
        let config = Config::builder(uct::config::VARS).vars(component.vars()).ignore_env();
        let set = |config: ConfigBuilder, (name, value): &(&str, &str)| config.set(*name, *value);
        let config = fixture.settings.iter().fold(config, set).build().unwrap();
        let params = MdParams { exports: Arc::clone(&exports), service, config };
        let resources = component.query_mds();
        let first = resources.first().expect("a memory domain is there on every machine that runs the suite");
        let md = component.open_md(first, &params).unwrap();
        Self { md, exports, params }
    }

    pub(crate) fn has(&self, flag: MdFlags) -> bool {
        self.md.attr().flags.contains(flag)
    }

    /// Whether its keys lead to other machines: what it finds there, or not, may be somebody else's doing.
    pub(crate) fn proves_less(&self) -> bool {
        self.md.attr().global_id.as_bytes() == b"net"
    }

    /// The kind of memory its exports are best made of.
    pub(crate) fn usual(&self) -> Kind {
        if self.has(MdFlags::ALLOC) { Kind::Allocated } else { Kind::Anonymous }
    }

    /// The kinds of memory that can be made for it.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = Kind> {
        let allocates = self.has(MdFlags::ALLOC);
        Kind::ALL.into_iter().filter(move |kind| allocates || *kind != Kind::Allocated)
    }

    /// The kinds of memory it registers.
    pub(crate) fn registered(&self) -> Vec<Kind> {
        let registers =
            |kind: &Kind| self.md.reg(&kind.make(&*self.md, 4096, Rights::READ_WRITE, 1).mem).is_ok();
        self.kinds().filter(registers).collect()
    }
}

/// Kinds of memory a region can be made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// By the memory domain.
    Allocated,
    /// By the context, for this process alone.
    Anonymous,
    /// The user's buffer.
    Owned,
    /// The user's buffer, for reading only.
    OwnedReadOnly,
    /// The user's addresses.
    Raw,
}

/// Memory for a region.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) mem: Arc<LocalMem>,
    /// What raw memory names.
    pub(crate) _under: Option<Mapping>,
}

impl Kind {
    pub(crate) const ALL: [Self; 5] =
        [Self::Allocated, Self::Anonymous, Self::Owned, Self::OwnedReadOnly, Self::Raw];

    pub(crate) fn from_index(index: u64) -> Self {
        Self::ALL[usize::try_from(index).unwrap()]
    }

    pub(crate) fn index(self) -> u64 {
        Self::ALL.iter().position(|kind| *kind == self).unwrap() as u64
    }

    /// Makes memory of this kind, filled with [`pattern`].
    pub(crate) fn make(self, md: &dyn Md, len: usize, rights: Rights, seed: u64) -> Made {
        let filled = pattern(seed, len);
        let fill = |mem: LocalMem| {
            mem.write(0, &filled).unwrap();
            mem
        };
        let mut under = None;
        let mem = match self {
            Self::Allocated => fill(md.alloc(len, rights).unwrap()),
            Self::Anonymous => fill(LocalMem::anonymous(len, rights).unwrap()),
            Self::Owned => LocalMem::owned(OwnedBytes::writable(filled), rights),
            Self::OwnedReadOnly => LocalMem::owned(OwnedBytes::readable(filled), rights),
            Self::Raw => {
                let map = Mapping::anonymous(len).unwrap();
                let raw: RawMem = sys::raw(&map);
                under = Some(map);
                fill(LocalMem::raw(&raw, rights))
            }
        };
        Made { mem: Arc::new(mem), _under: under }
    }

    /// What importers may do with memory of this kind that was made with `asked`.
    pub(crate) fn granted(self, asked: Rights) -> Rights {
        if self == Self::OwnedReadOnly { asked - Rights::WRITE } else { asked }
    }
}

/// Bytes that tell a region from every other one.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    testkit::Rng::new(seed).fill(&mut bytes);
    bytes
}
