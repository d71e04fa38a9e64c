//! The exporter's side: memory of this process, registered in an importer's protection domain.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{FileType, Stat, fstat};
use ucs::fork::{self, Generation};

use super::command;
use super::device::{Device, reg_error};
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
        is_same_device(&theirs, &ours)
    }
}

/// Whether both files are of one character device. The number alone does not say that: files that are no devices may have any, and block
/// devices are numbered on their own (`inode(7)`).
fn is_same_device(theirs: &Stat, ours: &Stat) -> bool {
    let is_device = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
    is_device(theirs) && is_device(ours) && theirs.st_rdev == ours.st_rdev
}

impl Placer for DevicePlacer {
    fn place(&self, domain: &Domain, importer: u32, mem: &Arc<LocalMem>) -> Option<Result<Placed, String>> {
        let driver = self.device.driver?;
        if !self.is_of(&domain.command) {
            return None;
        }
        let access = self.device.exported(mem.rights().contains(Rights::WRITE), self.by_address);
        let range = (mem.address(), mem.len() as u64);
        let registered = domain.command.try_clone().map_err(|error| error.to_string()).and_then(|command| {
            let registered = command::register(command.as_fd(), driver, domain.number, range, access);
            let registered = registered.map_err(|errno| reg_error(errno, range.1).to_string())?;
            let placement = InDomain {
                driver,
                handle: registered.handle,
                importer,
                generation: fork::generation(),
                registered: Mutex::new(Some((command, Arc::clone(mem)))),
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
    driver: u32,
    handle: u32,
    importer: u32,
    generation: Generation,
    /// The command descriptor of the importer's context, which lives as long as that is open, and what is registered there: both are kept until it is
    /// not; none afterwards.
    registered: Mutex<Option<(OwnedFd, Arc<LocalMem>)>>,
}

impl Placement for InDomain {
    fn end(&self) -> Result<(), String> {
        if !self.generation.is_current() {
            return Ok(()); // it is the parent's
        }
        let mut registered = self.registered.lock();
        let Some((command, _)) = &*registered else { return Ok(()) };
        command::deregister(command.as_fd(), self.driver, self.handle)
            .map_err(|errno| format!("the kernel says {errno}"))?;
        *registered = None;
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
            std::mem::forget(self.registered.get_mut().take());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use ucs::mem::Memfd;

    use super::*;

    fn stat(of: impl AsFd) -> Stat {
        fstat(of).unwrap()
    }

    /// As a device's node has them; whose, does not matter to the comparison.
    fn node() -> Stat {
        stat(File::open("/dev/null").unwrap())
    }

    #[test]
    fn a_file_of_the_same_device_is_one() {
        assert!(is_same_device(&node(), &node()));
        assert!(is_same_device(&stat(File::create("/dev/null").unwrap()), &node()), "however it was opened");
    }

    #[test]
    fn no_other_file_is() {
        let (memory, _map) = Memfd::create("rucx-test", 4096, false).unwrap();
        let (socket, _other) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let (pipe, _end) = rustix::pipe::pipe().unwrap();
        let files = [
            ("memory", stat(&memory)),
            ("a directory", stat(File::open("/").unwrap())),
            ("a file", stat(File::open("/proc/self/exe").unwrap())),
            ("another device", stat(File::open("/dev/zero").unwrap())),
            ("a socket", stat(&socket)),
            ("a pipe", stat(&pipe)),
            ("an event's", stat(rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap())),
        ];
        for (what, theirs) in files {
            assert!(!is_same_device(&theirs, &node()), "{what}");
            // What it is counts as much as its number does.
            assert!(!is_same_device(&theirs, &theirs) || what == "another device", "{what}");
            let mut numbered = theirs;
            numbered.st_rdev = node().st_rdev;
            assert_eq!(is_same_device(&numbered, &node()), what == "another device", "{what}");
        }
        // A block device with the number of the character device is another one.
        let mut block = node();
        block.st_mode = FileType::BlockDevice.as_raw_mode() | 0o600;
        assert!(!is_same_device(&block, &node()));
    }
}

/// On a device: `cargo xtask rxe --filter placer`.
#[cfg(all(test, feature = "rxe-tests"))]
#[allow(clippy::unwrap_used)] // tests
mod on_a_device {
    use std::fs::File;

    use super::*;
    fn domain(of: &Device, command: impl AsFd) -> Domain {
        Domain { command: command.as_fd().try_clone_to_owned().unwrap(), number: of.pd.handle() }
    }

    fn memory() -> Arc<LocalMem> {
        Arc::new(LocalMem::anonymous(4096, Rights::READ_WRITE).unwrap())
    }

    #[test]
    fn what_has_ended_keeps_neither_memory_nor_the_importer_s_context() {
        let (placer, importer, mem) =
            (DevicePlacer { device: Device::any(), by_address: false }, Device::any(), memory());
        let before = testkit::open_fds();
        let asked = domain(&importer, importer.context.command_fd());
        let placed = placer.place(&asked, 7, &mem).unwrap().unwrap();
        drop(asked);
        assert_eq!((testkit::open_fds(), Arc::strong_count(&mem)), (before + 1, 2));
        assert_eq!(placed.placement.end(), Ok(()));
        assert_eq!((testkit::open_fds(), Arc::strong_count(&mem)), (before, 1));
        // It has been deregistered, and is not once more: the number may be another one's.
        let other = placer.place(&domain(&importer, importer.context.command_fd()), 7, &mem);
        let other = other.unwrap().unwrap();
        assert_eq!(placed.placement.end(), Ok(()));
        drop(placed);
        assert_eq!(Arc::strong_count(&mem), 2, "it is registered still");
        assert_eq!(other.placement.end(), Ok(()));
    }

    #[test]
    fn files_of_no_device_and_domains_that_are_none() {
        let (placer, importer, mem) =
            (DevicePlacer { device: Device::any(), by_address: false }, Device::any(), memory());
        let before = testkit::open_fds();
        for path in ["/dev/null", "/", "/proc/self/exe"] {
            let asked = domain(&importer, File::open(path).unwrap());
            assert!(placer.place(&asked, 7, &mem).is_none(), "{path}");
        }
        let nowhere = Domain { number: 12345, ..domain(&importer, importer.context.command_fd()) };
        let refused = placer.place(&nowhere, 7, &mem).unwrap().unwrap_err();
        assert!(refused.contains("ibv_reg_mr"), "{refused}");
        drop(nowhere);
        assert_eq!((testkit::open_fds(), Arc::strong_count(&mem)), (before, 1));
    }
}
