//! The registration cache over a page-bound NIC: no operation uses pages that are no longer mapped at its address.
//!
//! Tests have the numbers of the design's list. Each has a process of its own: monitor, break and limits are a process's.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc)] // tests

mod backings;
mod brk;
mod callbacks;
mod churn;
mod forks;
mod heap;
mod lifetimes;
mod limits;
mod madvise;
mod memory;
mod merge;
mod no_alloc;
mod remap;
mod stacks;
mod watchers;
mod world;

/// A role and a test of each function: the test runs the role.
macro_rules! apart {
    ($($test:path),* $(,)?) => {
        (
            [$((stringify!($test), $test as testkit::RoleFn)),*],
            [$(testkit::Test::new(stringify!($test), || world::in_a_process(stringify!($test))).secs(150)),*],
        )
    };
}

fn main() -> std::process::ExitCode {
    let (roles, tests) = apart![
        heap::t01_a_large_buffer_freed_and_allocated,
        heap::t30_under_memory_pressure,
        heap::a_vec_dropped_and_allocated_again_hits,
        churn::t02_unmapped_and_mapped_back_to_back,
        churn::t03_three_threads_and_a_slow_handler,
        churn::t03_guard_without_protection,
        churn::t04_three_threads_by_raw_system_calls,
        churn::t08_pages_dropped_and_written_again,
        churn::t11_mapped_over,
        churn::t15_half_dropped_while_the_whole_is_taken,
        churn::t15_guard_without_protection,
        remap::t05_moved,
        remap::t06_grown_and_shrunk,
        remap::t07_moved_onto_a_registration,
        remap::bystanders_stay,
        madvise::t09_freed_lazily,
        madvise::t10_dropped_in_other_ways,
        madvise::t14_guard_pages,
        brk::t12_the_break_goes_down_and_up,
        brk::t12_the_heap_is_trimmed,
        backings::t13_system_v_segments,
        backings::t13_a_segment_in_the_place_of_memory,
        backings::t22_transparent_huge_pages,
        backings::t22_huge_pages_of_hugetlbfs,
        backings::t23_a_memfd_shrunk_and_grown,
        backings::t23_a_memfd_that_keeps_its_length,
        backings::t23_a_private_mapping_of_a_memfd,
        backings::t24_a_file_shrunk,
        backings::t25_data_of_a_file_unmapped_and_mapped,
        forks::t16_the_parent_writes_after_a_fork,
        forks::t16_a_child_uses_the_library,
        forks::t17_programs_are_started_meanwhile,
        merge::t18_a_part_of_merged_memory_is_unmapped,
        merge::t19_merged_with_a_page_that_cannot_be_written,
        merge::t20_no_more_writable,
        stacks::t21_buffers_on_stacks,
        limits::t26_evicted_while_operations_are_in_flight,
        limits::t32_registration_fails_midway,
        limits::t35_ends_of_the_address_space,
        limits::t36_scattered_regions,
        callbacks::t27_invalidated_while_given_back,
        callbacks::t28_a_transport_that_calls_the_cache,
        no_alloc::t29_the_handler_allocates_nothing,
        no_alloc::t29_a_hit_allocates_nothing,
        watchers::t31_another_userfaultfd,
        watchers::t33_the_handler_stands_still,
        watchers::t34_no_userfaultfd,
        watchers::what_this_kernel_has_not_is_said_and_done_without,
        lifetimes::forty_thousand_mappings,
        lifetimes::an_idle_cache_lets_go,
        lifetimes::several_caches,
        lifetimes::all_orders_of_dropping,
    ];
    testkit::main(&roles, tests.into())
}
