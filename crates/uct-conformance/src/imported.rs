//! Attached memory as an operand: bytes go from one exporter's memory to another's, by every pair of transports. The transport under test is
//! the target's; the operand is attached by each transport of the library in turn.

use std::thread;
use std::time::Duration;

use ucs::mem::page::page_size;
use uct::api::{Attachment, MdFlags};
use uct::memory::{AccessError, DeniedReason, Local, LocalMut, OperandReason, Rights, StaleReason};
use uct::registrations::RegisterError;
use uct::transports;

use crate::bench::{Bench, assert_holds, whole};
use crate::fixture::{Fixture, Place, pattern};
use crate::operands::Operations;
use crate::{Check, list};

pub(crate) const CHECKS: &[Check] = list![imported:
    every_pair_moves_what_is_asked in Everywhere,
    no_bytes in Everywhere,
    the_same_memory_on_both_sides in Everywhere,
    beyond_the_target in Everywhere,
    a_part_is_what_lies_within in Once,
    operand_is_revoked in Everywhere,
    target_is_revoked in Everywhere,
    read_only_operand in Everywhere,
    read_only_target in Everywhere,
    nothing_lands_after_the_operand_is_revoked in Everywhere,
    there_is_nothing_to_register in Once,
];

/// A bench of each transport of the library that has a memory domain here (`verbs` has none without a device), whose importer is in this
/// process: for operands.
fn others(bench: &Bench) -> impl Iterator<Item = (&'static str, Bench)> {
    let elsewhere = if bench.place == Place::TwoProcesses { Place::TwoProcesses } else { Place::TwoContexts };
    let here = transports::components().iter().filter(|component| !component.query_mds().is_empty());
    here.map(move |component| {
        let name = component.name();
        let place = if name == "self" { Place::SameContext } else { elsewhere };
        (name, Bench::new(&Fixture::of(name, &[]), place))
    })
}

fn part(memory: &dyn Attachment, at: usize, len: usize) -> Local<'_> {
    Local::imported(memory, at as u64..(at + len) as u64)
}

fn part_mut(memory: &dyn Attachment, at: usize, len: usize) -> LocalMut<'_> {
    LocalMut::imported(memory, at as u64..(at + len) as u64)
}

/// What an operation must answer whose operand is refused before anything is moved.
fn refused(why: OperandReason) -> Result<(), AccessError> {
    Err(AccessError::Operand { done: 0, why })
}

/// Lengths around the pieces that transports have such operands moved in, at offsets of every alignment.
fn every_pair_moves_what_is_asked(bench: &Bench) {
    let operations = Operations::of(bench);
    // Where the machine is emulated, so much as the longest pieces need.
    let long = if testkit::watchdog::scale() > 1 { 600 << 10 } else { 3 << 20 };
    let total = long + 100;
    let (region, _, target) = bench.attached(total, 1);
    for (name, other) in others(bench) {
        let (other_region, _, operand) = other.attached(total, 2);
        let (mut there, mut here) = (pattern(1, total), pattern(2, total));
        target.write(0, &there).unwrap();
        let mut lens = vec![1, 2, 7, 8, 64, long];
        for piece in [4 << 10, target.good_piece(), operand.good_piece(), 2 * operand.good_piece()] {
            lens.extend([piece - 1, piece, piece + 1]);
        }
        for (step, &len) in lens.iter().enumerate() {
            let (to, from) = (step % 9, (3 * step + 1) % 17);
            // Words that differ from step to step.
            let fresh = pattern(step as u64 + 100, 40);
            operand.write(from as u64, &fresh[..len.min(40)]).unwrap();
            here[from..from + len.min(40)].copy_from_slice(&fresh[..len.min(40)]);
            let put = operations.put(&*target, to as u64, part(&*operand, from, len));
            assert_eq!(put, Ok(()), "{name}: put of {len} bytes from {from} to {to}");
            there[to..to + len].copy_from_slice(&here[from..from + len]);
            assert!(whole(&*target) == there, "{name}: {len} bytes from {from} to {to}, and no other");

            let (from, to) = (step % 5 + 20, (5 * step) % 13 + 30);
            let get = operations.get(&*target, from as u64, part_mut(&*operand, to, len));
            assert_eq!(get, Ok(()), "{name}: get of {len} bytes from {from} to {to}");
            here[to..to + len].copy_from_slice(&there[from..from + len]);
            assert!(whole(&*operand) == here, "{name}: {len} bytes from {from} to {to}, and no other");
        }
        assert!(bench.exporter.read(region, 0, total) == there, "{name}: the target's owner sees it");
        assert!(other.exporter.read(other_region, 0, total) == here, "{name}: the operand's owner sees it");
    }
}

