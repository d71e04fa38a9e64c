//! The two hosts of a test: where they are, and which of them this process is to be.

use std::net::Ipv4Addr;
use std::path::PathBuf;

/// What says where the hosts are: `netns`, or in each of two guests its own host's name.
pub const VARIABLE: &str = "RUCX_TWO_HOSTS";

/// One of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// The first: by custom it begins.
    A,
    /// The second: by custom it waits for the first.
    B,
}

/// Where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hosts {
    /// Network namespaces of this guest, for a role each: [`Host::namespace`].
    Namespaces,
    /// Two guests; the test runs in both, and in this one as this host.
    Guests(Host),
}

/// Where the hosts are; `None` where there is only one.
///
/// # Panics
/// The variable has a value that means nothing.
#[must_use]
pub fn hosts() -> Option<Hosts> {
    match std::env::var(VARIABLE).as_deref() {
        Err(_) | Ok("") => None,
        Ok("netns") => Some(Hosts::Namespaces),
        Ok(name) => Some(Hosts::Guests(Host::of(name))),
    }
}

impl Host {
    /// The host of this name.
    ///
    /// # Panics
    /// There is none.
    #[must_use]
    pub fn of(name: &str) -> Self {
        match name {
            "a" => Self::A,
            "b" => Self::B,
            other => panic!("{other:?} is no host: a or b"),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
        }
    }

    /// The other one.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    /// The address of its network interface.
    #[must_use]
    pub fn address(self) -> Ipv4Addr {
        match self {
            Self::A => Ipv4Addr::new(10, 0, 0, 1),
            Self::B => Ipv4Addr::new(10, 0, 0, 2),
        }
    }

    /// The file of its network namespace, for `testkit::Role::in_netns`.
    #[must_use]
    pub fn namespace(self) -> PathBuf {
        PathBuf::from("/run/netns").join(self.name())
    }

    /// Its device.
    #[must_use]
    pub fn device(self, hosts: Hosts) -> String {
        match hosts {
            Hosts::Namespaces => format!("rxe-{}", self.name()),
            Hosts::Guests(_) => crate::DEVICE.to_owned(),
        }
    }
}
