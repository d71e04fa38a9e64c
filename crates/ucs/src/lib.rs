//! Services under rucx: what is no transport's business and every transport's need.
//!
//! | module | subject |
//! |---|---|
//! | [`status`] | the one-byte [`Status`] |
//! | [`config`] | `UCX_*` variables: default < environment < builder |
//! | [`log`] | trace events whose disabled levels cost nothing |
//! | [`time`] | bounds of waits |
//! | [`sync`] | atomics, swapped for loom's when models are checked |
//! | [`mem`] | the copy kernel, page arithmetic, memfds |
//! | [`monitor`] | being told when memory is unmapped or changed |
//! | [`rcache`] | registrations that behave as if bound to the address |
//! | [`signals`] | threads that the application's signals leave alone |
//! | [`fork`] | knowing that one is a fork's child |

#![deny(unsafe_code)]

pub mod config;
pub mod fork;
pub mod log;
pub mod mem;
pub mod monitor;
pub mod rcache;
pub mod signals;
pub mod status;
pub mod sync;
pub mod time;

pub use status::Status;
