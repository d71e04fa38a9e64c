use rustix::io::Errno;
use ucs::config::{Config, Env};
use ucs::monitor::{Active, HookError, Why};
use ucs::rcache::config::{Settings, SettingsError, VARS};

use super::super::facts::{Cgroup, Facts, Hugetlb, Limits, Namespace, Seccomp};
use super::super::places::{Fault, ProcView, ServiceDir};
use super::super::probe::{Probe, Probes, Watcher};
use super::*;

const NONE: Limits = Limits { soft: None, hard: None };

/// What these variables say of the registration cache.
fn settings(pairs: &[(&str, &str)]) -> Option<Result<Settings, SettingsError>> {
    let config = Config::builder(VARS).env(Env::from_pairs(pairs.iter().copied())).build().unwrap();
    Some(Settings::from_config(&config))
}

/// A system that lacks nothing.
fn perfect() -> Facts {
    let initial = |inode| Namespace { inode: Some(inode), initial: Some(true) };
    let works = Probe::Works;
    Facts {
        release: "6.18.0".to_owned(),
        machine: "x86_64".to_owned(),
        boot_id: true,
        proc_view: ProcView::Own,
        service_dir: None,
        probes: Probes {
            memfd: works,
            seal: works,
            pidfd_open: works,
            pidfd_getfd: works,
            readv: works,
            writev: works,
            uffd: works,
            uffd_user: works,
            watcher: Watcher::Started { active: Active::Uffd { wp_async: true }, queries: true },
        },
        settings: settings(&[]),
        hooks: Err(HookError::NotBuilt),
        pidfs: Some(true),
        yama: Some(0),
        uffd_sysctl: Some(1),
        seccomp: Some(Seccomp { mode: 0, filters: Some(0) }),
        capabilities: Some(u64::MAX),
        user_ns: initial(0xEFFF_FFFD),
        pid_ns: initial(0xEFFF_FFFC),
        net_ns: initial(0xEFFF_FFF9),
        mnt_ns: initial(0xEFFF_FFF8),
        ipc_ns: initial(0xEFFF_FFFF),
        nofile: Limits { soft: Some(1024), hard: Some(1 << 20) },
        memlock: Limits { soft: Some(8 << 20), hard: Some(8 << 20) },
        address_space: NONE,
        file_size: NONE,
        max_map_count: Some(65_530),
        overcommit: Some(0),
        memory: Some(64 << 30),
        cgroup: Cgroup::Unlimited,
        hugetlb: Some(Hugetlb { total: 0, free: 0, size: 2 << 20 }),
        shmem_huge: Some("within_size".to_owned()),
    }
}

/// The rows that tell of a lack, after a change to the perfect system.
fn lacking(change: impl FnOnce(&mut Facts)) -> Vec<Row> {
    let mut facts = perfect();
    change(&mut facts);
    let rows = rows(&facts);
    for row in &rows {
        let lacks = row.state != State::Good;
        assert_eq!((row.cost.is_some(), row.remedy.is_some()), (lacks, lacks), "{row:?}");
    }
    rows.into_iter().filter(|row| row.state != State::Good).collect()
}

/// The same, of which there is one: its key, state, value, cost and remedy.
fn the_lack(change: impl FnOnce(&mut Facts)) -> (&'static str, State, String, String, String) {
    let mut rows = lacking(change);
    assert_eq!(rows.len(), 1, "{rows:#?}");
    let row = rows.remove(0);
    (row.key, row.state, row.value, row.cost.unwrap(), row.remedy.unwrap())
}

#[test]
fn a_system_that_lacks_nothing() {
    assert_eq!(lacking(|_| {}), []);
}

