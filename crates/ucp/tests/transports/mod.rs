//! The transports that tests of imports go through, by names of their own. With the feature `rxe-tests` they are those of an RDMA device,
//! in the guest of `cargo xtask rxe`.

#![allow(dead_code)] // not all binaries use all of it

use ucp::{Context, ContextBuilder, Features};

/// Whether bytes go by a device, an emulated one, which takes its time.
pub(crate) const BY_DEVICE: bool = cfg!(feature = "rxe-tests");

/// One machine's: registered in the importer's protection domain.
pub(crate) const NEARBY: &str = "verbs";
/// As between machines: each side has a protection domain of its own.
pub(crate) const REMOTE: &str = "verbs-remote";

/// The variables by which contexts of both sides have this transport alone.
pub(crate) fn variables(transport: &str) -> &'static [(&'static str, &'static str)] {
    match transport {
        "self" => &[("UCX_TLS", "self")],
        "shm" => &[("UCX_TLS", "mm")],
        "cma" => &[("UCX_TLS", "cma")],
        NEARBY => &[("UCX_TLS", "verbs"), ("UCX_VERBS_SHARE", "y"), ("UCX_VERBS_REMOTE", "n")],
        REMOTE => &[("UCX_TLS", "verbs"), ("UCX_VERBS_SHARE", "n"), ("UCX_VERBS_REMOTE", "y")],
        other => panic!("no transport {other}"),
    }
}

/// A builder of such a context.
pub(crate) fn builder(transport: &str) -> ContextBuilder {
    let builder = Context::builder().features(Features::EXPORTED_MEMH).ignore_env();
    variables(transport).iter().fold(builder, |builder, (name, value)| builder.set(*name, *value))
}

/// What an import by it says it goes by.
pub(crate) fn name(transport: &str) -> &str {
    transport.strip_suffix("-remote").unwrap_or(transport)
}
