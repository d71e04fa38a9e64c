//! What every transport of rucx must do: one suite, instantiated per transport.
//!
//! A transport is supported when it passes. Its test binary is a few lines: the component's name, and where its importers can be.
//!
//! ```no_run
//! use uct_conformance::{Fixture, Place};
//!
//! fn main() -> std::process::ExitCode {
//!     uct_conformance::main(&Fixture::of("shm", &[Place::TwoContexts, Place::TwoProcesses]))
//! }
//! ```
//!
//! Each check runs on a bench of its own: an exporter that does what it is told, and an importer with real attachments.
//!
//! ```mermaid
//! flowchart LR
//!     check --> exporter["exporter: regions, exports<br/>(here, or a role)"]
//!     check --> importer["importer: Md::attach<br/>(always here)"]
//!     exporter -- "ticket: what a handle says" --> check
//! ```
//!
//! | module | what must hold |
//! |---|---|
//! | `attr` | attributes are sane, agree with the flags, never change |
//! | `alloc` | sizes, zeroes, rights, and that memory is given back |
//! | `pack` | `pack` writes `packed_size` bytes, and touches nothing else |
//! | `attach` | good, foreign, truncated, changed, forged and stale keys; every order of drops |
//! | `access` | reads and writes against a model, bounds, rights, words, views |
//! | `atomics` | operations on words against a model, nothing lost between threads and sides; refused where not announced |
//! | `operands` | memory of this process of each kind, by `put` and `get`; registered where that is needed |
//! | `imported` | attached memory as an operand, by every pair of transports; which side failed is told |
//! | `revoke` | nothing gets in after it, and nothing else is hit by it |
//! | `many` | thousands of regions and exports, a full table |
//! | `iface` | messages whole, once, in order; addresses, ends, waits; two threads, another process |
//! | `concurrent` | many threads at once against a model |
//! | `capabilities` | the committed table says what the component says, and each line is proved |
//!
//! What a transport cannot do it says in its capabilities; the suite then checks that it refuses, and never skips. That the
//! suite notices broken transports is shown by wrapping real ones in faults: `tests/fakes.rs`.
//!
//! Beside the suite, [`nic`] is a NIC without hardware whose registrations hold the pages of then: what tests of registration caches
//! compare with.

#![deny(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::missing_panics_doc)] // tests

mod access;
mod alloc;
mod atomics;
mod attach;
mod attr;
mod bench;
mod blind;
mod capabilities;
mod concurrent;
mod exporter;
mod fixture;
mod iface;
mod imported;
mod many;
pub mod nic;
mod operands;
mod pack;
mod revoke;
mod sys;

use std::process::ExitCode;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use testkit::{RoleFn, Test};

pub use bench::Bench;
pub use blind::Blind;
pub use fixture::{Fixture, Place};

/// Where a check is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Once, whatever the places: it does not depend on where the importer is.
    Once,
    /// In each place.
    Everywhere,
    /// Where exporter and importer are different contexts.
    Apart,
    /// Where exporter and importer are different processes.
    OtherProcess,
}

/// One thing that must hold.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// `module::function`.
    pub name: &'static str,
    /// Panics when it does not hold.
    pub run: fn(&Bench),
    /// Where it is run.
    pub scope: Scope,
}

/// A list of checks, by their functions.
macro_rules! list {
    ($module:ident: $($check:ident in $scope:ident),* $(,)?) => {
        &[$($crate::Check {
            name: concat!(stringify!($module), "::", stringify!($check)),
            run: $check,
            scope: $crate::Scope::$scope,
        }),*]
    };
}
use list;

/// All checks.
pub fn checks() -> impl Iterator<Item = Check> {
    let all = [
        attr::CHECKS,
        alloc::CHECKS,
        pack::CHECKS,
        attach::CHECKS,
        access::CHECKS,
        atomics::CHECKS,
        operands::CHECKS,
        imported::CHECKS,
        revoke::CHECKS,
        many::CHECKS,
        iface::addresses::CHECKS,
        iface::messages::CHECKS,
        iface::held::CHECKS,
        iface::waiting::CHECKS,
        iface::ends::CHECKS,
        iface::threads::CHECKS,
        iface::processes::CHECKS,
        concurrent::CHECKS,
        capabilities::CHECKS,
    ];
    all.into_iter().flatten().copied()
}

/// Runs one check by its name, on a new bench.
pub fn run(name: &str, fixture: &Fixture, place: Place) {
    let check = checks().find(|check| check.name == name);
    let check = check.unwrap_or_else(|| panic!("there is no check {name:?}"));
    (check.run)(&Bench::new(fixture, place));
}

impl Scope {
    fn includes(self, place: Place, places: &[Place]) -> bool {
        match self {
            Self::Once => places.first() == Some(&place),
            Self::Everywhere => true,
            Self::Apart => place != Place::SameContext,
            Self::OtherProcess => place == Place::TwoProcesses,
        }
    }
}

/// The processes the checks start.
pub const ROLES: &[(&str, RoleFn)] =
    &[("exporter", exporter::role), ("allocator", alloc::allocator), ("echo", iface::processes::echo)];

/// The checks as tests, for each place of the fixture.
#[must_use]
pub fn tests(fixture: &Fixture) -> Vec<Test> {
    tests_but(fixture, &[])
}

/// As [`tests`], but for the checks whose names begin so: of a transport that is not one of the library's.
///
/// # Panics
/// There is no such check.
#[must_use]
pub fn tests_but(fixture: &Fixture, without: &[&str]) -> Vec<Test> {
    let mut tests = Vec::new();
    let is_one = |name: &&str| checks().any(|check| check.name.starts_with(name));
    assert!(without.iter().all(is_one), "a check that is none is left out: {without:?}");
    for check in checks().filter(|check| !without.iter().any(|name| check.name.starts_with(name))) {
        for &place in fixture.places.iter().filter(|place| check.scope.includes(**place, fixture.places)) {
            let fixture = *fixture;
            let name = match check.scope {
                Scope::Once => check.name.to_owned(),
                _ => format!("{place}::{}", check.name),
            };
            tests.push(Test::new(name, move || (check.run)(&Bench::new(&fixture, place))));
        }
    }
    tests
}

/// The main function of a transport's test binary.
#[must_use]
pub fn main(fixture: &Fixture) -> ExitCode {
    raise_descriptor_limit();
    testkit::main(ROLES, tests(fixture))
}

/// A thousand regions are a thousand descriptors, and a usual soft limit is 1,024.
fn raise_descriptor_limit() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}
