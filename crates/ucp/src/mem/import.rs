//! Importing what another process has exported.

use std::fmt;
use std::sync::Arc;

use ucs::Status;
use ucs::mem::MemError;
use ucs::time::Deadline;
use uct::api::{AtomicOp, AttachError, AttachRequest, Attachment, ComponentId, GlobalId, MdFlags};
use uct::config::{ATOMIC_MODE, AtomicMode};
use uct::memory::{AccessError, MappedView, Rights, StaleReason};
use uct::registrations::Needs;
use zerocopy::{FromBytes, Immutable, IntoBytes};
use zeroize::Zeroizing;

use super::MdResults;
use super::import_cache::{Key, Lookup};
use crate::Features;
use crate::context::{ContextInner, OpenMd};
use crate::proto::{TYPICAL, rank};
use crate::wire::handle::{self, Entry, Handle, HandleError};

/// A handle could not be imported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The context was not made for that.
    #[error("the context was made without Features::{needed}")]
    FeatureMissing {
        /// Which it lacks.
        needed: &'static str,
    },
    /// The bytes are no handle of an export.
    #[error("not a valid handle: {0}")]
    InvalidHandle(#[from] HandleError),
    /// The bytes are a handle, and its exporter says that it made no such one.
    #[error("not a valid handle: {results}")]
    Forged {
        /// What each transport said.
        results: MdResults,
    },
    /// The token is wrong.
    #[error("access denied: {results}")]
    AccessDenied {
        /// What each transport said.
        results: MdResults,
    },
    /// The export was revoked or dropped, or its process is gone.
    #[error("stale: {results}")]
    Stale {
        /// What each transport said.
        results: MdResults,
    },
    /// No transport reaches the exporter.
    #[error("unreachable: the exporter offers {}; here: {results}", Offers(.offered))]
    Unreachable {
        /// What the exporter offers.
        offered: Vec<Offer>,
        /// What each transport said.
        results: MdResults,
        /// What to do about it, as the transport that came nearest says.
        advice: &'static str,
    },
    /// A limit of this process or system.
    #[error("{error} ({results})")]
    Mem {
        /// Which, and how far.
        error: MemError,
        /// What each transport said.
        results: MdResults,
    },
    /// As many imports are alive as may be.
    #[error("{limit} imported regions are alive in this context, and UCX_MAX_IMPORTS allows no more")]
    TooMany {
        /// How many may be.
        limit: usize,
    },
    /// Another thread is importing the same handle, and has waited for the exporter all the time.
    #[error("another thread has been importing the same handle for all of UCX_IMPORT_TIMEOUT")]
    TimedOut,
    /// The context belongs to the parent process of a fork.
    #[error("this context belongs to the parent process: a fork's child must make its own")]
    Forked,
}

/// What an exporter offers: a component, and where its key means something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The component.
    pub component: ComponentId,
    /// The scope of its key.
    pub global_id: GlobalId,
}

struct Offers<'a>(&'a [Offer]);

impl fmt::Display for Offers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, offer) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{} ({})", offer.component, offer.global_id)?;
        }
        f.write_str(if self.0.is_empty() { "nothing" } else { "" })
    }
}

impl ImportError {
    /// The one-byte status.
    pub fn status(&self) -> Status {
        match self {
            Self::FeatureMissing { .. } => Status::InvalidParam,
            Self::InvalidHandle(_) | Self::Forged { .. } => Status::InvalidHandle,
            Self::AccessDenied { .. } => Status::AccessDenied,
            Self::Stale { .. } => Status::Stale,
            Self::Unreachable { .. } => Status::Unreachable,
            Self::Mem { error, .. } => error.status(),
            Self::TooMany { .. } => Status::ExceedsLimit,
            Self::TimedOut => Status::TimedOut,
            Self::Forked => Status::Forked,
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::FeatureMissing { needed } => {
                return format!("make the context with features(Features::{needed})");
            }
            Self::InvalidHandle(_) | Self::Forged { .. } | Self::AccessDenied { .. } => {
                "pass on exactly the bytes that memh_pack gave"
            }
            Self::Stale { .. } => "ask the owner for a new handle and import that",
            Self::Unreachable { advice, .. } => advice,
            Self::Mem { error, .. } => error.remedy(),
            Self::TooMany { .. } => "drop imports that are no longer used, or raise UCX_MAX_IMPORTS",
            Self::TimedOut => "see whether the exporter is stopped, or raise UCX_IMPORT_TIMEOUT",
            Self::Forked => "create a new Context in the child",
        }
        .to_owned()
    }
}

