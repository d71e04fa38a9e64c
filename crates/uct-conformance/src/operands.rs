//! Operands: memory of this process of every kind, moved by `put` and `get`; registered where the memory domain needs that.

use std::sync::Arc;

use testkit::Rng;
use ucs::mem::page::{PageRange, page_size};
use ucs::mem::{Access, Mapping};
use ucs::rcache::Options;
use uct::api::{Attachment, Md, MdFlags, RegError, get_by_read, put_by_write};
use uct::memory::{AccessError, Destination, Local, LocalMem, LocalMut, OperandReason, Rights, Source};
use uct::registrations::{Needs, RegisterError, Registrations};

use crate::bench::{Bench, assert_holds};
use crate::fixture::pattern;
use crate::{Check, list, sys};

pub(crate) const CHECKS: &[Check] = list![operands:
    every_kind_matches_a_model in Everywhere,
    longer_than_one_step in Everywhere,
    refused_ones_move_nothing in Everywhere,
    raw_ones_that_are_not_mapped in Everywhere,
    registration_is_there_where_announced in Once,
    unregistered_ones_are_refused_where_needed in Once,
];

/// What operations of the importer's memory domain go through, as a context's do.
pub(crate) struct Operations {
    pub(crate) registrations: Registrations,
    pub(crate) needs: Option<Needs>,
}

impl Operations {
    pub(crate) fn of(bench: &Bench) -> Self {
        let operations = Self::by(&bench.importer.md);
        assert_eq!(operations.needs.is_some(), bench.importer.has(MdFlags::NEED_MEMH));
        operations
    }

    /// Of any memory domain.
    pub(crate) fn by(md: &Arc<dyn Md>) -> Self {
        let registrations = Registrations::new([md], Options::default());
        let needs = registrations.of(md);
        Self { registrations, needs }
    }

    pub(crate) fn put(&self, to: &dyn Attachment, offset: u64, src: Local<'_>) -> Result<(), AccessError> {
        match self.needs {
            None => to.put(offset, &src),
            Some(_) if src.is_imported() => put_by_write(to, offset, &src),
            Some(needs) => settle(self.registrations.with_source(needs, src, |src| to.put(offset, src))),
        }
    }

    pub(crate) fn get(
        &self,
        from: &dyn Attachment,
        offset: u64,
        mut dst: LocalMut<'_>,
    ) -> Result<(), AccessError> {
        match self.needs {
            None => from.get(offset, &mut dst),
            Some(_) if dst.is_imported() => get_by_read(from, offset, &mut dst),
            Some(needs) => {
                settle(self.registrations.with_destination(needs, dst, |dst| from.get(offset, dst)))
            }
        }
    }
}

/// That pages cannot be registered is what their not being mapped means.
fn settle(answer: Result<Result<(), AccessError>, RegisterError>) -> Result<(), AccessError> {
    match answer {
        Ok(answer) => answer,
        Err(RegisterError::Operand(error)) => Err(error),
        Err(RegisterError::Md { error: RegError::Pages { .. }, .. }) => {
            Err(AccessError::Operand { done: 0, why: OperandReason::Unmapped })
        }
        Err(other) => panic!("an operand is not registered: {other}"),
    }
}

fn every_kind_matches_a_model(bench: &Bench) {
    let mut rng = Rng::new(testkit::seed() ^ 0x6f70_6572);
    let operations = Operations::of(bench);
    let len = 3 * page_size() + 7;
    let (region, _, attachment) = bench.attached(len, 3);
    let mut model = pattern(3, len);
    let mapping = Mapping::anonymous(len).unwrap();
    let mut raw = sys::raw(&mapping);
    let shared = LocalMem::anonymous(len, Rights::READ_WRITE).unwrap();
    let mut owned = vec![0; len];
    for step in 0..300 {
        let at = rng.below(len + 1);
        let count = rng.below(len - at + 1);
        let offset = at as u64;
        let part = 0..count;
        let kind = rng.below(3);
        let new = pattern(rng.next_u64(), len);
        if rng.below(2) == 0 {
            let answer = match kind {
                0 => {
                    owned.copy_from_slice(&new);
                    operations.put(&*attachment, offset, Local::bytes(&owned[part]))
                }
                // Raw memory is named whole: at the beginning only.
                1 => {
                    mapping.bytes().write(0, &new).unwrap();
                    operations.put(&*attachment, 0, raw.local())
                }
                _ => {
                    shared.write(0, &new).unwrap();
                    operations.put(&*attachment, offset, Local::part(&shared, part))
                }
            };
            assert_eq!(answer, Ok(()), "step {step}: kind {kind}, {count} at {at}");
            let (at, count) = if kind == 1 { (0, len) } else { (at, count) };
            model[at..at + count].copy_from_slice(&new[..count]);
            assert!(
                bench.exporter.read(region, 0, len) == model,
                "step {step}: kind {kind}, {count} at {at}"
            );
        } else {
            let mut seen = new.clone();
            let (answer, at, count) = match kind {
                0 => {
                    let answer = operations.get(&*attachment, offset, LocalMut::bytes(&mut seen[part]));
                    (answer, at, count)
                }
                1 => {
                    let answer = operations.get(&*attachment, 0, raw.local_mut());
                    mapping.bytes().read(0, &mut seen).unwrap();
                    (answer, 0, len)
                }
                _ => {
                    shared.write(0, &new).unwrap();
                    let answer = operations.get(&*attachment, offset, LocalMut::part(&shared, part));
                    shared.read(0, &mut seen).unwrap();
                    (answer, at, count)
                }
            };
            assert_eq!(answer, Ok(()), "step {step}: kind {kind}, {count} at {at}");
            assert!(seen[..count] == model[at..at + count], "step {step}: kind {kind}, {count} at {at}");
            assert!(seen[count..] == new[count..], "step {step}: what is behind the operand is left alone");
        }
    }
}

