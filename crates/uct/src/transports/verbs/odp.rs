//! On-demand paging: registrations that name the address, and reach whatever is mapped there ([`MdFlags::VA_BOUND`](crate::api::MdFlags)).
//!
//! A device's word for it is not enough: one that takes a wrong place for a request's bytes says that all went well. So it is tried, each
//! time a memory domain is opened, with two pages of this process and requests of the device to itself ([`trial`]).

mod trial;

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma_core_sys::{ibv_odp_caps, ibv_odp_general_caps, ibv_odp_transport_cap_bits as Bits};
use rustix::io::Errno;
use ucs::config::{Config, OrAuto, Var};
use ucs::mem::Mapping;
use ucs::mem::page::page_size;

use self::trial::{Failure, Pages, prove};
use super::device::Device;
use super::queue::{Connect, Queue, Remote};
use super::sys::{Mr, Qp};
use crate::api::OpenError;
use crate::memory::AccessError;

/// Whether exported memory is registered by its address: `n`, `y` (it is an error where the device cannot), or `auto`, also as `try`.
pub const ODP: Var<OrAuto<bool>> = Var::new(
    "UCX_VERBS_ODP",
    "auto",
    "Whether exported memory is registered by its address, with on-demand paging: auto (or try) where the device offers it and a trial shows \
     that it does right; y: an error where not; n: never, its pages are pinned",
);

/// How long the device may take for a request of the trial.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why exported memory is not registered by its address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unproven {
    #[error("UCX_VERBS_ODP=n")]
    SwitchedOff,
    #[error("the device does not offer {0}")]
    NotOffered(&'static str),
    #[error("the device puts what it writes within a page at the page's beginning")]
    WrittenAtBeginning,
    #[error("the device reads from a page's beginning what lies within the page")]
    ReadFromBeginning,
    #[error("the device writes other bytes than those it is to write")]
    WrittenElsewhere,
    #[error("the device says that it has written, and nothing has changed")]
    NotWritten,
    #[error("the device reads other bytes than those it is to read")]
    ReadElsewhere,
    #[error("the device keeps to the pages that were mapped before")]
    OldPages,
    #[error("{what}: {why}")]
    Failed { what: &'static str, why: String },
    #[error("{what}: no answer within {PATIENCE:?}")]
    Late { what: &'static str },
}

/// Two pages of this process, and a queue pair that is connected to itself.
struct Loopback<'a> {
    device: &'a Device,
    // Dropped in this order.
    queue: Queue,
    mr: Mr,
    map: Option<Mapping>,
}

/// How the trial's queue pair is made; its requests are given up after [`PATIENCE`].
#[derive(Debug)]
struct Impatient<'a> {
    device: &'a Device,
    until: Instant,
}

impl Connect for Impatient<'_> {
    fn connect(&self, lane: u8) -> Result<Qp, AccessError> {
        self.device.connect(lane)
    }

    fn is_gone(&self) -> bool {
        Instant::now() >= self.until
    }
}

impl Loopback<'_> {
    fn remote(&self, at: usize) -> Result<Remote, Failure> {
        let address = self.map()?.bytes().as_ptr().addr() as u64;
        Ok(Remote { address, rkey: self.mr.rkey() }.at(at))
    }

    fn map(&self) -> Result<&Mapping, Failure> {
        self.map.as_ref().ok_or_else(|| Failure::Error("nothing is mapped".to_owned()))
    }

    fn asks(&self, request: impl FnOnce(&Impatient<'_>) -> Result<(), AccessError>) -> Result<(), Failure> {
        let connect = Impatient { device: self.device, until: Instant::now() + PATIENCE };
        request(&connect).map_err(|error| match error {
            AccessError::Device { .. } if connect.is_gone() => Failure::Late,
            AccessError::Stale { .. } => Failure::Error("it refuses the access".to_owned()),
            error => Failure::Error(error.to_string()),
        })
    }
}

fn said(error: &impl ToString) -> Failure {
    Failure::Error(error.to_string())
}

impl Pages for Loopback<'_> {
    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), Failure> {
        let remote = self.remote(at)?;
        self.asks(|connect| self.queue.write(remote, bytes, connect))?;
        // Only what comes after it finds it there (InfiniBand Architecture, 9.5: a READ waits for the WRITEs before it).
        self.asks(|connect| self.queue.read(remote, &mut [0], connect))
    }

    fn read(&mut self, at: usize, bytes: &mut [u8]) -> Result<(), Failure> {
        let remote = self.remote(at)?;
        self.asks(|connect| self.queue.read(remote, bytes, connect))
    }

    fn load(&self) -> Result<Vec<u8>, Failure> {
        let mut all = vec![0; 2 * page_size()];
        self.map()?.bytes().read(0, &mut all).map_err(|error| said(&error))?;
        Ok(all)
    }

    fn store(&mut self, all: &[u8]) -> Result<(), Failure> {
        self.map()?.bytes().write(0, all).map_err(|error| said(&error))
    }

    fn map_anew(&mut self) -> Result<(), Failure> {
        let Some(map) = self.map.take() else { return Ok(()) };
        self.map = Some(map.map_anew().map_err(|error| said(&error))?);
        Ok(())
    }
}

/// What the device does not offer of what exported memory needs; `None`: it says that it has all (`ibv_query_device_ex(3)`).
fn lacks(caps: &ibv_odp_caps) -> Option<&'static str> {
    let rc = caps.per_transport_caps.rc_odp_caps;
    let has = |bit: Bits| rc & bit.0 != 0;
    match () {
        () if caps.general_caps & u64::from(ibv_odp_general_caps::IBV_ODP_SUPPORT.0) == 0 => {
            Some("on-demand paging")
        }
        () if !has(Bits::IBV_ODP_SUPPORT_WRITE) => Some("WRITEs to memory that is paged on demand"),
        () if !has(Bits::IBV_ODP_SUPPORT_READ) => Some("READs of memory that is paged on demand"),
        () => None,
    }
}

/// Tries it with this device.
pub(super) fn try_out(device: &Arc<Device>) -> Result<(), Unproven> {
    let asking = |errno: Errno| Unproven::Failed { what: "ibv_query_device_ex", why: errno.to_string() };
    if let Some(lacks) = lacks(&device.context.properties().map_err(asking)?.odp_caps) {
        return Err(Unproven::NotOffered(lacks));
    }
    let registering = |why: String| Unproven::Failed { what: "registering two pages", why };
    let map = Mapping::anonymous(2 * page_size()).map_err(|error| registering(error.to_string()))?;
    let mr = Mr::of_mapping(&device.pd, &map, device.exported(true, true));
    let mr = mr.map_err(|errno| registering(errno.to_string()))?;
    prove(&mut Loopback { device, queue: Queue::new(device), mr, map: Some(map) }, page_size())
}

/// Whether exported memory is registered by its address, as [`ODP`] says; if not, why.
pub(super) fn decide(device: &Arc<Device>, config: &Config) -> Result<Result<(), Unproven>, OpenError> {
    let wanted = config.get(&ODP);
    if wanted == OrAuto::Set(false) {
        return Ok(Err(Unproven::SwitchedOff));
    }
    match try_out(device) {
        Err(why) if wanted == OrAuto::Set(true) => Err(OpenError::NotToBeHad {
            variable: ODP.name(),
            why: why.to_string(),
            remedy: "set UCX_VERBS_ODP=auto, and exported memory is pinned where on-demand paging is not to be had",
        }),
        tried => Ok(tried),
    }
}

#[cfg(test)]
mod tests;
