//! What the rows have in common.

use ucp::{Context, Features};

pub(crate) use rucx_benches::rows::{Row, Rows, size};

/// A context as the rows use it, whatever the environment says.
pub(crate) fn context() -> Context {
    let built = Context::builder().features(Features::EXPORTED_MEMH).ignore_env().build();
    built.expect("a context with the default settings")
}