fn no_bytes(bench: &Bench) {
    let operations = Operations::of(bench);
    let (_, ticket, target) = bench.attached(100, 1);
    for (name, other) in others(bench) {
        let (_, other_ticket, operand) = other.attached(100, 2);
        for at in [0, 100] {
            assert_eq!(operations.put(&*target, at, part(&*operand, 100, 0)), Ok(()), "{name}");
            assert_eq!(operations.get(&*target, at, part_mut(&*operand, 3, 0)), Ok(()), "{name}");
        }
        let put = operations.put(&*target, 101, part(&*operand, 0, 0));
        assert!(matches!(put, Err(AccessError::Bounds(_))), "{name}: {put:?}");
        // Both sides are asked, as a read or write of no bytes asks.
        other.exporter.revoke(&other_ticket);
        let why = OperandReason::Stale(StaleReason::Revoked);
        assert_eq!(operations.put(&*target, 0, part(&*operand, 0, 0)), refused(why), "{name}");
        assert_eq!(operations.get(&*target, 0, part_mut(&*operand, 0, 0)), refused(why), "{name}");
        assert_holds(&*target, 1);
    }
    let (_, _, operand) = bench.attached(100, 2);
    bench.exporter.revoke(&ticket);
    let stale = Err(AccessError::Stale { done: 0, why: StaleReason::Revoked });
    assert_eq!(operations.put(&*target, 0, part(&*operand, 0, 0)), stale);
    assert_eq!(operations.get(&*target, 0, part_mut(&*operand, 0, 0)), stale);
}

/// Which bytes come to lie where both overlap is not specified: all are some of that memory, and none is touched that was not asked for.
fn the_same_memory_on_both_sides(bench: &Bench) {
    let operations = Operations::of(bench);
    let len = 100_000;
    let (region, ticket, first) = bench.attached(len, 1);
    let second = bench.attach(&ticket);
    for operand in [&first, &second] {
        // Each byte tells whether it is of this memory.
        bench.exporter.write(region, 0, &vec![7; len]);
        let inner = &vec![8; len - 2000];
        bench.exporter.write(region, 1000, inner);
        assert_eq!(operations.put(&*first, 1500, part(&**operand, 1000, len - 3000)), Ok(()));
        assert_eq!(operations.get(&*first, 1500, part_mut(&**operand, 1000, len - 3000)), Ok(()));
        let seen = bench.exporter.read(region, 0, len);
        assert!(seen[..1000].iter().all(|byte| *byte == 7), "before both");
        assert!(seen[1000..len - 1000].iter().all(|byte| *byte == 8), "of either");
        assert!(seen[len - 1000..].iter().all(|byte| *byte == 7), "behind both");
        // Apart within one memory, they are specified.
        assert_eq!(operations.put(&*first, 10, part(&**operand, 5000, 900)), Ok(()));
        assert_eq!(bench.exporter.read(region, 9, 902), [&[7][..], &[8; 900], &[7]].concat());
    }
}

fn beyond_the_target(bench: &Bench) {
    let operations = Operations::of(bench);
    let (_, _, target) = bench.attached(100, 1);
    for (name, other) in others(bench) {
        let (_, _, operand) = other.attached(1000, 2);
        for (offset, len) in [(0, 101), (93, 8), (100, 1), (u64::MAX - 3, 8)] {
            let put = operations.put(&*target, offset, part(&*operand, 5, len));
            assert!(matches!(put, Err(AccessError::Bounds(_))), "{name}: {put:?}");
            let get = operations.get(&*target, offset, part_mut(&*operand, 5, len));
            assert!(matches!(get, Err(AccessError::Bounds(_))), "{name}: {get:?}");
        }
        assert_holds(&*operand, 2);
    }
    assert_holds(&*target, 1);
}

