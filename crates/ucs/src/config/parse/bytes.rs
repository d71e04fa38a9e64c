//! Numbers of bytes.

use std::borrow::Cow;
use std::fmt;

use super::{Value, ValueError, split_digits, whole};

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(u64);

impl Bytes {
    /// So many bytes.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The number as a length in memory, or the greatest there is.
    #[must_use]
    pub fn to_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

const UNITS: [(char, u32); 4] = [('T', 40), ('G', 30), ('M', 20), ('K', 10)];

impl Value for Bytes {
    fn accepts() -> Cow<'static, str> {
        "a number of bytes such as 8192, 4K, 1M or 2G".into()
    }

    fn parse(text: &str) -> Result<Self, ValueError> {
        let (digits, unit) = split_digits(text.trim());
        let number = whole::<Self>(digits)?;
        let unit = unit.to_ascii_uppercase();
        let shift = match unit.as_str() {
            "" | "B" => 0,
            _ => {
                let prefix = unit.strip_suffix('B').unwrap_or(&unit);
                let known = UNITS.iter().find(|(name, _)| prefix.chars().eq([*name]));
                known.ok_or_else(|| ValueError::new::<Self>("unknown unit"))?.1
            }
        };
        let bytes = number.checked_mul(1 << shift);
        bytes.map(Self).ok_or_else(|| ValueError::new::<Self>("too large"))
    }

    fn print(&self) -> String {
        self.to_string()
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = UNITS.iter().find(|(_, shift)| self.0 != 0 && self.0.trailing_zeros() >= *shift);
        match exact {
            Some((name, shift)) => write!(f, "{}{name}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn table() {
        for (text, bytes) in [
            ("0", 0),
            ("8192", 8192),
            ("12b", 12),
            ("12B", 12),
            ("4K", 4096),
            ("4k", 4096),
            ("4kb", 4096),
            ("4KB", 4096),
            (" 1M ", 1 << 20),
            ("2g", 2 << 30),
            ("3TB", 3 << 40),
            ("18446744073709551615", u64::MAX),
            ("16777215T", 16_777_215 << 40),
        ] {
            assert_eq!(Bytes::parse(text), Ok(Bytes(bytes)), "{text}");
        }
        for text in [
            "",
            "K",
            "-1",
            "+1",
            "1.5M",
            "1 K",
            "1Q",
            "1KK",
            "1BB",
            "1KBB",
            "0x10",
            "inf",
            "auto",
            "1K1",
            "١",
            "18446744073709551616",
            "16777216T",
            "1é",
        ] {
            assert!(Bytes::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn printed_with_the_greatest_exact_unit() {
        for (bytes, text) in
            [(0, "0"), (1, "1"), (1000, "1000"), (1536, "1536"), (4096, "4K"), (1 << 50, "1024T")]
        {
            assert_eq!(Bytes(bytes).print(), text);
        }
    }

    proptest! {
        #[test]
        fn total(text in ".*", number in "[0-9]{0,25}[a-zA-Z.]{0,3}") {
            let _ = Bytes::parse(&text);
            let _ = Bytes::parse(&number);
        }

        #[test]
        fn round_trip(bytes: u64, shift in 0_u32..64) {
            let bytes = Bytes(bytes << shift);
            prop_assert_eq!(Bytes::parse(&bytes.print()), Ok(bytes));
        }
    }
}
