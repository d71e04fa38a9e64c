//! Contexts.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bitflags::bitflags;
use ucs::Status;
use ucs::config::{Bytes, Config, ConfigBuilder, ConfigError, Env, OrAuto, UnknownNames};
use ucs::fork::{self, Generation};
use ucs::mem::MemError;
use ucs::monitor::Monitor;
use ucs::rcache::Stats as RcacheStats;
use ucs::rcache::config::{Settings, SettingsError, Unavailable};
use uct::LocalMem;
use uct::api::{AllocError, Component, Md, MdFlags, MdParams, MdResource, OpenError};
use uct::export::{ExportError, ExportTable};
use uct::memory::{PrivateMem, Rights};
use uct::registrations::Registrations;
use uct::service::Service;

use crate::config::{MAX_IMPORTS, TLS, VARS, ZCOPY_THRESH};
use crate::devices;
use crate::mem::{Buf, ImportCache, ImportError, ImportedRegion, MapError, MdResults, MemMap, Region};

bitflags! {
    /// What a context is to be used for: the bits of `UCP_FEATURE_*` in `ucp/api/ucp.h`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[doc(alias = "ucp_feature")]
    #[doc(alias = "UCP_FEATURE_EXPORTED_MEMH")]
    pub struct Features: u64 {
        /// Remote memory access: keys to regions, put and get by endpoints.
        #[doc(alias = "UCP_FEATURE_RMA")]
        const RMA = 1 << 1;
        /// Atomics of 32 bits.
        #[doc(alias = "UCP_FEATURE_AMO32")]
        const AMO32 = 1 << 2;
        /// Atomics of 64 bits.
        #[doc(alias = "UCP_FEATURE_AMO64")]
        const AMO64 = 1 << 3;
        /// Sleeping until something happens. A worker always can.
        #[doc(alias = "UCP_FEATURE_WAKEUP")]
        const WAKEUP = 1 << 4;
        /// Active messages.
        #[doc(alias = "UCP_FEATURE_AM")]
        const AM = 1 << 6;
        /// Exporting memory, and importing what others have exported.
        const EXPORTED_MEMH = 1 << 7;
    }
}

impl Features {
    /// Keys to regions.
    pub(crate) const RKEYS: Self = Self::RMA.union(Self::AMO32).union(Self::AMO64);

    /// The one that a context is advised to be made with where it has none of these.
    pub(crate) fn needed(self) -> &'static str {
        if self.contains(Self::EXPORTED_MEMH) { "EXPORTED_MEMH" } else { "RMA" }
    }
}

