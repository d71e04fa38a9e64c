//! Interfaces: two ends that talk, and a record of what each is told.
//!
//! What reaches other processes is tried with two interfaces of two contexts, with two of one context, and with one that talks to
//! itself; what reaches its own worker only, with the latter. A transport without an interface says so, and answers `None`.

pub(crate) mod addresses;
pub(crate) mod ends;
pub(crate) mod held;
pub(crate) mod messages;
pub(crate) mod processes;
pub(crate) mod threads;
pub(crate) mod waiting;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::{Duration, Instant};

use ucs::time::Deadline;
use uct::api::{AttachError, EpId, Gone, Iface, IfaceFlags, NewEp, Payload, SendError, Sink};
use uct::memory::Local;

use crate::bench::Bench;
use crate::fixture::Side;

/// Bound of every wait: nothing takes so long, but for a machine with much else to do.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// What an interface tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Arrived(NewEp),
    Am(EpId, u32, Vec<u8>),
    Gone(EpId, Gone),
}

impl Event {
    pub(crate) fn ep(&self) -> EpId {
        match self {
            Self::Arrived(new) => new.ep,
            Self::Am(ep, ..) | Self::Gone(ep, _) => *ep,
        }
    }
}

/// Records what it is told.
#[derive(Debug, Default)]
pub(crate) struct Log(pub(crate) Vec<Event>);

impl Sink for Log {
    fn arrived(&mut self, new: NewEp) {
        self.0.push(Event::Arrived(new));
    }

    fn am(&mut self, ep: EpId, tag: u32, payload: &dyn Payload) {
        self.0.push(Event::Am(ep, tag, bytes_of(payload)));
    }

    fn gone(&mut self, ep: EpId, why: Gone) {
        self.0.push(Event::Gone(ep, why));
    }
}

/// All of a payload; what lies beyond it is refused, and a part is that part.
pub(crate) fn bytes_of(payload: &dyn Payload) -> Vec<u8> {
    let len = payload.len();
    assert_eq!(payload.is_empty(), len == 0);
    let mut bytes = vec![0; len];
    payload.read(0, &mut bytes).unwrap();
    let mut byte = [0x77];
    for at in [len, len + 1, usize::MAX] {
        assert!(payload.read(at, &mut byte).is_err(), "a byte at {at} of {len}");
    }
    assert_eq!(byte, [0x77], "what is refused is not touched");
    if len > 2 {
        payload.read(len / 2, &mut byte).unwrap();
        assert_eq!(byte[0], bytes[len / 2]);
    }
    bytes
}

/// Who does something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    A,
    B,
}
use End::{A, B};

/// An endpoint's two ends: A's, which has connected, and B's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub(crate) a: EpId,
    pub(crate) b: EpId,
}

impl Pair {
    pub(crate) fn at(self, end: End) -> EpId {
        if end == A { self.a } else { self.b }
    }
}

impl End {
    pub(crate) fn other(self) -> Self {
        if self == A { B } else { A }
    }
}

/// Which interfaces the two ends are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Of two contexts.
    Strangers,
    /// Of one context.
    Siblings,
    /// The same one.
    Alone,
}

/// Two ends.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) shape: Shape,
    /// One or two; `None`: dropped.
    ifaces: Vec<Option<Box<dyn Iface>>>,
    logs: Vec<Log>,
    pub(crate) sides: Vec<Side>,
}

/// An interface of a memory domain.
pub(crate) fn open(side: &Side) -> Box<dyn Iface> {
    side.md.open_iface().unwrap().expect("it has one")
}

/// The shapes that the transport's interfaces can have: none where it has none, and says so.
fn shapes(bench: &Bench) -> &'static [Shape] {
    let said = bench.fixture.component.capabilities().iter().find(|said| said.name == "messages");
    let opened = bench.importer.md.open_iface().unwrap();
    let is_said = said.is_some_and(|said| said.supported);
    assert_eq!(opened.is_some(), is_said, "whether it has an interface, and whether it says so");
    match opened {
        None => &[],
        Some(iface) if iface.attr().flags.contains(IfaceFlags::INTER_PROCESS) => {
            &[Shape::Strangers, Shape::Siblings, Shape::Alone]
        }
        Some(_) => &[Shape::Alone],
    }
}

