//! `ucs::mem::copy` against the C library's `memcpy` and `memset`.
//!
//! Sizes from a byte to 4 MiB, at several offsets of destination and source from a page's start. Offsets matter beyond
//! alignment: a destination a little ahead of its source, modulo a page, is where stores hold back loads.
//!
//! ```text
//! cargo bench -p rucx-benches --bench copy -- [--json] [--samples N] [--sample-us N] [words a row's name contains]
//! ```
//!
//! # Safety
//! All pointers are into [`Pages`], which has room for the largest size at the largest offset and is freed when it is dropped;
//! source and destination are two of them.

#![allow(unsafe_code)]
#![allow(clippy::print_stdout)]

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::hint::black_box;
use std::process::ExitCode;

use rucx_benches::{Options, Report, Row, interleave};
use ucs::mem::copy::{copy, fill};

const SIZES: [usize; 23] = [
    1, 4, 8, 16, 24, 32, 48, 64, 100, 128, 256, 384, 512, 1024, 1500, 2048, 4096, 8192, 16384, 65536,
    262_144, 1_048_576, 4_194_304,
];
const LARGEST: usize = 4_194_304;

/// Of destination and source, from a page's start.
const OFFSETS: [(usize, usize); 5] = [(0, 0), (1, 0), (0, 3), (33, 17), (2048, 0)];
const PAGE: usize = 4096;

/// Memory that starts at a page and has room for [`LARGEST`] at any of [`OFFSETS`].
struct Pages(*mut u8);

impl Pages {
    const LAYOUT: Layout = match Layout::from_size_align(LARGEST + PAGE, PAGE) {
        Ok(layout) => layout,
        Err(_) => panic!("not a layout"),
    };

    fn new(byte: u8) -> Self {
        // SAFETY: the layout is not of size zero.
        let start = unsafe { alloc(Self::LAYOUT) };
        if start.is_null() {
            handle_alloc_error(Self::LAYOUT);
        }
        // SAFETY: all of what was just allocated.
        unsafe { fill(start, byte, Self::LAYOUT.size()) };
        Self(start)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated by this layout, and no pointer into it outlives self.
        unsafe { dealloc(self.0, Self::LAYOUT) };
    }
}

/// Both sides are told their arguments anew in every iteration, and the C library's is called through a pointer the
/// compiler cannot see through, else it would be replaced by what the compiler knows of it.
fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(why) => {
            println!("{why}");
            return ExitCode::FAILURE;
        }
    };
    let (dst, src) = (Pages::new(1), Pages::new(2));
    let mut rows = Vec::new();
    for (d, s) in OFFSETS {
        let (to, from) = (dst.0.wrapping_add(d), src.0.wrapping_add(s));
        for bytes in SIZES {
            let name = format!("copy {d}/{s} {bytes}");
            if options.wants(&name) {
                rows.push(Row {
                    name: format!("copy {d}/{s}"),
                    bytes,
                    comparison: copies(&options, to, from, bytes),
                });
            }
        }
    }
    for d in [0, 1] {
        for bytes in SIZES {
            let name = format!("fill {d} {bytes}");
            if options.wants(&name) {
                let comparison = fills(&options, dst.0.wrapping_add(d), bytes);
                rows.push(Row { name: format!("fill {d}"), bytes, comparison });
            }
        }
    }
    let report = Report { a: "libc", b: "ucs", rows };
    if options.json {
        println!("{}", report.to_json());
    } else {
        println!("{report}");
    }
    ExitCode::SUCCESS
}

fn copies(options: &Options, to: *mut u8, from: *const u8, bytes: usize) -> rucx_benches::Comparison {
    let memcpy: unsafe extern "C" fn(*mut libc::c_void, *const libc::c_void, usize) -> *mut libc::c_void =
        black_box(libc::memcpy);
    interleave(
        options,
        |iterations| {
            for _ in 0..iterations {
                // SAFETY: within two allocations, as the offsets are below a page and the size is at most the largest.
                unsafe { memcpy(black_box(to).cast(), black_box(from).cast(), black_box(bytes)) };
            }
        },
        |iterations| {
            for _ in 0..iterations {
                // SAFETY: as above.
                unsafe { copy(black_box(to), black_box(from), black_box(bytes)) };
            }
        },
    )
}

fn fills(options: &Options, to: *mut u8, bytes: usize) -> rucx_benches::Comparison {
    let memset: unsafe extern "C" fn(*mut libc::c_void, libc::c_int, usize) -> *mut libc::c_void =
        black_box(libc::memset);
    interleave(
        options,
        |iterations| {
            for _ in 0..iterations {
                // SAFETY: within an allocation, as the offset is below a page and the size is at most the largest.
                unsafe { memset(black_box(to).cast(), black_box(3), black_box(bytes)) };
            }
        },
        |iterations| {
            for _ in 0..iterations {
                // SAFETY: as above.
                unsafe { fill(black_box(to), black_box(3), black_box(bytes)) };
            }
        },
    )
}
