//! Messages: whole, once, in order, or refused.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use testkit::Rng;
use ucs::mem::Mapping;
use ucs::mem::page::page_size;
use uct::api::{Attachment, SendError};
use uct::memory::{AccessError, Local, LocalMem, OperandReason, RawMem, Rights, Source};

use super::{End, Event, PATIENCE, Pair, World, by_device, each};
use crate::bench::Bench;
use crate::fixture::pattern;
use crate::{Check, list, sys};
use End::{A, B};

pub(crate) const CHECKS: &[Check] = list![iface:
    every_length_arrives_whole in Once,
    tags_have_24_bits in Once,
    too_long_sends_nothing in Once,
    unreadable_bodies_send_nothing in Once,
    full_until_taken in Once,
    random_traffic_matches_a_model in Once,
    one_flood_holds_no_other_up in Once,
];

/// The same bytes as every kind of body.
struct Bodies {
    bytes: Vec<u8>,
    part: LocalMem,
    raw: RawMem,
    _under: Mapping,
    imported: Arc<dyn Attachment>,
}

const KINDS: usize = 4;

impl Bodies {
    fn of(bench: &Bench, len: usize) -> Self {
        let bytes = pattern(7, len);
        let part = LocalMem::anonymous(len, Rights::READ_WRITE).unwrap();
        part.write(0, &bytes).unwrap();
        let under = Mapping::anonymous(len).unwrap();
        under.bytes().write(0, &bytes).unwrap();
        let (_, _, imported) = bench.attached(len, 7);
        Self { bytes, part, raw: sys::raw(&under), _under: under, imported }
    }

    fn local(&self, kind: usize, at: usize, len: usize) -> Local<'_> {
        match kind {
            0 => Local::bytes(&self.bytes[at..at + len]),
            1 => Local::part(&self.part, at..at + len),
            2 => self.raw.local().range(at..at + len),
            _ => Local::imported(&*self.imported, at as u64..(at + len) as u64),
        }
    }
}

/// Lengths around lines, pages, and the pieces that bodies are copied in.
fn lengths(max: usize) -> Vec<usize> {
    let page = page_size();
    let around = [8, 56, 64, 120, 128, page, 16 << 10, max / 2, max]
        .into_iter()
        .flat_map(|len| [len - 1, len, len + 1]);
    let mut lens: Vec<usize> = [0, 1, 2].into_iter().chain(around).filter(|len| *len <= max).collect();
    lens.sort_unstable();
    lens.dedup();
    lens
}

/// Ways to divide a message: lengths of both parts of its head.
fn splits(len: usize) -> Vec<(usize, usize)> {
    let all = [(0, 0), (1, 0), (0, 1), (8, 0), (3, 5), (13, 0), (len / 2, len - len / 2), (len, 0), (0, len)];
    let mut splits: Vec<_> = all.into_iter().filter(|(first, second)| first + second <= len).collect();
    splits.sort_unstable();
    splits.dedup();
    splits
}

/// Sends, again while there is no room, which others make.
fn send(world: &mut World, from: End, pair: Pair, tag: u32, head: [&[u8]; 2], body: &Local<'_>) {
    world.until("room", |world| match world.iface(from).am(pair.at(from), tag, head, body) {
        Ok(()) => true,
        Err(SendError::Full) => false,
        Err(error) => panic!("a good message: {error}"),
    });
}

fn every_length_arrives_whole(bench: &Bench) {
    each(bench, |world| {
        let max = world.max();
        let bodies = Bodies::of(bench, max + 64);
        let pair = world.connect();
        let mut number = 0_u32;
        for len in lengths(max) {
            for (first, second) in splits(len) {
                let head = pattern(u64::from(number) + 1000, first + second);
                for kind in 0..KINDS {
                    let (from, at) = (if number.is_multiple_of(2) { A } else { B }, number as usize % 64);
                    let rest = len - first - second;
                    let body = bodies.local(kind, at, rest);
                    send(world, from, pair, number, [&head[..first], &head[first..]], &body);
                    let whole = [&head, &bodies.bytes[at..at + rest]].concat();
                    world.expect(from.other(), pair, &[Event::Am(pair.at(from.other()), number, whole)]);
                    number += 1;
                }
            }
        }
        world.expect_nothing();
    });
}

