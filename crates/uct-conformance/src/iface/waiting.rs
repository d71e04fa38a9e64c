//! Waiting: the descriptor tells of what comes after `arm`, and `arm` of what is there already.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use uct::api::{Gone, Iface, IfaceFlags, SendError};

use super::{End, Event, PATIENCE, Pair, World, by_device, each, each_of_two};
use crate::bench::Bench;
use crate::{Check, list};
use End::{A, B};

pub(crate) const CHECKS: &[Check] = list![iface:
    idle_ones_sleep in Once,
    a_message_wakes in Once,
    an_arrival_wakes in Once,
    the_peer_s_end_wakes in Once,
    room_wakes in Once,
    arm_sees_what_is_there in Once,
    arm_sees_room in Once,
    many_wakes_are_forgotten in Once,
];

/// For how long a descriptor must stay quiet.
const QUIET: Duration = Duration::from_millis(20);

/// Whether its descriptor becomes readable in that time.
pub(crate) fn wakes(iface: &dyn Iface, within: Duration) -> bool {
    let fd = iface.event_fd().expect("a descriptor");
    let begin = Instant::now();
    loop {
        let left = Timespec::try_from(within.saturating_sub(begin.elapsed())).unwrap();
        match poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&left)) {
            Ok(count) => return count > 0,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("poll: {error}"),
        }
    }
}

/// Runs a check where there is a descriptor.
fn each_that_waits(bench: &Bench, check: impl Fn(&mut World)) {
    each(bench, |world| {
        if world.iface(A).attr().flags.contains(IfaceFlags::EVENT_FD) {
            check(world);
        } else {
            assert!(world.iface(A).event_fd().is_none());
        }
    });
}

/// Has an end wait. It may be woken for nothing by what it has seen already, a few times.
#[track_caller]
fn asleep(world: &mut World, end: End) {
    for _ in 0..50 {
        let begin = Instant::now();
        while world.progress(end) > 0 {
            assert!(begin.elapsed() < PATIENCE, "progress does not come to an end");
        }
        let armed = world.iface(end).arm();
        if armed && !wakes(world.iface(end), QUIET) {
            return;
        }
    }
    panic!("{end:?} finds no sleep, and has nothing to do");
}

/// What is done wakes an end that sleeps; then it is told of it, and sleeps again.
#[track_caller]
fn woken(
    world: &mut World,
    end: End,
    what: &str,
    act: impl FnOnce(&mut World),
    is_told: impl Fn(&[Event]) -> bool,
) {
    asleep(world, end);
    act(world);
    assert!(wakes(world.iface(end), PATIENCE), "{end:?} sleeps on: {what}");
    let begin = Instant::now();
    while !is_told(world.events(end)) {
        world.progress(end);
        assert!(begin.elapsed() < PATIENCE, "{end:?} is woken, and not told: {what}");
    }
    asleep(world, end);
}

fn idle_ones_sleep(bench: &Bench) {
    each_that_waits(bench, |world| {
        asleep(world, A);
        asleep(world, B);
        let pair = world.connect();
        for round in 0..5 {
            world.expect_delivery(A, pair, round, b"something");
            asleep(world, A);
            asleep(world, B);
        }
        // Armed, and used without a wait.
        for round in 0..5 {
            assert!(world.iface(B).arm());
            world.expect_delivery(A, pair, round, b"something");
            world.expect_delivery(B, pair, round, b"and back");
        }
        asleep(world, B);
        asleep(world, A);
    });
}

fn is_message(events: &[Event]) -> bool {
    events.iter().any(|event| matches!(event, Event::Am(..)))
}

fn is_gone(events: &[Event]) -> bool {
    events.iter().any(|event| matches!(event, Event::Gone(..)))
}

fn a_message_wakes(bench: &Bench) {
    each_that_waits(bench, |world| {
        let pair = world.connect();
        for round in 0..10 {
            for from in [A, B] {
                let act =
                    |world: &mut World| assert_eq!(world.am(from, pair.at(from), round, b"wake up"), Ok(()));
                woken(world, from.other(), "a message", act, is_message);
                world.expect(
                    from.other(),
                    pair,
                    &[Event::Am(pair.at(from.other()), round, b"wake up".to_vec())],
                );
            }
        }
        world.expect_nothing();
    });
}

fn an_arrival_wakes(bench: &Bench) {
    each_that_waits(bench, |world| {
        for count in 1..=5 {
            let act = |world: &mut World| {
                world.connect_only();
            };
            woken(world, B, "an arrival", act, |events| events.len() == count);
        }
        assert_eq!(world.arrivals(B).len(), 5);
    });
}

fn the_peer_s_end_wakes(bench: &Bench) {
    each_that_waits(bench, |world| {
        for from in [A, B] {
            let pair = world.connect();
            woken(
                world,
                from.other(),
                "the peer disconnects",
                |world| world.disconnect(from, pair.at(from)),
                is_gone,
            );
            let other = pair.at(from.other());
            world.expect(from.other(), pair, &[Event::Gone(other, Gone::Closed)]);
            world.disconnect(from.other(), other);
        }
        world.expect_nothing();
    });
    each_of_two(bench, |world| {
        if world.iface(A).event_fd().is_some() {
            let pair = world.connect();
            woken(world, A, "the peer is dropped", |world| drop(world.take(B)), is_gone);
            world.expect(A, pair, &[Event::Gone(pair.a, Gone::Closed)]);
        }
    });
}

