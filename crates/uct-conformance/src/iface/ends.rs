//! Ends: of endpoints, and of interfaces with endpoints.

use uct::api::{EpId, Gone, SendError};

use super::{End, Event, Pair, World, each, each_of_two};
use crate::bench::Bench;
use crate::fixture::pattern;
use crate::{Check, list};
use End::{A, B};

pub(crate) const CHECKS: &[Check] = list![iface:
    gone_is_told_once_after_all_messages in Once,
    gone_is_told_of_one_that_just_came in Once,
    who_disconnects_is_told_nothing in Once,
    both_disconnect in Once,
    disconnected_ones_send_nothing in Once,
    an_old_number_reaches_no_newer_endpoint in Once,
    numbers_never_given_are_gone in Once,
    dropped_with_messages_in_flight in Once,
    dropped_in_every_order in Once,
];

fn messages(ep: EpId, count: u32) -> Vec<Event> {
    (0..count).map(|tag| Event::Am(ep, tag, pattern(tag.into(), 100))).collect()
}

fn send(world: &mut World, from: End, ep: EpId, count: u32) {
    for tag in 0..count {
        assert_eq!(world.am(from, ep, tag, &pattern(tag.into(), 100)), Ok(()));
    }
}

fn gone_is_told_once_after_all_messages(bench: &Bench) {
    const COUNT: u32 = 100;
    each(bench, |world| {
        for from in [A, B] {
            let (pair, to) = (world.connect(), from.other());
            send(world, from, pair.at(from), COUNT);
            world.disconnect(from, pair.at(from));
            let mut expected = messages(pair.at(to), COUNT);
            expected.push(Event::Gone(pair.at(to), Gone::Closed));
            world.expect(to, pair, &expected);
            world.expect_nothing();
            assert_eq!(world.am(to, pair.at(to), 1, b"to nobody"), Err(SendError::Gone));
            world.disconnect(to, pair.at(to));
            world.expect_nothing();
        }
    });
}

fn gone_is_told_of_one_that_just_came(bench: &Bench) {
    each(bench, |world| {
        let a = world.connect_only();
        send(world, A, a, 3);
        world.disconnect(A, a);
        world.until("the end", |world| world.events(B).len() >= 5);
        let b = world.arrivals(B)[0].ep;
        let mut told = world.told_of(B, b);
        assert!(matches!(told.remove(0), Event::Arrived(_)));
        let expected = [messages(b, 3), vec![Event::Gone(b, Gone::Closed)]].concat();
        assert_eq!(told, expected);
        world.expect_nothing();
    });
}

fn who_disconnects_is_told_nothing(bench: &Bench) {
    each(bench, |world| {
        for from in [A, B] {
            let (pair, to) = (world.connect(), from.other());
            send(world, to, pair.at(to), 50);
            world.disconnect(from, pair.at(from));
            world.expect(to, pair, &[Event::Gone(pair.at(to), Gone::Closed)]);
            world.expect_nothing();
        }
    });
}

fn both_disconnect(bench: &Bench) {
    each(bench, |world| {
        for from in [A, B] {
            let pair = world.connect();
            send(world, A, pair.a, 50);
            send(world, B, pair.b, 50);
            world.disconnect(from, pair.at(from));
            world.disconnect(from.other(), pair.at(from.other()));
            // Again, and of nothing.
            world.disconnect(from, pair.at(from));
            world.expect_nothing();
        }
        let pair = world.connect();
        world.expect_delivery(A, pair, 1, b"it lives on");
        world.expect_delivery(B, pair, 1, b"and back");
    });
}

fn disconnected_ones_send_nothing(bench: &Bench) {
    each(bench, |world| {
        for from in [A, B] {
            let (pair, to) = (world.connect(), from.other());
            world.disconnect(from, pair.at(from));
            for len in [0, 100] {
                assert_eq!(world.am(from, pair.at(from), 1, &vec![7; len]), Err(SendError::Gone));
            }
            world.expect(to, pair, &[Event::Gone(pair.at(to), Gone::Closed)]);
            world.disconnect(to, pair.at(to));
            assert_eq!(world.am(to, pair.at(to), 1, b"x"), Err(SendError::Gone));
            world.expect_nothing();
        }
    });
}