/// Whether a device carries the messages: what was sent is on its way then, and not there yet.
pub(crate) fn by_device(bench: &Bench) -> bool {
    bench.fixture.component.name() == "verbs"
}

/// Runs a check, and says in which shape it has failed.
fn run(bench: &Bench, shape: Shape, check: impl Fn(&mut World)) {
    let run = AssertUnwindSafe(|| check(&mut World::open(bench, shape)));
    if let Err(payload) = catch_unwind(run) {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref().copied()).unwrap_or("a panic");
        panic!("{shape:?}: {text}");
    }
}

/// Runs a check in every shape.
pub(crate) fn each(bench: &Bench, check: impl Fn(&mut World)) {
    shapes(bench).iter().for_each(|shape| run(bench, *shape, &check));
}

/// Runs a check in every shape of two interfaces.
pub(crate) fn each_of_two(bench: &Bench, check: impl Fn(&mut World)) {
    let two = shapes(bench).iter().filter(|shape| **shape != Shape::Alone);
    two.for_each(|shape| run(bench, *shape, &check));
}

/// Whether there is an interface, and one message arrives by it.
pub(crate) fn has_messages(bench: &Bench) -> bool {
    let Some(iface) = bench.importer.md.open_iface().unwrap() else { return false };
    drop(iface);
    let mut world = World::open(bench, Shape::Alone);
    let pair = world.connect();
    world.expect_delivery(A, pair, 7, b"a message");
    true
}

impl World {
    pub(crate) fn open(bench: &Bench, shape: Shape) -> Self {
        let sides: Vec<Side> = match shape {
            Shape::Strangers => vec![Side::open(&bench.fixture), Side::open(&bench.fixture)],
            Shape::Siblings | Shape::Alone => vec![Side::open(&bench.fixture)],
        };
        let second = match shape {
            Shape::Alone => None,
            _ => sides.last(),
        };
        let ifaces: Vec<_> = sides.first().into_iter().chain(second).map(|side| Some(open(side))).collect();
        let logs = ifaces.iter().map(|_| Log::default()).collect();
        Self { shape, ifaces, logs, sides }
    }

    fn index(&self, end: End) -> usize {
        (end as usize).min(self.ifaces.len() - 1)
    }

    /// The context of an end.
    pub(crate) fn side(&self, end: End) -> &Side {
        &self.sides[(end as usize).min(self.sides.len() - 1)]
    }

    pub(crate) fn iface(&mut self, end: End) -> &mut dyn Iface {
        let index = self.index(end);
        &mut **self.ifaces[index].as_mut().expect("it is not dropped")
    }

    /// The interface of an end, to be dropped or handed to a thread.
    pub(crate) fn take(&mut self, end: End) -> Box<dyn Iface> {
        let index = self.index(end);
        self.ifaces[index].take().expect("it is not dropped")
    }

    pub(crate) fn max(&mut self) -> usize {
        self.iface(A).attr().max_am
    }

    /// Nothing is recorded that was not counted.
    pub(crate) fn progress(&mut self, end: End) -> usize {
        let index = self.index(end);
        let Some(iface) = &mut self.ifaces[index] else { return 0 };
        let log = &mut self.logs[index];
        let before = log.0.len();
        let told = iface.progress(log);
        assert!(told > 0 || log.0.len() == before, "progress has told, and answers that it has not");
        told
    }

    /// What an end was told, of all endpoints.
    pub(crate) fn events(&self, end: End) -> &[Event] {
        &self.logs[self.index(end)].0
    }

    /// Takes what an end was told of one endpoint.
    pub(crate) fn told_of(&mut self, end: End, ep: EpId) -> Vec<Event> {
        let index = self.index(end);
        self.logs[index].0.extract_if(.., |event| event.ep() == ep).collect()
    }

