//! Memory that a memory domain allocates.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use testkit::{Role, role};
use ucs::mem::page::page_size;
use uct::api::{AllocError, MdFlags, PackFlags};
use uct::memory::{LocalMem, Rights};

use crate::bench::{Bench, attach};
use crate::exporter::Ticket;
use crate::fixture::{Fixture, Side};
use crate::{Check, list};

pub(crate) const CHECKS: &[Check] = list![alloc:
    every_size in Once,
    memory_is_zeroed_again in Once,
    rights in Once,
    sizes_beyond_the_limit in Once,
    given_back_at_the_last_drop in Once,
];

fn sizes() -> [usize; 6] {
    let page = page_size();
    [1, page - 1, page, page + 1, 12_345, 64 << 20]
}

#[track_caller]
fn assert_unsupported(side: &Side, len: usize) {
    let answer = side.md.alloc(len, Rights::READ_WRITE).map(|mem| mem.len());
    assert_eq!(answer, Err(AllocError::Unsupported), "{len} bytes");
}

fn every_size(bench: &Bench) {
    let side = bench.local();
    for len in sizes() {
        if !side.has(MdFlags::ALLOC) {
            assert_unsupported(&side, len);
            continue;
        }
        let mem = side.md.alloc(len, Rights::READ_WRITE).unwrap();
        assert_eq!(mem.len(), len);
        assert!(mem.is_allocated() && !mem.is_empty() && !mem.was_packed());
        assert!(mem.address().is_multiple_of(page_size() as u64), "it begins at a page");
        assert_zeroed(&mem);
        for at in [0, len - 1] {
            mem.write(at as u64, &[0xa5]).unwrap();
            assert_eq!(mem.load::<u8>(at as u64).unwrap(), 0xa5);
        }
        let mut byte = [0x77];
        assert!(mem.read(len as u64, &mut byte).is_err() && mem.write(len as u64, &byte).is_err());
        assert_eq!(byte, [0x77]);
        assert!(side.md.reg(&Arc::new(mem)).is_ok(), "what it allocates it registers");
    }
}

#[track_caller]
fn assert_zeroed(mem: &LocalMem) {
    let mut piece = vec![0x77; mem.len().min(1 << 20)];
    for at in (0..mem.len()).step_by(piece.len()) {
        let len = piece.len().min(mem.len() - at);
        mem.read(at as u64, &mut piece[..len]).unwrap();
        assert!(piece[..len].iter().all(|byte| *byte == 0), "not zeroed between {at} and {}", at + len);
    }
}

/// Freed memory never comes back with what was in it.
fn memory_is_zeroed_again(bench: &Bench) {
    let side = bench.local();
    if !side.has(MdFlags::ALLOC) {
        return assert_unsupported(&side, 1);
    }
    for _ in 0..20 {
        let mem = side.md.alloc(3 * page_size(), Rights::READ_WRITE).unwrap();
        assert_zeroed(&mem);
        mem.write(0, &vec![0xa5; mem.len()]).unwrap();
    }
}

/// The rights are those of peers: the owner may always write.
fn rights(bench: &Bench) {
    let side = bench.local();
    if !side.has(MdFlags::ALLOC) {
        return assert_unsupported(&side, page_size());
    }
    for rights in [Rights::READ, Rights::READ_WRITE] {
        let mem = Arc::new(side.md.alloc(page_size(), rights).unwrap());
        assert_eq!(mem.rights(), rights);
        mem.write(0, b"the owner may").unwrap();
        let export = side.exports.publish(&mem).unwrap();
        assert_eq!(export.rights(), rights);
        mem.write(0, b"still").unwrap();
    }
}

fn sizes_beyond_the_limit(bench: &Bench) {
    let side = bench.local();
    for len in [usize::MAX, usize::MAX - page_size(), isize::MAX.unsigned_abs() + 1] {
        let answer = side.md.alloc(len, Rights::READ_WRITE).map(|mem| mem.len());
        match answer {
            Err(AllocError::Unsupported) => assert!(!side.has(MdFlags::ALLOC)),
            Err(_) => assert!(side.has(MdFlags::ALLOC)),
            Ok(len) => panic!("{len} bytes were allocated"),
        }
    }
}

fn given_back_at_the_last_drop(bench: &Bench) {
    Role::new("allocator").arg(bench.fixture.name).start().expect_exit(0);
}

fn is_mapped(address: u64) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let bound = |text| u64::from_str_radix(text, 16).unwrap();
    maps.lines().any(|line| {
        let (from, rest) = line.split_once('-').unwrap();
        (bound(from)..bound(rest.split(' ').next().unwrap())).contains(&address)
    })
}

/// A service thread that has just answered an importer may hold the memory a moment longer.
fn assert_given_back(address: u64, why: &str) {
    let begin = Instant::now();
    while is_mapped(address) {
        assert!(begin.elapsed() < Duration::from_secs(2), "{why}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Makes, exports, attaches, revokes and drops, and counts what it holds: nothing else runs in this process.
pub(crate) fn allocator() {
    let side = Side::open(&Fixture::of(&role::args()[0], &[]));
    // What is made at the first use stays.
    round(&side);
    let before = settled();
    for _ in 0..50 {
        round(&side);
    }
    assert_eq!(settled(), before, "descriptors and mappings");
}

/// Descriptors and mappings, once the service thread has done what is left to do: when they stay the same for a while.
fn settled() -> (usize, usize) {
    // A sanitizer keeps what is freed for a while, in mappings of its own.
    let mappings = || if cfg!(rucx_sanitizer) { 0 } else { testkit::mappings() };
    let held = || (testkit::open_fds(), mappings());
    let (mut last, mut since) = (held(), Instant::now());
    while since.elapsed() < Duration::from_millis(200) {
        thread::sleep(Duration::from_millis(5));
        let now = held();
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    last
}

fn round(side: &Side) {
    const LEN: usize = 1 << 20;
    let made = side.usual().make(&*side.md, LEN, Rights::READ_WRITE, 1);
    let address = made.mem.address();
    let second = Arc::clone(&made.mem);
    let memh = side.md.reg(&made.mem).unwrap();
    drop(made);
    drop(second);
    assert!(is_mapped(address), "the registration keeps the memory");
    let again = side.usual().make(&*side.md, LEN, Rights::READ_WRITE, 2);
    let exported_at = again.mem.address();
    assert_ne!(exported_at, address);
    let export = side.exports.publish(&again.mem).unwrap();
    let memh_again = side.md.reg(&again.mem).unwrap();
    let mut mkey = vec![0; memh_again.packed_size(PackFlags::EXPORT).unwrap()];
    memh_again.pack(&export, PackFlags::EXPORT, &mut mkey).unwrap();
    let attachment = attach(side, &Ticket::of(side, &export, 0, mkey)).unwrap();
    drop((again, memh_again));
    assert!(is_mapped(exported_at), "the export keeps the memory");
    drop(attachment);
    export.revoke().unwrap();
    assert_given_back(exported_at, "a revoked export keeps nothing");
    drop(memh);
    assert_given_back(address, "the last one gives it back");
}