fn a_part_is_what_lies_within(bench: &Bench) {
    let (_, _, memory) = bench.attached(100, 1);
    #[allow(clippy::reversed_empty_ranges)] // ranges come from users
    let parts = [(0..100, 100), (40..100, 60), (90..200, 10), (100..101, 0), (300..400, 0), (50..40, 0)];
    for (range, len) in parts {
        let source = Local::imported(&*memory, range.clone());
        let mut destination = LocalMut::imported(&*memory, range);
        assert_eq!((source.len(), destination.len()), (len, len));
        assert!(source.is_imported() && destination.is_imported());
        assert_eq!((source.address(), destination.address()), (None, None));
        assert!(source.as_bytes().is_none() && destination.as_bytes().is_none());
    }
    let part = Local::imported(&*memory, 10..30);
    let mut seen = [0; 8];
    part.read(12, &mut seen).unwrap();
    assert_eq!(seen, pattern(1, 100)[22..30]);
    for (at, len) in [(13, 8), (21, 0), (usize::MAX, 2)] {
        assert!(matches!(part.read(at, &mut vec![0; len]), Err(AccessError::Bounds(_))), "{len} at {at}");
    }
    assert!(matches!(LocalMut::imported(&*memory, 10..30).write(20, &[1]), Err(AccessError::Bounds(_))));
    LocalMut::imported(&*memory, 10..30).write(19, &[1]).unwrap();
    assert_eq!(whole(&*memory)[29], 1);
}

fn operand_is_revoked(bench: &Bench) {
    let operations = Operations::of(bench);
    let len = 600_000;
    let (_, _, target) = bench.attached(len, 1);
    for (name, other) in others(bench) {
        let (region, ticket, operand) = other.attached(len, 2);
        other.exporter.revoke(&ticket);
        let answers = [
            operations.put(&*target, 0, part(&*operand, 0, len)),
            operations.get(&*target, 0, part_mut(&*operand, 0, len)),
            operations.put(&*target, 9, part(&*operand, 3, 8)),
        ];
        let expected = refused(OperandReason::Stale(StaleReason::Revoked));
        assert_eq!(answers, [expected.clone(), expected.clone(), expected.clone()], "{name}");
        let error = expected.unwrap_err();
        assert_eq!(error.status(), ucs::Status::Stale);
        assert!(error.remedy().contains("the operand's memory"), "{}", error.remedy());
        assert!(other.exporter.read(region, 0, len) == pattern(2, len), "{name}");
    }
    assert_holds(&*target, 1);
}

fn target_is_revoked(bench: &Bench) {
    let operations = Operations::of(bench);
    let len = 600_000;
    let (region, ticket, target) = bench.attached(len, 1);
    bench.exporter.revoke(&ticket);
    for (name, other) in others(bench) {
        let (_, _, operand) = other.attached(len, 2);
        let stale = Err(AccessError::Stale { done: 0, why: StaleReason::Revoked });
        assert_eq!(operations.put(&*target, 0, part(&*operand, 0, len)), stale, "{name}");
        assert_eq!(operations.get(&*target, 0, part_mut(&*operand, 0, len)), stale, "{name}");
        assert_holds(&*operand, 2);
    }
    assert!(bench.exporter.read(region, 0, len) == pattern(1, len));
}

