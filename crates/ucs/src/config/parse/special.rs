//! `inf` and `auto`, for the types that allow them.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use super::{Value, ValueError};

/// A `T`, or `inf` for no bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OrInf<T> {
    /// A bound.
    Finite(T),
    /// No bound; greater than every other.
    Inf,
}

/// A time to wait at most, or `inf`.
pub type Timeout = OrInf<Duration>;

impl<T> OrInf<T> {
    /// The bound, if there is one.
    pub fn finite(self) -> Option<T> {
        match self {
            Self::Finite(value) => Some(value),
            Self::Inf => None,
        }
    }
}

impl OrInf<Duration> {
    /// When the time is over that begins at `start`; `None`: never, which is also for what no clock can show.
    #[must_use]
    pub fn deadline(self, start: Instant) -> Option<Instant> {
        start.checked_add(self.finite()?)
    }
}

impl<T: Value> Value for OrInf<T> {
    fn accepts() -> Cow<'static, str> {
        format!("{}, or inf", T::accepts()).into()
    }

    fn parse(text: &str) -> Result<Self, ValueError> {
        if text.trim().eq_ignore_ascii_case("inf") {
            return Ok(Self::Inf);
        }
        T::parse(text).map(Self::Finite).map_err(ValueError::within::<Self>)
    }

    fn print(&self) -> String {
        match self {
            Self::Finite(value) => value.print(),
            Self::Inf => "inf".to_owned(),
        }
    }
}

/// A `T`, or `auto` to leave the choice to the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OrAuto<T> {
    /// The library chooses.
    Auto,
    /// The user has chosen.
    Set(T),
}

impl<T> OrAuto<T> {
    /// What the user has chosen, or `auto`.
    pub fn unwrap_or(self, auto: T) -> T {
        match self {
            Self::Set(value) => value,
            Self::Auto => auto,
        }
    }
}

impl<T: Value> Value for OrAuto<T> {
    fn accepts() -> Cow<'static, str> {
        format!("{}, or auto", T::accepts()).into()
    }

    fn parse(text: &str) -> Result<Self, ValueError> {
        // The last two are how C UCX says it for switches.
        if ["auto", "try", "maybe"].iter().any(|word| word.eq_ignore_ascii_case(text.trim())) {
            return Ok(Self::Auto);
        }
        T::parse(text).map(Self::Set).map_err(ValueError::within::<Self>)
    }

    fn print(&self) -> String {
        match self {
            Self::Set(value) => value.print(),
            Self::Auto => "auto".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Bytes;
    use super::*;

    #[test]
    fn words_are_accepted_where_the_type_allows_them() {
        type Threshold = OrAuto<OrInf<Bytes>>;
        assert_eq!(Threshold::parse("auto"), Ok(OrAuto::Auto));
        assert_eq!(Threshold::parse(" Inf "), Ok(OrAuto::Set(OrInf::Inf)));
        assert_eq!(Threshold::parse("4K"), Ok(OrAuto::Set(OrInf::Finite(Bytes::new(4096)))));
        assert_eq!(OrAuto::<bool>::parse("try"), Ok(OrAuto::Auto));
        assert_eq!(OrInf::<u32>::parse("7"), Ok(OrInf::Finite(7)));
        assert!(OrInf::<Bytes>::parse("auto").is_err());
        assert!(OrAuto::<Bytes>::parse("inf").is_err());
        let error = Threshold::parse("many").expect_err("no number");
        assert!(error.accepts().ends_with(", or inf, or auto"), "{error}");
        for text in ["auto", "inf", "4K"] {
            assert_eq!(Threshold::parse(text).map(|t| t.print()).as_deref(), Ok(text));
        }
    }

    #[test]
    fn a_deadline_never_overflows() {
        let now = Instant::now();
        assert_eq!(Timeout::Inf.deadline(now), None);
        assert_eq!(OrInf::Finite(Duration::MAX).deadline(now), None);
        assert_eq!(OrInf::Finite(Duration::from_secs(1)).deadline(now), Some(now + Duration::from_secs(1)));
        assert!(OrInf::Finite(Duration::MAX) < Timeout::Inf);
    }
}
