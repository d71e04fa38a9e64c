//! Workers and endpoints within one process, by each transport that connects workers.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)] // what a test expects, and patterns

mod gather;
mod hostile;
mod lives;
mod memory;
mod messages;
mod orders;
mod raw;
mod reentry;
mod remap;
mod remote;
mod waiting;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use ucp::{Context, Endpoint, Features, Worker};

/// Long enough for anything, on any machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Nothing comes any more after that long without anything.
pub(crate) const REST: Duration = Duration::from_millis(20);

pub(crate) fn context(tls: &str) -> Context {
    let features = Features::AM | Features::RMA | Features::AMO64 | Features::EXPORTED_MEMH;
    Context::builder().features(features).set("UCX_TLS", tls).build().unwrap()
}

/// Two workers, and an endpoint from the first to the second: the same worker where the transport reaches no other.
pub(crate) struct Pair {
    pub(crate) ep: Endpoint,
    pub(crate) a: Worker,
    b: Option<Worker>,
}

impl Pair {
    pub(crate) fn new(tls: &str) -> Self {
        let a = context(tls).worker().unwrap();
        let b = (tls != "self").then(|| context(tls).worker().unwrap());
        let address = b.as_ref().unwrap_or(&a).address().unwrap();
        let ep = a.connect(address.as_bytes()).unwrap();
        assert_eq!(ep.info().transport, if tls == "self" { "self" } else { BETWEEN });
        Self { ep, a, b }
    }

    pub(crate) fn b(&self) -> &Worker {
        self.b.as_ref().unwrap_or(&self.a)
    }

    pub(crate) fn progress(&self) {
        self.a.progress();
        self.b().progress();
    }

    /// Has both make progress until that holds.
    pub(crate) fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !holds() {
            assert!(Instant::now() < end, "not in time: {what}");
            self.progress();
        }
    }

    /// Has the first make progress until that holds.
    pub(crate) fn a_until(&self, what: &str, holds: impl Fn() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !holds() {
            assert!(Instant::now() < end, "not in time: {what}");
            self.a.wait_any(Duration::from_millis(10)).unwrap();
        }
    }

    /// Makes progress until neither worker has anything to do: by a device, what was begun ends later.
    pub(crate) fn come_to_rest(&self) {
        let end = Instant::now() + PATIENCE;
        while [&self.a, self.b()].iter().any(|worker| worker.wait_any(REST).unwrap()) {
            assert!(Instant::now() < end, "it does not come to rest");
        }
    }

    /// Drops the second worker.
    pub(crate) fn lose_b(&mut self) {
        self.b = None;
    }
}

/// What handlers have seen.
pub(crate) type Seen<T> = Rc<RefCell<Vec<T>>>;

pub(crate) const TRANSPORTS: [&str; 2] = ["self", BETWEEN];

/// One that connects workers with others: in the guest of `cargo xtask rxe`, that of its RDMA device.
pub(crate) const BETWEEN: &str = if BY_DEVICE { "verbs" } else { "shm" };
/// A device does its work while nobody makes progress, and an emulated one takes its time for that.
pub(crate) const BY_DEVICE: bool = cfg!(feature = "rxe-tests");

/// Bytes that tell where they are from.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|index| (index as u8).wrapping_mul(31) ^ (index >> 8) as u8 ^ seed).collect()
}