fn an_old_number_reaches_no_newer_endpoint(bench: &Bench) {
    each(bench, |world| {
        let mut old: Vec<Pair> = Vec::new();
        for round in 0..20 {
            let pair = world.connect();
            for before in &old {
                assert!(before.a != pair.a && before.b != pair.b, "one number for two endpoints");
                for end in [A, B] {
                    assert_eq!(world.am(end, before.at(end), 1, b"for another"), Err(SendError::Gone));
                    world.disconnect(end, before.at(end));
                }
            }
            world.expect_delivery(A, pair, round, b"the newer one");
            world.expect_delivery(B, pair, round, b"and back");
            // What is on its way to the old one does not come to the newer one, either.
            send(world, B, pair.b, 5);
            send(world, A, pair.a, 5);
            world.disconnect(A, pair.a);
            world.disconnect(B, pair.b);
            old.push(pair);
        }
        world.expect_nothing();
    });
}

fn numbers_never_given_are_gone(bench: &Bench) {
    each(bench, |world| {
        let pair = world.connect();
        for index in [0, 1, 2, 1000, u32::MAX] {
            for generation in [1, 7, u32::MAX] {
                let ep = EpId { index, generation };
                assert_eq!(world.am(A, ep, 1, b"to nobody"), Err(SendError::Gone), "{ep:?}");
                world.disconnect(A, ep);
            }
        }
        world.expect_delivery(A, pair, 1, b"it lives on");
        world.expect_nothing();
    });
}

/// One of each: talking, full, just come, disconnected.
fn busy(world: &mut World) -> (Pair, Pair, EpId, Pair) {
    let (talks, full, over) = (world.connect(), world.connect(), world.connect());
    world.disconnect(A, over.a);
    send(world, A, talks.a, 10);
    send(world, B, talks.b, 10);
    let mut sent = 0;
    while world.am(A, full.a, sent, &pattern(sent.into(), 100)).is_ok() {
        sent += 1;
    }
    let came = world.connect_only();
    // There may be no room in all of the interface.
    let _ = world.am(A, came, 1, b"never looked at");
    (talks, full, came, over)
}

fn dropped_with_messages_in_flight(bench: &Bench) {
    each(bench, |world| {
        busy(world);
        world.iface(A).arm();
        drop(world.take(A));
    });
    each_of_two(bench, |world| {
        let (talks, full, _, over) = busy(world);
        drop(world.take(A));
        let gone = |ep| Event::Gone(ep, Gone::Closed);
        let is_over = |event: &&Event| matches!(event, Event::Gone(..));
        world.until("four ends", |world| world.events(B).iter().filter(is_over).count() == 4);
        world.settle();
        assert_eq!(world.told_of(B, talks.b), [messages(talks.b, 10), vec![gone(talks.b)]].concat());
        assert_eq!(world.told_of(B, over.b), [gone(over.b)]);
        let told = world.told_of(B, full.b);
        let sent = u32::try_from(told.len() - 1).unwrap();
        assert!(sent > 10, "{sent} messages in flight");
        assert!(told == [messages(full.b, sent), vec![gone(full.b)]].concat());
        let came = world.arrivals(B)[0].ep;
        let told = world.told_of(B, came);
        let expected = [Event::Am(came, 1, b"never looked at".to_vec()), gone(came)];
        assert!(matches!(told[0], Event::Arrived(_)) && told[1..] == expected, "{told:?}");
        world.expect_nothing();
    });
    each_of_two(bench, |world| {
        let (talks, full, came, over) = busy(world);
        drop(world.take(B));
        let gone = |ep| Event::Gone(ep, Gone::Closed);
        world.until("three ends", |world| {
            world.events(A).iter().filter(|event| matches!(event, Event::Gone(..))).count() == 3
        });
        world.settle();
        assert_eq!(world.told_of(A, talks.a), [messages(talks.a, 10), vec![gone(talks.a)]].concat());
        for ep in [full.a, came] {
            assert_eq!(world.told_of(A, ep), [gone(ep)]);
            assert_eq!(world.am(A, ep, 1, b"to nobody"), Err(SendError::Gone));
        }
        assert_eq!(world.told_of(A, over.a), []);
        world.expect_nothing();
    });
}

/// Both interfaces and their contexts, each before and after each other.
fn dropped_in_every_order(bench: &Bench) {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        each(bench, |fresh| {
            let mut world = World::open(bench, fresh.shape);
            busy(&mut world);
            let alone = world.shape == super::Shape::Alone;
            for step in order {
                match step {
                    0 => drop(world.take(A)),
                    1 if !alone => drop(world.take(B)),
                    1 => {}
                    _ => world.sides.clear(),
                }
            }
        });
    }
}
