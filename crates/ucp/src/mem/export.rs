//! Exporting a region: the packed handle.

use std::fmt;
use std::io::{self, Read};
use std::sync::{Arc, Weak};

use ucs::Status;
use uct::api::{ComponentId, MdAttr, PackFlags};
use uct::export::{Export, ExportError, NotRevoked};
use zeroize::Zeroizing;

use super::map::Registration;
use super::{MdResults, Region};
use crate::Features;
use crate::context::ContextInner;
use crate::wire::handle::{self, Handle, Head, Outline, Template};

/// A region could not be exported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// The context was not made for that.
    #[error("the context was made without Features::{needed}")]
    FeatureMissing {
        /// Which it lacks.
        needed: &'static str,
    },
    /// No transport in use can export this memory.
    #[error("no transport in use can export it: {results}")]
    NotExportable {
        /// What each said.
        results: MdResults,
    },
    /// The export table has no room, or could not be made.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// A transport that can export it has failed.
    #[error("{component}: {error}")]
    Md {
        /// Which.
        component: ComponentId,
        /// How.
        error: uct::api::PackError,
    },
    /// The handle would be longer than the format allows.
    #[error("the handle would be too long")]
    TooLong,
    /// The region belongs to the parent process of a fork.
    #[error("this region belongs to the parent process: a fork's child must make its own context")]
    Forked,
}

impl PackError {
    /// The one-byte status.
    pub fn status(&self) -> Status {
        match self {
            Self::FeatureMissing { .. } => Status::InvalidParam,
            Self::NotExportable { .. } => Status::Unsupported,
            Self::Export(error) => error.status(),
            Self::Md { error, .. } => error.status(),
            Self::TooLong => Status::ExceedsLimit,
            Self::Forked => Status::Forked,
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> String {
        use uct::api::PackError as MdError;
        match self {
            Self::FeatureMissing { needed } => {
                return format!("make the context with features(Features::{needed})");
            }
            Self::NotExportable { .. } => {
                "use memory of MemMap::allocate, or allow more transports in UCX_TLS"
            }
            Self::Export(error) | Self::Md { error: MdError::Export(error), .. } => error.remedy(),
            Self::Md { error: MdError::Service(error), .. } => error.remedy(),
            Self::Md { error: MdError::Mem(error), .. } => error.remedy(),
            Self::Md { .. } => "leave the transport out with UCX_TLS",
            Self::TooLong => "allow fewer transports in UCX_TLS",
            Self::Forked => "create a new Context in the child",
        }
        .to_owned()
    }
}

/// The handle of an export: bytes for another process, and the means to revoke it. Send + Sync.
///
/// **The bytes are a secret**: who has them may do with the region what its rights allow, until it is revoked. Send them through
/// a pipe, a socket or a file only the other side can read; never in the arguments of a command. `Debug` does not show them.
#[doc(alias = "ucp_memh_pack")]
pub struct PackedMemh {
    /// Wiped when they are dropped.
    bytes: Zeroizing<Vec<u8>>,
    /// `None` for a region without bytes: there is nothing to revoke.
    export: Option<Arc<Export>>,
    ctx: Weak<ContextInner>,
}

impl PackedMemh {
    /// Exports a region of a context that has one of these features.
    pub(super) fn pack(region: &Region, features: Features) -> Result<Self, PackError> {
        let ctx = &region.ctx;
        if ctx.is_forked() {
            return Err(PackError::Forked);
        }
        if !ctx.has_any(features) {
            return Err(PackError::FeatureMissing { needed: features.needed() });
        }
        if region.is_empty() {
            let template = Template::new(&Self::head(region), &[]).map_err(|_| PackError::TooLong)?;
            let bytes = template.fill(0, 0, |_, _| Ok::<_, PackError>(()))?;
            return Ok(Self { bytes: Zeroizing::new(bytes), export: None, ctx: Arc::downgrade(ctx) });
        }
        if region.registrations.is_empty() {
            return Err(PackError::NotExportable { results: region.md_results().clone() });
        }
        let template = match region.template.get() {
            Some(template) => template,
            None => {
                let template = Self::template(region)?;
                region.template.get_or_init(|| template)
            }
        };
        let export = ctx.exports.publish(&region.mem)?;
        let (id, epoch) = (export.claim().id, export.claim().epoch);
        let write = |index: usize, out: &mut [u8]| {
            let Registration { md, memh } = &region.registrations[index];
            let packed = memh.pack(&export, PackFlags::EXPORT, out);
            packed.map_err(|error| PackError::Md { component: ctx.mds[*md].md.attr().component, error })
        };
        let bytes = template.fill(id, epoch, write).inspect_err(|_| {
            let _ = export.revoke();
        })?;
        tracing::debug!(export = id, length = region.len(), "exported");
        let export = Arc::new(export);
        region.exports.lock().add(&export);
        Ok(Self { bytes: Zeroizing::new(bytes), export: Some(export), ctx: Arc::downgrade(ctx) })
    }

    fn head(region: &Region) -> Head {
        Head {
            address: region.address(),
            length: region.len() as u64,
            context_uuid: *region.ctx.exports.uuid(),
            registration_id: 0,
            epoch: 0,
        }
    }

    /// What the handles of all exports of a region have in common.
    fn template(region: &Region) -> Result<Template, PackError> {
        let attr = |registration: &Registration| region.ctx.mds[registration.md].md.attr();
        let mut outlines = Vec::with_capacity(region.registrations.len());
        for registration in &region.registrations {
            let MdAttr { component, global_id, .. } = attr(registration);
            let size = registration.memh.packed_size(PackFlags::EXPORT);
            outlines.push(Outline {
                component: component.0,
                mandatory: false,
                global_id: global_id.as_bytes(),
                mkey_len: size.map_err(|error| PackError::Md { component: *component, error })?,
            });
        }
        Template::new(&Self::head(region), &outlines).map_err(|_| PackError::TooLong)
    }

    /// The handle's bytes: a secret.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What each transport packed.
    #[must_use]
    pub fn md_results(&self) -> MdResults {
        let mut results = MdResults::default();
        for entry in Handle::decode(&self.bytes, |_| true).map(|content| content.entries).unwrap_or_default()
        {
            let size = entry.mkey.len();
            results.push(ComponentId(entry.component), Ok(format!("a key of {size} bytes")));
        }
        results
    }

    /// Ends the export, for ever: the handle is `Stale` from here on. When this answers `Ok`, no access through `read` and
    /// `write` of an import is in flight any more, nor will one begin. Other exports of the region live on. Calling it again is
    /// allowed.
    ///
    /// Blocks at most `UCX_REVOKE_TIMEOUT`. A view that an importer has mapped stays mapped (see the transport's capability
    /// `revocable`).
    ///
    /// # Errors
    /// [`NotRevoked`]: an importer that has begun an access, and was stopped perhaps, has not ended it. New accesses are refused
    /// all the same; the memory is kept until that access has ended. Or this is a fork's child: the export is its parent's.
    pub fn revoke(&self) -> Result<(), NotRevoked> {
        let Some(export) = &self.export else { return Ok(()) };
        let verdict = export.revoke();
        tracing::debug!(export = export.claim().id, drained = verdict.is_ok(), "revoked");
        if verdict.is_err()
            && let Some(ctx) = self.ctx.upgrade()
        {
            ctx.sweep();
        }
        verdict
    }
}

impl fmt::Debug for PackedMemh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.export.as_ref().map_or(0, |export| export.claim().id);
        write!(f, "PackedMemh {{ export: {id}, bytes: <{} secret bytes> }}", self.bytes.len())
    }
}