impl ImportError {
    /// What each transport said, where transports were asked.
    #[must_use]
    pub fn md_results(&self) -> Option<&MdResults> {
        match self {
            Self::Forged { results }
            | Self::AccessDenied { results }
            | Self::Stale { results }
            | Self::Unreachable { results, .. }
            | Self::Mem { results, .. } => Some(results),
            _ => None,
        }
    }
}

/// An attachment, shared by all imports of the same handle.
pub(crate) struct Imported {
    ctx: Arc<ContextInner>,
    key: Key,
    bytes: Zeroizing<Vec<u8>>,
    memory: Arc<dyn Attachment>,
    /// The context that exported it.
    owner: [u8; 16],
    /// The name of the transport.
    transport: &'static str,
    /// Whether operands must be registered for it.
    needs: Option<Needs>,
    /// Whether atomics on it are those that the context is to do.
    has_atomics: bool,
    results: MdResults,
}

impl Imported {
    #[inline]
    pub(super) fn needs(&self) -> Option<Needs> {
        self.needs
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn is_alive(&self) -> bool {
        self.memory.check().is_ok()
    }

    #[inline]
    pub(super) fn ctx(&self) -> &ContextInner {
        &self.ctx
    }

    #[inline]
    pub(super) fn memory(&self) -> &dyn Attachment {
        &*self.memory
    }

    #[inline]
    pub(super) fn atomic(&self, offset: u64, op: AtomicOp) -> Result<u64, AccessError> {
        if !self.has_atomics {
            return Err(AccessError::Unsupported {
                why: "with UCX_ATOMIC_MODE=device there are no atomics on memory that no device reaches: they would not be atomic towards a device's",
            });
        }
        self.memory.atomic(offset, op)
    }
}

impl fmt::Debug for Imported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("ImportedRegion");
        out.field("transport", &self.transport).field("len", &self.memory.len()).finish_non_exhaustive()
    }
}

impl Drop for Imported {
    fn drop(&mut self) {
        if !self.ctx.is_forked() {
            self.ctx.imports.forget(&self.key);
        }
    }
}

/// Another process's memory, imported.
///
/// `read`, `write`, `put`, `get` and atomics take part in the owner's revocation; they may block when many threads use them, at most
/// `UCX_IMPORT_TIMEOUT`. Clones are the same import; the last one dropped detaches. Send + Sync, and usable by many threads at
/// once.
///
/// What is imported cannot be exported again, nor revoked: only its owner can.
///
/// ```compile_fail,E0599
/// fn export_again(imported: &ucp::ImportedRegion) {
///     imported.memh_pack();
/// }
/// ```
///
/// ```compile_fail,E0599
/// fn revoke(imported: &ucp::ImportedRegion) {
///     imported.revoke();
/// }
/// ```
#[derive(Clone, Debug)]
pub struct ImportedRegion {
    /// `None` for memory without bytes.
    imported: Option<Arc<Imported>>,
}

impl ImportedRegion {
    pub(crate) fn import(ctx: &Arc<ContextInner>, bytes: &[u8]) -> Result<Self, ImportError> {
        Self::import_for(ctx, bytes, Features::EXPORTED_MEMH)
    }

