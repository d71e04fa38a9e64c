//! The exporter's side: what is exported now, and who is inside.

use std::collections::HashMap;
use std::fmt;
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rustix::rand::{GetRandomFlags, getrandom};
use ucs::fork::{self, Generation};
use ucs::mem::{Mapping, MemError, Memfd};
use ucs::time::Deadline;

use super::error::{ExportError, NotRevoked, Refusal};
use super::gate::SlotSet;
use super::importers::{ImporterPage, vault_holders};
use super::in_flight;
use super::placements::{Making, Placements, Which};
use super::registry;
use super::token::Token;
use super::wire;
use crate::memory::{LocalMem, Rights};
use crate::service::{Placement, Secret};

/// Where an export is announced, and how it is recognised: what transports put into keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The line of the table.
    pub slot: u32,
    /// The id, never used again in this context.
    pub id: u64,
    /// The epoch in which it lives.
    pub epoch: u64,
    /// Where the memory begins in the exporter's address space.
    pub address: u64,
    /// How many bytes.
    pub length: u64,
    /// Its secret.
    pub token: Token,
}

/// The shared memory of a table, made at the first export.
#[derive(Debug)]
struct Shared {
    table_file: Memfd,
    table: Arc<Mapping>,
    /// Kept open for importers with ptrace rights.
    _vault_file: Memfd,
    vault: Mapping,
    numbers: Option<FileNumbers>,
}

impl Shared {
    fn create() -> Result<Self, MemError> {
        let (table_file, table) = Memfd::create("rucx-exports", wire::TABLE_LEN, true)?;
        let (vault_file, vault) = Memfd::create("rucx-vault", wire::VAULT_LEN, false)?;
        if let Some(magic) = wire::epoch(table.bytes(), 0) {
            magic.store(wire::TABLE_MAGIC, ucs::sync::Ordering::Release);
        }
        let numbers = number(&table_file).zip(number(&vault_file));
        let numbers = numbers.map(|(table, vault)| FileNumbers { table, vault });
        vault.leave_out_of_dumps()?;
        Ok(Self { table_file, table: Arc::new(table), _vault_file: vault_file, vault, numbers })
    }
}

struct Record {
    claim: Claim,
    mem: Arc<LocalMem>,
}

/// An export that could not be drained in time: its memory waits here.
struct Kept {
    claim: Claim,
    mem: Arc<LocalMem>,
}

struct State {
    records: Vec<Option<Record>>,
    free: Vec<u32>,
    /// The epoch each line had last; even when nothing lives there.
    epochs: Vec<u64>,
    next_id: u64,
    /// Secrets: of exports by their streams, from 1 on; of all else from stream 0.
    random: ChaCha12Rng,
    kept: Vec<Kept>,
}

impl State {
    /// The token of an export: the beginning of the stream of this number. So those that have ended are known without being kept.
    fn token_of(&self, id: u64) -> Token {
        let mut random = self.random.clone();
        random.set_stream(id);
        random.set_word_pos(0);
        let mut token = [0; wire::TOKEN_LEN];
        random.fill_bytes(&mut token);
        Token::from_bytes(token)
    }
}

/// All exports of a context. Send + Sync; shared by `Arc` with the context's memory domains and its service.
pub struct ExportTable {
    uuid: [u8; 16],
    generation: Generation,
    revoke_timeout: Duration,
    shared: OnceLock<Shared>,
    /// In-flight slots of importers in this very process.
    local: OnceLock<Arc<SlotSet>>,
    pages: Mutex<Vec<Arc<ImporterPage>>>,
    placements: Placements,
    state: Mutex<State>,
}

impl fmt::Debug for ExportTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExportTable").finish_non_exhaustive() // without the lock: it may be held for ever in a fork's child
    }
}

/// Figures of an export table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportStats {
    /// Exports alive.
    pub live: usize,
    /// Bytes of memory kept because an access to them has not ended.
    pub kept_bytes: u64,
}

/// Descriptors of a table, as this process numbers them, and their inodes: for importers with ptrace rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileNumbers {
    /// Descriptor and inode of the table.
    pub table: (u32, u64),
    /// Descriptor and inode of the vault.
    pub vault: (u32, u64),
}

