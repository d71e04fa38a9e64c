//! The page-bound NIC does what tests of registration caches take for granted: it reaches the pages of then, never those of now.

#![deny(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::missing_panics_doc)] // tests

mod data;
mod flight;
mod forks;
mod kinds;
mod limits;
mod memory;
mod oracle;
mod slots;
mod threads;

#[global_allocator]
static ALLOC: testkit::CountingAlloc = testkit::CountingAlloc;

/// Runs a role that counts what its process has: pages that rings of other tests leave a moment late are not in it.
fn in_a_process(role: &str) {
    drop(uct_conformance::nic::Nic::open_or_skip(1, memory::FEW));
    testkit::Role::spawn(role).expect_exit(0);
}

fn main() -> std::process::ExitCode {
    testkit::main! {
        roles: [
            flight::pinned_pages,
            forks::copies,
            forks::refused,
            kinds::gigabyte,
            limits::denied,
            limits::small_memlock,
            slots::comes_and_goes,
        ],
        tests: [
            data::both_ways,
            data::any_address_any_length,
            data::outside_of_the_registration,
            data::words_without_allocation,
            oracle::every_way_to_lose_pages => .alone(),
            oracle::writes_reach_the_old_pages,
            oracle::pages_that_moved,
            oracle::a_torture_loop => .alone(),
            slots::ten_thousand_at_once,
            slots::a_full_table,
            slots::stale_ones_are_refused,
            slots::words_that_are_no_registration,
            slots::another_nic,
            slots::nothing_is_left,
            flight::across_a_remap_and_a_deregistration,
            flight::bytes_are_those_at_the_end,
            flight::writes_go_to_the_old_pages,
            flight::pages_stay_pinned_until_the_end,
            flight::given_up,
            flight::many_in_any_order,
            flight::finished_by_another_thread,
            flight::of_a_thread_that_has_ended,
            flight::long_and_empty_ones,
            forks::pages_stay_the_parents,
            forks::a_child_is_refused,
            kinds::unmapped => .alone(),
            kinds::without_access,
            kinds::read_only,
            kinds::read_only_afterwards,
            kinds::memfd,
            kinds::file_private,
            kinds::file_shared,
            kinds::secret,
            kinds::transparent_huge_page,
            kinds::huge_page,
            kinds::reserved_gigabyte,
            limits::ranges,
            limits::of_the_nic,
            limits::memlock_of_a_user,
            limits::system_calls_denied,
            threads::each_its_own,
            threads::one_for_all,
            threads::registrations_that_end_meanwhile,
        ],
    }
}
