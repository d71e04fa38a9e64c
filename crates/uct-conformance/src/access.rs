//! Reading and writing attached memory.

use std::thread;

use testkit::Rng;
use ucs::mem::page::page_size;
use ucs::mem::shared::BoundsError;
use ucs::sync::{AtomicBool, Ordering};
use uct::api::{Attachment, ComponentId, MdFlags};
use uct::memory::{AccessError, COPY_STEP, Rights};

use crate::bench::{Bench, assert_holds, whole};
use crate::exporter::Region;
use crate::fixture::{Place, pattern};
use crate::{Check, list};

pub(crate) const CHECKS: &[Check] = list![access:
    whole_and_edges in Everywhere,
    longer_than_one_step in Everywhere,
    random_accesses_match_a_model in Everywhere,
    no_bytes in Everywhere,
    out_of_range in Everywhere,
    read_only in Everywhere,
    words_do_not_tear in Everywhere,
    view_is_there_where_announced in Everywhere,
    check_says_that_it_lives in Everywhere,
];

fn whole_and_edges(bench: &Bench) {
    let page = page_size();
    let len = 2 * page + 13;
    for kind in bench.local().registered() {
        let region = bench.exporter.create(kind, len, Rights::READ_WRITE, 3);
        let attachment = bench.attach(&bench.exporter.export(region));
        assert_holds(&*attachment, 3);
        if !attachment.rights().contains(Rights::WRITE) {
            continue;
        }
        let mut model = pattern(4, len);
        attachment.write(0, &model).unwrap();
        assert!(bench.exporter.read(region, 0, len) == model, "{kind:?}: written whole");
        for (at, bytes) in
            [(0, 1), (len - 1, 1), (page - 3, 7), (page, page), (len - page, page), (1, len - 2)]
        {
            let new = pattern(at as u64 + 5, bytes);
            attachment.write(at as u64, &new).unwrap();
            model[at..at + bytes].copy_from_slice(&new);
            let mut back = vec![0; bytes];
            attachment.read(at as u64, &mut back).unwrap();
            assert!(back == new, "{kind:?}: {bytes} bytes at {at} come back");
            assert!(
                bench.exporter.read(region, 0, len) == model,
                "{kind:?}: {bytes} bytes at {at}, and no other"
            );
        }
    }
}

fn longer_than_one_step(bench: &Bench) {
    let len = 2 * COPY_STEP + 4321;
    let (region, _, attachment) = bench.attached(len, 3);
    assert_holds(&*attachment, 3);
    let new = pattern(4, len - 100);
    attachment.write(50, &new).unwrap();
    assert!(bench.exporter.read(region, 50, len - 100) == new);
    assert_eq!(bench.exporter.read(region, 0, 50), pattern(3, 50));
}

fn random_accesses_match_a_model(bench: &Bench) {
    let mut rng = Rng::new(testkit::seed() ^ 0x6163_6365);
    let len = 3 * page_size() + 7;
    let (region, _, attachment) = bench.attached(len, 3);
    let mut model = pattern(3, len);
    for step in 0..400 {
        let at = rng.below(len + 1);
        // Half of them short, where alignment makes the difference.
        let longest = if step % 2 == 0 { (len - at).min(40) } else { len - at };
        let count = rng.below(longest + 1);
        let offset = at as u64;
        match rng.below(4) {
            0 => {
                let new = pattern(rng.next_u64(), count);
                attachment.write(offset, &new).unwrap();
                model[at..at + count].copy_from_slice(&new);
            }
            1 => {
                let new = pattern(rng.next_u64(), count);
                bench.exporter.write(region, offset, &new);
                model[at..at + count].copy_from_slice(&new);
            }
            2 => assert!(
                bench.exporter.read(region, offset, count) == model[at..at + count],
                "step {step}: {count} at {at}"
            ),
            _ => {
                let mut bytes = vec![0x77; count];
                attachment.read(offset, &mut bytes).unwrap();
                assert!(bytes == model[at..at + count], "step {step}: {count} at {at}");
            }
        }
    }
    assert!(whole(&*attachment) == model && bench.exporter.read(region, 0, len) == model);
}

