//! The suite for `verbs`: exporter and importer are contexts of one process, or two processes, with one RDMA device. Without a device, it
//! fails.

use uct_conformance::{Fixture, Place};

fn main() -> std::process::ExitCode {
    uct_conformance::main(&Fixture::of(
        "verbs",
        &[Place::SameContext, Place::TwoContexts, Place::TwoProcesses],
    ))
}
