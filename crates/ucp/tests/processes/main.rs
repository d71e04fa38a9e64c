//! Exports between real processes: what must work, every error, and every fault.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc, unreachable_pub)] // tests

mod cma;
mod errors;
mod faults;
mod fork;
mod hostile;
mod imported;
mod limits;
mod many;
mod own_memory;
mod region;
mod revoke;
mod roles;
#[path = "../transports/mod.rs"]
mod transports;
mod ways;

fn main() -> std::process::ExitCode {
    testkit::main! {
        roles: [
            roles::host, roles::dpu, fork::forking_host, fork::host_with_a_child, faults::execing_importer, fork::forking_dpu, limits::host_at_limits, limits::dpu_at_limits, limits::host_without_descriptors, limits::host_at_map_count,
            cma::host, cma::access::filtered_dpu, cma::access::filtered_host, cma::access::dpu_that_may_not_write, cma::access::host_that_must_not_be_traced,
            cma::identity::host_that_execs_beside_a_child, cma::identity::host_without_a_main_thread, cma::faults::hammer, cma::faults::dpu_without_capabilities, cma::pids::world, cma::yama::ancestor,
            many::leaves_nothing_behind, hostile::hoarder, hostile::victim, region::answering, revoke::writer, ways::grabber, imported::mover,
        ],
        tests: [
            cma::access::another_user, cma::access::filter_against_importers, cma::access::filter_against_writing, cma::access::filter_against_exporters,
            cma::access::tracers_are_let_in_on_request_only, cma::access::the_token_is_asked_for_nevertheless,
            cma::faults::exporter_is_killed_in_mid_transfer, cma::faults::exporter_exits_in_mid_transfer,
            cma::faults::exporter_execs_in_mid_transfer, cma::faults::exporter_execs_after_import,
            cma::faults::exporter_unmaps_in_mid_transfer, cma::faults::exporter_becomes_another,
            cma::faults::stopped_exporter_is_still_read, cma::faults::stopped_exporter_times_out,
            cma::identity::exec_that_nobody_tells_of, cma::identity::main_thread_that_has_ended,
            cma::memory::of_every_kind, cma::memory::allocated_memory_by_cost, cma::memory::read_only, cma::memory::holes,
            cma::memory::beyond_the_end_of_a_file, cma::memory::a_sparse_tebibyte, cma::memory::huge_pages,
            cma::memory::newer_region_at_the_same_address,
            cma::namespaces::other_pid_namespace, cma::namespaces::other_user_namespace,
            cma::namespaces::other_mount_namespace, cma::namespaces::as_two_containers,
            cma::namespaces::other_network_namespace, cma::namespaces::service_directory,
            cma::namespaces::service_directory_that_is_none,
            cma::pids::used_again_by_another_exporter,
            cma::yama::a_sibling_is_denied_and_told_the_remedy, cma::yama::an_exporter_lets_everyone_in, cma::yama::the_capability_lets_in,
            cma::yama::allocated_memory_needs_no_such_right, cma::yama::an_ancestor_needs_nothing,
            errors::bytes_of_the_wire_arrive_both_ways, errors::truncated_at_every_byte, errors::trailing_bytes,
            errors::not_a_handle, errors::wrong_token, errors::wrong_token_in_one_of_two_keys, errors::missing_token, errors::forged_fields, errors::other_boot,
            errors::revoked, errors::revoked_twice, errors::region_dropped, errors::context_dropped,
            errors::one_of_two_exports_revoked,
            errors::no_exporting_transport,
            errors::feature_missing, errors::zero_length, errors::out_of_range, errors::read_only_is_refused,
            errors::configuration, errors::debug_shows_no_secret,
            faults::exporter_killed_before_import, faults::exporter_killed_during_import,
            faults::exporter_killed_after_import, faults::exporter_exits_after_import, faults::a_dead_exporter_costs_no_time,
            faults::exporter_execs_after_import, faults::stopped_exporter_is_still_read,
            faults::stopped_exporter_is_still_imported_from, faults::stopped_exporter_times_out, faults::stopped_exporter_is_imported_from_again,
            faults::importer_killed, faults::importer_execs_inside_an_access, faults::newer_region_is_never_reached,
            fork::child_of_exporter, fork::child_of_a_context_that_is_gone, fork::child_of_importer, fork::exporter_dies_and_its_child_lives,
            hostile::unsealed_memfd, hostile::an_in_flight_page_full_of_lies, hostile::resized_memfd, hostile::no_memfd, hostile::answers::a_table_that_is_none,
            hostile::answers::missing_descriptors, hostile::answers::a_descriptor_nobody_asked_for, hostile::an_exporter_in_this_process_that_is_none_of_its_contexts, hostile::answers::garbage, hostile::answers::silence, hostile::answers::closes_at_once,
            hostile::answers::another_process_has_taken_the_name, hostile::peers_of_the_service_socket, hostile::peers_of_the_socket_in_a_directory,
            hostile::a_thousand_connections, hostile::one_process_cannot_keep_others_out, hostile::a_borrowed_uuid_gets_no_tokens,
            hostile::lies_in_flight_hold_only_what_was_granted, hostile::abandoned_pages_hold_nothing,
            hostile::garbage_after_the_token_is_not_heard, hostile::variants_of_a_handle_are_counted,
            hostile::a_silent_namesake_delays_nobody, hostile::a_borrowed_uuid_by_cma, hostile::memory_without_a_descriptor, hostile::descriptors_do_not_pile_up,
            imported::from_host_to_peer_and_back, imported::host_is_killed_in_mid_transfer, imported::peer_is_killed_in_mid_transfer,
            imported::host_revokes_in_mid_transfer,
            hostile::introductions_that_are_refused, hostile::introductions_and_requests_on_one_connection,
            hostile::thousands_come_to_a_worker_that_rests, hostile::acceptors_that_answer_garbage, hostile::acceptors_that_refuse,
            hostile::acceptors_that_never_answer, hostile::acceptors_that_close, hostile::another_process_has_taken_the_worker_s_name,
            hostile::peers_that_scribble_over_their_rings => .secs(120), hostile::peers_that_send_whatever_they_like => .secs(120),
            hostile::nothing_is_told_after_garbage, hostile::a_position_that_cannot_be_is_told, hostile::a_ring_that_goes_round_and_round,
            hostile::announcements_without_end => .secs(120), hostile::a_worker_dropped_while_a_fork_s_child_lives,
            limits::exporter_runs_into_each_limit, limits::importer_runs_into_each_limit, limits::too_many_imports, limits::regions_until_the_map_count => .secs(120),
            limits::exporter_without_descriptors_does_not_spin,
            many::ten_thousand_exports => .secs(120), many::regions_until_the_limit => .secs(120),
            many::beyond_four_gib, many::threads_import_one_handle, many::same_handle_twice,
            many::threads_read_and_write, many::nothing_is_left_behind, many::connections_do_not_add_up,
            own_memory::owned_buffer_reaches_other_processes, own_memory::raw_memory_reaches_other_processes, own_memory::read_only_buffer,
            own_memory::own_memory_without_cma, own_memory::raw_memory_unmapped, own_memory::raw_memory_unmapped_behind_the_first_pieces,
            own_memory::raw_memory_beyond_the_end_of_a_file,
            region::accessors, region::streams, region::private_and_shared, region::refused_region_stays_exported,
            region::owned_buffers_are_dropped_once, region::message_passing, region::user_code_never_runs_on_the_service_thread, region::a_buffer_may_hold_its_context, region::raw_ranges_are_checked,
            revoke::no_write_lands_after_revoke => .secs(120), revoke::guard_without_drain_writes_land_late => .secs(120),
            revoke::stopped_importer_is_not_revoked, revoke::killed_importer_is_revoked,
            revoke::view_outlives_revoke, revoke::dropped_region_is_kept_until_drained,
            revoke::within_one_context,
            ways::by_proc, ways::by_pidfd, ways::by_socket_as_another_user, ways::denied_to_another_user,
            ways::other_network_namespace, ways::other_network_namespace_without_ptrace, ways::other_pid_namespace,
            ways::read_only_is_kept_by_the_kernel, ways::no_way_allowed, ways::vault_slots_run_out,
            ways::a_handle_that_names_other_descriptors,
        ],
    }
}
