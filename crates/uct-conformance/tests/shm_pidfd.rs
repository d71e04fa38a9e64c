//! The suite for `shm` with descriptors taken by `pidfd_getfd(2)`.

use uct_conformance::{Fixture, Place};

fn main() -> std::process::ExitCode {
    // Who has taken descriptors without a connection does not learn of the end of a context whose exports were not revoked.
    let known_to_fail = &["attach::stale_when_the_context_is_gone"];
    let settings = &[("UCX_SHM_ATTACH", "pidfd")];
    let shm = Fixture::of("shm", &[Place::TwoContexts, Place::TwoProcesses]);
    uct_conformance::main(&Fixture { settings, known_to_fail, ..shm })
}
