//! Children of the process, and programs that are started.
//!
//! # Safety
//! Children of a fork end by `_exit`, and use the library as a program would that was forked from.

#![allow(unsafe_code)]

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use testkit::Forked;
use ucs::mem::Access;
use ucs::rcache::GetError;

use crate::world::{Memory, PAGE, World, tag, wait_until};

const LEN: usize = 8 * PAGE;

/// Starts a child that runs `check`.
fn fork(check: impl FnOnce() -> bool) -> Forked {
    // SAFETY: the C library's fork leaves its allocator usable in the child (module rule).
    Forked::by(|| unsafe { libc::fork() }, check)
}

/// 16: after a fork the parent's pages stay the parent's, where it has written and where not.
pub(crate) fn t16_the_parent_writes_after_a_fork() {
    let world = World::new();
    let memory = Memory::new(LEN);
    for round in 0..100 {
        world.agree(&memory, 0, LEN);
        let value = tag();
        memory.write(0, value);
        let in_use = world.get(memory.address(0), LEN);
        let hits = world.cache.stats().hits;
        let child = fork(|| {
            // Its own copy, which it writes to and unmaps.
            let seen = memory.read(0) == value;
            memory.write(0, 1);
            memory.unmap(0, LEN);
            seen
        });
        memory.write(PAGE, value + (1 << 50));
        assert_eq!(world.nic.dma_out_u64(&in_use, memory.address(PAGE)), Ok(value + (1 << 50)));
        assert_eq!(world.dma(memory.address(0), PAGE), Some(value), "the child has unmapped a copy");
        world.agree(&memory, 0, LEN);
        assert!(child.said_yes());
        world.agree(&memory, 0, LEN);
        assert!(world.cache.stats().hits > hits, "round {round}: a fork is no change of the parent's memory");
    }
    world.ends_empty();
}

/// 16: a child that uses its parent's cache is told so; its own is a new one.
pub(crate) fn t16_a_child_uses_the_library() {
    let world = World::new();
    let memory = Memory::new(LEN);
    world.agree(&memory, 0, LEN);
    let held = world.get(memory.address(0), LEN);
    let mut parents = Some((world, held));
    for round in 0..30 {
        let child = fork(|| {
            let Some((world, held)) = parents.take() else { return false };
            let refused = world.cache.get(memory.address(0), LEN, Access::ReadWrite).err();
            let forked = refused == Some(GetError::Forked);
            world.cache.purge();
            // Dropped in any order: nothing of the parent's is deregistered.
            if round % 2 == 0 {
                drop((held, world));
            } else {
                drop((world, held));
            }
            let own = World::new();
            for _ in 0..20 {
                own.agree(&memory, 0, LEN);
                memory.unmap_and_map(0, LEN);
            }
            // Also its reclaimer works, with nobody calling.
            wait_until("its own are deregistered", || own.nic.registrations() == 0);
            own.ends_empty();
            forked
        });
        let (world, held) = parents.as_ref().unwrap();
        world.agree(&memory, 0, LEN);
        assert!(child.said_yes(), "round {round}");
        assert!(world.nic.is_registered(held));
        memory.unmap_and_map(0, PAGE);
        world.agree(&memory, 0, LEN);
    }
    let (world, held) = parents.take().unwrap();
    drop(held);
    world.ends_empty();
}

/// 17: programs are started, by vfork and by fork, while others use and unmap memory.
pub(crate) fn t17_programs_are_started_meanwhile() {
    let world = World::new();
    let (stop, operations) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let memory = Memory::new(LEN);
                while !stop.load(Ordering::Relaxed) {
                    world.agree(&memory, 0, LEN);
                    memory.unmap_and_map(0, LEN / 2);
                    memory.drop_pages(LEN / 2, LEN / 2);
                    operations.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let own = Memory::new(LEN);
        // On a busy machine the others come to little in sixty rounds.
        let begin = Instant::now();
        for round in (0..).take_while(|round| *round < 60 || operations.load(Ordering::Relaxed) <= 10) {
            assert!(begin.elapsed() < Duration::from_secs(100), "the others stand still");
            let value = tag();
            own.write(0, value);
            let region = world.get(own.address(0), LEN);
            if round % 2 == 0 {
                // posix_spawn(3): a child that shares the memory until it executes.
                assert!(Command::new("/bin/true").status().unwrap().success());
            } else {
                let program = c"/bin/true";
                let child = fork(|| {
                    let arguments = [program.as_ptr(), std::ptr::null()];
                    // SAFETY: a list that ends with null, of strings that do.
                    unsafe { libc::execv(program.as_ptr(), arguments.as_ptr()) };
                    false
                });
                assert!(child.said_yes());
            }
            assert_eq!(world.nic.dma_out_u64(&region, own.address(0)), Ok(value));
        }
        stop.store(true, Ordering::Relaxed);
    });
    world.ends_empty();
}
