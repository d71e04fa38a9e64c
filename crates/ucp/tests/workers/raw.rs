//! A peer that speaks the transport, and says what no worker says.

use std::cell::RefCell;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ucp::wire::address::{self, Entry};
use ucp::wire::am::{Kind, Pair, Rts};
use ucp::{AmMessage, EpError, Gone, Local, Request, Status, Worker};
use ucs::time::Deadline;
use uct::api::{Component, ComponentId, EpId, Iface, MdParams, NewEp, Payload, SendError, Sink};
use uct::export::ExportTable;
use uct::service::Service;
use uct::transports::shm::ShmComponent;

use crate::orders::Numbers;
use crate::{BETWEEN, PATIENCE, Seen, context};

struct Raw {
    iface: Box<dyn Iface>,
    log: Log,
}

#[derive(Default)]
struct Log {
    eps: Vec<EpId>,
    messages: Vec<(Kind, u16, Vec<u8>)>,
    gone: usize,
}

impl Sink for Log {
    fn arrived(&mut self, NewEp { ep, .. }: NewEp) {
        self.eps.push(ep);
    }

    fn am(&mut self, _: EpId, tag: u32, payload: &dyn Payload) {
        let (kind, id) = Kind::of_tag(tag).unwrap();
        let mut bytes = vec![0; payload.len()];
        payload.read(0, &mut bytes).unwrap();
        self.messages.push((kind, id, bytes));
    }

    fn gone(&mut self, _: EpId, _: Gone) {
        self.gone += 1;
    }
}

impl Raw {
    fn new() -> Self {
        let exports = Arc::new(ExportTable::new(Duration::from_secs(1)).unwrap());
        let service = Arc::new(Service::new(Arc::clone(&exports), None));
        let params = MdParams { exports, service, config: context(BETWEEN).config().clone() };
        let md = ShmComponent.open_md(&ShmComponent.query_mds()[0], &params).unwrap();
        Self { iface: md.open_iface().unwrap().unwrap(), log: Log::default() }
    }

    fn address(&self) -> Vec<u8> {
        address::encode(&[Entry { component: ComponentId::SHM.0, bytes: self.iface.address() }]).unwrap()
    }

    fn connect(&mut self, worker: &Worker) -> EpId {
        let entries = address::decode(worker.address().unwrap().as_bytes()).unwrap();
        self.iface.connect(&entries[0].bytes, &Deadline::after(PATIENCE)).unwrap().ep
    }

    fn send(&mut self, ep: EpId, tag: u32, bytes: &[u8]) -> Result<(), SendError> {
        self.iface.am(ep, tag, [bytes, &[]], &Local::bytes(&[]))
    }

    /// The first that has come.
    fn arrival(&mut self) -> EpId {
        let end = Instant::now() + PATIENCE;
        while self.log.eps.is_empty() {
            assert!(Instant::now() < end, "nobody comes");
            self.progress();
        }
        self.log.eps[0]
    }

    fn progress(&mut self) {
        self.iface.progress(&mut self.log);
    }
}

/// A worker that takes all that is announced, up to a megabyte.
fn taker() -> (Worker, Seen<Request<Vec<u8>>>) {
    let worker = context(BETWEEN).worker().unwrap();
    let received: Seen<Request<Vec<u8>>> = Rc::default();
    for id in 0..2 {
        let into = Rc::clone(&received);
        let handler = move |message: AmMessage| {
            if message.len() <= 1 << 20 {
                let len = usize::try_from(message.len()).unwrap();
                into.borrow_mut().push(message.recv_data(vec![0; len]));
            }
        };
        worker.am_handler(id, handler).unwrap();
    }
    (worker, received)
}