impl ExportTable {
    /// An empty table; its shared memory is made at the first export. `revoke_timeout` bounds each revocation.
    ///
    /// # Errors
    /// [`ExportError::Random`].
    pub fn new(revoke_timeout: Duration) -> Result<Self, ExportError> {
        let mut seed = [0; 48];
        let mut filled = 0;
        while filled < seed.len() {
            filled += getrandom(&mut seed[filled..], GetRandomFlags::empty()).map_err(ExportError::Random)?;
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&seed[..16]);
        let mut key = [0; 32];
        key.copy_from_slice(&seed[16..]);
        let state = State {
            records: vec![None],
            free: Vec::new(),
            epochs: vec![0],
            next_id: 1,
            random: ChaCha12Rng::from_seed(key),
            kept: Vec::new(),
        };
        Ok(Self {
            uuid,
            generation: fork::generation(),
            revoke_timeout,
            shared: OnceLock::new(),
            local: OnceLock::new(),
            pages: Mutex::new(Vec::new()),
            placements: Placements::default(),
            state: Mutex::new(state),
        })
    }

    /// A new secret, of nothing that is exported.
    #[must_use]
    pub fn token(&self) -> Token {
        let mut token = [0; wire::TOKEN_LEN];
        self.state.lock().random.fill_bytes(&mut token);
        Token::from_bytes(token)
    }

    /// The context's id: 16 random bytes.
    #[must_use]
    pub fn uuid(&self) -> &[u8; 16] {
        &self.uuid
    }

    /// Whether this is the process that made the table, and not a fork's child.
    #[must_use]
    pub fn is_mine(&self) -> bool {
        self.generation.is_current()
    }

    /// Figures.
    #[must_use]
    pub fn stats(&self) -> ExportStats {
        let state = self.state.lock();
        ExportStats {
            live: state.records.iter().flatten().count(),
            kept_bytes: {
                let kept = state.kept.iter().map(|kept| (Arc::as_ptr(&kept.mem), kept.mem.len() as u64));
                kept.collect::<HashMap<_, _>>().values().sum()
            },
        }
    }

    fn shared(&self) -> Result<&Shared, MemError> {
        if let Some(shared) = self.shared.get() {
            return Ok(shared);
        }
        // Under the state lock (held by the caller), so it is made once.
        let shared = Shared::create()?;
        Ok(self.shared.get_or_init(|| shared))
    }

    /// Exports `mem` under a new id and token.
    ///
    /// # Errors
    /// [`ExportError`].
    pub fn publish(self: &Arc<Self>, mem: &Arc<LocalMem>) -> Result<Export, ExportError> {
        if !self.is_mine() {
            return Err(ExportError::Forked);
        }
        if self.shared.get().is_none() {
            registry::enter(self);
        }
        let mut state = self.state.lock();
        let shared = self.shared()?;
        let slot = match state.free.pop() {
            Some(slot) => slot,
            None if state.records.len() < wire::TABLE_LINES => {
                state.records.push(None);
                state.epochs.push(0);
                u32::try_from(state.records.len() - 1).unwrap_or(u32::MAX)
            }
            None => return Err(ExportError::TableFull { limit: wire::TABLE_LINES - 1 }),
        };
        let id = state.next_id;
        state.next_id += 1;
        let token = state.token_of(id);
        let index = slot as usize;
        let epoch = state.epochs[index] + 1;
        state.epochs[index] = epoch;
        let claim = Claim { slot, id, epoch, address: mem.address(), length: mem.len() as u64, token };
        let line = wire::Line { id, address: claim.address, length: claim.length, rights: mem.rights() };
        let written = wire::write_line(shared.table.bytes(), slot, &line)
            .and_then(|()| wire::write_token(shared.vault.bytes(), slot, token.as_bytes()))
            .and_then(|()| wire::epoch(shared.table.bytes(), slot));
        debug_assert!(written.is_some(), "line {slot} lies in the table");
        if let Some(word) = written {
            word.store(epoch, ucs::sync::Ordering::Release);
        }
        mem.mark_packed();
        state.records[index] = Some(Record { claim, mem: Arc::clone(mem) });
        Ok(Export { table: Arc::clone(self), claim, rights: mem.rights() })
    }

