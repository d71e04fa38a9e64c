//! Code near the C library's, and the jumps to it.
//!
//! # Safety
//! The functions are the C library's, found by name in it; of each, [`REACH`] bytes are looked at that lie in its mapped text. What is
//! replaced is one instruction of five bytes, by a jump of five bytes, in one aligned store of eight: a processor executes the one or
//! the other, and no thread can be between two halves of it. The code jumped to does what the replaced instruction and the `syscall` behind
//! it did, and goes on behind them. It is complete, and executable, before the first jump to it is written, and is never unmapped.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::ptr;
use std::slice;

use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};

use super::stub::{self, CALL_LEN, LEN, REACH};
use super::{Function, HookError};
use crate::mem::page::{PageRange, page_size};
use crate::sync::{AtomicU64, Ordering};

/// Bytes of one piece of code.
const PIECE: usize = 64;
/// How far from the C library memory is asked for: a jump reaches 2 GiB.
const STEP: usize = 64 << 10;
const FARTHEST: usize = 1 << 30;

/// A place where a jump is to be.
struct Site {
    /// The instruction.
    address: usize,
    number: u32,
}

/// Has those functions go through the code at `entry`. None, or all that are needed, and those of the others that can.
pub(super) fn replace(functions: &[Function], entry: usize) -> Result<(), HookError> {
    let library = Library::open()?;
    let mut sites = Vec::with_capacity(functions.len());
    for function in functions {
        match library.site(function) {
            Some(site) => sites.push(site),
            None if function.needed => return Err(HookError::Unknown { function: text(function.name) }),
            None => {}
        }
    }
    let near = sites.first().map_or(0, |site| site.address);
    let code = near_memory(near)?;
    for (index, site) in sites.iter().enumerate() {
        let at = code.wrapping_byte_add(index * PIECE).cast::<u8>();
        // SAFETY: within the page mapped just now, which has room for all pieces (asserted there), and is known to nobody else.
        let room = unsafe { slice::from_raw_parts_mut(at, PIECE) };
        room.copy_from_slice(&piece(site, entry));
    }
    // SAFETY: the page mapped just now.
    unsafe { mprotect(code, page_size(), MprotectFlags::READ | MprotectFlags::EXEC) }.map_err(refused)?;
    // Each is looked at before any is written: all of it or nothing, as far as can be told.
    let jumps: Option<Vec<i32>> = (sites.iter().enumerate())
        .map(|(index, site)| distance(site.address + LEN, code.addr() + index * PIECE))
        .collect();
    let jumps = jumps.ok_or(HookError::NoRoom)?;
    for (site, jump) in sites.iter().zip(jumps) {
        write(site, jump)?;
    }
    Ok(())
}

fn text(name: &'static CStr) -> &'static str {
    name.to_str().unwrap_or("?")
}

fn refused(errno: Errno) -> HookError {
    HookError::Refused { errno }
}

/// The C library, as it is loaded.
struct Library(*mut c_void);

impl Library {
    /// Finds it by the names of glibc and musl. A program without one that is loaded is linked with it statically.
    fn open() -> Result<Self, HookError> {
        for name in [c"libc.so.6", c"libc.so"] {
            // SAFETY: the name is a string; with RTLD_NOLOAD nothing is loaded.
            let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_NOW) };
            if !library.is_null() {
                return Ok(Self(library)); // it stays loaded as long as the process
            }
        }
        Err(HookError::Static)
    }

    fn site(&self, function: &Function) -> Option<Site> {
        // SAFETY: the library is loaded, the name a string.
        let symbol = unsafe { libc::dlsym(self.0, function.name.as_ptr()) };
        let start = symbol.expose_provenance();
        let text = executable(start).filter(|_| !symbol.is_null())?;
        // Not across the end of the text.
        let len = REACH.min(text.end() - start);
        // SAFETY: `len` bytes of mapped, readable text, which nobody writes to but this module, later.
        let bytes = unsafe { slice::from_raw_parts(symbol.cast_const().cast::<u8>(), len) };
        let at = stub::find(bytes, start, function.number)?;
        Some(Site { address: start + at, number: function.number })
    }
}

