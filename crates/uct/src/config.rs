//! The variables all transports read; those of one transport are in its folder, and in [`Component::vars`].
//!
//! [`Component::vars`]: crate::api::Component::vars

use std::borrow::Cow;
use std::time::Duration;

use ucs::config::{AnyVar, NetDevices, Value, ValueError, Var, one_of};

/// Bound of every wait of an import, and of a mediated access for a free in-flight slot.
pub const IMPORT_TIMEOUT: Var<Duration> =
    Var::new("UCX_IMPORT_TIMEOUT", "5s", "How long an import may wait for the exporter's answer");

/// Bound of the wait of a revocation.
pub const REVOKE_TIMEOUT: Var<Duration> =
    Var::new("UCX_REVOKE_TIMEOUT", "2s", "How long a revocation may wait for accesses in flight");

/// Where service sockets have a path, for importers that live in another network namespace.
pub const SERVICE_DIR: Var<String> = Var::new(
    "UCX_SERVICE_DIR",
    "",
    "Directory for service sockets, seen by exporter and importer, where their network namespaces differ",
);

/// Bound of the connections that peers make to a worker by one of its transports, each of which takes two descriptors. UCX has no such variable, nor has a
/// peer there that may connect until there are no descriptors.
pub const MAX_CONNECTIONS: Var<usize> = Var::new(
    "UCX_MAX_CONNECTIONS",
    "1024",
    "How many connections that peers have made to a worker may be alive at once, by each transport, half of them of one process; a \
     quarter of RLIMIT_NOFILE at most",
);

/// Network devices of all transports that have such: RDMA devices, today.
pub const NET_DEVICES: Var<NetDevices> = Var::new(
    "UCX_NET_DEVICES",
    "all",
    "Network devices to use, and their ports: RDMA devices, as `rdma link` names them. Transports without such are not restricted",
);

/// Who does atomics on the memory of others.
pub const ATOMIC_MODE: Var<AtomicMode> = Var::new(
    "UCX_ATOMIC_MODE",
    "guess",
    "Who does atomics on the memory of others: cpu (guess, too): processors, atomic towards the owner's; device: RDMA devices alone, on words of 64 bits, \
     atomic towards each other and not towards processors",
);

/// Who does atomics on the memory of others: one or the other, because they are not atomic towards each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicMode {
    /// As is best: today [`AtomicMode::Cpu`].
    Guess,
    /// Processors, on memory that is mapped; atomic towards the owner's words.
    Cpu,
    /// Devices, on memory that is reached by them; atomic towards those of the same device.
    Device,
}

impl Value for AtomicMode {
    fn accepts() -> Cow<'static, str> {
        "guess, cpu or device".into()
    }

    fn parse(text: &str) -> Result<Self, ValueError> {
        one_of(text, [Self::Guess, Self::Cpu, Self::Device], "no such mode")
    }

    fn print(&self) -> String {
        match self {
            Self::Guess => "guess",
            Self::Cpu => "cpu",
            Self::Device => "device",
        }
        .to_owned()
    }
}

/// All of them.
pub const VARS: &[&dyn AnyVar] =
    &[&IMPORT_TIMEOUT, &REVOKE_TIMEOUT, &SERVICE_DIR, &MAX_CONNECTIONS, &ATOMIC_MODE, &NET_DEVICES];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_of_atomics() {
        for (text, mode) in
            [("guess", AtomicMode::Guess), (" CPU ", AtomicMode::Cpu), ("device", AtomicMode::Device)]
        {
            assert_eq!(AtomicMode::parse(text), Ok(mode), "{text}");
            assert_eq!(AtomicMode::parse(&mode.print()), Ok(mode));
        }
        for text in ["", "both", "y"] {
            assert!(AtomicMode::parse(text).is_err(), "{text}");
        }
    }
}
