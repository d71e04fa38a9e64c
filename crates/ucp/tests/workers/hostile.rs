//! Peers that take more than they give, and operands that lie.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering}; // std's atomics: no model
use std::time::Instant;

use ucp::{AmFlags, AmMessage, Destination, EpError, Gone, Local, LocalMut, Request, Source, Status};

use crate::{BETWEEN, BY_DEVICE, PATIENCE, Pair, Seen, TRANSPORTS};

/// An operand that has become shorter, or longer, since it was given.
struct Liar(Vec<u8>, Arc<AtomicUsize>);

impl Source for Liar {
    fn local(&self) -> Local<'_> {
        Local::bytes(&self.0[..self.1.load(Ordering::Relaxed)])
    }
}

impl Destination for Liar {
    fn local_mut(&mut self) -> LocalMut<'_> {
        LocalMut::bytes(&mut self.0[..self.1.load(Ordering::Relaxed)])
    }
}

fn liar() -> (Liar, Arc<AtomicUsize>) {
    let len = Arc::new(AtomicUsize::new(100_000));
    (Liar(vec![1; 200_000], Arc::clone(&len)), len)
}

#[test]
fn operands_that_change_their_length_are_not_believed() {
    for tls in TRANSPORTS {
        for (sends, len) in [(true, 1000), (true, 200_000), (false, 1000), (false, 200_000)] {
            let pair = Pair::new(tls);
            let kept: Seen<AmMessage> = Rc::default();
            let into = Rc::clone(&kept);
            pair.b().am_handler(1, move |message| into.borrow_mut().push(message)).unwrap();
            let (source, source_len) = liar();
            let (destination, destination_len) = liar();
            let sent = pair.ep.am_send(1, b"", source);
            pair.until("the message", || !kept.borrow().is_empty());
            let received = kept.borrow_mut().pop().unwrap().recv_data(destination);
            if sends { source_len } else { destination_len }.store(len, Ordering::Relaxed);
            pair.until("both", || sent.is_ended() && received.is_ended());
            let (sent, received) = (sent.into_result().unwrap(), received.into_result().unwrap());
            let is_short = len == 1000;
            assert_eq!(sent.is_err(), is_short && sends, "{tls}");
            assert_eq!(received.is_err(), is_short, "{tls}");
            assert_eq!(pair.ep.check(), Ok(()));
        }
    }
}

#[test]
fn a_flood_of_messages_keeps_no_announced_data_and_no_flush_waiting() {
    let pair = Pair::new(BETWEEN);
    let received: Seen<Request<Vec<u8>>> = Rc::default();
    let into = Rc::clone(&received);
    pair.b()
        .am_handler(1, move |message: AmMessage| {
            if message.is_rendezvous() {
                into.borrow_mut().push(message.recv_data(vec![0; 1 << 20]));
            }
        })
        .unwrap();
    let sent = pair.ep.am_send(1, b"", vec![7; 1 << 20]);
    let flush = pair.ep.flush();
    let mut flood: Vec<Request<Vec<u8>>> = Vec::new();
    let eager = if BY_DEVICE { 2000 } else { 8000 };
    let begin = Instant::now();
    for round in 0.. {
        // The ring is always full, and more waits.
        while flood.iter().filter(|request| !request.is_ended()).count() < 50 {
            flood.push(pair.ep.am_send_with(AmFlags::EAGER, 1, b"", vec![1; eager]));
        }
        flood.retain(|request| !request.is_ended());
        pair.progress();
        if sent.is_ended() && flush.is_ended() {
            break;
        }
        let is_long = round > 20_000 && (!BY_DEVICE || begin.elapsed() > PATIENCE);
        assert!(!is_long, "starved: {} {}", sent.is_ended(), flush.is_ended());
    }
    pair.until("the data", || received.borrow().iter().all(Request::is_ended));
    let data = received.borrow_mut().pop().unwrap().into_result().unwrap().unwrap();
    assert!(data.iter().all(|byte| *byte == 7));
}

#[test]
fn a_peer_that_announces_for_ever_and_takes_no_answer_is_given_up() {
    let pair = Pair::new(BETWEEN);
    let errors: Seen<EpError> = Rc::default();
    let into = Rc::clone(&errors);
    pair.b()
        .am_handler(1, move |message| {
            let into = Rc::clone(&into);
            message.reply().on_error(move |error| into.borrow_mut().push(error));
        })
        .unwrap();
    let mut requests = Vec::new();
    let _detached = pair.ep.am_send(1, b"", Vec::<u8>::new());
    while errors.borrow().is_empty() {
        assert!(requests.len() < 1 << 20, "it keeps any number of answers");
        for _ in 0..500 {
            requests.push(pair.ep.am_send_with(AmFlags::RNDV, 2, b"", Vec::<u8>::new()));
        }
        while pair.b().progress() > 0 {}
    }
    assert_eq!(*errors.borrow(), [EpError::Peer(Gone::Corrupt)]);
    pair.until("all ends", || requests.iter().all(Request::is_ended));
    let mut ends = [0, 0];
    for request in requests {
        match request.into_result().unwrap().unwrap_err().status() {
            Status::Rejected => ends[0] += 1,
            status => {
                assert_eq!(status, Status::ConnectionReset);
                ends[1] += 1;
            }
        }
    }
    assert!(ends.iter().all(|count| *count > 1000), "{ends:?}");
    assert_eq!(pair.ep.check(), Err(EpError::Peer(Gone::Closed)));
}

#[test]
fn thousands_of_peers_come_and_go() {
    // An emulated device takes a tenth of a second for each.
    let (some, all) = if BY_DEVICE { (10, 50) } else { (500, 10_000) };
    let pair = Pair::new(BETWEEN);
    let kept: Rc<RefCell<Vec<AmMessage>>> = Rc::default();
    let seen = Rc::new(Cell::new(0));
    let (into, count) = (Rc::clone(&kept), Rc::clone(&seen));
    pair.b()
        .am_handler(1, move |message| {
            count.set(count.get() + 1);
            into.borrow_mut().push(message);
            into.borrow_mut().truncate(3); // some outlive their endpoints
        })
        .unwrap();
    let address = pair.b().address().unwrap();
    let cycle = || {
        let ep = pair.a.connect(address.as_bytes()).unwrap();
        assert!(ep.am_send(1, b"", vec![1; 10]).is_ended());
        drop(ep);
        pair.progress();
    };
    (0..some).for_each(|_| cycle());
    pair.until("all have gone", || seen.get() == some);
    let census = || (testkit::open_fds(), testkit::mappings());
    let settle = || {
        (0..50).for_each(|_| {
            pair.progress();
            std::thread::sleep(std::time::Duration::from_millis(1));
        })
    };
    settle();
    let before = census();
    (some..all).for_each(|_| cycle());
    settle();
    let after = census();
    assert_eq!(seen.get(), all);
    // Other tests run meanwhile, but in the guest.
    let few = if BY_DEVICE { 10 } else { 500 };
    assert!(after.0 < before.0 + few && after.1 < before.1 + few, "{before:?} {after:?}");
}
