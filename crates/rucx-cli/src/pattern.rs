//! Patterns: what memory is filled with, and what is looked for in it.

use std::fmt;
use std::str::FromStr;

/// Bytes that are known from their offset alone. Words are of 8 bytes, little-endian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// Zeros.
    Zero,
    /// Each word is its index.
    Count,
    /// The word of index `i` is output number `i` of SplitMix64, begun with this seed. (Steele, Lea, Flood: Fast splittable
    /// pseudorandom number generators.)
    Random(u64),
    /// A text, again and again; not empty.
    Text(String),
}

/// What of a pattern is expected on a command line.
const EXPECTED: &str = "expected zero, count, random:SEED or text:STRING";

/// What SplitMix64 adds to its state before each output.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

impl Pattern {
    /// Writes what belongs at `offset` to `bytes`.
    pub(crate) fn fill(&self, offset: u64, bytes: &mut [u8]) {
        match self {
            Self::Zero => bytes.fill(0),
            Self::Count => words(offset, bytes, |index| index),
            Self::Random(seed) => words(offset, bytes, |index| split_mix(*seed, index)),
            Self::Text(text) => {
                let first = usize::try_from(offset % text.len() as u64).unwrap_or(0);
                for (byte, text) in bytes.iter_mut().zip(text.bytes().cycle().skip(first)) {
                    *byte = text;
                }
            }
        }
    }
}

fn words(offset: u64, mut bytes: &mut [u8], word: impl Fn(u64) -> u64) {
    let mut index = offset / 8;
    let mut skip = usize::try_from(offset % 8).unwrap_or(0);
    while !bytes.is_empty() {
        let word = &word(index).to_le_bytes()[skip..];
        let len = word.len().min(bytes.len());
        let (now, later) = bytes.split_at_mut(len);
        now.copy_from_slice(&word[..len]);
        (bytes, index, skip) = (later, index + 1, 0);
    }
}

fn split_mix(seed: u64, index: u64) -> u64 {
    let state = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(GAMMA));
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "zero" => Ok(Self::Zero),
            None if text == "count" => Ok(Self::Count),
            Some(("random", seed)) => {
                let number = match seed.strip_prefix("0x") {
                    Some(hex) => u64::from_str_radix(hex, 16),
                    None => seed.parse(),
                };
                number
                    .map(Self::Random)
                    .map_err(|error| format!("the seed of random:SEED is a number of 64 bits: {error}"))
            }
            Some(("text", "")) => Err("text:STRING needs at least one character".to_owned()),
            Some(("text", text)) => Ok(Self::Text(text.to_owned())),
            _ => Err(EXPECTED.to_owned()),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero => f.write_str("zero"),
            Self::Count => f.write_str("count"),
            Self::Random(seed) => write!(f, "random:{seed}"),
            Self::Text(text) => write!(f, "text:{text}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [&str; 4] = ["zero", "count", "random:7", "text:rucx!"];

    fn pattern(text: &str) -> Pattern {
        text.parse().unwrap()
    }

    fn bytes(pattern: &Pattern, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0xee; len];
        pattern.fill(offset, &mut bytes);
        bytes
    }

    #[test]
    fn a_byte_depends_on_its_offset_alone() {
        for text in ALL {
            let pattern = pattern(text);
            assert_eq!(pattern.to_string(), text);
            let whole = bytes(&pattern, 0, 64);
            for (from, to) in [(0, 64), (1, 9), (8, 16), (13, 14), (17, 64), (5, 5)] {
                assert_eq!(bytes(&pattern, from as u64, to - from), whole[from..to], "{text} {from}..{to}");
            }
        }
    }

    #[test]
    fn contents() {
        assert_eq!(bytes(&pattern("zero"), 3, 2), [0, 0]);
        assert_eq!(bytes(&pattern("count"), 8 * 0x0102, 8), [2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes(&pattern("text:ab"), 1, 4), *b"baba");
        // The first outputs of SplitMix64 for seed 0, as published with it.
        let first = [0xe220_a839_7b1d_cdaf_u64, 0x6e78_9e6a_a1b9_65f4];
        assert_eq!(bytes(&pattern("random:0x0"), 0, 16), first.map(u64::to_le_bytes).concat());
        assert_ne!(bytes(&pattern("random:1"), 0, 16), bytes(&pattern("random:2"), 0, 16));
    }

    #[test]
    fn what_is_no_pattern() {
        for text in ["", "zeros", "count:1", "random", "random:", "random:x", "random:0x", "text", "text:"] {
            assert!(text.parse::<Pattern>().is_err(), "{text}");
        }
    }
}
