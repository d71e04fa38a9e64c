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
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a word is looked at before others are given the processor.
const SPINS: u32 = 64;

/// Looks at a word until it is not `old`; `None` when that takes too long.
fn changed(
    old: u64,
    deadline: Instant,
    load: impl Fn() -> Result<u64, AccessError>,
) -> Result<Option<u64>, AccessError> {
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

/// The HOST's side: answers `rounds` rings, each of which must be one more than the one before.
///
/// # Errors
/// [`AccessError`].
pub(crate) fn answer(mem: &Region, rounds: u64) -> Result<Report, AccessError> {
    let deadline = Instant::now() + PATIENCE;
    let (mut right, mut wrong, mut last) = (0, 0, 0);
    while right + wrong < rounds {
        let Some(count) = changed(last, deadline, || mem.load(RING))? else { break };
        *(if count == last + 1 { &mut right } else { &mut wrong }) += 1;
        last = count;
        mem.store(ANSWER, count ^ MASK)?;
    }
    Ok(Report::Rang { right, wrong, median_ps: 0 })
}

/// The DPU's side: rings `rounds` times, and waits for each answer.
///
/// # Errors
/// [`AccessError`].
pub(crate) fn ring(mem: &ImportedRegion, rounds: u64) -> Result<Report, AccessError> {
    let deadline = Instant::now() + PATIENCE;
    let (mut right, mut wrong, mut last) = (0, 0, 0);
    let mut trips = Vec::new();
    for count in 1..=rounds {
        let start = Instant::now();
        mem.store(RING, count)?;
        let Some(word) = changed(last, deadline, || mem.load(ANSWER))? else { break };
        trips.push(in_nanos(start.elapsed()).saturating_mul(1000));
        *(if word == count ^ MASK { &mut right } else { &mut wrong }) += 1;
        last = word;
    }
    Ok(Report::Rang { right, wrong, median_ps: median(&mut trips) })
}
