//! Arguments of more than one command.

use std::str::FromStr;

use ucs::config::{Bytes, Value};

/// A value that is written as in `UCX_*` variables: `4K`, `200ms`.
///
/// # Errors
/// What is expected.
pub(crate) fn value<T: Value>(text: &str) -> Result<T, String> {
    T::parse(text).map_err(|error| error.to_string())
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
            return Err(format!("{start}..{end} reaches beyond the {size} bytes there are"));
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
        let number = |text: &str| Bytes::parse(text).map(Bytes::get).map_err(|error| error.to_string());
        if let Some((start, end)) = text.split_once("..") {
            let start = if start.is_empty() { 0 } else { number(start)? };
            let end = if end.is_empty() { None } else { Some(number(end)?) };
            if end.is_some_and(|end| end < start) {
                return Err("it ends before it begins".to_owned());
            }
            return Ok(Self { start, end });
        }
        let (start, len) = text.split_once(':').ok_or("expected OFFSET:LEN or OFFSET..END")?;
        let (start, len) = (number(start)?, number(len)?);
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
        let offset: Bytes = value(offset)?;
        Ok(Self { offset: offset.get(), text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(write("0="), Ok((0, String::new())));
        assert!(write("hello").is_err() && write("x=hello").is_err());
    }
}
