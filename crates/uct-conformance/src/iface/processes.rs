//! A peer that is another process: it echoes, is stopped, is killed.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use testkit::{Child, Role, role};
use ucs::time::Deadline;
use uct::api::{EpId, Gone, Iface, SendError};
use uct::memory::Local;

use super::waiting::wakes;
use super::{Event, Log, PATIENCE, open};
use crate::bench::Bench;
use crate::fixture::{Fixture, Side, pattern};
use crate::{Check, list};

pub(crate) const CHECKS: &[Check] = list![iface:
    another_process_echoes in OtherProcess,
    a_stopped_process_holds_nobody_up in OtherProcess,
    a_killed_process_is_gone in OtherProcess,
    one_killed_in_mid_traffic_is_gone in OtherProcess,
];

/// Sends each message back, until it is killed. Without an interface it says so, by an empty address.
pub(crate) fn echo() {
    let side = Side::open(&Fixture::of(&role::args()[0], &[]));
    let Some(mut iface) = side.md.open_iface().unwrap() else { return role::send(&[]) };
    role::send(&iface.address());
    let (mut log, mut back) = (Log::default(), VecDeque::new());
    loop {
        iface.progress(&mut log);
        for event in log.0.drain(..) {
            match event {
                Event::Am(ep, tag, bytes) => back.push_back((ep, tag, bytes)),
                Event::Gone(ep, _) => iface.disconnect(ep),
                Event::Arrived(_) => {}
            }
        }
        while let Some((ep, tag, bytes)) = back.front() {
            if iface.am(*ep, *tag, [&[], &[]], &Local::bytes(bytes)) == Err(SendError::Full) {
                break;
            }
            back.pop_front();
        }
        if iface.arm() {
            wakes(&*iface, Duration::from_secs(1));
        }
    }
}

/// An interface here, and its peer's process.
struct Apart {
    iface: Box<dyn Iface>,
    log: Log,
    child: Child,
    address: Vec<u8>,
}

impl Apart {
    /// `None` where there is no interface, on neither side.
    fn open(bench: &Bench) -> Option<Self> {
        let mut child = Role::new("echo").arg(bench.fixture.component.name()).start();
        let address = child.recv();
        let Some(iface) = bench.importer.md.open_iface().unwrap() else {
            assert!(address.is_empty(), "it has an interface there");
            return None;
        };
        Some(Self { iface, log: Log::default(), child, address })
    }

    fn connect(&mut self) -> EpId {
        self.iface.connect(&self.address, &Deadline::after(PATIENCE)).unwrap().ep
    }

