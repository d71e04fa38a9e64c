//! Why the kernel refuses access to another process's memory: it answers EPERM to all, so the reasons are gone through in its order.
//!
//! Source: `ptrace(2)`, "Ptrace access mode checking", for PTRACE_MODE_ATTACH_REALCREDS, which `process_vm_readv(2)` and
//! `pidfd_getfd(2)` ask for; `prctl(2)`, PR_SET_DUMPABLE and PR_SET_PTRACER; Yama: `admin-guide/LSM/Yama` of the kernel's
//! documentation.

use std::fs;
use std::os::unix::fs::MetadataExt;

use rustix::io::Errno;

use super::{Identity, Process};

/// What the kernel looks at. What cannot be told is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// What the call answers even for this very process.
    pub refused_for_itself: Option<Errno>,
    /// Whether both processes live in one user namespace.
    pub same_user_ns: Option<bool>,
    /// Real user and group of this process.
    pub me: Option<(u32, u32)>,
    /// User and group of the other, if its real, effective and saved ones are all the same; else the effective ones, and `false`.
    pub other: Option<(u32, u32, bool)>,
    /// Whether the other is dumpable.
    pub dumpable: Option<bool>,
    /// Whether this process has CAP_SYS_PTRACE.
    pub may_ptrace: Option<bool>,
    /// Whether the other has capabilities that this one has not.
    pub other_has_more: Option<bool>,
    /// `kernel.yama.ptrace_scope`, where there is Yama.
    pub ptrace_scope: Option<u8>,
}

/// Why access is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Denial {
    /// The system call is not to be had, for no process.
    Call(Errno),
    /// The other lives in a user namespace over which this process has no rights.
    UserNamespace,
    /// It runs as another user or group: as which, and who this is.
    User {
        /// Its user and group.
        other: (u32, u32),
        /// Those of this process.
        me: (u32, u32),
    },
    /// Its real, effective and saved user or group differ.
    MixedUser,
    /// It is not dumpable: it has changed its user, was executed from a file that cannot be read, or asked for it.
    NotDumpable,
    /// It has capabilities that this one has not.
    Capabilities,
    /// Yama, with this ptrace scope.
    Yama(u8),
    /// None of these: another security module.
    Unknown,
}

impl Facts {
    /// What can be found out about `process`, whose user namespace is said to be that of `identity`.
    #[must_use]
    pub fn about(process: &Process, identity: &Identity, me: &Identity) -> Self {
        let own = Status::of("/proc/self");
        let directory = process.directory();
        let other = directory.as_deref().and_then(Status::of);
        let known = |a, b| a != 0 && b != 0;
        Self {
            refused_for_itself: super::vm::allowed_here().err(),
            same_user_ns: known(identity.user_ns, me.user_ns).then_some(identity.user_ns == me.user_ns),
            me: own.as_ref().map(|own| (own.uids[0], own.gids[0])),
            other: other.as_ref().map(|other| {
                let one = |ids: &[u32; 3]| ids[0] == ids[1] && ids[1] == ids[2];
                (other.uids[1], other.gids[1], one(&other.uids) && one(&other.gids))
            }),
            dumpable: other
                .as_ref()
                .zip(directory)
                .and_then(|(other, directory)| is_dumpable(&directory, other.uids[1])),
            may_ptrace: own.as_ref().map(|own| own.effective & CAP_SYS_PTRACE != 0),
            other_has_more: own.zip(other).map(|(own, other)| other.permitted & !own.permitted != 0),
            ptrace_scope: fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope")
                .ok()
                .and_then(|text| text.trim().parse().ok()),
        }
    }

    /// Why these refuse access, as the kernel goes through them.
    #[must_use]
    pub fn judge(&self) -> Denial {
        if let Some(errno) = self.refused_for_itself {
            return Denial::Call(errno);
        }
        if self.same_user_ns == Some(false) {
            return Denial::UserNamespace;
        }
        // With CAP_SYS_PTRACE only Yama at its strictest, or another module, stands in the way.
        if self.may_ptrace != Some(true) {
            if let (Some(me), Some((user, group, one))) = (self.me, self.other) {
                if me != (user, group) {
                    return Denial::User { other: (user, group), me };
                }
                if !one {
                    return Denial::MixedUser;
                }
            }
            if self.dumpable == Some(false) {
                return Denial::NotDumpable;
            }
            if self.other_has_more == Some(true) {
                return Denial::Capabilities;
            }
            if let Some(scope @ 1..) = self.ptrace_scope {
                return Denial::Yama(scope);
            }
        } else if let Some(scope @ 3..) = self.ptrace_scope {
            return Denial::Yama(scope);
        }
        Denial::Unknown
    }
}

