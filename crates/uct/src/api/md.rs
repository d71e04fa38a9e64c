//! Memory domains, registrations and attachments.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use bitflags::bitflags;
use ucs::mem::Access;
use ucs::mem::page::PageRange;
use ucs::time::Deadline;

use super::{AllocError, AtomicOp, AttachError, ComponentId, Iface, IfaceError, MdAttr, PackError, RegError};
use crate::channel::Channel;
use crate::export::{Claim, Export, Token};
use crate::memory::{
    AccessError, Local, LocalMem, LocalMut, MappedView, Rights, StaleReason, check_range, pipeline,
};

bitflags! {
    /// What a key is packed for (`UCT_MD_MKEY_PACK_FLAG_*`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[doc(alias = "UCT_MD_MKEY_PACK_FLAG_EXPORT")]
    pub struct PackFlags: u32 {
        /// Remote memory access through it can be invalidated.
        const INVALIDATE_RMA = 1 << 0;
        /// Atomics through it can be invalidated.
        const INVALIDATE_AMO = 1 << 1;
        /// Another process can attach the memory with it.
        const EXPORT = 1 << 2;
    }
}

/// A memory domain (`uct_md_h`): allocates and registers memory, packs keys to it, attaches keys. Shared by `Arc`.
#[doc(alias = "uct_md_h")]
pub trait Md: Send + Sync + fmt::Debug {
    /// What it can do. The attributes never change.
    #[doc(alias = "uct_md_query")]
    fn attr(&self) -> &MdAttr;

    /// What a person is to know of it beside the attributes, names with values: the port in use, say. Nothing, by default.
    fn details(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// Allocates `len` bytes (> 0), zeroed, of which peers get `rights`.
    ///
    /// # Errors
    /// [`AllocError`]; `Unsupported` without [`super::MdFlags::ALLOC`].
    #[doc(alias = "uct_mem_alloc")]
    fn alloc(&self, len: usize, rights: Rights) -> Result<LocalMem, AllocError>;

    /// Registers memory. The registration ends when the value is dropped, and keeps the memory until then.
    ///
    /// # Errors
    /// [`RegError`]: this domain cannot reach memory of that kind.
    #[doc(alias = "uct_md_mem_reg")]
    fn reg(&self, mem: &Arc<LocalMem>) -> Result<Box<dyn Memh>, RegError>;

    /// Registers pages of this process for operands of operations by this domain: pins those that are mapped in `range` now, for
    /// reading, or for writing, too. Of a range that may not be accessed so, nothing is registered.
    ///
    /// It keeps the pages, not what is mapped there: who uses the registration sees to it that it is of the pages meant. With
    /// [`super::MdFlags::NEED_MEMH`] a context calls this through its registration cache, from any thread, for each range that
    /// operands lie in.
    ///
    /// # Errors
    /// [`RegError`]; `Unsupported` without [`super::MdFlags::NEED_MEMH`].
    #[doc(alias = "uct_md_mem_reg_v2")]
    fn reg_local(&self, range: PageRange, access: Access) -> Result<Box<dyn LocalMemh>, RegError> {
        let _ = (range, access);
        Err(RegError::Unsupported {
            kind: "an operand",
            why: "operations by this domain need no registration",
        })
    }

    /// Whether a key that `component` exported under `global_id` means something here. It says nothing about capability.
    fn can_attach(&self, component: ComponentId, global_id: &[u8]) -> bool {
        let attr = self.attr();
        component == attr.component && global_id == attr.global_id.as_bytes()
    }

    /// Attaches memory that another process, or another context, has exported.
    ///
    /// # Errors
    /// [`AttachError`].
    #[doc(alias = "uct_md_mem_attach")]
    fn attach(&self, request: &AttachRequest<'_>) -> Result<Attached, AttachError>;

    /// The memory of a peer of an interface's endpoint, to be read by its addresses. It calls the system once to see whether that can be;
    /// `None`: it cannot, or this domain has no such access, as by default.
    fn peer_memory(&self, channel: Channel) -> Option<Box<dyn PeerMemory>> {
        let _ = channel;
        None
    }

    /// Opens an interface for a worker; `None`: this domain moves memory only, as it does by default.
    ///
    /// # Errors
    /// [`IfaceError`]: there is one, and it cannot be opened.
    #[doc(alias = "uct_iface_open")]
    fn open_iface(&self) -> Result<Option<Box<dyn Iface>>, IfaceError> {
        Ok(None)
    }
}

/// All memory of a peer's process, for reading what the peer announces: without a key, for who has ptrace rights over it.
pub trait PeerMemory: Send + fmt::Debug {
    /// Copies from the peer's `address` on into all of `dst`.
    ///
    /// # Errors
    /// [`AccessError::Operand`]: what is wrong is `dst`. All others: the memory cannot be read, or the peer has given it up, or is gone;
    /// what was written to `dst` is of no meaning then.
    #[doc(alias = "uct_ep_get_zcopy")]
    fn get(&mut self, address: u64, dst: &mut LocalMut<'_>) -> Result<(), AccessError>;
}

/// A registration (`uct_mem_h`); dropping it deregisters. It packs keys in its memory domain's own format.
#[doc(alias = "uct_mem_h")]
pub trait Memh: Send + Sync + fmt::Debug {
    /// Bytes that [`Memh::pack`] writes with these flags.
    ///
    /// # Errors
    /// [`PackError`]: with these flags it cannot be packed.
    fn packed_size(&self, flags: PackFlags) -> Result<usize, PackError>;

    /// Writes a key for `export` to all of `out`, which has exactly [`Memh::packed_size`] bytes.
    ///
    /// # Errors
    /// [`PackError`].
    #[doc(alias = "uct_md_mkey_pack")]
    fn pack(&self, export: &Export, flags: PackFlags, out: &mut [u8]) -> Result<(), PackError>;
}

/// A registration of pages of this process, for operands: [`Md::reg_local`]. Dropping it deregisters; operations that use it have ended
/// by then. In a fork's child it is not dropped: it is the parent's. Each memory domain has a type of its own, which its attachments find in the operand: [`Local::memh`].
pub trait LocalMemh: Any + Send + Sync + fmt::Debug {}

/// What a handle says of exported memory, beside the key of one memory domain. All of it came from a peer.
#[derive(Clone, Copy, Debug)]
pub struct AttachRequest<'a> {
    /// The exporting context.
    pub context_uuid: [u8; 16],
    /// The export's id in that context.
    pub id: u64,
    /// The epoch in which it lives.
    pub epoch: u64,
    /// Where the memory begins in the exporter's address space.
    pub address: u64,
    /// How many bytes (> 0).
    pub length: u64,
    /// The memory domain's own bytes.
    pub mkey: &'a [u8],
    /// When to give up.
    pub deadline: Deadline,
}

impl AttachRequest<'_> {
    /// What is claimed, with the parts that are in the memory domain's own bytes.
    #[must_use]
    pub fn claim(&self, slot: u32, token: Token) -> Claim {
        let Self { id, epoch, address, length, .. } = *self;
        Claim { slot, id, epoch, address, length, token }
    }
}

/// A successful attachment, and how it came about.
#[derive(Debug)]
pub struct Attached {
    /// The memory.
    pub memory: Arc<dyn Attachment>,
    /// The way it was reached, in words.
    pub how: String,
}

/// Memory of another process, attached; dropping it detaches. Send + Sync, and usable by many threads at once.
pub trait Attachment: Any + Send + Sync + fmt::Debug {
    /// How many bytes.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What may be done with it.
    fn rights(&self) -> Rights;

