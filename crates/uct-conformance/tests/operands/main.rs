//! Operands of `ucp` over a page-bound NIC: whatever becomes of memory between two operations, each moves the bytes that are there.
//!
//! Each test has a process of its own: the monitor is a process's.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc)] // tests

mod forks;
mod lifetimes;
#[path = "../rcache/memory.rs"]
#[allow(dead_code, reason = "another binary's, which uses all of it")]
mod memory;
mod owned;
mod raw;
mod refused;
mod regions;
mod world;

/// A role and a test of each function: the test runs the role.
macro_rules! apart {
    ($($test:path),* $(,)?) => {
        (
            [$((stringify!($test), $test as testkit::RoleFn)),*],
            [$(testkit::Test::new(stringify!($test), || world::in_a_process(stringify!($test))).secs(120)),*],
        )
    };
}

fn main() -> std::process::ExitCode {
    let (roles, tests) = apart![
        owned::dropped_and_allocated_again_hits,
        owned::large_ones_unmapped_and_mapped_again,
        owned::nobody_tells_of_changes,
        owned::of_every_kind,
        owned::by_many_threads,
        owned::short_ones_are_copied_and_long_ones_registered,
        owned::nothing_is_looked_up_where_nothing_is_needed,
        raw::unmapped_and_mapped_between_operations,
        raw::guard_without_protection,
        raw::mapped_by_others_meanwhile,
        refused::not_mapped,
        refused::not_writable,
        refused::more_than_may_be_pinned,
        refused::idle_registrations_make_room,
        refused::out_of_range,
        regions::slices_of_raw_memory,
        regions::slices_of_allocated_memory,
        regions::allocated_memory_is_registered_once,
        regions::slices_of_owned_buffers,
        regions::slices_of_imports,
        regions::t37_exported_remapped_and_read_by_a_peer,
        regions::t37_raw_memory_is_exported_by_address,
        lifetimes::all_orders_of_dropping,
        lifetimes::several_contexts,
        lifetimes::several_memory_domains,
        forks::a_child_uses_the_library,
        forks::operands_of_the_parent,
    ];
    testkit::main(&roles, tests.into())
}
