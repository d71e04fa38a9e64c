//! Objects of libibverbs, each destroyed once, after all that is made of it.
//!
//! # Safety
//! Each value here owns what the library made for it, and keeps alive what that belongs to: a queue pair its queue and its protection
//! domain, these their context. Functions of the library may be called by any thread. What the device does to memory is said
//! where memory is registered ([`Mr`]) and where requests are posted ([`Qp::post`], [`Qp::post_receive`]): the memory of a request is registered with registrations
//! that live until it has completed, or until the queue pair is destroyed, after which the device does nothing for it.

#![allow(unsafe_code)]

mod channel;
mod events;

use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::mem;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_core_sys::{
    DeviceList, Library, ibv_access_flags, ibv_comp_channel, ibv_context, ibv_cq, ibv_device_attr_ex,
    ibv_fork_status, ibv_gid, ibv_gid_entry, ibv_mr, ibv_pd, ibv_poll_cq, ibv_port_attr, ibv_post_recv,
    ibv_post_send, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr, ibv_recv_wr, ibv_send_flags,
    ibv_send_wr, ibv_sge, ibv_wc, ibv_wc_status, ibv_wr_opcode,
};
use rustix::io::Errno;
use ucs::fork::{self, Generation};
use ucs::mem::Mapping;

use super::port::{Entry, Ports};
use crate::memory::LocalMem;

pub(super) use channel::Channel;
pub(super) use events::{Element, Event};

/// What a function that answers null has left in errno.
fn last_errno() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

fn made<T>(pointer: *mut T) -> Result<NonNull<T>, Errno> {
    NonNull::new(pointer).ok_or_else(last_errno)
}

/// The answer of a function that gives 0 or an errno, or -1 and leaves it in errno.
fn done(answer: c_int) -> Result<(), Errno> {
    match answer {
        0 => Ok(()),
        ..0 => Err(last_errno()),
        _ => Err(Errno::from_raw_os_error(answer)),
    }
}

/// An opened device. In a fork's child it is not closed: it is the parent's.
#[derive(Debug)]
pub(super) struct Context {
    library: &'static Library,
    raw: NonNull<ibv_context>,
    generation: Generation,
}

// SAFETY: the library's functions may be called by any thread (module rule).
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Opens the device of this name; `None`: there is none.
    pub(super) fn open(name: &str) -> Option<Result<Self, Errno>> {
        let library = Library::open().ok()?;
        let list = DeviceList::get().ok()?;
        let index = list.names().iter().position(|other| other == name)?;
        let device = *list.devices().get(index)?;
        // SAFETY: a device of the list, which lives.
        let raw = made(unsafe { library.ibv_open_device(device) });
        let context = raw.map(|raw| Self { library, raw, generation: fork::generation() });
        Some(context.and_then(|context| context.never_wait_for_events().map(|()| context)))
    }

    /// The device's number that is the same for all who open it, in network byte order.
    pub(super) fn guid(&self) -> [u8; 8] {
        // SAFETY: an open context.
        let device = unsafe { self.raw.as_ref() }.device;
        // SAFETY: the device of an open context.
        let guid = unsafe { self.library.ibv_get_device_guid(device) };
        guid.to_ne_bytes()
    }

    /// The descriptor that all calls of this context go by.
    pub(super) fn command_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: an open context.
        let fd = unsafe { self.raw.as_ref() }.cmd_fd;
        // SAFETY: open as long as the context is.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    pub(super) fn properties(&self) -> Result<ibv_device_attr_ex, Errno> {
        let mut attr = ibv_device_attr_ex::default();
        // SAFETY: an open context, and a structure of this type.
        done(unsafe { self.library.ibv_query_device_ex(self.raw.as_ptr(), ptr::null(), &mut attr) })?;
        Ok(attr)
    }

    /// A status of a completion, in the library's words.
    pub(super) fn words(&self, status: ibv_wc_status) -> &'static str {
        // SAFETY: any number.
        let text = unsafe { self.library.ibv_wc_status_str(status) };
        // SAFETY: a static string.
        unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("a status without words")
    }
}

impl Ports for Context {
    fn port(&self, number: u8) -> Result<ibv_port_attr, Errno> {
        let mut attr = ibv_port_attr::default();
        // SAFETY: an open context, and a structure of this type.
        done(unsafe { self.library.ibv_query_port(self.raw.as_ptr(), number, &mut attr) })?;
        Ok(attr)
    }