    /// As `import`, of a context that has one of these features.
    pub(crate) fn import_for(
        ctx: &Arc<ContextInner>,
        bytes: &[u8],
        features: Features,
    ) -> Result<Self, ImportError> {
        if ctx.is_forked() {
            return Err(ImportError::Forked);
        }
        if !ctx.has_any(features) {
            return Err(ImportError::FeatureMissing { needed: features.needed() });
        }
        if bytes.len() > handle::MAX_LEN {
            decode(ctx, bytes)?; // says so, whatever else is in them
        }
        let deadline = Deadline::after(ctx.import_timeout);
        let (key, lookup) = ctx.imports.lookup(bytes, ctx.import_timeout);
        match lookup {
            Lookup::Hit(imported) => Ok(Self { imported: Some(imported) }),
            Lookup::Full => Err(ImportError::TooMany { limit: ctx.imports.limit() }),
            Lookup::TimedOut => Err(ImportError::TimedOut),
            Lookup::Miss(vacancy) => match Self::make(ctx, key, bytes, deadline) {
                Ok(Some(imported)) => {
                    vacancy.fill(&imported);
                    Ok(Self { imported: Some(imported) })
                }
                other => {
                    drop(vacancy);
                    ctx.imports.forget(&key);
                    other.map(|imported| Self { imported })
                }
            },
        }
    }

    /// Makes an import; `None` for memory without bytes.
    fn make(
        ctx: &Arc<ContextInner>,
        key: Key,
        bytes: &[u8],
        deadline: Deadline,
    ) -> Result<Option<Arc<Imported>>, ImportError> {
        let content = decode(ctx, bytes)?;
        if content.length == 0 {
            return Ok(None);
        }
        let (memory, open, results) = attach(ctx, &content, deadline)?;
        let (transport, needs) = (open.component.name(), ctx.registrations.of(&open.md));
        let (ctx, bytes) = (Arc::clone(ctx), Zeroizing::new(bytes.to_vec()));
        let owner = content.context_uuid;
        let by_device = ctx.config.get(&ATOMIC_MODE) == AtomicMode::Device;
        let has_atomics = !by_device || open.md.attr().flags.contains(MdFlags::DEVICE_ATOMICS);
        Ok(Some(Arc::new(Imported {
            ctx,
            key,
            bytes,
            memory,
            owner,
            transport,
            needs,
            has_atomics,
            results,
        })))
    }

    #[inline]
    pub(super) fn imported(&self) -> Option<&Imported> {
        self.imported.as_deref()
    }

    /// The context that exported it; `None` for memory without bytes.
    pub(crate) fn owner(&self) -> Option<[u8; 16]> {
        self.imported.as_ref().map(|imported| imported.owner)
    }

    /// How many bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.imported.as_ref().map_or(0, |imported| imported.memory.len())
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What may be done with it.
    #[must_use]
    pub fn rights(&self) -> Rights {
        self.imported.as_ref().map_or(Rights::READ_WRITE, |imported| imported.memory.rights())
    }

