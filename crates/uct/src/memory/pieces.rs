//! Memory of this thread that bytes pass through, where they are copied from one place that others use to another such place.

use std::cell::Cell;

/// Bytes that are copied at once by way of the stack.
pub(super) const SHORT: usize = 4096;

/// Most bytes that are copied at once. A thread keeps memory for as many, or for those of its pipelines.
pub(super) const LONGEST: usize = 256 << 10;

thread_local! {
    /// Empty until a thread first needs it, and while it is in use; then it stays for the next operation.
    static KEPT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Has `copy` run with memory of `len` bytes, [`LONGEST`] at most, whatever is in it. It is shorter where little memory will do, or can be had.
pub(super) fn with<T>(len: usize, copy: impl FnOnce(&mut [u8]) -> T) -> T {
    if len <= SHORT {
        return copy(&mut [0; SHORT]);
    }
    lend(len.min(LONGEST), copy)
}

/// As [`with`], of any length: so much is kept.
pub(super) fn lend<T>(len: usize, copy: impl FnOnce(&mut [u8]) -> T) -> T {
    // Whoever is inside another such copy, or in a thread that is ending, has memory of its own.
    let mut memory = KEPT.try_with(Cell::take).unwrap_or_default();
    if memory.try_reserve_exact(len.saturating_sub(memory.len())).is_err() {
        return copy(&mut [0; SHORT]);
    }
    if memory.len() < len {
        memory.resize(len, 0);
    }
    let answer = copy(&mut memory[..len]);
    let _ = KEPT.try_with(|kept| kept.set(memory));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> usize {
        let memory = KEPT.take();
        let len = memory.len();
        KEPT.set(memory);
        len
    }

    #[test]
    fn a_thread_keeps_what_it_has_needed_and_no_more_than_the_longest() {
        assert_eq!((with(0, |copy| copy.len()), kept()), (SHORT, 0));
        assert_eq!((with(SHORT, |copy| copy.len()), kept()), (SHORT, 0));
        assert_eq!((with(SHORT + 1, |copy| copy.len()), kept()), (SHORT + 1, SHORT + 1));
        let first = with(usize::MAX, |copy| (copy.as_ptr().addr(), copy.len()));
        assert_eq!((first.1, kept()), (LONGEST, LONGEST));
        let again = with(LONGEST, |copy| (copy.as_ptr().addr(), copy.len()));
        assert_eq!(again, first, "the same memory");
        assert_eq!((with(10_000, |copy| copy.len()), kept()), (10_000, LONGEST));
    }

    /// An attachment of the user's may use operands itself.
    #[test]
    fn one_inside_another_has_memory_of_its_own() {
        with(10_000, |outer| {
            outer.fill(1);
            with(20_000, |inner| inner.fill(2));
            assert!(outer.iter().all(|byte| *byte == 1));
        });
        assert_eq!(kept(), 10_000, "one of both is kept");
    }
}
