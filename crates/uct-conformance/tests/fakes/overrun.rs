//! The fault of writing one byte too many.
//!
//! # Safety
//! None: it is unsound on purpose. It is used in a role only, on buffers that end at a guard page, where it ends the process.

#![allow(unsafe_code)]

/// Writes the byte behind `buf`.
pub(crate) fn write_behind(buf: &mut [u8]) {
    let behind = buf.as_mut_ptr_range().end;
    // SAFETY: the caller has seen to it that a guard page lies there: the write faults, and changes no memory.
    unsafe { behind.write_volatile(0xee) };
}