/// Sends until there is no room, nor will be before the peer takes something; answers how many.
fn fill(world: &mut World, pair: Pair, body: &[u8]) -> u32 {
    /// For how long there must be none: what is on its way has arrived by then, and left some.
    const LONG: Duration = Duration::from_millis(500);
    let (mut sent, mut refused) = (0, None);
    loop {
        match world.am(A, pair.a, sent, body) {
            Ok(()) => (sent, refused) = (sent + 1, None),
            Err(SendError::Full) if refused.get_or_insert_with(Instant::now).elapsed() > LONG => return sent,
            Err(SendError::Full) => asleep(world, A),
            Err(error) => panic!("message {sent}: {error}"),
        }
    }
}

fn room_wakes(bench: &Bench) {
    each_of_two(bench, |world| {
        if world.iface(A).event_fd().is_none() {
            return;
        }
        let pair = world.connect();
        for len in [0, 1000, world.max()] {
            let body = vec![7; len];
            let sent = fill(world, pair, &body);
            asleep(world, A);
            let mut taken = 0;
            while taken < sent {
                world.progress(B);
                taken += u32::try_from(world.told_of(B, pair.b).len()).unwrap();
            }
            assert!(wakes(world.iface(A), PATIENCE), "nobody tells of the room: {len} bytes");
            world.progress(A);
            world.expect_delivery(A, pair, 5, &body);
            asleep(world, A);
        }
        world.expect_nothing();
    });
}

/// What another thread of this process, or its memory, carries is there when it was sent, and `arm` refuses at once; what a device carries
/// may be on its way, and wakes.
#[track_caller]
fn there_or_woken(bench: &Bench, world: &mut World, end: End, what: &str) {
    let may_sleep = world.iface(end).arm();
    if by_device(bench) {
        assert!(!may_sleep || wakes(world.iface(end), PATIENCE), "{end:?} sleeps on: {what}");
    } else {
        assert!(!may_sleep, "{end:?} may sleep: {what}");
    }
}

/// `arm` refuses soon, and until it is looked for what is there.
#[track_caller]
fn refuses(world: &mut World, end: End, what: &str) {
    let begin = Instant::now();
    while world.iface(end).arm() {
        assert!(begin.elapsed() < PATIENCE, "{end:?} may sleep: {what}");
        std::thread::yield_now();
    }
    for _ in 0..3 {
        assert!(!world.iface(end).arm(), "{end:?} may sleep after all: {what}");
    }
}

fn arm_sees_what_is_there(bench: &Bench) {
    each_that_waits(bench, |world| {
        let a = world.connect_only();
        refuses(world, B, "an arrival");
        world.until("an arrival", |world| !world.arrivals(B).is_empty());
        let b = world.arrivals(B)[0].ep;
        let pair = Pair { a, b };
        world.told_of(B, b);
        asleep(world, B);
        for from in [A, B] {
            let to = from.other();
            asleep(world, to);
            world.progress(to);
            assert_eq!(world.am(from, pair.at(from), 1, b"there"), Ok(()));
            there_or_woken(bench, world, to, "a message is there");
            refuses(world, to, "a message");
            world.expect(to, pair, &[Event::Am(pair.at(to), 1, b"there".to_vec())]);
            asleep(world, to);
        }
        world.progress(B);
        world.disconnect(A, a);
        refuses(world, B, "the peer's end");
        world.expect(B, pair, &[Event::Gone(b, Gone::Closed)]);
        // Told once: no reason to stay awake, though it is not disconnected yet.
        asleep(world, B);
        world.disconnect(B, b);
        asleep(world, B);
    });
}

fn arm_sees_room(bench: &Bench) {
    each_of_two(bench, |world| {
        if world.iface(A).event_fd().is_none() {
            return;
        }
        let pair = world.connect();
        let sent = fill(world, pair, &[7; 100]) as usize;
        asleep(world, A);
        world.progress(A);
        let mut taken = 0;
        while taken < sent {
            world.progress(B);
            taken += world.told_of(B, pair.b).len();
        }
        there_or_woken(bench, world, A, "there is room");
        world.progress(A);
        world.expect_delivery(A, pair, 1, &[7; 100]);
        asleep(world, A);
    });
}

/// More endpoints than anything looks at at once; each of them wakes.
fn many_wakes_are_forgotten(bench: &Bench) {
    const COUNT: usize = 150;
    each_that_waits(bench, |world| {
        let pairs: Vec<Pair> = (0..COUNT).map(|_| world.connect()).collect();
        for round in 0..3 {
            asleep(world, B);
            for pair in &pairs {
                assert_eq!(world.am(A, pair.a, round, b"wake up"), Ok(()));
            }
            assert!(wakes(world.iface(B), PATIENCE));
            for pair in &pairs {
                world.expect(B, *pair, &[Event::Am(pair.b, round, b"wake up".to_vec())]);
            }
        }
        asleep(world, B);
        pairs.iter().for_each(|pair| world.disconnect(A, pair.a));
        assert!(wakes(world.iface(B), PATIENCE));
        for pair in &pairs {
            world.expect(B, *pair, &[Event::Gone(pair.b, Gone::Closed)]);
        }
        asleep(world, B);
    });
}
