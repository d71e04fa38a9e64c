//! Attributes and addresses: what connects, and what does not.

use std::time::{Duration, Instant};

use testkit::Rng;
use ucs::time::Deadline;
use uct::api::{AttachError, IfaceFlags};

use super::{End, Event, PATIENCE, Pair, Shape, World, each, each_of_two, open};
use crate::bench::Bench;
use crate::fixture::Side;
use crate::{Check, list};
use End::{A, B};

pub(crate) const CHECKS: &[Check] = list![iface:
    attributes_are_consistent in Once,
    each_has_an_address_of_its_own in Once,
    connecting_is_told_once in Once,
    arrival_comes_before_messages in Once,
    garbage_is_no_address in Once,
    truncated_addresses_are_refused in Once,
    changed_addresses_mislead_nobody in Once,
    spliced_addresses_are_refused in Once,
    other_workers_are_refused_where_unreachable in Once,
    dropped_ones_are_refused in Once,
];

fn attributes_are_consistent(bench: &Bench) {
    each(bench, |world| {
        let component = bench.fixture.component.id();
        let before = world.iface(A).attr().clone();
        assert_eq!(before.component, component);
        assert!(before.max_am > 0, "no message fits");
        assert!(before.flags.contains(IfaceFlags::AM), "an interface that sends nothing: {:?}", before.flags);
        let (base, per_byte) = (before.am_cost.base, before.am_cost.per_byte);
        assert!(
            base.is_finite() && base >= 0.0 && per_byte.is_finite() && per_byte >= 0.0,
            "{base} {per_byte}"
        );
        assert_eq!(world.iface(A).event_fd().is_some(), before.flags.contains(IfaceFlags::EVENT_FD));
        let pair = world.connect();
        world.expect_delivery(A, pair, 1, b"something");
        world.disconnect(A, pair.a);
        for end in [A, B] {
            let after = world.iface(end).attr();
            assert_eq!((after.max_am, after.flags), (before.max_am, before.flags), "attributes never change");
        }
    });
}

fn each_has_an_address_of_its_own(bench: &Bench) {
    each(bench, |world| {
        let mut addresses = vec![world.iface(A).address()];
        assert!(!addresses[0].is_empty());
        let others: Vec<_> = (0..10).map(|_| open(world.side(A))).collect();
        addresses.extend(others.iter().map(|iface| iface.address()));
        let pair = world.connect();
        world.expect_delivery(A, pair, 1, b"something");
        assert_eq!(world.iface(A).address(), addresses[0], "it stays the same");
        let len = addresses.len();
        addresses.sort();
        addresses.dedup();
        assert_eq!(addresses.len(), len, "two interfaces have one address");
    });
}

fn connecting_is_told_once(bench: &Bench) {
    each(bench, |world| {
        let address = world.iface(B).address();
        let uuids = [*world.side(A).exports.uuid(), *world.side(B).exports.uuid()];
        let new = world.try_connect(A, &address).unwrap();
        assert_eq!(new.peer, uuids[1], "the context that was connected to");
        world.until("an arrival", |world| !world.arrivals(B).is_empty());
        world.settle();
        let arrivals = world.arrivals(B);
        assert_eq!(arrivals.len(), 1, "one has connected");
        assert_eq!(arrivals[0].peer, uuids[0], "the context that has connected");
        assert_eq!(world.events(B).len(), 1, "and nothing else");
        if world.shape == Shape::Alone {
            assert_ne!(new.ep, arrivals[0].ep, "each end is an endpoint");
        } else {
            assert_eq!(world.events(A), [], "who connects is told by the answer");
        }
    });
}

fn arrival_comes_before_messages(bench: &Bench) {
    each(bench, |world| {
        let a = world.connect_only();
        for tag in 0..20 {
            assert_eq!(world.am(A, a, tag, b"before anybody looks"), Ok(()));
        }
        world.until("twenty messages", |world| world.events(B).len() >= 21);
        world.settle();
        let arrivals = world.arrivals(B);
        assert_eq!(arrivals.len(), 1);
        let message = |tag| Event::Am(arrivals[0].ep, tag, b"before anybody looks".to_vec());
        let expected: Vec<Event> =
            [Event::Arrived(arrivals[0])].into_iter().chain((0..20).map(message)).collect();
        assert_eq!(world.events(B), expected);
    });
}

/// An address is refused, with an error that says something, in time.
#[track_caller]
fn refused(world: &mut World, address: &[u8], what: &str) -> AttachError {
    let begin = Instant::now();
    let answer = world.iface(A).connect(address, &Deadline::after(Duration::from_secs(5)));
    let Err(error) = answer else { panic!("{what} connects") };
    assert!(begin.elapsed() < PATIENCE, "{what}: {:?}", begin.elapsed());
    assert!(!error.to_string().is_empty() && !error.remedy().is_empty(), "{what}: {error:?}");
    error
}