fn tags_have_24_bits(bench: &Bench) {
    each(bench, |world| {
        let pair = world.connect();
        for tag in [0, 1, 0xff_ffff, 0x100_0000, 0xffff_ffff, 0x8012_3456] {
            assert_eq!(world.am(A, pair.a, tag, b"x"), Ok(()));
            world.expect(B, pair, &[Event::Am(pair.b, tag & 0xff_ffff, b"x".to_vec())]);
        }
        world.expect_nothing();
    });
}

fn too_long_sends_nothing(bench: &Bench) {
    each(bench, |world| {
        let max = world.max();
        let bodies = Bodies::of(bench, max + 64);
        let pair = world.connect();
        let head = pattern(1, max + 64);
        for (first, second, rest) in [
            (0, 0, max + 1),
            (1, 0, max),
            (0, 1, max),
            (3, 5, max - 7),
            (max + 1, 0, 0),
            (0, max + 64, 0),
            (max, 1, 0),
        ] {
            for kind in 0..KINDS {
                let parts = [&head[..first], &head[..second]];
                let sent = world.iface(A).am(pair.a, 1, parts, &bodies.local(kind, 0, rest));
                assert_eq!(sent, Err(SendError::TooLong), "{first} + {second} + {rest} bytes, kind {kind}");
            }
        }
        world.expect_nothing();
        world.expect_delivery(A, pair, 2, &head[..max]);
        world.expect_nothing();
    });
}

fn unreadable_bodies_send_nothing(bench: &Bench) {
    each(bench, |world| {
        let page = page_size();
        let len = (2 * page).min(world.max() - 8);
        let pair = world.connect();
        let holes = [0, page].map(|hole| sys::with_a_hole(3 * page, hole));
        let (_, ticket, revoked) = bench.attached(3 * page, 3);
        bench.exporter.revoke(&ticket);
        for round in 0..10 {
            for (which, hole) in holes.iter().enumerate() {
                // The hole is in its midst, or at its beginning.
                let begin = if which == 0 { 0 } else { page.saturating_sub(len / 2) };
                let body = hole.local().range(begin..begin + len);
                let sent = world.iface(A).am(pair.a, 1, [b"head", b"s"], &body);
                let Err(SendError::Body(error)) = sent else { panic!("hole {which}: {sent:?}") };
                let unmapped = matches!(error, AccessError::Operand { why: OperandReason::Unmapped, .. });
                assert!(unmapped, "hole {which}: {error:?}");
            }
            let body = Local::imported(&*revoked, 0..len as u64);
            let sent = world.iface(A).am(pair.a, 1, [b"head", b"s"], &body);
            assert!(matches!(sent, Err(SendError::Body(_))), "a revoked import: {sent:?}");
            world.expect_delivery(A, pair, round, &pattern(u64::from(round), 100 * round as usize));
        }
        world.expect_nothing();
    });
}

/// The message of that number.
fn content(number: u32, len: usize) -> Vec<u8> {
    pattern(u64::from(number), len)
}

/// Sends until there is no room.
fn flood(world: &mut World, pair: Pair, sent: &mut u32, most: u32, len: usize) {
    while *sent < most {
        match world.am(A, pair.a, *sent, &content(*sent, len)) {
            Ok(()) => *sent += 1,
            Err(SendError::Full) => break,
            Err(error) => panic!("message {sent}: {error}"),
        }
    }
}

fn full_until_taken(bench: &Bench) {
    const MOST: u32 = 100_000;
    const QUIET: u32 = 20;
    each(bench, |world| {
        let max = world.max();
        for len in [0, 100, max / 3, max] {
            let pair = world.connect();
            let mut sent = 0;
            flood(world, pair, &mut sent, MOST, len);
            // A device makes room for a while, without anybody who takes: what it has sent, it needs no more. It has as many receives.
            let mut full = 0;
            while full < if by_device(bench) { QUIET } else { 3 } {
                assert!((1..MOST).contains(&sent), "{sent} messages that nobody takes");
                if by_device(bench) {
                    thread::sleep(Duration::from_millis(10));
                }
                let before = sent;
                flood(world, pair, &mut sent, MOST, len);
                assert!(sent == before || by_device(bench), "it was full after {before}");
                full = if sent == before { full + 1 } else { 0 };
            }
            let all = 3 * sent + 10;
            world.until("all messages", |world| {
                flood(world, pair, &mut sent, all, len);
                world.events(B).len() >= all as usize
            });
            world.settle();
            let told = world.told_of(B, pair.b);
            assert_eq!(told.len(), all as usize, "as many as were sent");
            for (event, number) in told.iter().zip(0..) {
                assert!(*event == Event::Am(pair.b, number, content(number, len)), "message {number}");
            }
            world.disconnect(A, pair.a);
            world.disconnect(B, pair.b);
        }
        world.settle();
    });
}

