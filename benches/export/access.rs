//! Reading and writing memory.
//!
//! # Safety
//! The C library's `memcpy` gets a mapping and a buffer of this process, both alive and long enough, which nobody else uses.

#![allow(unsafe_code)]

use std::cell::LazyCell;
use std::hint::black_box;

use rucx_benches::{Target, timed};
use ucp::{ImportedRegion, MemMap};
use ucs::mem::{Mapping, Memfd};
use ucs::sync::{Ordering, Word64};

use crate::roles::{Exporter, LARGEST};
use crate::rows::{Row, Rows, context, size};

const SIZES: [usize; 6] = [8, 64, 4 << 10, 64 << 10, 1 << 20, 16 << 20];

/// Memory as the exporter's, but this process's alone, and a buffer for each side.
struct Local {
    map: Mapping,
    buf: Vec<u8>,
    other: Vec<u8>,
}

impl Local {
    fn new() -> Self {
        let (_, map) = Memfd::create("local", LARGEST, false).expect("memory");
        let mut buf = vec![1; LARGEST];
        map.bytes().write(0, &buf).expect("within");
        map.bytes().read(0, &mut buf).expect("within");
        let other = buf.clone();
        Self { map, buf, other }
    }
}

pub(crate) fn measure(rows: &mut Rows) {
    let exporter = LazyCell::new(Exporter::start);
    let ctx = context();
    let import = LazyCell::new(|| {
        let import = ctx.mem_import(&exporter.large).expect("an import");
        import.read(0, &mut vec![0; LARGEST]).expect("the first access brings the pages");
        import
    });
    let mut local = Local::new();
    for len in SIZES {
        copies(rows, &import, &mut local, len);
    }
    words(rows, &import);
}

type Memcpy = unsafe extern "C" fn(*mut libc::c_void, *const libc::c_void, usize) -> *mut libc::c_void;

fn copies(
    rows: &mut Rows,
    import: &LazyCell<ImportedRegion, impl FnOnce() -> ImportedRegion>,
    local: &mut Local,
    len: usize,
) {
    let memcpy: Memcpy = black_box(libc::memcpy);
    let there: *mut u8 = local.map.bytes().as_ptr();
    let buf = &mut local.buf[..len];
    let at: *mut u8 = buf.as_mut_ptr();
    let (read, write) = (format!("import.read {}", size(len)), format!("import.write {}", size(len)));
    let target = (len >= 64 << 10).then_some(Target::Ratio(1.05));
    let row = Row { name: &read, reference: "memcpy", target };
    if rows.wants(row) {
        let reference = timed(|n| {
            for _ in 0..n {
                // SAFETY: len bytes each, apart from each other, and nobody else uses either meanwhile.
                unsafe { memcpy(black_box(at).cast(), black_box(there).cast(), black_box(len)) };
            }
        });
        let ours = timed(|n| {
            for _ in 0..n {
                import.read(0, black_box(&mut *buf)).expect("within");
            }
        });
        rows.measure(row, ours, reference);
    }
    let row = Row { reference: "view.read", target: None, ..row };
    if rows.wants(row) {
        let view = import.view().expect("it is mapped");
        let other = &mut local.other[..len];
        let ours = timed(|n| {
            for _ in 0..n {
                import.read(0, black_box(&mut *buf)).expect("within");
            }
        });
        let reference = timed(|n| {
            for _ in 0..n {
                view.read(0, black_box(&mut *other)).expect("within");
            }
        });
        rows.measure(row, ours, reference);
    }
    let row = Row { name: &write, reference: "memcpy", target };
    if rows.wants(row) {
        let reference = timed(|n| {
            for _ in 0..n {
                // SAFETY: len bytes each, apart from each other, and nobody else uses either meanwhile.
                unsafe { memcpy(black_box(there).cast(), black_box(at).cast(), black_box(len)) };
            }
        });
        let ours = timed(|n| {
            for _ in 0..n {
                import.write(0, black_box(&*buf)).expect("within");
            }
        });
        rows.measure(row, ours, reference);
    }
    let row = Row { reference: "view.write", target: None, ..row };
    if rows.wants(row) {
        let view = import.view().expect("it is mapped");
        let ours = timed(|n| {
            for _ in 0..n {
                import.write(0, black_box(&*buf)).expect("within");
            }
        });
        let reference = timed(|n| {
            for _ in 0..n {
                view.write(0, black_box(&*buf)).expect("within");
            }
        });
        rows.measure(row, ours, reference);
    }
}

/// Loads and stores of a u64, beside those of a word of this process.
fn words(rows: &mut Rows, import: &LazyCell<ImportedRegion, impl FnOnce() -> ImportedRegion>) {
    let word = Word64::new(1);
    let loads = || {
        timed(|n| {
            for _ in 0..n {
                black_box(black_box(&word).load(Ordering::Acquire));
            }
        })
    };
    let stores = || {
        timed(|n| {
            for value in 0..n {
                black_box(&word).store(black_box(value), Ordering::Release);
            }
        })
    };
    /// `$memory` is made only when one of its rows is wanted.
    macro_rules! load_and_store {
        ($name:literal, $memory:expr) => {
            let row = Row { name: concat!($name, ".load u64"), reference: "a word's load", target: None };
            if rows.wants(row) {
                let memory = $memory;
                let ours = timed(|n| {
                    for _ in 0..n {
                        black_box(memory.load::<u64>(black_box(64)).expect("within"));
                    }
                });
                rows.measure(row, ours, loads());
            }
            let row = Row { name: concat!($name, ".store u64"), reference: "a word's store", target: None };
            if rows.wants(row) {
                let memory = $memory;
                let ours = timed(|n| {
                    for value in 0..n {
                        memory.store(black_box(64), black_box(value)).expect("within");
                    }
                });
                rows.measure(row, ours, stores());
            }
        };
    }
    let ctx = context();
    load_and_store!("region", ctx.mem_map(MemMap::allocate(4096)).expect("memory"));
    load_and_store!("import", &**import);
    load_and_store!("view", import.view().expect("it is mapped"));
}
