//! Rights over other processes, and namespaces: whom this process can reach.

use super::super::facts::{Facts, Namespace};
use super::{Group, Row, State, places};

/// Bits of `capabilities(7)`.
const CAP_IPC_LOCK: u64 = 1 << 14;
const CAP_SYS_PTRACE: u64 = 1 << 19;

/// Rows of both groups.
pub(super) fn rows(facts: &Facts) -> Vec<Row> {
    vec![
        yama(facts),
        sys_ptrace(facts),
        ipc_lock(facts),
        user(facts),
        pid(facts),
        net(facts),
        places::service_dir(facts),
        unused(&facts.mnt_ns, "ns_mnt", "mnt"),
        unused(&facts.ipc_ns, "ns_ipc", "ipc"),
    ]
}

/// Whether RLIMIT_MEMLOCK bounds nothing.
pub(super) fn may_pin(facts: &Facts) -> bool {
    has(facts, CAP_IPC_LOCK) == Some(true) && facts.user_ns.initial != Some(false)
}

fn has(facts: &Facts, capability: u64) -> Option<bool> {
    facts.capabilities.map(|all| all & capability != 0)
}

/// Yama restricts PTRACE_MODE_ATTACH, which `pidfd_getfd` and `process_vm_*` ask for; `/proc/PID/fd` asks for
/// PTRACE_MODE_READ (`ptrace(2)`, Yama in the kernel's admin-guide).
fn yama(facts: &Facts) -> Row {
    let row =
        |value: String| Row::good(Group::Rights, "yama_ptrace_scope", "kernel.yama.ptrace_scope", value);
    let privileged = has(facts, CAP_SYS_PTRACE) == Some(true);
    match facts.yama {
        None => row("not there: Yama restricts nothing".to_owned()),
        Some(0) => row("0: processes of the same user".to_owned()),
        Some(scope @ (1 | 2)) if privileged => {
            row(format!("{scope}: does not concern this process, which has CAP_SYS_PTRACE"))
        }
        Some(1) => row("1: descendants only".to_owned()).lacks(
            State::Limited,
            "cma, and the way pidfd of shm, reach only descendants of this process and those that allow it; the \
             socket of shm is not concerned",
            "sysctl kernel.yama.ptrace_scope=0, or import with CAP_SYS_PTRACE, or export with UCX_CMA_PTRACER_ANY=y",
        ),
        Some(2) => row("2: with CAP_SYS_PTRACE only".to_owned()).lacks(
            State::Limited,
            "cma, and the way pidfd of shm, reach no other process; the socket of shm is not concerned",
            "sysctl kernel.yama.ptrace_scope=0, or import with CAP_SYS_PTRACE",
        ),
        Some(scope) => row(format!("{scope}: nobody")).lacks(
            State::Limited,
            "cma, and the way pidfd of shm, reach no other process, whoever runs them; the socket of shm is not concerned",
            "boot with kernel.yama.ptrace_scope=0 in /etc/sysctl.d: 3 cannot be taken back while the system runs",
        ),
    }
}

fn sys_ptrace(facts: &Facts) -> Row {
    let row = |value| Row::good(Group::Rights, "cap_sys_ptrace", "CAP_SYS_PTRACE", value);
    match has(facts, CAP_SYS_PTRACE) {
        Some(true) if facts.user_ns.initial == Some(false) => row("yes, within this user namespace"),
        Some(true) => row("yes"),
        Some(false) => row("no").lacks(
            State::Note,
            "cma, and the ways proc and pidfd of shm, reach processes of the same user only; the socket of shm \
             is not concerned",
            "run as root, or `setcap cap_sys_ptrace+ep PROGRAM` (docker: --cap-add SYS_PTRACE)",
        ),
        None => row("unknown"),
    }
}

fn ipc_lock(facts: &Facts) -> Row {
    let row = |value| Row::good(Group::Rights, "cap_ipc_lock", "CAP_IPC_LOCK", value);
    match has(facts, CAP_IPC_LOCK) {
        // The kernel asks for it in the initial user namespace (`mlock(2)`).
        Some(true) if facts.user_ns.initial == Some(false) => {
            row("yes, which means nothing in this user namespace")
        }
        Some(true) => row("yes"),
        // The row of RLIMIT_MEMLOCK says what that bounds.
        Some(false) => row("no: RLIMIT_MEMLOCK bounds what can be pinned"),
        None => row("unknown"),
    }
}

fn namespace(namespace: &Namespace, key: &'static str, name: &'static str) -> Row {
    let value = match (namespace.inode, namespace.initial) {
        (Some(inode), Some(true)) => format!("{inode}, the initial one"),
        (Some(inode), Some(false)) => format!("{inode}, not the initial one"),
        (Some(inode), None) => format!("{inode}, perhaps the initial one"),
        (None, _) => "unknown".to_owned(),
    };
    Row::good(Group::Namespaces, key, name, value)
}

fn user(facts: &Facts) -> Row {
    let row = namespace(&facts.user_ns, "ns_user", "user");
    match facts.user_ns.initial {
        Some(false) => row.lacks(
            State::Limited,
            "cma, and the ways proc and pidfd of shm, reach processes of this user namespace and those below it only, with \
             the rights over them there; the socket of shm is not concerned",
            "run both sides in one user namespace (docker: --userns host)",
        ),
        _ => row,
    }
}

fn pid(facts: &Facts) -> Row {
    let row = namespace(&facts.pid_ns, "ns_pid", "pid");
    match facts.pid_ns.initial {
        Some(false) => row.lacks(
            State::Limited,
            "cma, and the ways proc and pidfd of shm, reach processes of this pid namespace and those below it only; the \
             socket of shm is not concerned",
            "run both sides in one pid namespace (docker: --pid container:NAME or host)",
        ),
        _ => row,
    }
}

fn net(facts: &Facts) -> Row {
    let row = namespace(&facts.net_ns, "ns_net", "net");
    if let Some(dir) = &facts.service_dir {
        // What is wrong with the directory, its row says.
        return match facts.net_ns.initial {
            Some(true) => row,
            _ if dir.fault.is_some() || facts.net_ns.inode.is_none() => row,
            _ => row.lacks(
                State::Note,
                "processes of other network namespaces are reached by way of UCX_SERVICE_DIR, where they have it as well",
                "see that the other side sets UCX_SERVICE_DIR to the same directory, as it is mounted there",
            ),
        };
    }
    match facts.net_ns.initial {
        Some(false) => row.lacks(
            State::Limited,
            "the socket of shm, and cma, which asks there, reach processes of this network namespace only",
            "run both sides in one network namespace (docker: --network container:NAME or host), or set \
             UCX_SERVICE_DIR to a directory that both see",
        ),
        None if facts.net_ns.inode.is_some() => row.lacks(
            State::Note,
            "the socket of shm, and cma, which asks there, reach processes of the same network namespace only",
            "compare `readlink /proc/self/ns/net` on both sides; where they differ, set UCX_SERVICE_DIR to a \
             directory that both see",
        ),
        _ => row,
    }
}

/// Nothing of rucx has a name in a file system or among System V's: these separate nothing.
fn unused(of: &Namespace, key: &'static str, name: &'static str) -> Row {
    namespace(of, key, name)
}
