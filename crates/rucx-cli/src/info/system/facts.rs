//! What the system says of itself: read and probed here, judged elsewhere.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::FsWord;
use rustix::process::{Resource, getpid, getrlimit};
use ucs::monitor::{HookError, Monitor};
use ucs::rcache::config::{Settings, SettingsError};

use super::places::{ProcView, ServiceDir};
use super::probe::{Probes, pidfd};
use crate::info::config;

/// `f_type` of pidfs: `PID_FS_MAGIC` in `linux/magic.h`.
const PID_FS_MAGIC: FsWord = 0x5049_4446;

/// All that is known of the system. `None`: it could not be read, if nothing else is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// `uname -r`.
    pub(crate) release: String,
    /// `uname -m`.
    pub(crate) machine: String,
    /// Whether `/proc/sys/kernel/random/boot_id` can be read.
    pub(crate) boot_id: bool,
    /// Whose processes /proc shows.
    pub(crate) proc_view: ProcView,
    /// `None` if UCX_SERVICE_DIR is not set.
    pub(crate) service_dir: Option<ServiceDir>,
    pub(crate) probes: Probes,
    /// What the variables say of the registration cache; `None`: one of all variables has no value.
    pub(crate) settings: Option<Result<Settings, SettingsError>>,
    /// Whether the C library's memory calls announce themselves.
    pub(crate) hooks: Result<(), HookError>,
    /// Whether inodes of pidfds are unique; `None` without pidfds.
    pub(crate) pidfs: Option<bool>,
    /// `kernel.yama.ptrace_scope`; `None` without Yama.
    pub(crate) yama: Option<u64>,
    /// `vm.unprivileged_userfaultfd`; `None` where the kernel does not have it.
    pub(crate) uffd_sysctl: Option<u64>,
    pub(crate) seccomp: Option<Seccomp>,
    /// The effective capabilities of this process, as bits.
    pub(crate) capabilities: Option<u64>,
    pub(crate) user_ns: Namespace,
    pub(crate) pid_ns: Namespace,
    pub(crate) net_ns: Namespace,
    pub(crate) mnt_ns: Namespace,
    pub(crate) ipc_ns: Namespace,
    pub(crate) nofile: Limits,
    pub(crate) memlock: Limits,
    pub(crate) address_space: Limits,
    pub(crate) file_size: Limits,
    /// `vm.max_map_count`.
    pub(crate) max_map_count: Option<u64>,
    /// `vm.overcommit_memory`.
    pub(crate) overcommit: Option<u64>,
    /// Bytes of memory of the machine.
    pub(crate) memory: Option<u64>,
    pub(crate) cgroup: Cgroup,
    pub(crate) hugetlb: Option<Hugetlb>,
    /// The choice in `/sys/kernel/mm/transparent_hugepage/shmem_enabled`.
    pub(crate) shmem_huge: Option<String>,
}

/// The seccomp state of this process (`proc_pid_status(5)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seccomp {
    /// 0: off, 1: strict, 2: filter.
    pub(crate) mode: u64,
    /// How many filters; `None` where the kernel does not tell (before 5.9).
    pub(crate) filters: Option<u64>,
}

/// A namespace of this process (`namespaces(7)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Namespace {
    /// Its inode.
    pub(crate) inode: Option<u64>,
    /// Whether it is the one the system began with; `None` where that cannot be told.
    pub(crate) initial: Option<bool>,
}

/// A resource limit (`getrlimit(2)`); `None`: no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) soft: Option<u64>,
    pub(crate) hard: Option<u64>,
}

/// The memory limit of this process's control group, the least of it and those above.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cgroup {
    /// Bytes, and the file that says so.
    Limited(u64, PathBuf),
    /// None that can be seen from here.
    Unlimited,
    /// It cannot be read.
    Unreadable,
}

/// The pool of huge pages (`proc_meminfo(5)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hugetlb {
    pub(crate) total: u64,
    pub(crate) free: u64,
    /// Bytes of one.
    pub(crate) size: u64,
}

