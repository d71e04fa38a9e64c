//! Exported memory, registered in protection domains of importers: what of an RDMA device the service needs to know.
//!
//! An importer passes the command descriptor of its device's context; the exporter registers its own memory with it. Who holds a command
//! descriptor controls that context, and the device enforces nothing between the two: mutual full trust, of one user's processes that both
//! have allowed it.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::memory::LocalMem;

/// A protection domain of an importer.
#[derive(Debug)]
pub struct Domain {
    /// The command descriptor of its context, as it came: any file.
    pub command: OwnedFd,
    /// The kernel's number of it there.
    pub number: u32,
}

/// Memory of this process, registered for an importer, until this is dropped or ended.
pub trait Placement: Send + Sync + fmt::Debug {
    /// Ends the registration; again and again, if need be. A call while another one ends it waits for that.
    ///
    /// # Errors
    /// Why the device does not: then it may still reach the memory.
    fn end(&self) -> Result<(), String>;

    /// The importer's process, as seen from here; 0: unknown.
    fn importer(&self) -> u32;

    /// Whether its user announces each access, so that a revocation waits for that before it ends it. Otherwise it is ended at once, whatever
    /// else is in flight: the device refuses what comes late.
    fn is_announced(&self) -> bool {
        true
    }
}

/// A placement, and its keys.
#[derive(Debug)]
pub struct Placed {
    /// The registration.
    pub placement: Arc<dyn Placement>,
    /// The kernel's number of it in the domain's context.
    pub handle: u32,
    /// Its keys.
    pub lkey: u32,
    /// As `lkey`.
    pub rkey: u32,
}

/// Places memory, by one device.
pub trait Placer: Send + Sync + fmt::Debug {
    /// Registers `mem` in `domain`, for an importer with this pid (0: unknown). `None`: the domain is none of this device.
    ///
    /// # Errors
    /// What the device or the kernel says.
    fn place(&self, domain: &Domain, importer: u32, mem: &Arc<LocalMem>) -> Option<Result<Placed, String>>;
}

/// Those that place memory of one context.
#[derive(Debug, Default)]
pub(super) struct Placers(Mutex<Vec<Weak<dyn Placer>>>);

impl Placers {
    pub(super) fn add(&self, placer: Weak<dyn Placer>) {
        self.0.lock().push(placer);
    }

    /// Has the one place it whose device the domain is of.
    pub(super) fn place(
        &self,
        domain: &Domain,
        importer: u32,
        mem: &Arc<LocalMem>,
    ) -> Option<Result<Placed, String>> {
        let placers: Vec<_> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        placers.iter().find_map(|placer| placer.place(domain, importer, mem))
    }
}
