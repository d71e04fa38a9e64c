//! The suite for `shm` with descriptors taken by `pidfd_getfd(2)`.

use uct_conformance::{Fixture, Place};

fn main() -> std::process::ExitCode {
    let settings = &[("UCX_SHM_ATTACH", "pidfd")];
    let shm = Fixture::of("shm", &[Place::TwoContexts, Place::TwoProcesses]);
    uct_conformance::main(&Fixture { settings, ..shm })
}
