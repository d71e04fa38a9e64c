//! System calls: which work here, and what is lost where one does not.

use rustix::io::Errno;

use super::super::facts::Facts;
use super::super::probe::Probe;
use super::{Group, Row, State};

/// A call, and what it means to rucx.
struct Call {
    key: &'static str,
    name: &'static str,
    /// How a seccomp profile names it.
    syscall: &'static str,
    /// Which kernel has it.
    since: &'static str,
    /// How docker is told to allow it.
    docker: &'static str,
    /// How bad its lack is.
    state: State,
    /// What its lack costs.
    cost: &'static str,
}

const PROFILE: &str = "--security-opt seccomp=PROFILE";
/// The profiles of container runtimes allow with this capability what needs ptrace rights.
const PTRACE: &str = "--cap-add SYS_PTRACE";

const MEMFD: Call = Call {
    key: "memfd_create",
    name: "memfd_create",
    syscall: "memfd_create",
    since: "Linux 3.17",
    docker: PROFILE,
    state: State::Missing,
    cost: "shm allocates nothing, and nothing can be exported: the export table is a memfd",
};

const SEAL: Call = Call {
    key: "seal_future_write",
    name: "F_SEAL_FUTURE_WRITE",
    syscall: "fcntl",
    since: "Linux 5.1",
    docker: PROFILE,
    state: State::Missing,
    cost: "nothing can be exported: the export table is kept read-only for importers by this seal",
};

const PIDFD_OPEN: Call = Call {
    key: "pidfd_open",
    name: "pidfd_open",
    syscall: "pidfd_open",
    since: "Linux 5.3",
    docker: PROFILE,
    state: State::Limited,
    cost: "shm imports by its socket only, and before Linux 6.5 not at all: the exporter's process cannot be told",
};

const PIDFD_GETFD: Call = Call {
    key: "pidfd_getfd",
    name: "pidfd_getfd",
    syscall: "pidfd_getfd",
    since: "Linux 5.6",
    docker: PTRACE,
    state: State::Limited,
    cost: "shm cannot take descriptors by its way pidfd (UCX_SHM_ATTACH); its ways socket and proc remain",
};

const READV: Call = Call {
    key: "process_vm_readv",
    name: "process_vm_readv",
    syscall: "process_vm_readv",
    since: "a kernel with CONFIG_CROSS_MEMORY_ATTACH",
    docker: PTRACE,
    state: State::Limited,
    cost: "exports of memory that rucx did not allocate cannot be read by cma; shm reaches that of MemMap::allocate",
};

const WRITEV: Call = Call {
    key: "process_vm_writev",
    name: "process_vm_writev",
    syscall: "process_vm_writev",
    since: "a kernel with CONFIG_CROSS_MEMORY_ATTACH",
    docker: PTRACE,
    state: State::Limited,
    cost: "exports of memory that rucx did not allocate cannot be written by cma; shm reaches that of MemMap::allocate",
};

const USERFAULTFD: Call = Call {
    key: "userfaultfd",
    name: "userfaultfd",
    syscall: "userfaultfd",
    since: "a kernel with CONFIG_USERFAULTFD",
    docker: PROFILE,
    state: State::Note,
    cost: super::registrations::NOTHING_KEPT,
};

/// A row for each call.
pub(super) fn rows(facts: &Facts) -> Vec<Row> {
    let probes = &facts.probes;
    vec![
        call(&MEMFD, probes.memfd, facts),
        seal(facts),
        call(&PIDFD_OPEN, probes.pidfd_open, facts),
        call(&PIDFD_GETFD, probes.pidfd_getfd, facts),
        pidfs(facts),
        call(&READV, probes.readv, facts),
        call(&WRITEV, probes.writev, facts),
        userfaultfd(facts),
        unprivileged_userfaultfd(facts),
    ]
}

/// Without memfds there is nothing to seal.
fn seal(facts: &Facts) -> Row {
    match facts.probes.memfd {
        Probe::Fails(_) | Probe::Kills => {
            let value = "not tried: memfd_create is refused";
            Row::good(Group::Calls, SEAL.key, SEAL.name, value).lacks(
                State::Note,
                format!("if it does not work: {}", SEAL.cost),
                "make memfd_create work",
            )
        }
        Probe::Works | Probe::Untried => call(&SEAL, facts.probes.seal, facts),
    }
}

fn is_filtered(facts: &Facts) -> bool {
    facts.seccomp.is_some_and(|seccomp| seccomp.mode == 2)
}

