//! What happens to a device beside requests: told to the log in words, and with the error of a request that has failed.
//!
//! ```text
//!   device ──▶ its descriptor ──▶ service thread, as soon as it runs ──▶ log
//!                            └──▶ who has a failed request ──▶ its error: "…; the port is down"
//! ```
//!
//! Nobody looks while requests succeed.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use rdma_core_sys::{ibv_event_type as Type, ibv_port_state};
use rustix::io::Errno;

use super::port::Ports;
use super::sys::{Context, Element, Event};
use crate::memory::{AccessError, DeviceEvent, DeviceReason};
use crate::service::Tended;

/// Events that are taken at once: others are left for the next time.
const AT_ONCE: usize = 64;

/// The events of an opened device.
#[derive(Debug)]
pub(super) struct Events {
    context: Arc<Context>,
    name: String,
    /// The port that is used.
    port: u8,
    seen: Mutex<Seen>,
}

/// What they have told so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    is_fatal: bool,
    is_down: bool,
    /// When the port last went down.
    went_down: Option<Instant>,
}

impl Seen {
    fn note(&mut self, event: Event, port: u8, now: Instant) {
        let is_own = event.of == Element::Port(port.into());
        match event.kind {
            Type::IBV_EVENT_DEVICE_FATAL => self.is_fatal = true,
            Type::IBV_EVENT_PORT_ERR if is_own => {
                self.is_down = true;
                self.went_down = Some(now);
            }
            Type::IBV_EVENT_PORT_ACTIVE if is_own => self.is_down = false,
            _ => {}
        }
    }

    /// What may be why something failed that began then.
    fn since(self, began: Instant) -> Option<DeviceEvent> {
        match self {
            Self { is_fatal: true, .. } => Some(DeviceEvent::Fatal),
            Self { is_down: true, .. } => Some(DeviceEvent::PortDown),
            Self { went_down: Some(when), .. } if when >= began => Some(DeviceEvent::PortWasDown),
            _ => None,
        }
    }
}

impl Events {
    pub(super) fn new(context: &Arc<Context>, name: &str, port: u8) -> Arc<Self> {
        let (context, name) = (Arc::clone(context), name.to_owned());
        Arc::new(Self { context, name, port, seen: Mutex::default() })
    }

    /// Takes those that have come, and logs them. `false`: no more will come.
    fn read(&self) -> bool {
        let (mut taken, mut ended) = (Vec::new(), None);
        // Held until they are noted: who has a failed request does not go on before. Nobody who destroys an object has it.
        let mut seen = self.seen.lock();
        while taken.len() < AT_ONCE && ended.is_none() {
            match self.context.take_event() {
                Ok(Some(event)) => {
                    seen.note(event, self.port, Instant::now());
                    taken.push(event);
                }
                Ok(None) => break,
                Err(errno) => ended = Some(errno),
            }
        }
        drop(seen);
        for event in taken {
            log(&self.name, event);
        }
        if let Some(errno) = ended {
            tracing::debug!(device = self.name, %errno, "an RDMA device tells of no more events");
        }
        ended.is_none()
    }

    /// What has happened to the device that may be why something failed which began then.
    pub(super) fn since(&self, began: Instant) -> Option<DeviceEvent> {
        self.read();
        let seen = *self.seen.lock();
        seen.since(began).or_else(|| self.is_port_down().then_some(DeviceEvent::PortDown))
    }

    /// Whether the port is down, which its requests may notice before there is an event of that.
    fn is_port_down(&self) -> bool {
        self.context.port(self.port).is_ok_and(|attr| attr.state == ibv_port_state::IBV_PORT_DOWN)
    }

    /// The error of an access that began then, with what has happened to the device, if that does not tell it yet.
    pub(super) fn explain(&self, error: AccessError, began: Instant) -> AccessError {
        match error {
            AccessError::Device { why: DeviceReason::After { .. }, .. } => error,
            AccessError::Device { done, why } => {
                let event =
                    self.since(began).or_else(|| is_without_device(&why).then_some(DeviceEvent::Fatal));
                match event {
                    Some(event) => {
                        AccessError::Device { done, why: DeviceReason::After { why: Box::new(why), event } }
                    }
                    None => AccessError::Device { done, why },
                }
            }
            error => error,
        }
    }
}

/// Whether a call failed since there is no device behind its context any more, which the kernel says before it has told of the event (`ib_uverbs_write`,
/// `drivers/infiniband/core/uverbs_main.c`).
fn is_without_device(why: &DeviceReason) -> bool {
    matches!(why, DeviceReason::Call { errno: Errno::IO, .. })
}

impl Tended for Events {
    fn fd(&self) -> BorrowedFd<'_> {
        self.context.async_fd()
    }

    fn ready(&self) -> bool {
        self.read()
    }
}