    /// Copies from `offset` on into `dst`. Mediated: it takes part in the exporter's revocation. Where the memory is mapped, aligned
    /// accesses of 1, 2, 4 or 8 bytes do not tear; where the kernel copies, nobody promises that.
    ///
    /// # Errors
    /// [`AccessError`], which tells how many bytes were moved before.
    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), AccessError>;

    /// Copies `src` to `offset`, as [`Attachment::read`].
    ///
    /// # Errors
    /// [`AccessError`]; `AccessDenied` without the right to write.
    fn write(&self, offset: u64, src: &[u8]) -> Result<(), AccessError>;

    /// Does `op` to the word at `offset`, in this machine's byte order, and answers the word before it (widened, of 32 bits). It is atomic
    /// towards all that others do to the word by atomics, theirs or those of its owner, and sequentially consistent with them. Mediated,
    /// as [`Attachment::read`]. By default, and without [`super::MdFlags::ATOMICS`], there are none. With
    /// [`super::MdFlags::DEVICE_ATOMICS`] they are atomic towards those of the same device alone.
    ///
    /// # Errors
    /// [`AccessError`]: `Misaligned`, where the word does not lie at a multiple of its size in the owner's memory; `AccessDenied` without the
    /// right to write; `Unsupported`. After `Stale` it may have been done: if the exporter has ended, or has given up waiting for it,
    /// meanwhile.
    #[doc(alias = "uct_ep_atomic64_fetch")]
    fn atomic(&self, offset: u64, op: AtomicOp) -> Result<u64, AccessError> {
        let _ = (offset, op);
        Err(AccessError::Unsupported { why: "this transport has no atomics on attached memory" })
    }

    /// Bytes of an access beside which what any access costs no longer matters, 256 KiB at most: where an operation between attached memory
    /// and attached memory goes piece by piece, the pieces are so long. By default they are what the nearest cache holds.
    fn good_piece(&self) -> usize {
        16 << 10
    }