    /// Both make progress until it is so.
    #[track_caller]
    pub(crate) fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        let begin = Instant::now();
        while !is_so(self) {
            assert!(begin.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
            if self.progress(A) + self.progress(B) == 0 {
                thread::yield_now();
            }
        }
    }

    /// Both make progress, for as long as something that is there would take.
    pub(crate) fn settle(&mut self) {
        let mut idle = 0;
        let begin = Instant::now();
        while idle < 5 {
            assert!(begin.elapsed() < PATIENCE, "progress does not come to an end");
            let told = self.progress(A) + self.progress(B);
            idle = if told == 0 { idle + 1 } else { 0 };
            thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn try_connect(&mut self, from: End, address: &[u8]) -> Result<NewEp, AttachError> {
        self.iface(from).connect(address, &Deadline::after(PATIENCE))
    }

    /// Connects A to B; B does nothing.
    pub(crate) fn connect_only(&mut self) -> EpId {
        let address = self.iface(B).address();
        self.try_connect(A, &address).expect("a good address").ep
    }

    /// Connects A to B, and has B hear of it.
    pub(crate) fn connect(&mut self) -> Pair {
        let before = self.arrivals(B).len();
        let a = self.connect_only();
        self.until("an arrival", |world| world.arrivals(B).len() > before);
        let new = *self.arrivals(B).last().unwrap();
        let index = self.index(B);
        self.logs[index].0.retain(|event| *event != Event::Arrived(new));
        Pair { a, b: new.ep }
    }

    /// Who has arrived at an end, as far as nobody has taken it from the record.
    pub(crate) fn arrivals(&self, end: End) -> Vec<NewEp> {
        let arrival = |event: &Event| match event {
            Event::Arrived(new) => Some(*new),
            _ => None,
        };
        self.events(end).iter().filter_map(arrival).collect()
    }

    pub(crate) fn am(&mut self, end: End, ep: EpId, tag: u32, body: &[u8]) -> Result<(), SendError> {
        self.iface(end).am(ep, tag, [&[], &[]], &Local::bytes(body))
    }

    /// Sends, and the other end gets that and nothing else.
    #[track_caller]
    pub(crate) fn expect_delivery(&mut self, from: End, pair: Pair, tag: u32, body: &[u8]) {
        assert_eq!(self.am(from, pair.at(from), tag, body), Ok(()));
        self.expect(from.other(), pair, &[Event::Am(pair.at(from.other()), tag, body.to_vec())]);
    }

    /// An end is told this of an endpoint, and nothing else that is on its way.
    #[track_caller]
    pub(crate) fn expect(&mut self, end: End, pair: Pair, events: &[Event]) {
        let ep = pair.at(end);
        let count = |world: &Self| world.events(end).iter().filter(|event| event.ep() == ep).count();
        self.until("what was sent", |world| count(world) >= events.len());
        // What comes too often comes at once.
        self.progress(end);
        let told = self.told_of(end, ep);
        if told != events {
            let differs = told.iter().zip(events).position(|(told, event)| told != event);
            let brief = |events: &[Event]| events.iter().map(brief).collect::<Vec<_>>();
            panic!("at {differs:?}: {:?} where {:?} was to come", brief(&told), brief(events));
        }
    }

    /// Nothing is told, to nobody.
    #[track_caller]
    pub(crate) fn expect_nothing(&mut self) {
        self.settle();
        for end in [A, B] {
            let events: Vec<_> = self.events(end).iter().map(brief).collect();
            assert!(events.is_empty(), "{end:?} is told {events:?}");
        }
    }

    pub(crate) fn disconnect(&mut self, end: End, ep: EpId) {
        self.iface(end).disconnect(ep);
    }
}

/// An event in a line.
fn brief(event: &Event) -> String {
    match event {
        Event::Am(ep, tag, bytes) => {
            format!("Am({ep:?}, {tag:#x}, {} bytes {:x?})", bytes.len(), &bytes[..bytes.len().min(8)])
        }
        other => format!("{other:?}"),
    }
}
