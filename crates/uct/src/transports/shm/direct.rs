//! Getting an exporter's descriptors without its help, with ptrace rights over it.
//!
//! Whoever has these rights could read all of the exporter's memory anyway; the token is compared all the same, against the
//! exporter's vault, so that a wrong handle is told.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, fstat, open};
use rustix::io::Errno;
use rustix::process::Pid;
use ucs::mem::{Access, Mapping, MemError, Memfd};
use ucs::sync::Ordering;

use super::Methods;
use super::mkey::Mkey;
use super::peer::{Channel, GONE, Reached, Region, recognised, unsafe_memory};
use crate::api::AttachError;
use crate::export::gate::SlotSet;
use crate::export::{Claim, Token, wire};
use crate::process::{Identity, Process};

/// An exporter whose descriptors are taken.
#[derive(Debug)]
pub(super) struct Direct {
    process: Process,
    method: Methods,
    slots: Arc<SlotSet>,
}

/// Reaches the exporter of `key` by `method`.
pub(super) fn connect(
    method: Methods,
    key: &Mkey,
    claim: &Claim,
    me: &Identity,
) -> Result<(Reached, Region, String), AttachError> {
    let process = open_process(key, me)?;
    let table = take(method, &process, key.files.table)?;
    let vault = take(method, &process, key.files.vault)?;
    let table = Memfd::map_foreign(table.as_fd(), wire::TABLE_LEN, Access::Read).map_err(unsafe_memory)?;
    let vault =
        Memfd::map_foreign(vault.as_fd(), wire::VAULT_LEN, Access::ReadWrite).map_err(unsafe_memory)?;
    let slots = SlotSet::claim_in_vault(vault, me).ok_or(AttachError::Unreachable {
        reason: "all in-flight slots the exporter shares out are taken".to_owned(),
        remedy: "have fewer importers that do not use the service socket",
    })?;
    let (table, slots) = (Arc::new(table), Arc::new(slots));
    let direct = Direct { process, method, slots: Arc::clone(&slots) };
    let region = direct.region(key, claim, &table)?;
    let how = direct.how().to_owned();
    Ok((Reached { table, slots, channel: Channel::Direct(direct) }, region, how))
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
fn take(method: Methods, process: &Process, (fd, inode): (u32, u64)) -> Result<OwnedFd, AttachError> {
    let taken = if method == Methods::PROC {
        let path = format!("/proc/{}/fd/{fd}", process.pid());
        ("open(/proc/PID/fd)", open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()))
    } else {
        ("pidfd_getfd", process.fetch(fd))
    };
    let closed = AttachError::Stale("the exporter has closed the memory");
    let taken = match taken {
        (_, Ok(taken)) => taken,
        (_, Err(Errno::NOENT | Errno::BADF | Errno::NXIO)) => return Err(closed),
        (_, Err(Errno::SRCH)) => return Err(GONE),
        (call, Err(errno @ (Errno::MFILE | Errno::NFILE))) => return Err(MemError::of(call, errno, 0).into()),
        (call, Err(errno)) => return Err(denied(call, errno)),
    };
    // The path names a pid: it meant the exporter only if that still lives.
    if process.is_dead() {
        return Err(GONE);
    }
    match fstat(&taken) {
        Ok(stat) if stat.st_ino == inode => Ok(taken),
        _ => Err(closed),
    }
}

impl Direct {
    pub(super) fn process(&self) -> &Process {
        &self.process
    }

    pub(super) fn how(&self) -> &'static str {
        if self.method == Methods::PROC {
            "descriptor taken from /proc/PID/fd"
        } else {
            "descriptor taken by pidfd_getfd"
        }
    }

    /// Compares the claim with the exporter's books, and takes the region's descriptor.
    pub(super) fn region(&self, key: &Mkey, claim: &Claim, table: &Mapping) -> Result<Region, AttachError> {
        let stale = AttachError::Stale("the export was revoked or dropped");
        let epoch = wire::epoch(table.bytes(), claim.slot).ok_or(stale.clone())?;
        let alive = || epoch.load(Ordering::Acquire) == claim.epoch;
        let line = wire::read_line(table.bytes(), claim.slot).filter(|line| line.id == claim.id && alive());
        let line = line.ok_or(stale.clone())?;
        let token = wire::read_token(self.slots.page().bytes(), claim.slot).map(Token::from_bytes);
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