    fn gid(&self, port: u8, index: u8) -> Result<Entry, Errno> {
        let mut entry = ibv_gid_entry::default();
        let (number, at) = (u32::from(port), u32::from(index));
        // SAFETY: an open context, and a structure of this type.
        let answer = unsafe { self.library.ibv_query_gid_ex(self.raw.as_ptr(), number, at, &mut entry) };
        if answer != libc::EOPNOTSUPP {
            done(answer)?;
            // SAFETY: all of the union is bytes.
            return Ok((unsafe { entry.gid.raw }, Some(entry.gid_type)));
        }
        let mut gid = ibv_gid::default();
        // SAFETY: an open context, and a union of this type.
        done(unsafe { self.library.ibv_query_gid(self.raw.as_ptr(), port, index.into(), &mut gid) })?;
        // SAFETY: all of the union is bytes.
        Ok((unsafe { gid.raw }, None))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.generation.is_current() {
            // SAFETY: what was made of it is destroyed (module rule).
            let _ = unsafe { self.library.ibv_close_device(self.raw.as_ptr()) };
        }
    }
}

/// A protection domain.
#[derive(Debug)]
pub(super) struct Pd {
    raw: NonNull<ibv_pd>,
    context: Arc<Context>,
}

// SAFETY: as of `Context`.
unsafe impl Send for Pd {}
// SAFETY: as of `Context`.
unsafe impl Sync for Pd {}

impl Pd {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, Errno> {
        // SAFETY: an open context.
        let raw = made(unsafe { context.library.ibv_alloc_pd(context.raw.as_ptr()) })?;
        Ok(Self { raw, context: Arc::clone(context) })
    }

    /// The kernel's number of it, in its context.
    pub(super) fn handle(&self) -> u32 {
        // SAFETY: an open domain.
        unsafe { self.raw.as_ref() }.handle
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        if self.context.generation.is_current() {
            // SAFETY: what was made of it is destroyed (module rule).
            let _ = unsafe { self.context.library.ibv_dealloc_pd(self.raw.as_ptr()) };
        }
    }
}

/// A registration: the pages stay where they are, also when nothing is mapped there any more. With `IBV_ACCESS_ON_DEMAND` it is one of the
/// address, and of whatever is mapped there.
#[derive(Debug)]
pub(super) struct Mr {
    raw: NonNull<ibv_mr>,
    pd: Arc<Pd>,
}

// SAFETY: as of `Context`.
unsafe impl Send for Mr {}
// SAFETY: as of `Context`.
unsafe impl Sync for Mr {}

impl Mr {
    /// Registers the pages at `address` for local use: for writing, too, if that is asked for. Peers have no way to them.
    ///
    /// Registering changes no memory; whoever posts a request with its key answers for what that does.
    pub(super) fn local(pd: &Arc<Pd>, address: usize, len: usize, writes: bool) -> Result<Self, Errno> {
        let access = if writes { ibv_access_flags::IBV_ACCESS_LOCAL_WRITE } else { ibv_access_flags(0) };
        let at = ptr::with_exposed_provenance_mut(address);
        // SAFETY: an open domain. What is mapped there is pinned, and reached by requests with this key alone (module rule); where
        // nothing is, the kernel refuses.
        let raw = unsafe { pd.context.library.ibv_reg_mr(pd.raw.as_ptr(), at, len, access) };
        Ok(Self { raw: made(raw)?, pd: Arc::clone(pd) })
    }

    /// Registers `mem` for peers, who may do with it what `access` says.
    ///
    /// What they then do is what exporting memory with those rights allows (contract of [`LocalMem`]): `mem` is to be kept until the
    /// registration has ended.
    pub(super) fn remote(pd: &Arc<Pd>, mem: &LocalMem, access: ibv_access_flags) -> Result<Self, Errno> {
        let at = usize::try_from(mem.address()).map_err(|_| Errno::FAULT)?;
        Self::for_peers(pd, ptr::with_exposed_provenance_mut(at), mem.len(), access)
    }

    /// The same of a mapping of this process, whose bytes anybody may change ([`ucs::mem::SharedBytes`]). It is to be kept as long, or to be
    /// mapped anew.
    pub(super) fn of_mapping(pd: &Arc<Pd>, map: &Mapping, access: ibv_access_flags) -> Result<Self, Errno> {
        let at = ptr::with_exposed_provenance_mut(map.bytes().as_ptr().expose_provenance());
        Self::for_peers(pd, at, map.bytes().len(), access)
    }

    fn for_peers(pd: &Arc<Pd>, at: *mut c_void, len: usize, access: ibv_access_flags) -> Result<Self, Errno> {
        // SAFETY: an open domain; as in `local`, but for who reaches it.
        let raw = unsafe { pd.context.library.ibv_reg_mr(pd.raw.as_ptr(), at, len, access) };
        Ok(Self { raw: made(raw)?, pd: Arc::clone(pd) })
    }

