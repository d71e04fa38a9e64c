//! A ring between two that keep to the rules; `tests/hostile.rs` has the others, `tests/dying.rs` those that are killed.
#![allow(clippy::cast_possible_truncation)] // patterns

mod dying;
mod hostile;

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use testkit::seed::{Rng, seed};
use ucs::mem::shared::BoundsError;
use ucs::mem::{Mapping, Memfd};
use ucs::sync::{AtomicBool, Ordering};

use super::*;

/// Where the ring begins in its mapping.
const OFFSET: usize = 3 * LINE;

/// Both ends of a ring with memory around it that must stay as it is.
fn ring(lines: u32) -> (Producer, Consumer, Arc<Mapping>) {
    let (_, map) = Memfd::create("ring", OFFSET + ring_len(lines) + OFFSET, false).unwrap();
    let map = Arc::new(map);
    let producer = Producer::new(Arc::clone(&map), OFFSET, lines).unwrap();
    let consumer = Consumer::new(Arc::clone(&map), OFFSET, lines).unwrap();
    (producer, consumer, map)
}

/// Nobody has written beside the ring.
fn check_surroundings(map: &Mapping, lines: u32) {
    let mut around = [1; OFFSET];
    for at in [0, OFFSET + ring_len(lines)] {
        map.bytes().read(at as u64, &mut around).unwrap();
        assert_eq!(around, [0; OFFSET], "bytes at {at}");
    }
}

/// Contents of a message: no header, but for a few that look like some.
fn content(number: u64, len: usize) -> Vec<u8> {
    let word = match number % 8 {
        0 => wire::PADDING,
        1 => wire::message(3, 5),
        _ => number.wrapping_mul(0x9e37_79b9_7f4a_7c15),
    };
    word.to_le_bytes().into_iter().cycle().take(len).collect()
}

fn send(producer: &mut Producer, tag: u32, bytes: &[u8]) -> bool {
    let Some(mut outgoing) = producer.begin(bytes.len()) else { return false };
    outgoing.write(0, bytes);
    outgoing.publish(tag);
    true
}

fn receive(consumer: &mut Consumer) -> Option<(u32, Vec<u8>)> {
    let incoming = consumer.receive().unwrap()?;
    let mut bytes = vec![0; incoming.len()];
    incoming.read(0, &mut bytes).unwrap();
    assert_eq!(incoming.is_empty(), bytes.is_empty());
    let tag = incoming.tag();
    incoming.done();
    Some((tag, bytes))
}

#[test]
fn a_ring_is_where_it_can_be() {
    let map = Arc::new(Mapping::anonymous(ring_len(16) + LINE).unwrap());
    let fits = |offset, lines| {
        let producer = Producer::new(Arc::clone(&map), offset, lines).is_some();
        assert_eq!(Consumer::new(Arc::clone(&map), offset, lines).is_some(), producer);
        producer
    };
    assert_eq!(ring_len(16), 18 * 64);
    assert!(fits(0, 16) && fits(LINE, 16) && fits(0, 8));
    let size = map.bytes().len();
    assert!(size < ring_len(32));
    let refused = [(8, 8), (LINE + 1, 8), (0, 0), (0, 4), (0, 12), (0, 32), (0, u32::MAX), (0, MAX_LINES)];
    let beyond = [(size - ring_len(8) + LINE, 8), (size, 8), (usize::MAX - 63, 8), (2 * LINE, 16)];
    for (offset, lines) in refused.into_iter().chain(beyond) {
        assert!(!fits(offset, lines), "{lines} lines at {offset}");
    }
    let (file, _) = Memfd::create("ring", 4096, false).unwrap();
    let view = Mapping::of_file(std::os::fd::AsFd::as_fd(&file), 4096, ucs::mem::Access::Read).unwrap();
    assert!(Consumer::new(Arc::new(view), 0, 8).is_none(), "read-only");
}

#[test]
fn every_length_comes_through() {
    for lines in [8, 16, 64] {
        let (mut producer, mut consumer, map) = ring(lines);
        assert_eq!(producer.max_len(), lines as usize / 4 * 64 - 8);
        for len in 0..=producer.max_len() {
            // Thrice, so that most lengths come at several places of the ring.
            for round in 0..3 {
                let (tag, bytes) = ((len as u32 * 77_777 + round) & MAX_TAG, content(len as u64, len));
                assert!(consumer.is_empty() && producer.has_room(len));
                assert!(send(&mut producer, tag, &bytes));
                assert!(!consumer.is_empty());
                assert_eq!(receive(&mut consumer), Some((tag, bytes)), "{len} bytes");
                assert_eq!(receive(&mut consumer), None);
            }
        }
        let longer = producer.max_len() + 1;
        assert!(!producer.has_room(longer) && producer.begin(longer).is_none());
        assert!(producer.begin(usize::MAX).is_none());
        assert!(!producer.is_corrupt());
        check_surroundings(&map, lines);
    }
}

