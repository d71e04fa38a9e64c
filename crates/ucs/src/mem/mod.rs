//! Memory primitives.

pub mod copy;
pub mod memfd;
pub mod page;
