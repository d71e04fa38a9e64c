//! Page arithmetic.

/// The size of a page of this system, in bytes: a power of two (`getpagesize(2)`).
#[inline]
#[must_use]
pub fn page_size() -> usize {
    // The architecture knows no other: then it is no call, and what is computed from it is less.
    if cfg!(target_arch = "x86_64") { 4096 } else { rustix::param::page_size() }
}

/// `value` rounded down to a multiple of `align`, a power of two.
#[inline]
#[must_use]
pub const fn align_down(value: usize, align: usize) -> usize {
    debug_assert!(align.is_power_of_two());
    value & !(align - 1)
}

/// `value` rounded up to a multiple of `align`, a power of two; `None` when that overflows.
#[inline]
#[must_use]
pub const fn align_up(value: usize, align: usize) -> Option<usize> {
    debug_assert!(align.is_power_of_two());
    match value.checked_add(align - 1) {
        Some(sum) => Some(sum & !(align - 1)),
        None => None,
    }
}

/// Whole pages: the addresses `[start, end)`, both multiples of the page size, never none of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageRange {
    start: usize,
    end: usize,
}

// No range of pages is empty.
#[allow(clippy::len_without_is_empty)]
impl PageRange {
    /// The pages from `start` to before `end`; `None` unless both begin a page and `start` lies before `end`.
    #[inline]
    #[must_use]
    pub fn new(start: usize, end: usize) -> Option<Self> {
        let aligned = (start | end) & (page_size() - 1) == 0;
        (aligned && start < end).then_some(Self { start, end })
    }

    /// The pages that hold the `len` bytes at `address`; `None` for no bytes, and for bytes past the end of the address space.
    #[inline]
    #[must_use]
    pub fn containing(address: usize, len: usize) -> Option<Self> {
        if len == 0 {
            return None;
        }
        let end = align_up(address.checked_add(len)?, page_size())?;
        Some(Self { start: align_down(address, page_size()), end })
    }

    /// All pages of an address space, but for the very last.
    #[must_use]
    pub fn everything() -> Self {
        Self { start: 0, end: align_down(usize::MAX, page_size()) }
    }

    /// Its first address.
    #[must_use]
    #[inline]
    pub const fn start(self) -> usize {
        self.start
    }

    /// The address behind its last.
    #[must_use]
    #[inline]
    pub const fn end(self) -> usize {
        self.end
    }

    /// Its bytes; never 0.
    #[must_use]
    #[inline]
    pub const fn len(self) -> usize {
        self.end - self.start
    }

    /// Whether the two have a page in common.
    #[must_use]
    #[inline]
    pub const fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// Whether all pages of `other` are in it.
    #[must_use]
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// The pages of both.
    #[must_use]
    pub fn intersection(self, other: Self) -> Option<Self> {
        let (start, end) = (self.start.max(other.start), self.end.min(other.end));
        (start < end).then_some(Self { start, end })
    }

    /// It, and as little before and behind it as makes it begin and end at a multiple of `align`, a power of two of at least the page
    /// size; `None` when that overflows.
    #[must_use]
    pub fn widened(self, align: usize) -> Option<Self> {
        Some(Self { start: align_down(self.start, align), end: align_up(self.end, align)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_whole_pages() {
        let page = page_size();
        let range = |from: usize, to: usize| PageRange::new(from * page, to * page).unwrap();
        assert_eq!(PageRange::new(page, page), None);
        assert_eq!(PageRange::new(2 * page, page), None);
        assert_eq!(PageRange::new(1, page), None);
        assert_eq!(PageRange::new(0, page + 1), None);
        assert_eq!((range(1, 3).start(), range(1, 3).end(), range(1, 3).len()), (page, 3 * page, 2 * page));
        assert_eq!(PageRange::containing(page + 1, page), Some(range(1, 3)));
        assert_eq!(PageRange::containing(page, page), Some(range(1, 2)));
        assert_eq!(PageRange::containing(page, 0), None);
        assert_eq!(PageRange::containing(usize::MAX, 1), None);
        assert_eq!(PageRange::containing(usize::MAX - page, 2), None);
        assert_eq!(PageRange::containing(1, usize::MAX), None);
        assert!(PageRange::everything().contains(range(0, 7)));
    }

    #[test]
    fn ranges_meet() {
        let page = page_size();
        let range = |from: usize, to: usize| PageRange::new(from * page, to * page).unwrap();
        assert!(range(1, 3).overlaps(range(2, 4)) && range(2, 4).overlaps(range(1, 3)));
        assert!(!range(1, 3).overlaps(range(3, 4)) && !range(3, 4).overlaps(range(1, 3)));
        assert!(range(1, 5).contains(range(1, 5)) && range(1, 5).contains(range(2, 3)));
        assert!(!range(2, 5).contains(range(1, 3)));
        assert_eq!(range(1, 3).intersection(range(2, 4)), Some(range(2, 3)));
        assert_eq!(range(1, 3).intersection(range(3, 4)), None);
        assert_eq!(range(3, 5).widened(4 * page), Some(range(0, 8)));
        assert_eq!(PageRange::everything().widened(1 << 40), None);
    }

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
