//! `rucx export` and `rucx import`, as users in two terminals start them.

#![allow(clippy::unwrap_used)] // what fails here is a failed test

mod export;
mod import;
mod look;
mod memory;
#[allow(dead_code)] // what the tests of other commands need beside
#[path = "../support/mod.rs"]
mod support;
mod terminals;