fn no_bytes(bench: &Bench) {
    let (region, _, attachment) = bench.attached(100, 3);
    for at in [0, 1, 50, 100] {
        assert_eq!(attachment.read(at, &mut []), Ok(()), "at {at}");
        assert_eq!(attachment.write(at, &[]), Ok(()), "at {at}");
    }
    for at in [101, u64::MAX] {
        let beyond = BoundsError::OutOfRange { offset: at, len: 0, size: 100 };
        assert_eq!(attachment.read(at, &mut []), Err(beyond.into()));
        assert_eq!(attachment.write(at, &[]), Err(beyond.into()));
    }
    assert_eq!(bench.exporter.read(region, 0, 100), pattern(3, 100));
}

fn out_of_range(bench: &Bench) {
    let len = page_size();
    let (region, _, attachment) = bench.attached(len, 3);
    let size = len as u64;
    for (offset, count) in [
        (size, 1),
        (size - 1, 2),
        (0, len + 1),
        (1, len),
        (size + 1, 1),
        (size * 2, 8),
        (1 << 40, 1),
        (u64::MAX, 1),
        (u64::MAX - 3, 4),
        (u64::MAX - 3, 8),
        (1 << 63, len),
    ] {
        let expected = AccessError::Bounds(BoundsError::OutOfRange { offset, len: count as u64, size });
        let mut bytes = vec![0x77; count];
        assert_eq!(attachment.read(offset, &mut bytes), Err(expected.clone()));
        assert!(bytes.iter().all(|byte| *byte == 0x77), "a refused read touches nothing");
        assert_eq!(attachment.write(offset, &bytes), Err(expected.clone()));
        if let Some(view) = attachment.view() {
            assert_eq!(view.read(offset, &mut bytes), Err(expected.clone()));
            assert_eq!(view.write(offset, &bytes), Err(expected));
            assert!(bytes.iter().all(|byte| *byte == 0x77), "a refused read touches nothing");
        }
    }
    assert!(bench.exporter.read(region, 0, len) == pattern(3, len), "a refused write touches nothing");
}

fn read_only(bench: &Bench) {
    let len = 2 * page_size();
    for kind in bench.local().registered() {
        let region = bench.exporter.create(kind, len, Rights::READ, 3);
        let attachment = bench.attach(&bench.exporter.export(region));
        assert_eq!(attachment.rights(), Rights::READ, "{kind:?}");
        for (at, count) in [(0, 1), (8, 8), (0, len), (len as u64 - 1, 1), (17, 4000)] {
            let answer = attachment.write(at, &vec![0x77; count]);
            assert!(matches!(answer, Err(AccessError::AccessDenied { done: 0, .. })), "{kind:?}: {answer:?}");
        }
        if let Some(view) = attachment.view() {
            let words = view.atomic_u64(8).map(|_| ()).and(view.atomic_u32(8).map(|_| ()));
            let answers = [view.write(0, &[0x77]), view.store(8, 7_u64), words];
            for answer in answers {
                assert!(matches!(answer, Err(AccessError::AccessDenied { .. })), "{kind:?}: {answer:?}");
            }
        }
        assert!(bench.exporter.read(region, 0, len) == pattern(3, len), "{kind:?}: nothing was written");
        assert_holds(&*attachment, 3);
        if kind.granted(Rights::READ_WRITE).contains(Rights::WRITE) {
            bench.exporter.write(region, 0, b"the owner may write");
            let mut seen = [0; 19];
            attachment.read(0, &mut seen).unwrap();
            assert_eq!(&seen, b"the owner may write");
        }
    }
}

const WIDTHS: [usize; 4] = [1, 2, 4, 8];

