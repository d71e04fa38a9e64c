//! Who has an access in flight: importers with a page of their own, and those that share the vault's.

use std::collections::HashSet;

use parking_lot::Mutex;
use ucs::mem::{Mapping, MemError, Memfd, SharedBytes};
use ucs::sync::Ordering;

use super::{in_flight, wire};
use crate::process::Process;

/// An in-flight page given to one importer.
#[derive(Debug)]
pub struct ImporterPage {
    map: Mapping,
    process: Option<Process>,
    /// The exports it was granted: what it announces of others means nothing.
    granted: Mutex<HashSet<u64>>,
}

impl ImporterPage {
    /// Makes a page for the importer `process`, which is taken, and the memfd to pass to it.
    ///
    /// # Errors
    /// [`MemError`]; the process is left then.
    pub fn create(process: &mut Option<Process>) -> Result<(Self, Memfd), MemError> {
        let (file, map) = Memfd::create("rucx-in-flight", wire::SLOTS_LEN, false)?;
        wire::tell_address(map.bytes());
        Ok((Self { map, process: process.take(), granted: Mutex::default() }, file))
    }

    /// Takes note that it may access export `id`. Answers whether that is new.
    pub fn grant(&self, id: u64) -> bool {
        self.granted.lock().insert(id)
    }

    /// Forgets export `id`, which has been drained.
    pub fn forget(&self, id: u64) {
        self.granted.lock().remove(&id);
    }

    fn announced(&self) -> impl Iterator<Item = u64> {
        let word = |slot| wire::announced(self.map.bytes(), slot);
        (0..wire::SLOTS).filter_map(word).map(|word| word.load(Ordering::Acquire)).filter(|id| *id != 0)
    }

    /// Whether the importer has ended. (When it ends its connection, the page is removed.)
    fn is_dead(&self) -> bool {
        self.process.as_ref().is_some_and(Process::is_dead)
    }

    pub(super) fn holds(&self, id: u64) -> bool {
        self.announced().any(|announced| announced == id)
            && self.granted.lock().contains(&id)
            && !self.is_dead()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.as_ref().map_or(0, Process::pid)
    }
}

/// Importers that came with ptrace rights and have an access to export `id` in flight.
pub(super) fn vault_holders(vault: &SharedBytes, id: u64) -> Vec<u32> {
    let holder = |slot| {
        let announced = wire::announced(vault, slot)?;
        let owner = wire::owner(vault, slot)?.load(Ordering::Acquire);
        let inode = wire::owner_inode(vault, slot)?.load(Ordering::Acquire);
        let inside = !in_flight::is_clear(announced, id) && !is_gone(owner, inode);
        inside.then(|| u32::try_from(owner).unwrap_or(0))
    };
    (0..wire::SLOTS).filter_map(holder).collect()
}

/// Claims a slot of a vault for the process `pid` with pidfd inode `inode`: a free one, or one whose importer has ended.
pub(super) fn claim_vault_slot(vault: &SharedBytes, pid: u32, inode: u64) -> Option<usize> {
    let pid = u64::from(pid);
    let free = |slot: &usize| take_over(vault, *slot, 0, pid, inode).is_some();
    let dead = |slot: &usize| {
        let owner = wire::owner(vault, *slot).map_or(0, |owner| owner.load(Ordering::Acquire));
        owner != 0 && take_over(vault, *slot, owner, pid, inode).is_some()
    };
    (0..wire::SLOTS).find(free).or_else(|| (0..wire::SLOTS).find(dead))
}

/// Takes a slot from `owner`, which has ended (or is 0: nobody).
///
/// Whoever is killed at any point of this leaves a slot whose owner has ended. While the inode is 0, the pid alone decides: so
/// it is 0 from before the slot has its new owner until all of it is the new owner's.
fn take_over(vault: &SharedBytes, slot: usize, owner: u64, pid: u64, inode: u64) -> Option<()> {
    let (owner_word, inode_word) = (wire::owner(vault, slot)?, wire::owner_inode(vault, slot)?);
    let announced = wire::announced(vault, slot)?;
    let found = inode_word.load(Ordering::Acquire);
    if owner != 0 {
        if !is_gone(owner, found) {
            return None;
        }
        inode_word.compare_exchange(found, 0, Ordering::AcqRel, Ordering::Relaxed).ok()?;
    }
    owner_word.compare_exchange(owner, pid, Ordering::AcqRel, Ordering::Relaxed).ok()?;
    announced.store(0, Ordering::Release);
    inode_word.store(inode, Ordering::Release);
    Some(())
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// The pid of a process that has ended.
    fn dead() -> u64 {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        u64::from(child.id())
    }

    fn vault() -> Mapping {
        Mapping::anonymous(wire::SLOTS_LEN).unwrap()
    }

    #[test]
    fn slots_of_the_dead_are_taken_over_wherever_they_were_left() {
        let me = crate::process::Identity::of_self();
        let vault = vault();
        let bytes = vault.bytes();
        // In use, while taking over before and after the owner was set; with and without an inode.
        for slot in 0..wire::SLOTS {
            wire::announced(bytes, slot).unwrap().store(7, Ordering::Relaxed);
            wire::owner(bytes, slot).unwrap().store(dead(), Ordering::Relaxed);
            wire::owner_inode(bytes, slot)
                .unwrap()
                .store(if slot % 2 == 0 { 0 } else { 99 }, Ordering::Relaxed);
        }
        assert!(vault_holders(bytes, 7).is_empty(), "the dead hold nothing");
        for slot in 0..wire::SLOTS {
            assert_eq!(claim_vault_slot(bytes, me.pid, me.pidfd_inode), Some(slot));
            assert_eq!(wire::announced(bytes, slot).unwrap().load(Ordering::Relaxed), 0);
        }
        assert_eq!(claim_vault_slot(bytes, me.pid, me.pidfd_inode), None, "the living keep theirs");
        wire::announced(bytes, 3).unwrap().store(7, Ordering::Relaxed);
        assert_eq!(vault_holders(bytes, 7), [me.pid]);
        if me.pidfd_inode == 0 {
            return; // before Linux 6.9 a process cannot be told from another one that has its pid
        }
        // A pid that another process has now is not the owner's.
        wire::owner_inode(bytes, 3).unwrap().store(me.pidfd_inode + 1, Ordering::Relaxed);
        assert!(vault_holders(bytes, 7).is_empty());
        assert_eq!(claim_vault_slot(bytes, me.pid, me.pidfd_inode), Some(3));
    }

    #[test]
    fn a_slot_is_taken_over_once() {
        let me = crate::process::Identity::of_self();
        for _ in 0..50 {
            let vault = std::sync::Arc::new(vault());
            for slot in 0..8 {
                wire::owner(vault.bytes(), slot).unwrap().store(dead(), Ordering::Relaxed);
            }
            let claims: Vec<_> = (0..4)
                .map(|_| {
                    let vault = std::sync::Arc::clone(&vault);
                    std::thread::spawn(move || {
                        let claim = || claim_vault_slot(vault.bytes(), me.pid, me.pidfd_inode);
                        (0..wire::SLOTS / 4).map(|_| claim().unwrap()).collect::<Vec<_>>()
                    })
                })
                .collect();
            let mut slots: Vec<_> = claims.into_iter().flat_map(|claim| claim.join().unwrap()).collect();
            slots.sort_unstable();
            slots.dedup();
            assert_eq!(slots.len(), wire::SLOTS);
        }
    }
}
