//! Memory of another machine.
//!
//! ```text
//!   exporter                                               importer
//!   service thread ◀── TCP: proof of the token, addresses of queue pairs ──
//!   memory ── registered, per importer ── queue pairs ◀── READ, WRITE ── queue pairs ── operands, or memory that bytes go through
//!             └── one protection domain per importer ──┘
//! ```
//!
//! A queue pair may use all keys of its protection domain: so each importer has one of its own, with registrations of what it has attached and
//! nothing else. The exporter's processor does nothing for a READ or a WRITE; its device holds bounds and rights. A revocation ends the
//! registrations: a request that comes later fails, and with it that importer's queue pair alone, which it makes anew.

mod exporter;
#[cfg(all(test, feature = "rxe-tests"))]
mod hostile;
mod importer;
#[cfg(all(test, feature = "rxe-tests"))]
mod liars;
pub mod wire;

pub(super) use exporter::{Exports, Limits};
pub(super) use importer::{At, Importers, RemoteImport};
