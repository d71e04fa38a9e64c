//! What this context exports: the table importers read, tokens, and accesses in flight.
//!
//! An export lives in one slot of a table in shared memory. The slot's *epoch* word is odd while an export lives there, and
//! moves on when it is revoked; the importer's library compares it around every access. *In-flight slots*, words in a page
//! which the importer writes, tell the exporter that an access has begun: [`Export::revoke`] waits for them.
//!
//! ```text
//! importer                         exporter
//! in-flight slot := id             epoch := epoch + 1
//! fence                            fence
//! epoch as in the handle?          every in-flight slot != id?   → revoked
//!   yes → access                   otherwise wait, bounded       → NotRevoked
//! in-flight slot := 0
//! ```

pub mod error;
pub mod gate;
pub mod importers;
pub mod in_flight;
mod placements;
pub mod registry;
pub mod table;
pub mod token;
pub mod wire;

pub use error::{ExportError, NotRevoked, Refusal};
pub use gate::{Gate, PeerObserver, PeerState};
pub use placements::Making;
pub use table::{Claim, Export, ExportTable};
pub use token::Token;