/// One side writes words of equal bytes, the other reads: it never sees a word of different ones. Where the kernel or a device copies nobody
/// promises that of more than a byte, and a kernel under an emulator does tear them.
fn words_do_not_tear(bench: &Bench) {
    let (region, _, attachment) = bench.attached(page_size(), 3);
    let by_device = bench.importer.md.attr().component == ComponentId::VERBS;
    let by_others = by_device || attachment.is_by_system_calls();
    let widths = if by_others { &WIDTHS[..1] } else { &WIDTHS };
    for &width in widths {
        let at = 64 * width as u64;
        attachment.write(at, &vec![0; width]).unwrap();
        bench.exporter.hammer(region, at, width);
        let torn = look_for_torn(width, 3000, |word| attachment.read(at, word).unwrap());
        bench.exporter.calm();
        assert_eq!(torn, None, "{width} bytes, written by the exporter");
    }
    for &width in widths {
        let at = 64 * width as u64;
        let torn = while_importer_writes(bench, &*attachment, region, at, width);
        assert_eq!(torn, None, "{width} bytes, written by the importer");
    }
}

/// Lets the other thread end, also when this one panics.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn while_importer_writes(
    bench: &Bench,
    attachment: &dyn Attachment,
    region: Region,
    at: u64,
    width: usize,
) -> Option<Vec<u8>> {
    let stop = AtomicBool::new(false);
    attachment.write(at, &vec![0; width]).unwrap();
    let rounds = if bench.place == Place::TwoProcesses { 500 } else { 3000 };
    thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        scope.spawn(|| {
            for round in (0..=u8::MAX).cycle() {
                if stop.load(Ordering::Acquire) {
                    return;
                }
                attachment.write(at, &vec![round; width]).unwrap();
            }
        });
        look_for_torn(width, rounds, |word| {
            word.copy_from_slice(&bench.exporter.read(region, at, width));
        })
    })
}

/// Reads at least `rounds` times, and until the word has been seen to change.
fn look_for_torn(width: usize, rounds: usize, mut read: impl FnMut(&mut [u8])) -> Option<Vec<u8>> {
    let mut word = vec![0; width];
    let mut seen = std::collections::HashSet::new();
    let mut round = 0;
    while round < rounds || seen.len() < 3 {
        read(&mut word);
        if word.iter().any(|byte| *byte != word[0]) {
            return Some(word);
        }
        seen.insert(word[0]);
        round += 1;
        assert!(round < 5_000_000, "nobody writes");
    }
    None
}

fn view_is_there_where_announced(bench: &Bench) {
    let len = page_size() + 5;
    let (region, _, attachment) = bench.attached(len, 3);
    let announced = bench.importer.has(MdFlags::RKEY_PTR);
    assert_eq!(attachment.view().is_some(), announced, "RKEY_PTR, and a mapping");
    let Some(view) = attachment.view() else { return };
    assert_eq!((view.len(), view.is_empty()), (len, false));
    let mut bytes = vec![0; len];
    view.read(0, &mut bytes).unwrap();
    assert!(bytes == pattern(3, len));
    view.write(9, b"through the view").unwrap();
    assert_eq!(bench.exporter.read(region, 9, 16), b"through the view");
    let mut seen = [0; 16];
    attachment.read(9, &mut seen).unwrap();
    assert_eq!(&seen, b"through the view", "view and mediated access are of one memory");
    attachment.write(64, &7_u64.to_ne_bytes()).unwrap();
    assert_eq!(view.load::<u64>(64), Ok(7));
    view.atomic_u64(64).unwrap().fetch_add(5, Ordering::AcqRel);
    assert_eq!(bench.exporter.read(region, 64, 8), 12_u64.to_ne_bytes());
    view.atomic_u32(72).unwrap().store(9, Ordering::Release);
    assert_eq!(bench.exporter.read(region, 72, 4), 9_u32.to_ne_bytes());
    assert!(view.atomic_u64(65).is_err() && view.atomic_u32(66).is_err(), "a misaligned word");
}

fn check_says_that_it_lives(bench: &Bench) {
    let (region, ticket, attachment) = bench.attached(100, 3);
    assert_eq!(attachment.check(), Ok(()));
    bench.exporter.drop_region(region);
    bench.exporter.drop_export(&ticket);
    assert_eq!(attachment.check(), Ok(()), "an export lives until it is revoked");
    assert_holds(&*attachment, 3);
}
