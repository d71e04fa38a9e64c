//! The bytes that leave a process: one format a file.

pub mod handle;
