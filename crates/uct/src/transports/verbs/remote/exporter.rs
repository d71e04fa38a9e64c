//! The exporter's side: a protection domain per importer.

use std::collections::hash_map::Entry as MapEntry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use rdma_core_sys::{ibv_access_flags as Access, ibv_qp_cap};
use ucs::Status;
use ucs::fork::{self, Generation};

use super::wire::{Attached, LANES, Request, Subject};
use crate::export::{Claim, ExportTable, Refusal};
use crate::memory::{LocalMem, Rights};
use crate::service::{ConnId, Placement, Responder, Secret};
use crate::transports::verbs::device::Device;
use crate::transports::verbs::sys::{Cq, Mr, Pd, Qp};
use crate::transports::verbs::wire::QpAddress;

/// What one importer may have.
#[derive(Clone, Copy, Debug)]
pub(in crate::transports::verbs) struct Limits {
    /// Exports attached at once.
    pub(super) attached: usize,
    /// Keys, before it has to connect anew.
    pub(super) keys: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { attached: 4096, keys: 1 << 20 }
    }
}

/// How often a registration whose key this importer has had before is made again. Devices that give the key of the last one that has ended to the next
/// one give as many of these as there were; each is a registration of all of the memory.
const TRIES: usize = 4;
/// Keys that this connection has had are all there is: the importer gets others on a new one.
const KEYS_SPENT: Status = Status::Busy;
/// A queue pair that only answers: nothing is posted to it.
const ANSWERS: ibv_qp_cap =
    ibv_qp_cap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };

/// Answers importers of other machines.
#[derive(Debug)]
pub(in crate::transports::verbs) struct Exports {
    device: Arc<Device>,
    /// Whether registrations name the address.
    by_address: bool,
    table: Arc<ExportTable>,
    limits: Limits,
    guests: Mutex<HashMap<ConnId, Guest>>,
}

/// An importer: what it has of this device. Dropped in this order.
#[derive(Debug)]
struct Guest {
    lanes: [Option<Qp>; LANES as usize],
    attached: HashMap<u64, Entry>,
    /// All keys it ever got: a request that comes late for an export that is over must find no other one.
    keys: HashSet<u32>,
    pd: Arc<Pd>,
}

/// An export that it has attached.
#[derive(Debug)]
struct Entry {
    placement: Arc<ForGuest>,
    rkey: u32,
    /// How often it has.
    count: usize,
}

/// A registration in its protection domain.
#[derive(Debug)]
struct ForGuest {
    generation: Generation,
    /// The memory is kept until the registration is ended; none afterwards.
    registered: Mutex<Option<(Mr, Arc<LocalMem>)>>,
}

impl ForGuest {
    fn is_over(&self) -> bool {
        self.registered.lock().is_none()
    }
}

impl Placement for ForGuest {
    fn end(&self) -> Result<(), String> {
        if !self.generation.is_current() {
            return Ok(()); // it is the parent's
        }
        let mut registered = self.registered.lock();
        let Some((mr, mem)) = registered.take() else { return Ok(()) };
        mr.end().map_err(|(mr, errno)| {
            *registered = Some((mr, mem));
            format!("ibv_dereg_mr: {errno}")
        })
    }

    fn importer(&self) -> u32 {
        0
    }

    fn is_announced(&self) -> bool {
        false
    }
}

impl Drop for ForGuest {
    fn drop(&mut self) {
        if let Err(why) = self.end() {
            tracing::error!(
                why,
                "a registration for an importer was not ended: its memory is never given back"
            );
            std::mem::forget(self.registered.get_mut().take());
        }
    }
}

impl Exports {
    pub(in crate::transports::verbs) fn new(
        device: &Arc<Device>,
        by_address: bool,
        table: &Arc<ExportTable>,
        limits: Limits,
    ) -> Self {
        let (device, table) = (Arc::clone(device), Arc::clone(table));
        Self { device, by_address, table, limits, guests: Mutex::default() }
    }

