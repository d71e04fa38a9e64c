//! Memory of the C library's allocator.
//!
//! # Safety
//! Blocks of the C library's are freed once, and written only while they are allocated.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::world::{Memory, PAGE, World, tag};

/// 1: four mebibytes are freed, and allocated at the same address.
pub(crate) fn t01_a_large_buffer_freed_and_allocated() {
    const LEN: usize = 4 << 20;
    let world = World::new();
    let (mut again, mut last) = (0, 0);
    for round in 0..400 {
        // SAFETY: allocates.
        let block = unsafe { libc::malloc(LEN) };
        let begin = block.expose_provenance().next_multiple_of(PAGE);
        again += usize::from(begin == last);
        last = begin;
        let memory = Memory::of_others(begin, LEN - PAGE);
        for place in [0, LEN / 2, LEN - 2 * PAGE] {
            memory.write(place, tag());
        }
        let region = world.get(begin, LEN - PAGE);
        for place in [0, LEN / 2, LEN - 2 * PAGE] {
            let seen = world.nic.dma_out_u64(&region, begin + place).unwrap();
            assert_eq!(seen, memory.read(place), "{place:#x} in round {round}");
        }
        drop(region);
        // SAFETY: from malloc, once.
        unsafe { libc::free(block) };
    }
    assert!(again > 100, "{again} at the same address");
    world.ends_empty();
}

/// What stays in the heap when it is freed is found again when it is allocated.
pub(crate) fn a_vec_dropped_and_allocated_again_hits() {
    let world = World::new();
    let (mut again, mut last) = (0, 0);
    for _ in 0..1_000 {
        let mut words = vec![0_u64; 4 << 10];
        let begin = words.as_ptr().addr();
        words[100] = tag();
        let expected = words[100];
        again += u64::from(begin == last);
        last = begin;
        let region = world.get(begin, 32 << 10);
        assert_eq!(
            world.nic.dma_out_u64(&region, std::hint::black_box(&words)[100..].as_ptr().addr()),
            Ok(expected)
        );
    }
    let stats = world.cache.stats();
    assert!(again > 900, "{again} at the same address");
    assert!(stats.hits > again * 9 / 10, "{again} at the same address: {stats:?}");
}

/// 30: memory is short, and pages are asked to go: those of registrations stay, and the others come back.
pub(crate) fn t30_under_memory_pressure() {
    const LEN: usize = 1 << 20;
    let _watchdog = testkit::watchdog::arm("memory pressure", Duration::from_secs(60));
    let world = World::new();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let mut large = vec![0_u8; 64 << 20];
                large.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
                drop(std::hint::black_box(large));
            }
        });
        let begin = Instant::now();
        let kept = vec![0_u64; LEN / 8];
        let start = kept.as_ptr().expose_provenance().next_multiple_of(PAGE);
        let memory = Memory::of_others(start, LEN - PAGE);
        while begin.elapsed() < Duration::from_secs(2) {
            world.agree(&memory, 0, 16 * PAGE);
            let region = world.get(start, LEN - PAGE);
            let _ = memory.advise(0, LEN - PAGE, libc::MADV_PAGEOUT);
            let _ = memory.advise(0, LEN - PAGE, libc::MADV_COLD);
            drop(region);
            world.agree(&memory, 16 * PAGE, 16 * PAGE);
            let freed = vec![0_u64; LEN / 8];
            assert!(world.dma(freed.as_ptr().addr(), LEN).is_some());
        }
        stop.store(true, Ordering::Relaxed);
        drop(kept);
    });
    world.ends_empty();
}
