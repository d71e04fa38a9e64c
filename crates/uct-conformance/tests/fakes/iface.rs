//! A real interface, wrapped, with one fault.

use std::os::fd::BorrowedFd;

use ucs::time::Deadline;
use uct::api::{AttachError, EpId, Gone, Iface, IfaceAttr, NewEp, Payload, SendError, Sink};
use uct::memory::Local;

use crate::fake::Fault;

/// One message in so many is one that the fault is about.
const EVERY: u32 = 7;

#[derive(Debug)]
pub(crate) struct FakeIface {
    real: Box<dyn Iface>,
    fault: Fault,
    /// Messages sent.
    sent: u32,
    /// Messages received.
    received: u32,
}

impl FakeIface {
    pub(crate) fn new(real: Box<dyn Iface>, fault: Fault) -> Self {
        Self { real, fault, sent: 0, received: 0 }
    }
}

impl Iface for FakeIface {
    fn attr(&self) -> &IfaceAttr {
        self.real.attr()
    }

    fn address(&self) -> Vec<u8> {
        self.real.address()
    }

    fn connect(&mut self, address: &[u8], deadline: &Deadline) -> Result<NewEp, AttachError> {
        self.real.connect(address, deadline)
    }

    fn disconnect(&mut self, ep: EpId) {
        self.real.disconnect(ep);
    }

    fn am(&mut self, ep: EpId, tag: u32, head: [&[u8]; 2], body: &Local<'_>) -> Result<(), SendError> {
        self.sent += 1;
        if self.fault == Fault::DropsAMessage && self.sent.is_multiple_of(EVERY) {
            return Ok(());
        }
        match self.real.am(ep, tag, head, body) {
            Err(SendError::TooLong) if self.fault == Fault::SendsWhatIsTooLong => {
                self.real.am(ep, tag, [&[], &[]], &Local::bytes(b"what there is room for"))
            }
            answer => answer,
        }
    }

    fn progress(&mut self, sink: &mut dyn Sink) -> usize {
        let mut faulty = FaultySink { sink, fault: self.fault, received: &mut self.received, kept: None };
        let told = self.real.progress(&mut faulty);
        faulty.give();
        told
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.real.event_fd()
    }

    fn arm(&mut self) -> bool {
        let idle = self.real.arm();
        match self.fault {
            Fault::ArmsAlthoughSomethingIsThere => true,
            Fault::NeverSleeps => false,
            _ => idle,
        }
    }
}

/// Tells something else than it is told.
struct FaultySink<'a> {
    sink: &'a mut dyn Sink,
    fault: Fault,
    received: &'a mut u32,
    /// A message that is told after the next one.
    kept: Option<(EpId, u32, Vec<u8>)>,
}

impl FaultySink<'_> {
    fn give(&mut self) {
        if let Some((ep, tag, bytes)) = self.kept.take() {
            self.sink.am(ep, tag, &&bytes[..]);
        }
    }
}

impl Sink for FaultySink<'_> {
    fn arrived(&mut self, new: NewEp) {
        self.sink.arrived(new);
    }

    fn am(&mut self, ep: EpId, tag: u32, payload: &dyn Payload) {
        *self.received += 1;
        let is_one = self.received.is_multiple_of(EVERY);
        if self.fault == Fault::SwapsMessages && is_one {
            let mut bytes = vec![0; payload.len()];
            payload.read(0, &mut bytes).unwrap();
            self.kept = Some((ep, tag, bytes));
            return;
        }
        self.sink.am(ep, tag, payload);
        if self.fault == Fault::DoublesAMessage && is_one {
            self.sink.am(ep, tag, payload);
        }
        self.give();
    }

    fn gone(&mut self, ep: EpId, why: Gone) {
        self.give();
        self.sink.gone(ep, why);
        if self.fault == Fault::TellsGoneTwice {
            self.sink.gone(ep, why);
        }
    }
}
