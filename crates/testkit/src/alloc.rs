//! Counting allocations: "nothing is allocated on the data path" as a test.

pub use crate::sys::{CountingAlloc, Counts};

/// What this thread has asked of the allocator so far: all 0 where [`CountingAlloc`] is not this binary's `#[global_allocator]`.
#[must_use]
pub fn counts() -> Counts {
    crate::sys::counts()
}

/// Runs `f` and returns how often this thread allocated meanwhile (alloc, alloc_zeroed, realloc).
///
/// # Panics
/// [`CountingAlloc`] is not this binary's `#[global_allocator]`: the answer would always be 0.
pub fn count_allocs(f: impl FnOnce()) -> u64 {
    counting(f).1.allocs
}

/// Runs `f` and returns its result with what this thread asked of the allocator meanwhile.
///
/// # Panics
/// As [`count_allocs`].
pub fn counting<R>(f: impl FnOnce() -> R) -> (R, Counts) {
    let before = counts();
    drop(std::hint::black_box(Box::new(0u64)));
    assert_ne!(before, counts(), "CountingAlloc is not the #[global_allocator] of this binary");
    let before = counts();
    let result = f();
    let after = counts();
    let counts = Counts {
        allocs: after.allocs - before.allocs,
        frees: after.frees - before.frees,
        bytes: after.bytes - before.bytes,
    };
    (result, counts)
}
