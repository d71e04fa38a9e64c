//! Atomics by a device, which has two: it adds, and it compares and swaps, words of 64 bits.
//!
//! All others are made of those. They are atomic towards each other, by the same device (`IBV_ATOMIC_HCA`, `ibv_query_device(3)`); towards the
//! processors of the owner they need not be, which is why they are there by [`AtomicMode::Device`](crate::config::AtomicMode) only. Words of 32 bits
//! have none: what a device puts in place is the whole 64 bits around them, with what a processor wrote to the other half meanwhile lost.

use std::time::{Duration, Instant};

use ucs::mem::shared::BoundsError;

use super::device::Device;
use super::queue;
use crate::api::{AmoOp, AtomicOp};
use crate::memory::{AccessError, DeviceReason};

/// How long a word that others change each time may be tried again.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a device does to a word of 64 bits, in this machine's byte order: it answers the word before, also in that order (`ibv_post_send(3)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Add(u64),
    Cswap { expected: u64, new: u64 },
}

/// Whether there are any, by this device on memory that is registered so.
pub(super) fn check(device: &Device, by_address: bool) -> Result<(), AccessError> {
    let why = match (device.does_atomics, by_address) {
        (false, _) => "a device does atomics with UCX_ATOMIC_MODE=device only",
        (true, true) => {
            "there are no atomics on memory that a device reaches by its address: have the exporter set UCX_VERBS_ODP=n"
        }
        (true, false) => return Ok(()),
    };
    Err(AccessError::Unsupported { why })
}

/// The operation, on a word that is aligned: by its address in the owner's memory, which is at `address`.
pub(super) fn operation(op: AtomicOp, address: u64, offset: u64) -> Result<AmoOp<u64>, AccessError> {
    let AtomicOp::U64(op) = op else {
        return Err(AccessError::Unsupported { why: "a device has no atomics on words of 32 bits" });
    };
    if !address.wrapping_add(offset).is_multiple_of(8) {
        return Err(BoundsError::Misaligned { offset, align: 8 }.into());
    }
    Ok(op)
}

/// Does `op` by the steps of a device; answers the word before.
pub(super) fn run(
    op: AmoOp<u64>,
    mut step: impl FnMut(Step) -> Result<u64, AccessError>,
) -> Result<u64, AccessError> {
    let after = |word: u64| match op {
        AmoOp::Add(value) => word.wrapping_add(value),
        AmoOp::And(value) => word & value,
        AmoOp::Or(value) => word | value,
        AmoOp::Xor(value) => word ^ value,
        AmoOp::Swap(new) | AmoOp::Cswap { new, .. } => new,
    };
    match op {
        AmoOp::Add(value) => return step(Step::Add(value)),
        AmoOp::Cswap { expected, new } => return step(Step::Cswap { expected, new }),
        _ => {}
    }
    let begin = Instant::now();
    let mut seen = step(Step::Add(0))?;
    loop {
        let before = step(Step::Cswap { expected: seen, new: after(seen) })?;
        if before == seen {
            return Ok(before);
        }
        if begin.elapsed() > PATIENCE {
            return Err(queue::device(DeviceReason::Late { waited: PATIENCE }));
        }
        seen = before;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A word that a device does steps to, and that another one changes the first few times before it is swapped.
    fn device(word: &mut u64, mut others: u32) -> impl FnMut(Step) -> Result<u64, AccessError> {
        move |step| {
            if matches!(step, Step::Cswap { .. }) && others > 0 {
                others -= 1;
                *word = word.wrapping_add(1 << 32);
            }
            let before = *word;
            match step {
                Step::Add(value) => *word = word.wrapping_add(value),
                Step::Cswap { expected, new } if expected == before => *word = new,
                Step::Cswap { .. } => {}
            }
            Ok(before)
        }
    }

    #[test]
    fn all_operations_are_made_of_two() {
        for (op, after) in [
            (AmoOp::Add(u64::MAX), 0b1011),
            (AmoOp::And(0b1010), 0b1000),
            (AmoOp::Or(0b0011), 0b1111),
            (AmoOp::Xor(0b0101), 0b1001),
            (AmoOp::Swap(7), 7),
            (AmoOp::Cswap { expected: 0b1100, new: 9 }, 9),
            (AmoOp::Cswap { expected: 1, new: 9 }, 0b1100),
        ] {
            let mut word = 0b1100;
            assert_eq!(run(op, device(&mut word, 0)), Ok(0b1100), "{op:?}");
            assert_eq!(word, after, "{op:?}");
        }
    }

    #[test]
    fn what_others_do_in_between_is_not_lost() {
        let mut word = 0b1100;
        assert_eq!(run(AmoOp::Or(1), device(&mut word, 3)), Ok(3 << 32 | 0b1100));
        assert_eq!(word, 3 << 32 | 0b1101);
    }

    #[test]
    fn a_device_that_fails_is_told() {
        let failed = || queue::device(DeviceReason::Over);
        let mut calls = 0;
        let answer = run(AmoOp::Xor(1), |_| {
            calls += 1;
            if calls == 1 { Ok(0) } else { Err(failed()) }
        });
        assert_eq!((answer, calls), (Err(failed()), 2));
    }

    #[test]
    fn words_lie_where_the_owner_has_them_aligned() {
        let add = AtomicOp::U64(AmoOp::Add(1));
        assert_eq!(operation(add, 0x1000, 8), Ok(AmoOp::Add(1)));
        assert_eq!(operation(add, 0x1004, 4), Ok(AmoOp::Add(1)));
        let misaligned = |offset| Err(AccessError::Bounds(BoundsError::Misaligned { offset, align: 8 }));
        assert_eq!(operation(add, 0x1000, 4), misaligned(4));
        assert_eq!(operation(add, 0x1004, 8), misaligned(8));
        let error = operation(AtomicOp::U32(AmoOp::Add(1)), 0x1000, 8).unwrap_err();
        assert!(error.to_string().contains("32 bits"), "{error}");
    }
}
