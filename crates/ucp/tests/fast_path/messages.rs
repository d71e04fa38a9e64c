//! Messages, puts, gets and atomics of endpoints, by each transport that connects workers.

use std::cell::Cell;
use std::rc::Rc;

use testkit::count_allocs;
use ucp::{Context, Endpoint, Features, MemMap, Region, RemoteRegion, Worker};

use crate::{exit, in_process, only_exit, survived};

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
            let ctx = Context::builder().features(features).ignore_env().set("UCX_TLS", tls).build().unwrap();
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
        // All buffers are there, all pages are touched: a ring's worth of messages.
        assert!((0..2000).all(|_| duo.round()));
        duo
    }

    /// Each operation once.
    fn round(&mut self) -> bool {
        let before = self.replies.get();
        let mut all = self.ep.am_send(1, b"", &SHORT[..]).into_result().is_ok_and(|sent| sent.is_ok());
        all &= self.ep.am_send(1, b"head", &LONG[..]).into_result().is_ok_and(|sent| sent.is_ok());
        for _ in 0..1000 {
            self.b.as_ref().unwrap_or(&self.a).progress();
            self.a.progress();
            if self.replies.get() == before + 2 {
                break;
            }
        }
        all &= self.replies.get() == before + 2;
        let put = self.buffer.take().and_then(|buffer| self.remote.put(8, buffer).into_result().ok()?.ok());
        self.buffer = put.and_then(|buffer| self.remote.get(8, buffer).into_result().ok()?.ok());
        all &= self.remote.fetch_add(0, 1_u64).into_result().is_ok_and(|before| before.is_ok());
        all &= self.ep.flush().into_result().is_ok_and(|flushed| flushed.is_ok());
        all && self.buffer.is_some()
    }
}

#[test]
fn endpoints_do_not_allocate() {
    for tls in ["shm", "self"] {
        let mut duo = Duo::new(tls);
        let mut all = true;
        let allocs = count_allocs(|| all = (0..1000).all(|_| duo.round()));
        assert!(all, "{tls}");
        assert_eq!(allocs, 0, "{tls}");
    }
}

#[test]
fn endpoints_make_no_system_call() {
    let ended = in_process("messages::endpoints_make_no_system_call", || {
        let mut both = [Duo::new("shm"), Duo::new("self")];
        only_exit();
        exit(if (0..10_000).all(|_| both.iter_mut().all(Duo::round)) { 0 } else { 1 });
    });
    survived(&ended);
}
