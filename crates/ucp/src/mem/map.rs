//! Mapping memory: `MemMap` says what, `Region` is the result.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use ucs::Status;
use ucs::mem::MemError;
use ucs::sync::{Word32, Word64};
use uct::api::{MdFlags, Memh};
use uct::export::Export;
use uct::memory::{AccessError, OwnedBytes, Rights, StableBuf, StableBufMut};
use uct::{LocalMem, RawMem};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::cursor::{RegionReader, RegionWriter};
use super::export::Exports;
use super::{Buf, MdResults, PackError, PackedMemh};
use crate::Features;
use crate::context::ContextInner;
use crate::rma::PackedRkey;
use crate::wire::handle::Template;

/// What to map (`ucp_mem_map_params_t`).
#[derive(Debug)]
#[must_use]
#[doc(alias = "ucp_mem_map_params_t")]
pub struct MemMap {
    source: Source,
    exported: bool,
    read_only: bool,
    reg_mode: RegMode,
}

/// What exports of raw memory name ([`MemMap::raw`]). Of other memory they name what it is made of, which nobody unmaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegMode {
    /// The address: only transports whose keys reach whatever is mapped there at the time of access export it
    /// ([`MdFlags::VA_BOUND`]). The memory may be unmapped at any time.
    #[default]
    Auto,
    /// The address, or the pages that are mapped when it is mapped: all transports that can export it. For memory that stays mapped as
    /// long as the region lives. After it was unmapped, importers reach by some transports the pages that were there.
    Cached,
}

#[derive(Debug)]
enum Source {
    Allocate(usize),
    Owned(OwnedBytes),
    Raw(RawMem),
}

impl MemMap {
    fn of(source: Source) -> Self {
        Self { source, exported: false, read_only: false, reg_mode: RegMode::Auto }
    }

    /// Allocates `len` zeroed bytes. 0 is allowed: a region without bytes.
    ///
    /// Physical memory comes with the first access to each page, as everywhere on Linux.
    pub fn allocate(len: usize) -> Self {
        Self::of(Source::Allocate(len))
    }

    /// Takes a buffer of yours: a `Vec<u8>`, a `Box<[u8]>`, or a type of your own. It is dropped when the region is gone.
    ///
    /// Other processes reach it by the transport `cma`, which needs ptrace rights over this process.
    pub fn buffer(buf: impl StableBufMut) -> Self {
        Self::of(Source::Owned(OwnedBytes::writable(buf)))
    }

    /// Takes a buffer of yours that may only be read: `&'static [u8]`, `Arc<[u8]>`, and all that [`MemMap::buffer`] takes. The
    /// region is read-only.
    ///
    /// Other processes reach it by the transport `cma`, which needs ptrace rights over this process.
    pub fn read_only_buffer(buf: impl StableBuf) -> Self {
        Self { read_only: true, ..Self::of(Source::Owned(OwnedBytes::readable(buf))) }
    }

    /// Names a range of this process's addresses: an export of it names the *address*, so revoke before the address is used for
    /// private data.
    ///
    /// Other processes reach it by the transport `cma`, which needs ptrace rights over this process. An address at which nothing
    /// is mapped is `Stale` to them; mapped again, it is reached again.
    pub fn raw(raw: RawMem) -> Self {
        Self::of(Source::Raw(raw))
    }

    /// Says that it is going to be exported: mapping it fails at once when it cannot be.
    #[doc(alias = "UCP_MEM_MAP_EXPORTED")]
    pub fn exported(mut self) -> Self {
        self.exported = true;
        self
    }

    /// Says what exports of raw memory name; [`RegMode::Auto`] by default. It changes nothing for other memory, and nothing for operands:
    /// an operation on raw memory always uses what is mapped when it begins.
    pub fn reg_mode(mut self, mode: RegMode) -> Self {
        self.reg_mode = mode;
        self
    }

    /// Importers may only read it. This process may write.
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }
}

/// Memory could not be mapped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// There was none, or a limit stands in the way.
    #[error(transparent)]
    Mem(#[from] MemError),
    /// It is to be exported, and the context was not made for that.
    #[error("exported(): the context was made without Features::EXPORTED_MEMH")]
    FeatureMissing,
    /// It is to be exported, and no transport in use can.
    #[error("exported(): no transport in use can export it: {results}")]
    NotExportable {
        /// What each said.
        results: MdResults,
    },
    /// A raw range that is none: it begins at address 0, or reaches beyond the address space.
    #[error("raw memory of {len} bytes at {address:#x} is no range of addresses")]
    BadRange {
        /// Where it begins.
        address: u64,
        /// How many bytes.
        len: u64,
    },
    /// The context belongs to the parent process of a fork.
    #[error("this context belongs to the parent process: a fork's child must make its own")]
    Forked,
    /// Memory that was just allocated is in other hands: a transport broke its contract.
    #[error("the memory allocated is not private")]
    Shared,
}

