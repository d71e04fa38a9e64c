//! Memory primitives: what everything that touches shared memory is made of.

pub mod copy;
mod count;
pub mod error;
pub mod mapping;
pub mod memfd;
pub mod page;
pub mod shared;

pub(crate) use count::mappings;
pub use error::{Limit, MemError};
pub use mapping::{Access, Mapping};
pub use memfd::{ForeignFdError, Memfd};
pub use shared::SharedBytes;
