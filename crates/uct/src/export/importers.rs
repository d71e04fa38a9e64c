//! Who has an access in flight: importers with a page of their own, and those that share the vault's.

use std::collections::HashSet;

use parking_lot::Mutex;
use ucs::mem::{Mapping, MemError, Memfd, SharedBytes};
use ucs::sync::{AtomicBool, Ordering};

use super::{in_flight, wire};
use crate::process::Process;

/// An in-flight page given to one importer.
#[derive(Debug)]
pub struct ImporterPage {
    map: Mapping,
    process: Option<Process>,
    /// The exports it was granted: what it announces of others means nothing.
    granted: Mutex<HashSet<u64>>,
    /// Whether its connection has ended.
    closed: AtomicBool,
}

impl ImporterPage {
    /// Makes a page for the importer `process`, and the memfd to pass to it.
    ///
    /// # Errors
    /// [`MemError`].
    pub fn create(process: Option<Process>) -> Result<(Self, Memfd), MemError> {
        let (file, map) = Memfd::create("rucx-in-flight", wire::SLOTS_LEN, false)?;
        let (granted, closed) = (Mutex::default(), AtomicBool::new(false));
        Ok((Self { map, process, granted, closed }, file))
    }

    /// Takes note that it may access export `id`.
    pub fn grant(&self, id: u64) {
        self.granted.lock().insert(id);
    }

    /// Forgets export `id`, which has been drained.
    pub(super) fn forget(&self, id: u64) {
        self.granted.lock().remove(&id);
    }

    /// Takes note that its connection has ended.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Whether nothing is in flight: no slot announces an export it was granted, or the importer is dead.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let granted = self.granted.lock();
        self.is_dead() || !self.announced().any(|id| granted.contains(&id))
    }

    fn announced(&self) -> impl Iterator<Item = u64> {
        let word = |slot| wire::announced(self.map.bytes(), slot);
        (0..wire::SLOTS).filter_map(word).map(|word| word.load(Ordering::Acquire)).filter(|id| *id != 0)
    }

    /// Whether the importer has ended. Where the kernel does not tell, the end of its connection does: an importer that lives
    /// keeps it as long as it can access anything.
    fn is_dead(&self) -> bool {
        match &self.process {
            Some(process) => process.is_dead(),
            None => self.closed.load(Ordering::Acquire),
        }
    }

    pub(super) fn holds(&self, id: u64) -> bool {
        self.announced().any(|announced| announced == id)
            && self.granted.lock().contains(&id)
            && !self.is_dead()
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.as_ref().map_or(0, Process::pid)
    }
}

/// The owner word of a slot that is just being taken from a dead importer: no process has this pid.
const RECLAIMING: u64 = u64::MAX;

/// Importers that came with ptrace rights and have an access to export `id` in flight.
pub(super) fn vault_holders(vault: &SharedBytes, id: u64) -> Vec<u32> {
    let announces =
        |slot: &usize| wire::announced(vault, *slot).is_some_and(|word| !in_flight::is_clear(word, id));
    let held = (0..wire::SLOTS).filter(announces).filter(|slot| !reclaim(vault, *slot));
    held.filter_map(|slot| wire::owner(vault, slot))
        .map(|owner| u32::try_from(owner.load(Ordering::Acquire)).unwrap_or(0))
        .collect()
}

/// Frees the slots of the vault whose importers have ended.
pub(super) fn reclaim_vault(vault: &SharedBytes) {
    for slot in 0..wire::SLOTS {
        reclaim(vault, slot);
    }
}

/// Frees a slot if its importer has ended; answers whether it has.
fn reclaim(vault: &SharedBytes, slot: usize) -> bool {
    let words = (wire::announced(vault, slot), wire::owner(vault, slot), wire::owner_inode(vault, slot));
    let (Some(announced), Some(owner), Some(inode)) = words else { return false };
    let pid = owner.load(Ordering::Acquire);
    let gone = || is_gone(pid, inode.load(Ordering::Acquire));
    if pid == 0 || pid == RECLAIMING || !gone() {
        return false;
    }
    // One thread takes it, and nobody claims it before it is free; what was found must still hold then.
    if owner.compare_exchange(pid, RECLAIMING, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return false;
    }
    let gone = gone();
    if gone {
        announced.store(0, Ordering::Release);
        inode.store(0, Ordering::Release);
    }
    owner.store(if gone { 0 } else { pid }, Ordering::Release);
    gone
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
