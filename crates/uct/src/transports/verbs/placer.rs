//! The exporter's side: memory of this process, registered in an importer's protection domain.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{FileType, fstat};
use ucs::fork::{self, Generation};

use super::command;
use super::device::{Device, reg_error, remote_access};
use crate::memory::{LocalMem, Rights};
use crate::service::{Domain, Placed, Placement, Placer};

/// Places memory by one device.
#[derive(Debug)]
pub(super) struct DevicePlacer {
    pub(super) device: Arc<Device>,
    /// Whether its registrations name the address.
    pub(super) by_address: bool,
}

impl DevicePlacer {
    /// Whether a descriptor is a command descriptor of this device: it is asked nothing before.
    fn is_of(&self, command: &OwnedFd) -> bool {
        let (Ok(theirs), Ok(ours)) = (fstat(command), fstat(self.device.context.command_fd())) else {
            return false;
        };
        FileType::from_raw_mode(theirs.st_mode) == FileType::CharacterDevice && theirs.st_rdev == ours.st_rdev
    }
}

impl Placer for DevicePlacer {
    fn place(&self, domain: &Domain, importer: u32, mem: &Arc<LocalMem>) -> Option<Result<Placed, String>> {
        let driver = self.device.driver?;
        if !self.is_of(&domain.command) {
            return None;
        }
        let access = remote_access(mem.rights().contains(Rights::WRITE), self.by_address);
        let range = (mem.address(), mem.len() as u64);
        let registered = domain.command.try_clone().map_err(|error| error.to_string()).and_then(|command| {
            let registered = command::register(command.as_fd(), driver, domain.number, range, access);
            let registered = registered.map_err(|errno| reg_error(errno, range.1).to_string())?;
            let mem = Mutex::new(Some(Arc::clone(mem)));
            let placement = InDomain {
                command,
                driver,
                handle: registered.handle,
                importer,
                generation: fork::generation(),
                mem,
            };
            let placement: Arc<dyn Placement> = Arc::new(placement);
            Ok(Placed { placement, handle: registered.handle, lkey: registered.lkey, rkey: registered.rkey })
        });
        Some(registered)
    }
}

/// A registration in an importer's domain. It alone ends it while this process lives: the kernel gives its number to another registration
/// afterwards.
#[derive(Debug)]
struct InDomain {
    /// Of the importer's context, which lives as long as this is open.
    command: OwnedFd,
    driver: u32,
    handle: u32,
    importer: u32,
    generation: Generation,
    /// What is registered, kept until it is not; none afterwards.
    mem: Mutex<Option<Arc<LocalMem>>>,
}

impl Placement for InDomain {
    fn end(&self) -> Result<(), String> {
        if !self.generation.is_current() {
            return Ok(()); // it is the parent's
        }
        let mut mem = self.mem.lock();
        if mem.is_none() {
            return Ok(());
        }
        command::deregister(self.command.as_fd(), self.driver, self.handle)
            .map_err(|errno| format!("the kernel says {errno}"))?;
        *mem = None;
        Ok(())
    }

    fn importer(&self) -> u32 {
        self.importer
    }
}

impl Drop for InDomain {
    fn drop(&mut self) {
        if let Err(why) = self.end() {
            tracing::error!(
                why,
                "a registration for an importer was not ended: its memory is never given back"
            );
            std::mem::forget(self.mem.get_mut().take());
        }
    }
}