fn read_only_operand(bench: &Bench) {
    let operations = Operations::of(bench);
    let len = page_size() + 5;
    let (_, _, target) = bench.attached(len, 1);
    for (name, other) in others(bench) {
        let region = other.exporter.create(other.importer.usual(), len, Rights::READ, 2);
        let operand = other.attach(&other.exporter.export(region));
        let expected = refused(OperandReason::AccessDenied(DeniedReason::ReadOnlyExport));
        assert_eq!(operations.get(&*target, 0, part_mut(&*operand, 0, len)), expected, "{name}");
        assert_eq!(part_mut(&*operand, 0, len).check(), expected, "{name}: told before");
        assert_eq!(expected.unwrap_err().status(), ucs::Status::AccessDenied);
        assert_holds(&*operand, 2);
        assert_holds(&*target, 1);
        assert_eq!(operations.put(&*target, 0, part(&*operand, 0, len)), Ok(()), "{name}: it may be read");
        assert_holds(&*target, 2);
        target.write(0, &pattern(1, len)).unwrap();
    }
}

fn read_only_target(bench: &Bench) {
    let operations = Operations::of(bench);
    let len = page_size() + 5;
    let region = bench.exporter.create(bench.importer.usual(), len, Rights::READ, 1);
    let target = bench.attach(&bench.exporter.export(region));
    for (name, other) in others(bench) {
        let (_, _, operand) = other.attached(len, 2);
        let put = operations.put(&*target, 0, part(&*operand, 0, len));
        let denied = AccessError::AccessDenied { done: 0, why: DeniedReason::ReadOnlyExport };
        assert_eq!(put, Err(denied), "{name}: the target's own error");
        assert_eq!(operations.get(&*target, 0, part_mut(&*operand, 0, len)), Ok(()), "{name}");
        assert_holds(&*operand, 1);
    }
    assert_holds(&*target, 1);
}

/// When the revocation of an operand's export has answered, its memory is its owner's alone, whatever transfers are under way.
fn nothing_lands_after_the_operand_is_revoked(bench: &Bench) {
    let operations = Operations::of(bench);
    let len = 300_000;
    let (_, _, target) = bench.attached(len, 1);
    for (name, other) in others(bench) {
        for round in 0..4 {
            let (region, ticket, operand) = other.attached(len, 2);
            thread::scope(|scope| {
                let mover = scope.spawn(|| {
                    loop {
                        let get = operations.get(&*target, 0, part_mut(&*operand, 0, len));
                        let put = operations.put(&*target, 0, part(&*operand, 0, len));
                        if let Err(error) = get.and(put) {
                            return error;
                        }
                    }
                });
                thread::sleep(Duration::from_micros(500 * round));
                other.exporter.revoke(&ticket);
                other.exporter.write(region, 0, &vec![0x77; len]);
                let error = mover.join().unwrap();
                let stale = OperandReason::Stale(StaleReason::Revoked);
                let is_told = matches!(error, AccessError::Operand { why, .. } if why == stale);
                assert!(is_told, "{name}: {error}");
                assert!(other.exporter.read(region, 0, len).iter().all(|byte| *byte == 0x77), "{name}");
            });
        }
    }
}

/// Where operands must be registered, such a one is told from others by whoever registers, and by the transport itself.
fn there_is_nothing_to_register(bench: &Bench) {
    let (_, _, target) = bench.attached(100, 1);
    let (_, _, operand) = bench.attached(100, 2);
    let operations = Operations::of(bench);
    let Some(needs) = operations.needs else {
        assert_eq!(target.put(0, &part(&*operand, 0, 100)), Ok(()));
        return assert_holds(&*target, 2);
    };
    assert!(bench.importer.has(MdFlags::NEED_MEMH));
    let why = AccessError::Operand { done: 0, why: OperandReason::NotRegistered };
    let never = |_: &Local<'_>| panic!("it is not called");
    let source = operations.registrations.with_source(needs, part(&*operand, 0, 100), never);
    assert_eq!(source, Err(RegisterError::Operand(why.clone())));
    let never = |_: &mut LocalMut<'_>| panic!("it is not called");
    let destination = operations.registrations.with_destination(needs, part_mut(&*operand, 0, 100), never);
    assert_eq!(destination, Err(RegisterError::Operand(why.clone())));
    assert_eq!(target.put(0, &part(&*operand, 0, 100)), Err(why));
    assert_holds(&*target, 1);
}
