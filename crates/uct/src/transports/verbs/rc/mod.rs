//! The interface of `verbs`: active messages by reliable connections (RC), between workers of any two machines.

mod credits;
mod endpoint;
mod entrance;
mod iface;
mod life;
mod queue;
mod sends;
#[cfg(all(test, feature = "rxe-tests"))]
mod tests;
pub mod wire;

pub(super) use iface::RcIface;