#[test]
fn keys_are_unique_and_stay_as_they_are() {
    let keys: Vec<_> = rows(&perfect()).into_iter().map(|row| row.key).collect();
    assert_eq!(
        keys,
        [
            "kernel_release",
            "machine",
            "proc",
            "seccomp",
            "memfd_create",
            "seal_future_write",
            "pidfd_open",
            "pidfd_getfd",
            "pidfs",
            "process_vm_readv",
            "process_vm_writev",
            "userfaultfd",
            "unprivileged_userfaultfd",
            "yama_ptrace_scope",
            "cap_sys_ptrace",
            "cap_ipc_lock",
            "ns_user",
            "ns_pid",
            "ns_net",
            "service_dir",
            "ns_mnt",
            "ns_ipc",
            "memory_monitor",
            "rcache_mode",
            "procmap_query",
            "rlimit_nofile",
            "rlimit_memlock",
            "rlimit_as",
            "rlimit_fsize",
            "max_map_count",
            "overcommit_memory",
            "memory_cgroup",
            "hugetlb",
            "shmem_huge_pages",
        ]
    );
}

#[test]
fn yama_s_scopes() {
    let unprivileged = |scope| {
        move |facts: &mut Facts| {
            facts.yama = scope;
            facts.capabilities = Some(1 << 14); // CAP_IPC_LOCK alone
        }
    };
    let yama = |scope| {
        let rows = lacking(unprivileged(scope));
        // The missing capability is told in any case.
        assert!(rows.iter().any(|row| row.key == "cap_sys_ptrace" && row.state == State::Note), "{rows:?}");
        rows.into_iter().find(|row| row.key == "yama_ptrace_scope")
    };
    assert_eq!(yama(None), None);
    assert_eq!(yama(Some(0)), None);
    for (scope, cost, remedy) in [
        (1, "only descendants", "ptrace_scope=0"),
        (2, "no other process", "CAP_SYS_PTRACE"),
        (3, "whoever runs them", "cannot be taken back"),
    ] {
        let row = yama(Some(scope)).unwrap();
        assert_eq!(row.state, State::Limited);
        assert!(row.cost.unwrap().contains(cost) && row.remedy.unwrap().contains(remedy), "{scope}");
    }
    // CAP_SYS_PTRACE overcomes 1 and 2, and not 3.
    for scope in [1, 2] {
        assert_eq!(lacking(|facts| facts.yama = Some(scope)), []);
    }
    assert_eq!(the_lack(|facts| facts.yama = Some(3)).0, "yama_ptrace_scope");
}

#[test]
fn a_call_that_fails_tells_how_to_get_it() {
    let (key, state, value, cost, remedy) = the_lack(|facts| facts.probes.readv = Probe::Fails(Errno::NOSYS));
    assert_eq!((key, state), ("process_vm_readv", State::Limited));
    assert!(
        value.starts_with("fails: ") && remedy.contains("CONFIG_CROSS_MEMORY_ATTACH"),
        "{value} {remedy}"
    );
    assert!(cost.starts_with("exports of memory that rucx did not allocate cannot be read by cma"), "{cost}");
    let (.., remedy) = the_lack(|facts| facts.probes.writev = Probe::Fails(Errno::PERM));
    assert!(remedy.contains("security module"), "{remedy}");
    let row = lacking(|facts| facts.probes.memfd = Probe::Fails(Errno::MFILE)).remove(0);
    assert!(row.state == State::Missing && row.remedy.as_ref().unwrap().contains("ulimit -n"), "{row:?}");
    let (.., remedy) = the_lack(|facts| facts.probes.pidfd_getfd = Probe::Fails(Errno::NOSYS));
    assert!(remedy.contains("Linux 5.6"), "{remedy}");
}

#[test]
fn a_seccomp_filter_is_named_with_what_it_denies() {
    let filter = |facts: &mut Facts| facts.seccomp = Some(Seccomp { mode: 2, filters: Some(1) });
    assert_eq!(lacking(filter), [], "a filter that denies nothing costs nothing");
    let rows = lacking(|facts| {
        filter(facts);
        facts.probes.readv = Probe::Kills;
        facts.probes.pidfd_getfd = Probe::Fails(Errno::NOSYS);
    });
    let keys: Vec<_> = rows.iter().map(|row| row.key).collect();
    assert_eq!(keys, ["seccomp", "pidfd_getfd", "process_vm_readv"]);
    assert!(rows[0].cost.as_ref().unwrap().contains("pidfd_getfd, process_vm_readv"), "{rows:?}");
    for row in &rows[1..] {
        let remedy = row.remedy.as_ref().unwrap();
        assert!(remedy.contains("seccomp profile") && remedy.contains(row.name), "{row:?}");
        assert!(remedy.contains("--cap-add SYS_PTRACE"), "{row:?}");
    }
    let rows = lacking(|facts| {
        filter(facts);
        facts.probes.readv = Probe::Untried;
    });
    assert!(rows[0].value.contains("not tried") && rows[0].state == State::Note, "{rows:?}");
}

