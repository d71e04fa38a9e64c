//! Mappings that move, grow and shrink.

use testkit::role::rounds;
use ucs::mem::Access;

use crate::world::{Memory, PAGE, World, tag};

const LEN: usize = 8 * PAGE;

/// 5: moved elsewhere by mremap, with others in its place, and back.
pub(crate) fn t05_moved() {
    let world = World::new();
    let (here, there) = (Memory::new(LEN), Memory::new(LEN));
    for round in 0..rounds(1_000) {
        world.agree(&here, 0, LEN);
        let (kept, moved) = (tag(), tag());
        here.write(0, moved);
        here.move_to(0, LEN, &there, 0);
        if round % 3 == 0 {
            // Nothing is mapped there: there is nothing to register.
            assert!(world.cache.get(here.address(0), LEN, Access::ReadWrite).is_err());
        }
        here.map_over(0, LEN);
        here.write(0, kept);
        assert_eq!(world.dma(here.address(0), LEN), Some(kept));
        assert_eq!(world.dma(there.address(0), LEN), Some(moved), "what was moved is where it was moved to");
        world.agree(&there, 0, LEN);
        if round % 2 == 0 {
            there.move_to(0, LEN, &here, 0);
            there.map_over(0, LEN);
        }
    }
    world.ends_empty();
}

/// 6: grown and shrunk in place.
pub(crate) fn t06_grown_and_shrunk() {
    let world = World::new();
    let memory = Memory::new(2 * LEN);
    memory.unmap(LEN, LEN);
    for round in 0..rounds(1_000) {
        world.agree(&memory, 0, LEN);
        memory.resize(0, LEN, 2 * LEN);
        world.agree(&memory, 0, 2 * LEN);
        world.agree(&memory, PAGE, LEN);
        memory.resize(0, 2 * LEN, LEN);
        if round % 2 == 0 {
            assert!(world.cache.get(memory.address(0), LEN + 1, Access::ReadWrite).is_err(), "it is gone");
        }
    }
    world.ends_empty();
}

/// 7: other memory moved onto a registration.
pub(crate) fn t07_moved_onto_a_registration() {
    let world = World::new();
    let (target, source) = (Memory::new(LEN), Memory::new(LEN));
    for round in 0..rounds(1_000) {
        world.agree(&target, 0, LEN);
        let (at, len) = [(0, LEN), (0, LEN / 2), (LEN / 2, LEN / 2)][round % 3];
        if round % 2 == 0 {
            world.agree(&source, at, len);
        }
        let value = tag();
        source.write(at, value);
        source.move_to(at, len, &target, at);
        assert_eq!(world.dma(target.address(at), len), Some(value));
        world.agree(&target, 0, LEN);
        source.map_over(at, len);
    }
    world.ends_empty();
}

/// What others unmap, next to it, is no change of a registration.
pub(crate) fn bystanders_stay() {
    let world = World::new();
    let memory = Memory::new(3 * LEN);
    let mr = *world.get(memory.address(LEN), LEN);
    for _ in 0..rounds(500) {
        world.agree(&memory, 0, LEN);
        world.agree(&memory, 2 * LEN, LEN);
        memory.unmap_and_map(0, LEN);
        memory.drop_pages(2 * LEN, LEN);
        memory.unmap_and_map(2 * LEN, LEN);
        // While other changes are told, it may be made for one use; it is found again after that.
        let region = world.get(memory.address(LEN), LEN);
        assert!(*region == mr || region.is_one_shot());
    }
    crate::world::wait_until("it is found", || *world.get(memory.address(LEN), LEN) == mr);
}
