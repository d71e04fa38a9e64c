//! Reproducible randomness: one seed per process, from `RUCX_SEED` or fresh, shown when a test fails.

use std::sync::OnceLock;

/// The variable that sets the seed: decimal, or hexadecimal after `0x`.
pub(crate) const VARIABLE: &str = "RUCX_SEED";

static SEED: OnceLock<u64> = OnceLock::new();

/// The seed of this process's randomised tests, and of the roles it starts. A failing test shows it.
///
/// # Panics
/// `RUCX_SEED` is set to something else than a number.
#[must_use]
pub fn seed() -> u64 {
    *SEED.get_or_init(|| match variable() {
        Some(text) => {
            parse(&text).unwrap_or_else(|| panic!("{VARIABLE}={text:?} is not a number of 64 bits"))
        }
        None => {
            let mut bytes = [0u8; 8];
            rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).expect("getrandom");
            let seed = u64::from_le_bytes(bytes);
            // libtest shows it when the test fails; the harness of this crate says it itself.
            println!("{VARIABLE}={seed:#x}");
            seed
        }
    })
}

/// The seed, if a test has asked for it.
pub(crate) fn used() -> Option<u64> {
    SEED.get().copied()
}

/// What a role gets as `RUCX_SEED`.
pub(crate) fn variable() -> Option<String> {
    used().map(|seed| format!("{seed:#x}")).or_else(|| std::env::var(VARIABLE).ok())
}

fn parse(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// A small generator for tests (splitmix64): fast, and the same sequence everywhere.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator with this seed; see [`seed`].
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    ///
    /// # Panics
    /// `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        assert!(bound > 0, "nothing is below 0");
        usize::try_from(self.next_u64() % bound as u64).expect("below a usize")
    }

    /// Fills the buffer.
    pub fn fill(&mut self, buffer: &mut [u8]) {
        for chunk in buffer.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_read_as_they_are_shown() {
        assert_eq!(parse("0xfedcba9876543210"), Some(0xfedc_ba98_7654_3210));
        assert_eq!(parse("42"), Some(42));
        assert_eq!(parse("forty-two"), None);
    }

    #[test]
    fn the_sequence_is_splitmix64() {
        let mut rng = Rng::new(0);
        assert_eq!(rng.next_u64(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(rng.next_u64(), 0x6e78_9e6a_a1b9_65f4);
        let mut bytes = [0u8; 3];
        rng.fill(&mut bytes);
        assert!((0..100).all(|_| rng.below(7) < 7));
    }
}
