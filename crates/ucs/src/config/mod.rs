//! Configuration: `UCX_*` variables, default < environment < builder.
//!
//! ```mermaid
//! flowchart LR
//!     D["default (text in the Var)"] --> B{{"build(): the last one set is parsed and checked"}}
//!     E["environment"] --> B
//!     S["builder: set, set_var"] --> B
//!     B -->|Ok| C["Config: get is total"]
//!     B -->|Err| R["ConfigError: variable, value, origin, what is accepted"]
//! ```
//!
//! A crate declares its variables as constants and lists them; whoever makes a context builds a [`Config`] of all of them.
//!
//! ```
//! use std::time::Duration;
//! use ucs::config::{AllowList, AnyVar, Bytes, Config, Env, Origin, OrInf, Var};
//!
//! pub const TLS: Var<AllowList> = Var::new("UCX_TLS", "all", "Transports to use");
//! pub const IMPORT_TIMEOUT: Var<Duration> = Var::new("UCX_IMPORT_TIMEOUT", "5s", "How long an import may wait");
//! pub const RCACHE_MAX_SIZE: Var<OrInf<Bytes>> = Var::new("UCX_RCACHE_MAX_SIZE", "inf", "Bytes the cache may hold");
//! pub const VARS: &[&dyn AnyVar] = &[&TLS, &IMPORT_TIMEOUT, &RCACHE_MAX_SIZE];
//!
//! let config = Config::builder(VARS)
//!     .env(Env::from_pairs([("UCX_TLS", "tcp"), ("UCX_IMPORT_TIMEOUT", "250ms")])) // Env::process() is the default
//!     .set("UCX_TLS", r"self,\shm")
//!     .set_var(&RCACHE_MAX_SIZE, OrInf::Finite(Bytes::new(1 << 30)))
//!     .build()?;
//! assert_eq!(config.get(&IMPORT_TIMEOUT), Duration::from_millis(250));
//! assert_eq!(config.origin(&IMPORT_TIMEOUT), Origin::Env);
//! assert!(config.get(&TLS).allows("shm"));
//! assert!(!config.get(&TLS).allows("tcp"));
//! # Ok::<(), ucs::config::ConfigError>(())
//! ```
//!
//! # What a value may be
//!
//! | type | text | notes |
//! |---|---|---|
//! | [`Bytes`] | `8192`, `4K`, `1MB`, `2g` | suffix b, k, m, g or t, of either case, powers of 1024; a `b` may follow; whole numbers, as in C UCX |
//! | [`Duration`](std::time::Duration) | `10us`, `5ms`, `1.5s`, `1m`, `3` | ns, us, ms, s, m (minutes); without a unit: seconds |
//! | `u32`, `u64`, `usize` | `16` | counts |
//! | [`OrInf<T>`] | as `T`, or `inf` | [`Timeout`] is `OrInf<Duration>` |
//! | [`OrAuto<T>`] | as `T`, or `auto` | also `try`, as C UCX has it for switches |
//! | `bool` | `y`/`n`, `yes`/`no`, `on`/`off`, `1`/`0`, `true`/`false` | of either case |
//! | `String` | anything | |
//! | `Option<PathBuf>` | `/run/rucx` | absolute; empty: `None` |
//! | [`AllowList`] | `all`, `a,b`, `^a,b`, `\a` | see there |
//! | [`NetDevices`] | `all`, `mlx5_0,mlx5_1:2`, `^mlx5_0` | devices, with a port after a colon |
//!
//! Other types become values by implementing [`Value`].
//!
//! # The environment
//!
//! A variable that looks like a misspelling of one of the declared ones is told by one warning per process, with the
//! nearest name; one of C UCX that is not declared, by a debug event. Only names are logged, never the values of variables
//! that are not ours.

mod builder;
mod env;
mod error;
mod nearest;
mod parse;
mod ucx_names;
mod var;

use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

pub use builder::ConfigBuilder;
pub use env::Env;
pub use error::{ConfigError, UnknownNames, ValueError};
pub use parse::{AllowList, Bytes, NetDevices, OrAuto, OrInf, Timeout, Value, one_of};
pub use var::{AnyVar, Var};

/// Where the value of a variable came from; a later one wins over an earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// The default of its declaration.
    Default,
    /// The environment.
    Env,
    /// The program, through the builder.
    Builder,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "default",
            Self::Env => "environment",
            Self::Builder => "builder",
        })
    }
}

/// Values for a set of declared variables, all parsed and checked.
///
/// Immutable, `Send + Sync`, cheap to clone. For set-up and control paths: a lookup by name is no data path, so keep what
/// it returned.
#[derive(Clone, Debug)]
pub struct Config {
    entries: Arc<BTreeMap<&'static str, Entry>>,
}

#[derive(Debug)]
struct Entry {
    value: Box<dyn Any + Send + Sync>,
    text: String,
    origin: Origin,
    var: &'static dyn AnyVar,
}

/// A variable with its value, for a person to read; see [`Config::iter`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Setting<'a> {
    /// `UCX_…`.
    pub name: &'static str,
    /// The value in canonical form; the same text given back has the same meaning.
    pub value: &'a str,
    /// Where it came from.
    pub origin: Origin,
    /// What the variable is for.
    pub doc: &'static str,
    /// Its default, as declared.
    pub default: &'static str,
    /// What it may be set to.
    pub accepts: String,
}

impl Config {
    /// Starts from the declared variables `vars` and the environment of the process.
    ///
    /// Give one builder all variables the program knows: what is not declared may be taken for a misspelling.
    pub fn builder(vars: &'static [&'static dyn AnyVar]) -> ConfigBuilder {
        ConfigBuilder::new(vars)
    }

    /// The value of `var`.
    ///
    /// # Panics
    /// If `var` is not among the variables the builder was given: a mistake in the program, whatever the input.
    #[must_use]
    #[track_caller]
    pub fn get<T: Value>(&self, var: &Var<T>) -> T {
        match self.entry(var).value.downcast_ref::<T>() {
            Some(value) => value.clone(),
            None => not_declared(var.name()),
        }
    }

    /// Where the value of `var` came from.
    ///
    /// # Panics
    /// As [`get`](Self::get).
    #[must_use]
    #[track_caller]
    pub fn origin<T: Value>(&self, var: &Var<T>) -> Origin {
        self.entry(var).origin
    }

    /// All variables in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = Setting<'_>> {
        self.entries.iter().map(|(&name, entry)| Setting {
            name,
            value: &entry.text,
            origin: entry.origin,
            doc: entry.var.doc(),
            default: entry.var.default(),
            accepts: entry.var.accepts(),
        })
    }

    #[track_caller]
    fn entry<T: Value>(&self, var: &Var<T>) -> &Entry {
        match self.entries.get(var.name()) {
            Some(entry) if entry.var.type_id() == TypeId::of::<T>() => entry,
            _ => not_declared(var.name()),
        }
    }
}

#[cold]
#[track_caller]
fn not_declared(name: &str) -> ! {
    panic!("{name} is not among the variables this Config was built with, or has another type there")
}

#[cfg(test)]
mod tests;
