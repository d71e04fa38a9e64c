//! How long calls take.

use std::hint::black_box;
use std::time::{Duration, Instant};

use ucp::AccessError;

use super::protocol::Timing;
use crate::memory::Memory;
use crate::units::in_nanos;

/// Bytes of the calls that are timed.
pub(crate) const SIZES: [u64; 4] = [8, 4 << 10, 64 << 10, 1 << 20];

/// How long calls of one kind and size are timed.
const BUDGET: Duration = Duration::from_millis(40);
/// A sample is as many calls as move about so many bytes: the clock's own cost then does not count.
const SAMPLE_BYTES: u64 = 64 << 10;
const MAX_CALLS: u64 = 256;

/// Times `read` and `write` calls of all [`SIZES`] that fit: the same bytes again and again, by one thread.
///
/// # Errors
/// [`AccessError`].
pub(crate) fn measure(mem: &impl Memory) -> Result<Vec<Timing>, AccessError> {
    let mut timings = Vec::new();
    for write in [false, true] {
        for size in SIZES.into_iter().filter(|size| *size <= mem.size()) {
            let Ok(len) = usize::try_from(size) else { continue };
            let mut buf = vec![0x5a; len];
            let median_ps = median_of(size, || {
                if write { mem.put(0, black_box(&buf)) } else { mem.get(0, black_box(&mut buf)) }
            })?;
            timings.push(Timing { write, size, median_ps });
        }
    }
    Ok(timings)
}

fn median_of(size: u64, mut call: impl FnMut() -> Result<(), AccessError>) -> Result<u64, AccessError> {
    let calls = (SAMPLE_BYTES / size).clamp(1, MAX_CALLS);
    let mut samples = Vec::with_capacity(8192);
    let begin = Instant::now();
    call()?; // the first touches pages
    while samples.len() < samples.capacity() && (samples.is_empty() || begin.elapsed() < BUDGET) {
        let start = Instant::now();
        for _ in 0..calls {
            call()?;
        }
        samples.push(in_nanos(start.elapsed()).saturating_mul(1000) / calls);
    }
    Ok(median(&mut samples))
}

/// The middle one; 0 of none.
pub(crate) fn median(samples: &mut [u64]) -> u64 {
    samples.sort_unstable();
    samples.get(samples.len() / 2).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_one() {
        assert_eq!(median(&mut [9, 1, 5]), 5);
        assert_eq!(median(&mut []), 0);
    }

    #[test]
    fn sizes_that_do_not_fit_are_left_out() {
        let ctx = ucp::Context::builder().ignore_env().build().unwrap();
        let mem = ctx.mem_map(ucp::MemMap::allocate(4096)).unwrap();
        let timings = measure(&mem).unwrap();
        let kinds: Vec<_> = timings.iter().map(|timing| (timing.write, timing.size)).collect();
        assert_eq!(kinds, [(false, 8), (false, 4096), (true, 8), (true, 4096)]);
    }
}
