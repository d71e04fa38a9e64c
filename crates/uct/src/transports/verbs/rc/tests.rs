//! Peers that keep no rules, on a device: `cargo xtask rxe --filter rc::tests`.

#![allow(clippy::unwrap_used)] // tests

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rdma_core_sys::{ibv_access_flags as Access, ibv_wr_opcode as Opcode};
use ucs::Status;
use ucs::rcache::Options;
use ucs::time::Deadline;

use super::RcIface;
use super::queue::{Completed, MESSAGES, Opening, Queue, RECEIVES};
use super::wire::{Address, Call, HEADER_LEN, Header, Kind, Reply};
use crate::api::{EpId, Gone, Iface, Md, MdParams, NewEp, Payload, SendError, Sink};
use crate::config::MAX_CONNECTIONS;
use crate::export::Token;
use crate::memory::{Local, LocalMem, Rights};
use crate::registrations::Registrations;
use crate::service::{NetCall, NetError, NetLink};
use crate::transports::this_boot;
use crate::transports::verbs::contexts::params;
use crate::transports::verbs::device::Device;
use crate::transports::verbs::md::VerbsMd;
use crate::transports::verbs::odp::Unproven;
use crate::transports::verbs::sys::{Channel, Mr};

const PATIENCE: Duration = Duration::from_secs(30);

/// A context with a device and an interface.
struct Side {
    iface: RcIface,
    device: Arc<Device>,
    params: MdParams,
    told: Told,
}

#[derive(Default)]
struct Told {
    arrived: Vec<EpId>,
    messages: Vec<(EpId, u32, usize)>,
    gone: Vec<(EpId, Gone)>,
}

impl Sink for Told {
    fn arrived(&mut self, new: NewEp) {
        self.arrived.push(new.ep);
    }

    fn am(&mut self, ep: EpId, tag: u32, payload: &dyn Payload) {
        self.messages.push((ep, tag, payload.len()));
    }

    fn gone(&mut self, ep: EpId, why: Gone) {
        self.gone.push((ep, why));
    }
}

impl Side {
    fn open() -> Self {
        Self::with(&[])
    }

    fn with(settings: &[(&'static str, &'static str)]) -> Self {
        let params = params(settings);
        let device = Device::any();
        let iface = RcIface::open(&device, &params).unwrap();
        Self { iface, device, params, told: Told::default() }
    }

    fn address(&self) -> Address {
        Address::decode(&self.iface.address()).unwrap()
    }