    /// The transport that reaches it, by its name in `UCX_TLS`; `none` for memory without bytes.
    #[must_use]
    pub fn transport(&self) -> &'static str {
        self.imported.as_ref().map_or("none", |imported| imported.transport)
    }

    /// What each transport said when it was imported: which one was chosen, how, and why not the others.
    #[must_use]
    pub fn md_results(&self) -> MdResults {
        self.imported.as_ref().map(|imported| imported.results.clone()).unwrap_or_default()
    }

    /// Whether both are the same attachment.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        match (&self.imported, &other.imported) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (None, None) => true,
            _ => false,
        }
    }

    /// Whether the export still lives, as far as is known.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self) -> Result<(), StaleReason> {
        self.imported.as_ref().map_or(Ok(()), |imported| imported.memory.check())
    }

    /// Copies from `offset` on into `dst`.
    ///
    /// # Errors
    /// [`AccessError`], which tells how many bytes were copied before.
    pub fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        match &self.imported {
            Some(imported) => imported.memory.read(offset, dst),
            None => uct::memory::check_range(offset, dst.len(), 0),
        }
    }

    /// Copies `src` to `offset`.
    ///
    /// # Errors
    /// [`AccessError`], which tells how many bytes were copied before; `AccessDenied` for memory exported read-only.
    pub fn write(&self, offset: u64, src: &[u8]) -> Result<(), AccessError> {
        match &self.imported {
            Some(imported) => imported.memory.write(offset, src),
            None => uct::memory::check_range(offset, src.len(), 0),
        }
    }

    /// Reads a `T`. Where the transport maps the memory, an aligned word of up to 8 bytes does not tear, and what its owner wrote
    /// before it stored the word is seen after this. Where the kernel copies ([`ImportedRegion::view`] is `None`), nobody promises
    /// that.
    ///
    /// # Errors
    /// As [`ImportedRegion::read`].
    pub fn load<T: FromBytes + IntoBytes>(&self, offset: u64) -> Result<T, AccessError> {
        let mut value = T::new_zeroed();
        self.read(offset, value.as_mut_bytes())?;
        Ok(value)
    }

    /// Writes a `T`, as [`ImportedRegion::load`] reads it.
    ///
    /// # Errors
    /// As [`ImportedRegion::write`].
    pub fn store<T: IntoBytes + Immutable>(&self, offset: u64, value: T) -> Result<(), AccessError> {
        self.write(offset, value.as_bytes())
    }

    /// The memory itself, where the transport maps it: load, store and atomics without mediation. The owner's revocation neither
    /// ends nor waits for accesses through it: what a view held can still reach is the transport's capability `revocable`. `None`
    /// where the transport maps nothing, and in a fork's child.
    #[must_use]
    pub fn view(&self) -> Option<MappedView<'_>> {
        self.imported.as_ref()?.memory.view()
    }
}

fn decode(ctx: &ContextInner, bytes: &[u8]) -> Result<Handle, HandleError> {
    Handle::decode(bytes, |number| ctx.knows(number))
}

/// A memory domain that entries of the handle mean something to, and what an access through it costs.
struct Candidate<'c, 'h> {
    open: &'c OpenMd,
    entries: Vec<&'h Entry>,
    nanoseconds: f64,
}

/// Attaches by the memory domain whose accesses cost least, of those that can.
fn attach<'a>(
    ctx: &'a ContextInner,
    content: &Handle,
    deadline: Deadline,
) -> Result<(Arc<dyn Attachment>, &'a OpenMd, MdResults), ImportError> {
    let mut results = ctx.left_out.clone();
    let mut failures = Vec::new();
    let typical = content.length.min(TYPICAL);
    let mut candidates = Vec::new();
    for open in &ctx.mds {
        let attr = open.md.attr();
        match meant_for(open, content) {
            Ok(entries) => {
                candidates.push(Candidate { open, entries, nanoseconds: attr.access_cost.at(typical) * 1e9 });
            }
            Err(why) => results.push(attr.component, Err(why)),
        }
    }
    rank(&mut candidates, typical, |candidate| candidate.open.md.attr().access_cost);
    let mut found: Option<(Arc<dyn Attachment>, &Candidate<'_, '_>)> = None;
    for candidate in &candidates {
        let component = candidate.open.md.attr().component;
        if let Some((_, best)) = &found {
            results.push(component, Err(not_needed(candidate, best, typical)));
            continue;
        }
        match attach_by(candidate, content, deadline) {
            Ok((memory, how)) => {
                results.push(component, Ok(how));
                found = Some((memory, candidate));
            }
            Err(error) => {
                results.push(component, Err(error.to_string()));
                failures.push(error);
            }
        }
    }
    match found {
        Some((memory, Candidate { open, .. })) => {
            let component = open.md.attr().component;
            tracing::debug!(export = content.registration_id, %component, %results, "imported");
            Ok((memory, open, results))
        }
        None => Err(verdict(ctx, content, failures, results)),
    }
}