/// The exports of a region, to be revoked with it.
#[derive(Debug, Default)]
pub(super) struct Exports {
    all: Vec<Arc<Export>>,
    /// How many there were when those revoked were last left out.
    kept: usize,
}

impl Exports {
    /// Adds one; from time to time, leaves out those that were revoked, so that packing and revoking for ever needs no memory.
    fn add(&mut self, export: &Arc<Export>) {
        if self.all.len() > 2 * self.kept + 16 {
            self.all.retain(|export| export.is_live());
            self.kept = self.all.len();
        }
        self.all.push(Arc::clone(export));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Export> {
        self.all.iter().map(Arc::as_ref)
    }
}

/// Reads one handle from a stream, which may go on after it: a handle tells its own length.
///
/// # Errors
/// The stream's; `InvalidData` when what comes is no handle, `UnexpectedEof` when it ends too early.
pub fn read_handle(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; handle::PREFIX_LEN];
    let ended = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            io::Error::new(error.kind(), "the stream ended before the handle did")
        }
        _ => error,
    };
    from.read_exact(&mut bytes).map_err(ended)?;
    let total =
        handle::total_len(&bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    bytes.resize(total, 0);
    from.read_exact(&mut bytes[handle::PREFIX_LEN..]).map_err(ended)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use crate::{Context, Features, MemMap, read_handle};

    #[test]
    fn a_handle_is_read_from_a_stream_that_goes_on() {
        let ctx = Context::builder().features(Features::EXPORTED_MEMH).build().unwrap();
        let region = ctx.mem_map(MemMap::allocate(4096).exported()).unwrap();
        let handle = region.memh_pack().unwrap();
        let stream = [handle.as_bytes(), b"and more"].concat();
        let mut rest = stream.as_slice();
        assert_eq!(read_handle(&mut rest).unwrap(), handle.as_bytes());
        assert_eq!(rest, b"and more");
        for len in [0, 11, 12, 71, handle.as_bytes().len() - 1] {
            let error = read_handle(&mut &stream[..len]).unwrap_err();
            assert_eq!(error.to_string(), "the stream ended before the handle did", "{len}");
        }
        let error = read_handle(&mut &b"RXMH\x01\x00\x48\x00\xff\xff\xff\xff"[..]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
        assert!(error.to_string().contains("more than the 65536 a handle can have"), "{error}");
    }

    #[test]
    fn packing_and_revoking_for_ever_needs_no_memory() {
        let ctx = Context::builder().features(Features::EXPORTED_MEMH).build().unwrap();
        let region = ctx.mem_map(MemMap::allocate(4096).exported()).unwrap();
        let kept: Vec<_> = (0..100).map(|_| region.memh_pack().unwrap()).collect();
        for _ in 0..10_000 {
            region.memh_pack().unwrap().revoke().unwrap();
        }
        let listed = region.exports.lock().all.len();
        assert!((100..350).contains(&listed), "{listed} exports are listed");
        assert_eq!(ctx.stats().exports, 100);
        drop(kept);
        assert_eq!(ctx.stats().exports, 100, "dropping a handle does not revoke it");
        drop(region);
        assert_eq!(ctx.stats().exports, 0);
    }
}
