//! Messages whose bodies are held while a device reads them where they lie.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use ucs::mem::Mapping;
use uct::api::{EpId, Gone, IfaceFlags, MdFlags, SendError};
use uct::memory::Source;
use uct::registrations::Held;

use super::waiting::wakes;
use super::{End, Event, PATIENCE, Pair, World, each};
use crate::bench::Bench;
use crate::fixture::pattern;
use crate::operands::Operations;
use crate::{Check, list, sys};
use End::{A, B};

pub(crate) const CHECKS: &[Check] = list![iface:
    held_bodies_arrive_whole in Once,
    what_is_held_is_let_go in Once,
    what_is_given_up_holds_nothing in Once,
    letting_go_wakes in Once,
];

/// Long enough to be held: no device takes as much while it is posted.
const LONG: usize = 2048;

/// What A's messages are held by; `None`: its memory domain registers no operands, and so its interface gathers nothing.
struct Hold(Operations);

impl Hold {
    fn of(world: &mut World) -> Option<Self> {
        let gathers = world.iface(A).attr().flags.contains(IfaceFlags::GATHER);
        let side = world.side(A);
        assert!(!gathers || side.has(MdFlags::NEED_MEMH), "a device that gathers what nobody has registered");
        gathers.then(|| Self(Operations::by(&side.md)))
    }

    fn hold(&self, source: impl Source) -> Arc<Held> {
        let needs = self.0.needs.expect("it registers operands");
        Arc::new(self.0.registrations.hold(needs, Arc::new(source)).expect("good memory"))
    }
}

/// Sends, again while there is no room.
fn send(world: &mut World, from: End, pair: Pair, tag: u32, head: &[u8], body: (&Arc<Held>, Range<usize>)) {
    let (held, part) = body;
    world.until("room", |world| {
        match world.iface(from).am_held(pair.at(from), tag, head, held, part.clone()) {
            Ok(()) => true,
            Err(SendError::Full) => false,
            Err(error) => panic!("a good message: {error}"),
        }
    });
}

fn is_free(held: &mut Arc<Held>) -> bool {
    Arc::get_mut(held).is_some()
}

fn held_bodies_arrive_whole(bench: &Bench) {
    each(bench, |world| {
        let Some(hold) = Hold::of(world) else { return };
        let (max, pair) = (world.max(), world.connect());
        let bytes = pattern(7, 3 * max);
        let under = Mapping::anonymous(bytes.len()).unwrap();
        under.bytes().write(0, &bytes).unwrap();
        let mut number = 0;
        for mut held in [hold.hold(bytes.clone()), hold.hold(sys::raw(&under))] {
            for head in [0, 1, 8, 55, 56, 57, 300] {
                for len in [0, 1, 100, 256, 257, LONG, max - 300, max - head] {
                    let at = (number as usize * 37) % max;
                    let before = pattern(u64::from(number), head);
                    send(world, A, pair, number, &before, (&held, at..at + len));
                    let whole = [&before, &bytes[at..at + len]].concat();
                    world.expect(B, pair, &[Event::Am(pair.b, number, whole)]);
                    number += 1;
                }
                let sent = world.iface(A).am_held(pair.a, 1, &vec![0; head], &held, 0..max - head + 1);
                assert_eq!(sent, Err(SendError::TooLong));
            }
            // What of a part lies beyond its end is not sent.
            send(world, A, pair, number, b"the end", (&held, bytes.len() - LONG..bytes.len() + 9));
            let whole = [b"the end", &bytes[bytes.len() - LONG..]].concat();
            world.expect(B, pair, &[Event::Am(pair.b, number, whole)]);
            number += 1;
            world.until("it is let go of", |_| is_free(&mut held));
        }
        world.expect_nothing();
    });
}