impl Facts {
    /// Reads and probes.
    pub(crate) fn read() -> Self {
        let name = rustix::system::uname();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let seccomp = number(&status, "Seccomp:")
            .map(|mode| Seccomp { mode, filters: number(&status, "Seccomp_filters:") });
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let pid_ns = Namespace::read("pid", 0xEFFF_FFFC, true, false);
        let release = name.release().to_string_lossy().into_owned();
        // Those of net and mnt have fixed inodes since Linux 6.18.
        let all_fixed = is_since(&release, (6, 18));
        // Process 1 is the system's first only where pids are the system's.
        let of_init = pid_ns.initial == Some(true);
        Self {
            release,
            machine: name.machine().to_string_lossy().into_owned(),
            boot_id: uct::process::boot_id().is_some(),
            proc_view: ProcView::of(&status),
            service_dir: ServiceDir::read(),
            probes: Probes::take(seccomp.is_some_and(|seccomp| seccomp.mode != 0)),
            settings: config::settings(),
            hooks: Monitor::process().hook(),
            pidfs: pidfd_inodes_are_unique(),
            yama: sysctl("kernel/yama/ptrace_scope"),
            uffd_sysctl: sysctl("vm/unprivileged_userfaultfd"),
            seccomp,
            capabilities: field(&status, "CapEff:").and_then(|bits| u64::from_str_radix(bits, 16).ok()),
            user_ns: Namespace::read("user", 0xEFFF_FFFD, true, false),
            pid_ns,
            net_ns: Namespace::read("net", 0xEFFF_FFF9, all_fixed, of_init),
            mnt_ns: Namespace::read("mnt", 0xEFFF_FFF8, all_fixed, of_init),
            ipc_ns: Namespace::read("ipc", 0xEFFF_FFFF, true, false),
            nofile: Limits::read(Resource::Nofile),
            memlock: Limits::read(Resource::Memlock),
            address_space: Limits::read(Resource::As),
            file_size: Limits::read(Resource::Fsize),
            max_map_count: sysctl("vm/max_map_count"),
            overcommit: sysctl("vm/overcommit_memory"),
            memory: kilobytes(&meminfo, "MemTotal:"),
            cgroup: Cgroup::read(),
            hugetlb: Hugetlb::parse(&meminfo),
            shmem_huge: fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
                .ok()
                .and_then(|text| chosen(&text)),
        }
    }
}

impl Namespace {
    /// `fixed`: the inode of the initial one (`linux/nsfs.h`), if this kernel `is_fixed` on it. If not, process 1 tells, if it has
    /// pid 1 `of_init`.
    fn read(name: &str, fixed: u64, is_fixed: bool, of_init: bool) -> Self {
        let inode = |process| Some(rustix::fs::stat(format!("/proc/{process}/ns/{name}")).ok()?.st_ino);
        let mine = inode("self");
        let initial = match mine {
            Some(mine) if mine == fixed => Some(true),
            Some(_) if is_fixed => Some(false),
            Some(mine) if of_init => inode("1").map(|init| init == mine),
            _ => None,
        };
        Self { inode: mine, initial }
    }
}

impl Limits {
    fn read(resource: Resource) -> Self {
        let limit = getrlimit(resource);
        Self { soft: limit.current, hard: limit.maximum }
    }
}

impl Hugetlb {
    fn parse(meminfo: &str) -> Option<Self> {
        Some(Self {
            total: number(meminfo, "HugePages_Total:")?,
            free: number(meminfo, "HugePages_Free:")?,
            size: kilobytes(meminfo, "Hugepagesize:")?,
        })
    }
}

impl Cgroup {
    fn read() -> Self {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let files = limit_files(&groups);
        let mut least: Option<(u64, &PathBuf)> = None;
        for file in &files {
            let limit = fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok());
            if let Some(limit) = limit
                && least.is_none_or(|(bytes, _)| limit < bytes)
            {
                least = Some((limit, file));
            }
        }
        match least {
            Some((bytes, file)) => Self::Limited(bytes, file.clone()),
            // The root of the hierarchy has no such file.
            None if files.iter().any(|file| file.parent().is_some_and(Path::is_dir)) => Self::Unlimited,
            None => Self::Unreadable,
        }
    }
}

