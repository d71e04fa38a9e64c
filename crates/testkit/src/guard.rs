//! Buffers that notice a byte too many.

use std::ops::{Deref, DerefMut};

use crate::sys::GuardedPages;

/// Bytes beside a page nobody can touch: one byte too far is SIGSEGV, not silence.
#[derive(Debug)]
pub struct GuardedBuf {
    pages: GuardedPages,
    start: usize,
    len: usize,
}

impl std::fmt::Debug for GuardedPages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GuardedPages({:p} + {})", self.body(), self.len())
    }
}

impl GuardedBuf {
    /// `len` zeroed bytes, the last right before a guard page. Any alignment follows from `len`.
    ///
    /// # Panics
    /// No memory.
    #[must_use]
    pub fn new(len: usize) -> Self {
        let pages = GuardedPages::new(len).expect("pages between guards");
        let start = pages.len() - len;
        Self { pages, start, len }
    }

    /// `len` zeroed bytes, the first right after a guard page (so page-aligned).
    ///
    /// # Panics
    /// No memory.
    #[must_use]
    pub fn front(len: usize) -> Self {
        let pages = GuardedPages::new(len).expect("pages between guards");
        Self { pages, start: 0, len }
    }

    /// The first byte, for calls that take pointers. A pointer of [`Self::as_mut_ptr`] is the one to write through.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.pages.body().cast_const().wrapping_add(self.start)
    }

    /// The first byte. It stays where it is until the buffer is dropped.
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.pages.body().wrapping_add(self.start)
    }

    /// Reads the guard byte next to the bytes (after them, or before those of [`Self::front`]): the process dies of SIGSEGV.
    ///
    /// For roles that show that guards are in force.
    ///
    /// # Panics
    /// The neighbour is no guard: a [`Self::front`] of no byte.
    pub fn touch_guard(&self) -> u8 {
        let end = self.start + self.len;
        let distance = if end == self.pages.len() { end.cast_signed() } else { -1 };
        self.pages.fault(distance)
    }
}

impl Deref for GuardedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.pages.bytes()[self.start..self.start + self.len]
    }
}

impl DerefMut for GuardedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.pages.bytes_mut()[self.start..self.start + self.len]
    }
}

/// Bytes on each side of a [`Canary`]'s body.
const MARGIN: usize = 64;

/// A buffer filled with one byte, with margins of the same: shows which bytes were written.
#[derive(Clone, Debug)]
pub struct Canary {
    bytes: Vec<u8>,
    fill: u8,
}

impl Canary {
    /// `len` bytes of `fill`, between margins.
    #[must_use]
    pub fn new(len: usize, fill: u8) -> Self {
        Self { bytes: vec![fill; len + 2 * MARGIN], fill }
    }

    /// The bytes between the margins.
    pub fn body(&mut self) -> &mut [u8] {
        let end = self.bytes.len() - MARGIN;
        &mut self.bytes[MARGIN..end]
    }

    /// Whether only the first `n` bytes of the body may have been written.
    ///
    /// # Errors
    /// The position, from the start of the body, of the first other byte that was.
    pub fn check(&self, n: usize) -> Result<(), isize> {
        let touched = |(at, byte): (usize, &u8)| *byte != self.fill && !(MARGIN..MARGIN + n).contains(&at);
        match self.bytes.iter().enumerate().position(touched) {
            Some(at) => Err(at.cast_signed() - MARGIN.cast_signed()),
            None => Ok(()),
        }
    }
}

/// Runs `write` twice over a buffer of `capacity` bytes and checks that it wrote each of the first `n` bytes and no other.
///
/// Twice, with different fills: a byte that is the fill by chance is not taken for an unwritten one.
///
/// # Panics
/// It wrote otherwise.
#[track_caller]
pub fn assert_writes_exactly(n: usize, capacity: usize, mut write: impl FnMut(&mut [u8])) {
    let mut runs = [Canary::new(capacity, 0x5a), Canary::new(capacity, 0xa5)];
    for run in &mut runs {
        write(run.body());
        if let Err(at) = run.check(n) {
            panic!("byte {at} was written, of {n} announced");
        }
    }
    let [a, b] = &mut runs;
    let unwritten = a.body()[..n].iter().zip(&b.body()[..n]).position(|pair| pair == (&0x5a, &0xa5));
    if let Some(at) = unwritten {
        panic!("byte {at} was not written, of {n} announced");
    }
}
