//! Atomics on attached memory, where they are announced; where not, that they are refused and touch nothing.

use std::thread;

use testkit::Rng;
use ucs::mem::page::page_size;
use ucs::mem::shared::BoundsError;
use uct::api::{AmoOp, AtomicOp, AtomicWord, Attachment, MdFlags};
use uct::memory::{AccessError, Rights};

use crate::bench::{Bench, assert_holds, assert_revoked, whole};
use crate::fixture::{Kind, pattern};
use crate::{Check, list};

pub(crate) const CHECKS: &[Check] = list![atomics:
    there_where_announced in Everywhere,
    every_operation_matches_a_model in Everywhere,
    add_wraps_around in Everywhere,
    misaligned_and_out_of_range in Everywhere,
    read_only_is_denied in Everywhere,
    stale_after_revoke in Everywhere,
    no_addition_is_lost in Everywhere,
    no_addition_lands_after_revoke in Everywhere,
];

pub(crate) fn atomic<T: AtomicWord>(
    memory: &dyn Attachment,
    offset: u64,
    op: AmoOp<T>,
) -> Result<T, AccessError> {
    memory.atomic(offset, T::operation(op)).map(T::from_answer)
}

fn has_them(bench: &Bench) -> bool {
    bench.importer.has(MdFlags::ATOMICS)
}

/// On memory of each kind: all kinds but raw memory have them, or none.
fn there_where_announced(bench: &Bench) {
    for kind in bench.local().registered() {
        let region = bench.exporter.create(kind, page_size(), Rights::READ_WRITE, 3);
        let attachment = bench.attach(&bench.exporter.export(region));
        let answers = [
            attachment.atomic(8, AtomicOp::U64(AmoOp::Add(1))),
            attachment.atomic(16, AtomicOp::U32(AmoOp::Swap(1))),
        ];
        let writable = attachment.rights().contains(Rights::WRITE);
        let expected = has_them(bench) && kind != Kind::Raw && writable;
        for answer in answers {
            match answer {
                Ok(_) => assert!(expected, "{kind:?}: atomics that are not announced"),
                Err(error @ AccessError::Unsupported { why }) => {
                    assert!(!expected, "{kind:?}: {error}");
                    assert!(why.contains("atomics"), "it says what is missing: {error}");
                    assert!(error.remedy().contains("MemMap::allocate"), "it says what to do: {error}");
                }
                Err(AccessError::AccessDenied { done: 0, .. }) => assert!(!writable, "{kind:?}"),
                Err(error) => panic!("{kind:?}: {error}"),
            }
        }
        if !expected {
            assert_holds(&*attachment, 3);
        }
    }
}

/// A word's arithmetic, written down once more.
trait Model: AtomicWord {
    const SIZE: usize;
    fn random(rng: &mut Rng) -> Self;
    fn of(bytes: &[u8]) -> Self;
    fn bytes(self) -> Vec<u8>;
    fn after(self, op: AmoOp<Self>) -> Self;
}

macro_rules! model {
    ($word:ty) => {
        impl Model for $word {
            const SIZE: usize = size_of::<Self>();

            fn random(rng: &mut Rng) -> Self {
                let mut bytes = [0; Self::SIZE];
                rng.fill(&mut bytes);
                Self::from_ne_bytes(bytes)
            }

            fn of(bytes: &[u8]) -> Self {
                Self::from_ne_bytes(bytes.try_into().unwrap())
            }

            fn bytes(self) -> Vec<u8> {
                self.to_ne_bytes().to_vec()
            }

            fn after(self, op: AmoOp<Self>) -> Self {
                match op {
                    AmoOp::Add(value) => self.wrapping_add(value),
                    AmoOp::And(value) => self & value,
                    AmoOp::Or(value) => self | value,
                    AmoOp::Xor(value) => self ^ value,
                    AmoOp::Swap(value) => value,
                    AmoOp::Cswap { expected, new } => {
                        if self == expected {
                            new
                        } else {
                            self
                        }
                    }
                }
            }
        }
    };
}

model!(u32);
model!(u64);

