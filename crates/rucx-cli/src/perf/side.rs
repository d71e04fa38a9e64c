//! What each of the two processes has: a worker, memory for the other, an endpoint to it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use ucp::{
    AmMessage, Context, Endpoint, Features, MemMap, PackedMemh, Region, RemoteRegion, Request, Worker,
};

use super::Problem;
use super::operand::{Operand, Operands};
use super::protocol::Card;
use crate::frame::Secret;

/// How long one side waits for the other.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Messages that are measured, and the one after the last of them.
pub(super) const MESSAGE: u16 = 1;
pub(super) const LAST: u16 = 2;

/// What handlers have seen.
#[derive(Default)]
struct Inbox {
    messages: Cell<u64>,
    ended: Cell<bool>,
    announced: RefCell<VecDeque<AmMessage>>,
}

/// Whether the other process is there.
pub(super) type Alive = Box<dyn Fn() -> Result<(), Problem>>;

/// One of the two.
pub(super) struct Side {
    pub(super) worker: Worker,
    pub(super) region: Region,
    /// Memory for the other one's operands, where those are to be imported.
    exported: Option<(Region, PackedMemh)>,
    ctx: Context,
    inbox: Rc<Inbox>,
    spins: u32,
    alive: Alive,
}

/// The other one, as this one reaches it.
#[derive(Clone, Debug)]
pub(super) struct Far {
    pub(super) ep: Endpoint,
    pub(super) memory: RemoteRegion,
    pub(super) operands: Operands,
}

/// What has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Came {
    Message,
    /// The last one was before.
    Last,
}

impl Side {
    /// A worker, and memory with room for operands of `largest` bytes; with `exports`, also memory for the other one's operands.
    pub(super) fn new(
        tls: Option<&str>,
        (largest, exports): (u64, bool),
        spins: u32,
        alive: Alive,
    ) -> Result<Self, Problem> {
        let features =
            Features::AM | Features::RMA | Features::AMO32 | Features::AMO64 | Features::EXPORTED_MEMH;
        let mut builder = Context::builder().features(features);
        if let Some(tls) = tls {
            builder = builder.set("UCX_TLS", tls);
        }
        let ctx = builder.build().map_err(|error| Problem::of("make a context", error))?;
        let worker = ctx.worker().map_err(|error| Problem::of("make a worker", error))?;
        let inbox = Rc::new(Inbox::default());
        let (messages, last) = (Rc::clone(&inbox), Rc::clone(&inbox));
        let handlers = worker
            .am_handler(MESSAGE, move |message| {
                if message.is_rendezvous() {
                    messages.announced.borrow_mut().push_back(message);
                } else {
                    messages.messages.set(messages.messages.get() + 1);
                }
            })
            .and_then(|()| worker.am_handler(LAST, move |_| last.ended.set(true)));
        handlers.map_err(|error| Problem::of("handle messages", error))?;
        let region = mapped(&ctx, Place::of(largest).end, false)?;
        let exported = if exports {
            let memory = mapped(&ctx, Operands::room(largest), true)?;
            let handle = memory.memh_pack().map_err(|error| Problem::of("pack a handle", error))?;
            Some((memory, handle))
        } else {
            None
        };
        Ok(Self { worker, region, exported, ctx, inbox, spins, alive })
    }

    /// How the other one connects.
    pub(super) fn card(&self) -> Result<Card, Problem> {
        let address =
            self.worker.address().map_err(|error| Problem::of("pack the worker's address", error))?;
        let rkey = self.region.rkey_pack().map_err(|error| Problem::of("pack a key to the memory", error))?;
        let handle = self.exported.as_ref().map(|(_, handle)| handle.as_bytes().to_vec()).unwrap_or_default();
        Ok(Card {
            address: Secret(address.as_bytes().to_vec()),
            rkey: Secret(rkey.as_bytes().to_vec()),
            handle: Secret(handle),
        })
    }

    /// Connects to the other one.
    pub(super) fn connect(&self, card: &Card) -> Result<Far, Problem> {
        let ep = self
            .worker
            .connect(&card.address.0)
            .map_err(|error| Problem::of("connect the workers", error))?;
        let memory =
            ep.rkey_unpack(&card.rkey.0).map_err(|error| Problem::of("reach the peer's memory", error))?;
        let operands = if card.handle.0.is_empty() {
            Operands::Own
        } else {
            let memory = self.ctx.mem_import(&card.handle.0);
            Operands::Imported(memory.map_err(|error| Problem::of("import memory for operands", error))?)
        };
        Ok(Far { ep, memory, operands })
    }

