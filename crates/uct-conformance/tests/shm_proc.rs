//! The suite for `shm` with descriptors taken from `/proc/PID/fd`.

use uct_conformance::{Fixture, Place};

fn main() -> std::process::ExitCode {
    let settings = &[("UCX_SHM_ATTACH", "proc")];
    let shm = Fixture::of("shm", &[Place::TwoContexts, Place::TwoProcesses]);
    uct_conformance::main(&Fixture { settings, ..shm })
}
