//! Copy and fill by relaxed atomics: for models, sanitizers, interpreters, and processors without a kernel of their
//! own.
//!
//! Eight bytes at a time where both sides allow it. Under Miri and loom one byte at a time: Miri rejects racing atomics
//! of different sizes, and a copy may race with another one that is aligned differently.

// std's atomics: loom's cannot lie in memory somebody else allocated.
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

const WORD: usize = size_of::<u64>();

/// Copies `len` bytes.
///
/// # Safety
/// As [`copy`](super::copy()).
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    if cfg!(any(miri, loom)) || len < 4 * WORD {
        // SAFETY: the caller's promise.
        return unsafe { copy_bytes(dst, src, len) };
    }
    let head = dst.addr().wrapping_neg() % WORD;
    // SAFETY: head < WORD < len.
    unsafe { copy_bytes(dst, src, head) };
    let (d, s, n) = (dst.wrapping_add(head), src.wrapping_add(head), len - head);
    let skew = s.addr() % WORD;
    let done = if skew == 0 {
        // SAFETY: what is left of both, which are aligned now.
        unsafe { copy_words(d, s, n) }
    } else {
        // SAFETY: what is left of both; d is aligned now, s is skew behind a word, and WORD < n.
        unsafe { copy_skewed(d, s, n, skew) }
    };
    // SAFETY: done <= n.
    unsafe { copy_bytes(d.wrapping_add(done), s.wrapping_add(done), n - done) };
}

/// # Safety
/// As [`copy`].
#[inline]
unsafe fn copy_bytes(dst: *mut u8, src: *const u8, len: usize) {
    for i in 0..len {
        // SAFETY: i < len, within src.
        let byte = unsafe { load_byte(src.wrapping_add(i)) };
        // SAFETY: i < len, within dst.
        unsafe { store_byte(dst.wrapping_add(i), byte) };
    }
}

/// Copies whole words and tells how many bytes that was.
///
/// # Safety
/// As [`copy`], and both are aligned to words.
unsafe fn copy_words(dst: *mut u8, src: *const u8, len: usize) -> usize {
    let whole = len - len % WORD;
    for at in (0..whole).step_by(WORD) {
        // SAFETY: at + WORD <= whole <= len, and at keeps the alignment.
        let word = unsafe { load_word(src.wrapping_add(at)) };
        // SAFETY: as above.
        unsafe { store_word(dst.wrapping_add(at), word) };
    }
    whole
}

/// Copies whole words out of a source that lies across words, and tells how many bytes that was. It loads only words
/// that lie within the source as a whole, and puts each stored one together from two.
///
/// # Safety
/// As [`copy`]; `dst` is aligned to words, `src` is `skew` bytes above a multiple of a word, `0 < skew < WORD`, `WORD
/// <= len`.
unsafe fn copy_skewed(dst: *mut u8, src: *const u8, len: usize, skew: usize) -> usize {
    let first = WORD - skew;
    let (low, high) = (8 * first, 8 * skew);
    let mut kept = 0_u64;
    for i in 0..first {
        // SAFETY: i < first < WORD <= len.
        kept |= u64::from(unsafe { load_byte(src.wrapping_add(i)) }) << (8 * i);
    }
    let mut done = 0;
    // The word at done + first is the one that completes the word at done.
    while done + first + WORD <= len {
        // SAFETY: within src by the loop's condition, and src + first is aligned, as is done.
        let next = u64::from_le(unsafe { load_word(src.wrapping_add(done + first)) });
        // SAFETY: done + WORD <= len, and dst and done are aligned.
        unsafe { store_word(dst.wrapping_add(done), (kept | next << low).to_le()) };
        kept = next >> high;
        done += WORD;
    }
    done
}

/// Writes `byte` to `len` bytes.
///
/// # Safety
/// As [`fill`](super::fill()).
pub(super) unsafe fn fill(dst: *mut u8, byte: u8, len: usize) {
    let head = if cfg!(any(miri, loom)) { len } else { len.min(dst.addr().wrapping_neg() % WORD) };
    let tail = len - (len - head) % WORD;
    for i in (0..head).chain(tail..len) {
        // SAFETY: i < len.
        unsafe { store_byte(dst.wrapping_add(i), byte) };
    }
    for i in (head..tail).step_by(WORD) {
        // SAFETY: i + WORD <= tail <= len, and dst + head is aligned.
        unsafe { store_word(dst.wrapping_add(i), u64::from_ne_bytes([byte; WORD])) };
    }
}

/// # Safety
/// `at` is readable.
#[inline]
unsafe fn load_byte(at: *const u8) -> u8 {
    // SAFETY: readable for the call by the caller's promise. That it may not be writable is no matter: only a load is
    // done, and relaxed loads of read-only memory are fine (std::sync::atomic, "Atomic accesses to read-only memory").
    unsafe { AtomicU8::from_ptr(at.cast_mut()) }.load(Ordering::Relaxed)
}

/// # Safety
/// `at` is writable.
#[inline]
unsafe fn store_byte(at: *mut u8, byte: u8) {
    // SAFETY: writable for the call by the caller's promise.
    unsafe { AtomicU8::from_ptr(at) }.store(byte, Ordering::Relaxed);
}

/// # Safety
/// `at` is readable for a word and aligned to it.
#[inline]
unsafe fn load_word(at: *const u8) -> u64 {
    // SAFETY: as load_byte, and aligned by the caller's promise.
    unsafe { AtomicU64::from_ptr(at.cast_mut().cast()) }.load(Ordering::Relaxed)
}

/// # Safety
/// `at` is writable for a word and aligned to it.
#[inline]
unsafe fn store_word(at: *mut u8, word: u64) {
    // SAFETY: as store_byte, and aligned by the caller's promise.
    unsafe { AtomicU64::from_ptr(at.cast()) }.store(word, Ordering::Relaxed);
}
