//! Transports: one interface over every way memory can be reached from another process.
//!
//! A [`Component`](api::Component) (`self`, `shm`, …) opens memory domains ([`Md`](api::Md)); a memory domain allocates and
//! registers memory, packs keys to it, and attaches to keys that came from elsewhere. No semver promise before 1.0.
//!
//! | module | subject |
//! |---|---|
//! | [`api`] | the traits a transport implements |
//! | [`memory`] | memory of this process: allocated, owned by the user, or raw |
//! | [`registrations`] | operands registered with the memory domains that need it, and the cache of that |
//! | [`ring`] | messages between two processes, in memory both map |
//! | [`export`] | what is exported: the table, tokens, accesses in flight |
//! | [`service`] | the per-context socket over which importers get descriptors |
//! | [`doorbell`] | waking a worker that sleeps |
//! | [`process`] | telling one process from another that has its pid |
//! | [`transports`] | the implementations |
//! | [`channel`] | what two workers know each other by, when one reads the other's memory |
//! | [`config`] | the variables transports read |
//! | [`wire`] | bounded reading and writing of bytes |

#![deny(unsafe_code)]

pub mod api;
pub mod channel;
pub mod config;
pub mod doorbell;
pub mod export;
pub mod memory;
pub mod process;
pub mod registrations;
pub mod ring;
pub mod service;
pub mod transports;
pub mod wire;

pub use memory::{LocalMem, OwnedBytes, RawMem, StableBuf, StableBufMut};
