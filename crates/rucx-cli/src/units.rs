//! Numbers with units, for people.

use std::time::Duration;

/// A number of bytes: `312 B`, `64 MiB`, `1.5 GiB`.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut unit = None;
    let mut whole = count;
    let mut shift = 0;
    for name in UNITS {
        if whole < 1024 {
            break;
        }
        whole >>= 10;
        shift += 10;
        unit = Some(name);
    }
    match unit {
        None => format!("{count} B"),
        Some(unit) if count.trailing_zeros() >= shift => format!("{whole} {unit}"),
        Some(unit) => {
            let tenth = ((count >> (shift - 10)) & 1023) * 10 / 1024;
            format!("{whole}.{tenth} {unit}")
        }
    }
}

/// A time with three digits: `38.2 ns`, `1.23 µs`, `456 ms`, `7.89 s`.
pub(crate) fn time(picoseconds: u64) -> String {
    const UNITS: [(&str, u64); 4] =
        [("ns", 1_000), ("µs", 1_000_000), ("ms", 1_000_000_000), ("s", 1_000_000_000_000)];
    // Three digits of one unit are rounded to the next: 999.6 ns is 1.00 µs.
    let fits = |(_, scale): &&(&str, u64)| {
        picoseconds / scale < 999 || picoseconds % scale * 2 < *scale && picoseconds / scale < 1000
    };
    let (unit, scale) = UNITS.iter().find(fits).copied().unwrap_or(UNITS[3]);
    #[allow(clippy::cast_precision_loss)] // three digits are shown
    let value = picoseconds as f64 / scale as f64;
    format!("{} {unit}", three_digits(value))
}

/// As [`time`], of nanoseconds.
pub(crate) fn nanos(nanos: u64) -> String {
    time(nanos.saturating_mul(1000))
}

/// Gigabytes (10⁹) per second, without the unit.
pub(crate) fn rate(bytes: u64, picoseconds: u64) -> String {
    #[allow(clippy::cast_precision_loss)] // three digits are shown
    let value = bytes as f64 * 1000.0 / picoseconds.max(1) as f64;
    three_digits(value)
}

fn three_digits(value: f64) -> String {
    if value < 9.995 {
        format!("{value:.2}")
    } else if value < 99.95 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    }
}

/// So many bytes, all of them counted: `1 byte`, `4097 bytes`.
pub(crate) fn count(bytes: u64) -> String {
    if bytes == 1 { "1 byte".to_owned() } else { format!("{bytes} bytes") }
}

/// A number with its digits in groups: `1,234,567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// How often: `once`, `2 times`.
pub(crate) fn times(count: u64) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

/// A duration in nanoseconds.
pub(crate) fn in_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_bytes() {
        for (count, text) in [
            (0, "0 B"),
            (312, "312 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (4096, "4 KiB"),
            (1536, "1.5 KiB"),
            (64 << 20, "64 MiB"),
            ((1 << 30) + 1, "1.0 GiB"),
            (u64::MAX, "15.9 EiB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn times_have_three_digits() {
        for (picoseconds, text) in [
            (0, "0.00 ns"),
            (1_234, "1.23 ns"),
            (38_210, "38.2 ns"),
            (99_960, "100 ns"),
            (999_400, "999 ns"),
            (999_600, "1.00 µs"),
            (1_230_000, "1.23 µs"),
            (456_000_000_000, "456 ms"),
            (7_890_000_000_000, "7.89 s"),
            (12_345_000_000_000_000, "12345 s"),
        ] {
            assert_eq!(time(picoseconds), text, "{picoseconds}");
        }
        assert_eq!(nanos(1_500), "1.50 µs");
    }

    #[test]
    fn groups_of_digits() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn counts() {
        assert_eq!([0, 1, 2].map(count), ["0 bytes", "1 byte", "2 bytes"]);
        assert_eq!([0, 1, 2].map(times), ["0 times", "once", "2 times"]);
    }

    #[test]
    fn rates_are_in_gigabytes_per_second() {
        assert_eq!(rate(1 << 20, 100_000_000), "10.5");
        assert_eq!(rate(8, 0), "8000");
    }
}
