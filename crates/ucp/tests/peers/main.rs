//! Workers of real processes: what becomes of endpoints when processes are killed, stopped, or replaced.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::missing_panics_doc, unreachable_pub)] // tests

mod faults;
mod floods;
mod forks;
mod many;
mod rendezvous;
mod roles;

fn main() -> std::process::ExitCode {
    testkit::main! {
        roles: [ roles::peer, many::member, forks::parent, rendezvous::sender, rendezvous::many, floods::flooder ],
        tests: [
            faults::killed_in_each_phase => .secs(120), faults::replaced_by_exec_in_each_phase => .secs(120),
            faults::stopped_in_each_phase => .secs(120), faults::the_same_worker_connects_to_the_next_peer,
            faults::connecting_to_a_stopped_peer_is_bounded, faults::a_fork_s_child_keeps_nothing_alive,
            rendezvous::data_comes_whole_by_messages_and_by_reading => .secs(120),
            rendezvous::memory_that_cannot_be_used_fails_the_operation_on_both_sides,
            rendezvous::what_its_sender_has_given_up_is_not_taken,
            rendezvous::operands_come_back_only_when_the_peer_was_told,
            rendezvous::operands_that_move_are_read_where_they_stay,
            rendezvous::what_is_posted_while_the_worker_is_armed_wakes_it,
            rendezvous::data_that_is_left_to_be_read_keeps_the_worker_awake,
            rendezvous::errors_tell_how_much_had_come,
            rendezvous::one_call_reads_a_bounded_part_of_what_many_announce,
            many::a_thousand_connections_leave_nothing_behind => .secs(120).alone(), many::sixty_four_processes => .secs(120),
            floods::who_connects_in_a_loop_keeps_nobody_out, floods::connections_that_end_make_room,
            floods::without_descriptors_a_worker_goes_on, floods::each_number_of_spare_descriptors,
            many::several_workers_of_one_context, forks::a_child_is_refused_everything_and_harms_nothing => .secs(60),
        ],
    }
}
