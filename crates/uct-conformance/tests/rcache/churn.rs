//! Threads that unmap, map, drop and overwrite memory at the same addresses while operations run there. Each operation's tag must be
//! the one that was written to the memory mapped at that time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use testkit::role::rounds;
use ucs::monitor::Monitor;
use ucs::rcache::{Options, Stats};
use uct_conformance::Blind;

use crate::world::{EventsOnly, Memory, PAGE, World};

struct Outcome {
    operations: u64,
    corrupted: u64,
    stats: Stats,
}

impl Outcome {
    #[track_caller]
    fn clean(&self) -> &Self {
        let Self { operations, corrupted, stats } = self;
        assert_eq!(*corrupted, 0, "of {operations}: {stats:?}");
        // Every other one would be a hit; where the machine is busy, the handler comes late, and many are for one use.
        assert!(*operations > 300, "{operations}: {stats:?}");
        self
    }

    /// Something was cached, and told of.
    #[track_caller]
    fn hits(&self) {
        let Self { operations, stats, .. } = self;
        assert!(stats.hits > operations / 100 && stats.hit_invalidations > operations / 100, "{stats:?}");
    }
}

/// Replaces the memory, writes a tag, and looks twice: the second look is a hit.
fn one_thread(world: &World, replace: fn(&Memory, usize, usize), rounds: usize) -> Outcome {
    let (memory, len) = (Memory::new(16 * PAGE), 4 * PAGE);
    let (mut operations, mut corrupted) = (0, 0);
    for tag in 1..=rounds as u64 {
        replace(&memory, 0, len);
        memory.write(8, tag);
        for _ in 0..2 {
            operations += 1;
            corrupted += u64::from(world.dma(memory.address(8), len - 8) != Some(tag));
        }
    }
    Outcome { operations, corrupted, stats: world.cache.stats() }
}

/// Three threads take turns with one address: whoever has it replaces the memory, writes its tag and looks. Others unmap elsewhere
/// meanwhile, and the handler is slow.
fn three_threads(world: &World, replace: fn(&Memory, usize, usize), time: Duration) -> Outcome {
    let memory = Memory::new(64 * PAGE);
    let turn = Mutex::new(0_u64);
    let (operations, corrupted) = (AtomicU64::new(0), AtomicU64::new(0));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3_usize {
            let (memory, turn, stop) = (&memory, &turn, &stop);
            let (operations, corrupted) = (&operations, &corrupted);
            scope.spawn(move || {
                let own = (16 + thread * 16) * PAGE;
                while !stop.load(Ordering::Relaxed) {
                    {
                        let mut tag = turn.lock();
                        *tag += 1;
                        replace(memory, 0, 2 * PAGE);
                        memory.write(0, *tag);
                        for _ in 0..2 {
                            operations.fetch_add(1, Ordering::Relaxed);
                            if world.dma(memory.address(0), 2 * PAGE) != Some(*tag) {
                                corrupted.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    }
                    memory.drop_pages(own, 4 * PAGE);
                    memory.write(own, 1);
                }
            });
        }
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
    });
    let (operations, corrupted) = (operations.into_inner(), corrupted.into_inner());
    Outcome { operations, corrupted, stats: world.cache.stats() }
}

/// An allocator's arena: one thread drops the pages of one half, writes there and looks, while another registers the whole, and looks
/// at its own half.
fn arena(world: &World, time: Duration) -> Outcome {
    let memory = Memory::new(8 * PAGE);
    let stop = AtomicBool::new(false);
    let (mut operations, mut corrupted) = (0, 0);
    std::thread::scope(|scope| {
        let dropping = {
            let (memory, stop) = (&memory, &stop);
            scope.spawn(move || {
                let (mut operations, mut corrupted) = (0, 0);
                for tag in 1.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    memory.drop_pages(4 * PAGE, 4 * PAGE);
                    memory.write(7 * PAGE, tag);
                    operations += 1;
                    corrupted += u64::from(world.dma(memory.address(7 * PAGE), PAGE) != Some(tag));
                }
                (operations, corrupted)
            })
        };
        let begin = Instant::now();
        for tag in 1.. {
            if begin.elapsed() > time {
                break;
            }
            // The half that the other thread leaves alone keeps what is written to it, whatever is registered with it.
            memory.write(0, tag);
            operations += 1;
            corrupted += u64::from(world.dma(memory.address(0), 8 * PAGE) != Some(tag));
        }
        stop.store(true, Ordering::Relaxed);
        let theirs = dropping.join().unwrap();
        (operations, corrupted) = (operations + theirs.0, corrupted + theirs.1);
    });
    // Quiet again: what is written to the dropped half is seen there.
    for tag in 1..1000 {
        memory.write(5 * PAGE, tag);
        operations += 1;
        corrupted += u64::from(world.dma(memory.address(5 * PAGE), PAGE) != Some(tag));
    }
    Outcome { operations, corrupted, stats: world.cache.stats() }
}

fn blind() -> World {
    World::with(&Blind, Options::default())
}

/// 2: unmapped and mapped at the same address, back to back.
pub(crate) fn t02_unmapped_and_mapped_back_to_back() {
    one_thread(&World::new(), Memory::unmap_and_map, rounds(20_000)).clean().hits();
}

/// 3: three threads, and a handler slowed by 30 µs.
pub(crate) fn t03_three_threads_and_a_slow_handler() {
    Monitor::process().slow_down(Duration::from_micros(30));
    three_threads(&World::new(), Memory::unmap_and_map, Duration::from_secs(3)).clean();
}

/// 3 without protection is corrupt: so it is the protection that protects.
pub(crate) fn t03_guard_without_protection() {
    for said in [
        one_thread(&blind(), Memory::unmap_and_map, 2_000),
        three_threads(&blind(), Memory::unmap_and_map, Duration::from_secs(1)),
    ] {
        assert!(said.corrupted > said.operations / 10, "{} of {}", said.corrupted, said.operations);
    }
}

/// 4: as 3, by system calls that no hook in the C library sees.
pub(crate) fn t04_three_threads_by_raw_system_calls() {
    three_threads(&World::strict(), Memory::unmap_and_map_raw, Duration::from_secs(3)).clean();
}

/// 8: pages dropped by MADV_DONTNEED, and written again.
pub(crate) fn t08_pages_dropped_and_written_again() {
    one_thread(&World::new(), Memory::drop_pages, rounds(6_000)).clean();
}

/// 11: mapped over all of it by MAP_FIXED, and over half.
pub(crate) fn t11_mapped_over() {
    let world = World::new();
    one_thread(&world, Memory::map_over, rounds(10_000)).clean().hits();
    let memory = Memory::new(8 * PAGE);
    for round in 0..rounds(1_000) {
        memory.map_over(if round % 2 == 0 { 0 } else { 4 * PAGE }, 4 * PAGE);
        world.agree(&memory, 0, 8 * PAGE);
    }
}

/// 15: one thread drops the pages of half an arena, another takes the whole.
pub(crate) fn t15_half_dropped_while_the_whole_is_taken() {
    arena(&World::new(), Duration::from_secs(4)).clean();
}

/// 15 with events only, without exact checks and suspicion, is corrupt.
pub(crate) fn t15_guard_without_protection() {
    let begin = Instant::now();
    let mut all = (0, 0);
    while begin.elapsed() < Duration::from_secs(30) {
        let said = arena(&World::with(&EventsOnly, Options::default()), Duration::from_secs(1));
        all = (all.0 + said.operations, all.1 + said.corrupted);
        if all.1 > 0 {
            return;
        }
    }
    panic!("not one of {} is corrupt: this test proves nothing", all.0);
}