#[test]
fn userfaultfd_with_and_without_privilege() {
    let denied = Probe::Fails(Errno::PERM);
    // Faults of user mode are all that is needed.
    assert_eq!(lacking(|facts| facts.probes.uffd = denied), []);
    let (key, state, _, cost, remedy) = the_lack(|facts| {
        facts.probes.uffd = denied;
        facts.probes.uffd_user = Probe::Fails(Errno::INVAL);
        facts.uffd_sysctl = Some(0);
    });
    assert_eq!((key, state), ("userfaultfd", State::Note));
    assert!(cost.contains("no registration") && remedy.contains("vm.unprivileged_userfaultfd=1"), "{remedy}");
    let (.., remedy) = the_lack(|facts| {
        facts.probes.uffd = Probe::Fails(Errno::NOSYS);
        facts.probes.uffd_user = Probe::Fails(Errno::NOSYS);
        facts.uffd_sysctl = None;
    });
    assert!(remedy.contains("CONFIG_USERFAULTFD"), "{remedy}");
}

fn no_monitor(why: Why) -> Watcher {
    Watcher::Started { active: Active::None { why }, queries: true }
}

/// The rows of the registration cache that lack something: key, value and remedy.
fn cache_lacks(change: impl FnOnce(&mut Facts)) -> Vec<(&'static str, String, String)> {
    let rows = lacking(change).into_iter().filter(|row| row.group == Group::Registrations);
    rows.inspect(|row| assert_eq!(row.state, State::Note, "no transport needs it: {row:?}"))
        .map(|row| (row.key, row.value, row.remedy.unwrap()))
        .collect()
}

#[test]
fn why_nothing_is_watched_is_told_with_the_remedy() {
    let filtered = |facts: &mut Facts| {
        facts.seccomp = Some(Seccomp { mode: 2, filters: Some(1) });
        facts.probes.uffd = Probe::Fails(Errno::PERM);
        facts.probes.uffd_user = Probe::Fails(Errno::PERM);
        facts.probes.watcher = no_monitor(Why::Denied);
    };
    let privileged = |facts: &mut Facts| {
        facts.uffd_sysctl = Some(0);
        facts.probes.uffd = Probe::Fails(Errno::PERM);
        facts.probes.uffd_user = Probe::Fails(Errno::INVAL);
        facts.probes.watcher = no_monitor(Why::Denied);
    };
    let missing = |facts: &mut Facts| {
        facts.probes.uffd = Probe::Fails(Errno::NOSYS);
        facts.probes.uffd_user = Probe::Fails(Errno::NOSYS);
        facts.probes.watcher = no_monitor(Why::NoUserfaultfd);
    };
    for (value, remedy, change) in [
        (
            "none: userfaultfd is denied, probably by the seccomp filter",
            "allow userfaultfd in the seccomp profile",
            &filtered as &dyn Fn(&mut Facts),
        ),
        (
            "none: userfaultfd is denied: vm.unprivileged_userfaultfd is 0",
            "sysctl vm.unprivileged_userfaultfd=1",
            &privileged,
        ),
        ("none: the kernel has no userfaultfd", "CONFIG_USERFAULTFD", &missing),
        ("none: userfaultfd is denied", "allow the system call", &|facts: &mut Facts| {
            facts.probes.watcher = no_monitor(Why::Denied);
        }),
        ("write protection", "Linux 5.7", &|facts: &mut Facts| {
            facts.probes.watcher = no_monitor(Why::OldKernel);
        }),
        ("no descriptor is left", "ulimit -n", &|facts: &mut Facts| {
            facts.probes.watcher = no_monitor(Why::Descriptors);
        }),
        ("no memory is left", "RLIMIT_AS", &|facts: &mut Facts| {
            facts.probes.watcher = no_monitor(Why::NoMemory);
        }),
        ("thread cannot be started", "RLIMIT_NPROC", &|facts: &mut Facts| {
            facts.probes.watcher = no_monitor(Why::NoThread);
        }),
        ("kills whoever starts it", "or set UCX_MEM_EVENTS=n", &|facts: &mut Facts| {
            facts.probes.watcher = Watcher::Kills;
        }),
    ] {
        let rows = cache_lacks(change);
        let keys: Vec<_> = rows.iter().map(|row| row.0).collect();
        assert_eq!(keys, ["memory_monitor", "rcache_mode"], "{value}");
        assert!(rows[0].1.contains(value) && rows[0].2.contains(remedy), "{value}: {rows:?}");
        assert_eq!(rows[1].1, "off: nothing tells of changes of memory");
    }
}

