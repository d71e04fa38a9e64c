//! The variables all transports read; those of one transport are in its folder, and in [`Component::vars`].
//!
//! [`Component::vars`]: crate::api::Component::vars

use std::time::Duration;

use ucs::config::{AnyVar, NetDevices, Var};

/// Bound of every wait of an import, and of a mediated access for a free in-flight slot.
pub const IMPORT_TIMEOUT: Var<Duration> =
    Var::new("UCX_IMPORT_TIMEOUT", "5s", "How long an import may wait for the exporter's answer");

/// Bound of the wait of a revocation.
pub const REVOKE_TIMEOUT: Var<Duration> =
    Var::new("UCX_REVOKE_TIMEOUT", "2s", "How long a revocation may wait for accesses in flight");

/// Where service sockets have a path, for importers that live in another network namespace.
pub const SERVICE_DIR: Var<String> = Var::new(
    "UCX_SERVICE_DIR",
    "",
    "Directory for service sockets, seen by exporter and importer, where their network namespaces differ",
);

/// Bound of the connections that peers make to a worker, each of which takes two descriptors. UCX has no such variable, nor has a
/// peer there that may connect until there are no descriptors.
pub const MAX_CONNECTIONS: Var<usize> = Var::new(
    "UCX_MAX_CONNECTIONS",
    "1024",
    "How many connections that peers have made to a worker may be alive at once, half of them of one process; a quarter of \
     RLIMIT_NOFILE at most",
);

/// Network devices of all transports that have such: RDMA devices, today.
pub const NET_DEVICES: Var<NetDevices> = Var::new(
    "UCX_NET_DEVICES",
    "all",
    "Network devices to use, and their ports: RDMA devices, as `rdma link` names them. Transports without such are not restricted",
);

/// All of them.
pub const VARS: &[&dyn AnyVar] =
    &[&IMPORT_TIMEOUT, &REVOKE_TIMEOUT, &SERVICE_DIR, &MAX_CONNECTIONS, &NET_DEVICES];
