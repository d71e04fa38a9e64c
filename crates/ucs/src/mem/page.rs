//! Page arithmetic.

/// The size of a page of this system, in bytes: a power of two (`getpagesize(2)`).
#[must_use]
pub fn page_size() -> usize {
    rustix::param::page_size()
}

/// `value` rounded down to a multiple of `align`, a power of two.
#[must_use]
pub const fn align_down(value: usize, align: usize) -> usize {
    debug_assert!(align.is_power_of_two());
    value & !(align - 1)
}

/// `value` rounded up to a multiple of `align`, a power of two; `None` when that overflows.
#[must_use]
pub const fn align_up(value: usize, align: usize) -> Option<usize> {
    debug_assert!(align.is_power_of_two());
    match value.checked_add(align - 1) {
        Some(sum) => Some(sum & !(align - 1)),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_both_ways() {
        assert_eq!(align_down(4097, 4096), 4096);
        assert_eq!(align_up(4097, 4096), Some(8192));
        assert_eq!(align_up(4096, 4096), Some(4096));
        assert_eq!(align_up(0, 4096), Some(0));
        assert_eq!(align_up(usize::MAX - 4095, 4096), Some(usize::MAX - 4095));
        assert_eq!(align_up(usize::MAX - 1, 4096), None);
        assert!(page_size().is_power_of_two());
    }
}