    pub(super) fn lkey(&self) -> u32 {
        // SAFETY: a registration that lives.
        unsafe { self.raw.as_ref() }.lkey
    }

    pub(super) fn rkey(&self) -> u32 {
        // SAFETY: a registration that lives.
        unsafe { self.raw.as_ref() }.rkey
    }

    /// Ends it; it is given back where the device does not.
    pub(super) fn end(self) -> Result<(), (Self, Errno)> {
        // SAFETY: requests that name it have completed (module rule), or are a peer's, and the device ends those first.
        match done(unsafe { self.pd.context.library.ibv_dereg_mr(self.raw.as_ptr()) }) {
            Ok(()) => {
                let this = mem::ManuallyDrop::new(self);
                // SAFETY: read once: `this` is not used any more.
                drop(unsafe { ptr::read(&this.pd) });
                Ok(())
            }
            Err(errno) => Err((self, errno)),
        }
    }

    /// Whether it is one of this domain: its key means something else in another.
    pub(super) fn is_of(&self, pd: &Arc<Pd>) -> bool {
        Arc::ptr_eq(&self.pd, pd)
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        let context = &self.pd.context;
        if context.generation.is_current() {
            // SAFETY: requests that name it have completed (module rule).
            if let Err(errno) = done(unsafe { context.library.ibv_dereg_mr(self.raw.as_ptr()) }) {
                tracing::error!(%errno, "a registration could not be ended: its pages stay pinned");
            }
        }
    }
}

/// A completion queue.
#[derive(Debug)]
pub(super) struct Cq {
    raw: NonNull<ibv_cq>,
    /// Where its events go.
    channel: Option<Arc<Channel>>,
    context: Arc<Context>,
}

// SAFETY: as of `Context`.
unsafe impl Send for Cq {}
// SAFETY: as of `Context`.
unsafe impl Sync for Cq {}

impl Cq {
    /// A queue for `entries` completions: as many requests may be on their way at once.
    pub(super) fn new(context: &Arc<Context>, entries: u32) -> Result<Self, Errno> {
        Self::with(context, entries, None)
    }

    /// The same; its events, where they are asked for, go to `channel`, which is of the same context.
    pub(super) fn with(
        context: &Arc<Context>,
        entries: u32,
        channel: Option<&Arc<Channel>>,
    ) -> Result<Self, Errno> {
        let entries = c_int::try_from(entries).map_err(|_| Errno::INVAL)?;
        let events: *mut ibv_comp_channel = channel.map_or(ptr::null_mut(), |channel| channel.raw().as_ptr());
        let opened = context.raw.as_ptr();
        // SAFETY: an open context, and a channel of it or none.
        let raw = unsafe { context.library.ibv_create_cq(opened, entries, ptr::null_mut(), events, 0) };
        Ok(Self { raw: made(raw)?, channel: channel.map(Arc::clone), context: Arc::clone(context) })
    }

    /// The next completion, if there is one.
    pub(super) fn poll(&self) -> Result<Option<ibv_wc>, Errno> {
        let mut wc = ibv_wc::default();
        // SAFETY: an open queue, and room for one.
        match unsafe { ibv_poll_cq(self.raw.as_ptr(), 1, &mut wc) } {
            0 => Ok(None),
            1.. => Ok(Some(wc)),
            _ => Err(Errno::IO),
        }
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        if self.context.generation.is_current() {
            // SAFETY: its queue pairs are destroyed (module rule).
            let _ = unsafe { self.context.library.ibv_destroy_cq(self.raw.as_ptr()) };
        }
    }
}

/// A queue pair of a reliable connection, and its queue.
#[derive(Debug)]
pub(super) struct Qp {
    raw: NonNull<ibv_qp>,
    pd: Arc<Pd>,
    cq: Cq,
    /// Bytes of a request that the device takes while it is posted.
    inline: u32,
}

// SAFETY: as of `Context`.
unsafe impl Send for Qp {}
// SAFETY: as of `Context`.
unsafe impl Sync for Qp {}

impl Qp {
    /// A queue pair whose init attributes are `init`, but for its queue, which is `cq`.
    pub(super) fn new(pd: &Arc<Pd>, cq: Cq, mut init: ibv_qp_init_attr) -> Result<Self, Errno> {
        init.send_cq = cq.raw.as_ptr();
        init.recv_cq = cq.raw.as_ptr();
        // SAFETY: an open domain; a queue of its context.
        let raw = made(unsafe { pd.context.library.ibv_create_qp(pd.raw.as_ptr(), &mut init) })?;
        Ok(Self { raw, pd: Arc::clone(pd), cq, inline: init.cap.max_inline_data })
    }

