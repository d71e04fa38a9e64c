//! Who has an access in flight: importers with a page of their own, and those that share the vault's.

use ucs::mem::{Mapping, MemError, Memfd, SharedBytes};
use ucs::sync::Ordering;

use super::{in_flight, wire};
use crate::process::Process;

/// An in-flight page given to one importer.
#[derive(Debug)]
pub struct ImporterPage {
    map: Mapping,
    process: Option<Process>,
}

impl ImporterPage {
    /// Makes a page for the importer `process`, and the memfd to pass to it.
    ///
    /// # Errors
    /// [`MemError`].
    pub fn create(process: Option<Process>) -> Result<(Self, Memfd), MemError> {
        let (file, map) = Memfd::create("rucx-in-flight", wire::SLOTS_LEN, false)?;
        Ok((Self { map, process }, file))
    }

    /// Whether nothing is in flight: no slot announces anything, or the importer is dead.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let clear = |slot| {
            wire::announced(self.map.bytes(), slot).is_none_or(|word| word.load(Ordering::Acquire) == 0)
        };
        (0..wire::SLOTS).all(clear) || self.is_dead()
    }

    fn is_dead(&self) -> bool {
        self.process.as_ref().is_some_and(Process::is_dead)
    }

    pub(super) fn holds(&self, id: u64) -> bool {
        let set =
            |slot| wire::announced(self.map.bytes(), slot).is_some_and(|word| !in_flight::is_clear(word, id));
        (0..wire::SLOTS).any(set) && !self.is_dead()
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.as_ref().map_or(0, Process::pid)
    }
}

/// Importers that came with ptrace rights and have an access in flight; slots of dead ones are freed on the way.
pub(super) fn vault_holders(vault: &SharedBytes, id: u64) -> Vec<u32> {
    let mut holders = Vec::new();
    for slot in 0..wire::SLOTS {
        let words = (wire::announced(vault, slot), wire::owner(vault, slot), wire::owner_inode(vault, slot));
        let (Some(announced), Some(owner), Some(inode)) = words else { continue };
        let pid = owner.load(Ordering::Acquire);
        if pid == 0 {
            continue;
        }
        if is_gone(pid, inode.load(Ordering::Acquire)) {
            inode.store(0, Ordering::Release);
            announced.store(0, Ordering::Release);
            owner.store(0, Ordering::Release);
        } else if !in_flight::is_clear(announced, id) {
            holders.push(u32::try_from(pid).unwrap_or(0));
        }
    }
    holders
}

/// Whether the process that had `pid` and a pidfd with this inode (0: unknown) has certainly ended.
fn is_gone(pid: u64, inode: u64) -> bool {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    let Some(pid) = pid else { return false };
    match Process::open(pid) {
        Ok(process) => process.is_dead() || (inode != 0 && process.inode().is_some_and(|now| now != inode)),
        Err(errno) => errno == rustix::io::Errno::SRCH,
    }
}