fn any_operation<T: Model>(rng: &mut Rng, now: T) -> AmoOp<T> {
    let value = T::random(rng);
    match rng.below(7) {
        0 => AmoOp::Add(value),
        1 => AmoOp::And(value),
        2 => AmoOp::Or(value),
        3 => AmoOp::Xor(value),
        4 => AmoOp::Swap(value),
        5 => AmoOp::Cswap { expected: now, new: value },
        _ => AmoOp::Cswap { expected: T::random(rng), new: value },
    }
}

fn matches_a_model<T: Model>(bench: &Bench, len: usize, seed: u64) {
    let mut rng = Rng::new(testkit::seed() ^ seed);
    let (region, _, attachment) = bench.attached(len, seed);
    let mut model = pattern(seed, len);
    for step in 0..600 {
        let at = T::SIZE * rng.below(len / T::SIZE);
        let word = at..at + T::SIZE;
        let now = T::of(&model[word.clone()]);
        let op = any_operation(&mut rng, now);
        let before = atomic(&*attachment, at as u64, op);
        assert_eq!(before, Ok(now), "step {step}: {op:?} at {at} answers the word before it");
        model[word].copy_from_slice(&now.after(op).bytes());
        if step % 20 == 0 {
            assert!(whole(&*attachment) == model, "step {step}: {op:?} at {at}, and no other word");
        }
    }
    assert!(bench.exporter.read(region, 0, len) == model, "the owner sees the same");
}

fn every_operation_matches_a_model(bench: &Bench) {
    if has_them(bench) {
        let len = page_size() + 40; // the last word is the region's last, too
        matches_a_model::<u32>(bench, len, 5);
        matches_a_model::<u64>(bench, len, 6);
    }
}

fn add_wraps_around(bench: &Bench) {
    if !has_them(bench) {
        return;
    }
    let (region, _, attachment) = bench.attached(24, 3);
    bench.exporter.write(region, 0, &[0xff; 24]);
    assert_eq!(atomic(&*attachment, 8, AmoOp::Add(2_u64)), Ok(u64::MAX));
    assert_eq!(bench.exporter.read(region, 0, 24), [[0xff; 8], 1_u64.to_ne_bytes(), [0xff; 8]].concat());
    assert_eq!(atomic(&*attachment, 20, AmoOp::Add(3_u32)), Ok(u32::MAX));
    assert_eq!(bench.exporter.read(region, 16, 8), [[0xff; 4], 2_u32.to_ne_bytes()].concat());
    assert_eq!(atomic(&*attachment, 20, AmoOp::Add(u32::MAX)), Ok(2), "minus one");
    assert_eq!(atomic(&*attachment, 20, AmoOp::Add(0_u32)), Ok(1));
}

fn misaligned_and_out_of_range(bench: &Bench) {
    let len = page_size();
    let (_, _, attachment) = bench.attached(len, 3);
    let size = len as u64;
    let bounds = |answer: Result<u64, AccessError>| match answer {
        Err(AccessError::Bounds(error)) => error,
        Err(AccessError::Unsupported { .. }) if !has_them(bench) => BoundsError::ReadOnly,
        other => panic!("{other:?}"),
    };
    for op in [AtomicOp::U32(AmoOp::Add(1)), AtomicOp::U64(AmoOp::Cswap { expected: 0, new: 1 })] {
        let word = op.size() as u64;
        for offset in [1, word / 2, word + 1, size - word - 1, size - word - word / 2] {
            let expected = BoundsError::Misaligned { offset, align: word };
            let error = bounds(attachment.atomic(offset, op));
            assert!(!has_them(bench) || error == expected, "{op:?} at {offset}: {error}");
        }
        for offset in [size, size - word / 2, size - 1, size + word, 1 << 40, u64::MAX - word + 1, u64::MAX] {
            let expected = BoundsError::OutOfRange { offset, len: word, size };
            let error = bounds(attachment.atomic(offset, op));
            assert!(!has_them(bench) || error == expected, "{op:?} at {offset}: {error}");
        }
    }
    assert_holds(&*attachment, 3);
}

