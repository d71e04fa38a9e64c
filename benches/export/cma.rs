//! Memory that rucx did not allocate, reached by `cma`: beside the bare system calls.
//!
//! # Safety
//! The bare calls get a buffer of this process, alive and long enough, and addresses of another process, which the kernel checks.

#![allow(unsafe_code)]

use std::cell::LazyCell;
use std::hint::black_box;

use libc::iovec;
use rucx_benches::{Target, timed};
use ucp::MemMap;
use ucp::wire::handle::Handle;

use crate::bare;
use crate::roles::{Exporter, LARGEST};
use crate::rows::{Row, Rows, context, size};

const SIZES: [usize; 7] = [8, 512, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20];

/// What a read may take, compared with the bare call: it fetches the exporter's nonce as well.
fn target(len: usize) -> Option<Target> {
    match len {
        4096 => Some(Target::Ratio(1.35)),
        len if len >= 256 << 10 => Some(Target::Ratio(1.0 / 0.95)),
        len if len >= 64 << 10 => Some(Target::Ratio(1.0 / 0.90)),
        _ => None,
    }
}

pub(crate) fn measure(rows: &mut Rows) {
    let exporter: LazyCell<Exporter> = LazyCell::new(Exporter::start);
    accesses(rows, &exporter);
    imports(rows, &exporter);
    relays(rows, &exporter);
    let row =
        Row { name: "memh_pack, own memory", reference: "getppid", target: Some(Target::Nanoseconds(300.0)) };
    if rows.wants(row) {
        let ctx = context();
        let ours = |n: u64| {
            let region = ctx.mem_map(MemMap::buffer(vec![0; 4096]).exported()).expect("a region");
            let mut handles = Vec::with_capacity(usize::try_from(n).unwrap_or(0));
            timed(|n| handles.extend((0..n).map(|_| region.memh_pack().expect("a handle"))))(n)
        };
        rows.measure(row, ours, timed(bare::system_calls));
    }
}

/// The bare calls, at an exporter's addresses.
#[derive(Clone, Copy)]
struct Bare {
    pid: libc::pid_t,
    address: u64,
}

impl Bare {
    fn of(exporter: &Exporter) -> Self {
        let handle = Handle::decode(&exporter.own, |_| true).expect("a handle");
        Self { pid: libc::pid_t::try_from(exporter.pid()).expect("a pid"), address: handle.address }
    }

    fn sides(self, local: *mut u8, len: usize) -> (iovec, iovec) {
        let remote = std::ptr::without_provenance_mut(usize::try_from(self.address).expect("an address"));
        (iovec { iov_base: local.cast(), iov_len: len }, iovec { iov_base: remote, iov_len: len })
    }

    fn read(self, into: &mut [u8]) {
        let (local, remote) = self.sides(into.as_mut_ptr(), into.len());
        // SAFETY: `into` is borrowed exclusively for the call.
        let moved = unsafe { libc::process_vm_readv(self.pid, &raw const local, 1, &raw const remote, 1, 0) };
        assert_eq!(usize::try_from(moved), Ok(into.len()));
    }

    /// A word of one page, then `into` from the next page on, in one call: what any read costs that sees a nonce.
    fn read_two(self, into: &mut [u8]) {
        let mut word = [0; 8];
        let (local, remote) = self.sides(into.as_mut_ptr(), into.len());
        let (word_local, word_remote) = self.sides(word.as_mut_ptr(), word.len());
        let next = iovec { iov_base: remote.iov_base.wrapping_byte_add(4096), ..remote };
        let (locals, remotes) = ([word_local, local], [word_remote, next]);
        // SAFETY: `word` and `into` are borrowed exclusively for the call.
        let moved = unsafe { libc::process_vm_readv(self.pid, locals.as_ptr(), 2, remotes.as_ptr(), 2, 0) };
        assert_eq!(usize::try_from(moved), Ok(word.len() + into.len()));
    }

    fn write(self, bytes: &[u8]) {
        let (local, remote) = self.sides(bytes.as_ptr().cast_mut(), bytes.len());
        // SAFETY: `bytes` is only read; the other side is another process's.
        let moved =
            unsafe { libc::process_vm_writev(self.pid, &raw const local, 1, &raw const remote, 1, 0) };
        assert_eq!(usize::try_from(moved), Ok(bytes.len()));
    }
}