#[test]
fn what_an_older_kernel_lacks_of_the_cache() {
    let (key, _, value, cost, remedy) = the_lack(|facts| {
        facts.probes.watcher = Watcher::Started { active: Active::Uffd { wp_async: false }, queries: true };
    });
    assert_eq!((key, remedy.as_str()), ("memory_monitor", "boot Linux 6.7 or newer"));
    assert!(value.contains("not for memory of files") && cost.contains("UCX_RCACHE_FILES"), "{value} {cost}");
    let (key, _, value, _, remedy) = the_lack(|facts| {
        facts.probes.watcher = Watcher::Started { active: Active::Uffd { wp_async: true }, queries: false };
    });
    assert_eq!(
        (key, value.as_str(), remedy.as_str()),
        ("procmap_query", "not there", "boot Linux 6.11 or newer")
    );
    let rows = cache_lacks(|facts| facts.probes.watcher = Watcher::Untried);
    assert!(rows.len() == 1 && rows[0].1.starts_with("not tried"), "{rows:?}");
}

#[test]
fn the_variables_of_the_cache_are_told() {
    let value = |pairs: &[(&str, &str)]| {
        let mut facts = perfect();
        facts.settings = settings(pairs);
        rows(&facts).into_iter().find(|row| row.key == "rcache_mode").unwrap().value
    };
    assert_eq!(value(&[]), "strict: each hit is checked by the kernel");
    assert!(value(&[("UCX_RCACHE_FILES", "y")]).ends_with("; files, too (UCX_RCACHE_FILES=y)"));
    let hooked = |hooks, pairs: &[(&str, &str)]| {
        let facts = Facts { hooks, settings: settings(pairs), ..perfect() };
        rows(&facts).into_iter().find(|row| row.key == "rcache_mode").unwrap().value
    };
    assert!(hooked(Ok(()), &[]).starts_with("auto: hits are not checked while hooks"));
    assert!(hooked(Ok(()), &[("UCX_RCACHE_MODE", "strict")]).starts_with("strict: "));
    assert!(hooked(Err(HookError::Static), &[]).ends_with("; no hooks: the C library is linked statically"));
    for (variable, value) in [("UCX_RCACHE_ENABLE", "n"), ("UCX_RCACHE_MODE", "off"), ("UCX_MEM_EVENTS", "n")]
    {
        let rows = cache_lacks(|facts| facts.settings = settings(&[(variable, value)]));
        let mode = rows.last().unwrap();
        assert_eq!((mode.0, &mode.1), ("rcache_mode", &format!("off: {variable}={value}")));
        assert_eq!(mode.2, format!("leave {variable} out of the environment"));
        assert_eq!(rows.len(), if variable == "UCX_MEM_EVENTS" { 2 } else { 1 }, "{rows:?}");
    }
    let rows = cache_lacks(|facts| facts.settings = settings(&[("UCX_RCACHE_MODE", "hooks")]));
    assert!(rows[0].1 == "none: UCX_RCACHE_MODE is wrong" && rows[0].2.contains("strict"), "{rows:?}");
    let rows = cache_lacks(|facts| facts.settings = None);
    assert!(rows[0].1.starts_with("unknown") && rows[0].2.contains("rucx info -c"), "{rows:?}");
}

