//! The variables rucx reads, under the names C UCX's users know: default < environment < builder.

use std::time::Duration;

use ucs::config::{AllowList, AnyVar, Bytes, OrAuto, OrInf, Var};
use ucs::rcache::config as rcache;

/// Transports that may be used.
pub const TLS: Var<AllowList> = Var::new(
    "UCX_TLS",
    "all",
    "Transports that may be used, or with a leading ^ all but these; as in C UCX, shm and sm mean shm and cma, mm and posix shm alone",
);

/// Bound of the imports of a context.
pub const MAX_IMPORTS: Var<usize> =
    Var::new("UCX_MAX_IMPORTS", "65536", "How many imported regions of a context may be alive at once");

/// Bound of connecting to a worker.
pub const CONNECT_TIMEOUT: Var<Duration> = Var::new(
    "UCX_CONNECT_TIMEOUT",
    "5s",
    "How long connecting to a worker may wait for its context's answer",
);

/// From how many bytes on operands are registered.
pub const ZCOPY_THRESH: Var<OrAuto<OrInf<Bytes>>> = Var::new(
    "UCX_ZCOPY_THRESH",
    "auto",
    "From how many bytes on operands of put and get, and long data of messages, are registered with a transport that needs that; shorter ones are copied",
);

/// Level of the events that the tools of rucx print. A program that uses the library installs a subscriber of its own.
pub const LOG_LEVEL: Var<String> =
    Var::new("UCX_LOG_LEVEL", "warn", "Level of the events that the tools of rucx print");

/// All variables of this crate, and those of the registration cache ([`ucs::rcache::config::VARS`]); [`uct::config::VARS`] and
/// [`uct::api::Component::vars`] have those of the transports.
pub const VARS: &[&dyn AnyVar] = &[
    &TLS,
    &MAX_IMPORTS,
    &CONNECT_TIMEOUT,
    &ZCOPY_THRESH,
    &LOG_LEVEL,
    &rcache::ENABLE,
    &rcache::MODE,
    &rcache::MAX_REGIONS,
    &rcache::MAX_SIZE,
    &rcache::ADDR_ALIGN,
    &rcache::FILES,
    &rcache::MEM_EVENTS,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_variables_of_the_registration_cache_are_listed() {
        for var in rcache::VARS {
            assert!(VARS.iter().any(|listed| listed.name() == var.name()), "{var:?}");
        }
    }
}