impl Denial {
    /// In words.
    #[must_use]
    pub fn reason(&self) -> String {
        match self {
            Self::Call(_) => {
                "the system call is refused here, for every process: by a seccomp filter, or the kernel"
                    .to_owned()
            }
            Self::UserNamespace => "the exporter lives in another user namespace".to_owned(),
            Self::User { other, me } => format!(
                "the exporter runs as user {} and group {}, this process as {} and {}",
                other.0, other.1, me.0, me.1
            ),
            Self::MixedUser => "the exporter's real, effective and saved user or group differ".to_owned(),
            Self::NotDumpable => "the exporter is not dumpable".to_owned(),
            Self::Capabilities => "the exporter has capabilities that this process has not".to_owned(),
            Self::Yama(scope) => format!("Yama forbids it: kernel.yama.ptrace_scope is {scope}"),
            Self::Unknown => "a security module refuses it, or the exporter is not dumpable".to_owned(),
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Call(_) => {
                "allow process_vm_readv and process_vm_writev in the seccomp profile (docker: --cap-add SYS_PTRACE), or export \
                 memory of MemMap::allocate"
            }
            Self::UserNamespace => {
                "run both sides in one user namespace, or import with CAP_SYS_PTRACE in the exporter's, or export memory of \
                 MemMap::allocate"
            }
            Self::User { .. } | Self::MixedUser => {
                "run both sides as one user, or import with CAP_SYS_PTRACE, or export memory of MemMap::allocate"
            }
            Self::NotDumpable => {
                "let the exporter call prctl(PR_SET_DUMPABLE, 1) after it has changed its user, or import with CAP_SYS_PTRACE, or \
                 export memory of MemMap::allocate"
            }
            Self::Capabilities => {
                "give both sides the same capabilities, or import with CAP_SYS_PTRACE, or export memory of MemMap::allocate"
            }
            Self::Yama(1) => {
                "set UCX_CMA_PTRACER_ANY=y for the exporter, or sysctl kernel.yama.ptrace_scope=0, or import with CAP_SYS_PTRACE, \
                 or export memory of MemMap::allocate"
            }
            Self::Yama(2) => {
                "import with CAP_SYS_PTRACE, or sysctl kernel.yama.ptrace_scope=0, or export memory of MemMap::allocate"
            }
            Self::Yama(_) => {
                "boot with another kernel.yama.ptrace_scope (3 cannot be taken back), or export memory of MemMap::allocate"
            }
            Self::Unknown => "see the security module's log, or export memory of MemMap::allocate",
        }
    }
}

/// CAP_SYS_PTRACE in a capability mask: number 19 of `linux/capability.h`.
const CAP_SYS_PTRACE: u64 = 1 << 19;

/// What the file `status` in a process's directory tells (`proc_pid_status(5)`).
#[derive(Debug)]
struct Status {
    /// Real, effective, saved.
    uids: [u32; 3],
    gids: [u32; 3],
    permitted: u64,
    effective: u64,
}

impl Status {
    fn of(directory: &str) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("{directory}/status")).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let ids = |name| {
            let mut ids = line(name)?.split_ascii_whitespace().map(|id| id.parse().ok());
            Some([ids.next()??, ids.next()??, ids.next()??])
        };
        let mask = |name| u64::from_str_radix(line(name)?.trim(), 16).ok();
        Some(Self {
            uids: ids("Uid")?,
            gids: ids("Gid")?,
            permitted: mask("CapPrm")?,
            effective: mask("CapEff")?,
        })
    }
}

