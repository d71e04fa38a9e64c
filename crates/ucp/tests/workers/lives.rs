//! Beginnings and ends.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use ucp::{CloseMode, EpError, Gone, Status};

use crate::{BETWEEN, BY_DEVICE, PATIENCE, Pair, REST, Seen, TRANSPORTS, context};

#[test]
fn a_peer_that_goes_is_told_once_after_its_last_message() {
    for tls in TRANSPORTS {
        let pair = Pair::new(tls);
        let seen: Seen<u8> = Rc::default();
        let errors: Seen<EpError> = Rc::default();
        let (into, on_error) = (Rc::clone(&seen), Rc::clone(&errors));
        pair.b()
            .am_handler(1, move |message| {
                if message.data()[0] == 0 {
                    let on_error = Rc::clone(&on_error);
                    message.reply().on_error(move |error| on_error.borrow_mut().push(error));
                }
                into.borrow_mut().push(message.data()[0]);
            })
            .unwrap();
        for number in 0..200 {
            let _detached = pair.ep.am_send(1, b"", vec![number; 1000]);
        }
        let Pair { ep, a, .. } = &pair;
        let closed = ep.clone().close(CloseMode::Flush);
        pair.until("the end", || closed.is_ended() && !errors.borrow().is_empty());
        assert!(seen.borrow().iter().copied().eq(0..200), "{tls}");
        assert_eq!(*errors.borrow(), [EpError::Peer(Gone::Closed)]);
        let error = ep.am_send(1, b"", vec![1]).into_result().unwrap().unwrap_err();
        assert_eq!(error.status(), Status::Canceled);
        for _ in 0..100 {
            pair.progress();
        }
        assert_eq!(errors.borrow().len(), 1);
        drop(ep.clone());
        assert_eq!(a.progress(), 0);
    }
}

#[test]
fn a_worker_s_flush_waits_for_all_its_endpoints() {
    for tls in TRANSPORTS {
        let pair = Pair::new(tls);
        pair.b().am_handler(1, |_| {}).unwrap();
        assert!(pair.a.flush().is_ended(), "nothing was posted");
        let other = pair.a.connect(pair.b().address().unwrap().as_bytes()).unwrap();
        let sent: Vec<_> = [&pair.ep, &other].map(|ep| ep.am_send(1, b"", vec![1; 1 << 20])).into();
        let flush = pair.a.flush();
        assert!(!flush.is_ended());
        pair.until("the flush", || flush.is_ended());
        assert!(sent.iter().all(ucp::Request::is_ended));
        flush.into_result().unwrap().unwrap();
        // One of them fails meanwhile: that is told, after the others have ended.
        let sent = [&pair.ep, &other].map(|ep| ep.am_send(1, b"", vec![1; 1 << 20]));
        let flush = pair.a.flush();
        assert!(other.close(CloseMode::Force).is_ended());
        pair.until("the flush", || flush.is_ended());
        assert_eq!(flush.into_result().unwrap().unwrap_err().status(), Status::Canceled);
        assert!(sent.iter().all(ucp::Request::is_ended));
        assert!(pair.a.flush().is_ended());
    }
}

#[test]
fn closing_by_force_fails_what_has_not_ended() {
    for tls in TRANSPORTS {
        let pair = Pair::new(tls);
        let big = pair.ep.am_send(1, b"", vec![1; 1 << 20]);
        let flush = pair.ep.flush();
        assert!(!big.is_ended() && !flush.is_ended());
        assert!(pair.ep.clone().close(CloseMode::Force).is_ended());
        pair.until("both", || big.is_ended() && flush.is_ended());
        let error = big.into_result().unwrap().unwrap_err();
        assert_eq!((error.status(), error.operand.len()), (Status::Canceled, 1 << 20));
        assert_eq!(flush.into_result().unwrap().unwrap_err().status(), Status::Canceled);
    }
}

