//! Operands that cannot be registered come back, with a typed error.

use std::mem::discriminant;

use ucp::{OpError, RegError, RegisterError, Status, TransferError};
use uct_conformance::nic::NIC_COMPONENT;

use crate::memory::{Memory, PAGE};
use crate::raw::{SIZE, raw};
use crate::world::{LEN, World, caches, pattern};

/// That registering was refused by the NIC, as `like` is.
#[track_caller]
fn assert_refused<M>(failed: &OpError<M>, like: &RegError, status: Status) {
    match &failed.error {
        TransferError::Register(RegisterError::Md { component, error }) => {
            assert_eq!(*component, NIC_COMPONENT);
            assert_eq!(discriminant(error), discriminant(like), "{failed}");
        }
        other => panic!("{other}"),
    }
    assert_eq!(failed.status(), status);
    assert!(!failed.remedy().is_empty());
}

fn pages() -> RegError {
    RegError::Pages { why: String::new() }
}

pub(crate) fn not_mapped() {
    let world = World::new();
    let memory = Memory::new(SIZE);
    memory.unmap(2 * PAGE, PAGE);
    let failed = world.import.put(0, raw(&memory)).unwrap_err();
    assert_refused(&failed, &pages(), Status::InvalidAddr);
    let address = memory.address(0) as u64;
    assert_eq!((failed.operand.address(), failed.operand.len()), (address, SIZE));
    let failed = world.import.get(0, failed.operand).unwrap_err();
    assert_refused(&failed, &pages(), Status::InvalidAddr);
    memory.map_over(2 * PAGE, PAGE);
    memory.write(2 * PAGE, 7);
    world.import.put(0, failed.operand).unwrap();
    assert_eq!(world.at(2 * PAGE, 8), 7_u64.to_ne_bytes());
}

/// This NIC pins memory that may be written only.
pub(crate) fn not_writable() {
    let world = World::new();
    let failed = world.import.put(0, &b"read-only data of the program"[..]).unwrap_err();
    assert_refused(&failed, &pages(), Status::InvalidAddr);
    assert_eq!(failed.operand, b"read-only data of the program");
    assert_eq!(world.at(0, 4), [0; 4], "nothing was moved");
}

pub(crate) fn more_than_may_be_pinned() {
    let world = World::with(LEN + (1 << 20));
    let failed = world.import.put(0, pattern(1, 2 << 20)).unwrap_err();
    let limit = RegError::Limit { why: String::new(), remedy: "" };
    assert_refused(&failed, &limit, Status::NoResource);
    assert!(failed.operand == pattern(1, 2 << 20));
    // What is smaller is none the worse for it.
    let small = world.import.put(0, pattern(2, 4096)).unwrap();
    assert_eq!(world.at(0, 4096), small);
}

/// Registrations that are cached and not in use do not use up a limit.
pub(crate) fn idle_registrations_make_room() {
    if !caches() {
        return;
    }
    const SIZE: usize = 300 << 10;
    let world = World::with(LEN + (1 << 20));
    // All alive, so that none's registration ends by itself.
    let mut kept = Vec::new();
    for number in 0..20 {
        let buf = world.import.put(0, pattern(number, SIZE)).unwrap();
        assert_eq!(world.at(0, SIZE), buf);
        kept.push(buf);
    }
    let mut kept = kept.into_iter();
    let first = world.import.get(0, kept.next().unwrap()).unwrap();
    assert_eq!(first, pattern(19, SIZE));
    let stats = world.stats();
    assert!(stats.deregistrations >= 10 && stats.misses > 20, "{stats:?}");
    assert!(world.nic.registrations() > 1, "and some are kept");
}

/// What is refused for another reason is not registered before.
pub(crate) fn out_of_range() {
    let world = World::new();
    for offset in [LEN as u64 - 1, u64::MAX] {
        let failed = world.import.put(offset, vec![1; 2]).unwrap_err();
        assert_eq!((failed.status(), failed.operand), (Status::OutOfRange, vec![1; 2]));
        assert_eq!(world.import.get(offset, vec![1; 2]).unwrap_err().status(), Status::OutOfRange);
    }
    assert_eq!(world.stats().gets, 0);
}
