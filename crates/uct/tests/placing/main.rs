//! Exported memory that importers ask to have registered in their domains: importers that keep no rules, die, or come at the wrong time.
//! The device is a fake one, which records what it is asked.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc, unreachable_pub)] // tests

mod claims;
mod fake;
mod importers;
mod messages;
mod peer;
mod times;

fn main() -> std::process::ExitCode {
    testkit::main! {
        roles: [peer::importer, messages::exporter_without_descriptors],
        tests: [
            importers::another_user_s_process_has_nothing_asked_for_it, importers::a_process_of_the_same_user_is_placed,
            importers::a_killed_importer_s_placements_end => .alone(), importers::a_stopped_importer_keeps_its_placements,
            importers::placements_end_with_their_connection,
            claims::so_many_of_one_export_and_no_more, claims::what_has_ended_makes_room,
            claims::wrong_claims_get_nothing, claims::a_revoked_export_gets_nothing,
            messages::a_placing_before_anything_else_ends_its_connection,
            messages::a_placing_without_a_page_is_as_a_message_that_is_none,
            messages::what_is_no_message_is_listened_to_no_more => .alone(),
            messages::one_descriptor_is_taken_and_no_other_kept => .alone(),
            messages::sequence_numbers_are_the_importer_s, messages::without_descriptors_it_says_so,
            times::a_revocation_waits_for_what_is_being_made, times::others_are_revoked_meanwhile,
            times::what_cannot_be_placed_leaves_nothing => .alone(), times::who_places_nothing_is_told_apart,
            times::a_refusal_does_not_keep_what_was_placed_before,
        ],
    }
}