fn not_needed(candidate: &Candidate<'_, '_>, best: &Candidate<'_, '_>, typical: u64) -> String {
    let (name, least, cost) = (best.open.component.name(), best.nanoseconds, candidate.nanoseconds);
    if cost > least {
        format!("not needed: {typical} bytes take {cost:.0} ns, and {least:.0} ns by {name}")
    } else {
        format!("not needed: {name} costs no more, and comes first")
    }
}

/// The entries of a handle that mean something to a memory domain; or why there are none.
fn meant_for<'a>(open: &OpenMd, content: &'a Handle) -> Result<Vec<&'a Entry>, String> {
    let attr = open.md.attr();
    let matching = |entry: &&Entry| open.md.can_attach(ComponentId(entry.component), &entry.global_id);
    let entries: Vec<_> = content.entries.iter().filter(matching).collect();
    if !entries.is_empty() {
        return if attr.flags.contains(MdFlags::EXPORTED_MKEY) {
            Ok(entries)
        } else {
            Err(format!("{} {} matches, but cannot attach exported memory", attr.component, attr.global_id))
        };
    }
    let elsewhere = content.entries.iter().find(|entry| entry.component == attr.component.0);
    Err(match elsewhere.and_then(|entry| GlobalId::new(&entry.global_id)) {
        Some(id) => format!("offered for {id}, while this is {}", attr.global_id),
        None => "not offered by the exporter".to_owned(),
    })
}

/// Attaches by the first entry that works; else answers the last failure.
fn attach_by(
    candidate: &Candidate<'_, '_>,
    content: &Handle,
    deadline: Deadline,
) -> Result<(Arc<dyn Attachment>, String), AttachError> {
    let mut failure = AttachError::Closed;
    for entry in &candidate.entries {
        let request = AttachRequest {
            context_uuid: content.context_uuid,
            id: content.registration_id,
            epoch: content.epoch,
            address: content.address,
            length: content.length,
            mkey: &entry.mkey,
            deadline,
        };
        match candidate.open.md.attach(&request) {
            Ok(attached) => return Ok((attached.memory, attached.how)),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// The one error for what the memory domains said: access denied before a forged handle, a limit here, stale, unreachable.
fn verdict(
    ctx: &ContextInner,
    content: &Handle,
    failures: Vec<AttachError>,
    results: MdResults,
) -> ImportError {
    let advice = failures.first().map(AttachError::remedy);
    match failures.into_iter().min_by_key(AttachError::rank) {
        Some(AttachError::WrongToken) => ImportError::AccessDenied { results },
        Some(AttachError::Malformed(_) | AttachError::Mismatch) => ImportError::Forged { results },
        Some(AttachError::Mem(error)) => ImportError::Mem { error, results },
        Some(AttachError::Stale(_)) => ImportError::Stale { results },
        _ => {
            let offer = |entry: &Entry| {
                Some(Offer {
                    component: ComponentId(entry.component),
                    global_id: GlobalId::new(&entry.global_id)?,
                })
            };
            let offered: Vec<Offer> = content.entries.iter().filter_map(offer).collect();
            let has = |offer: &Offer| ctx.mds.iter().any(|open| open.md.attr().component == offer.component);
            let own = |offer: &Offer| offer.global_id.as_bytes() == content.context_uuid;
            let advice = advice.unwrap_or(if offered.iter().all(own) {
                "it is reached within its own context only: export memory of MemMap::allocate, and allow the exporter \
                 more transports in UCX_TLS"
            } else if !offered.iter().any(|offer| has(offer) && !own(offer)) {
                "allow one of the transports that the exporter offers in UCX_TLS"
            } else {
                "run both sides on one machine"
            });
            ImportError::Unreachable { offered, results, advice }
        }
    }
}

#[cfg(test)]
mod tests;