fn longer_than_one_step(bench: &Bench) {
    let operations = Operations::of(bench);
    let len = 2 * uct::memory::COPY_STEP + 4321;
    let (region, _, attachment) = bench.attached(len, 3);
    let mut seen = vec![0; len];
    operations.get(&*attachment, 0, LocalMut::bytes(&mut seen)).unwrap();
    assert!(seen == pattern(3, len));
    let new = pattern(4, len - 100);
    operations.put(&*attachment, 50, Local::bytes(&new)).unwrap();
    assert!(bench.exporter.read(region, 50, len - 100) == new);
    assert_eq!(bench.exporter.read(region, 0, 50), pattern(3, 50));
}

fn refused_ones_move_nothing(bench: &Bench) {
    let operations = Operations::of(bench);
    let len = page_size();
    let (region, ticket, attachment) = bench.attached(len, 3);
    let mut seen = vec![0x77; 16];
    let ones = vec![1; 16]; // no constant, which cannot be pinned everywhere
    for offset in [len as u64 - 15, len as u64 + 1, u64::MAX - 3] {
        let put = operations.put(&*attachment, offset, Local::bytes(&ones));
        assert!(matches!(put, Err(AccessError::Bounds(_))), "{put:?} at {offset}");
        let get = operations.get(&*attachment, offset, LocalMut::bytes(&mut seen));
        assert!(matches!(get, Err(AccessError::Bounds(_))), "{get:?} at {offset}");
    }
    assert_holds(&*attachment, 3);
    let read_only = bench.exporter.create(bench.importer.usual(), len, Rights::READ, 4);
    let other = bench.attach(&bench.exporter.export(read_only));
    let put = operations.put(&*other, 0, Local::bytes(&ones));
    assert!(matches!(put, Err(AccessError::AccessDenied { done: 0, .. })), "{put:?}");
    assert_holds(&*other, 4);
    // Memory of this process that is for reading only is not written, either.
    let owned = uct::OwnedBytes::readable(vec![0x77; 16]);
    let constant = LocalMem::owned(owned, Rights::READ);
    let get = operations.get(&*attachment, 0, LocalMut::part(&constant, 0..16));
    assert_eq!(get, Err(AccessError::Operand { done: 0, why: OperandReason::ReadOnlyBuffer }));
    constant.read(0, &mut seen).unwrap();
    assert_eq!(seen, [0x77; 16]);

    bench.exporter.revoke(&ticket);
    let put = operations.put(&*attachment, 0, Local::bytes(&ones));
    assert!(matches!(put, Err(AccessError::Stale { done: 0, .. })), "{put:?}");
    let get = operations.get(&*attachment, 0, LocalMut::bytes(&mut seen));
    assert!(matches!(get, Err(AccessError::Stale { done: 0, .. })), "{get:?}");
    assert_eq!(seen, [0x77; 16]);
    assert_eq!(bench.exporter.read(region, 0, len), pattern(3, len));
}

/// Addresses where nothing is mapped: an error, and the operation has not gone further than it says.
fn raw_ones_that_are_not_mapped(bench: &Bench) {
    let operations = Operations::of(bench);
    let page = page_size();
    let (region, _, attachment) = bench.attached(4 * page, 3);
    let mut raw = sys::with_a_hole(4 * page, page);
    let put = operations.put(&*attachment, 0, raw.local());
    let Err(AccessError::Operand { done, why: OperandReason::Unmapped }) = put else { panic!("{put:?}") };
    assert!(done <= page as u64, "{done} bytes before the hole");
    let behind = bench.exporter.read(region, page as u64, 3 * page);
    assert!(behind == pattern(3, 4 * page)[page..], "nothing behind the hole is moved");
    let get = operations.get(&*attachment, 0, raw.local_mut());
    assert!(matches!(get, Err(AccessError::Operand { why: OperandReason::Unmapped, .. })), "{get:?}");
}

fn registration_is_there_where_announced(bench: &Bench) {
    let md = &bench.importer.md;
    let mapping = Mapping::anonymous(2 * page_size()).unwrap();
    let range = PageRange::containing(mapping.bytes().as_ptr().addr(), 2 * page_size()).unwrap();
    for access in [Access::Read, Access::ReadWrite] {
        // Twice, also of the same pages at once.
        let answers = [md.reg_local(range, access), md.reg_local(range, access)];
        for answer in answers {
            match answer {
                Ok(memh) => {
                    assert!(bench.importer.has(MdFlags::NEED_MEMH), "it registers what it does not need");
                    drop(memh);
                }
                Err(RegError::Unsupported { .. }) => assert!(!bench.importer.has(MdFlags::NEED_MEMH)),
                Err(error) => panic!("memory that is mapped: {error}"),
            }
        }
    }
    mapping.bytes().write(0, b"its pages stay").unwrap();
}

fn unregistered_ones_are_refused_where_needed(bench: &Bench) {
    let (_, _, attachment) = bench.attached(100, 3);
    let mut seen = [0x77; 8];
    let put = attachment.put(0, &Local::bytes(&[1; 8]));
    let get = attachment.get(8, &mut LocalMut::bytes(&mut seen));
    if bench.importer.has(MdFlags::NEED_MEMH) {
        let refused = Err(AccessError::Operand { done: 0, why: OperandReason::NotRegistered });
        assert_eq!((put, get), (refused.clone(), refused));
        assert_holds(&*attachment, 3);
        assert_eq!(seen, [0x77; 8]);
    } else {
        assert_eq!((put, get), (Ok(()), Ok(())));
    }
}