    /// The memory a claim names, if it names a living export whose token it has.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn verify(&self, claim: &Claim) -> Result<Arc<LocalMem>, Refusal> {
        let state = self.state.lock();
        let record = state.records.get(claim.slot as usize).and_then(Option::as_ref);
        let record = record.filter(|record| record.claim.id == claim.id).ok_or(Refusal::Stale)?;
        if record.claim.token != claim.token {
            return Err(Refusal::WrongToken);
        }
        if record.claim == *claim { Ok(Arc::clone(&record.mem)) } else { Err(Refusal::Mismatch) }
    }

    /// What is known of an export: its token, also of one that has ended.
    #[must_use]
    pub fn secret(&self, slot: u32, id: u64) -> Secret {
        let state = self.state.lock();
        let record = state.records.get(slot as usize).and_then(Option::as_ref);
        match record.filter(|record| record.claim.id == id) {
            Some(record) => Secret::Live(record.claim.token),
            None if (1..state.next_id).contains(&id) => Secret::Ended(state.token_of(id)),
            None => Secret::Unknown,
        }
    }

    /// The mapping of the table, for importers in this process, and their in-flight slots.
    ///
    /// # Errors
    /// [`MemError`].
    pub fn local_view(&self) -> Result<(Arc<Mapping>, Arc<SlotSet>), MemError> {
        let _state = self.state.lock();
        let table = Arc::clone(&self.shared()?.table);
        if self.local.get().is_none() {
            let slots = Arc::new(SlotSet::new(Mapping::anonymous(wire::SLOTS_LEN)?, 0..wire::SLOTS));
            let _ = self.local.set(slots);
        }
        let slots = self.local.get().ok_or(MemError::NoMemory { wanted: wire::SLOTS_LEN as u64 })?;
        Ok((table, Arc::clone(slots)))
    }

    /// The table's memfd, once there is one: to be passed to importers.
    pub fn table_file(&self) -> Option<impl AsFd + '_> {
        self.shared.get().map(|shared| &shared.table_file)
    }

    /// The numbers of its descriptors, once there are any.
    #[must_use]
    pub fn file_numbers(&self) -> Option<FileNumbers> {
        self.shared.get()?.numbers
    }

    /// Takes note of an importer's in-flight page: revocations look at it from now on.
    pub fn add_page(&self, page: &Arc<ImporterPage>) {
        self.pages.lock().push(Arc::clone(page));
    }

    /// Forgets the page of an importer whose connection has ended: with it ends all that it could access, by exit or by exec.
    pub fn remove_page(&self, page: &Arc<ImporterPage>) {
        self.pages.lock().retain(|other| !Arc::ptr_eq(other, page));
    }

    /// Says that a registration of export `id` may be made, until what this answers is dropped: to be said before the export is looked up, so that no
    /// revocation is over while its memory is still being registered.
    pub fn making(&self, id: u64) -> Making<'_> {
        self.placements.making(id)
    }

    /// Takes note of a registration in an importer's protection domain, which a revocation ends. `false`: the export does not live any more, and the
    /// registration has been ended.
    pub fn add_placement(&self, claim: &Claim, placement: &Arc<dyn Placement>) -> bool {
        self.placements.add(claim.id, placement);
        let lives = self.verify(claim).is_ok();
        if !lives {
            // This one only: accesses by others may be in flight, for which the revocation waits.
            match placement.end() {
                Ok(()) => self.placements.remove(claim.id, placement),
                Err(why) => tracing::error!(why, "memory that is exported no longer stays registered"),
            }
        }
        lives
    }

    /// Ends one whose importer has gone, or needs it no more. One that does not end stays known: the revocation tries again, and says so.
    pub fn remove_placement(&self, id: u64, placement: &Arc<dyn Placement>) {
        match placement.end() {
            Ok(()) => self.placements.remove(id, placement),
            Err(why) => tracing::error!(why, "memory stays registered for an importer that needs it no more"),
        }
    }

    /// Whether it has not been ended.
    #[must_use]
    pub fn has_placement(&self, placement: &Arc<dyn Placement>) -> bool {
        self.placements.has(placement)
    }

    /// Lets go of memory on the service thread. The drop of a user's buffer is the user's code, which may take its time, panic,
    /// or drop this very context: it gets a thread of its own.
    pub fn let_go(&self, mem: Arc<LocalMem>) {
        if !mem.is_owned() {
            return drop(mem);
        }
        let Some(last) = Arc::into_inner(mem) else { return };
        let last = ManuallyDrop::new(last); // where no thread is to be had, it is never dropped
        let dropped = thread::Builder::new()
            .name("rucx-drop".to_owned())
            .spawn(move || drop(ManuallyDrop::into_inner(last)));
        if let Err(error) = dropped {
            tracing::error!(%error, "a buffer is leaked: there is no thread to drop it on");
        }
    }

    /// Frees what was kept and has been drained since; runs on the service thread. Answers whether anything is still kept.
    pub fn sweep(&self) -> bool {
        let mut drained = Vec::new();
        let mut state = self.state.lock();
        let mut index = 0;
        while index < state.kept.len() {
            let id = state.kept[index].claim.id;
            // What is being made is not waited for: the lock is held.
            let is_making = self.placements.is_making(id);
            let now = Deadline::after(Duration::ZERO);
            let end = |which| !is_making && self.placements.end(id, which, &now).is_ok();
            if end(Which::Unannounced) && self.holders(id).is_empty() && end(Which::All) {
                let kept = state.kept.swap_remove(index);
                state.free.push(kept.claim.slot);
                drained.push(kept);
            } else {
                index += 1;
            }
        }
        let any = !state.kept.is_empty();
        drop(state);
        for kept in drained {
            self.forget(kept.claim.id);
            self.let_go(kept.mem); // unmaps: not under the lock
        }
        any
    }

    fn forget(&self, id: u64) {
        for page in self.pages.lock().iter() {
            page.forget(id);
        }
    }

    /// Pids of the importers that have an access to export `id` in flight.
    fn holders(&self, id: u64) -> Vec<u32> {
        let mut holders = Vec::new();
        if self.local.get().is_some_and(|slots| slots.announces(id)) {
            holders.push(std::process::id());
        }
        holders.extend(self.pages.lock().iter().filter(|page| page.holds(id)).map(|page| page.pid()));
        if let Some(shared) = self.shared.get() {
            holders.extend(vault_holders(shared.vault.bytes(), id));
        }
        holders
    }

    /// Withdraws an export and, if `patience` says so, waits that long for accesses in flight; see [`Export::revoke`].
    fn revoke(&self, claim: &Claim, patience: Option<Duration>) -> Result<(), NotRevoked> {
        let Some(shared) = self.shared.get() else { return Ok(()) };
        let index = claim.slot as usize;
        let mut state = self.state.lock();
        let record = match state.records.get_mut(index) {
            Some(entry) if entry.as_ref().is_some_and(|record| record.claim == *claim) => entry.take(),
            _ => None,
        };
        if let Some(record) = record {
            if let Some(word) = wire::epoch(shared.table.bytes(), claim.slot) {
                in_flight::withdraw(word, claim.epoch);
            }
            let _ = wire::write_token(shared.vault.bytes(), claim.slot, &[0; wire::TOKEN_LEN]);
            state.epochs[index] = claim.epoch + 1;
            state.kept.push(Kept { claim: *claim, mem: record.mem });
        } else if !state.kept.iter().any(|kept| kept.claim == *claim) {
            return Ok(()); // revoked and drained before
        }
        drop(state);
        let limit = Deadline::after(patience.unwrap_or(self.revoke_timeout));
        let end = |which| self.placements.end(claim.id, which, &limit);
        // One that is not ended now is tried again below.
        let _ = end(Which::Unannounced);
        let drained = patience.map_or(Ok(()), |_| self.drain(claim.id, limit.left().unwrap_or_default()));
        let verdict = drained.and_then(|()| end(Which::All));
        if verdict.is_ok() {
            let mut state = self.state.lock();
            let position = state.kept.iter().position(|kept| kept.claim == *claim);
            let kept = position.map(|position| state.kept.swap_remove(position));
            state.free.extend(kept.as_ref().map(|kept| kept.claim.slot));
            drop(state);
            self.forget(claim.id);
            drop(kept); // unmaps, perhaps: not under the lock
        }
        verdict
    }

    /// Waits, bounded, until nothing is in flight: spins, then yields, then sleeps.
    fn drain(&self, id: u64, patience: Duration) -> Result<(), NotRevoked> {
        let mut begin = None;
        for round in 0_u32.. {
            let importers = self.holders(id);
            if importers.is_empty() {
                return Ok(());
            }
            let waited = begin.get_or_insert_with(Instant::now).elapsed();
            if waited >= patience {
                if !patience.is_zero() {
                    tracing::warn!(?importers, ?waited, "an export could not be drained: its memory is kept");
                }
                return Err(NotRevoked::InFlight { importers, waited });
            }
            match round {
                0..16 => std::hint::spin_loop(),
                16..64 => thread::yield_now(),
                _ => thread::sleep(Duration::from_micros(200)),
            }
        }
        Ok(())
    }
}

