//! A doorbell: two words of shared memory, one for each direction.

use std::time::{Duration, Instant};

use ucp::{AccessError, ImportedRegion, Region};

use super::measure::median;
use super::protocol::Report;
use crate::units::in_nanos;

/// Where the DPU rings: a count that goes up by one.
pub(crate) const RING: u64 = 0;
/// Where the HOST answers, on a cache line of its own.
pub(crate) const ANSWER: u64 = 128;

/// What the answer to a ring is.
const MASK: u64 = 0x5555_aaaa_5555_aaaa;
/// The last ring, which is not answered.
const END: u64 = u64::MAX;
/// How long to ring.
const BUDGET: Duration = Duration::from_millis(500);
/// How long to wait for one word.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a word is looked at before others are given the processor.
const SPINS: u32 = 64;

/// Looks at a word until it is not `old`; `None` when that takes too long.
fn changed(old: u64, load: impl Fn() -> Result<u64, AccessError>) -> Result<Option<u64>, AccessError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        for _ in 0..SPINS {
            let now = load()?;
            if now != old {
                return Ok(Some(now));
            }
            std::hint::spin_loop();
        }
        if Instant::now() > deadline {
            return Ok(None);
        }
        std::thread::yield_now();
    }
}

/// The HOST's side: answers rings, each of which must be one more than the one before, until the last.
///
/// # Errors
/// [`AccessError`].
pub(crate) fn answer(mem: &Region) -> Result<Report, AccessError> {
    let (mut right, mut wrong, mut last) = (0, 0, 0);
    while let Some(count) = changed(last, || mem.load(RING))? {
        if count == END {
            break;
        }
        *(if count == last + 1 { &mut right } else { &mut wrong }) += 1;
        last = count;
        mem.store(ANSWER, count ^ MASK)?;
    }
    Ok(Report::Rang { right, wrong, median_ps: 0 })
}

/// The DPU's side: rings at most `rounds` times, and waits for each answer. On a busy machine that takes long: then fewer times.
///
/// # Errors
/// [`AccessError`].
pub(crate) fn ring(mem: &ImportedRegion, rounds: u64) -> Result<Report, AccessError> {
    let (mut right, mut wrong, mut last) = (0, 0, 0);
    let mut trips = Vec::new();
    let begin = Instant::now();
    for count in 1..=rounds {
        let start = Instant::now();
        mem.store(RING, count)?;
        let Some(word) = changed(last, || mem.load(ANSWER))? else { break };
        trips.push(in_nanos(start.elapsed()).saturating_mul(1000));
        *(if word == count ^ MASK { &mut right } else { &mut wrong }) += 1;
        last = word;
        if begin.elapsed() > BUDGET {
            break;
        }
    }
    mem.store(RING, END)?;
    Ok(Report::Rang { right, wrong, median_ps: median(&mut trips) })
}