impl MapError {
    /// The one-byte status.
    pub fn status(&self) -> Status {
        match self {
            Self::Mem(error) => error.status(),
            Self::FeatureMissing | Self::BadRange { .. } => Status::InvalidParam,
            Self::NotExportable { .. } => Status::Unsupported,
            Self::Forked => Status::Forked,
            Self::Shared => Status::IoError,
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::Mem(error) => error.remedy(),
            Self::FeatureMissing => "make it with Context::builder().features(Features::EXPORTED_MEMH)",
            Self::NotExportable { .. } => {
                "use memory of MemMap::allocate, or allow more transports in UCX_TLS"
            }
            Self::BadRange { .. } => "name memory of this process: RawMem::new(pointer, length)",
            Self::Forked => "create a new Context in the child",
            Self::Shared => "report it to the transport's author",
        }
        .to_owned()
    }
}

/// Whether what a memory domain registers are the pages mapped at an address, and not the address.
fn names_pages(flags: MdFlags) -> bool {
    flags.contains(MdFlags::REG) && !flags.contains(MdFlags::VA_BOUND)
}

/// A registration of a region with one memory domain.
#[derive(Debug)]
pub(super) struct Registration {
    /// Which of the context's memory domains.
    pub(super) md: usize,
    pub(super) memh: Box<dyn Memh>,
}

/// Memory that peers may reach (`ucp_mem_h`): by handle, once it is exported.
///
/// Others may change its bytes at any time, so there are no references to them: they are copied in and out. Reading while
/// another writes mixes old and new bytes; aligned words of up to 8 bytes never tear. Send + Sync: share it by `Arc`. Dropping it
/// revokes all its exports, and waits for their accesses in flight, at most `UCX_REVOKE_TIMEOUT` in all.
#[derive(Debug)]
#[doc(alias = "ucp_mem_h")]
pub struct Region {
    pub(super) ctx: Arc<ContextInner>,
    pub(super) mem: Arc<LocalMem>,
    pub(super) registrations: Vec<Registration>,
    results: MdResults,
    mode: RegMode,
    pub(super) exports: Mutex<Exports>,
    /// Of its handles; made at the first pack.
    pub(super) template: OnceLock<Template>,
    /// Made when it is first asked for.
    rkey: OnceLock<PackedRkey>,
}

impl Region {
    pub(crate) fn map(ctx: &Arc<ContextInner>, map: MemMap) -> Result<Self, MapError> {
        if ctx.is_forked() {
            return Err(MapError::Forked);
        }
        if map.exported && !ctx.has(Features::EXPORTED_MEMH) {
            return Err(MapError::FeatureMissing);
        }
        let rights = if map.read_only { Rights::READ } else { Rights::READ_WRITE };
        let mem = match map.source {
            Source::Allocate(0) => LocalMem::empty(rights),
            Source::Allocate(len) => ctx.alloc(len, rights)?,
            Source::Owned(holder) => LocalMem::owned(holder, rights),
            Source::Raw(raw) => {
                let (address, len) = (raw.address(), raw.len() as u64);
                if (address == 0 && len > 0) || address.checked_add(len).is_none() {
                    return Err(MapError::BadRange { address, len });
                }
                LocalMem::raw(&raw, rights)
            }
        };
        let region = Self::register(ctx, Arc::new(mem), map.reg_mode);
        if map.exported && region.registrations.is_empty() && !region.is_empty() {
            return Err(MapError::NotExportable { results: region.results.clone() });
        }
        Ok(region)
    }

    /// Registers `mem` with every memory domain that can export it.
    pub(super) fn register(ctx: &Arc<ContextInner>, mem: Arc<LocalMem>, mode: RegMode) -> Self {
        let mut registrations = Vec::new();
        let mut results = ctx.left_out.clone();
        if !mem.is_empty() {
            for (md, open) in ctx.mds.iter().enumerate() {
                let attr = open.md.attr();
                if !attr.flags.contains(MdFlags::EXPORTED_MKEY) {
                    results.push(attr.component, Err("it cannot export".to_owned()));
                    continue;
                }
                if mem.is_raw() && mode == RegMode::Auto && names_pages(attr.flags) {
                    let why = "its keys name pages, and raw memory may be unmapped: see RegMode::Cached";
                    results.push(attr.component, Err(why.to_owned()));
                    continue;
                }
                match open.md.reg(&mem) {
                    Ok(memh) => {
                        results.push(attr.component, Ok("can be exported".to_owned()));
                        registrations.push(Registration { md, memh });
                    }
                    Err(error) => results.push(attr.component, Err(error.to_string())),
                }
            }
        }
        // As entries stand in a handle.
        registrations.sort_by(|a, b| {
            let key = |registration: &Registration| ctx.mds[registration.md].md.attr();
            (key(a).component, key(a).global_id.as_bytes())
                .cmp(&(key(b).component, key(b).global_id.as_bytes()))
        });
        Self {
            ctx: Arc::clone(ctx),
            mem,
            registrations,
            results,
            mode,
            exports: Mutex::default(),
            template: OnceLock::new(),
            rkey: OnceLock::new(),
        }
    }

