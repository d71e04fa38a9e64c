//! The service of other machines between real processes, over the loopback interface: how many may come, what a fork's child has, and
//! peers that are stopped, killed, or out of descriptors.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc, unreachable_pub)] // tests

mod caps;
mod faults;
mod fork;
mod peer;

fn main() -> std::process::ExitCode {
    testkit::main! {
        roles: [peer::server, fork::forking, faults::server_without_descriptors, faults::client_without_descriptors],
        tests: [
            caps::who_has_proven_a_token_keeps_its_place, caps::one_address_has_its_share,
            caps::who_proves_a_token_when_there_are_enough_is_turned_away,
            faults::a_stopped_server_is_waited_for_no_longer_than_asked, faults::a_killed_server_is_told,
            faults::a_killed_client_is_told, faults::without_descriptors_peers_wait, faults::without_descriptors_calls_say_so,
            fork::a_child_has_nothing_and_ends_nothing, fork::an_end_is_told_although_a_child_lives,
            fork::a_child_that_outlives_its_parent_answers_nothing,
        ],
    }
}