/// After all that was refused nothing has arrived, and the good address still connects.
#[track_caller]
fn nobody_came(world: &mut World) {
    world.expect_nothing();
    let pair = world.connect();
    world.expect_delivery(A, pair, 3, b"the good one");
    world.expect_delivery(B, pair, 4, b"and back");
    world.expect_nothing();
}

fn garbage_is_no_address(bench: &Bench) {
    each(bench, |world| {
        let len = world.iface(B).address().len();
        let mut rng = Rng::new(testkit::seed() ^ 0x6164_6472);
        let mut random = vec![0; len];
        for _ in 0..50 {
            rng.fill(&mut random);
            refused(world, &random, "garbage");
        }
        for byte in [0, 0xff] {
            refused(world, &vec![byte; len], "bytes that are all the same");
            refused(world, &vec![byte; 100_000], "too much of it");
        }
        nobody_came(world);
    });
}

fn truncated_addresses_are_refused(bench: &Bench) {
    each(bench, |world| {
        let address = world.iface(B).address();
        for len in 0..address.len() {
            let error = refused(world, &address[..len], "a truncated address");
            assert!(matches!(error, AttachError::Malformed(_)), "{len} bytes: {error:?}");
        }
        for more in [&[0][..], &[0xff], &address] {
            let error = refused(world, &[&address, more].concat(), "an address that goes on");
            assert!(matches!(error, AttachError::Malformed(_)), "{more:?} more: {error:?}");
        }
        nobody_came(world);
    });
}

/// An address with one byte changed is refused; or the byte is a hint, and who connects has reached B.
fn changed_addresses_mislead_nobody(bench: &Bench) {
    each(bench, |world| {
        let address = world.iface(B).address();
        let mut hints = 0;
        for at in 0..address.len() {
            let mut changed = address.clone();
            changed[at] ^= 1 << (at % 8);
            match world.iface(A).connect(&changed, &Deadline::after(Duration::from_secs(2))) {
                Err(error) => assert!(!error.to_string().is_empty()),
                Ok(new) => {
                    hints += 1;
                    world.until("an arrival", |world| !world.arrivals(B).is_empty());
                    let b = world.arrivals(B)[0].ep;
                    world.told_of(B, b);
                    world.expect_delivery(A, Pair { a: new.ep, b }, 5, b"by a hint");
                    world.disconnect(A, new.ep);
                    world.disconnect(B, b);
                }
            }
        }
        let known = address.len() - hints;
        assert!(known >= 16, "a secret of less than sixteen bytes, as {hints} of the address change nothing");
        nobody_came(world);
    });
}

/// Neither the context nor the secret is enough: both must be of the same interface.
fn spliced_addresses_are_refused(bench: &Bench) {
    each(bench, |world| {
        let stranger = Side::open(&bench.fixture);
        let theirs = open(&stranger);
        let sibling = open(world.side(B));
        let address = world.iface(B).address();
        for other in [theirs.address(), sibling.address()] {
            assert_eq!(address.len(), other.len());
            for cut in [16, 20, address.len() / 2].into_iter().filter(|cut| *cut < address.len()) {
                for (head, tail) in [(&address, &other), (&other, &address)] {
                    let spliced = [&head[..cut], &tail[cut..]].concat();
                    if spliced != address && spliced != other {
                        refused(world, &spliced, "an address of two");
                    }
                }
            }
        }
        drop((theirs, sibling));
        nobody_came(world);
    });
}

fn other_workers_are_refused_where_unreachable(bench: &Bench) {
    each(bench, |world| {
        let stranger = Side::open(&bench.fixture);
        let others = [open(&stranger), open(world.side(A))];
        let reaches = world.iface(A).attr().flags.contains(IfaceFlags::INTER_PROCESS);
        for other in others {
            if reaches {
                let new = world.try_connect(A, &other.address()).expect("it reaches others");
                world.disconnect(A, new.ep);
            } else {
                let error = refused(world, &other.address(), "another worker's address");
                assert!(matches!(error, AttachError::Elsewhere { .. }), "{error:?}");
            }
        }
        nobody_came(world);
    });
}

fn dropped_ones_are_refused(bench: &Bench) {
    each(bench, |world| {
        let sibling = open(world.side(B));
        let old = sibling.address();
        drop(sibling);
        refused(world, &old, "a dropped interface's address");
        let newer = open(world.side(B));
        refused(world, &old, "a dropped interface's address, with a newer one");
        drop(newer);
        let stranger = Side::open(&bench.fixture);
        let theirs = open(&stranger);
        let old = theirs.address();
        drop(theirs);
        drop(stranger);
        refused(world, &old, "a dropped context's address");
        nobody_came(world);
    });
    each_of_two(bench, |world| {
        let address = world.iface(B).address();
        let pair = world.connect();
        drop(world.take(B));
        refused(world, &address, "an address that was good");
        world.expect(A, pair, &[Event::Gone(pair.a, uct::api::Gone::Closed)]);
    });
}