    fn attach(&self, conn: ConnId, subject: &Subject) -> Result<Attached, Status> {
        let Secret::Live(token) = self.table.secret(subject.slot, subject.id) else {
            return Err(Status::Stale);
        };
        let Subject { slot, id, epoch, address, length, .. } = *subject;
        let _making = self.table.making(id);
        let claim = Claim { slot, id, epoch, address, length, token };
        let mem = self.table.verify(&claim).map_err(|refusal| match refusal {
            Refusal::Mismatch => Status::InvalidParam,
            _ => Status::Stale,
        })?;
        let rights = mem.rights();
        let attached = self.enter(conn, &claim, &mem);
        self.table.let_go(mem);
        Ok(Attached { rkey: attached?, rights })
    }

    /// The key of the registration of `mem` for this importer.
    fn enter(&self, conn: ConnId, claim: &Claim, mem: &Arc<LocalMem>) -> Result<u32, Status> {
        let mut guests = self.guests.lock();
        let guest = match guests.entry(conn) {
            MapEntry::Occupied(known) => known.into_mut(),
            MapEntry::Vacant(new) => {
                let pd = Pd::new(&self.device.context).map_err(|errno| no_resource("ibv_alloc_pd", errno))?;
                let (attached, keys) = (HashMap::new(), HashSet::new());
                new.insert(Guest { lanes: Default::default(), attached, keys, pd: Arc::new(pd) })
            }
        };
        if let Some(entry) = guest.attached.get_mut(&claim.id)
            && !entry.placement.is_over()
        {
            entry.count += 1;
            return Ok(entry.rkey);
        }
        let Limits { attached, keys } = self.limits;
        if guest.attached.len() >= attached {
            guest.attached.retain(|_, entry| !entry.placement.is_over());
        }
        if guest.attached.len() >= attached {
            return Err(Status::ExceedsLimit);
        }
        if guest.keys.len() >= keys {
            return Err(KEYS_SPENT);
        }
        let access = self.device.exported(mem.rights().contains(Rights::WRITE), self.by_address);
        let mr = guest.register(mem, access)?;
        let rkey = mr.rkey();
        let registered = Mutex::new(Some((mr, Arc::clone(mem))));
        let placement = Arc::new(ForGuest { generation: fork::generation(), registered });
        let known: Arc<dyn Placement> = Arc::clone(&placement) as Arc<dyn Placement>;
        if !self.table.add_placement(claim, &known) {
            return Err(Status::Stale); // revoked meanwhile
        }
        guest.attached.insert(claim.id, Entry { placement, rkey, count: 1 });
        Ok(rkey)
    }

    fn connect(&self, conn: ConnId, lane: u8, peer: &QpAddress) -> Result<QpAddress, Status> {
        let mut guests = self.guests.lock();
        let guest = guests.get_mut(&conn).ok_or(Status::InvalidParam)?;
        let lane = guest.lanes.get_mut(usize::from(lane)).ok_or(Status::InvalidParam)?;
        let cq = Cq::new(&self.device.context, 1).map_err(|errno| no_resource("ibv_create_cq", errno))?;
        let unconnected = self.device.queue_pair_in(&guest.pd, cq, ANSWERS, self.device.peers());
        let unconnected = unconnected.map_err(|errno| no_resource("ibv_create_qp", errno))?;
        let address = unconnected.address();
        let connected = unconnected.connect(peer).map_err(|errno| {
            tracing::warn!(%errno, "an importer's queue pair cannot be connected with");
            Status::Unreachable
        })?;
        *lane = Some(connected); // the one before has failed, or its importer would not ask
        Ok(address)
    }

    fn detach(&self, conn: ConnId, subject: &Subject) {
        let mut guests = self.guests.lock();
        let Some(guest) = guests.get_mut(&conn) else { return };
        let Some(entry) = guest.attached.get_mut(&subject.id) else { return };
        entry.count -= 1;
        if entry.count == 0
            && let Some(entry) = guest.attached.remove(&subject.id)
        {
            self.forget(subject.id, entry);
        }
    }

    fn forget(&self, id: u64, entry: Entry) {
        let known: Arc<dyn Placement> = entry.placement;
        self.table.remove_placement(id, &known);
    }
}

