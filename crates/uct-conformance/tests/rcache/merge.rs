//! Registrations that overlap, and memory that does not allow all of it.

use testkit::role::rounds;
use ucs::mem::Access;
use ucs::mem::page::PageRange;
use ucs::rcache::GetError;
use uct_conformance::nic::RegisterError;

use crate::memory::READ_WRITE;
use crate::world::{Memory, PAGE, World, tag, wait_until};

const LEN: usize = 8 * PAGE;

/// 18: a part of memory that several registrations were merged to is unmapped.
pub(crate) fn t18_a_part_of_merged_memory_is_unmapped() {
    let world = World::new();
    let memory = Memory::new(LEN);
    for round in 0..rounds(1_000) {
        world.agree_cached(&memory, 0, LEN / 2);
        world.agree_cached(&memory, LEN / 4, LEN / 2);
        let both = PageRange::containing(memory.address(0), LEN * 3 / 4).unwrap();
        let merged = world.get(memory.address(LEN / 4), PAGE).range();
        assert!(merged.is_some_and(|merged| merged.contains(both)), "{merged:?}");
        let gone = [0, 2, 5][round % 3] * PAGE;
        memory.unmap(gone, PAGE);
        if round % 2 == 0 {
            assert!(world.cache.get(memory.address(gone), PAGE, Access::ReadWrite).is_err());
            assert!(world.cache.get(memory.address(0), LEN, Access::ReadWrite).is_err());
            // Those beside the hole can be used.
            world.agree(&memory, 3 * PAGE, 2 * PAGE);
        }
        memory.map_over(gone, PAGE);
        world.agree(&memory, 0, LEN);
    }
    world.ends_empty();
}

/// 19: merged with a page that cannot be written: what was asked for is registered, no more, and kept.
pub(crate) fn t19_merged_with_a_page_that_cannot_be_written() {
    let world = World::new();
    let memory = Memory::new(LEN);
    for _ in 0..200 {
        world.agree(&memory, 0, LEN / 2);
        memory.protect(0, PAGE, libc::PROT_READ);
        // Overlaps what was registered, whose first page cannot be registered any more.
        let asked = PageRange::containing(memory.address(PAGE), LEN / 2).unwrap();
        let region = world.get(asked.start(), asked.len());
        assert!(region.range() == Some(asked), "{:?}", region.range());
        drop(region);
        world.agree(&memory, PAGE, LEN / 2);
        let error = world.cache.get(memory.address(0), LEN, Access::ReadWrite).unwrap_err();
        assert_eq!(error, GetError::Register(RegisterError::Fault));
        world.agree(&memory, PAGE, LEN / 2);
        memory.protect(0, PAGE, READ_WRITE);
        world.agree(&memory, 0, LEN);
        world.cache.purge();
    }
    world.ends_empty();
}

/// 20: what may not be written any more. What is not registered yet is refused; of what is, no event tells: the pages are the same, and
/// a registration for writing stays one, as documented. When a part is concerned, the mapping is split, which the check sees.
pub(crate) fn t20_no_more_writable() {
    let world = World::strict();
    let memory = Memory::new(LEN);
    let refused = |at, len| {
        let error = world.cache.get(memory.address(at), len, Access::ReadWrite).unwrap_err();
        assert_eq!(error, GetError::Register(RegisterError::Fault));
    };
    for _ in 0..200 {
        memory.protect(0, LEN, libc::PROT_READ);
        refused(0, LEN);
        memory.protect(0, LEN, READ_WRITE);
        world.agree(&memory, 0, LEN);
        // A part of it: the registration of the whole is not used again.
        memory.protect(2 * PAGE, PAGE, libc::PROT_READ);
        refused(0, LEN);
        refused(2 * PAGE, PAGE);
        world.agree(&memory, 3 * PAGE, PAGE);
        memory.protect(0, LEN, READ_WRITE);
        world.agree_cached(&memory, 0, LEN);
        // All of it: the same pages, whose bytes are seen.
        let value = tag();
        memory.write(PAGE, value);
        memory.protect(0, LEN, libc::PROT_READ);
        // While changes are being told, or their end is looked for, nothing is found; and anew it cannot be registered.
        wait_until("it is found", || {
            let seen = world.dma(memory.address(PAGE), PAGE);
            assert!([None, Some(value)].contains(&seen), "{seen:?}");
            seen.is_some()
        });
        memory.protect(0, LEN, READ_WRITE);
        world.agree(&memory, 0, LEN);
        // Mapped anew without the right: the check finds out.
        memory.try_map(0, LEN, libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1).unwrap();
        refused(0, LEN);
        memory.map_over(0, LEN);
    }
    world.ends_empty();
}
