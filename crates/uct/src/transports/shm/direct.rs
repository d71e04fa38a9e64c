//! Getting an exporter's descriptors without its help, with ptrace rights over it.
//!
//! Whoever has these rights could read all of the exporter's memory anyway; the token is compared all the same, against the
//! exporter's vault, so that a wrong handle is told.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::Errno;
use rustix::process::Pid;
use ucs::mem::{Access, MemError, Memfd};
use ucs::sync::{Ordering, fence};

use super::Methods;
use super::mkey::Mkey;
use crate::api::AttachError;
use crate::export::gate::SlotSet;
use crate::export::table::FileNumbers;
use crate::export::{Claim, Token, wire};
use crate::memory::Rights;
use crate::process::{Identity, Process};
use crate::service::peers::{GONE, recognised, unsafe_memory};
use crate::service::watch::Watch;
use crate::service::{Exporter, Link, Service};

/// An exporter whose descriptors are taken.
#[derive(Debug)]
pub(super) struct Direct {
    link: Link,
    process: Arc<Process>,
    method: Methods,
    slots: Arc<SlotSet>,
}

/// A region's memfd, and what may be done with it.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) fd: OwnedFd,
    pub(super) rights: Rights,
}

/// All by which a handle names its exporter, and its descriptors.
type Named = (Exporter, FileNumbers);

/// Held locked while an exporter is reached, so that many threads reach it once.
type Entry = Arc<Mutex<Weak<Direct>>>;

/// The exporters that were reached in this way.
#[derive(Debug, Default)]
pub(super) struct Directs {
    known: Mutex<HashMap<Named, Entry>>,
}

impl Directs {
    fn entry(&self, named: Named) -> Entry {
        let mut known = self.known.lock();
        known.retain(|_, entry| Arc::strong_count(entry) > 1 || entry.lock().strong_count() > 0);
        Arc::clone(known.entry(named).or_default())
    }

    /// The exporter, if it has been reached and lives.
    pub(super) fn known(&self, exporter: &Exporter, key: &Mkey) -> Option<Arc<Direct>> {
        let entry = self.known.lock().get(&(exporter.clone(), key.files)).cloned()?;
        let known = entry.lock().upgrade();
        known.filter(|direct| !direct.link.is_gone())
    }

    /// Reaches the exporter of `key` by `method`.
    pub(super) fn reach(
        &self,
        method: Methods,
        exporter: &Exporter,
        key: &Mkey,
        claim: &Claim,
        service: &Service,
    ) -> Result<(Arc<Direct>, Region), AttachError> {
        let entry = self.entry((exporter.clone(), key.files));
        let mut entry = entry.lock(); // nobody waits under it
        let known = entry.upgrade().filter(|direct| direct.method == method && !direct.link.is_gone());
        let direct = match known {
            Some(direct) => direct,
            None => Arc::new(Direct::connect(method, key, service)?),
        };
        let region = direct.region(key, claim)?;
        *entry = Arc::downgrade(&direct);
        Ok((direct, region))
    }
}

fn open_process(key: &Mkey, me: &Identity) -> Result<Process, AttachError> {
    if key.exporter.pid_ns == 0 || key.exporter.pid_ns != me.pid_ns {
        return Err(AttachError::Unreachable {
            reason: "the exporter lives in another pid namespace".to_owned(),
            remedy: "run both sides in one pid namespace (docker: --pid container:NAME or host)",
        });
    }
    let pid = i32::try_from(key.exporter.pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or(AttachError::Malformed("the exporter's pid is none"))?;
    let process = Process::open(pid).map_err(|errno| match errno {
        Errno::SRCH => GONE,
        errno => denied("pidfd_open", errno),
    })?;
    recognised(&process, &key.exporter)?;
    Ok(process)
}

fn denied(call: &str, errno: Errno) -> AttachError {
    AttachError::Unreachable {
        reason: format!("{call}: {errno}"),
        remedy: "run as the exporter's user, with ptrace allowed (kernel.yama.ptrace_scope, CAP_SYS_PTRACE), or use the \
                 service socket",
    }
}

/// The descriptor that the exporter numbers `fd`, if it is still the file with `inode`.
///
/// The number comes from a handle. So what it names is looked at before it is opened: opening a device or a pipe could do harm.
fn take(method: Methods, process: &Process, (fd, inode): (u32, u64)) -> Result<OwnedFd, AttachError> {
    let (call, taken) = if method == Methods::PROC {
        let directory = process.directory().ok_or(AttachError::Unreachable {
            reason: "the exporter is not in /proc".to_owned(),
            remedy: "mount the /proc of both sides' pid namespace",
        })?;
        let path = format!("{directory}/fd/{fd}");
        ("open(/proc/PID/fd)", open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()))
    } else {
        ("pidfd_getfd", process.fetch(fd))
    };
    let taken = taken.map_err(|errno| missing(process, errno).unwrap_or_else(|| failed(call, errno)))?;
    // The path names a pid: it meant the exporter only if that still lives.
    if process.is_dead() {
        return Err(GONE);
    }
    let same = fstat(&taken).is_ok_and(|stat| {
        stat.st_ino == inode && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
    });
    if !same || !Memfd::may_be(taken.as_fd()) {
        return Err(CLOSED);
    }
    if method != Methods::PROC {
        return Ok(taken);
    }
    let path = format!("/proc/self/fd/{}", taken.as_raw_fd());
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    open(path, flags, Mode::empty()).map_err(|errno| failed(call, errno))
}

