//! The bytes that leave a process: one format a file.

pub mod address;
pub mod am;
pub mod handle;
pub mod rkey;