/// The mapping at `address`, if it can be read and executed and is private (`proc_pid_maps(5)`).
fn executable(address: usize) -> Option<PageRange> {
    let text = std::fs::read_to_string("/proc/self/maps").ok()?;
    text.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let bound = |text| usize::from_str_radix(text, 16).ok();
        let range = PageRange::new(bound(start)?, bound(end)?)?;
        (rest.starts_with("r-xp") && range.start() <= address && address < range.end()).then_some(range)
    })
}

/// A page that jumps from around `address` reach.
fn near_memory(address: usize) -> Result<*mut c_void, HookError> {
    const { assert!(super::FUNCTIONS.len() * PIECE <= 4096, "a page has room for all") };
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    let base = address & !(STEP - 1);
    let mut place = |at: usize| {
        let hint = ptr::without_provenance_mut(at);
        // SAFETY: FIXED_NOREPLACE replaces no mapping (mmap(2); Linux 4.17, and older kernels take it for a hint).
        unsafe { mmap_anonymous(hint, page_size(), ProtFlags::READ | ProtFlags::WRITE, flags) }
            .ok()
            .filter(|got| distance(address, got.addr()).is_some())
    };
    let places =
        (1..FARTHEST / STEP).flat_map(|step| [base.checked_sub(step * STEP), base.checked_add(step * STEP)]);
    places.flatten().filter(|at| *at >= STEP).find_map(&mut place).ok_or(HookError::NoRoom)
}

/// From one address to another, as jumps tell it.
fn distance(from: usize, to: usize) -> Option<i32> {
    i32::try_from(to.wrapping_sub(from).cast_signed()).ok()
}

/// What is executed instead of a site's two instructions.
///
/// ```text
///  0  lea  -128(%rsp), %rsp      what is below belongs to the function (System V ABI, red zone)
///  5  push $number
/// 10  call *entry(%rip)          answers in %rax, and keeps all else but %rcx and %r11, as syscall does
/// 16  lea  136(%rsp), %rsp
/// 24  jmp  *back(%rip)
/// 48  entry: .quad
/// 56  back:  .quad
/// ```
fn piece(site: &Site, entry: usize) -> [u8; PIECE] {
    let mut code = [0xCC; PIECE]; // int3
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        code[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    put(&[0x48, 0x8D, 0x64, 0x24, 0x80]);
    put(&[0x68]);
    put(&site.number.to_le_bytes());
    put(&[0xFF, 0x15, 48 - 16, 0, 0, 0]);
    put(&[0x48, 0x8D, 0xA4, 0x24, 136, 0, 0, 0]);
    put(&[0xFF, 0x25, 56 - 30, 0, 0, 0]);
    code[48..56].copy_from_slice(&entry.to_le_bytes());
    code[56..].copy_from_slice(&(site.address + CALL_LEN).to_le_bytes());
    code
}

/// Writes a jump over the instruction of a site.
fn write(site: &Site, jump: i32) -> Result<(), HookError> {
    let word = site.address & !7;
    let pages = PageRange::containing(word, 8).ok_or(HookError::NoRoom)?;
    let start = ptr::with_exposed_provenance_mut::<c_void>(pages.start());
    let set = |flags| {
        // SAFETY: pages of the C library's text, which stay readable and executable throughout.
        unsafe { mprotect(start, pages.len(), flags) }.map_err(refused)
    };
    set(MprotectFlags::READ | MprotectFlags::WRITE | MprotectFlags::EXEC)?;
    // SAFETY: aligned, mapped, and writable now; code is not accessed as anything else but through this word.
    let word = unsafe { AtomicU64::from_ptr(ptr::with_exposed_provenance_mut(word)) };
    let mut bytes = word.load(Ordering::Relaxed).to_ne_bytes();
    let at = site.address % 8;
    bytes[at] = 0xE9; // jmp rel32
    bytes[at + 1..at + LEN].copy_from_slice(&jump.to_le_bytes());
    word.store(u64::from_ne_bytes(bytes), Ordering::SeqCst);
    set(MprotectFlags::READ | MprotectFlags::EXEC)
}
