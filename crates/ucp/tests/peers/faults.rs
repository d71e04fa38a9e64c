//! A table: what a peer is in the middle of, by what happens to it.

use std::time::{Duration, Instant};

use ucp::{EpError, Gone, Request, Status};

use crate::roles::{ALL, ASK, BY_DEVICE, COUNT, ECHO, LONG, NO_ANSWER, PATIENCE, Peer, Side};

/// What goes on when something happens to the peer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Nothing.
    Idle,
    /// Messages, as fast as they are taken.
    Flood,
    /// More messages than there is room for, and the peer takes none.
    Full,
    /// Long data was announced, and the peer does not answer.
    Announced,
    /// Long data is on its way to the peer.
    Sending,
    /// Long data is on its way from the peer.
    Receiving,
}

/// The phases, by the transports of both sides: long data is read where it lies, or comes by messages.
const CASES: &[(&str, Phase)] = &[
    (ALL, Phase::Idle),
    (ALL, Phase::Flood),
    (ALL, Phase::Full),
    (ALL, Phase::Announced),
    (ALL, Phase::Sending),
    (ALL, Phase::Receiving),
    (MESSAGES, Phase::Sending),
    (MESSAGES, Phase::Receiving),
];
/// Without one that reads a peer's memory.
const MESSAGES: &str = if BY_DEVICE { ALL } else { "posix,self" };

/// Begins a phase with a new peer; answers it, this side, and what is on its way.
fn begin(tls: &str, phase: Phase) -> (Peer, Side, Vec<Request<Vec<u8>>>) {
    let deaf = matches!(phase, Phase::Full | Phase::Announced);
    let peer = Peer::start_by(tls, if deaf { &["deaf"] } else { &[] });
    let side = Side::connect_by(tls, &peer);
    if !deaf {
        side.round_trip();
    }
    let mut requests = Vec::new();
    match phase {
        Phase::Idle => {}
        Phase::Flood => {
            for _ in 0..200 {
                requests.push(side.ep.am_send(ECHO, b"", vec![1; 3000]));
            }
        }
        Phase::Full => {
            while requests.iter().filter(|request| !request.is_ended()).count() < 100 {
                requests.push(side.ep.am_send(COUNT, b"", vec![1; 3000]));
            }
        }
        Phase::Announced => requests.extend((0..10).map(|_| side.ep.am_send(COUNT, b"", vec![1; 1 << 20]))),
        Phase::Sending => {
            requests.extend((0..4).map(|_| side.ep.am_send(COUNT, b"", vec![1; LONG])));
            // Some of it has gone.
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_millis(5) {
                side.worker.progress();
            }
        }
        Phase::Receiving => {
            let before = side.back.borrow().len();
            let _detached = side.ep.am_send(ASK, b"", Vec::new());
            side.until("the announcement", || side.back.borrow().len() > before);
            let message = side.back.borrow_mut().pop().unwrap();
            assert_eq!(message.len(), LONG as u64);
            requests.push(message.recv_data(vec![0; LONG]));
            for _ in 0..50 {
                side.worker.progress();
            }
        }
    }
    (peer, side, requests)
}

/// The peer is gone: everything ends, with what it was given; it is told once.
fn all_end(phase: Phase, side: &Side, requests: Vec<Request<Vec<u8>>>, begin: Instant) {
    side.until("its end", || !side.errors.borrow().is_empty());
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(5), "{phase:?}: it took {took:?} to hear of it");
    side.until("all operations", || requests.iter().all(Request::is_ended));
    for request in requests {
        if let Err(error) = request.into_result().unwrap() {
            assert_eq!(error.status(), Status::ConnectionReset, "{phase:?}: {error}");
            assert!(!error.operand.is_empty(), "{phase:?}: the operand is back");
        }
    }
    let late = side.ep.am_send(COUNT, b"", vec![1]).into_result().unwrap().unwrap_err();
    assert_eq!(late.status(), Status::ConnectionReset);
    let flush = side.ep.flush().into_result().unwrap().unwrap_err();
    assert_eq!(flush.status(), Status::ConnectionReset);
    for _ in 0..100 {
        side.worker.progress();
    }
    assert_eq!(*side.errors.borrow(), [EpError::Peer(Gone::Closed)], "{phase:?}: once");
}