    /// Most bytes that can be posted by [`Qp::post_inline`].
    pub(super) fn inline(&self) -> u32 {
        self.inline
    }

    pub(super) fn number(&self) -> u32 {
        // SAFETY: an open queue pair.
        unsafe { self.raw.as_ref() }.qp_num
    }

    pub(super) fn cq(&self) -> &Cq {
        &self.cq
    }

    pub(super) fn modify(&self, mut attr: ibv_qp_attr, mask: ibv_qp_attr_mask) -> Result<(), Errno> {
        let mask = c_int::try_from(mask.0).map_err(|_| Errno::INVAL)?;
        // SAFETY: an open queue pair, and a structure of this type.
        done(unsafe { self.pd.context.library.ibv_modify_qp(self.raw.as_ptr(), &mut attr, mask) })
    }

    /// Posts a request of one buffer; `request.sg_list` is set here.
    ///
    /// # Safety
    /// `sge` and, in `request`, the remote range name memory that the caller may have read and written so, of registrations that live until the
    /// request has completed or this is dropped.
    pub(super) unsafe fn post(&self, mut sge: ibv_sge, mut request: ibv_send_wr) -> Result<(), Errno> {
        request.sg_list = &mut sge;
        request.num_sge = 1;
        request.next = ptr::null_mut();
        let mut bad = ptr::null_mut();
        // SAFETY: an open queue pair; the list is read during the call; the caller answers for the memory.
        done(unsafe { ibv_post_send(self.raw.as_ptr(), &mut request, &mut bad) })
    }
}

impl Qp {
    /// Posts a request whose bytes are read while it is posted: [`Qp::inline`] at most. What it needs beside them is in `request`.
    pub(super) fn post_inline(&self, bytes: &[u8], mut request: ibv_send_wr) -> Result<(), Errno> {
        let length = u32::try_from(bytes.len()).ok().filter(|len| *len <= self.inline).ok_or(Errno::INVAL)?;
        let sge = ibv_sge { addr: bytes.as_ptr().expose_provenance() as u64, length, lkey: 0 };
        request.opcode = ibv_wr_opcode::IBV_WR_SEND;
        request.send_flags |= ibv_send_flags::IBV_SEND_INLINE.0;
        // SAFETY: a SEND has no remote range, and one that is inline has read the bytes when this returns (`ibv_post_send(3)`).
        unsafe { self.post(sge, request) }
    }

    /// Posts a receive of one buffer.
    ///
    /// # Safety
    /// `sge` names memory that the caller may have written so, of a registration that lives until the receive has completed or this is dropped.
    pub(super) unsafe fn post_receive(&self, mut sge: ibv_sge, wr_id: u64) -> Result<(), Errno> {
        let mut request = ibv_recv_wr { wr_id, next: ptr::null_mut(), sg_list: &mut sge, num_sge: 1 };
        let mut bad = ptr::null_mut();
        // SAFETY: an open queue pair; the list is read during the call; the caller answers for the memory.
        done(unsafe { ibv_post_recv(self.raw.as_ptr(), &mut request, &mut bad) })
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        let context = &self.pd.context;
        if context.generation.is_current() {
            // SAFETY: nobody posts to it any more: this is the last reference.
            if let Err(errno) = done(unsafe { context.library.ibv_destroy_qp(self.raw.as_ptr()) }) {
                // The device may go on with its requests: their memory must not be given back.
                tracing::error!(%errno, "a queue pair could not be destroyed");
                mem::forget((Arc::clone(&self.pd), Arc::clone(context)));
            }
        }
    }
}

/// Has forks left what is registered where it is (`ibv_fork_init(3)`); to be called before anything is.
///
/// Since Linux 5.12 they do by themselves. Not all versions of the library leave it at that: they keep the pages from a child
/// (`MADV_DONTFORK`), with all that lies on them beside what is registered.
pub(super) fn be_safe_from_forks() {
    if let Ok(library) = Library::open() {
        // SAFETY: no arguments.
        if unsafe { library.ibv_is_fork_initialized() } == Some(ibv_fork_status::IBV_FORK_UNNEEDED) {
            return;
        }
        // SAFETY: no arguments.
        if let Err(errno) = done(unsafe { library.ibv_fork_init() }) {
            tracing::warn!(%errno, "after a fork, registered memory may be another in parent and child");
        }
    }
}
