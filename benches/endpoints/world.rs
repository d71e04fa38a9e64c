//! Two workers that are connected, and the memory of one that the other reaches.

use std::cell::Cell;
use std::hint::black_box;
use std::rc::Rc;
use std::time::Duration;

use rucx_benches::timed;
use ucp::{
    AmMessage, Context, Endpoint, Features, MemMap, PackedRkey, Region, RemoteRegion, Request, Worker,
};
use ucs::sync::{Ordering, Word64};

use crate::processors::beside;

/// Bytes of a region.
pub(crate) const LARGEST: usize = 1 << 20;

/// The number of the handler.
const MESSAGE: u16 = 1;

/// What has come to a worker's handler.
#[derive(Default)]
struct Inbox {
    whole: Cell<u64>,
    announced: Cell<Option<AmMessage>>,
}

/// `a` posts; `b` has the region and the handler.
pub(crate) struct World {
    pub(crate) ctx: Context,
    pub(crate) a: Worker,
    pub(crate) b: Worker,
    pub(crate) ep: Endpoint,
    pub(crate) owner: Context,
    pub(crate) region: Region,
    pub(crate) key: PackedRkey,
    pub(crate) remote: RemoteRegion,
    inbox: Rc<Inbox>,
}

/// A context as the rows use it, whatever the environment says.
pub(crate) fn context() -> Context {
    let features = Features::AM | Features::RMA | Features::AMO64 | Features::EXPORTED_MEMH;
    let built = Context::builder().features(features).ignore_env().build();
    built.expect("a context with the default settings")
}

/// Memory whose pages are there.
pub(crate) fn region(ctx: &Context, map: MemMap) -> Region {
    let region = ctx.mem_map(map).expect("memory");
    region.write(0, &vec![1; region.len()]).expect("within");
    region
}

/// What has come of an operation that ends at once.
#[inline(always)]
pub(crate) fn ended<M>(request: Request<M>) -> M {
    request.into_result().expect("it has ended").expect("it has succeeded")
}

/// Makes a peer's region usable, and lets it go.
pub(crate) fn unpack(ep: &Endpoint, key: &PackedRkey) {
    drop(black_box(ep.rkey_unpack(black_box(key.as_bytes())).expect("a region")));
}

/// The reference of what takes nanoseconds: an atomic addition, alone.
pub(crate) fn additions() -> impl FnMut(u64) -> Duration {
    let word = Word64::new(0);
    timed(move |n| (0..n).for_each(|_| _ = black_box(word.fetch_add(black_box(1), Ordering::SeqCst))))
}

/// How the reference is called.
pub(crate) const ADDITION: &str = "fetch_add of a word";

impl World {
    pub(crate) fn new() -> Self {
        beside(|| {
            let (ctx, owner) = (context(), context());
            let (a, b) = (ctx.worker().expect("a worker"), owner.worker().expect("a worker"));
            let ep = a.connect(b.address().expect("an address").as_bytes()).expect("an endpoint");
            assert_eq!(ep.info().transport, "shm");
            let region = region(&owner, MemMap::allocate(LARGEST));
            let key = region.rkey_pack().expect("a key");
            let remote = ep.rkey_unpack(key.as_bytes()).expect("a region");
            assert_eq!(remote.transport(), "shm");
            drop(ended(remote.get(0, vec![0; LARGEST]))); // the first access brings the pages
            let inbox = Rc::new(Inbox::default());
            let into = Rc::clone(&inbox);
            let take = move |message: AmMessage| {
                if message.is_rendezvous() {
                    into.announced.set(Some(message));
                } else {
                    into.whole.set(into.whole.get() + 1);
                }
            };
            b.am_handler(MESSAGE, take).expect("a handler");
            Self { ctx, a, b, ep, owner, region, key, remote, inbox }
        })
    }

    /// Sends a message at once, and has it handled.
    #[inline(always)]
    pub(crate) fn eager(&self, data: Vec<u8>) -> Vec<u8> {
        let before = self.inbox.whole.get();
        let data = ended(self.ep.am_send(MESSAGE, b"", data));
        while self.inbox.whole.get() == before {
            self.b.progress();
        }
        data
    }

    /// Announces data, and has it received into `room`.
    pub(crate) fn rendezvous(&self, [data, room]: [Vec<u8>; 2]) -> [Vec<u8>; 2] {
        let sent = self.ep.am_send(MESSAGE, b"", data);
        let announced = loop {
            self.b.progress();
            if let Some(message) = self.inbox.announced.take() {
                break message;
            }
        };
        let received = announced.recv_data(room);
        while !(sent.is_ended() && received.is_ended()) {
            self.a.progress();
            self.b.progress();
        }
        [ended(sent), ended(received)]
    }
}