/// A context could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InitError {
    /// A variable or a setting of the builder is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A list names what does not exist.
    #[error("{variable}: {error}")]
    UnknownNames {
        /// The variable.
        variable: &'static str,
        /// What is unknown.
        error: UnknownNames,
    },
    /// The variables of the registration cache contradict each other.
    #[error(transparent)]
    Rcache(#[from] SettingsError),
    /// A registration cache is required by UCX_RCACHE_ENABLE=y, a transport needs one, and there can be none.
    #[error(transparent)]
    NoRcache(#[from] Unavailable),
    /// No transport is left.
    #[error("no transport can be used: {reasons}")]
    NoTransports {
        /// Why each of those that exist cannot.
        reasons: MdResults,
    },
    /// The export table could not be made.
    #[error(transparent)]
    Export(#[from] ExportError),
}

impl InitError {
    /// The one-byte status.
    pub fn status(&self) -> Status {
        match self {
            Self::Config(error) => error.status(),
            Self::UnknownNames { error, .. } => error.status(),
            Self::Rcache(error) => error.status(),
            Self::NoRcache(error) => error.status(),
            Self::NoTransports { .. } => Status::NoDevice,
            Self::Export(error) => error.status(),
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::Config(error) => error.remedy(),
            Self::UnknownNames { error, .. } => error.remedy(),
            Self::Rcache(error) => error.remedy(),
            Self::NoRcache(error) => error.remedy(),
            Self::NoTransports { .. } => "allow one of them in UCX_TLS".to_owned(),
            Self::Export(error) => error.remedy().to_owned(),
        }
    }
}

/// Makes a [`Context`].
#[derive(Debug)]
#[must_use]
pub struct ContextBuilder {
    features: Features,
    config: ConfigBuilder,
    components: Vec<&'static dyn Component>,
}

impl ContextBuilder {
    /// What the context is to be used for. None, by default.
    pub fn features(mut self, features: Features) -> Self {
        self.features |= features;
        self
    }

    /// Sets a variable, whatever the environment says: `set("UCX_TLS", "shm")`.
    pub fn set(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.config = self.config.set(name, value);
        self
    }

    /// Reads this environment instead of the process's.
    pub fn env(mut self, env: Env) -> Self {
        self.config = self.config.env(env);
        self
    }

    /// Reads no environment.
    pub fn ignore_env(mut self) -> Self {
        self.config = self.config.ignore_env();
        self
    }

    /// Adds a transport to those of this build, or puts it in the place of the one with the same number. `UCX_TLS` allows it by its
    /// name.
    ///
    /// For transports of your own, and for doubles in tests: [`uct::api`] makes no semver promise before 1.0.
    pub fn component(mut self, component: &'static dyn Component) -> Self {
        self.config = self.config.vars(component.vars());
        match self.components.iter_mut().find(|other| other.id() == component.id()) {
            Some(other) => *other = component,
            None => self.components.push(component),
        }
        self
    }

    /// Makes the context: reads the configuration and opens the memory domains of the transports that may be used.
    ///
    /// # Errors
    /// [`InitError`].
    #[doc(alias = "ucp_init")]
    pub fn build(self) -> Result<Context, InitError> {
        let config = self.config.build()?;
        let rcache = Settings::from_config(&config)?;
        let components = self.components;
        let mut known: Vec<&str> = components.iter().map(|component| component.name()).collect();
        known.extend(uct::transports::NOT_HERE);
        let unknown = |variable, error| InitError::UnknownNames { variable, error };
        let allowed = config.get(&TLS).resolve(&known, uct::transports::ALIASES).map_err(|mut error| {
            // What others have is accepted, and nothing to advise.
            error.known.retain(|name| !uct::transports::NOT_HERE.contains(&name.as_str()));
            unknown(TLS.name(), error)
        })?;
        let exports = Arc::new(ExportTable::new(config.get(&uct::config::REVOKE_TIMEOUT))?);
        let directory = config.get(&uct::config::SERVICE_DIR);
        let directory = (!directory.is_empty()).then(|| PathBuf::from(directory));
        let service = Arc::new(Service::new(Arc::clone(&exports), directory));
        let params =
            MdParams { exports: Arc::clone(&exports), service: Arc::clone(&service), config: config.clone() };
        devices::warn(&config, components.iter().filter(|component| allowed.allows(component.name())));
        let mut mds = Vec::new();
        let mut left_out = MdResults::default();
        for component in &components {
            if !allowed.allows(component.name()) {
                left_out.push(component.id(), Err("not allowed by UCX_TLS".to_owned()));
                continue;
            }
            for resource in component.query_mds() {
                match component.open_md(&resource, &params) {
                    Ok(md) => mds.push(OpenMd { component: *component, name: resource.name, md }),
                    Err(OpenError::UnknownNames { variable, error }) => return Err(unknown(variable, error)),
                    Err(error) => left_out.push(component.id(), Err(describe(*component, &resource, &error))),
                }
            }
        }
        if mds.is_empty() {
            return Err(InitError::NoTransports { reasons: left_out });
        }
        let names: Vec<_> = mds.iter().map(|open| open.component.name()).collect();
        tracing::info!(transports = ?names, %left_out, "a context");
        let zcopy_from = match config.get(&ZCOPY_THRESH) {
            OrAuto::Set(bytes) => Some(bytes.finite().map_or(u64::MAX, Bytes::get)),
            OrAuto::Auto => None,
        };
        let registrations = Registrations::new(mds.iter().map(|open| &open.md), rcache.options);
        if registrations.is_needed() {
            rcache.prepare(Monitor::process())?;
        }
        let inner = ContextInner {
            features: self.features,
            generation: fork::generation(),
            import_timeout: config.get(&uct::config::IMPORT_TIMEOUT),
            imports: ImportCache::new(config.get(&MAX_IMPORTS)),
            config,
            exports,
            service,
            registrations,
            zcopy_from,
            components,
            mds,
            left_out,
        };
        Ok(Context { inner: Arc::new(inner) })
    }
}

/// Why a memory domain is left out: with its name, where its component has others.
fn describe(component: &dyn Component, resource: &MdResource, error: &OpenError) -> String {
    tracing::debug!(domain = resource.name, %error, "a memory domain cannot be opened");
    let name = Some(&resource.name).filter(|name| *name != component.name());
    let name = name.map_or_else(String::new, |name| format!("{name}: "));
    format!("{name}{error} ({})", error.remedy())
}

/// A memory domain that this context has opened.
#[derive(Debug)]
pub(crate) struct OpenMd {
    pub(crate) component: &'static dyn Component,
    /// Its name within the component.
    pub(crate) name: String,
    pub(crate) md: Arc<dyn Md>,
}

pub(crate) struct ContextInner {
    features: Features,
    generation: Generation,
    pub(crate) import_timeout: Duration,
    pub(crate) config: Config,
    pub(crate) exports: Arc<ExportTable>,
    service: Arc<Service>,
    /// Of operands, with the memory domains that need that.
    pub(crate) registrations: Registrations,
    /// From how many bytes on operands are registered, where the user has said so.
    pub(crate) zcopy_from: Option<u64>,
    components: Vec<&'static dyn Component>,
    pub(crate) mds: Vec<OpenMd>,
    /// Transports that are not used, and why.
    pub(crate) left_out: MdResults,
    pub(crate) imports: ImportCache,
}

impl ContextInner {
    /// Whether this is a fork's child: nothing of the context may be used there.
    pub(crate) fn is_forked(&self) -> bool {
        !self.generation.is_current()
    }

    pub(crate) fn has(&self, features: Features) -> bool {
        self.features.contains(features)
    }

    pub(crate) fn has_any(&self, features: Features) -> bool {
        self.features.intersects(features)
    }

    /// Whether it has a transport of this number, in use or not.
    pub(crate) fn knows(&self, number: u16) -> bool {
        self.components.iter().any(|component| component.id().0 == number)
    }

    /// Has kept memory freed as soon as it is drained.
    pub(crate) fn sweep(&self) {
        self.service.sweep();
    }

    /// Allocates `len` bytes (> 0), by a memory domain that can, or of this process alone.
    pub(crate) fn alloc(&self, len: usize, rights: Rights) -> Result<LocalMem, MemError> {
        let allocates = |open: &&OpenMd| open.md.attr().flags.contains(MdFlags::ALLOC);
        match self.mds.iter().find(allocates).map(|open| open.md.alloc(len, rights)) {
            Some(Ok(mem)) => Ok(mem),
            Some(Err(AllocError::Mem(error))) => Err(error),
            Some(Err(_)) | None => LocalMem::anonymous(len, rights),
        }
    }
}

/// Where everything begins (`ucp_context_h`): the transports in use, and what is exported and imported through them.
///
/// Send + Sync, and cheap to clone: clones are the same context. Regions keep it alive. Several contexts in one process share
/// nothing. A fork's child cannot use its parent's contexts: all calls answer an error there.
#[derive(Clone)]
#[doc(alias = "ucp_context_h")]
pub struct Context {
    pub(crate) inner: Arc<ContextInner>,
}

/// Figures of a context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Exports alive.
    pub exports: usize,
    /// Imported regions alive.
    pub imports: usize,
    /// Bytes of revoked memory that is kept because an importer's access has not ended.
    pub kept_bytes: u64,
}

impl Context {
    /// Begins to make a context.
    pub fn builder() -> ContextBuilder {
        let config = Config::builder(VARS).vars(uct::config::VARS);
        let components = uct::transports::components().to_vec();
        let config = components.iter().fold(config, |config, component| config.vars(component.vars()));
        ContextBuilder { features: Features::default(), config, components }
    }

    /// Maps memory: allocates it, takes a buffer, or names an address range.
    ///
    /// # Errors
    /// [`MapError`].
    #[doc(alias = "ucp_mem_map")]
    pub fn mem_map(&self, map: MemMap) -> Result<Region, MapError> {
        Region::map(&self.inner, map)
    }

    /// Allocates `len` zeroed bytes that only this process can see.
    ///
    /// # Errors
    /// [`MapError`].
    pub fn buf(&self, len: usize) -> Result<Buf, MapError> {
        Buf::allocate(&self.inner, len)
    }

    /// Imports memory that another process has exported (`ucp_mem_map` with `exported_memh_buffer` in C UCX): `bytes` are those
    /// of its [`PackedMemh`](crate::PackedMemh).
    ///
    /// May block, at most `UCX_IMPORT_TIMEOUT`. Importing the same handle again answers the same attachment.
    ///
    /// # Errors
    /// [`ImportError`].
    #[doc(alias = "exported_memh_buffer")]
    pub fn mem_import(&self, bytes: &[u8]) -> Result<ImportedRegion, ImportError> {
        ImportedRegion::import(&self.inner, bytes)
    }

    /// The configuration in force.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// The transports in use, with their attributes.
    pub fn transports(&self) -> impl Iterator<Item = (&'static dyn Component, &Arc<dyn Md>)> {
        self.memory_domains().map(|(component, _, md)| (component, md))
    }

    /// The memory domains in use: of which transport each is, and its name there, as of a device.
    pub fn memory_domains(&self) -> impl Iterator<Item = (&'static dyn Component, &str, &Arc<dyn Md>)> {
        self.inner.mds.iter().map(|open| (open.component, open.name.as_str(), &open.md))
    }

    /// The transports that are not in use, and why: not allowed by `UCX_TLS`, or what they lack here.
    #[must_use]
    pub fn left_out(&self) -> &MdResults {
        &self.inner.left_out
    }

    /// Figures.
    #[must_use]
    pub fn stats(&self) -> Stats {
        if self.inner.is_forked() {
            return Stats::default();
        }
        let exports = self.inner.exports.stats();
        Stats { exports: exports.live, imports: self.inner.imports.len(), kept_bytes: exports.kept_bytes }
    }
}

impl Context {
    /// Figures of the registration cache: of operands that transports need registered. All zero as long as no operation needed that.
    #[must_use]
    pub fn rcache_stats(&self) -> RcacheStats {
        if self.inner.is_forked() { RcacheStats::default() } else { self.inner.registrations.stats() }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl fmt::Debug for ContextInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.mds.iter().map(|open| open.component.name()).collect();
        f.debug_struct("Context")
            .field("features", &self.features)
            .field("transports", &names)
            .finish_non_exhaustive()
    }
}

/// Memory of this process alone, from fresh memory.
pub(crate) fn private(mem: LocalMem) -> Result<PrivateMem, MapError> {
    PrivateMem::new(mem).map_err(|_| MapError::Shared)
}