#[test]
fn other_namespaces_bound_who_can_be_reached() {
    let other = Namespace { inode: Some(0xF000_0001), initial: Some(false) };
    for (key, remedy, change) in [
        ("ns_user", "--userns", (|facts, other| facts.user_ns = other) as fn(&mut Facts, Namespace)),
        ("ns_pid", "--pid", |facts, other| facts.pid_ns = other),
        ("ns_net", "--network", |facts, other| facts.net_ns = other),
    ] {
        let (found, state, value, cost, advice) = the_lack(|facts| {
            change(facts, other);
            facts.memlock = NONE;
        });
        assert_eq!((found, state), (key, State::Limited));
        assert!(value.contains("4026531841, not the initial one"), "{value}");
        assert!(cost.contains(" only") && advice.contains(remedy), "{cost} {advice}");
        assert_eq!(cost.contains("and those below it"), key != "ns_net", "{cost}");
    }
    assert_eq!(lacking(|facts| (facts.mnt_ns, facts.ipc_ns) = (other, other)), []);
    let untold = Namespace { initial: None, ..other };
    let (key, state, .., remedy) = the_lack(|facts| facts.net_ns = untold);
    assert!((key, state) == ("ns_net", State::Note) && remedy.contains("readlink"), "{remedy}");
    // The capability counts in the initial user namespace only.
    let keys: Vec<_> = lacking(|facts| facts.user_ns = other).into_iter().map(|row| row.key).collect();
    assert_eq!(keys, ["ns_user", "rlimit_memlock"]);
    let unknown = Namespace { inode: None, initial: None };
    assert_eq!(lacking(|facts| (facts.user_ns, facts.net_ns) = (unknown, unknown)), []);
    let mut facts = perfect();
    facts.user_ns = other;
    let row = rows(&facts).into_iter().find(|row| row.key == "cap_sys_ptrace").unwrap();
    assert_eq!(row.value, "yes, within this user namespace");
}

#[test]
fn low_limits() {
    let low = |soft| Limits { soft: Some(soft), hard: None };
    for (key, remedy, change) in [
        ("rlimit_nofile", "ulimit -n", (|facts, low| facts.nofile = low) as fn(&mut Facts, Limits)),
        ("rlimit_as", "ulimit -v", |facts, low| facts.address_space = low),
        ("rlimit_fsize", "ulimit -f", |facts, low| facts.file_size = low),
    ] {
        // Of files, more than the export table.
        let files = if key == "rlimit_fsize" { 512 << 20 } else { 512 };
        let (found, state, value, _, advice) = the_lack(|facts| change(facts, low(files)));
        assert_eq!((found, state), (key, State::Limited));
        assert!(value.contains("512") && value.contains("(hard: no limit)"), "{value}");
        assert!(advice.contains(remedy), "{advice}");
    }
    let (key, state, .., remedy) = the_lack(|facts| facts.max_map_count = Some(1000));
    assert!((key, state) == ("max_map_count", State::Limited) && remedy.contains("sysctl"), "{remedy}");
    // CAP_IPC_LOCK makes RLIMIT_MEMLOCK mean nothing.
    let (key, state, _, cost, _) = the_lack(|facts| facts.capabilities = Some(1 << 19));
    assert!((key, state) == ("rlimit_memlock", State::Note) && cost.contains("8 MiB"), "{cost}");
    assert_eq!(
        lacking(|facts| (facts.capabilities, facts.memlock) = (Some(1 << 19), NONE)),
        [],
        "without a limit the capability is not needed"
    );
}

#[test]
fn memory() {
    let limited = |bytes| Cgroup::Limited(bytes, "/sys/fs/cgroup/memory.max".into());
    let (key, state, value, cost, remedy) = the_lack(|facts| facts.cgroup = limited(1 << 30));
    assert_eq!((key, state), ("memory_cgroup", State::Limited));
    assert!(value.contains("1 GiB") && cost.contains("1 GiB") && remedy.contains("MemoryMax"), "{value}");
    // As cgroup v1 writes "no limit".
    assert_eq!(lacking(|facts| facts.cgroup = limited(0x7FFF_FFFF_FFFF_F000)), []);
    assert_eq!(lacking(|facts| facts.cgroup = Cgroup::Unreadable), []);
    assert_eq!(the_lack(|facts| facts.overcommit = Some(2)).0, "overcommit_memory");
    assert_eq!(lacking(|facts| facts.overcommit = Some(1)), []);
    assert_eq!(the_lack(|facts| facts.shmem_huge = Some("never".to_owned())).0, "shmem_huge_pages");
    assert_eq!(the_lack(|facts| facts.shmem_huge = None).2, "not there");
    assert_eq!(lacking(|facts| facts.hugetlb = None), []);
}