    #[track_caller]
    fn until(&mut self, what: &str, is_so: impl Fn(&Told) -> bool) {
        let begin = Instant::now();
        while !is_so(&self.told) {
            assert!(begin.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
            if self.iface.progress(&mut self.told) == 0 {
                thread::yield_now();
            }
        }
    }

    /// For as long as what is on its way takes.
    fn settle(&mut self) {
        for _ in 0..50 {
            self.iface.progress(&mut self.told);
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Who calls an interface, and does as it likes from then on.
struct Raw {
    queue: Queue,
    link: Option<Arc<NetLink>>,
    posted: u32,
}

impl Raw {
    fn call(side: &Side, to: &Address, call: &Call) -> Result<(Arc<NetLink>, Reply), NetError> {
        let (service, deadline) = (&side.params.service, Deadline::after(PATIENCE));
        let Address { context_uuid, sockets, kind, instance, token, .. } = to;
        let answer = service.call_net_alone(
            context_uuid,
            sockets,
            &NetCall { kind: *kind, subject: instance, token, request: &call.encode() },
            &deadline,
        );
        answer.map(|(link, reply)| (link, Reply::decode(&reply).unwrap()))
    }

    /// Connects, and says nothing.
    fn silent(side: &Side, to: &Address) -> Self {
        let channel = Arc::new(Channel::new(&side.device.context).unwrap());
        let opening = Opening::new(&side.device, &channel).unwrap();
        let context_uuid = *side.params.exports.uuid();
        let call = Call { qp: opening.address(), context_uuid, life: 0, receives: MESSAGES };
        let (link, reply) = Self::call(side, to, &call).unwrap();
        Self { queue: opening.connect(&reply.qp).unwrap(), link: Some(link), posted: 0 }
    }

    fn greeted(side: &Side, to: &Address) -> Self {
        let mut raw = Self::silent(side, to);
        raw.send(&header(Kind::Greeting, 0));
        raw
    }

    /// What its device says of what it has asked for.
    #[track_caller]
    fn fails(&mut self, device: &Device) -> &'static str {
        let begin = Instant::now();
        loop {
            match self.queue.poll(device) {
                Some(Completed::Failed(words)) => return words,
                _ => assert!(begin.elapsed() < PATIENCE, "its device does not refuse"),
            }
            thread::yield_now();
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        assert_eq!(self.queue.send_inline(bytes, self.posted, true), Ok(()));
        self.posted += 1;
    }
}

fn header(kind: Kind, credits: u16) -> [u8; HEADER_LEN] {
    Header { kind, credits }.encode()
}

/// Good ends beside the bad ones, which live on.
struct Good {
    other: Side,
    ep: EpId,
}

impl Good {
    fn connect(side: &mut Side) -> Self {
        let mut other = Side::open();
        let address = side.iface.address();
        let ep = other.iface.connect(&address, &Deadline::after(PATIENCE)).unwrap().ep;
        side.until("the good one", |told| told.arrived.len() == 1);
        Self { other, ep }
    }

    #[track_caller]
    fn is_heard(&mut self, side: &mut Side) {
        let before = side.told.messages.len();
        self.other.iface.am(self.ep, 7, [&[], &[]], &Local::bytes(b"it lives on")).unwrap();
        side.until("the good one's message", |told| told.messages.len() == before + 1);
    }
}

/// Sends these after a greeting.
#[track_caller]
fn is_corrupt(what: &str, sends: &[Vec<u8>]) {
    makes_corrupt(what, |raw| sends.iter().for_each(|bytes| raw.send(bytes)));
}

/// Who has greeted does this: the endpoint is told as corrupt, and another one lives on.
#[track_caller]
fn makes_corrupt(what: &str, act: impl FnOnce(&mut Raw)) {
    let mut side = Side::open();
    let mut good = Good::connect(&mut side);
    let stranger = Side::open();
    let mut raw = Raw::greeted(&stranger, &side.address());
    act(&mut raw);
    side.until(what, |told| !told.gone.is_empty());
    let bad = side.told.arrived[1];
    assert_eq!(side.told.gone, [(bad, Gone::Corrupt)], "{what}");
    side.iface.disconnect(bad);
    good.is_heard(&mut side);
}

#[test]
fn garbage_is_corrupt() {
    is_corrupt("no kind", &[vec![9; HEADER_LEN]]);
    is_corrupt("less than a header", &[vec![1, 0, 0]]);
    is_corrupt("nothing at all", &[Vec::new()]);
    is_corrupt("an end with bytes", &[[&header(Kind::End, 0)[..], b"x"].concat()]);
    is_corrupt("a second greeting", &[header(Kind::Greeting, 0).to_vec()]);
}

#[test]
fn credits_that_were_not_spent_are_corrupt() {
    is_corrupt("credits for nothing", &[header(Kind::Credits, MESSAGES).to_vec()]);
    is_corrupt("credits that are none", &[header(Kind::Credits, 0).to_vec()]);
    is_corrupt("a message with credits", &[header(Kind::Message(1), 1).to_vec()]);
}

#[test]
fn what_no_receive_has_room_for_is_corrupt() {
    makes_corrupt("too much at once", |raw| assert_eq!(raw.queue.send_too_much(raw.posted), Ok(())));
}

/// More than there are receives: the sender's device gives up, and nobody else is held up by it.
#[test]
fn more_than_there_are_receives_ends_its_sender() {
    let mut side = Side::open();
    let mut good = Good::connect(&mut side);
    let stranger = Side::open();
    let mut raw = Raw::greeted(&stranger, &side.address());
    for _ in 0..130 {
        raw.send(&header(Kind::Message(1), 0));
    }
    let begin = Instant::now();
    // Greeting and messages: three more than the receives with which the next ones are refused for a while.
    let mut failed = false;
    while !failed {
        assert!(begin.elapsed() < PATIENCE, "the sender's device does not give up");
        match raw.queue.poll(&stranger.device) {
            Some(Completed::Failed(words)) => {
                assert!(words.contains("RNR") || words.contains("Flushed"), "{words}");
                failed = true;
            }
            Some(_) if raw.posted < 200 => raw.send(&header(Kind::Message(1), 0)),
            _ => thread::yield_now(),
        }
    }
    drop(raw);
    side.until("its end", |told| !told.gone.is_empty());
    assert_eq!(side.told.gone.len(), 1);
    assert!(side.told.messages.len() <= usize::from(RECEIVES), "what has come before");
    good.is_heard(&mut side);
}

/// Memory of the very domain that endpoints are in, registered for peers, and their keys: an endpoint's queue pair lets nobody there.
#[test]
fn what_is_no_message_reaches_no_memory() {
    let mut side = Side::open();
    let mut good = Good::connect(&mut side);
    let (stranger, device) = (Side::open(), Arc::clone(&side.device));
    let mem = LocalMem::anonymous(4096, Rights::READ_WRITE).unwrap();
    mem.write(0, &[7; 4096]).unwrap();
    let address = usize::try_from(mem.address()).unwrap();
    let for_peers =
        Access::IBV_ACCESS_LOCAL_WRITE | Access::IBV_ACCESS_REMOTE_WRITE | Access::IBV_ACCESS_REMOTE_READ;
    let mr = Mr::remote(&device.pd, &mem, for_peers).unwrap();
    let local = device.register(address, 4096, true).unwrap();
    for opcode in [Opcode::IBV_WR_RDMA_WRITE, Opcode::IBV_WR_RDMA_READ] {
        for key in [mr.rkey(), local.lkey(), 0, u32::MAX] {
            let mut raw = Raw::greeted(&stranger, &side.address());
            let before = side.told.arrived.len();
            side.until("the greeting", |told| told.arrived.len() == before + 1);
            let bad = side.told.arrived[before];
            assert_eq!(raw.queue.reach(opcode, (mem.address(), key), raw.posted), Ok(()));
            let words = raw.fails(&stranger.device);
            assert!(words.contains("remote"), "{opcode:?} with {key:#x}: {words}");
            drop(raw);
            side.until("its end", |told| !told.gone.is_empty());
            let gone = side.told.gone.pop();
            assert!(matches!(gone, Some((ep, Gone::Failed(_) | Gone::Closed)) if ep == bad), "{gone:?}");
            side.iface.disconnect(bad);
            good.is_heard(&mut side);
        }
    }
    let mut bytes = [0; 4096];
    mem.read(0, &mut bytes).unwrap();
    assert!(bytes == [7; 4096], "it was written");
}

/// It lies behind the completions of all that was sent to it.
#[test]
fn the_last_message_of_a_process_is_told_before_its_end() {
    let mut side = Side::open();
    let stranger = Side::open();
    let mut raw = Raw::greeted(&stranger, &side.address());
    side.until("the greeting", |told| told.arrived.len() == 1);
    let ep = side.told.arrived[0];
    let (boot, tried) = (this_boot().unwrap(), Err(Unproven::SwitchedOff));
    let md = VerbsMd::of_device(boot, Arc::clone(&side.device), &tried, &side.params).unwrap();
    let md: Arc<dyn Md> = Arc::new(md);
    let registrations = Registrations::new([&md], Options::default());
    let needs = registrations.of(&md).unwrap();
    let held = Arc::new(registrations.hold(needs, Arc::new(vec![7_u8; 4096])).unwrap());
    for _ in 0..100 {
        side.iface.am_held(ep, 1, &[], &held, 0..4096).unwrap();
    }
    assert_eq!(Arc::strong_count(&held), 101, "each tells of its completion");
    let mut received = 0;
    let begin = Instant::now();
    while received < 100 {
        assert!(begin.elapsed() < PATIENCE, "{received} have come");
        received += usize::from(matches!(raw.queue.poll(&stranger.device), Some(Completed::Receive(_))));
    }
    raw.send(&header(Kind::Message(9), 0));
    let is_sent = |raw: &Raw| matches!(raw.queue.poll(&stranger.device), Some(Completed::Send(1)));
    while !is_sent(&raw) {
        assert!(begin.elapsed() < PATIENCE, "it is not acknowledged");
    }
    drop(raw);
    thread::sleep(Duration::from_millis(500)); // its connection has ended by then
    side.until("its end", |told| !told.gone.is_empty());
    assert_eq!(
        (&side.told.messages[..], &side.told.gone[..]),
        (&[(ep, 9, 0)][..], &[(ep, Gone::Closed)][..])
    );
    side.iface.disconnect(ep);
    assert_eq!(Arc::strong_count(&held), 1);
}

/// Its queue pair is gone and its process is not: the device says it, once it has tried for some seconds.
#[test]
fn a_way_that_fails_is_told_in_the_device_s_words() {
    let mut side = Side::open();
    let mut good = Good::connect(&mut side);
    let stranger = Side::open();
    let Raw { queue, link, .. } = Raw::greeted(&stranger, &side.address());
    side.until("the greeting", |told| told.arrived.len() == 2);
    let bad = side.told.arrived[1];
    drop(queue);
    side.iface.am(bad, 7, [&[], &[]], &Local::bytes(b"to nobody")).unwrap();
    good.is_heard(&mut side);
    side.until("the end of the way", |told| !told.gone.is_empty());
    let [(ep, Gone::Failed(words))] = side.told.gone[..] else { panic!("{:?}", side.told.gone) };
    assert!(ep == bad && words.contains("retry"), "{words}");
    let more = side.iface.am(bad, 7, [&[], &[]], &Local::bytes(b"more"));
    assert!(matches!(more, Err(SendError::Gone)), "{more:?}");
    side.iface.disconnect(bad);
    good.is_heard(&mut side);
    assert_eq!(side.told.gone.len(), 1, "once");
    assert!(link.is_some_and(|link| !link.has_ended()), "its process was there all the time");
}

#[test]
fn who_does_not_greet_is_not_told_of() {
    let mut side = Side::open();
    let stranger = Side::open();
    let mut rude = Raw::silent(&stranger, &side.address());
    rude.send(&header(Kind::Message(1), 0));
    let mut shy = Raw::silent(&stranger, &side.address());
    side.settle();
    shy.link = None;
    side.settle();
    assert!(side.told.arrived.is_empty() && side.told.gone.is_empty() && side.told.messages.is_empty());
    // And leaves nothing: it may sleep.
    let begin = Instant::now();
    while !side.iface.arm() {
        assert!(begin.elapsed() < PATIENCE, "it finds no sleep");
        side.iface.progress(&mut side.told);
    }
}

#[test]
fn a_wrong_token_is_denied_and_harms_no_endpoint() {
    let mut side = Side::open();
    let mut good = Good::connect(&mut side);
    let address = side.address();
    let wrong = Address { token: Token::from_bytes([7; 16]), ..address.clone() }.encode();
    for _ in 0..2 * crate::service::net::MAX_FAILURES {
        let error = good.other.iface.connect(&wrong, &Deadline::after(PATIENCE)).unwrap_err();
        assert_eq!(error.status(), Status::AccessDenied, "{error}");
    }
    let old = Address { instance: [7; 8], ..address }.encode();
    let error = good.other.iface.connect(&old, &Deadline::after(PATIENCE)).unwrap_err();
    // That it was there once cannot be proven.
    assert_eq!(error.status(), Status::Unreachable, "{error}");
    good.is_heard(&mut side);
    assert!(side.told.gone.is_empty());
}

#[test]
fn nobody_there_is_told_in_time() {
    let mut side = Side::open();
    // Of a network for documentation: nobody is there (RFC 5737).
    let sockets = vec!["192.0.2.1:40000".parse().unwrap(), "127.0.0.1:1".parse().unwrap()];
    let address = Address { sockets, ..side.address() }.encode();
    let begin = Instant::now();
    let error = side.iface.connect(&address, &Deadline::after(Duration::from_millis(500))).unwrap_err();
    assert_eq!(error.status(), Status::Unreachable, "{error}");
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
}

#[test]
fn a_life_that_is_none_is_stale() {
    let (side, stranger) = (Side::open(), Side::open());
    let channel = Arc::new(Channel::new(&stranger.device.context).unwrap());
    let opening = Opening::new(&stranger.device, &channel).unwrap();
    for (life, context_uuid) in [(u64::MAX, *stranger.params.exports.uuid()), (1, [7; 16])] {
        let call = Call { qp: opening.address(), context_uuid, life, receives: MESSAGES };
        let answer = Raw::call(&stranger, &side.address(), &call);
        assert!(matches!(answer, Err(NetError::Refused { status: Status::Stale, .. })), "{answer:?}");
    }
}

#[test]
fn so_many_come_and_no_more() {
    let side = Side::with(&[(MAX_CONNECTIONS.name(), "4")]);
    let (address, mut other) = (side.iface.address(), Side::open());
    let connect = |other: &mut Side| other.iface.connect(&address, &Deadline::after(PATIENCE));
    let ep = connect(&mut other).unwrap().ep;
    connect(&mut other).unwrap();
    assert_eq!(connect(&mut other).unwrap_err().status(), Status::ExceedsLimit, "half of them of one peer");
    let mut third = Side::open();
    connect(&mut third).unwrap();
    connect(&mut third).unwrap();
    assert_eq!(connect(&mut Side::open()).unwrap_err().status(), Status::ExceedsLimit);
    other.iface.disconnect(ep);
}