#[test]
fn a_worker_dropped_with_operations_on_their_way() {
    for tls in TRANSPORTS {
        let mut pair = Pair::new(tls);
        // A handler that holds an endpoint, which holds the worker.
        let own = pair.ep.clone();
        pair.a.am_handler(3, move |_| drop(own.clone())).unwrap();
        let big = pair.ep.am_send(1, b"", vec![1; 1 << 20]);
        if tls == "self" {
            let Pair { ep, a, .. } = pair;
            drop(a);
            assert_eq!(big.into_result().unwrap().unwrap_err().status(), Status::Canceled);
            assert_eq!(ep.check(), Err(EpError::Closed));
        } else {
            pair.lose_b();
            let end = Instant::now() + PATIENCE;
            while !big.is_ended() && Instant::now() < end {
                pair.a.wait_any(Duration::from_millis(10)).unwrap();
            }
            assert_eq!(big.into_result().unwrap().unwrap_err().status(), Status::ConnectionReset);
            assert_eq!(pair.ep.check(), Err(EpError::Peer(Gone::Closed)));
            let error = pair.a.connect(&[]).unwrap_err();
            assert_eq!(error.status(), Status::InvalidAddr);
        }
    }
}

/// An endpoint whose peer is gone tells nothing any more: whoever waits sleeps, though it is not closed yet.
#[test]
fn a_failed_endpoint_that_is_kept_does_not_wake() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut pair = Pair::new(BETWEEN);
    pair.lose_b();
    let end = Instant::now() + PATIENCE;
    while pair.ep.check().is_ok() && Instant::now() < end {
        pair.a.wait_any(Duration::from_millis(10)).unwrap();
    }
    assert_eq!(pair.ep.check(), Err(EpError::Peer(Gone::Closed)));
    // It may be woken once by the end itself, which it has seen already.
    for _ in 0..2 {
        while pair.a.progress() > 0 {}
        assert!(pair.a.arm());
    }
    assert_eq!(poll(&mut [PollFd::new(&pair.a, PollFlags::IN)], Some(&Timespec::default())).unwrap(), 0);
}

#[test]
fn the_address_of_a_worker_that_is_gone_is_stale_and_a_changed_one_is_told() {
    let worker = context(BETWEEN).worker().unwrap();
    let other = context(BETWEEN).worker().unwrap();
    let address = other.address().unwrap();
    assert_eq!(format!("{address:?}"), format!("WorkerAddress(<{} secret bytes>)", address.as_bytes().len()));
    let mut changed = address.as_bytes().to_vec();
    changed[40] ^= 1;
    let error = worker.connect(&changed).unwrap_err();
    assert!(error.to_string().contains("checksum"), "{error}");
    drop(other);
    let error = worker.connect(address.as_bytes()).unwrap_err();
    // Nobody proves to another machine that it is gone.
    assert_eq!(error.status(), if BY_DEVICE { Status::Unreachable } else { Status::Stale }, "{error}");
}

