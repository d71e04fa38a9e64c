//! The break of the process, and the heap that lies below it.
//!
//! # Safety
//! The break goes down only to where it was raised from, and only while nobody else has raised it since. Blocks of the C library's are
//! freed once.

#![allow(unsafe_code)]

use libc::c_void;
use testkit::role::rounds;

use crate::world::{Memory, PAGE, World};

fn top() -> usize {
    // SAFETY: asks for the break.
    unsafe { libc::sbrk(0) }.expose_provenance()
}

/// Whether the break is there then.
fn set_top(to: usize) -> bool {
    // SAFETY: raised, or lowered to where it was raised from (module rule).
    unsafe { libc::brk(std::ptr::with_exposed_provenance_mut(to)) == 0 }
}

/// 12: the break goes down, and up again.
pub(crate) fn t12_the_break_goes_down_and_up() {
    const LEN: usize = 16 * PAGE;
    let world = World::new();
    let all = rounds(2_000);
    let mut whole = 0;
    for _ in 0..all {
        let from = top().next_multiple_of(PAGE);
        assert!(set_top(from + LEN), "the break cannot be raised");
        let memory = Memory::of_others(from, LEN);
        world.agree(&memory, 0, LEN);
        if top() != from + LEN {
            continue; // the C library has taken more: this piece is left where it is
        }
        assert!(set_top(from) && set_top(from + LEN));
        world.agree(&memory, 0, LEN);
        world.agree(&memory, PAGE, LEN / 2);
        if top() == from + LEN {
            whole += usize::from(set_top(from));
        }
    }
    assert!(whole > all / 20, "{whole} of {all}");
    world.ends_empty();
}

/// 12: blocks of the heap, which is trimmed.
pub(crate) fn t12_the_heap_is_trimmed() {
    const LEN: usize = 64 << 10;
    let world = World::new();
    let all = rounds(300);
    let mut again = 0;
    let mut before = Vec::<usize>::new();
    for _ in 0..all {
        let blocks: Vec<*mut c_void> = (0..8)
            .map(|_| {
                // SAFETY: allocates.
                unsafe { libc::malloc(LEN) }
            })
            .collect();
        for block in &blocks {
            let begin = block.expose_provenance().next_multiple_of(PAGE);
            again += usize::from(before.contains(&begin));
            world.agree(&Memory::of_others(begin, LEN - PAGE), 0, LEN - PAGE);
        }
        before = blocks.iter().map(|block| block.expose_provenance().next_multiple_of(PAGE)).collect();
        for block in blocks {
            // SAFETY: from malloc, once.
            unsafe { libc::free(block) };
        }
        // SAFETY: gives free memory back.
        unsafe { libc::malloc_trim(0) };
    }
    assert!(again > all / 3, "{again} at the same address");
    world.ends_empty();
}
