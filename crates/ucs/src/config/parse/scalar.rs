//! Counts, switches, strings, paths.

use std::borrow::Cow;
use std::path::PathBuf;

use super::{Value, ValueError, whole};

macro_rules! counts {
    ($($t:ty)*) => { $(
        impl Value for $t {
            fn accepts() -> Cow<'static, str> {
                "a whole number".into()
            }

            fn parse(text: &str) -> Result<Self, ValueError> {
                let number = whole::<Self>(text.trim())?;
                Self::try_from(number).map_err(|_| ValueError::new::<Self>("too large"))
            }

            fn print(&self) -> String {
                self.to_string()
            }
        }
    )* };
}

counts!(u32 u64 usize);

impl Value for bool {
    fn accepts() -> Cow<'static, str> {
        "y or n".into()
    }

    fn parse(text: &str) -> Result<Self, ValueError> {
        let text = text.trim();
        let is = |words: [&str; 5]| words.iter().any(|word| word.eq_ignore_ascii_case(text));
        if is(["y", "yes", "on", "1", "true"]) {
            Ok(true)
        } else if is(["n", "no", "off", "0", "false"]) {
            Ok(false)
        } else {
            Err(ValueError::new::<Self>("neither yes nor no"))
        }
    }

    fn print(&self) -> String {
        if *self { "y" } else { "n" }.to_owned()
    }
}

impl Value for String {
    fn accepts() -> Cow<'static, str> {
        "a text".into()
    }

    fn parse(text: &str) -> Result<Self, ValueError> {
        Ok(text.to_owned())
    }

    fn print(&self) -> String {
        self.clone()
    }
}

/// An absolute path, or none. One that is not UTF-8 is refused: texts pass through logs and files that are.
impl Value for Option<PathBuf> {
    fn accepts() -> Cow<'static, str> {
        "an absolute path such as /run/rucx, or nothing".into()
    }

    fn parse(text: &str) -> Result<Self, ValueError> {
        if text.is_empty() {
            return Ok(None);
        }
        let path = PathBuf::from(text);
        if !path.is_absolute() {
            Err(ValueError::new::<Self>("not an absolute path"))
        } else if text.contains('\0') {
            Err(ValueError::new::<Self>("a path cannot hold a zero byte"))
        } else if text.contains(char::REPLACEMENT_CHARACTER) {
            // What `print` leaves of other encodings: it would be another path.
            Err(ValueError::new::<Self>("not UTF-8"))
        } else {
            Ok(Some(path))
        }
    }

    fn print(&self) -> String {
        self.as_ref().map_or_else(String::new, |path| path.to_string_lossy().into_owned())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn counts() {
        assert_eq!(u32::parse(" 16 "), Ok(16));
        assert_eq!(u32::parse("4294967295"), Ok(u32::MAX));
        assert_eq!(u64::parse("18446744073709551615"), Ok(u64::MAX));
        for text in ["", "-1", "+1", "1.0", "4294967296", "ten", "0x10", "1K", "inf"] {
            assert!(u32::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn switches() {
        for text in ["y", "Y", "yes", "YES", "on", "1", "true", " True "] {
            assert_eq!(bool::parse(text), Ok(true), "{text}");
        }
        for text in ["n", "N", "no", "off", "OFF", "0", "false"] {
            assert_eq!(bool::parse(text), Ok(false), "{text}");
        }
        for text in ["", "2", "try", "yy", "tru"] {
            assert!(bool::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn paths() {
        assert_eq!(Option::<PathBuf>::parse(""), Ok(None));
        assert_eq!(Option::<PathBuf>::parse("/run/x y"), Ok(Some(PathBuf::from("/run/x y"))));
        for text in ["run", "./run", " /run", "~/x", "/a\0b", "/a\u{fffd}"] {
            assert!(Option::<PathBuf>::parse(text).is_err(), "{text}");
        }
    }

    fn survives<T: Value + PartialEq>(text: &str) -> Result<(), TestCaseError> {
        if let Ok(value) = T::parse(text) {
            let again = T::parse(&value.print());
            prop_assert_eq!(again, Ok(value));
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn total_and_round_trip(text in ".*", path in "/?[a-z/]{0,9}", number in "[0-9]{0,22}") {
            for text in [text, path, number] {
                survives::<u32>(&text)?;
                survives::<u64>(&text)?;
                survives::<usize>(&text)?;
                survives::<bool>(&text)?;
                survives::<String>(&text)?;
                survives::<Option<PathBuf>>(&text)?;
            }
        }
    }
}