fn no_resource(call: &str, errno: rustix::io::Errno) -> Status {
    tracing::warn!(call, %errno, "an importer of another machine is refused");
    Status::NoResource
}

impl Guest {
    /// Registers memory in its domain, under a key that it has never had.
    fn register(&mut self, mem: &Arc<LocalMem>, access: Access) -> Result<Mr, Status> {
        let make = || {
            let mr = Mr::remote(&self.pd, mem, access).map_err(|errno| no_resource("ibv_reg_mr", errno))?;
            Ok((mr.rkey(), mr))
        };
        with_a_new_key(&mut self.keys, make)
    }
}

/// What `make` makes, with a key that is none of `keys`; then it is one of them.
fn with_a_new_key<T>(
    keys: &mut HashSet<u32>,
    mut make: impl FnMut() -> Result<(u32, T), Status>,
) -> Result<T, Status> {
    let mut had_before = Vec::new(); // as long as these are there, their keys are taken
    for _ in 0..TRIES {
        // With fewer of the same memory in the way there may be room for it.
        let (key, made) = make().map_err(|status| if had_before.is_empty() { status } else { KEYS_SPENT })?;
        if keys.insert(key) {
            return Ok(made);
        }
        had_before.push(made);
    }
    Err(KEYS_SPENT)
}

impl Responder for Exports {
    fn secret(&self, subject: &[u8]) -> Secret {
        match Subject::decode(subject) {
            Ok(subject) if subject.guid == self.device.context.guid() => {
                self.table.secret(subject.slot, subject.id)
            }
            _ => Secret::Unknown,
        }
    }

    fn call(&self, conn: ConnId, subject: &[u8], request: &[u8]) -> Result<Vec<u8>, Status> {
        let subject = Subject::decode(subject).map_err(|_| Status::InvalidParam)?;
        match Request::decode(request).map_err(|_| Status::InvalidParam)? {
            Request::Attach => Ok(self.attach(conn, &subject)?.encode().to_vec()),
            Request::Connect { lane, address } => Ok(self.connect(conn, lane, &address)?.encode().to_vec()),
            // Of one that is over the token would have been another.
            Request::Check => Ok(Vec::new()),
            Request::Detach => {
                self.detach(conn, &subject);
                Ok(Vec::new())
            }
        }
    }

    fn ended(&self, conn: ConnId) {
        let Some(mut guest) = self.guests.lock().remove(&conn) else { return };
        guest.lanes = Default::default();
        guest.attached.drain().for_each(|(id, entry)| self.forget(id, entry));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As of a device that gives these keys in turn, and none that is taken.
    fn makes(gives: impl IntoIterator<Item = u32>) -> impl FnMut() -> Result<(u32, Arc<()>), Status> {
        let (mut gives, mut made) = (gives.into_iter(), Vec::new());
        move || {
            let one = Arc::new(());
            let is_kept = made.iter().all(|before| Arc::strong_count(before) == 2);
            assert!(is_kept, "what has a key of before is there until another one is found");
            made.push(Arc::clone(&one));
            Ok((gives.next().ok_or(Status::IoError)?, one))
        }
    }

    #[test]
    fn a_key_that_it_has_had_is_not_given_again() {
        let mut keys = HashSet::from([7, 8]);
        assert!(with_a_new_key(&mut keys, makes([7, 8, 9, 10])).is_ok());
        assert_eq!(keys, HashSet::from([7, 8, 9]), "the first that is new, and no more are made");
        assert_eq!(with_a_new_key(&mut keys, makes([9])), Err(KEYS_SPENT), "nor the one of just now");
    }

    #[test]
    fn a_device_that_gives_old_keys_only_is_not_asked_for_ever() {
        let mut keys = HashSet::from([7]);
        let mut count = 0;
        let made = with_a_new_key(&mut keys, || {
            count += 1;
            Ok((7, ()))
        });
        assert_eq!((made, count), (Err(KEYS_SPENT), TRIES));
        assert_eq!(
            with_a_new_key(&mut keys, || Err::<(u32, ()), _>(Status::NoMemory)),
            Err(Status::NoMemory)
        );
        assert_eq!(keys, HashSet::from([7]));
    }
}
