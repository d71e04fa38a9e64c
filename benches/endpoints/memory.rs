//! Reading and writing a peer's memory by its key.
//!
//! # Safety
//! The C library's `memcpy` gets mappings and a buffer of this process, all alive and long enough, which nobody else uses.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::hint::black_box;

use rucx_benches::rows::{Row, Rows, size};
use rucx_benches::{Target, timed};
use ucp::{Destination, MemMap, RemoteRegion, Source};
use ucs::mem::{Mapping, Memfd};

use crate::processors::beside;
use crate::world::{ADDITION, LARGEST, World, additions, context, ended, region};

const SIZES: [usize; 4] = [8, 4 << 10, 64 << 10, 1 << 20];

pub(crate) fn measure(rows: &mut Rows) {
    let world = World::new();
    let third = beside(context);
    let export = region(&third, MemMap::allocate(LARGEST).exported());
    let handle = export.memh_pack().expect("a handle");
    let import = beside(|| world.ctx.mem_import(handle.as_bytes()).expect("an import"));
    import.read(0, &mut vec![0; LARGEST]).expect("the first access brings the pages");
    // Memory as the peer's and as the third one's, but this process's alone.
    let [peer, other] = [(); 2].map(|()| local());
    for len in SIZES {
        let copies = Copies { rows, remote: &world.remote, peer: &peer, len, kind: "" };
        copies.measure(vec![1; len], |operand| operand.as_mut_ptr());
    }
    for len in SIZES {
        let copies = Copies { rows, remote: &world.remote, peer: &peer, len, kind: ", imported operand" };
        let operand = import.slice(0..len as u64).expect("within");
        copies.measure(operand, |_| other.bytes().as_ptr());
    }
    // 0.8 of what C UCX takes.
    let row = Row { name: "fetch_add", reference: ADDITION, target: Some(Target::Nanoseconds(33.6)) };
    let ours = timed(|n| {
        (0..n).for_each(|_| _ = black_box(ended(world.remote.fetch_add(black_box(0), 1_u64))));
    });
    rows.measure(row, ours, additions());
}

fn local() -> Mapping {
    let (_, map) = Memfd::create("local", LARGEST, false).expect("memory");
    map.bytes().write(0, &vec![1; LARGEST]).expect("within");
    map
}

/// What a get may take: what C UCX takes where that is more than the copy, else the copy's time and a little.
fn target_of_get(len: usize) -> Target {
    match len {
        8 => Target::Nanoseconds(20.0),
        4096 => Target::Nanoseconds(60.0),
        _ => Target::Ratio(1.05),
    }
}

/// A put and a get of `len` bytes.
struct Copies<'a> {
    rows: &'a mut Rows,
    remote: &'a RemoteRegion,
    peer: &'a Mapping,
    len: usize,
    /// What is said of the operands.
    kind: &'a str,
}

type Memcpy = unsafe extern "C" fn(*mut libc::c_void, *const libc::c_void, usize) -> *mut libc::c_void;

impl Copies<'_> {
    /// `at` is where the reference's operand lies: of an operand of this process, the same bytes.
    fn measure<M: Source + Destination>(self, operand: M, at: impl Fn(&mut M) -> *mut u8) {
        let Self { rows, remote, peer, len, kind } = self;
        let memcpy: Memcpy = black_box(libc::memcpy);
        let there: *mut u8 = peer.bytes().as_ptr();
        let operand = RefCell::new(Some(operand)); // one for both sides: where it lies makes a difference
        let taken = || operand.take().expect("it was given back");
        let (put, get) = (format!("put {}{kind}", size(len)), format!("get {}{kind}", size(len)));

        let target = (len >= 64 << 10 && kind.is_empty()).then_some(Target::Ratio(1.05));
        let row = Row { name: &put, reference: "memcpy", target };
        let ours = timed(|n| {
            let back = (0..n).fold(taken(), |data, _| ended(remote.put(black_box(0), data)));
            operand.replace(Some(back));
        });
        let reference = timed(|n| {
            let mut held = taken();
            let here = at(&mut held);
            for _ in 0..n {
                // SAFETY: len bytes each, apart from each other, and nobody else uses either meanwhile.
                unsafe { memcpy(black_box(there).cast(), black_box(here).cast(), black_box(len)) };
            }
            operand.replace(Some(held));
        });
        rows.measure(row, ours, reference);

        let target = kind.is_empty().then(|| target_of_get(len));
        let row = Row { name: &get, reference: "memcpy", target };
        let ours = timed(|n| {
            let back = (0..n).fold(taken(), |data, _| ended(remote.get(black_box(0), data)));
            operand.replace(Some(back));
        });
        let reference = timed(|n| {
            let mut held = taken();
            let here = at(&mut held);
            for _ in 0..n {
                // SAFETY: as above.
                unsafe { memcpy(black_box(here).cast(), black_box(there).cast(), black_box(len)) };
            }
            operand.replace(Some(held));
        });
        rows.measure(row, ours, reference);
    }
}
