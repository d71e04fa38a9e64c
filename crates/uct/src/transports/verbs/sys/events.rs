//! Asynchronous events of a device: what happens to it beside requests (`ibv_get_async_event(3)`).

use std::os::fd::BorrowedFd;

use rdma_core_sys::{ibv_async_event, ibv_event_type as Type};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use super::{Context, last_errno};

/// An event, and what it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Event {
    pub(in super::super) kind: Type,
    pub(in super::super) of: Element,
}

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Element {
    /// The queue pair of this number.
    Qp(u32),
    /// The port of this number.
    Port(i32),
    /// The device, or an object that has no number.
    Other,
}

impl Context {
    /// Where events are told of.
    pub(in super::super) fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: an open context.
        let fd = unsafe { self.raw.as_ref() }.async_fd;
        // SAFETY: open as long as the context is.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Has [`Context::take_event`] never wait.
    pub(super) fn never_wait_for_events(&self) -> Result<(), Errno> {
        let flags = fcntl_getfl(self.async_fd())?;
        fcntl_setfl(self.async_fd(), flags | OFlags::NONBLOCK)
    }

    /// Takes an event, if there is one. An error: there will be no more. To be called by any thread; in a fork's child there is none.
    ///
    /// What is destroyed waits until its events are acknowledged (`ibv_get_async_event(3)`): that is done here, and nothing is waited for before.
    pub(in super::super) fn take_event(&self) -> Result<Option<Event>, Errno> {
        if !self.generation.is_current() {
            return Ok(None);
        }
        let mut event = ibv_async_event::default();
        // SAFETY: an open context, and a structure of this type. Its descriptor does not block.
        if unsafe { self.library.ibv_get_async_event(self.raw.as_ptr(), &mut event) } != 0 {
            return match last_errno() {
                Errno::AGAIN | Errno::INTR => Ok(None),
                errno => Err(errno),
            };
        }
        let kind = event.event_type;
        let of = match kind {
            Type::IBV_EVENT_QP_FATAL
            | Type::IBV_EVENT_QP_REQ_ERR
            | Type::IBV_EVENT_QP_ACCESS_ERR
            | Type::IBV_EVENT_QP_LAST_WQE_REACHED
            | Type::IBV_EVENT_COMM_EST
            | Type::IBV_EVENT_SQ_DRAINED
            | Type::IBV_EVENT_PATH_MIG
            | Type::IBV_EVENT_PATH_MIG_ERR => {
                // SAFETY: events of these types are of a queue pair.
                let qp = unsafe { event.element.qp };
                // SAFETY: who destroys it waits for the acknowledgement below, with the queue pair whole.
                Element::Qp(unsafe { (*qp).qp_num })
            }
            Type::IBV_EVENT_PORT_ACTIVE
            | Type::IBV_EVENT_PORT_ERR
            | Type::IBV_EVENT_LID_CHANGE
            | Type::IBV_EVENT_PKEY_CHANGE
            | Type::IBV_EVENT_SM_CHANGE
            | Type::IBV_EVENT_CLIENT_REREGISTER
            | Type::IBV_EVENT_GID_CHANGE => {
                // SAFETY: events of these types are of a port.
                Element::Port(unsafe { event.element.port_num })
            }
            _ => Element::Other,
        };
        // SAFETY: taken just now, and acknowledged once.
        unsafe { self.library.ibv_ack_async_event(&mut event) };
        Ok(Some(Event { kind, of }))
    }
}
