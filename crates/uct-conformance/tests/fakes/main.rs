//! The suite notices broken transports: real ones, wrapped in one fault each, fail the checks that are there for it.

#![deny(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::missing_panics_doc)] // tests

mod fake;
mod iface;
mod overrun;

use testkit::{Role, Signal, Test, expect_panic, role};
use uct_conformance::{Fixture, Place};

use fake::{FakeComponent, Fault};

/// A fault, and the checks each of which must notice it.
const CAUGHT: &[(&str, Fault, &[&str])] = &[
    ("packs_one_byte_less", Fault::PacksOneByteLess, &["pack::every_combination_of_flags"]),
    ("packs_into_any_buffer", Fault::PacksIntoAnyBuffer, &["pack::buffers_of_another_size_are_refused"]),
    ("announces_another_size", Fault::AnnouncesAnotherSize, &["pack::every_combination_of_flags"]),
    ("changes_memory_when_packing", Fault::ChangesMemoryWhenPacking, &["pack::memory_is_left_alone"]),
    ("gives_every_export_one_key", Fault::GivesEveryExportOneKey, &["pack::two_exports_differ"]),
    ("ignores_read_only", Fault::IgnoresReadOnly, &["access::read_only", "capabilities::read_only"]),
    (
        "answers_after_revoke",
        Fault::AnswersAfterRevoke,
        &[
            "revoke::nothing_gets_in_after_it",
            "revoke::accesses_in_flight",
            "revoke::a_newer_export_at_the_same_line",
            "attach::stale_when_revoked",
            "many::a_thousand_regions",
            "concurrent::everything_at_once",
        ],
    ),
    ("says_that_revoked_ones_live", Fault::SaysThatRevokedOnesLive, &["revoke::nothing_gets_in_after_it"]),
    (
        "claims_a_view_it_lacks",
        Fault::ClaimsAViewItLacks,
        &["access::view_is_there_where_announced", "capabilities::flags_are_what_the_table_says"],
    ),
    (
        "claims_what_it_cannot",
        Fault::ClaimsWhatItCannot,
        &["capabilities::invalidate", "capabilities::the_table_is_what_components_say"],
    ),
    (
        "loses_a_capability",
        Fault::LosesACapability,
        &["capabilities::the_table_is_what_components_say", "capabilities::export"],
    ),
    ("forgets_a_capability", Fault::ForgetsACapability, &["capabilities::the_table_is_what_components_say"]),
    ("takes_any_token", Fault::TakesAnyToken, &["attach::wrong_token"]),
    ("takes_any_length", Fault::TakesAnyLength, &["attach::forged_fields"]),
    ("takes_longer_keys", Fault::TakesLongerKeys, &["attach::every_truncation"]),
    ("panics_on_short_keys", Fault::PanicsOnShortKeys, &["attach::every_truncation"]),
    ("takes_every_global_id", Fault::TakesEveryGlobalId, &["attach::foreign_keys_are_not_for_it"]),
    ("reads_past_the_end", Fault::ReadsPastTheEnd, &["access::out_of_range"]),
    ("touches_a_refused_buffer", Fault::TouchesARefusedBuffer, &["access::out_of_range"]),
    (
        "is_off_by_one",
        Fault::IsOffByOne,
        &["access::whole_and_edges", "access::random_accesses_match_a_model", "attach::good"],
    ),
    (
        "puts_one_byte_less",
        Fault::PutsOneByteLess,
        &["operands::every_kind_matches_a_model", "operands::longer_than_one_step"],
    ),
    (
        "gets_into_a_part_only",
        Fault::GetsIntoAPartOnly,
        &["operands::every_kind_matches_a_model", "operands::longer_than_one_step"],
    ),
    (
        "moves_no_imported_operands",
        Fault::MovesNoImportedOperands,
        &["imported::every_pair_moves_what_is_asked"],
    ),
    ("hides_which_side_failed", Fault::HidesWhichSideFailed, &["imported::operand_is_revoked"]),
    (
        "needs_what_it_does_not_register",
        Fault::NeedsWhatItDoesNotRegister,
        &[
            "operands::registration_is_there_where_announced",
            "operands::unregistered_ones_are_refused_where_needed",
        ],
    ),
    ("tears_words", Fault::TearsWords, &["access::words_do_not_tear"]),
    ("adds_in_two_steps", Fault::AddsInTwoSteps, &["atomics::no_addition_is_lost"]),
    ("answers_the_word_after", Fault::AnswersTheWordAfter, &["atomics::every_operation_matches_a_model"]),
    ("has_no_atomics", Fault::HasNoAtomics, &["atomics::there_where_announced", "capabilities::atomics"]),
    (
        "does_atomics_past_the_gate",
        Fault::DoesAtomicsPastTheGate,
        &["atomics::read_only_is_denied", "atomics::stale_after_revoke"],
    ),
    ("changes_its_attributes", Fault::ChangesItsAttributes, &["attr::attributes_never_change"]),
    ("aligns_to_no_power_of_two", Fault::AlignsToNoPowerOfTwo, &["attr::fields_are_sane"]),
    (
        "drops_a_message",
        Fault::DropsAMessage,
        &["iface::every_length_arrives_whole", "iface::full_until_taken"],
    ),
    (
        "doubles_a_message",
        Fault::DoublesAMessage,
        &[
            "iface::every_length_arrives_whole",
            "iface::full_until_taken",
            "iface::random_traffic_matches_a_model",
            "iface::two_threads_send_all",
        ],
    ),
    (
        "swaps_messages",
        Fault::SwapsMessages,
        &["iface::arrival_comes_before_messages", "iface::full_until_taken"],
    ),
    (
        "tells_gone_twice",
        Fault::TellsGoneTwice,
        &["iface::gone_is_told_once_after_all_messages", "iface::who_disconnects_is_told_nothing"],
    ),
    (
        "arms_although_something_is_there",
        Fault::ArmsAlthoughSomethingIsThere,
        &["iface::arm_sees_what_is_there"],
    ),
    ("never_sleeps", Fault::NeverSleeps, &["iface::idle_ones_sleep", "iface::a_message_wakes"]),
    ("sends_what_is_too_long", Fault::SendsWhatIsTooLong, &["iface::too_long_sends_nothing"]),
    ("has_no_interface", Fault::HasNoInterface, &["capabilities::messages", "iface::a_message_wakes"]),
    ("registers_nothing_of_others", Fault::RegistersNothingOfOthers, &["pack::kinds_of_memory"]),
];

