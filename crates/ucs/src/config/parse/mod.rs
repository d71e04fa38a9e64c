//! Types of values, and their texts.

mod bytes;
mod devices;
mod list;
mod scalar;
mod special;
mod time;

use std::borrow::Cow;
use std::fmt;

pub use bytes::Bytes;
pub use devices::NetDevices;
pub use list::AllowList;
pub use special::{OrAuto, OrInf, Timeout};

use super::ValueError;

/// A type that a variable may have.
///
/// ```
/// use std::borrow::Cow;
/// use ucs::config::{Value, ValueError};
///
/// #[derive(Clone, Debug)]
/// enum Scheme { Get, Put }
///
/// impl Value for Scheme {
///     fn accepts() -> Cow<'static, str> {
///         "get or put".into()
///     }
///     fn parse(text: &str) -> Result<Self, ValueError> {
///         match text.trim() {
///             "get" => Ok(Self::Get),
///             "put" => Ok(Self::Put),
///             _ => Err(ValueError::new::<Self>("no such scheme")),
///         }
///     }
///     fn print(&self) -> String {
///         match self { Self::Get => "get", Self::Put => "put" }.to_owned()
///     }
/// }
/// ```
pub trait Value: Clone + fmt::Debug + Send + Sync + 'static {
    /// What is accepted, to complete "expected …": with examples.
    fn accepts() -> Cow<'static, str>;

    /// Reads a value. Total: for every text there is a value or an error.
    ///
    /// # Errors
    /// The text is none of what [`accepts`](Self::accepts) tells.
    fn parse(text: &str) -> Result<Self, ValueError>;

    /// The canonical text: [`parse`](Self::parse) makes an equal value of it.
    fn print(&self) -> String;
}

/// The one of `all` values that `text` stands for, by its canonical text in letters of either case.
///
/// # Errors
/// `otherwise`: it stands for none of them.
pub fn one_of<T: Value>(
    text: &str,
    all: impl IntoIterator<Item = T>,
    otherwise: &'static str,
) -> Result<T, ValueError> {
    let meant = all.into_iter().find(|value| value.print().eq_ignore_ascii_case(text.trim()));
    meant.ok_or_else(|| ValueError::new::<T>(otherwise))
}

/// Entries of a list, as they are read.
fn write_list(f: &mut fmt::Formatter<'_>, entries: &[impl fmt::Display]) -> fmt::Result {
    for (i, entry) in entries.iter().enumerate() {
        write!(f, "{}{entry}", if i == 0 { "" } else { "," })?;
    }
    Ok(())
}

/// Leading decimal digits, and what follows them.
fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(u8::is_ascii_digit).count())
}

/// A number of decimal digits alone: no sign, no blanks.
fn whole<T: Value>(digits: &str) -> Result<u64, ValueError> {
    match digits {
        "" => Err(ValueError::new::<T>("no number")),
        // Only too large a number is left to fail.
        _ if digits.bytes().all(|b| b.is_ascii_digit()) => {
            digits.parse().map_err(|_| ValueError::new::<T>("too large"))
        }
        _ => Err(ValueError::new::<T>("not a whole number")),
    }
}
