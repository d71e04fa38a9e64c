//! A fork's child.
//!
//! # Safety
//! The child ends by `_exit`, and uses the library as a program would that was forked from.

#![allow(unsafe_code)]

use testkit::Forked;
use ucp::Status;

use crate::world::{World, pattern};

/// A child is told that the import is its parent's, and gets its operand back; its own context works. The parent goes on.
pub(crate) fn a_child_uses_the_library() {
    let world = World::new();
    let mut kept = Some(world.import.put(0, pattern(1, 40_000)).unwrap());
    for round in 0..10 {
        let check = || {
            let Some(buf) = kept.take() else { return false };
            let Err(refused) = world.import.put(0, buf) else { return false };
            if refused.status() != Status::Stale || refused.operand.len() != 40_000 {
                return false;
            }
            let own = World::new();
            let Ok(buf) = own.import.put(0, refused.operand) else { return false };
            own.at(0, 40_000) == buf && own.import.get(0, buf).is_ok() && own.stats().gets == 2
        };
        // SAFETY: the C library's fork leaves its allocator usable in the child (module rule).
        let child = Forked::by(|| unsafe { libc::fork() }, check);
        let buf = kept.take().unwrap();
        let buf = world.import.put(round, buf).unwrap();
        assert_eq!(world.at(usize::try_from(round).unwrap(), 40_000), buf);
        assert!(child.said_yes(), "round {round}");
        kept = Some(world.import.get(round, buf).unwrap());
    }
    assert_eq!(world.stats().gets, 21);
}

/// Buffers and slices of the parent's are no operands in the child, whose own import is all right: it is told, and gets them back.
pub(crate) fn operands_of_the_parent() {
    let world = World::new();
    let ctx = &world.importer;
    let mut buf = Some(ctx.buf(10_000).unwrap());
    let region = ctx.mem_map(ucp::MemMap::allocate(10_000)).unwrap();
    let mut slice = Some(region.slice(..).unwrap());
    let check = || {
        let own = World::new();
        let (Some(buf), Some(slice)) = (buf.take(), slice.take()) else { return false };
        let Err(refused) = own.import.put(0, buf) else { return false };
        let told = refused.status() == Status::Forked;
        let Err(refused) = own.import.get(0, refused.operand) else { return false };
        let told = told && refused.status() == Status::Forked;
        let Err(of_slice) = own.import.put(0, slice) else { return false };
        told && of_slice.status() == Status::Forked && of_slice.operand.len() == 10_000
    };
    // SAFETY: the C library's fork leaves its allocator usable in the child (module rule).
    assert!(Forked::by(|| unsafe { libc::fork() }, check).said_yes());
    world.import.put(0, buf.unwrap()).unwrap();
}
