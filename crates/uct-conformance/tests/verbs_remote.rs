//! The suite for `verbs` as between machines: exporter and importer have protection domains of their own, on one RDMA device. Without a
//! device, it fails.

use uct_conformance::{Fixture, Place};

fn main() -> std::process::ExitCode {
    uct_conformance::main(&Fixture::of(
        "verbs-remote",
        &[Place::SameContext, Place::TwoContexts, Place::TwoProcesses],
    ))
}
