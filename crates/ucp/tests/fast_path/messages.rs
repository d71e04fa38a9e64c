//! Messages, puts, gets and atomics of endpoints, by each transport that connects workers.

use std::cell::Cell;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use testkit::count_allocs;
use ucp::{Context, Endpoint, Features, MemMap, Region, RemoteRegion, Request, Worker};

use crate::transports::BY_DEVICE;
use crate::{exit, in_process, only_exit, survived};

/// Those that connect workers.
const TRANSPORTS: &[&str] = if BY_DEVICE { &["verbs"] } else { &["shm", "self"] };

/// Looks for an operation to end: a device does its work meanwhile.
const LOOKS: u32 = if BY_DEVICE { 10_000_000 } else { 1000 };

/// How often all is done for all buffers to be there, and all pages touched: a ring's worth of messages, or a queue's.
const FIRST: u32 = if BY_DEVICE { 200 } else { 2000 };
/// After that long both messages have come, also by an emulated device.
const REST: Duration = Duration::from_millis(10);
/// How often then.
const TIMES: u32 = if BY_DEVICE { 200 } else { 1000 };

static SHORT: [u8; 8] = [1; 8];
static LONG: [u8; 4096] = [2; 4096];

/// Two workers that send each other messages, and a region of one that the other has the key of.
struct Duo {
    a: Worker,
    /// `None`: `a` itself.
    b: Option<Worker>,
    ep: Endpoint,
    remote: RemoteRegion,
    _region: Region,
    /// How many replies have come.
    replies: Rc<Cell<u32>>,
    buffer: Option<Vec<u8>>,
}

impl Duo {
    fn new(tls: &str) -> Self {
        let make = || {
            let features = Features::AM | Features::RMA | Features::AMO64;
            let mode = if BY_DEVICE { "device" } else { "cpu" };
            let builder = Context::builder().features(features).ignore_env();
            let ctx = builder.set("UCX_TLS", tls).set("UCX_ATOMIC_MODE", mode).build().unwrap();
            let worker = ctx.worker().unwrap();
            (ctx, worker)
        };
        let (ctx, a) = make();
        let (owner, b) = if tls == "self" {
            (ctx, None)
        } else {
            {
                let (ctx, b) = make();
                (ctx, Some(b))
            }
        };
        let region = owner.mem_map(MemMap::allocate(8192)).unwrap();
        let to = b.as_ref().unwrap_or(&a);
        let ep = a.connect(to.address().unwrap().as_bytes()).unwrap();
        let remote = ep.rkey_unpack(region.rkey_pack().unwrap().as_bytes()).unwrap();
        let replies = Rc::new(Cell::new(0));
        let count = Rc::clone(&replies);
        a.am_handler(2, move |message| count.set(count.get() + u32::from(message.data() == SHORT))).unwrap();
        to.am_handler(1, |message| {
            let _detached = message.reply().am_send(2, message.header(), &SHORT[..]);
        })
        .unwrap();
        let mut duo = Self { a, b, ep, remote, _region: region, replies, buffer: Some(vec![3; 64]) };
        assert!((0..FIRST).all(|number| duo.round(BY_DEVICE && number % 8 == 0)));
        duo
    }

    fn b(&self) -> &Worker {
        self.b.as_ref().unwrap_or(&self.a)
    }

    fn progress(&self) {
        self.b().progress();
        self.a.progress();
    }

    /// Waits until it has ended; `None`: not well, or not in time.
    fn ended<T>(&self, request: Request<T>) -> Option<T> {
        for _ in 0..LOOKS {
            if request.is_ended() {
                break;
            }
            self.progress();
        }
        request.into_result().ok()?.ok()
    }

    /// Each operation once. Where each side `rests` before it looks, both messages have come by then, and need a buffer each.
    fn round(&mut self, rests: bool) -> bool {
        let before = self.replies.get();
        let mut all = self.ended(self.ep.am_send(1, b"", &SHORT[..])).is_some();
        all &= self.ended(self.ep.am_send(1, b"head", &LONG[..])).is_some();
        if rests {
            thread::sleep(REST);
            self.b().progress();
            thread::sleep(REST);
        }
        for _ in 0..LOOKS {
            self.progress();
            if self.replies.get() == before + 2 {
                break;
            }
        }
        all &= self.replies.get() == before + 2;
        let put = self.buffer.take().and_then(|buffer| self.ended(self.remote.put(8, buffer)));
        self.buffer = put.and_then(|buffer| self.ended(self.remote.get(8, buffer)));
        all &= self.ended(self.remote.fetch_add(0, 1_u64)).is_some();
        all &= self.ended(self.ep.flush()).is_some();
        all && self.buffer.is_some()
    }
}

#[test]
fn endpoints_do_not_allocate() {
    for tls in TRANSPORTS {
        let mut duo = Duo::new(tls);
        let mut all = true;
        let allocs = count_allocs(|| all = (0..TIMES).all(|_| duo.round(false)));
        assert!(all, "{tls}");
        assert_eq!(allocs, 0, "{tls}");
    }
}

#[test]
fn endpoints_make_no_system_call() {
    let ended = in_process("messages::endpoints_make_no_system_call", || {
        let mut both = [Duo::new("shm"), Duo::new("self")];
        only_exit();
        exit(if (0..10_000).all(|_| both.iter_mut().all(|duo| duo.round(false))) { 0 } else { 1 });
    });
    survived(&ended);
}
