//! Lending the bytes of a mapping or buffer to the [`LocalMem`](super::LocalMem) that owns it.
//!
//! # Safety
//! `LocalMem` keeps the owner beside the bytes lent from it, never lets the bytes out but by borrow, and drops the bytes
//! first. The bytes are thus mapped as long as they are used. Raw ranges are never accessed through the bytes lent: see
//! [`super::raw`].

#![allow(unsafe_code)]

use std::ptr::NonNull;

use ucs::mem::{Access, Mapping, SharedBytes};

use super::{OwnedBytes, RawMem};

pub(super) fn lend(map: &Mapping) -> SharedBytes {
    let start = NonNull::new(map.bytes().as_ptr()).unwrap_or(NonNull::dangling());
    // SAFETY: mapped as long as the Mapping, which the LocalMem keeps beside it (module rule).
    unsafe { SharedBytes::new(start, map.bytes().len(), map.access()) }
}

pub(super) fn lend_owned(holder: &OwnedBytes) -> SharedBytes {
    let (start, len) = holder.range();
    let access = if holder.is_writable() { Access::ReadWrite } else { Access::Read };
    // SAFETY: the holder keeps the range valid until its drop (contract of StableBuf), writable if it says so (contract of
    // StableBufMut), and makes no reference to it meanwhile.
    unsafe { SharedBytes::new(start, len, access) }
}

pub(super) fn lend_raw(raw: &RawMem) -> SharedBytes {
    let (start, len) = raw.range();
    // SAFETY: used for bounds and address only: LocalMem accesses raw ranges through calls that answer EFAULT.
    unsafe { SharedBytes::new(start, len, Access::ReadWrite) }
}