    /// Whether `read` and `write` are system calls that copy, whatever their length: where both sides of a long operation are reached so,
    /// one thread reads while another one writes. By default they are not.
    fn is_by_system_calls(&self) -> bool {
        false
    }

    /// Copies all of `src`, an operand, to `offset`: as [`Attachment::write`], which is what it calls by default, piece by piece where
    /// others may change or unmap the operand meanwhile. With [`super::MdFlags::NEED_MEMH`] the operand comes registered; attached
    /// memory, of which nothing can be registered here, comes by [`put_by_write`] instead.
    ///
    /// # Errors
    /// As [`Attachment::write`]; [`AccessError::Operand`]: the operand is not mapped, or not for reading, or not registered.
    #[inline]
    fn put(&self, offset: u64, src: &Local<'_>) -> Result<(), AccessError> {
        put_by_write(self, offset, src)
    }

    /// Copies from `offset` on into all of `dst`, an operand: as [`Attachment::read`], which is what it calls by default, piece by piece
    /// where others may use or unmap the operand meanwhile. With [`super::MdFlags::NEED_MEMH`] the operand comes registered; attached
    /// memory comes by [`get_by_read`] instead.
    ///
    /// # Errors
    /// As [`Attachment::read`]; [`AccessError::Operand`]: the operand is not mapped, or not for writing, or not registered.
    #[inline]
    fn get(&self, offset: u64, dst: &mut LocalMut<'_>) -> Result<(), AccessError> {
        get_by_read(self, offset, dst)
    }

    /// Copies `len` bytes of `from`, memory attached by this or another transport, from its byte `at` on, to `offset`: by a way of their own, if
    /// there is one. `None`: there is none, by default, and nothing was done.
    ///
    /// # Errors
    /// As [`Attachment::put`].
    fn put_attached(
        &self,
        offset: u64,
        (from, at): (&(dyn Attachment + 'static), u64),
        len: usize,
    ) -> Option<Result<(), AccessError>> {
        let _ = (offset, from, at, len);
        None
    }

    /// Copies `len` bytes from `offset` on into `to`, from its byte `at` on, as [`Attachment::put_attached`].
    ///
    /// # Errors
    /// As [`Attachment::get`].
    fn get_attached(
        &self,
        offset: u64,
        (to, at): (&(dyn Attachment + 'static), u64),
        len: usize,
    ) -> Option<Result<(), AccessError>> {
        let _ = (offset, to, at, len);
        None
    }

    /// Whether the export still lives, as far as is known.
    ///
    /// # Errors
    /// Why not.
    fn check(&self) -> Result<(), StaleReason>;

    /// The memory itself, where the attachment is a mapping ([`super::MdFlags::RKEY_PTR`]). Accesses through it are not
    /// mediated: the exporter's revocation neither ends nor waits for them. `None` in a fork's child, which has no mapping.
    fn view(&self) -> Option<MappedView<'_>>;
}

/// Has [`Attachment::write`] copy all of `src` to `offset`, piece by piece: an operand of any kind, whether or not it is registered. An operand
/// that is attached memory is read piece by piece, each piece by its own attachment, before it is written: no thread is within an access to
/// the one while it accesses the other, or waits, so that a revocation of either waits for its own pieces only. Both may have a way of their own
/// ([`Attachment::put_attached`]). Where both are reached by
/// system calls ([`Attachment::is_by_system_calls`]) and it is long, another thread reads ahead meanwhile; it ends with the operation.
///
/// # Errors
/// As [`Attachment::write`]; [`AccessError::Operand`]: what is wrong is the operand.
#[inline]
pub fn put_by_write(
    to: &(impl Attachment + ?Sized),
    offset: u64,
    src: &Local<'_>,
) -> Result<(), AccessError> {
    check_range(offset, src.len(), to.len())?;
    if let Some(from) = src.attached()
        && let Some(moved) = to.put_attached(offset, from, src.len())
    {
        return moved;
    }
    if let Some(moved) = pipeline::put(src, to, offset) {
        return moved;
    }
    src.in_pieces(to.good_piece(), |at, piece| to.write(offset + at as u64, piece))
}

/// Has [`Attachment::read`] copy from `offset` on into all of `dst`, as [`put_by_write`].
///
/// # Errors
/// As [`Attachment::read`]; [`AccessError::Operand`]: what is wrong is the operand.
#[inline]
pub fn get_by_read(
    from: &(impl Attachment + ?Sized),
    offset: u64,
    dst: &mut LocalMut<'_>,
) -> Result<(), AccessError> {
    check_range(offset, dst.len(), from.len())?;
    if let Some(to) = dst.attached()
        && let Some(moved) = from.get_attached(offset, to, dst.len())
    {
        return moved;
    }
    if let Some(moved) = pipeline::get(dst, from, offset) {
        return moved;
    }
    dst.in_pieces(from.good_piece(), |at, piece| from.read(offset + at as u64, piece))
}