/// The files that may hold a memory limit of a process with these lines in its `/proc/PID/cgroup` (`cgroups(7)`).
fn limit_files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let (roots, name): (&[&str], &str) = if controllers.is_empty() {
            (&["/sys/fs/cgroup", "/sys/fs/cgroup/unified"], "memory.max")
        } else if controllers.split(',').any(|one| one == "memory") {
            (&["/sys/fs/cgroup/memory"], "memory.limit_in_bytes")
        } else {
            continue;
        };
        // In a container the path may be the host's: what is not there is passed over.
        let path = Path::new(path.trim_start_matches('/'));
        for root in roots {
            files.extend(path.ancestors().map(|group| Path::new(root).join(group).join(name)));
        }
    }
    files
}

/// Whether a release, as `6.18.0-1-amd64`, is this version or a later one.
fn is_since(release: &str, version: (u32, u32)) -> bool {
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().ok());
    match (parts.next().flatten(), parts.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) >= version,
        _ => false,
    }
}

fn pidfd_inodes_are_unique() -> Option<bool> {
    let fd = pidfd(getpid()).ok()?;
    Some(rustix::fs::fstatfs(fd).ok()?.f_type == PID_FS_MAGIC)
}

fn sysctl(name: &str) -> Option<u64> {
    fs::read_to_string(format!("/proc/sys/{name}")).ok()?.trim().parse().ok()
}

/// The first word after `label`, at the beginning of a line.
fn field<'a>(text: &'a str, label: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(label))?.split_ascii_whitespace().next()
}

fn number(text: &str, label: &str) -> Option<u64> {
    field(text, label)?.parse().ok()
}

fn kilobytes(text: &str, label: &str) -> Option<u64> {
    number(text, label)?.checked_mul(1024)
}

/// The word in brackets.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_proc() {
        let status = "Name:\tx\nCapEff:\t000001fffeffffff\nSeccomp:\t2\nSeccomp_filters:\t1\n";
        assert_eq!(field(status, "CapEff:"), Some("000001fffeffffff"));
        assert_eq!(number(status, "Seccomp:"), Some(2));
        assert_eq!(number(status, "NoSuch:"), None);
        let meminfo = "MemTotal: 16 kB\nHugePages_Total: 4\nHugePages_Free: 3\nHugepagesize: 2048 kB\n";
        assert_eq!(kilobytes(meminfo, "MemTotal:"), Some(16 << 10));
        assert_eq!(Hugetlb::parse(meminfo), Some(Hugetlb { total: 4, free: 3, size: 2 << 20 }));
        assert_eq!(Hugetlb::parse("MemTotal: 16 kB\n"), None);
        assert_eq!(chosen("always within_size [never] deny\n").as_deref(), Some("never"));
        assert_eq!(chosen("never"), None);
    }

    #[test]
    fn releases() {
        for (release, since) in [
            ("6.18.44-x", true),
            ("6.18", true),
            ("7.0-rc1", true),
            ("6.9.1", false),
            ("5.18", false),
            ("x", false),
        ] {
            assert_eq!(is_since(release, (6, 18)), since, "{release}");
        }
    }

    #[test]
    fn limits_are_looked_for_in_all_groups_above() {
        let paths = |text| {
            let files = limit_files(text);
            files.iter().map(|file| file.to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        assert_eq!(
            paths("4:memory:/a\n3:cpu,cpuacct:/b\n1:name=systemd:/c\n"),
            ["/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes",]
        );
        let unified = paths("0::/user.slice/x:y\n");
        assert_eq!(unified[0], "/sys/fs/cgroup/user.slice/x:y/memory.max");
        assert_eq!(unified[2], "/sys/fs/cgroup/memory.max");
        assert_eq!(paths("0::/").first().map(String::as_str), Some("/sys/fs/cgroup/memory.max"));
        assert_eq!(paths("nonsense\n0:"), [""; 0]);
    }

    #[test]
    fn this_system_can_be_read() {
        let facts = Facts::read();
        assert!(!facts.release.is_empty());
        assert!(facts.user_ns.inode.is_some() && facts.user_ns.initial.is_some());
        assert!(facts.capabilities.is_some() && facts.seccomp.is_some());
    }
}
