//! Each interface with a thread of its own.

use std::collections::HashMap;
use std::thread;
use std::time::Instant;

use ucs::time::Deadline;
use uct::api::{EpId, Gone, Iface, NewEp, Payload, SendError, Sink};
use uct::memory::Local;

use super::waiting::wakes;
use super::{End, Event, Log, PATIENCE, Shape, World, by_device, each, each_of_two};
use crate::bench::Bench;
use crate::fixture::pattern;
use crate::{Check, list};
use End::{A, B};

pub(crate) const CHECKS: &[Check] = list![iface:
    two_threads_send_all in Once,
    two_threads_that_sleep_are_woken in Once,
    guests_of_another_thread_are_heard_to_the_end in Once,
];

/// What the messages are parts of: message `n` begins at byte `n % STEPS`.
struct Stream {
    bytes: Vec<u8>,
    max: usize,
}

const STEPS: usize = 997;

impl Stream {
    fn new(max: usize) -> Self {
        Self { bytes: pattern(1, STEPS + max), max }
    }

    fn message(&self, number: u32) -> &[u8] {
        let number = number as usize;
        let len = if number % 1000 == 500 { self.max } else { number * 7919 % 200 };
        let at = number % STEPS;
        &self.bytes[at..at + len]
    }
}

/// How far an endpoint's two directions are.
struct Talk {
    ep: EpId,
    sent: u32,
    received: u32,
}

/// Checks what comes.
struct Checker<'a> {
    talks: &'a mut [Talk],
    stream: &'a Stream,
    buffer: Vec<u8>,
}

impl Sink for Checker<'_> {
    fn arrived(&mut self, new: NewEp) {
        panic!("nobody connects: {new:?}");
    }

    fn am(&mut self, ep: EpId, tag: u32, payload: &dyn Payload) {
        let talk = self.talks.iter_mut().find(|talk| talk.ep == ep).expect("an endpoint that is known");
        assert_eq!(tag, talk.received, "{ep:?}: in order, each once");
        self.buffer.resize(payload.len(), 0);
        payload.read(0, &mut self.buffer).unwrap();
        assert!(self.buffer == self.stream.message(tag), "{ep:?}: message {tag} is not whole");
        talk.received += 1;
    }

    fn gone(&mut self, ep: EpId, why: Gone) {
        panic!("{ep:?}: {why}");
    }
}

/// Sends `count` messages by each endpoint, and receives as many. Gives the interface back: its end would be told.
fn talk(
    mut iface: Box<dyn Iface>,
    eps: &[EpId],
    count: u32,
    stream: &Stream,
    sleeps: bool,
) -> Box<dyn Iface> {
    let mut talks: Vec<Talk> = eps.iter().map(|&ep| Talk { ep, sent: 0, received: 0 }).collect();
    let (mut idle, mut buffer, mut last) = (0, Vec::new(), Instant::now());
    while talks.iter().any(|talk| talk.sent < count || talk.received < count) {
        let mut done = 0;
        for talk in &mut talks {
            // So many at most, as the other side's have to be taken, too.
            for _ in 0..32 {
                if talk.sent == count {
                    break;
                }
                match iface.am(talk.ep, talk.sent, [&[], &[]], &Local::bytes(stream.message(talk.sent))) {
                    Ok(()) => talk.sent += 1,
                    Err(SendError::Full) => break,
                    Err(error) => panic!("message {}: {error}", talk.sent),
                }
                done += 1;
            }
        }
        let mut check = Checker { talks: &mut talks, stream, buffer: std::mem::take(&mut buffer) };
        done += iface.progress(&mut check);
        buffer = check.buffer;
        if done > 0 {
            (idle, last) = (0, Instant::now());
            continue;
        }
        assert!(last.elapsed() < PATIENCE, "nothing comes any more");
        idle += 1;
        if idle < 20 {
            std::hint::spin_loop();
        } else if sleeps && iface.event_fd().is_some() {
            if iface.arm() {
                assert!(wakes(&*iface, PATIENCE), "it is not woken");
            }
        } else {
            thread::yield_now();
        }
    }
    iface
}

fn both(world: &mut World, count: u32, sleeps: bool) {
    let pair = world.connect();
    let stream = &Stream::new(world.max());
    if world.shape == Shape::Alone {
        let iface = world.take(A);
        let talks = move || talk(iface, &[pair.a, pair.b], count, stream, sleeps);
        thread::scope(|scope| drop(scope.spawn(talks).join().unwrap()));
    } else {
        let (first, second) = (world.take(A), world.take(B));
        thread::scope(|scope| {
            let first = scope.spawn(move || talk(first, &[pair.a], count, stream, sleeps));
            let second = scope.spawn(move || talk(second, &[pair.b], count, stream, sleeps));
            drop((first.join().unwrap(), second.join().unwrap()));
        });
    }
}

fn two_threads_send_all(bench: &Bench) {
    let count = if by_device(bench) { 10_000 } else { 100_000 };
    each(bench, |world| both(world, count, false));
}

fn two_threads_that_sleep_are_woken(bench: &Bench) {
    let count = if by_device(bench) { 5_000 } else { 20_000 };
    each(bench, |world| both(world, count, true));
}

/// One thread connects, sends a few messages and disconnects at once, again and again. The other one, which looks all the while, is
/// told of each: that it has come, its messages, that it is gone.
fn guests_of_another_thread_are_heard_to_the_end(bench: &Bench) {
    // A device takes its time for a connection.
    let all = if by_device(bench) { 50 } else { 500 };
    each_of_two(bench, |world| {
        let (mut guest, mut host) = (world.take(A), world.take(B));
        let address = host.address();
        let guests = move || {
            for number in 0..all {
                let ep = guest.connect(&address, &Deadline::after(PATIENCE)).unwrap().ep;
                let count = 1 + number % 5;
                for tag in 0..count {
                    guest.am(ep, tag, [&[], &[]], &Local::bytes(&count.to_le_bytes())).unwrap();
                }
                guest.disconnect(ep);
            }
        };
        thread::scope(|scope| {
            scope.spawn(guests);
            let (mut log, mut here, mut left) = (Log::default(), HashMap::new(), 0);
            let mut last = Instant::now();
            while left < all {
                if host.progress(&mut log) == 0 {
                    assert!(last.elapsed() < PATIENCE, "{left} guests were heard to the end");
                    thread::yield_now();
                    continue;
                }
                last = Instant::now();
                for event in log.0.drain(..) {
                    match event {
                        Event::Arrived(new) => {
                            assert_eq!(here.insert(new.ep, (0, None)), None, "it comes once")
                        }
                        Event::Am(ep, tag, bytes) => {
                            let (heard, all) = here.get_mut(&ep).expect("it has come, and is not gone");
                            assert_eq!(tag, *heard, "in order, each once");
                            *heard += 1;
                            *all = Some(u32::from_le_bytes(bytes.try_into().unwrap()));
                        }
                        Event::Gone(ep, why) => {
                            let (heard, all) = here.remove(&ep).expect("it has come, and goes once");
                            assert_eq!(
                                (Some(heard), why),
                                (all, Gone::Closed),
                                "gone after all its messages"
                            );
                            host.disconnect(ep);
                            left += 1;
                        }
                    }
                }
            }
            assert!(here.is_empty());
        });
    });
}
