//! Messages as bytes: a length, then fields one after the other.
//!
//! ```text
//! length u32 · fields: u64 and u32 little-endian, bool as u8, strings and lists with a u32 length before them
//! ```

use std::fmt;
use std::io::{self, Read, Write};

/// Most bytes of a message.
const MAX: usize = 1 << 20;

/// A message did not come over.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    /// The pipe failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The pipe was closed within a message.
    #[error("the pipe was closed within a message")]
    Cut,
    /// What came is no message.
    #[error("not a message: {0}")]
    Malformed(&'static str),
}

/// What can be sent.
pub(crate) trait Wire: Sized {
    /// Appends it.
    fn put(&self, out: &mut Vec<u8>);

    /// Takes it from the front.
    ///
    /// # Errors
    /// There is no such thing at the front.
    fn take(from: &mut &[u8]) -> Result<Self, FrameError>;
}

/// Sends a message.
///
/// # Errors
/// [`FrameError`].
pub(crate) fn send(out: &mut impl Write, message: &impl Wire) -> Result<(), FrameError> {
    let mut bytes = vec![0; 4];
    message.put(&mut bytes);
    let len = bytes.len() - 4;
    if len > MAX {
        return Err(FrameError::Malformed("it is too long"));
    }
    bytes[..4].copy_from_slice(&length(len).to_le_bytes());
    out.write_all(&bytes)?;
    Ok(out.flush()?)
}

/// Receives a message; `None` when the pipe was closed instead.
///
/// # Errors
/// [`FrameError`].
pub(crate) fn receive<M: Wire>(from: &mut impl Read) -> Result<Option<M>, FrameError> {
    let mut len = [0; 4];
    let mut got = 0;
    while got < len.len() {
        match from.read(&mut len[got..]) {
            Ok(0) if got == 0 => return Ok(None),
            Ok(0) => return Err(FrameError::Cut),
            Ok(more) => got += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    let len = u32::from_le_bytes(len) as usize;
    if len > MAX {
        return Err(FrameError::Malformed("it is too long"));
    }
    let mut bytes = vec![0; len];
    from.read_exact(&mut bytes).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => FrameError::Cut,
        _ => error.into(),
    })?;
    let mut rest = &bytes[..];
    let message = M::take(&mut rest)?;
    if rest.is_empty() { Ok(Some(message)) } else { Err(FrameError::Malformed("bytes are left over")) }
}

fn length(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

fn split<'a>(from: &mut &'a [u8], len: usize) -> Result<&'a [u8], FrameError> {
    let (front, rest) = from.split_at_checked(len).ok_or(FrameError::Malformed("it ends too early"))?;
    *from = rest;
    Ok(front)
}

impl Wire for u8 {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self);
    }

    fn take(from: &mut &[u8]) -> Result<Self, FrameError> {
        Ok(split(from, 1)?[0])
    }
}

impl Wire for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn take(from: &mut &[u8]) -> Result<Self, FrameError> {
        match u8::take(from)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(FrameError::Malformed("a truth value is neither 0 nor 1")),
        }
    }
}

impl Wire for u32 {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }

    fn take(from: &mut &[u8]) -> Result<Self, FrameError> {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(split(from, 4)?);
        Ok(Self::from_le_bytes(bytes))
    }
}

impl Wire for u64 {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }

    fn take(from: &mut &[u8]) -> Result<Self, FrameError> {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(split(from, 8)?);
        Ok(Self::from_le_bytes(bytes))
    }
}

impl Wire for String {
    fn put(&self, out: &mut Vec<u8>) {
        length(self.len()).put(out);
        out.extend_from_slice(self.as_bytes());
    }

    fn take(from: &mut &[u8]) -> Result<Self, FrameError> {
        let len = u32::take(from)? as usize;
        let bytes = split(from, len)?;
        Self::from_utf8(bytes.to_vec()).map_err(|_| FrameError::Malformed("a text is not UTF-8"))
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        length(self.len()).put(out);
        for item in self {
            item.put(out);
        }
    }

    fn take(from: &mut &[u8]) -> Result<Self, FrameError> {
        let len = u32::take(from)? as usize;
        // Every item has at least one byte: a hostile length allocates nothing.
        if len > from.len() {
            return Err(FrameError::Malformed("a list ends too early"));
        }
        (0..len).map(|_| T::take(from)).collect()
    }
}

/// A handle's bytes on their way: never printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(pub(crate) Vec<u8>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} secret bytes>", self.0.len())
    }
}

impl Wire for Secret {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }

    fn take(from: &mut &[u8]) -> Result<Self, FrameError> {
        Vec::take(from).map(Self)
    }
}

