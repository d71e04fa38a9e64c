//! Arguments of more than one command.

use std::str::FromStr;
use std::time::Duration;

use ucs::config::{Bytes, Value};

use crate::units;

/// A number of bytes, written as in `UCX_*` variables, or as `4KiB`, or in hexadecimal: `0x1000`.
///
/// # Errors
/// What is expected.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    if let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        // `from_str_radix` would take a sign.
        let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        return u64::from_str_radix(if is_hex { digits } else { "" }, 16)
            .map_err(|_| format!("{text:?} is no hexadecimal number of 64 bits such as 0x1000"));
    }
    let short = text.strip_suffix("iB").filter(|short| short.ends_with(|c| "KMGTkmgt".contains(c)));
    Bytes::parse(short.unwrap_or(text)).map(Bytes::get).map_err(|error| error.to_string())
}

/// A time, written as in `UCX_*` variables, or in hours: `200ms`, `1h`.
///
/// # Errors
/// What is expected.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let Some(hours) = text.trim().strip_suffix('h') else {
        return Duration::parse(text).map_err(|error| error.to_string());
    };
    let minutes = Duration::parse(&format!("{hours}m")).map_err(|error| error.to_string())?;
    minutes.checked_mul(60).ok_or_else(|| "too long".to_owned())
}

/// How often to look: not all the time.
///
/// # Errors
/// What is expected.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    const LEAST: Duration = Duration::from_millis(1);
    let time = time(text)?;
    if time < LEAST { Err("1ms is the shortest".to_owned()) } else { Ok(time) }
}

/// A part of memory: `OFFSET:LEN`, `OFFSET..END`, `OFFSET..`, `..END` or `..`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    start: u64,
    end: Option<u64>,
}

impl Span {
    /// Offset and length in memory of `size` bytes.
    ///
    /// # Errors
    /// It reaches beyond the end, in words.
    pub(crate) fn within(self, size: u64) -> Result<(u64, u64), String> {
        let end = self.end.unwrap_or(size);
        if end > size || self.start > size {
            let start = self.start;
            let there_are = match size {
                1 => "the one byte there is".to_owned(),
                _ => format!("the {} there are", units::count(size)),
            };
            return Err(format!("{start}..{end} reaches beyond {there_are}"));
        }
        Ok((self.start, end - self.start))
    }

    /// Whether it says where it ends.
    pub(crate) fn has_end(self) -> bool {
        self.end.is_some()
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((start, end)) = text.split_once("..") {
            let start = if start.is_empty() { 0 } else { bytes(start)? };
            let end = if end.is_empty() { None } else { Some(bytes(end)?) };
            if end.is_some_and(|end| end < start) {
                return Err("it ends before it begins".to_owned());
            }
            return Ok(Self { start, end });
        }
        let (start, len) = text.split_once(':').ok_or("expected OFFSET:LEN or OFFSET..END")?;
        let (start, len) = (bytes(start)?, bytes(len)?);
        let end = start.checked_add(len).ok_or("it ends beyond all memory")?;
        Ok(Self { start, end: Some(end) })
    }
}

/// A text, and where to write it: `OFFSET=TEXT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Write {
    /// Where.
    pub(crate) offset: u64,
    /// What.
    pub(crate) text: String,
}

impl FromStr for Write {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (offset, text) = text.split_once('=').ok_or("expected OFFSET=TEXT")?;
        Ok(Self { offset: bytes(offset)?, text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times() {
        for (text, number) in [
            ("0x1000", Some(4096)),
            ("0XfF", Some(255)),
            ("4KiB", Some(4096)),
            ("1MiB", Some(1 << 20)),
            ("2GiB", Some(2 << 30)),
            ("4KB", Some(4096)),
            ("4k", Some(4096)),
            ("7", Some(7)),
            ("0x", None),
            ("0x+1", None),
            ("0x1K", None),
            ("0x10000000000000000", None),
            ("4iB", None),
            ("iB", None),
            ("4KiBiB", None),
            ("-1", None),
        ] {
            assert_eq!(bytes(text).ok(), number, "{text}");
        }
        for (text, seconds) in [
            ("1h", Some(3600)),
            ("1.5h", Some(5400)),
            ("2m", Some(120)),
            ("3", Some(3)),
            ("h", None),
            ("1hm", None),
        ] {
            assert_eq!(time(text).ok(), seconds.map(Duration::from_secs), "{text}");
        }
        assert!(time("999999999999999999h").is_err());
        assert!(interval("1us").is_err() && interval("0").is_err() && interval("1ms").is_ok());
    }

    #[test]
    fn spans() {
        let within = |text: &str| text.parse::<Span>().map(|span| span.within(8192).ok());
        for (text, part) in [
            ("0:64", Some((0, 64))),
            ("4K:4K", Some((4096, 4096))),
            ("4K:4097", None),
            ("16..48", Some((16, 32))),
            ("16..", Some((16, 8176))),
            ("..16", Some((0, 16))),
            ("..", Some((0, 8192))),
            ("8K..", Some((8192, 0))),
            ("9K..", None),
            ("0..1T", None),
            ("5:0", Some((5, 0))),
            ("0x10:4KiB", Some((16, 4096))),
            ("0x10..0x20", Some((16, 16))),
        ] {
            assert_eq!(within(text), Ok(part), "{text}");
        }
        for text in ["", "5", ":", "5:", ":5", "x:1", "2..1", "1...2", "18446744073709551615:1"] {
            assert!(within(text).is_err(), "{text}");
        }
    }

    #[test]
    fn texts_to_write() {
        let write = |text: &str| text.parse::<Write>().map(|write| (write.offset, write.text));
        assert_eq!(write("4K=a=b"), Ok((4096, "a=b".to_owned())));
        assert_eq!(write("0x10=a"), Ok((16, "a".to_owned())));
        assert_eq!(write("0="), Ok((0, String::new())));
        assert!(write("hello").is_err() && write("x=hello").is_err());
    }
}
