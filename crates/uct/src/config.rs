//! The variables all transports read; those of one transport are in its folder, and in [`Component::vars`].
//!
//! [`Component::vars`]: crate::api::Component::vars

use std::time::Duration;

use ucs::config::{AnyVar, Var};

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

/// All of them.
pub const VARS: &[&dyn AnyVar] = &[&IMPORT_TIMEOUT, &REVOKE_TIMEOUT, &SERVICE_DIR];