impl Drop for ExportTable {
    /// Withdraws what still lives: importers that have the table mapped are told.
    fn drop(&mut self) {
        if !self.is_mine() {
            return;
        }
        let Some(shared) = self.shared.get() else { return };
        for record in self.state.get_mut().records.iter().flatten() {
            if let Some(word) = wire::epoch(shared.table.bytes(), record.claim.slot) {
                in_flight::withdraw(word, record.claim.epoch);
            }
        }
    }
}

/// Descriptor and inode of a memfd.
pub(crate) fn number(file: &Memfd) -> Option<(u32, u64)> {
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file.as_fd());
    Some((u32::try_from(fd).ok()?, file.inode().ok()?))
}

/// One export: from the pack to the revocation. The table keeps its memory until then. Send + Sync.
#[derive(Debug)]
pub struct Export {
    table: Arc<ExportTable>,
    claim: Claim,
    rights: Rights,
}

impl Export {
    /// What keys carry.
    #[must_use]
    pub fn claim(&self) -> &Claim {
        &self.claim
    }

    /// What importers may do.
    #[must_use]
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// Whether it has not been revoked.
    #[must_use]
    pub fn is_live(&self) -> bool {
        let shared = self.table.shared.get();
        let word = shared.and_then(|shared| wire::epoch(shared.table.bytes(), self.claim.slot));
        word.is_some_and(|word| word.load(ucs::sync::Ordering::Acquire) == self.claim.epoch)
    }

