//! Events of completion queues: how who sleeps is told of a completion.

use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_core_sys::{ibv_comp_channel, ibv_req_notify_cq};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use super::{Context, Cq, done, made};

/// Events of several queues, on one descriptor. Non-blocking.
#[derive(Debug)]
pub(in super::super) struct Channel {
    raw: NonNull<ibv_comp_channel>,
    context: Arc<Context>,
}

// SAFETY: as of `Context`.
unsafe impl Send for Channel {}
// SAFETY: as of `Context`.
unsafe impl Sync for Channel {}

impl Channel {
    pub(in super::super) fn new(context: &Arc<Context>) -> Result<Self, Errno> {
        // SAFETY: an open context.
        let raw = made(unsafe { context.library.ibv_create_comp_channel(context.raw.as_ptr()) })?;
        let channel = Self { raw, context: Arc::clone(context) };
        let flags = fcntl_getfl(&channel)?;
        fcntl_setfl(&channel, flags | OFlags::NONBLOCK)?;
        Ok(channel)
    }

    pub(super) fn raw(&self) -> NonNull<ibv_comp_channel> {
        self.raw
    }

    /// Takes an event, if there is one. To be called by one thread at a time, and not while a queue of this channel is dropped that an event was
    /// ever asked of: others have none.
    pub(in super::super) fn take(&self) -> bool {
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        let library = self.context.library;
        // SAFETY: an open channel, and two pointers that may be written.
        if unsafe { library.ibv_get_cq_event(self.raw.as_ptr(), &mut cq, &mut context) } != 0 {
            return false;
        }
        // SAFETY: the event is of a queue that lives: the kernel takes back those of one that is destroyed (`ibv_destroy_cq(3)`).
        unsafe { library.ibv_ack_cq_events(cq, 1) };
        true
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: an open channel.
        let fd = unsafe { self.raw.as_ref() }.fd;
        // SAFETY: open as long as the channel is.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if self.context.generation.is_current() {
            // SAFETY: its queues are destroyed: each keeps it alive.
            let _ = unsafe { self.context.library.ibv_destroy_comp_channel(self.raw.as_ptr()) };
        }
    }
}

impl Cq {
    /// Asks for one event of the next completion: it goes to the queue's channel.
    pub(in super::super) fn notify(&self) -> Result<(), Errno> {
        if self.channel.is_none() {
            return Err(Errno::INVAL);
        }
        // SAFETY: an open queue.
        done(unsafe { ibv_req_notify_cq(self.raw.as_ptr(), 0) })
    }
}