fn read_only_is_denied(bench: &Bench) {
    for kind in bench.local().registered() {
        let region = bench.exporter.create(kind, page_size(), Rights::READ, 3);
        let attachment = bench.attach(&bench.exporter.export(region));
        // Also what would leave the word as it is.
        for op in [AtomicOp::U64(AmoOp::Add(0)), AtomicOp::U32(AmoOp::Cswap { expected: 0, new: 1 })] {
            match attachment.atomic(8, op) {
                Err(AccessError::AccessDenied { done: 0, .. }) => {}
                Err(AccessError::Unsupported { .. }) => assert!(!has_them(bench)),
                other => panic!("{kind:?}: {other:?}"),
            }
        }
        assert_holds(&*attachment, 3);
    }
}

fn stale_after_revoke(bench: &Bench) {
    let (region, ticket, attachment) = bench.attached(page_size(), 3);
    bench.exporter.revoke(&ticket);
    assert_revoked(&*attachment);
    for op in [AtomicOp::U64(AmoOp::Swap(7)), AtomicOp::U32(AmoOp::Add(7))] {
        match attachment.atomic(8, op) {
            Err(AccessError::Stale { done: 0, .. }) => assert!(has_them(bench)),
            Err(AccessError::Unsupported { .. }) => assert!(!has_them(bench)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(bench.exporter.read(region, 0, page_size()), pattern(3, page_size()));
    // Another export of the same memory is another matter.
    let newer = bench.attach(&bench.exporter.export(region));
    if has_them(bench) {
        bench.exporter.write(region, 8, &[0; 8]);
        assert_eq!(atomic(&*newer, 8, AmoOp::Or(5_u64)), Ok(0));
    }
}

const ADDITIONS: u64 = 100_000;

/// The exporter's thread and two importers' threads, each by an attachment, all at once; on words of both sizes.
fn no_addition_is_lost(bench: &Bench) {
    if !has_them(bench) {
        return;
    }
    let (region, ticket, first) = bench.attached(64, 3);
    let second = bench.attach(&ticket);
    bench.exporter.write(region, 0, &[0; 64]);
    bench.exporter.add(region, 8, ADDITIONS);
    thread::scope(|scope| {
        for attachment in [&first, &second] {
            scope.spawn(move || {
                for _ in 0..ADDITIONS {
                    atomic(&**attachment, 8, AmoOp::Add(1_u64)).unwrap();
                    atomic(&**attachment, 16, AmoOp::Add(u32::MAX)).unwrap();
                    // By compare and swap, as a program does what there is no operation for.
                    let mut seen = 0_u32;
                    loop {
                        let new = seen.wrapping_add(3);
                        match atomic(&**attachment, 20, AmoOp::Cswap { expected: seen, new }).unwrap() {
                            before if before == seen => break,
                            before => seen = before,
                        }
                    }
                }
            });
        }
    });
    bench.exporter.calm();
    let adders = 2 * ADDITIONS;
    assert_eq!(bench.exporter.read(region, 8, 8), (adders + ADDITIONS).to_ne_bytes());
    let low = u32::try_from(adders).unwrap();
    assert_eq!(bench.exporter.read(region, 16, 4), low.wrapping_neg().to_ne_bytes());
    assert_eq!(bench.exporter.read(region, 20, 4), (3 * low).to_ne_bytes());
    assert_eq!(bench.exporter.read(region, 0, 8), [0; 8]);
    assert_eq!(bench.exporter.read(region, 24, 40), [0; 40]);
}

/// When a revocation has answered, the word stays as it is.
fn no_addition_lands_after_revoke(bench: &Bench) {
    if !has_them(bench) {
        return;
    }
    for round in 0..20 {
        let (region, ticket, attachment) = bench.attached(64, round);
        bench.exporter.write(region, 0, &[0; 64]);
        let done = thread::scope(|scope| {
            let adder = scope.spawn(|| {
                let mut done = 0_u64;
                while atomic(&*attachment, 0, AmoOp::Add(1_u64)).is_ok() {
                    done += 1;
                }
                done
            });
            thread::sleep(std::time::Duration::from_micros(100 * round));
            bench.exporter.revoke(&ticket);
            let at_that_time = bench.exporter.read(region, 0, 8);
            let done = adder.join().unwrap();
            assert_eq!(bench.exporter.read(region, 0, 8), at_that_time, "round {round}");
            (done, u64::of(&at_that_time))
        });
        // One that was under way may have been done, and told that it is stale.
        assert!(done.1 == done.0 || done.1 == done.0 + 1, "round {round}: {done:?}");
    }
}
