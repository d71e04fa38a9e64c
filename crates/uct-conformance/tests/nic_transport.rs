//! The suite for the NIC of tests as a transport: it needs operands registered, and its registrations are of pages. It is none of the
//! library's, so what compares with those is left out.

use std::process::ExitCode;
use std::sync::Arc;

use testkit::Test;
use uct_conformance::nic::{Nic, NicComponent};
use uct_conformance::{Fixture, Place};

/// What the whole suite has registered at once, in bytes.
const PINNED: usize = Nic::DEFAULT_LIMIT;

/// Names of components of the library, its table of capabilities, exporters in other processes.
const WITHOUT: &[&str] = &[
    "attr::names_and_numbers_are_unique",
    "attr::other_scopes_are_told_apart",
    "alloc::given_back_at_the_last_drop",
    "capabilities::",
];

fn main() -> ExitCode {
    let tests = match Nic::with_room(Nic::MAX_SLOTS, PINNED) {
        Ok(nic) => {
            let component = NicComponent::leak(&[Arc::new(nic)]);
            let places = &[Place::SameContext, Place::TwoContexts];
            uct_conformance::tests_but(&Fixture { name: "nic", component, places, settings: &[] }, WITHOUT)
        }
        // Says so, as a skipped test.
        Err(_) => vec![Test::new("all", || drop(Nic::open_or_skip(Nic::MAX_SLOTS, PINNED)))],
    };
    testkit::main(uct_conformance::ROLES, tests)
}