/// An event in words.
#[derive(Clone, Copy, Debug)]
struct Words(Event);

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.of {
            Element::Port(number) => write!(f, "port {number} ")?,
            Element::Qp(number) => write!(f, "queue pair {number} ")?,
            Element::Other => {}
        }
        f.write_str(match self.0.kind {
            Type::IBV_EVENT_PORT_ERR => "has gone down",
            Type::IBV_EVENT_PORT_ACTIVE => "has come up",
            Type::IBV_EVENT_GID_CHANGE => "has other addresses (GIDs) now",
            Type::IBV_EVENT_LID_CHANGE => "has another LID now",
            Type::IBV_EVENT_PKEY_CHANGE => "has other partition keys now",
            Type::IBV_EVENT_SM_CHANGE => "has another subnet manager now",
            Type::IBV_EVENT_CLIENT_REREGISTER => "is asked by the subnet manager to register anew",
            Type::IBV_EVENT_DEVICE_FATAL => "the device has been taken away, or has failed as a whole",
            Type::IBV_EVENT_QP_FATAL => "has failed",
            Type::IBV_EVENT_QP_REQ_ERR => "has got a request that breaks the protocol, and has ended",
            Type::IBV_EVENT_QP_ACCESS_ERR => {
                "has refused a peer's access to memory, as of an export that is over, and has ended"
            }
            Type::IBV_EVENT_QP_LAST_WQE_REACHED => "takes no more from its shared receive queue",
            Type::IBV_EVENT_COMM_EST => "has received before it was told that it is connected",
            Type::IBV_EVENT_SQ_DRAINED => "has sent all it had",
            Type::IBV_EVENT_PATH_MIG => "goes by its other path",
            Type::IBV_EVENT_PATH_MIG_ERR => "cannot go by its other path",
            Type::IBV_EVENT_CQ_ERR => "a completion queue has overflowed, and can be used no more",
            Type::IBV_EVENT_SRQ_ERR => "a shared receive queue has failed",
            Type::IBV_EVENT_SRQ_LIMIT_REACHED => "a shared receive queue is short of receives",
            Type::IBV_EVENT_WQ_FATAL => "a work queue has failed",
            Type(other) => return write!(f, "an event that this version does not know ({other})"),
        })
    }
}

fn log(device: &str, event: Event) {
    let words = Words(event);
    match event.kind {
        Type::IBV_EVENT_DEVICE_FATAL
        | Type::IBV_EVENT_QP_FATAL
        | Type::IBV_EVENT_CQ_ERR
        | Type::IBV_EVENT_SRQ_ERR
        | Type::IBV_EVENT_WQ_FATAL => tracing::error!(device, "an RDMA device tells: {words}"),
        Type::IBV_EVENT_PORT_ERR | Type::IBV_EVENT_QP_REQ_ERR | Type::IBV_EVENT_PATH_MIG_ERR => {
            tracing::warn!(device, "an RDMA device tells: {words}");
        }
        Type::IBV_EVENT_COMM_EST | Type::IBV_EVENT_SQ_DRAINED | Type::IBV_EVENT_QP_LAST_WQE_REACHED => {
            tracing::debug!(device, "an RDMA device tells: {words}");
        }
        _ => tracing::info!(device, "an RDMA device tells: {words}"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn port(kind: Type, number: i32) -> Event {
        Event { kind, of: Element::Port(number) }
    }

    #[test]
    fn what_may_be_why_something_failed() {
        let [before, down, after] = [0, 1, 2].map(|secs| Instant::now() + Duration::from_secs(secs));
        let mut seen = Seen::default();
        seen.note(port(Type::IBV_EVENT_PORT_ERR, 2), 1, down);
        assert_eq!(seen.since(before), None, "another port");
        seen.note(port(Type::IBV_EVENT_PORT_ERR, 1), 1, down);
        assert_eq!([before, after].map(|began| seen.since(began)), [Some(DeviceEvent::PortDown); 2]);
        seen.note(port(Type::IBV_EVENT_PORT_ACTIVE, 1), 1, after);
        assert_eq!(seen.since(before), Some(DeviceEvent::PortWasDown));
        assert_eq!(seen.since(after), None, "up again before it began");
        seen.note(Event { kind: Type::IBV_EVENT_DEVICE_FATAL, of: Element::Other }, 1, after);
        assert_eq!(seen.since(after), Some(DeviceEvent::Fatal));
    }

    #[test]
    fn a_call_that_has_no_device_says_so() {
        let call = |errno| DeviceReason::Call { call: "ibv_post_send", errno };
        assert_eq!([Errno::IO, Errno::NOMEM].map(|errno| is_without_device(&call(errno))), [true, false]);
    }

    #[test]
    fn events_have_words() {
        let words = |kind, of| Words(Event { kind, of }).to_string();
        assert_eq!(words(Type::IBV_EVENT_PORT_ERR, Element::Port(1)), "port 1 has gone down");
        assert_eq!(words(Type::IBV_EVENT_QP_FATAL, Element::Qp(17)), "queue pair 17 has failed");
        assert!(words(Type::IBV_EVENT_CQ_ERR, Element::Other).starts_with("a completion queue"));
        assert!(words(Type(99), Element::Other).contains("99"));
    }
}