    fn until(&mut self, what: &str, is_so: impl Fn(&[Event]) -> bool) {
        let begin = Instant::now();
        while !is_so(&self.log.0) {
            assert!(begin.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
            if self.iface.progress(&mut self.log) == 0 {
                std::thread::yield_now();
            }
        }
    }

    fn am(&mut self, ep: EpId, tag: u32, bytes: &[u8]) -> Result<(), SendError> {
        self.iface.am(ep, tag, [&[], &[]], &Local::bytes(bytes))
    }
}

fn message(ep: EpId, tag: u32) -> Event {
    Event::Am(ep, tag, pattern(tag.into(), tag as usize % 3000))
}

fn another_process_echoes(bench: &Bench) {
    const COUNT: u32 = 3000;
    let Some(mut apart) = Apart::open(bench) else { return };
    let ep = apart.connect();
    for tag in 0..COUNT {
        let Event::Am(_, _, bytes) = message(ep, tag) else { unreachable!() };
        let begin = Instant::now();
        while apart.am(ep, tag, &bytes) == Err(SendError::Full) {
            assert!(begin.elapsed() < PATIENCE, "no room");
            apart.iface.progress(&mut apart.log);
        }
    }
    apart.until("all of them", |events| events.len() >= COUNT as usize);
    assert_eq!(apart.log.0.len(), COUNT as usize);
    for (event, tag) in apart.log.0.iter().zip(0..) {
        assert!(*event == message(ep, tag), "message {tag}");
    }
    apart.child.kill();
}

/// Neither sending nor connecting waits for a process that does not run, and nothing is lost by it.
fn a_stopped_process_holds_nobody_up(bench: &Bench) {
    let Some(mut apart) = Apart::open(bench) else { return };
    let ep = apart.connect();
    assert_eq!(apart.am(ep, 0, b"first"), Ok(()));
    apart.until("an answer", |events| events.len() == 1);
    apart.log.0.clear();
    apart.child.stop();
    let begin = Instant::now();
    let mut sent = 0;
    while apart.am(ep, sent, &[7; 100]) != Err(SendError::Full) {
        sent += 1;
    }
    let answer = apart.iface.connect(&apart.address, &Deadline::after(Duration::from_millis(300)));
    assert!(answer.is_err(), "{answer:?} of a process that does not run");
    assert_eq!(apart.iface.progress(&mut apart.log), 0, "it is not gone");
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    apart.child.cont();
    apart.until("all of them", |events| events.len() >= sent as usize);
    let expected: Vec<Event> = (0..sent).map(|tag| Event::Am(ep, tag, vec![7; 100])).collect();
    assert!(apart.log.0 == expected, "each once, in order");
    apart.child.kill();
}

fn a_killed_process_is_gone(bench: &Bench) {
    let Some(mut apart) = Apart::open(bench) else { return };
    let (first, second) = (apart.connect(), apart.connect());
    for ep in [first, second] {
        assert_eq!(apart.am(ep, 1, b"something"), Ok(()));
    }
    apart.until("two answers", |events| events.len() == 2);
    apart.log.0.clear();
    while apart.iface.event_fd().is_some() && !apart.iface.arm() {
        apart.iface.progress(&mut apart.log);
    }
    apart.child.kill();
    assert!(apart.iface.event_fd().is_none() || wakes(&*apart.iface, PATIENCE), "its end wakes nobody");
    apart.until("both ends", |events| events.len() >= 2);
    for _ in 0..100 {
        apart.iface.progress(&mut apart.log);
    }
    let gone = |ep| Event::Gone(ep, Gone::Closed);
    // Of endpoints among each other, in any order.
    apart.log.0.sort_by_key(|event| event.ep() != first);
    assert_eq!(apart.log.0, [gone(first), gone(second)], "told once of each");
    assert_eq!(apart.am(first, 1, b"to nobody"), Err(SendError::Gone));
    let answer = apart.iface.connect(&apart.address, &Deadline::after(Duration::from_secs(5)));
    assert!(answer.is_err(), "{answer:?} of a process that has ended");
    // What is left of this side is of use.
    let other = open(&bench.importer);
    apart.iface.connect(&other.address(), &Deadline::after(PATIENCE)).unwrap();
}

/// Killed while messages go both ways: what has come is whole and in order, then it is told once.
fn one_killed_in_mid_traffic_is_gone(bench: &Bench) {
    let Some(mut apart) = Apart::open(bench) else { return };
    let ep = apart.connect();
    let is_gone = |event: &Event| matches!(event, Event::Gone(..));
    let (begin, mut sent, mut is_killed) = (Instant::now(), 0, false);
    while !apart.log.0.iter().any(is_gone) {
        assert!(begin.elapsed() < 3 * PATIENCE, "nobody tells of its end");
        let Event::Am(_, _, bytes) = message(ep, sent) else { unreachable!() };
        match apart.am(ep, sent, &bytes) {
            Ok(()) => sent += 1,
            Err(SendError::Full | SendError::Gone) => {}
            Err(error) => panic!("message {sent}: {error}"),
        }
        apart.iface.progress(&mut apart.log);
        if !is_killed && apart.log.0.len() > 200 {
            apart.child.kill();
            is_killed = true;
        }
    }
    assert!(is_killed, "it was gone before");
    for _ in 0..100 {
        apart.iface.progress(&mut apart.log);
    }
    let told = apart.log.0.len();
    assert!(is_gone(&apart.log.0[told - 1]), "its end is the last");
    for (event, tag) in apart.log.0[..told - 1].iter().zip(0..) {
        assert!(*event == message(ep, tag), "message {tag}");
    }
    assert_eq!(apart.am(ep, 1, b"to nobody"), Err(SendError::Gone));
}
