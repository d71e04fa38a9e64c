//! The suite for `shm`: exporter and importer are two contexts, of one process or of two.

use uct_conformance::{Fixture, Place};

fn main() -> std::process::ExitCode {
    uct_conformance::main(&Fixture::of("shm", &[Place::TwoContexts, Place::TwoProcesses]))
}