/// What it means that there is no such descriptor, unless it was closed: that must be seen to be said.
fn missing(process: &Process, errno: Errno) -> Option<AttachError> {
    if !matches!(errno, Errno::NOENT | Errno::BADF | Errno::SRCH) {
        return None;
    }
    if process.is_dead() {
        return Some(GONE);
    }
    let seen = || std::fs::read_dir(format!("{}/fd", process.directory()?)).ok()?.next();
    let any = seen().is_some();
    (!any).then(|| AttachError::Unreachable {
        reason: "the exporter's descriptors are not shown here: /proc hides it (hidepid), or its main thread has ended".to_owned(),
        remedy: "mount /proc without hidepid, keep the exporter's main thread, or use the service socket",
    })
}

const CLOSED: AttachError = AttachError::Stale("the exporter has closed the memory");

fn failed(call: &'static str, errno: Errno) -> AttachError {
    match errno {
        Errno::NOENT | Errno::BADF | Errno::NXIO => CLOSED,
        Errno::SRCH => GONE,
        Errno::MFILE | Errno::NFILE => MemError::of(call, errno, 0).into(),
        errno => denied(call, errno),
    }
}

impl Direct {
    fn connect(method: Methods, key: &Mkey, service: &Service) -> Result<Self, AttachError> {
        let process = Arc::new(open_process(key, service.me())?);
        let table = take(method, &process, key.files.table)?;
        let vault = take(method, &process, key.files.vault)?;
        let table =
            Memfd::map_foreign(table.as_fd(), wire::TABLE_LEN, Access::Read).map_err(unsafe_memory)?;
        let vault =
            Memfd::map_foreign(vault.as_fd(), wire::VAULT_LEN, Access::ReadWrite).map_err(unsafe_memory)?;
        if wire::epoch_now(table.bytes(), 0) != Some(wire::TABLE_MAGIC) {
            return Err(AttachError::Malformed("its table is no export table"));
        }
        let slots = SlotSet::claim_in_vault(vault, service.me()).ok_or(AttachError::Unreachable {
            reason: "all in-flight slots the exporter shares out are taken".to_owned(),
            remedy: "have fewer importers that do not use the service socket",
        })?;
        let slots = Arc::new(slots);
        let watches = vec![Watch::Process(Arc::clone(&process))];
        let link = Link::new(Arc::new(table), Arc::clone(&slots), service, watches)?;
        Ok(Self { link, process, method, slots })
    }

    pub(super) fn link(&self) -> &Link {
        &self.link
    }

    pub(super) fn how(&self) -> &'static str {
        if self.method == Methods::PROC {
            "descriptor taken from /proc/PID/fd"
        } else {
            "descriptor taken by pidfd_getfd"
        }
    }

    /// Compares the claim with the exporter's books, and takes the region's descriptor.
    pub(super) fn region(&self, key: &Mkey, claim: &Claim) -> Result<Region, AttachError> {
        let table = self.link.table();
        let stale = AttachError::Stale("the export was revoked or dropped");
        // The epoch is looked at before and after: what was read in between then belongs to it.
        let alive = || wire::epoch_now(table.bytes(), claim.slot) == Some(claim.epoch);
        let line = if alive() { wire::read_line(table.bytes(), claim.slot) } else { None };
        let line = line.filter(|line| line.id == claim.id).ok_or(stale.clone())?;
        let token = wire::read_token(self.slots.page().bytes(), claim.slot).map(Token::from_bytes);
        fence(Ordering::Acquire);
        if !alive() {
            return Err(stale);
        }
        if token != Some(claim.token) {
            return Err(AttachError::WrongToken);
        }
        if (line.address, line.length) != (claim.address, claim.length) {
            return Err(AttachError::Mismatch);
        }
        let fd = take(self.method, &self.process, key.region)?;
        Ok(Region { fd, rights: line.rights })
    }
}