#[test]
fn sleepers_are_woken_by_messages_ends_signals_and_wakers() {
    let pair = Pair::new(BETWEEN);
    let address = pair.b().address().unwrap();
    let thread = std::thread::spawn(move || {
        let worker = context(BETWEEN).worker().unwrap();
        let told = Rc::new(RefCell::new(0));
        let count = Rc::clone(&told);
        worker.am_handler(2, move |_| *count.borrow_mut() += 1).unwrap();
        let ep = worker.connect(address.as_bytes()).unwrap();
        worker.wait(ep.am_send(1, b"", vec![1]), PATIENCE).unwrap();
        let end = Instant::now() + PATIENCE;
        while *told.borrow() < 20 && Instant::now() < end {
            worker.wait_any(PATIENCE).unwrap();
        }
        assert_eq!(*told.borrow(), 20);
    });
    let peer = Rc::new(RefCell::new(None));
    let gone = Rc::new(Cell::new(false));
    let (into, flag) = (Rc::clone(&peer), Rc::clone(&gone));
    pair.b()
        .am_handler(1, move |message| {
            let flag = Rc::clone(&flag);
            message.reply().on_error(move |_| flag.set(true));
            *into.borrow_mut() = Some(message.reply());
        })
        .unwrap();
    while peer.borrow().is_none() {
        assert!(pair.b().wait_any(PATIENCE).unwrap());
    }
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(2)); // the other one sleeps by now
        let ep = peer.borrow().clone().unwrap();
        pair.b().wait(ep.am_send(2, b"", vec![2]), PATIENCE).unwrap();
    }
    while !gone.get() {
        assert!(pair.b().wait_any(PATIENCE).unwrap());
    }
    thread.join().unwrap();

    let signaler = pair.a.signaler();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(5));
        signaler.signal();
    });
    assert!(pair.a.wait_any(PATIENCE).unwrap());
    thread.join().unwrap();
    assert!(!pair.a.wait_any(Duration::from_millis(5)).unwrap());

    // A future that another thread wakes.
    let (sender, receiver) = std::sync::mpsc::channel::<std::task::Waker>();
    let thread = std::thread::spawn(move || {
        let waker = receiver.recv().unwrap();
        std::thread::sleep(Duration::from_millis(5));
        waker.wake();
    });
    let mut polled = 0;
    let future = std::future::poll_fn(|cx| {
        polled += 1;
        if polled == 1 {
            sender.send(cx.waker().clone()).unwrap();
            return std::task::Poll::Pending;
        }
        std::task::Poll::Ready(polled)
    });
    assert_eq!(pair.a.block_on(future).unwrap(), 2);
    thread.join().unwrap();
}

#[test]
fn a_sender_sleeps_until_there_is_room() {
    let pair = Pair::new(BETWEEN);
    pair.b().am_handler(1, |_| {}).unwrap();
    let mut requests = Vec::new();
    while requests.iter().all(ucp::Request::is_ended) {
        requests.push(pair.ep.am_send(1, b"", vec![1; 4096]));
    }
    // Nothing happens on either side, but what a device does: nobody spins, nobody is woken.
    let begin = Instant::now();
    while BY_DEVICE && begin.elapsed() < PATIENCE && pair.a.wait_any(REST).unwrap() {}
    assert!(!pair.a.wait_any(REST).unwrap());
    assert!(pair.a.arm());
    let begin = Instant::now();
    while !requests.iter().all(ucp::Request::is_ended) {
        assert!(begin.elapsed() < PATIENCE, "it was not woken");
        pair.b().progress();
        while BY_DEVICE && pair.b().wait_any(REST).unwrap() {} // what is still on its way to it
        pair.a.wait_any(PATIENCE).unwrap();
    }
}

#[test]
fn armed_descriptors_tell() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    for tls in TRANSPORTS {
        let pair = Pair::new(tls);
        let seen = Rc::new(Cell::new(0));
        let count = Rc::clone(&seen);
        pair.b().am_handler(1, move |_| count.set(count.get() + 1)).unwrap();
        let _detached = pair.ep.am_send(1, b"", vec![0]);
        pair.until("the first message", || seen.get() == 1);
        let b = pair.b();
        let readable = |within: Duration| {
            let within = Timespec::try_from(within).unwrap();
            poll(&mut [PollFd::new(b, PollFlags::IN)], Some(&within)).unwrap() == 1
        };
        let on_its_way = if BY_DEVICE { PATIENCE } else { Duration::ZERO };
        for _ in 0..3 {
            pair.come_to_rest();
            assert!(b.arm());
            assert!(!readable(Duration::ZERO));
            let _detached = pair.ep.am_send(1, b"", vec![1]);
            assert!(tls == "self" || readable(on_its_way));
            assert!(!b.arm(), "{tls}: there is a message");
            assert!(b.progress() > 0);
            assert!(BY_DEVICE || !readable(Duration::ZERO));
        }
    }
}
