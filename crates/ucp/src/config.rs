//! The variables rucx reads, under the names C UCX's users know: default < environment < builder.

use ucs::config::{AllowList, AnyVar, Var};

/// Transports that may be used.
pub const TLS: Var<AllowList> = Var::new(
    "UCX_TLS",
    "all",
    "Transports that may be used, or with a leading ^ all but these; as in C UCX, shm and sm mean shm and cma, mm and posix shm alone",
);

/// Bound of the imports of a context.
pub const MAX_IMPORTS: Var<usize> =
    Var::new("UCX_MAX_IMPORTS", "65536", "How many imported regions of a context may be alive at once");

/// Level of the events that the tools of rucx print. A program that uses the library installs a subscriber of its own.
pub const LOG_LEVEL: Var<String> =
    Var::new("UCX_LOG_LEVEL", "warn", "Level of the events that the tools of rucx print");

/// All variables of this crate; [`uct::config::VARS`] and [`uct::api::Component::vars`] have those of the transports.
pub const VARS: &[&dyn AnyVar] = &[&TLS, &MAX_IMPORTS, &LOG_LEVEL];
