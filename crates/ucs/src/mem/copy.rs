//! Copying memory that others may be changing at the same time.

#![allow(unsafe_code)]

use crate::sync::{AtomicU8, Ordering};

/// Copies `len` bytes from `src` to `dst`, as a relaxed byte-wise atomic copy.
///
/// # Safety
/// `src` must be readable and `dst` writable for `len` bytes; the two must not overlap.
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    for i in 0..len {
        // SAFETY: in bounds by the caller's promise.
        let (s, d) = unsafe { (AtomicU8::from_ptr(src.add(i).cast_mut()), AtomicU8::from_ptr(dst.add(i))) };
        d.store(s.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}
