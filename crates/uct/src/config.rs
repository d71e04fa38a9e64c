//! The variables transports read.

use std::sync::Arc;
use std::time::Duration;

use ucs::config::{AllowList, AnyVar, Config, UnknownNames, Var};

use crate::api::MdParams;
use crate::export::ExportTable;
use crate::service::Service;
use crate::transports::shm::{METHOD_NAMES, Methods};

/// Bound of every wait of an import, and of a mediated access for a free in-flight slot.
pub const IMPORT_TIMEOUT: Var<Duration> =
    Var::new("UCX_IMPORT_TIMEOUT", "5s", "How long an import may wait for the exporter's answer");

/// Bound of the wait of a revocation.
pub const REVOKE_TIMEOUT: Var<Duration> =
    Var::new("UCX_REVOKE_TIMEOUT", "2s", "How long a revocation may wait for accesses in flight");

/// Ways to get another process's memfds.
pub const SHM_ATTACH: Var<AllowList> = Var::new(
    "UCX_SHM_ATTACH",
    "all",
    "How shm gets another process's memory: socket (its service passes it), proc (/proc/PID/fd), pidfd (pidfd_getfd)",
);

/// All of them.
pub const VARS: &[&dyn AnyVar] = &[&IMPORT_TIMEOUT, &REVOKE_TIMEOUT, &SHM_ATTACH];

/// What memory domains are opened with, from a configuration that knows [`VARS`].
///
/// # Errors
/// A variable names what does not exist: which, and what.
pub fn md_params(
    config: &Config,
    exports: &Arc<ExportTable>,
    service: &Arc<Service>,
) -> Result<MdParams, (&'static str, UnknownNames)> {
    let names: Vec<&str> = METHOD_NAMES.iter().map(|(name, _)| *name).collect();
    let allowed = config.get(&SHM_ATTACH).resolve(&names, &[]).map_err(|error| (SHM_ATTACH.name(), error))?;
    let shm_methods = METHOD_NAMES
        .iter()
        .filter(|(name, _)| allowed.allows(name))
        .fold(Methods::empty(), |all, (_, method)| all | *method);
    Ok(MdParams {
        exports: Arc::clone(exports),
        service: Arc::clone(service),
        import_timeout: config.get(&IMPORT_TIMEOUT),
        shm_methods,
    })
}