/// Messages of all kinds, with bytes of all lengths and numbers that are sometimes right: the worker goes on, all operations end, and
/// other peers notice nothing.
#[test]
fn whatever_a_peer_says_all_operations_end_and_others_go_on() {
    let (worker, received) = taker();
    let mut good = Raw::new();
    let good_ep = good.connect(&worker);
    let data = [1_u8; 100];
    // The good peer has announced, and was asked for it.
    let rts = Rts { request: 1, header_len: 0, length: 100, address: None };
    good.send(good_ep, Kind::Rts.tag(0), rts.encode().as_bytes()).unwrap();
    while good.log.messages.is_empty() {
        worker.progress();
        good.progress();
    }
    let (kind, _, cts) = good.log.messages.pop().unwrap();
    let asked = Pair::decode(kind, 0, cts.try_into().unwrap(), Pair::LEN).unwrap();
    assert_eq!((kind, asked.0), (Kind::Cts, 1));
    let theirs = received.borrow_mut().pop().unwrap();

    for seed in 1..300_u64 {
        let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15 ^ seed << 20);
        let mut raw = Raw::new();
        let ep = worker.connect(&raw.address()).unwrap();
        let errors: Seen<EpError> = Rc::default();
        let into = Rc::clone(&errors);
        ep.on_error(move |error| into.borrow_mut().push(error));
        let mut sent: Vec<_> = (0..4).map(|_| ep.am_send(0, b"h", vec![1; 70_000])).collect();
        let flush = ep.flush();
        let its = raw.arrival();
        for _ in 0..40 {
            let kind = Kind::of_tag((numbers.next(8) as u32) << 16).unwrap().0;
            let (a, b) = (numbers.next(6) as u32, numbers.next(3) as u32);
            let mut bytes = match (kind, numbers.next(8)) {
                (_, 0) => vec![numbers.next(256) as u8; numbers.next(40) as usize],
                (Kind::Rts | Kind::Offer, length) => {
                    let length = [0, 5, 1 << 63, u64::MAX][length as usize % 4];
                    let address = NonZeroU64::new(1 << 46).filter(|_| kind == Kind::Offer);
                    Rts { request: a, header_len: 0, length, address }.encode().as_bytes().to_vec()
                }
                _ => Pair(a, b).encode().as_bytes().to_vec(),
            };
            if kind == Kind::Data && numbers.next(2) == 0 {
                // Also with a number of the other peer's.
                bytes = Pair(asked.1, 0).encode().as_bytes().to_vec();
                bytes.extend([9; 5]);
            }
            let tag = if numbers.next(50) == 0 { 0xff_ffff } else { kind.tag(numbers.next(3) as u16) };
            if raw.send(its, tag, &bytes).is_err() {
                break;
            }
            worker.progress();
            raw.progress();
        }
        if seed % 2 == 0 {
            drop(raw);
        } else {
            drop(ep.clone().close(ucp::CloseMode::Force));
        }
        let end = Instant::now() + PATIENCE;
        while !sent.iter().all(Request::is_ended) || !received.borrow().iter().all(Request::is_ended) {
            assert!(Instant::now() < end, "{seed}");
            worker.wait_any(Duration::from_millis(1)).unwrap();
        }
        assert!(flush.is_ended());
        for request in sent.drain(..) {
            let operand = request.into_result().unwrap().unwrap_or_else(|error| error.operand);
            assert_eq!(operand, vec![1; 70_000]);
        }
        received.borrow_mut().clear();
        assert!(errors.borrow().len() <= 1);
    }

    assert!(!theirs.is_ended());
    let bytes = [Pair(asked.1, 0).encode().as_bytes(), &data].concat();
    good.send(good_ep, Kind::Data.tag(0), &bytes).unwrap();
    while !theirs.is_ended() {
        worker.wait_any(PATIENCE).unwrap();
    }
    assert_eq!(theirs.into_result().unwrap().unwrap(), data);
    assert_eq!(good.log.gone, 0);
}

#[test]
fn nothing_comes_behind_bytes_that_are_no_message() {
    let worker = context(BETWEEN).worker().unwrap();
    let seen: Rc<RefCell<Vec<u8>>> = Rc::default();
    let errors: Seen<EpError> = Rc::default();
    let into = Rc::clone(&seen);
    let told = Rc::clone(&errors);
    worker
        .am_handler(0, move |message: AmMessage| {
            into.borrow_mut().push(message.data()[0]);
            let told = Rc::clone(&told);
            message.reply().on_error(move |error| told.borrow_mut().push(error));
        })
        .unwrap();
    let mut raw = Raw::new();
    let ep = worker.connect(&raw.address()).unwrap();
    let its = raw.arrival();
    raw.send(its, Kind::Eager.tag(0), &[1]).unwrap();
    raw.send(its, Kind::Cts.tag(0), Pair(7, 7).encode().as_bytes()).unwrap();
    for number in 2..10 {
        raw.send(its, Kind::Eager.tag(0), &[number]).unwrap();
    }
    for _ in 0..10 {
        worker.progress();
        let _ = raw.send(its, Kind::Eager.tag(0), &[100]);
    }
    assert_eq!(*errors.borrow(), [EpError::Peer(Gone::Corrupt)]);
    assert_eq!(*seen.borrow(), [1]);
    assert_eq!(ep.am_send(0, b"", vec![1]).into_result().unwrap().unwrap_err().status(), Status::IoError);
    let end = Instant::now() + PATIENCE;
    while raw.log.gone == 0 {
        assert!(Instant::now() < end, "the connection stays");
        raw.progress();
    }
}
