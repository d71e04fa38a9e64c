//! Pages that are dropped and stay mapped.

use std::os::fd::AsRawFd as _;

use testkit::role::rounds;
use ucs::monitor::Monitor;
use ucs::rcache::{Mode, Options};

use crate::memory::READ_WRITE;
use crate::world::{Memory, PAGE, World, tag};

const LEN: usize = 8 * PAGE;

/// 9: MADV_FREE: pages may go at any time, until they are written again.
pub(crate) fn t09_freed_lazily() {
    let world = World::new();
    let memory = Memory::new(LEN);
    for round in 0..rounds(1_000) {
        world.agree(&memory, 0, LEN);
        memory.advise(0, LEN, libc::MADV_FREE).unwrap();
        if round % 2 == 0 {
            let _ = memory.advise(0, LEN, libc::MADV_PAGEOUT); // now, if nobody holds them
        }
        world.agree(&memory, 2 * PAGE, LEN / 2);
    }
    world.ends_empty();
}

/// 10: MADV_DONTNEED_LOCKED, MADV_REMOVE, and process_madvise(2).
pub(crate) fn t10_dropped_in_other_ways() {
    const MADV_DONTNEED_LOCKED: libc::c_int = 24; // Linux 5.18
    let world = World::new();
    let memory = Memory::new(LEN);
    let by_pidfd = memory.advise_by_pidfd(0, LEN, libc::MADV_DONTNEED);
    let locked = memory.advise(0, LEN, MADV_DONTNEED_LOCKED);
    for _ in 0..rounds(1_000) {
        if locked.is_ok() {
            world.agree(&memory, 0, LEN);
            memory.advise(PAGE, 2 * PAGE, MADV_DONTNEED_LOCKED).unwrap();
        }
        // One's own process only: Linux 6.13. Before, it does not drop pages at all.
        if by_pidfd.is_ok() {
            world.agree(&memory, 0, LEN);
            memory.advise_by_pidfd(PAGE, 2 * PAGE, libc::MADV_DONTNEED).unwrap();
        }
        world.agree(&memory, 0, LEN);
    }
    let file = rustix::fs::memfd_create("rcache", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, LEN as u64).unwrap();
    let mut options = Options::default();
    options.files = true; // nobody shrinks it
    let world = World::with(Monitor::process(), options);
    let shared = Memory::new(LEN);
    shared.map_file(0, LEN, READ_WRITE, libc::MAP_SHARED, file.as_raw_fd());
    for _ in 0..rounds(1_000) {
        world.agree(&shared, 0, LEN);
        shared.advise(PAGE, 2 * PAGE, libc::MADV_REMOVE).unwrap();
        world.agree(&shared, 0, LEN);
    }
    world.ends_empty();
}

/// 14: MADV_GUARD_INSTALL, of which no event tells. Memory with guard pages holds nothing, so nobody uses it; when the first page of a
/// registration was one, and the guards are removed, the check finds out. Guards in the midst are found by nobody: what was
/// registered there has to be told of by [`ucs::rcache::Cache::invalidate`].
pub(crate) fn t14_guard_pages() {
    const INSTALL: libc::c_int = 102; // Linux 6.13
    const REMOVE: libc::c_int = 103;
    let world = World::new();
    let memory = Memory::new(LEN);
    if memory.advise(0, PAGE, INSTALL).is_err() {
        return crate::world::skip("this kernel has no guard pages", "use Linux 6.13 or newer");
    }
    memory.advise(0, PAGE, REMOVE).unwrap();
    for _ in 0..200 {
        world.agree(&memory, 0, LEN);
        memory.advise(0, LEN, INSTALL).unwrap();
        memory.advise(0, LEN, REMOVE).unwrap();
        let region = world.get(memory.address(0), LEN);
        let value = tag();
        memory.write(5 * PAGE, value);
        assert_eq!(world.nic.dma_out_u64(&region, memory.address(5 * PAGE)), Ok(value));
        drop(region);
        // Told of by hand, or by hooks of the C library's calls.
        world.agree(&memory, 0, LEN);
        memory.advise(3 * PAGE, PAGE, INSTALL).unwrap();
        memory.advise(3 * PAGE, PAGE, REMOVE).unwrap();
        if world.cache.mode() != Mode::Hooks {
            let pages = ucs::mem::page::PageRange::containing(memory.address(3 * PAGE), PAGE).unwrap();
            world.cache.invalidate(pages);
        }
        world.agree(&memory, 0, LEN);
    }
    world.ends_empty();
}