fn call(call: &Call, probe: Probe, facts: &Facts) -> Row {
    let row = |value: String| Row::good(Group::Calls, call.key, call.name, value);
    let allow = || {
        format!(
            "allow {0} in the seccomp profile (docker: {1}; systemd: SystemCallFilter={0})",
            call.syscall, call.docker
        )
    };
    match probe {
        Probe::Works => row("works".to_owned()),
        Probe::Fails(errno) => {
            let remedy = match errno {
                Errno::MFILE => "raise RLIMIT_NOFILE: `ulimit -n` (systemd: LimitNOFILE=)".to_owned(),
                Errno::NFILE => "raise fs.file-max: `sysctl fs.file-max`".to_owned(),
                // Profiles of container runtimes answer ENOSYS, or EPERM.
                _ if is_filtered(facts) => allow(),
                Errno::NOSYS | Errno::INVAL => format!("boot {} or newer", call.since),
                _ => "see what the security module denies: `dmesg`, or the audit log".to_owned(),
            };
            row(format!("fails: {errno}")).lacks(call.state, call.cost, remedy)
        }
        Probe::Kills => {
            row("a seccomp filter kills whoever calls it".to_owned()).lacks(call.state, call.cost, allow())
        }
        Probe::Untried => row("not tried: the seccomp filter lets no child start".to_owned()).lacks(
            State::Note,
            format!("if it does not work: {}", call.cost),
            "allow execve in the seccomp profile, or ask outside of it",
        ),
    }
}

fn pidfs(facts: &Facts) -> Row {
    let row = |value| Row::good(Group::Calls, "pidfs", "pidfd inodes", value);
    match facts.pidfs {
        Some(true) => row("unique (pidfs)"),
        Some(false) => row("not unique").lacks(
            State::Note,
            "an exporter is told from a process that was given its pid by the time it started, to 10 ms",
            "boot Linux 6.9 or newer",
        ),
        None => row("unknown: there are no pidfds").lacks(
            State::Note,
            "an exporter is told from a process that was given its pid by the time it started, to 10 ms",
            "make pidfd_open work",
        ),
    }
}

/// Linux before 5.11 has no flag for faults of user mode only.
pub(super) fn needs_privilege(facts: &Facts) -> bool {
    (facts.probes.uffd, facts.probes.uffd_user) == (Probe::Fails(Errno::PERM), Probe::Fails(Errno::INVAL))
}

pub(super) fn userfaultfd(facts: &Facts) -> Row {
    let row = |value| Row::good(Group::Calls, USERFAULTFD.key, USERFAULTFD.name, value);
    match (facts.probes.uffd, facts.probes.uffd_user) {
        (Probe::Works, _) => row("works, for all faults"),
        // All that a cache of registrations needs.
        (_, Probe::Works) => row("works without privilege, for faults of user mode"),
        _ if needs_privilege(facts) => row("needs privilege").lacks(
            USERFAULTFD.state,
            USERFAULTFD.cost,
            "sysctl vm.unprivileged_userfaultfd=1, or boot Linux 5.11 or newer",
        ),
        (_, probe) => call(&USERFAULTFD, probe, facts),
    }
}

fn unprivileged_userfaultfd(facts: &Facts) -> Row {
    let value = match facts.uffd_sysctl {
        Some(0) => "0: all faults with privilege only".to_owned(),
        Some(1) => "1: all faults for everyone".to_owned(),
        Some(other) => other.to_string(),
        None => "not there".to_owned(),
    };
    // What is lacking, the row of the call says.
    Row::good(Group::Calls, "unprivileged_userfaultfd", "vm.unprivileged_userfaultfd", value)
}

/// The filter itself, and what it denies.
pub(super) fn seccomp(facts: &Facts) -> Row {
    let row = |value: String| Row::good(Group::Kernel, "seccomp", "seccomp", value);
    let Some(seccomp) = facts.seccomp else { return row("unknown".to_owned()) };
    let value = match (seccomp.mode, seccomp.filters) {
        (0, _) => return row("off".to_owned()),
        (1, _) => return row("strict".to_owned()),
        (_, Some(1)) => "1 filter".to_owned(),
        (_, Some(filters)) => format!("{filters} filters"),
        (_, None) => "filtered".to_owned(),
    };
    let probes = &facts.probes;
    let denied: Vec<&str> = [
        (MEMFD.syscall, probes.memfd),
        (PIDFD_OPEN.syscall, probes.pidfd_open),
        (PIDFD_GETFD.syscall, probes.pidfd_getfd),
        (READV.syscall, probes.readv),
        (WRITEV.syscall, probes.writev),
        (USERFAULTFD.syscall, if probes.uffd == Probe::Works { probes.uffd } else { probes.uffd_user }),
    ]
    .into_iter()
    .filter(|(_, probe)| {
        matches!(probe, Probe::Kills | Probe::Fails(Errno::PERM | Errno::NOSYS | Errno::ACCESS))
    })
    .map(|(name, _)| name)
    .collect();
    if denied.is_empty() {
        return row(value);
    }
    let list = denied.join(", ");
    row(value).lacks(
        State::Note,
        format!("it probably denies {list}: see the rows of these calls"),
        "allow them in the profile (docker: --security-opt seccomp=PROFILE; systemd: SystemCallFilter=)",
    )
}