    /// How many bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.mem.len()
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.mem.is_empty()
    }

    /// Where it begins in this process's address space.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.mem.address()
    }

    /// What importers may do with it.
    #[must_use]
    pub fn rights(&self) -> Rights {
        self.mem.rights()
    }

    /// What each transport said when the memory was registered with it.
    #[must_use]
    pub fn md_results(&self) -> &MdResults {
        &self.results
    }

    /// Copies from `offset` on into `dst`.
    ///
    /// # Errors
    /// Out of range; for raw memory: unmapped or not readable.
    pub fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        self.mem.read(offset, dst)
    }

    /// Copies `src` to `offset`.
    ///
    /// # Errors
    /// Out of range, or a buffer taken for reading only; for raw memory: unmapped or not writable.
    pub fn write(&self, offset: u64, src: &[u8]) -> Result<(), AccessError> {
        self.mem.write(offset, src)
    }

    /// Reads a `T`. An aligned word of up to 8 bytes does not tear, and what the peer wrote before it stored the word is seen
    /// after this (not so for raw memory).
    ///
    /// # Errors
    /// As [`Region::read`].
    pub fn load<T: FromBytes + IntoBytes>(&self, offset: u64) -> Result<T, AccessError> {
        self.mem.load(offset)
    }

    /// Writes a `T`, as [`Region::load`] reads it.
    ///
    /// # Errors
    /// As [`Region::write`].
    pub fn store<T: IntoBytes + Immutable>(&self, offset: u64, value: T) -> Result<(), AccessError> {
        self.mem.store(offset, value)
    }

    /// The aligned 64-bit word at `offset`, for atomic access in this machine's byte order.
    ///
    /// # Errors
    /// Out of range, misaligned, read-only, or raw memory.
    pub fn atomic_u64(&self, offset: u64) -> Result<&Word64, AccessError> {
        self.mem.atomic_u64(offset)
    }

    /// The aligned 32-bit word at `offset`, as [`Region::atomic_u64`].
    ///
    /// # Errors
    /// Out of range, misaligned, read-only, or raw memory.
    pub fn atomic_u32(&self, offset: u64) -> Result<&Word32, AccessError> {
        self.mem.atomic_u32(offset)
    }

    /// Reads the region from its beginning to its end, as a stream.
    #[must_use]
    pub fn reader(&self) -> RegionReader<'_> {
        RegionReader::new(self)
    }

    /// Writes to the region from its beginning on, as a stream.
    #[must_use]
    pub fn writer(&self) -> RegionWriter<'_> {
        RegionWriter::new(self)
    }

    /// Exports the region: packs a handle which another process can import.
    ///
    /// Each call makes an export of its own, with its own secret. It lives until it is revoked or the region is dropped;
    /// dropping the value returned does not end it.
    ///
    /// # Errors
    /// [`PackError`].
    #[doc(alias = "ucp_memh_pack")]
    #[doc(alias = "UCP_MEMH_PACK_FLAG_EXPORT")]
    pub fn memh_pack(&self) -> Result<PackedMemh, PackError> {
        PackedMemh::pack(self, Features::EXPORTED_MEMH)
    }

    pub(crate) fn packed_rkey(&self) -> Result<PackedRkey, PackError> {
        if self.ctx.is_forked() {
            return Err(PackError::Forked);
        }
        if let Some(rkey) = self.rkey.get() {
            return Ok(rkey.clone());
        }
        let packed = PackedMemh::pack(self, Features::RKEYS)?;
        let rkey = PackedRkey::of_handle(packed.as_bytes());
        // Another thread may have been faster: then that one's is everybody's, and this export ends with the region.
        Ok(self.rkey.get_or_init(|| rkey).clone())
    }

    /// Makes it private again: possible when rucx allocated it and it was never packed. Peers that had it mapped could still
    /// reach it otherwise.
    ///
    /// # Errors
    /// The region itself, when it is not possible.
    pub fn try_into_buf(mut self) -> Result<Buf, Box<Self>> {
        if self.ctx.is_forked() {
            return Err(Box::new(self));
        }
        let registrations = std::mem::take(&mut self.registrations);
        drop(registrations); // each keeps the memory
        let mem = std::mem::replace(&mut self.mem, Arc::new(LocalMem::empty(Rights::empty())));
        let ctx = Arc::clone(&self.ctx);
        match uct::memory::PrivateMem::reclaim(mem) {
            Ok(mem) => Ok(Buf::from_private(&ctx, mem)),
            Err(mem) => {
                let exports = std::mem::take(&mut *self.exports.lock());
                let region = Self::register(&ctx, mem, self.mode);
                *region.exports.lock() = exports;
                Err(Box::new(region))
            }
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.ctx.is_forked() {
            return; // the child holds a copy of the books; the exports are the parent's
        }
        let exports = std::mem::take(self.exports.get_mut());
        for error in Export::revoke_all(exports.iter()) {
            tracing::warn!(%error, "a dropped region's memory is kept until it is drained");
            self.ctx.sweep();
        }
    }
}