#[test]
fn a_message_of_56_bytes_takes_one_line() {
    let (mut producer, mut consumer, _) = ring(32);
    for lap in 0..5_u32 {
        let sent = (0..).take_while(|number| send(&mut producer, lap + number, &content(7, 56))).count();
        assert_eq!(sent, 31, "all lines but one");
        assert!(!producer.has_room(0) && !producer.is_corrupt());
        for number in 0..31 {
            assert_eq!(receive(&mut consumer), Some((lap + number, content(7, 56))));
        }
        assert_eq!(receive(&mut consumer), None);
        assert!(producer.has_room(56));
    }
    let (mut producer, _, _) = ring(32);
    let sent = std::iter::repeat_with(|| send(&mut producer, 0, &content(7, 57))).take_while(|sent| *sent);
    assert_eq!(sent.count(), 15, "two lines each");
}

#[test]
fn room_comes_back_by_quarters() {
    let (mut producer, mut consumer, _) = ring(32);
    while send(&mut producer, 0, b"x") {}
    for received in 1..=8 {
        assert!(!producer.has_room(1));
        receive(&mut consumer).unwrap();
        assert_eq!(producer.has_room(1), received == 8, "{received} received");
    }
    let sent = std::iter::repeat_with(|| send(&mut producer, 0, b"y")).take_while(|sent| *sent).count();
    assert_eq!(sent, 8);
}

/// What was received and not told never keeps out the longest message, wherever it would begin.
#[test]
fn an_empty_ring_has_room_for_any_message() {
    for lines in [8, 16, 64] {
        for before in 0..3 * lines {
            let (mut producer, mut consumer, _) = ring(lines);
            for _ in 0..before {
                assert!(send(&mut producer, 1, b"one line"));
                receive(&mut consumer).unwrap();
            }
            let longest = content(5, producer.max_len());
            assert!(send(&mut producer, 2, &longest), "{before} lines before");
            assert_eq!(receive(&mut consumer), Some((2, longest)));
        }
    }
}

#[test]
fn parts_are_written_and_read_within_bounds() {
    let (mut producer, mut consumer, map) = ring(8);
    let mut outgoing = producer.begin(100).unwrap();
    outgoing.write(0, &[1; 30]);
    outgoing.write(30, &[2; 70]);
    outgoing.write(50, &[3; 8]);
    outgoing.write(100, &[]);
    outgoing.publish(MAX_TAG);
    let incoming = consumer.receive().unwrap().unwrap();
    assert_eq!((incoming.tag(), incoming.len()), (MAX_TAG, 100));
    let mut bytes = [0; 8];
    for (at, expected) in [(0, 1), (22, 1), (30, 2), (42, 2), (50, 3), (58, 2), (92, 2)] {
        incoming.read(at, &mut bytes).unwrap();
        assert_eq!(bytes, [expected; 8], "at {at}");
    }
    let beyond = |offset, len| Err(BoundsError::OutOfRange { offset, len, size: 100 });
    assert_eq!(incoming.read(93, &mut bytes), beyond(93, 8));
    assert_eq!(incoming.read(usize::MAX, &mut bytes), beyond(u64::MAX, 8));
    assert_eq!(incoming.read(101, &mut []), beyond(101, 0));
    assert_eq!(incoming.read(100, &mut []), Ok(()));
    drop(incoming);
    assert_eq!(receive(&mut consumer), None);
    check_surroundings(&map, 8);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "OutOfRange")]
fn a_write_beyond_the_message_is_a_bug() {
    let (mut producer, _, _) = ring(8);
    producer.begin(10).unwrap().write(3, &[0; 8]);
}

#[test]
fn one_waker_wakes_a_sleeper() {
    let (mut producer, mut consumer, _) = ring(8);
    assert!(!producer.must_wake());
    assert!(consumer.arm(), "nothing is there");
    assert!(send(&mut producer, 1, b"x"));
    assert!(producer.must_wake());
    assert!(!producer.must_wake(), "once");
    assert!(!consumer.arm(), "a message is there");
    assert!(!producer.must_wake(), "it does not sleep");
    receive(&mut consumer).unwrap();
    assert!(consumer.arm());
    consumer.disarm();
    assert!(!producer.must_wake());
}

