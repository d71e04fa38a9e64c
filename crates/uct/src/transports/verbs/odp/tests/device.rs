//! On a device: `cargo xtask rxe --filter odp::tests::device`. rxe of Linux 7.3 offers on-demand paging and fails the trial; that of 6.1 offers none.
//!
//! # Safety
//! Memory that is exported here is mapped and unmapped by [`World`] alone, and reached by system calls and by the device: there are no references to it.

#![allow(unsafe_code)]

use std::ptr;

use parking_lot::Mutex;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::*;
use crate::api::{AmoOp, AtomicOp, Attachment, Component, Md, MdFlags, MdParams, PackFlags};
use crate::export::Export;
use crate::memory::{LocalMem, RawMem, Rights, StaleReason};
use crate::transports::verbs::contexts::{attach, params};
use crate::transports::verbs::{VerbsComponent, VerbsMd};

const NEARBY: &[(&str, &str)] = &[("UCX_VERBS_SHARE", "y"), ("UCX_VERBS_REMOTE", "n")];

/// Whether the device says that it pages on demand.
fn is_offered() -> bool {
    lacks(&Device::any().context.properties().unwrap().odp_caps).is_none()
}

#[test]
fn the_trial_finds_what_rxe_does() {
    let why = try_out(&Device::any()).unwrap_err();
    if is_offered() {
        assert_eq!(why.to_string(), "the device puts what it writes within a page at the page's beginning");
    } else {
        assert_eq!(why.to_string(), "the device does not offer on-demand paging");
    }
}

#[test]
fn a_memory_domain_says_whether_it_is_used_and_why_not() {
    let why = try_out(&Device::any()).unwrap_err().to_string();
    let resource = VerbsComponent.query_mds().remove(0);
    for (settings, why) in [(&[][..], why.as_str()), (&[("UCX_VERBS_ODP", "n")], "UCX_VERBS_ODP=n")] {
        let md = VerbsComponent.open_md(&resource, &params(settings)).unwrap();
        assert!(!md.attr().flags.contains(MdFlags::VA_BOUND));
        let told = ("on-demand paging", format!("not used, exported memory is pinned: {why}"));
        assert!(md.details().contains(&told), "{:?}", md.details());
    }
    let error = VerbsComponent.open_md(&resource, &params(&[("UCX_VERBS_ODP", "y")])).unwrap_err();
    assert_eq!(error.to_string(), format!("UCX_VERBS_ODP=y: {why}"));
    assert!(error.remedy().contains("UCX_VERBS_ODP=auto"), "{}", error.remedy());
}

/// Pages of raw memory, exported by one context and attached by another, as if the device had been proven, or not. What is accessed begins with a
/// page and is one packet: then rxe, too, does right. Where a device offers no on-demand paging, these tests fail.
struct World {
    memory: Arc<dyn Attachment>,
    export: Arc<Export>,
    mem: Arc<LocalMem>,
    exporter: VerbsMd,
    _importer: VerbsMd,
    /// Bytes of an access.
    piece: usize,
}

const PAGES: usize = 3;
/// Where pages are mapped: far from where the kernel puts what others map, so that nobody has them between unmapping and mapping anew.
static NEXT: Mutex<usize> = Mutex::new(0x2200_0000_0000);

impl World {
    fn new(by_address: bool, settings: &[(&'static str, &'static str)]) -> Self {
        Self::of(Device::any(), by_address, settings)
    }

    fn of(device: Arc<Device>, by_address: bool, settings: &[(&'static str, &'static str)]) -> Self {
        let tried = if by_address { Ok(()) } else { Err(Unproven::SwitchedOff) };
        let [there, here] = [(); 2].map(|()| params(settings));
        let piece = (128 << device.port.mtu.0).min(page_size()); // IBV_MTU_256 is 1 (`<infiniband/verbs.h>`)
        if std::env::var_os("RUCX_LONG_PACKETS").is_some() {
            assert_eq!(piece, page_size());
        }
        let open = |params: &MdParams| {
            VerbsMd::of_device(crate::transports::this_boot().unwrap(), Arc::clone(&device), &tried, params)
                .unwrap()
        };
        let (exporter, importer) = (open(&there), open(&here));
        let address = {
            let mut next = NEXT.lock();
            *next += PAGES * page_size();
            map(ptr::with_exposed_provenance_mut(*next))
        };
        // SAFETY: nobody has references to it (module rule).
        let raw = unsafe { RawMem::new(address, PAGES * page_size()) };
        let mem = Arc::new(LocalMem::raw(&raw, Rights::READ_WRITE));
        let export = Arc::new(there.exports.publish(&mem).unwrap());
        let memh = exporter.reg(&mem).unwrap();
        let mut mkey = vec![0; memh.packed_size(PackFlags::EXPORT).unwrap()];
        memh.pack(&export, PackFlags::EXPORT, &mut mkey).unwrap();
        let attached = attach(&importer, &there, &export, &mkey);
        Self { memory: attached.unwrap().memory, export, mem, exporter, _importer: importer, piece }
    }

