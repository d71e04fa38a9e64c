//! The suite for `self`: exporter and importer are one context.

use uct_conformance::{Fixture, Place};

fn main() -> std::process::ExitCode {
    uct_conformance::main(&Fixture::of("self", &[Place::SameContext]))
}
