//! What can be wrong with a configuration.

use std::borrow::Cow;

use super::{Origin, Value};
use crate::Status;

/// A text is no value of the type asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}; expected {accepts}")]
#[non_exhaustive]
pub struct ValueError {
    reason: Cow<'static, str>,
    accepts: Cow<'static, str>,
}

impl ValueError {
    /// Says why a text is no `T`, as in "too large".
    #[must_use]
    pub fn new<T: Value>(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { reason: reason.into(), accepts: T::accepts() }
    }

    /// The same reason, where another type is expected: for values made of values.
    #[must_use]
    pub fn within<T: Value>(self) -> Self {
        Self::new::<T>(self.reason)
    }

    /// What would have been accepted.
    #[must_use]
    pub fn accepts(&self) -> &str {
        &self.accepts
    }

    /// Always [`Status::InvalidParam`].
    pub const fn status(&self) -> Status {
        Status::InvalidParam
    }

    /// What to write instead.
    #[must_use]
    pub fn remedy(&self) -> String {
        format!("write {}", self.accepts)
    }
}

/// A configuration could not be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A variable has a value that its type does not accept.
    #[error("{variable}={value:?} ({origin}): {reason}")]
    #[non_exhaustive]
    Invalid {
        /// Name of the variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// Where the value came from.
        origin: Origin,
        /// Why it is none, and what is accepted.
        reason: ValueError,
    },
    /// A variable has a value in the environment that is not UTF-8.
    #[error("{variable}={value:?} ({}): not UTF-8; expected {accepts}", Origin::Env)]
    #[non_exhaustive]
    NotUnicode {
        /// Name of the variable.
        variable: &'static str,
        /// Its value, with what is not UTF-8 replaced.
        value: String,
        /// What is accepted.
        accepts: String,
    },
    /// The builder was given a variable that is not declared.
    #[error("there is no variable {variable:?}")]
    #[non_exhaustive]
    Unknown {
        /// The name given.
        variable: String,
        /// The declared name that is nearest to it.
        nearest: Option<&'static str>,
        /// Whether C UCX has a variable of that name.
        in_c_ucx: bool,
    },
    /// A variable is declared twice, with different types or defaults.
    #[error("{variable} is declared twice, with different types or defaults")]
    #[non_exhaustive]
    Conflict {
        /// Name of the variable.
        variable: &'static str,
    },
}

impl ConfigError {
    /// Name of the variable.
    #[must_use]
    pub fn variable(&self) -> &str {
        match self {
            Self::Invalid { variable, .. }
            | Self::NotUnicode { variable, .. }
            | Self::Conflict { variable } => variable,
            Self::Unknown { variable, .. } => variable,
        }
    }

    /// Where its value came from.
    #[must_use]
    pub const fn origin(&self) -> Origin {
        match self {
            Self::Invalid { origin, .. } => *origin,
            Self::NotUnicode { .. } => Origin::Env,
            Self::Unknown { .. } => Origin::Builder,
            Self::Conflict { .. } => Origin::Default,
        }
    }

    /// [`Status::NoElem`] for an unknown variable, as C UCX has it, else [`Status::InvalidParam`].
    pub const fn status(&self) -> Status {
        match self {
            Self::Unknown { .. } => Status::NoElem,
            Self::Invalid { .. } | Self::NotUnicode { .. } | Self::Conflict { .. } => Status::InvalidParam,
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::Invalid { variable, origin, reason, .. } => match origin {
                Origin::Default => {
                    format!("correct the declaration of {variable}: its default must be {}", reason.accepts())
                }
                Origin::Env => format!("set {variable} to {}, or unset it", reason.accepts()),
                Origin::Builder => format!("give {variable} {}", reason.accepts()),
            },
            Self::NotUnicode { variable, accepts, .. } => format!("set {variable} to {accepts}, or unset it"),
            Self::Unknown { nearest: Some(nearest), .. } => format!("did you mean {nearest}?"),
            Self::Unknown { variable, in_c_ucx: true, .. } => {
                format!("leave {variable} out: C UCX has it, rucx does not")
            }
            Self::Unknown { .. } => "`Context::config` lists the variables".to_owned(),
            Self::Conflict { variable } => format!("declare {variable} once and share the declaration"),
        }
    }
}

/// A list names what does not exist; see [`AllowList::resolve`](super::AllowList::resolve).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown in the list: {}", .names.join(", "))]
#[non_exhaustive]
pub struct UnknownNames {
    /// The unknown names, as written.
    pub names: Vec<String>,
    /// The known name nearest to the first of them.
    pub nearest: Option<String>,
    /// All names known, aliases included.
    pub known: Vec<String>,
}

impl UnknownNames {
    /// Always [`Status::InvalidParam`].
    pub const fn status(&self) -> Status {
        Status::InvalidParam
    }

    /// What to write instead.
    #[must_use]
    pub fn remedy(&self) -> String {
        let known = self.known.join(", ");
        match &self.nearest {
            Some(nearest) => format!("did you mean {nearest}? There are: {known}"),
            None => format!("use some of: {known}"),
        }
    }
}