#[derive(Clone, Debug)]
enum Op {
    Send(usize),
    /// Written, and not published.
    Abandon(usize),
    Receive(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0_usize..100).prop_map(Op::Send),
        2 => (0_usize..1100).prop_map(Op::Send),
        1 => (0_usize..1100).prop_map(Op::Abandon),
        5 => (1_usize..6).prop_map(Op::Receive),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(rucx_sanitizer) { 16 } else { 256 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn does_what_a_queue_does(lines in 3_u32..7, ops in prop::collection::vec(op(), 1..600)) {
        let lines = 1 << lines;
        let (mut producer, mut consumer, map) = ring(lines);
        let mut queue = VecDeque::new();
        // Lines ever sent, and received.
        let (mut tail, mut head) = (0, 0);
        for (number, op) in (0..).zip(ops) {
            match op {
                Op::Send(len) => {
                    let (tag, bytes) = (number as u32, content(number, len));
                    let left = lines as usize - tail % lines as usize;
                    let record = (len + 8).div_ceil(64);
                    let end = if record <= left { tail } else { tail + left } + record;
                    let sent = send(&mut producer, tag, &bytes);
                    if len > producer.max_len() || end - head >= lines as usize {
                        prop_assert!(!sent, "there was no room");
                    } else if end - head + lines as usize / 4 <= lines as usize {
                        prop_assert!(sent, "there was room, whatever the consumer has not told");
                    }
                    if sent {
                        queue.push_back((tag, bytes, end));
                        tail = end;
                    }
                }
                Op::Abandon(len) => {
                    if let Some(mut outgoing) = producer.begin(len) {
                        outgoing.write(0, &content(number, len));
                    }
                }
                Op::Receive(count) => for _ in 0..count {
                    let expected = queue.pop_front();
                    prop_assert_eq!(consumer.is_empty(), expected.is_none());
                    head = expected.as_ref().map_or(head, |(_, _, end)| *end);
                    prop_assert_eq!(receive(&mut consumer), expected.map(|(tag, bytes, _)| (tag, bytes)));
                },
            }
        }
        prop_assert!(!producer.is_corrupt());
        check_surroundings(&map, lines);
    }
}

const PATIENCE: Duration = Duration::from_secs(50);

/// Also run under the thread sanitizer.
#[test]
fn two_threads_stream_what_was_sent() {
    let (mut producer, mut consumer, map) = ring(64);
    let seed = seed();
    let lens = move || {
        let mut rng = Rng::new(seed);
        (0..100_000)
            .map(move |number| (number, if number % 16 == 0 { rng.below(1017) } else { rng.below(100) }))
    };
    let sender = thread::spawn(move || {
        let begin = Instant::now();
        for (number, len) in lens() {
            while !send(&mut producer, number as u32, &content(number, len)) {
                assert!(begin.elapsed() < PATIENCE && !producer.is_corrupt());
                thread::yield_now();
            }
        }
    });
    let begin = Instant::now();
    for (number, len) in lens() {
        let message = loop {
            if let Some(message) = receive(&mut consumer) {
                break message;
            }
            assert!(begin.elapsed() < PATIENCE);
            thread::yield_now();
        };
        assert_eq!(message, (number as u32, content(number, len)));
    }
    assert_eq!(receive(&mut consumer), None);
    sender.join().unwrap();
    check_surroundings(&map, 64);
}

/// One end of two rings, of which the other end is another thread's, which it wakes.
struct End {
    producer: Producer,
    consumer: Consumer,
    /// Rung for this end, and for the other.
    bells: [Arc<AtomicBool>; 2],
}

impl End {
    fn send(&mut self, number: u64, other: &thread::Thread) {
        assert!(send(&mut self.producer, 0, &number.to_le_bytes()));
        if self.producer.must_wake() {
            self.bells[1].store(true, Ordering::Release);
            other.unpark();
        }
    }

    /// Waits for a message, asleep most of the time.
    fn receive(&mut self) -> u64 {
        let begin = Instant::now();
        loop {
            if let Some((_, bytes)) = receive(&mut self.consumer) {
                return u64::from_le_bytes(bytes.try_into().unwrap());
            }
            if self.consumer.arm() {
                while !self.bells[0].swap(false, Ordering::Acquire) {
                    assert!(begin.elapsed() < PATIENCE, "nobody rang the bell");
                    thread::park_timeout(PATIENCE);
                }
            }
        }
    }
}

#[test]
fn two_threads_wake_each_other() {
    let ((to, from_a, _), (back, from_b, _)) = (ring(8), ring(8));
    let bells = [Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false))];
    let [one, other] = bells.clone();
    let mut a = End { producer: to, consumer: from_b, bells };
    let mut b = End { producer: back, consumer: from_a, bells: [other, one] };
    let main = thread::current();
    const ROUNDS: u64 = 20_000;
    let echo = thread::spawn(move || {
        for _ in 0..ROUNDS {
            let number = b.receive();
            b.send(number + 1, &main);
        }
    });
    for number in 0..ROUNDS {
        a.send(number, echo.thread());
        assert_eq!(a.receive(), number + 1);
    }
    echo.join().unwrap();
}