/// Declares an enum of messages: each variant with its number on the wire.
macro_rules! messages {
    ($(#[$doc:meta])* enum $name:ident {
        $($(#[$about:meta])* $number:literal $variant:ident { $($(#[$what:meta])* $field:ident: $type:ty),* $(,)? }),* $(,)?
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub(crate) enum $name {
            $($(#[$about])* $variant { $($(#[$what])* $field: $type),* }),*
        }

        impl $crate::frame::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant { $($field),* } => { out.push($number); $($field.put(out);)* })*
                }
            }

            fn take(from: &mut &[u8]) -> Result<Self, $crate::frame::FrameError> {
                Ok(match <u8 as $crate::frame::Wire>::take(from)? {
                    $($number => Self::$variant { $($field: $crate::frame::Wire::take(from)?),* },)*
                    _ => return Err($crate::frame::FrameError::Malformed("unknown kind")),
                })
            }
        }
    };
}

/// Declares a part of messages.
macro_rules! record {
    ($(#[$doc:meta])* struct $name:ident { $($(#[$what:meta])* $field:ident: $type:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub(crate) struct $name {
            $($(#[$what])* pub(crate) $field: $type),*
        }

        impl $crate::frame::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)*
            }

            fn take(from: &mut &[u8]) -> Result<Self, $crate::frame::FrameError> {
                Ok(Self { $($field: $crate::frame::Wire::take(from)?),* })
            }
        }
    };
}

pub(crate) use {messages, record};

#[cfg(test)]
mod tests {
    use super::*;

    messages! {
        /// For the tests.
        enum Sample {
            /// No fields.
            0 Empty {},
            /// All kinds of fields.
            1 Full { flag: bool, small: u32, large: u64, text: String, list: Vec<u8>, texts: Vec<String> },
        }
    }

    fn full() -> Sample {
        Sample::Full {
            flag: true,
            small: 7,
            large: u64::MAX,
            text: "µ".to_owned(),
            list: vec![1, 2, 3],
            texts: vec![String::new(), "b".to_owned()],
        }
    }

    fn framed(message: &Sample) -> Vec<u8> {
        let mut bytes = Vec::new();
        send(&mut bytes, message).unwrap();
        bytes
    }

    #[test]
    fn messages_come_over_one_after_the_other() {
        let bytes = [framed(&full()), framed(&Sample::Empty {})].concat();
        let mut pipe = &bytes[..];
        assert_eq!(receive(&mut pipe).unwrap(), Some(full()));
        assert_eq!(receive(&mut pipe).unwrap(), Some(Sample::Empty {}));
        assert_eq!(receive::<Sample>(&mut pipe).unwrap(), None);
    }

    #[test]
    fn the_bytes_are_as_documented() {
        assert_eq!(framed(&Sample::Empty {}), [1, 0, 0, 0, 0]);
    }

    #[test]
    fn a_message_cut_anywhere_is_an_error() {
        let bytes = framed(&full());
        for end in 1..bytes.len() {
            assert!(matches!(receive::<Sample>(&mut &bytes[..end]), Err(FrameError::Cut)), "{end}");
        }
    }

    #[test]
    fn a_message_whose_fields_end_early_or_late_is_an_error() {
        let whole = framed(&full());
        for len in 0..whole.len() - 4 {
            let mut bytes = whole[..4 + len].to_vec();
            bytes[..4].copy_from_slice(&length(len).to_le_bytes());
            assert!(matches!(receive::<Sample>(&mut &bytes[..]), Err(FrameError::Malformed(_))), "{len}");
        }
        let mut longer = whole;
        longer.push(0);
        let len = length(longer.len() - 4);
        longer[..4].copy_from_slice(&len.to_le_bytes());
        assert!(matches!(
            receive::<Sample>(&mut &longer[..]),
            Err(FrameError::Malformed("bytes are left over"))
        ));
    }

    #[test]
    fn hostile_lengths_allocate_nothing() {
        let huge = u32::MAX.to_le_bytes();
        assert!(matches!(receive::<Sample>(&mut &huge[..]), Err(FrameError::Malformed("it is too long"))));
        let mut list = Vec::new();
        u32::MAX.put(&mut list);
        assert!(Vec::<u8>::take(&mut &list[..]).is_err());
        assert!(String::take(&mut &list[..]).is_err());
    }

    #[test]
    fn a_message_over_the_limit_is_not_sent() {
        let text = "x".repeat(MAX);
        let message =
            Sample::Full { flag: false, small: 0, large: 0, text, list: Vec::new(), texts: Vec::new() };
        let mut out = Vec::new();
        assert!(send(&mut out, &message).is_err());
        assert!(out.is_empty());
    }
}