/// Whether a process is dumpable: its files in `/proc` belong to its effective user then, and to root otherwise (`proc(5)`).
fn is_dumpable(directory: &str, user: u32) -> Option<bool> {
    let owner = fs::metadata(format!("{directory}/maps")).ok()?.uid();
    (user != 0).then_some(owner == user)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two processes of one user, of which neither is special.
    fn alike() -> Facts {
        Facts {
            refused_for_itself: None,
            same_user_ns: Some(true),
            me: Some((1000, 1000)),
            other: Some((1000, 1000, true)),
            dumpable: Some(true),
            may_ptrace: Some(false),
            other_has_more: Some(false),
            ptrace_scope: None,
        }
    }

    #[test]
    fn each_reason_is_told_apart() {
        let told = |facts: Facts| facts.judge();
        assert_eq!(told(alike()), Denial::Unknown);
        assert_eq!(told(Facts { ptrace_scope: Some(0), ..alike() }), Denial::Unknown);
        for scope in 1..=3 {
            assert_eq!(told(Facts { ptrace_scope: Some(scope), ..alike() }), Denial::Yama(scope));
        }
        let facts = Facts { refused_for_itself: Some(Errno::PERM), ptrace_scope: Some(1), ..alike() };
        assert_eq!(told(facts), Denial::Call(Errno::PERM), "the call itself comes before all");
        assert_eq!(told(Facts { same_user_ns: Some(false), ..alike() }), Denial::UserNamespace);
        let other = Some((1001, 1000, true));
        let facts = Facts { other, dumpable: Some(false), ptrace_scope: Some(1), ..alike() };
        assert_eq!(
            told(facts),
            Denial::User { other: (1001, 1000), me: (1000, 1000) },
            "the user comes before dumpable and Yama"
        );
        assert_eq!(told(Facts { other: Some((1000, 1000, false)), ..alike() }), Denial::MixedUser);
        let facts = Facts { dumpable: Some(false), ptrace_scope: Some(1), ..alike() };
        assert_eq!(told(facts), Denial::NotDumpable, "dumpable comes before Yama");
        assert_eq!(told(Facts { other_has_more: Some(true), ..alike() }), Denial::Capabilities);
    }

    #[test]
    fn the_capability_leaves_only_yama_at_its_strictest() {
        let root = Facts {
            may_ptrace: Some(true),
            me: Some((0, 0)),
            dumpable: Some(false),
            other_has_more: Some(true),
            ..alike()
        };
        for (scope, denial) in
            [(None, Denial::Unknown), (Some(2), Denial::Unknown), (Some(3), Denial::Yama(3))]
        {
            assert_eq!(Facts { ptrace_scope: scope, ..root }.judge(), denial, "{scope:?}");
        }
    }

    #[test]
    fn what_cannot_be_told_is_not_claimed() {
        assert_eq!(Facts::default().judge(), Denial::Unknown);
        assert_eq!(Facts { ptrace_scope: Some(1), ..Facts::default() }.judge(), Denial::Yama(1));
    }

    #[test]
    fn every_denial_has_a_reason_and_a_remedy() {
        let all = [
            Denial::Call(Errno::NOSYS),
            Denial::UserNamespace,
            Denial::User { other: (1, 2), me: (3, 4) },
            Denial::MixedUser,
            Denial::NotDumpable,
            Denial::Capabilities,
            Denial::Yama(1),
            Denial::Yama(2),
            Denial::Yama(3),
            Denial::Unknown,
        ];
        let reasons: std::collections::HashSet<_> = all.iter().map(Denial::reason).collect();
        assert_eq!(reasons.len(), all.len());
        assert!(all.iter().all(|denial| denial.remedy().contains("MemMap::allocate")), "what always works");
        assert!(Denial::Yama(1).remedy().contains("UCX_CMA_PTRACER_ANY"));
        assert!(Denial::Yama(2).reason().contains("ptrace_scope is 2"));
    }

    #[test]
    fn reads_what_the_kernel_tells() {
        let me = Identity::of_self();
        let facts = Facts::about(&Process::open(rustix::process::getpid()).unwrap(), &me, &me);
        assert_eq!(
            (facts.refused_for_itself, facts.same_user_ns, facts.other_has_more),
            (None, Some(true), Some(false))
        );
        let (user, group) = facts.me.unwrap();
        assert_eq!(facts.other, Some((user, group, true)));
        assert_eq!(facts.dumpable, (user != 0).then_some(true));
        let text = "Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nCapPrm:\t0000000000080000\nCapEff:\t0000000000000001\n";
        let status = Status::parse(text).unwrap();
        assert_eq!((status.uids, status.gids), ([1, 2, 3], [5, 6, 7]));
        assert_eq!((status.permitted, status.effective), (CAP_SYS_PTRACE, 1));
        assert!(Status::parse("Uid:\t1\t2\n").is_none());
    }
}
