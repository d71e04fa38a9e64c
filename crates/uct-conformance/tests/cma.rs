//! The suite for `cma`: exporter and importer are contexts of one process, or two processes with ptrace rights.

use uct_conformance::{Fixture, Place};

fn main() -> std::process::ExitCode {
    uct_conformance::main(&Fixture::of("cma", &[Place::SameContext, Place::TwoContexts, Place::TwoProcesses]))
}