    /// Starts to wait.
    pub(super) fn pace(&self) -> Pace<'_> {
        Pace { side: self, idle: 0, end: None }
    }

    /// Waits for an operation, without sleeping.
    #[inline]
    pub(super) fn finish<M>(&self, mut request: Request<M>) -> Result<M, Problem> {
        let mut pace = self.pace();
        loop {
            request = match request.into_result() {
                Ok(result) => return result.map_err(|error| Problem::of("go on", error)),
                Err(request) => request,
            };
            self.worker.progress();
            pace.idle()?;
        }
    }

    /// How many messages have come so far, of those that came whole.
    pub(super) fn messages(&self) -> u64 {
        self.inbox.messages.get()
    }

    /// A message whose data is still at the other side.
    pub(super) fn announced(&self) -> Option<AmMessage> {
        self.inbox.announced.borrow_mut().pop_front()
    }

    /// Whether there is such a message.
    pub(super) fn has_announced(&self) -> bool {
        !self.inbox.announced.borrow().is_empty()
    }

    /// Whether the last message has come: asked once.
    pub(super) fn take_last(&self) -> bool {
        self.inbox.ended.take()
    }

    /// Waits for one message; `seen` have been waited for. What was only announced comes into `room`.
    #[inline]
    pub(super) fn receive(&self, seen: &mut u64, room: &mut Operand) -> Result<Came, Problem> {
        let mut pace = self.pace();
        loop {
            self.worker.progress();
            if self.messages() > *seen {
                *seen += 1;
                return Ok(Came::Message);
            }
            if let Some(message) = self.announced() {
                *room = self.finish(message.recv_data(std::mem::take(room)))?;
                return Ok(Came::Message);
            }
            if self.take_last() {
                return Ok(Came::Last);
            }
            pace.idle()?;
        }
    }

    /// Waits until the last byte at `place` of its own memory is another than `old`.
    #[inline]
    pub(super) fn changed(&self, place: Place, old: u8) -> Result<u8, Problem> {
        let cannot = |error| Problem::of("look at its own memory", error);
        let word = self.region.atomic_u64(place.word).map_err(cannot)?;
        let mut pace = self.pace();
        loop {
            let [.., last] = word.load(std::sync::atomic::Ordering::Acquire).to_ne_bytes();
            if last != old {
                return Ok(last);
            }
            pace.idle()?;
        }
    }

    /// Sets the last byte at `place` to 0.
    pub(super) fn clear(&self, place: Place) -> Result<(), Problem> {
        self.region.store(place.word, 0_u64).map_err(|error| Problem::of("clear its own memory", error))
    }
}

/// So much memory, whose pages are there before anything is timed.
fn mapped(ctx: &Context, bytes: u64, exported: bool) -> Result<Region, Problem> {
    let bytes = usize::try_from(bytes)
        .map_err(|_| Problem::new("too large a size", "this machine cannot address it", "measure less"))?;
    let map = MemMap::allocate(bytes);
    let map = if exported { map.exported() } else { map };
    let region = ctx.mem_map(map).map_err(|error| Problem::of("map memory", error))?;
    region.write(0, &vec![0x5a; bytes]).map_err(|error| Problem::of("write memory", error))?;
    Ok(region)
}

impl Far {
    /// An operand of `size` bytes, all of which are `byte`.
    pub(super) fn operand(&self, size: u64, byte: u8) -> Result<Operand, Problem> {
        self.operands.of(size, byte).map_err(|error| Problem::of("make an operand", error))
    }
}

impl fmt::Debug for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Side").field("ctx", &self.ctx).field("worker", &self.worker).finish_non_exhaustive()
    }
}

/// Where operands of some size lie in the memory: so that the last byte is that of an aligned word, which is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) offset: u64,
    pub(super) word: u64,
    pub(super) end: u64,
}

impl Place {
    pub(super) fn of(size: u64) -> Self {
        let end = size.max(1).next_multiple_of(8);
        Self { offset: end - size, word: end - 8, end }
    }
}

/// For how long nothing has happened.
pub(super) struct Pace<'a> {
    side: &'a Side,
    idle: u32,
    end: Option<Instant>,
}

impl Pace<'_> {
    /// Nothing has, again.
    ///
    /// # Errors
    /// The other process is gone, or it takes too long.
    #[inline]
    pub(super) fn idle(&mut self) -> Result<(), Problem> {
        if self.idle < self.side.spins {
            self.idle += 1;
            std::hint::spin_loop();
            return Ok(());
        }
        self.idle = 0;
        self.offer()
    }

    #[cold]
    fn offer(&mut self) -> Result<(), Problem> {
        (self.side.alive)()?;
        let now = Instant::now();
        if now > *self.end.get_or_insert(now + PATIENCE) {
            return Err(silent());
        }
        std::thread::yield_now();
        Ok(())
    }
}

/// The other process has not answered.
pub(super) fn silent() -> Problem {
    let why = format!("it has not answered within {} s", PATIENCE.as_secs());
    let remedy = "see whether it was stopped, or is kept from running by others; measure again";
    Problem::new("the peer process is silent", why, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_end_where_a_word_ends() {
        for size in [1, 7, 8, 9, 4096, 4097] {
            let place = Place::of(size);
            assert_eq!(place.offset + size, place.end);
            assert_eq!(place.word + 8, place.end);
            assert_eq!(place.word % 8, 0);
        }
    }

    #[test]
    fn one_process_can_be_both_sides() {
        for exports in [false, true] {
            let side = || Side::new(Some("shm"), (4096, exports), 16, Box::new(|| Ok(()))).unwrap();
            let (a, b) = (side(), side());
            let far = a.connect(&b.card().unwrap()).unwrap();
            assert_eq!(matches!(far.operands, Operands::Imported(_)), exports);
            let place = Place::of(100);
            b.clear(place).unwrap();
            a.finish(far.memory.put(place.offset, far.operand(100, 7).unwrap())).unwrap();
            assert_eq!(b.changed(place, 0), Ok(7));
            if exports {
                continue; // imported memory goes by rendezvous, to which both sides are needed at once
            }
            let _sent = far.ep.am_send(MESSAGE, b"", far.operand(10, 1).unwrap());
            let _last = far.ep.am_send(LAST, b"", Vec::new());
            let (mut seen, mut room) = (0, Operand::default());
            assert_eq!(b.receive(&mut seen, &mut room), Ok(Came::Message));
            assert_eq!(b.receive(&mut seen, &mut room), Ok(Came::Last));
        }
    }
}
