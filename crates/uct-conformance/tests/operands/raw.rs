//! Raw memory: whatever is mapped there when the operation begins.
//!
//! # Safety
//! [`Memory`] is touched by volatile accesses and by operations only, so it may be named as raw memory.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};

use ucp::wire::handle::Handle;
use ucp::{OperandReason, RawMem, TransferError};
use ucs::rcache::Options;
use ucs::time::Deadline;
use uct::api::AttachRequest;
use uct::memory::{AccessError, Source};
use uct::registrations::Registrations;
use uct_conformance::Blind;

use crate::memory::{Memory, PAGE};
use crate::world::{World, caches};

pub(crate) const SIZE: usize = 8 * PAGE;

pub(crate) fn raw(memory: &Memory) -> RawMem {
    let start = std::ptr::with_exposed_provenance_mut(memory.address(0));
    // SAFETY: nobody borrows it (module rule).
    unsafe { RawMem::new(start, memory.len()) }
}

/// Writes to each page.
fn tag(memory: &Memory, number: u64) {
    (0..memory.len()).step_by(PAGE).for_each(|at| memory.write(at, number << 20 | at as u64));
}

/// What [`tag`] has written, in what an operation has moved.
#[track_caller]
fn assert_tagged(bytes: &[u8], number: u64) {
    for (at, page) in bytes.chunks(PAGE).enumerate() {
        let seen = u64::from_ne_bytes(page[..8].try_into().unwrap());
        assert_eq!(seen, number << 20 | (at * PAGE) as u64, "page {at} in round {number}");
    }
}

pub(crate) fn unmapped_and_mapped_between_operations() {
    if !caches() {
        return;
    }
    let world = World::new();
    let memory = Memory::new(SIZE);
    for number in 1..2_000 {
        tag(&memory, number);
        world.import.put(0, raw(&memory)).unwrap();
        assert_tagged(&world.at(0, SIZE), number);
        world.import.put(0, raw(&memory)).unwrap();
        match number % 4 {
            0 => memory.unmap_and_map_raw(0, SIZE),
            1 => memory.unmap_and_map(2 * PAGE, 3 * PAGE),
            2 => memory.drop_pages(0, SIZE),
            _ => memory.map_over(PAGE, PAGE),
        }
        world.import.get(0, raw(&memory)).unwrap();
        for at in (0..SIZE).step_by(PAGE) {
            assert_eq!(memory.read(at), number << 20 | at as u64, "{at:#x} in round {number}");
        }
    }
    let stats = world.stats();
    assert!(stats.hits > 500, "{stats:?}");
    assert!(stats.invalidations + stats.replaced > 500, "{stats:?}");
}

/// The same with a cache that nobody tells of changes: old pages are seen. So the tests here prove something.
pub(crate) fn guard_without_protection() {
    static BLIND: Blind = Blind;
    let world = World::new();
    let (_, md) = world.importer.transports().next().unwrap();
    let content = Handle::decode(world.handle.as_bytes(), |_| true).unwrap();
    let request = AttachRequest {
        context_uuid: content.context_uuid,
        id: content.registration_id,
        epoch: content.epoch,
        address: content.address,
        length: content.length,
        mkey: &content.entries[0].mkey,
        deadline: Deadline::after(std::time::Duration::from_secs(5)),
    };
    let attachment = md.attach(&request).unwrap().memory;
    // SAFETY: it lies, and the old pages that operations then use are this test's.
    let registrations = unsafe { Registrations::with_monitor([md], &BLIND, Options::default()) };
    let needs = registrations.of(md).unwrap();
    let memory = Memory::new(SIZE);
    let mut seen = [0; 8];
    let mut put = |number| {
        tag(&memory, number);
        let raw = raw(&memory);
        registrations.with_source(needs, raw.local(), |src| attachment.put(0, src)).unwrap().unwrap();
        world.import.read(0, &mut seen).unwrap();
        u64::from_ne_bytes(seen) >> 20
    };
    assert_eq!(put(1), 1);
    memory.unmap_and_map(0, SIZE);
    assert_eq!(put(2), 1, "the pages of then");
    // And an operand that nobody has registered is refused.
    let raw = raw(&memory);
    let refused = attachment.put(0, &raw.local());
    assert_eq!(refused, Err(AccessError::Operand { done: 0, why: OperandReason::NotRegistered }));
}

/// Other threads unmap and map memory beside, and of the operand itself: nobody reads what was never there.
pub(crate) fn mapped_by_others_meanwhile() {
    let world = World::new();
    let (mine, theirs) = (Memory::new(SIZE), Memory::new(SIZE));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                theirs.unmap_and_map(0, SIZE);
                theirs.drop_pages(PAGE, PAGE);
                mine.map_over(SIZE - PAGE, PAGE); // the last page, which is not looked at
            }
        });
        for number in 1..1_000 {
            for at in (0..SIZE - PAGE).step_by(PAGE) {
                mine.write(at, number << 20 | at as u64);
            }
            world.import.put(0, raw(&mine)).unwrap();
            assert_tagged(&world.at(0, SIZE - PAGE), number);
            match world.import.put(SIZE as u64, raw(&theirs)) {
                Ok(_) | Err(ucp::OpError { error: TransferError::Register(_), .. }) => {}
                Err(other) => panic!("{other}"),
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}