fn accesses(rows: &mut Rows, exporter: &LazyCell<Exporter>) {
    let ctx = context();
    let import = LazyCell::new(|| {
        let import = ctx.mem_import(&exporter.own).expect("an import");
        assert_eq!(import.transport(), "cma");
        import
    });
    let mut buf = vec![1; LARGEST];
    for len in SIZES {
        let buf = std::cell::RefCell::new(&mut buf[..len]); // one for both sides: where it lies makes a difference
        let name = format!("cma.read {}", size(len));
        let row = Row { name: &name, reference: "process_vm_readv", target: target(len) };
        if rows.wants(row) {
            let bare = Bare::of(exporter);
            let ours = timed(|n| {
                (0..n).for_each(|_| import.read(0, black_box(&mut buf.borrow_mut())).expect("within"));
            });
            rows.measure(
                row,
                ours,
                timed(|n| (0..n).for_each(|_| bare.read(black_box(&mut buf.borrow_mut())))),
            );
        }
        if len == 4 << 10 {
            let row = Row { name: "two ranges, 4 KiB", reference: "process_vm_readv", target: None };
            if rows.wants(row) {
                let bare = Bare::of(exporter);
                let two = timed(|n| (0..n).for_each(|_| bare.read_two(black_box(&mut buf.borrow_mut()))));
                let one = timed(|n| (0..n).for_each(|_| bare.read(black_box(&mut buf.borrow_mut()))));
                rows.measure(row, two, one);
            }
        }
        let name = format!("cma.write {}", size(len));
        let row = Row { name: &name, reference: "process_vm_writev", target: None };
        if rows.wants(row) {
            let bare = Bare::of(exporter);
            let ours = timed(|n| {
                (0..n).for_each(|_| import.write(0, black_box(&buf.borrow())).expect("within"));
            });
            rows.measure(row, ours, timed(|n| (0..n).for_each(|_| bare.write(black_box(&buf.borrow())))));
        }
    }
}

/// Bytes that one thread moves at once from an import to another one.
const PIECE: usize = 256 << 10;

/// From one exporter's memory to another's, beside what that is made of.
fn relays(rows: &mut Rows, exporter: &LazyCell<Exporter>) {
    let row = Row { name: "cma to cma, its thread", reference: "getppid", target: None };
    let thread = timed(|n| {
        (0..n).for_each(|_| drop(std::thread::scope(|scope| scope.spawn(|| black_box(0)).join())));
    });
    rows.measure(row, thread, timed(bare::system_calls));
    let ctx = context();
    let other: LazyCell<Exporter> = LazyCell::new(Exporter::start);
    let from = LazyCell::new(|| ctx.mem_import(&exporter.own).expect("an import"));
    let to = LazyCell::new(|| ctx.mem_import(&other.own).expect("an import"));
    let buf = std::cell::RefCell::new(vec![1; LARGEST]);
    for len in [64 << 10, 256 << 10, 1 << 20, 4 << 20, 8 << 20, 16 << 20] {
        let read = |buf: &mut [u8], at: usize| from.read(at as u64, black_box(buf)).expect("within");
        let write = |buf: &[u8], at: usize| to.write(at as u64, black_box(buf)).expect("within");
        let name = format!("cma to cma {}", size(len));
        let mut beside = |reference: &str, other: &dyn Fn(&mut [u8])| {
            let row = Row { name: &name, reference, target: None };
            if rows.wants(row) {
                let ours = timed(|n| {
                    let mut slice = from.slice(..len as u64).expect("within");
                    for _ in 0..n {
                        slice = to.put(0, slice).expect("within");
                    }
                });
                let theirs = timed(|n| (0..n).for_each(|_| other(&mut buf.borrow_mut()[..len])));
                rows.measure(row, ours, theirs);
            }
        };
        beside("one thread, by 256 KiB", &|buf| {
            for at in (0..len).step_by(PIECE) {
                let piece = &mut buf[..PIECE.min(len)];
                read(piece, at);
                write(piece, at);
            }
        });
        beside("both legs", &|buf| {
            read(buf, 0);
            write(buf, 0);
        });
        beside("its read alone", &|buf| read(buf, 0));
        beside("its write alone", &|buf| write(buf, 0));
    }
}

fn imports(rows: &mut Rows, exporter: &LazyCell<Exporter>) {
    let row =
        Row { name: "mem_import + drop, own memory, new connection", reference: "getppid", target: None };
    if rows.wants(row) {
        let ctx = context();
        let ours = timed(|n| (0..n).for_each(|_| drop(ctx.mem_import(&exporter.own).expect("an import"))));
        rows.measure(row, ours, timed(bare::system_calls));
    }
    let row = Row { name: "mem_import + drop, own memory, connected", ..row };
    if rows.wants(row) {
        let ctx = context();
        let _kept = ctx.mem_import(&exporter.large).expect("an import");
        let ours = timed(|n| (0..n).for_each(|_| drop(ctx.mem_import(&exporter.own).expect("an import"))));
        rows.measure(row, ours, timed(bare::system_calls));
    }
    let row = Row {
        name: "mem_import + drop, own memory, cached",
        target: Some(Target::Nanoseconds(500.0)),
        ..row
    };
    if rows.wants(row) {
        let ctx = context();
        let _kept = ctx.mem_import(&exporter.own).expect("an import");
        let ours = timed(|n| {
            (0..n).for_each(|_| drop(ctx.mem_import(black_box(&exporter.own)).expect("an import")))
        });
        rows.measure(row, ours, timed(bare::system_calls));
    }
}
