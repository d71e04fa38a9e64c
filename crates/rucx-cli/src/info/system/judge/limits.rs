//! Limits and memory: how much can be exported and imported.

use ucs::rcache::Mode;
use ucs::rcache::config::MAX_REGIONS;
use uct::export::wire::TABLE_LEN;

use super::super::facts::{Cgroup, Facts, Limits};
use super::rights::may_pin;
use super::{Group, Row, State};
use crate::units;

/// What most systems begin with; fewer is told.
const USUAL_FILES: u64 = 1024;
const USUAL_MAPS: u64 = 65_530;

/// Rows of both groups.
pub(super) fn rows(facts: &Facts) -> Vec<Row> {
    vec![
        nofile(facts),
        memlock(facts),
        address_space(facts),
        file_size(facts),
        max_map_count(facts),
        overcommit(facts),
        cgroup(facts),
        hugetlb(facts),
        shmem_huge(facts),
    ]
}

fn both(limits: Limits, print: fn(u64) -> String) -> String {
    let one = |limit: Option<u64>| limit.map_or("no limit".to_owned(), print);
    if limits.soft == limits.hard {
        one(limits.soft)
    } else {
        format!("{} (hard: {})", one(limits.soft), one(limits.hard))
    }
}

fn nofile(facts: &Facts) -> Row {
    let value = both(facts.nofile, |count| count.to_string());
    let row = Row::good(Group::Limits, "rlimit_nofile", "RLIMIT_NOFILE", value);
    match facts.nofile.soft {
        Some(soft) if soft < USUAL_FILES => row.lacks(
            State::Limited,
            format!(
                "a process exports fewer than {soft} allocations at once: shm holds a descriptor for each, and some \
                 for each peer"
            ),
            "raise it: `ulimit -n 65536` (systemd: LimitNOFILE=; docker: --ulimit nofile=65536)",
        ),
        _ => row,
    }
}

fn memlock(facts: &Facts) -> Row {
    let row = Row::good(Group::Limits, "rlimit_memlock", "RLIMIT_MEMLOCK", both(facts.memlock, units::bytes));
    match facts.memlock.soft {
        Some(soft) if !may_pin(facts) => row.lacks(
            State::Note,
            format!(
                "nothing in this version, which pins no memory; RDMA, which is to come, could pin {} only",
                units::bytes(soft)
            ),
            "raise it: `ulimit -l unlimited` (systemd: LimitMEMLOCK=infinity), or run with CAP_IPC_LOCK",
        ),
        _ => row,
    }
}

fn address_space(facts: &Facts) -> Row {
    let row = Row::good(Group::Limits, "rlimit_as", "RLIMIT_AS", both(facts.address_space, units::bytes));
    match facts.address_space.soft {
        Some(soft) => row.lacks(
            State::Limited,
            format!(
                "regions and imports together stay below {}, with all else the process maps",
                units::bytes(soft)
            ),
            "raise it: `ulimit -v unlimited` (systemd: LimitAS=infinity)",
        ),
        None => row,
    }
}

fn file_size(facts: &Facts) -> Row {
    let row = Row::good(Group::Limits, "rlimit_fsize", "RLIMIT_FSIZE", both(facts.file_size, units::bytes));
    let remedy = "raise it: `ulimit -f unlimited` (systemd: LimitFSIZE=infinity)";
    match facts.file_size.soft {
        Some(soft) if soft < TABLE_LEN as u64 => row.lacks(
            State::Missing,
            format!(
                "nothing can be exported, of whatever memory: the export table is a file of {}",
                units::bytes(TABLE_LEN as u64)
            ),
            remedy,
        ),
        Some(soft) => row.lacks(
            State::Limited,
            format!(
                "shm allocates no region of more than {}: memory it allocates is a file",
                units::bytes(soft)
            ),
            remedy,
        ),
        None => row,
    }
}

fn max_map_count(facts: &Facts) -> Row {
    let value = facts.max_map_count.map_or("unknown".to_owned(), |count| count.to_string());
    let row = Row::good(Group::Limits, "max_map_count", "vm.max_map_count", value);
    match facts.max_map_count {
        Some(count) if count < USUAL_MAPS => row.lacks(
            State::Limited,
            format!("a process has fewer than {count} regions and imports at once: each is a mapping"),
            "sysctl vm.max_map_count=65530, or use fewer, larger regions",
        ),
        Some(count) if registrations(facts) > count => row.lacks(
            State::Note,
            format!(
                "the registrations that {0} allows can use up all mappings, two each; then the program's own mmap and \
                 munmap fail",
                MAX_REGIONS.name()
            ),
            format!("sysctl vm.max_map_count={}, or a lower {}", 2 * registrations(facts), MAX_REGIONS.name()),
        ),
        _ => row,
    }
}

/// How many mappings the registration cache can cost.
fn registrations(facts: &Facts) -> u64 {
    let settings = facts.settings.and_then(Result::ok).filter(|settings| settings.options.mode != Mode::Off);
    settings.map_or(0, |settings| 2 * u64::from(settings.options.max_regions))
}

fn overcommit(facts: &Facts) -> Row {
    let row = |value: String| Row::good(Group::Memory, "overcommit_memory", "vm.overcommit_memory", value);
    match facts.overcommit {
        Some(0) => row("0: by a guess".to_owned()),
        Some(1) => row("1: always".to_owned()),
        Some(2) => row("2: never".to_owned()).lacks(
            State::Note,
            "all memory of a region is taken when it is mapped: mapping takes longer, and fails once the commit \
             limit is reached",
            "sysctl vm.overcommit_memory=0, or raise vm.overcommit_ratio",
        ),
        Some(other) => row(other.to_string()),
        None => row("unknown".to_owned()),
    }
}

fn cgroup(facts: &Facts) -> Row {
    let row = |value: String| Row::good(Group::Memory, "memory_cgroup", "memory cgroup", value);
    match &facts.cgroup {
        Cgroup::Limited(bytes, file) if facts.memory.is_none_or(|memory| *bytes < memory) => row(format!(
            "{} ({})",
            units::bytes(*bytes),
            file.display()
        ))
        .lacks(
            State::Limited,
            format!(
                "memory that is touched counts, exported memory for whoever touches it first: beyond {} the \
                     process is killed",
                units::bytes(*bytes)
            ),
            "raise the limit (docker: --memory; systemd: MemoryMax=), or map less",
        ),
        Cgroup::Limited(..) | Cgroup::Unlimited => row("no limit below the machine's memory".to_owned()),
        Cgroup::Unreadable => row("cannot be read".to_owned()),
    }
}

fn hugetlb(facts: &Facts) -> Row {
    let row = |value: String| Row::good(Group::Memory, "hugetlb", "huge pages", value);
    match facts.hugetlb {
        // rucx takes none from the pool: an empty one costs nothing.
        Some(pool) => row(format!("{} of {} free, {} each", pool.free, pool.total, units::bytes(pool.size))),
        None => row("not there".to_owned()),
    }
}

/// Memfds follow the choice for shared memory; of those there are, rucx advises nothing.
fn shmem_huge(facts: &Facts) -> Row {
    let row = |value: &str| Row::good(Group::Memory, "shmem_huge_pages", "shmem_enabled", value);
    match facts.shmem_huge.as_deref() {
        Some(choice @ ("always" | "within_size" | "force")) => row(choice),
        other => row(other.unwrap_or("not there")).lacks(
            State::Note,
            "memory that shm allocates has small pages: the first touch of a large region takes longer",
            "echo within_size > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
        ),
    }
}
