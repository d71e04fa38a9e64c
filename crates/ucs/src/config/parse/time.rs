//! Spans of time.

use std::borrow::Cow;
use std::time::Duration;

use super::{Value, ValueError, split_digits, whole};

const NANOS_PER_SEC: u128 = 1_000_000_000;
/// Digits of a fraction that are looked at: enough for a nanosecond of a minute, and few enough not to overflow.
const FRACTION_DIGITS: usize = 15;

impl Value for Duration {
    fn accepts() -> Cow<'static, str> {
        "a time such as 10us, 5ms, 2s, 1m (a minute) or 0.5 (seconds)".into()
    }

    fn parse(text: &str) -> Result<Self, ValueError> {
        let (int, rest) = split_digits(text.trim());
        let (fraction, unit) = rest.strip_prefix('.').map_or(("", rest), split_digits);
        let nanos_per_unit = match unit {
            "ns" => 1,
            "us" => 1_000,
            "ms" => 1_000_000,
            "" | "s" => NANOS_PER_SEC,
            "m" => 60 * NANOS_PER_SEC,
            _ => return Err(ValueError::new::<Self>("unknown unit")),
        };
        if int.is_empty() && fraction.is_empty() {
            return Err(ValueError::new::<Self>("no number"));
        }
        let int = if int.is_empty() { 0 } else { whole::<Self>(int)? };
        let mut nanos = u128::from(int) * nanos_per_unit;
        let fraction = &fraction[..fraction.len().min(FRACTION_DIGITS)];
        if !fraction.is_empty() {
            let scale = fraction.bytes().fold(1, |scale: u128, _| scale * 10);
            nanos += u128::from(whole::<Self>(fraction)?) * nanos_per_unit / scale;
        }
        let secs = u64::try_from(nanos / NANOS_PER_SEC).map_err(|_| ValueError::new::<Self>("too large"))?;
        let subsec =
            u32::try_from(nanos % NANOS_PER_SEC).map_err(|_| ValueError::new::<Self>("too large"))?;
        Ok(Self::new(secs, subsec))
    }

    fn print(&self) -> String {
        let (secs, nanos) = (self.as_secs(), self.subsec_nanos());
        match nanos {
            0 => format!("{secs}s"),
            // An integer in the smallest exact unit, unless the seconds make that a long one.
            _ if secs > 0 => {
                let text = format!("{secs}.{nanos:09}");
                format!("{}s", text.trim_end_matches('0'))
            }
            _ if nanos % 1_000_000 == 0 => format!("{}ms", nanos / 1_000_000),
            _ if nanos % 1_000 == 0 => format!("{}us", nanos / 1_000),
            _ => format!("{nanos}ns"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn table() {
        for (text, time) in [
            ("0", Duration::ZERO),
            ("3", Duration::from_secs(3)),
            ("2s", Duration::from_secs(2)),
            ("1m", Duration::from_secs(60)),
            ("0.5m", Duration::from_secs(30)),
            ("5ms", Duration::from_millis(5)),
            (" 10us ", Duration::from_micros(10)),
            ("7ns", Duration::from_nanos(7)),
            ("1.5", Duration::from_millis(1500)),
            (".25s", Duration::from_millis(250)),
            ("1.s", Duration::from_secs(1)),
            ("0.0000000019s", Duration::from_nanos(1)),
            ("1.999999999999999999999999999999s", Duration::new(1, 999_999_999)),
            ("18446744073709551615s", Duration::from_secs(u64::MAX)),
        ] {
            assert_eq!(<Duration as Value>::parse(text), Ok(time), "{text}");
        }
        for text in [
            "",
            ".",
            "s",
            ".s",
            "-1s",
            "+1s",
            "1 s",
            "1h",
            "1S",
            "1e3",
            "1.2.3",
            "inf",
            "auto",
            "nan",
            "1msx",
            "18446744073709551616s",
            "18446744073709551615m",
            "٣s",
        ] {
            assert!(<Duration as Value>::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn printed_short() {
        for (time, text) in [
            (Duration::ZERO, "0s"),
            (Duration::from_secs(90), "90s"),
            (Duration::from_millis(1500), "1.5s"),
            (Duration::from_millis(250), "250ms"),
            (Duration::from_micros(1500), "1500us"),
            (Duration::from_nanos(1001), "1001ns"),
        ] {
            assert_eq!(time.print(), text);
        }
    }

    proptest! {
        #[test]
        fn total(text in ".*", number in "[0-9.]{0,45}[a-z]{0,2}") {
            let _ = <Duration as Value>::parse(&text);
            let _ = <Duration as Value>::parse(&number);
        }

        #[test]
        fn round_trip(secs: u64, small in 0_u64..3, nanos in 0_u32..1_000_000_000) {
            for time in [Duration::new(secs, nanos), Duration::new(small, nanos / 1000 * 1000), Duration::new(secs, 0)] {
                prop_assert_eq!(<Duration as Value>::parse(&time.print()), Ok(time));
            }
        }
    }
}