pub fn killed_in_each_phase() {
    for (tls, phase) in CASES.iter().copied() {
        let (mut peer, side, requests) = begin(tls, phase);
        let now = Instant::now();
        peer.child.kill();
        all_end(phase, &side, requests, now);
    }
}

pub fn replaced_by_exec_in_each_phase() {
    for (tls, phase) in CASES.iter().copied() {
        let (mut peer, side, requests) = begin(tls, phase);
        let now = Instant::now();
        peer.child.send(b"exec");
        all_end(phase, &side, requests, now);
        peer.child.kill();
    }
}

/// A peer that stops is waited for.
pub fn stopped_in_each_phase() {
    for (tls, phase) in CASES.iter().copied() {
        if matches!(phase, Phase::Full | Phase::Announced) {
            continue; // that peer never goes on
        }
        let (peer, side, requests) = begin(tls, phase);
        peer.child.stop();
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(700) {
            side.worker.wait_any(Duration::from_millis(50)).unwrap();
        }
        assert!(side.errors.borrow().is_empty(), "{phase:?}: it was taken for dead");
        peer.child.cont();
        side.until("all operations", || requests.iter().all(Request::is_ended));
        for request in requests {
            assert!(request.into_result().unwrap().is_ok(), "{phase:?}");
        }
        side.round_trip();
    }
}

pub fn the_same_worker_connects_to_the_next_peer() {
    let (mut peer, mut side, _) = begin(ALL, Phase::Flood);
    let old = side.ep.clone();
    for _ in 0..5 {
        peer.child.kill();
        side.until("its end", || side.ep.check().is_err());
        // Nobody proves to another machine that it is gone.
        let is_gone = if BY_DEVICE { Status::Unreachable } else { Status::Stale };
        assert_eq!(side.worker.connect(&peer.address).unwrap_err().status(), is_gone);
        peer = Peer::start(&[]);
        side.ep = side.worker.connect(&peer.address).unwrap();
        side.round_trip();
        assert!(old.check().is_err());
        let remote = side.ep.rkey_unpack(&peer.rkey).unwrap();
        side.worker.wait(remote.put(0, vec![9; 1000]), PATIENCE).unwrap();
        let seen = side.worker.wait(remote.get(0, vec![0; 1000]), PATIENCE).unwrap();
        assert_eq!(seen, [9; 1000]);
    }
}

pub fn connecting_to_a_stopped_peer_is_bounded() {
    let peer = Peer::start(&[]);
    peer.child.stop();
    let ctx =
        ucp::Context::builder().set("UCX_TLS", ALL).set("UCX_CONNECT_TIMEOUT", "300ms").build().unwrap();
    let worker = ctx.worker().unwrap();
    let begin = Instant::now();
    let error = worker.connect(&peer.address).unwrap_err();
    assert!((300..5000).contains(&begin.elapsed().as_millis()), "{:?}", begin.elapsed());
    assert_eq!(error.status(), Status::Unreachable, "{error}");
    assert!(error.to_string().contains(NO_ANSWER), "{error}");
    peer.child.cont();
    worker.connect(&peer.address).unwrap();
}

/// A child that the peer leaves behind has copies of all its descriptors, and is not the peer.
pub fn a_fork_s_child_keeps_nothing_alive() {
    let mut peer = Peer::start(&["forks"]);
    let child = String::from_utf8(peer.child.recv()).unwrap().parse().unwrap();
    let child = rustix::process::Pid::from_raw(child).unwrap();
    let side = Side::connect(&peer);
    side.round_trip();
    // It is forked now: with the connection open.
    peer.child.send(b"fork");
    let grandchild = String::from_utf8(peer.child.recv()).unwrap().parse().unwrap();
    let grandchild = rustix::process::Pid::from_raw(grandchild).unwrap();
    let now = Instant::now();
    peer.child.kill();
    all_end(Phase::Idle, &side, Vec::new(), now);
    for orphan in [child, grandchild] {
        rustix::process::kill_process(orphan, rustix::process::Signal::KILL).unwrap();
    }
}