fn what_is_held_is_let_go(bench: &Bench) {
    each(bench, |world| {
        let Some(hold) = Hold::of(world) else { return };
        let pair = world.connect();
        let bytes = pattern(8, LONG);
        let mut held = hold.hold(bytes.clone());
        send(world, A, pair, 0, b"", (&held, 0..8));
        assert!(is_free(&mut held), "what is short went with the request itself");
        world.expect(B, pair, &[Event::Am(pair.b, 0, bytes[..8].to_vec())]);
        for round in 0..500 {
            send(world, A, pair, round, b"head", (&held, 0..LONG));
            // Before anybody looks whether the device has read it: by a copy it would be free.
            assert!(!is_free(&mut held), "the device may still read it");
            if round % 3 == 0 {
                world.until("it is let go of", |_| is_free(&mut held));
            }
            world.expect(B, pair, &[Event::Am(pair.b, round, [b"head", &bytes[..]].concat())]);
        }
        world.until("it is let go of", |_| is_free(&mut held));
        // As many as there is room for, with nobody who takes them, and others among them.
        let mut sent = Vec::new();
        loop {
            let number = u32::try_from(sent.len()).unwrap();
            let result = match number % 3 {
                0 => world.am(A, pair.a, number, &bytes),
                _ => world.iface(A).am_held(pair.a, number, &[], &held, 0..LONG),
            };
            match result {
                Ok(()) => sent.push(Event::Am(pair.b, number, bytes.clone())),
                Err(SendError::Full) if sent.len() > 20 => break,
                // Of what is copied there is less room.
                Err(SendError::Full) => drop(world.progress(A)),
                Err(error) => panic!("a good message: {error}"),
            }
        }
        world.expect(B, pair, &sent);
        world.until("it is let go of", |_| is_free(&mut held));
        world.expect_nothing();
    });
}

/// Sends some, and looks at nothing.
fn send_some(world: &mut World, ep: EpId, held: &Arc<Held>) {
    for tag in 0..20 {
        assert_eq!(world.iface(A).am_held(ep, tag, &[], held, 0..LONG), Ok(()));
    }
}

fn what_is_given_up_holds_nothing(bench: &Bench) {
    each(bench, |world| {
        let Some(hold) = Hold::of(world) else { return };
        let bytes = pattern(9, LONG);
        let mut held = hold.hold(bytes.clone());
        let all = |pair: Pair| (0..20).map(|tag| Event::Am(pair.b, tag, bytes.clone())).collect::<Vec<_>>();
        let pair = world.connect();
        send_some(world, pair.a, &held);
        assert!(!is_free(&mut held));
        world.disconnect(A, pair.a);
        world.until("it is let go of", |_| is_free(&mut held));
        world.expect(B, pair, &[all(pair), vec![Event::Gone(pair.b, Gone::Closed)]].concat());
        world.disconnect(B, pair.b);
        // Of the other side's end, too.
        let pair = world.connect();
        world.disconnect(B, pair.b);
        world.until("the end", |world| world.events(A).contains(&Event::Gone(pair.a, Gone::Closed)));
        world.told_of(A, pair.a);
        assert_eq!(world.iface(A).am_held(pair.a, 1, &[], &held, 0..LONG), Err(SendError::Gone));
        world.disconnect(A, pair.a);
        assert!(is_free(&mut held));
        let pair = world.connect();
        send_some(world, pair.a, &held);
        drop(world.take(A));
        assert!(is_free(&mut held), "its interface is gone");
    });
}

/// Who sleeps is woken when what is held has been let go of, each by itself: of an endpoint that was given up, too.
fn letting_go_wakes(bench: &Bench) {
    each(bench, |world| {
        let Some(hold) = Hold::of(world) else { return };
        let mut both = [hold.hold(pattern(9, LONG)), hold.hold(pattern(10, LONG))];
        let free = |both: &mut [Arc<Held>; 2]| both.iter_mut().filter_map(Arc::get_mut).count();
        for given_up in [false, true] {
            for _ in 0..20 {
                let pair = world.connect();
                world.settle();
                both.iter().for_each(|held| send_some(world, pair.a, held));
                if given_up {
                    world.disconnect(A, pair.a);
                }
                let end = Instant::now() + PATIENCE;
                let mut known = free(&mut both);
                while known < 2 {
                    assert!(Instant::now() < end, "it is not let go of");
                    let is_armed = world.iface(A).arm();
                    if is_armed {
                        assert_eq!(free(&mut both), known, "it was let go of, and there is nothing to do");
                        assert!(wakes(world.iface(A), PATIENCE), "nobody tells that it is let go of");
                    }
                    world.progress(A);
                    known = free(&mut both);
                }
                world.settle();
                world.disconnect(A, pair.a);
                world.disconnect(B, pair.b);
                world.settle();
                world.told_of(A, pair.a);
                world.told_of(B, pair.b);
            }
        }
    });
}
