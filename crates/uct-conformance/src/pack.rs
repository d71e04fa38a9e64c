//! Packing: exactly the bytes announced, and nothing else touched.

use std::collections::HashSet;

use testkit::guard::Canary;
use testkit::{GuardedBuf, assert_writes_exactly};
use uct::api::{MdFlags, Memh, PackError, PackFlags, RegError};
use uct::export::Export;
use uct::memory::Rights;

use crate::bench::Bench;
use crate::fixture::{Kind, Made, Side, pattern};
use crate::{Check, list};

pub(crate) const CHECKS: &[Check] = list![pack:
    kinds_of_memory in Once,
    every_combination_of_flags in Once,
    guarded_buffers in Once,
    buffers_of_another_size_are_refused in Once,
    two_exports_differ in Once,
    memory_is_left_alone in Once,
];

const LEN: usize = 5000;

fn combinations() -> impl Iterator<Item = PackFlags> {
    (0..=PackFlags::all().bits()).map(PackFlags::from_bits_truncate)
}

/// What packing with `flags` must answer: a size, or that there is no such key.
fn expected(side: &Side, flags: PackFlags) -> Option<usize> {
    let attr = side.md.attr();
    let invalidates = flags.intersects(PackFlags::INVALIDATE_RMA | PackFlags::INVALIDATE_AMO);
    let (flag, size) = if flags.contains(PackFlags::EXPORT) {
        (MdFlags::EXPORTED_MKEY, attr.exported_mkey_packed_size)
    } else {
        (MdFlags::NEED_RKEY, attr.rkey_packed_size)
    };
    (side.has(flag) && (!invalidates || side.has(MdFlags::INVALIDATE))).then_some(size)
}

/// Memory of each kind that is registered, with its registration and an export.
fn each(side: &Side, mut visit: impl FnMut(Kind, &Made, &dyn Memh, &Export)) {
    for kind in side.registered() {
        let made = kind.make(&*side.md, LEN, Rights::READ_WRITE, 7);
        let memh = side.md.reg(&made.mem).unwrap();
        let export = side.exports.publish(&made.mem).unwrap();
        visit(kind, &made, &*memh, &export);
    }
}

fn kinds_of_memory(bench: &Bench) {
    let side = bench.local();
    for kind in side.kinds() {
        let made = kind.make(&*side.md, LEN, Rights::READ_WRITE, 7);
        let answer = side.md.reg(&made.mem).map(|_| ());
        if side.has(MdFlags::REG) || kind == Kind::Allocated {
            assert_eq!(answer, Ok(()), "{kind:?}");
        } else {
            let Err(RegError::Unsupported { kind: named, why }) = answer else {
                panic!("{kind:?}: {answer:?}")
            };
            assert!(named == made.mem.kind() && !why.is_empty(), "the refusal says what, and why");
        }
    }
    assert!(side.registered().contains(&side.usual()));
}

fn every_combination_of_flags(bench: &Bench) {
    let side = bench.local();
    each(&side, |kind, _, memh, export| {
        for flags in combinations() {
            let size = memh.packed_size(flags);
            match expected(&side, flags) {
                Some(expected) => {
                    assert_eq!(size.as_ref(), Ok(&expected), "{kind:?} {flags:?}");
                    assert_writes_exactly(expected, expected, |buf| memh.pack(export, flags, buf).unwrap());
                }
                None => {
                    assert!(matches!(size, Err(PackError::Unsupported(_))), "{kind:?} {flags:?}: {size:?}");
                    for len in [0, 1, 64, 512] {
                        let mut buf = Canary::new(len, 0x5a);
                        let answer = memh.pack(export, flags, buf.body());
                        assert!(
                            matches!(answer, Err(PackError::Unsupported(_))),
                            "{kind:?} {flags:?}: {answer:?}"
                        );
                        assert_eq!(buf.check(0), Ok(()), "a refusal writes nothing");
                    }
                }
            }
        }
    });
}

/// One byte before or behind the buffer is a fault that ends the process.
fn guarded_buffers(bench: &Bench) {
    let side = bench.local();
    each(&side, |_, _, memh, export| {
        let size = memh.packed_size(PackFlags::EXPORT).unwrap();
        let (mut back, mut front) = (GuardedBuf::new(size), GuardedBuf::front(size));
        memh.pack(export, PackFlags::EXPORT, &mut back).unwrap();
        memh.pack(export, PackFlags::EXPORT, &mut front).unwrap();
        assert_eq!(&*back, &*front, "packing one export twice gives the same bytes");
    });
}

fn buffers_of_another_size_are_refused(bench: &Bench) {
    let side = bench.local();
    each(&side, |kind, _, memh, export| {
        for flags in combinations() {
            let Ok(needed) = memh.packed_size(flags) else { continue };
            for found in [0, 1, needed - 1, needed + 1, 2 * needed] {
                let mut buf = Canary::new(found, 0x5a);
                let answer = memh.pack(export, flags, buf.body());
                assert_eq!(answer, Err(PackError::WrongSize { needed, found }), "{kind:?} {flags:?}");
                assert_eq!(buf.check(0), Ok(()), "a refusal writes nothing");
            }
        }
    });
}

fn two_exports_differ(bench: &Bench) {
    let side = bench.local();
    each(&side, |kind, made, memh, first| {
        let mut keys = HashSet::new();
        let second = side.exports.publish(&made.mem).unwrap();
        assert_ne!(first.claim().token, second.claim().token);
        assert_ne!(first.claim().id, second.claim().id);
        for export in [first, &second] {
            let mut key = vec![0; memh.packed_size(PackFlags::EXPORT).unwrap()];
            memh.pack(export, PackFlags::EXPORT, &mut key).unwrap();
            assert!(keys.insert(key), "{kind:?}: two exports have one key");
        }
    });
}

fn memory_is_left_alone(bench: &Bench) {
    let side = bench.local();
    each(&side, |kind, made, memh, export| {
        for flags in combinations() {
            let mut key = vec![0; memh.packed_size(flags).unwrap_or(64)];
            let _ = memh.pack(export, flags, &mut key);
        }
        let mut bytes = vec![0; LEN];
        made.mem.read(0, &mut bytes).unwrap();
        assert!(bytes == pattern(7, LEN), "{kind:?}: packing changed the memory");
    });
}