    /// Ends the export, for ever: accesses that begin from now on answer `Stale`, and when this answers `Ok`, those that had
    /// begun have ended. Calling it again is allowed. It waits at most as long as the table was told.
    ///
    /// # Errors
    /// [`NotRevoked`]: an access is still in flight. New ones are refused nevertheless, and the memory is kept until that
    /// access has ended. Or this is a fork's child, whose copy of the books revokes nothing.
    pub fn revoke(&self) -> Result<(), NotRevoked> {
        if !self.table.is_mine() {
            return Err(NotRevoked::Forked);
        }
        self.table.revoke(&self.claim, Some(self.table.revoke_timeout))
    }

    /// Revokes many exports, as [`Export::revoke`], and waits no longer for all of them than it may for one, and not again for those
    /// that were revoked before. Answers for each that could not.
    pub fn revoke_all<'a>(exports: impl IntoIterator<Item = &'a Self>) -> Vec<NotRevoked> {
        let begin = Instant::now();
        let revoke = |export: &Self| {
            // One that was revoked before has been waited for.
            let patience = if export.is_live() { export.table.revoke_timeout } else { Duration::ZERO };
            let patience = patience.saturating_sub(begin.elapsed());
            if export.table.is_mine() {
                export.table.revoke(&export.claim, Some(patience))
            } else {
                Err(NotRevoked::Forked)
            }
        };
        exports.into_iter().filter_map(|export| revoke(export).err()).collect()
    }

    /// As [`Export::revoke`], but without waiting: exists to show that the waiting is what protects.
    #[doc(hidden)]
    pub fn revoke_without_drain(&self) {
        let _ = self.table.revoke(&self.claim, None);
    }
}

#[cfg(test)]
mod tests;