/// Transports that are wrapped, and the place that both sides of this process are in.
const REAL: [(&str, &[Place]); 3] =
    [("self", &[Place::SameContext]), ("shm", &[Place::TwoContexts]), ("cma", &[Place::TwoContexts])];

fn fixture(real: &str, places: &'static [Place], fault: Fault) -> Fixture {
    let real = Fixture::of(real, places);
    Fixture { component: FakeComponent::leak(real.component, fault), ..real }
}

/// What a fault has nothing to break in.
fn does_not_apply(real: &str, fault: Fault) -> bool {
    match fault {
        // shm has a view; self and cma invalidate; shm registers nothing of others; cma has no atomics, and promises no whole words.
        Fault::ClaimsAViewItLacks | Fault::RegistersNothingOfOthers => real == "shm",
        Fault::ClaimsWhatItCannot => real != "shm",
        Fault::AddsInTwoSteps
        | Fault::AnswersTheWordAfter
        | Fault::HasNoAtomics
        | Fault::DoesAtomicsPastTheGate
        | Fault::TearsWords
        // Nor an interface.
        | Fault::DropsAMessage
        | Fault::DoublesAMessage
        | Fault::SwapsMessages
        | Fault::TellsGoneTwice
        | Fault::ArmsAlthoughSomethingIsThere
        | Fault::NeverSleeps
        | Fault::SendsWhatIsTooLong
        | Fault::HasNoInterface => real == "cma",
        _ => false,
    }
}

fn tests() -> Vec<Test> {
    let mut tests = vec![Test::new("writes_beyond_the_buffer", writes_beyond_the_buffer)];
    for (real, places) in REAL {
        for &(name, fault, checks) in CAUGHT {
            if does_not_apply(real, fault) {
                continue;
            }
            for &check in checks {
                tests.push(Test::new(format!("{real}::{name}::{check}"), move || {
                    // Without the fault, the wrapper passes: so it is the fault that is noticed.
                    uct_conformance::run(check, &fixture(real, places, Fault::None), places[0]);
                    let found = expect_panic(|| {
                        uct_conformance::run(check, &fixture(real, places, fault), places[0]);
                    });
                    assert!(!found.is_empty());
                }));
            }
        }
    }
    tests
}

/// A key packed beyond its buffer runs into the guard page of the check's: the process ends there.
fn writes_beyond_the_buffer() {
    for (real, _) in REAL {
        Role::new("guarded").arg(real).arg("sound").start().expect_exit(0);
        Role::new("guarded").arg(real).arg("overrun").start().expect_signal(Signal::SEGV);
    }
}

fn guarded() {
    let [real, how] = role::args() else { panic!("two arguments") };
    let fault = if how == "overrun" { Fault::WritesBeyondTheBuffer } else { Fault::None };
    let (_, places) = REAL.into_iter().find(|(name, _)| name == real).unwrap();
    uct_conformance::run("pack::guarded_buffers", &fixture(real, places, fault), places[0]);
}

fn main() -> std::process::ExitCode {
    let roles = [uct_conformance::ROLES, &[("guarded", guarded)]].concat();
    testkit::main(&roles, tests())
}