    fn at(&self) -> *mut u8 {
        ptr::with_exposed_provenance_mut(usize::try_from(self.mem.address()).unwrap())
    }

    fn unmap(&self) {
        // SAFETY: mapped here, and nobody has references to it (module rule).
        unsafe { munmap(self.at().cast(), PAGES * page_size()) }.unwrap();
    }

    /// Puts pages there that nobody may access: left empty, the range would be where the library of the device maps the next queue.
    fn forbid(&self) {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: as in `unmap`.
        unsafe { mmap_anonymous(self.at().cast(), PAGES * page_size(), ProtFlags::empty(), flags) }.unwrap();
    }

    fn map_anew(&self) {
        self.unmap();
        assert_eq!(map(self.at()), self.at());
    }

    /// Whether what the importer writes is there, and what is there is what it reads: at the beginning of each page.
    fn reaches(&self, salt: u8) -> [bool; 2] {
        let (written, stored) = (vec![salt; self.piece], vec![salt + 1; self.piece]);
        let offsets = || (0..PAGES).map(|page| (page * page_size()) as u64);
        let mut seen = vec![0; self.piece];
        let mut answers = [true; 2];
        for at in offsets() {
            self.memory.write(at, &written).unwrap();
            self.mem.read(at, &mut seen).unwrap();
            answers[0] &= seen == written;
            self.mem.write(at, &stored).unwrap();
            self.memory.read(at, &mut seen).unwrap();
            answers[1] &= seen == stored;
        }
        answers
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.export.revoke().unwrap();
        self.unmap();
    }
}

/// Maps fresh pages.
fn map(at: *mut u8) -> *mut u8 {
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE);
    // SAFETY: it replaces nothing.
    unsafe { mmap_anonymous(at.cast(), PAGES * page_size(), access, flags) }.unwrap().cast()
}

/// C4 by a registration of the address; the guard is the same with pinned pages.
#[test]
fn what_is_mapped_anew_is_reached_by_address_and_not_where_it_is_pinned() {
    for settings in [NEARBY, &[]] {
        for by_address in [true, false] {
            let world = World::new(by_address, settings);
            assert_eq!(world.exporter.attr().flags.contains(MdFlags::VA_BOUND), by_address);
            assert_eq!(world.reaches(1), [true; 2]);
            for round in 1..=5 {
                world.map_anew();
                assert_eq!(world.reaches(10 * round), [by_address; 2], "in round {round} with {settings:?}");
            }
        }
    }
}

/// Whether a device does atomics right on what it reaches by its address, no trial has shown.
#[test]
fn what_is_atomic_is_pinned() {
    for settings in [NEARBY, &[]] {
        for by_address in [true, false] {
            let mut device = Device::any();
            Arc::get_mut(&mut device).unwrap().does_atomics = true;
            let world = World::of(device, by_address, settings);
            world.mem.write(8, &5_u64.to_ne_bytes()).unwrap();
            let answer = world.memory.atomic(8, AtomicOp::U64(AmoOp::Add(2)));
            if by_address {
                let error = answer.unwrap_err();
                assert!(error.to_string().contains("UCX_VERBS_ODP=n"), "{error}");
            } else {
                assert_eq!(answer, Ok(5));
            }
        }
    }
}

/// Where nothing can be reached nothing is; what is mapped there later is reached by the same import.
#[test]
fn what_is_not_mapped_is_stale_until_it_is_mapped_again() {
    for settings in [NEARBY, &[]] {
        let world = World::new(true, settings);
        assert_eq!(world.reaches(1), [true; 2]);
        world.forbid();
        for _ in 0..2 {
            let accesses = [world.memory.write(0, &[7; 64]), world.memory.read(0, &mut [0; 64])];
            for access in accesses {
                let unmapped = AccessError::Stale { done: 0, why: StaleReason::Unmapped };
                assert_eq!(access, Err(unmapped), "with {settings:?}");
            }
        }
        assert_eq!(world.memory.check(), Ok(()));
        world.map_anew();
        assert_eq!(world.reaches(3), [true; 2]);
        world.export.revoke().unwrap();
        let access = world.memory.write(0, &[7; 64]);
        assert_eq!(
            access,
            Err(AccessError::Stale { done: 0, why: StaleReason::Revoked }),
            "with {settings:?}"
        );
    }
}
