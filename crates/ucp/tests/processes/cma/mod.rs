//! Exports of memory that rucx did not allocate, by `cma`: any memory, other users, namespaces, filters, and faults.

pub mod access;
pub mod faults;
pub mod identity;
pub mod memory;
pub mod namespaces;
pub mod pids;
pub mod yama;

use std::ptr;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use testkit::role;
use ucp::{MemMap, RawMem, Region};

use super::roles::{Actor, FILL, context};

/// The user nobody on Debian; any that is not root would do.
pub const NOBODY: u32 = 65_534;

/// Pages that a test may unmap and map again.
#[derive(Debug)]
pub struct Pages {
    start: *mut core::ffi::c_void,
    len: usize,
}

impl Pages {
    /// Maps `len` bytes of fresh memory, of which only what is touched needs any.
    pub fn map(len: usize) -> Self {
        Self::with(len, MapFlags::NORESERVE)
    }

    pub fn with(len: usize, flags: MapFlags) -> Self {
        // SAFETY: a fresh mapping, touched through regions only.
        let start = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | flags,
            )
        };
        Self { start: start.unwrap(), len }
    }

    /// All of them, as raw memory.
    pub fn raw(&self) -> RawMem {
        // SAFETY: nothing else uses these pages; unmapping them is allowed.
        unsafe { RawMem::new(self.start.cast(), self.len) }
    }

    /// Some of them, from byte `at` on.
    pub fn part(&self, at: usize, len: usize) -> RawMem {
        // SAFETY: as above.
        unsafe { RawMem::new(self.start.wrapping_byte_add(at).cast(), len) }
    }

    pub fn unmap(&self, at: usize, len: usize) {
        // SAFETY: pages of this mapping, which regions reach by system calls only.
        unsafe { munmap(self.start.wrapping_byte_add(at), len) }.unwrap();
    }

    /// Puts fresh zeroed pages there, whatever is there now.
    pub fn replace(&self, at: usize, len: usize) {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED);
        // SAFETY: pages of this mapping; what was there is not used any more.
        unsafe { mmap_anonymous(self.start.wrapping_byte_add(at), len, access, flags) }.unwrap();
    }

    pub fn protect(&self, at: usize, len: usize, access: MprotectFlags) {
        // SAFETY: pages of this mapping, which regions reach by system calls only.
        unsafe { mprotect(self.start.wrapping_byte_add(at), len, access) }.unwrap();
    }
}

// SAFETY: an address.
unsafe impl Send for Pages {}
// SAFETY: an address.
unsafe impl Sync for Pages {}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: as in unmap; what is unmapped already is no error.
        let _ = unsafe { munmap(self.start, self.len) };
    }
}

/// Exports raw memory of `args[0]` bytes, filled with [`FILL`], and does with it as it is told: as `roles::host`, and to the
/// process itself.
pub fn host() {
    let len: usize = role::args()[0].parse().unwrap();
    let ctx = context();
    let pages = std::sync::Arc::new(Pages::map(len));
    let region: Region = ctx.mem_map(MemMap::raw(pages.raw()).exported()).unwrap();
    region.write(0, &vec![FILL; len]).unwrap();
    let mut handles = Vec::new();
    while let Some(command) = role::try_recv() {
        let command = String::from_utf8(command).unwrap();
        let words: Vec<&str> = command.split(' ').collect();
        let number = |index: usize| words[index].parse::<usize>().unwrap();
        let mut answer = Vec::new();
        match words[0] {
            "export" => {
                let handle = region.memh_pack().unwrap();
                answer = handle.as_bytes().to_vec();
                handles.push(handle);
            }
            "revoke" => handles[number(1)].revoke().unwrap(),
            "read" => {
                answer = vec![0; number(1)];
                region.read(number(2) as u64, &mut answer).unwrap();
            }
            "unmap" => pages.unmap(number(1), number(2)),
            "replace" => pages.replace(number(1), number(2)),
            "protect" => {
                pages.protect(
                    number(1),
                    number(2),
                    MprotectFlags::from_bits_retain(words[3].parse().unwrap()),
                );
            }
            // Unmaps and maps again the last half, and again, for ever.
            "churn" => {
                let (pages, half) = (std::sync::Arc::clone(&pages), len / 2 / 4096 * 4096);
                std::thread::spawn(move || {
                    loop {
                        pages.unmap(half, len - half);
                        std::thread::sleep(std::time::Duration::from_micros(200));
                        pages.replace(half, len - half);
                        std::thread::sleep(std::time::Duration::from_micros(200));
                    }
                });
            }
            "not-dumpable" => {
                let not = rustix::process::DumpableBehavior::NotDumpable;
                rustix::process::set_dumpable_behavior(not).unwrap();
            }
            "become" => {
                let user = words[1].parse().unwrap();
                testkit::limits::drop_to_uid(user, user).unwrap();
            }
            "exec" => {
                use std::os::unix::process::CommandExt;
                let error = std::process::Command::new("/bin/sleep").arg("60").exec();
                panic!("exec: {error}");
            }
            "exit" => return,
            other => panic!("unknown command {other}"),
        }
        role::send(&[b"ok:", answer.as_slice()].concat());
    }
}

/// A host of raw memory.
pub fn raw_host(len: usize) -> Actor {
    Actor(testkit::Role::new("cma::host").arg(len.to_string()).start())
}

/// A host of raw memory that is no privileged user's.
pub fn raw_host_of_nobody(len: usize) -> Actor {
    Actor(testkit::Role::new("cma::host").arg(len.to_string()).as_uid(NOBODY).start())
}

/// A DPU of the same user.
pub fn dpu_of_nobody() -> Actor {
    Actor(testkit::Role::new("roles::dpu").as_uid(NOBODY).start())
}