fn random_traffic_matches_a_model(bench: &Bench) {
    let mut rng = Rng::new(testkit::seed() ^ 0x7472_6166);
    let seed = rng.next_u64();
    each(bench, |world| {
        let mut rng = Rng::new(seed);
        let max = world.max();
        let pairs = [world.connect(), world.connect(), world.connect()];
        let mut queues: [VecDeque<Event>; 6] = Default::default();
        let mut number = 0;
        let check = |world: &mut World, queues: &mut [VecDeque<Event>; 6]| {
            for (at, queue) in queues.iter_mut().enumerate() {
                let (pair, end) = (pairs[at / 2], if at.is_multiple_of(2) { B } else { A });
                for event in world.told_of(end, pair.at(end)) {
                    let expected = queue.pop_front();
                    assert!(expected.as_ref() == Some(&event), "of {queue_len}", queue_len = queue.len());
                }
            }
        };
        for _ in 0..4000 {
            let at = rng.below(6);
            let (pair, end) = (pairs[at / 2], if at.is_multiple_of(2) { A } else { B });
            match rng.below(10) {
                0..7 => {
                    let len = if rng.below(8) == 0 { rng.below(max + 1) } else { rng.below(200) };
                    let split = rng.below(len + 1);
                    let bytes = content(number, len);
                    let body = Local::bytes(&bytes[split..]);
                    match world.iface(end).am(pair.at(end), number, [&bytes[..split], &[]], &body) {
                        Ok(()) => queues[at].push_back(Event::Am(pair.at(end.other()), number, bytes)),
                        Err(SendError::Full) => assert!(queues.iter().any(|queue| !queue.is_empty())),
                        Err(error) => panic!("{error}"),
                    }
                    number += 1;
                }
                _ => {
                    world.progress(end);
                    check(world, &mut queues);
                }
            }
        }
        world.until("the rest", |world| {
            check(world, &mut queues);
            queues.iter().all(VecDeque::is_empty)
        });
        world.expect_nothing();
    });
}

/// A hundred endpoints, of which one always has all sent that fits: what another one sends comes soon.
fn one_flood_holds_no_other_up(bench: &Bench) {
    const COUNT: usize = 100;
    const SOON: usize = 64;
    each(bench, |world| {
        let pairs: Vec<Pair> = (0..COUNT).map(|_| world.connect()).collect();
        let mut sent = 0;
        for round in 0..3 * COUNT {
            let pair = pairs[1 + (round * 37) % (COUNT - 1)];
            let mut is_sent = false;
            let mut calls = 0;
            let begin = Instant::now();
            loop {
                if !is_sent {
                    is_sent = world.am(A, pair.a, 9, b"not held up").is_ok();
                }
                flood(world, pairs[0], &mut sent, u32::MAX, 10);
                if by_device(bench) {
                    thread::sleep(Duration::from_millis(1)); // it is on its way
                }
                world.progress(B);
                calls += 1;
                world.told_of(B, pairs[0].b);
                match &world.told_of(B, pair.b)[..] {
                    // How many calls it takes a device, depends on what else the machine does.
                    [] => assert!(
                        calls < SOON || by_device(bench) && begin.elapsed() < PATIENCE,
                        "round {round}: not by {calls} calls"
                    ),
                    [Event::Am(_, 9, _)] => break,
                    other => panic!("round {round}: {} events", other.len()),
                }
            }
        }
        world.settle();
        world.told_of(B, pairs[0].b);
        world.expect_nothing();
    });
}