#[test]
fn the_kernel() {
    let (key, state, .., remedy) = the_lack(|facts| facts.boot_id = false);
    assert!((key, state) == ("proc", State::Missing) && remedy.contains("mount"), "{remedy}");
    for view in [ProcView::Above, ProcView::Foreign] {
        let (key, state, value, ..) = the_lack(|facts| facts.proc_view = view);
        assert!(
            (key, state) == ("proc", State::Limited) && value.contains("another pid namespace"),
            "{value}"
        );
    }
    assert_eq!(the_lack(|facts| facts.machine = "aarch64".to_owned()).0, "machine");
    assert_eq!(the_lack(|facts| facts.pidfs = Some(false)).4, "boot Linux 6.9 or newer");
    assert_eq!(the_lack(|facts| facts.pidfs = None).0, "pidfs");
    // What cannot be read is no lack.
    let unread = |facts: &mut Facts| {
        (facts.seccomp, facts.max_map_count, facts.overcommit, facts.uffd_sysctl) = (None, None, None, None);
    };
    assert_eq!(lacking(unread), []);
}

#[test]
fn what_every_export_needs() {
    let broken = |change: fn(&mut Facts)| {
        let rows = lacking(change);
        let first = rows.iter().find(|row| row.state == State::Missing).cloned().unwrap();
        assert!(first.cost.as_ref().unwrap().contains("nothing can be exported"), "{first:?}");
        assert_eq!(nothing_exports(&rows), Some(format!("{} (see rucx info -s)", first.name)));
        rows
    };
    let least = 4 << 20;
    broken(|facts| facts.file_size.soft = Some((4 << 20) - 1));
    let rows = lacking(|facts| facts.file_size.soft = Some(least));
    assert_eq!((rows[0].state, nothing_exports(&rows)), (State::Limited, None));
    // Without memfds nothing can be said of their seals.
    let rows = broken(|facts| {
        facts.probes.memfd = Probe::Fails(Errno::PERM);
        facts.probes.seal = Probe::Fails(Errno::PERM);
    });
    let seal = rows.iter().find(|row| row.key == "seal_future_write").unwrap();
    assert_eq!((seal.value.as_str(), seal.state), ("not tried: memfd_create is refused", State::Note));
    broken(|facts| facts.probes.seal = Probe::Fails(Errno::INVAL));
    assert_eq!(nothing_exports(&super::rows(&perfect())), None);
}

#[test]
fn the_directory_of_service_sockets() {
    let other = Namespace { inode: Some(0xF000_0001), initial: Some(false) };
    let dir = |fault| Some(ServiceDir { path: "/run/rucx".into(), fault });
    for (fault, value, remedy) in [
        (Fault::TooLong(61), "61 bytes", "at most 60 bytes"),
        (Fault::Missing, "not there", "make the directory"),
        (Fault::NoDirectory, "no directory", "name a directory"),
        (Fault::NoFiles(Errno::ACCESS), "no files", "may make files"),
    ] {
        let (key, state, found, cost, advice) = the_lack(|facts| {
            facts.service_dir = dir(Some(fault));
            facts.net_ns = other; // its row does not tell to set it
        });
        assert_eq!((key, state, cost.as_str()), (SERVICE_DIR, State::Missing, "nothing can be exported"));
        assert!(
            found.contains("/run/rucx") && found.contains(value) && advice.contains(remedy),
            "{found} {advice}"
        );
    }
    assert_eq!(lacking(|facts| facts.service_dir = dir(None)), []);
    let (key, state, .., remedy) = the_lack(|facts| {
        facts.service_dir = dir(None);
        facts.net_ns = other;
    });
    assert!((key, state) == ("ns_net", State::Note) && remedy.contains("the other side"), "{remedy}");
}
