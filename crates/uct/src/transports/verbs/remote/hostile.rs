//! Importers that keep no rules, on a device: `cargo xtask rxe --filter hostile`.
//!
//! # Safety
//! Memory that is named here by its address belongs to the test, as atomics, as long as its export lives.

#![allow(unsafe_code)]
#![allow(clippy::unwrap_used)] // tests

use std::sync::Arc;
use std::time::Duration;

use rdma_core_sys::ibv_access_flags;
use ucs::Status;
use ucs::mem::Mapping;
use ucs::sync::{AtomicUsize, Ordering};

use super::exporter::{Exports, Limits};
use super::wire::{Attached, LANES, Request, Subject};
use crate::export::{Export, ExportTable};
use crate::memory::{AccessError, LocalMem, RawMem, Rights, StaleReason};
use crate::service::{ConnId, Responder};
use crate::transports::verbs::device::{DEPTH, Device, REQUESTS};
use crate::transports::verbs::queue::{Connect, Queue, Remote};
use crate::transports::verbs::sys::{Cq, Qp};
use crate::transports::verbs::wire::QpAddress;

const PAGE: usize = 4096;
const BEFORE: u8 = 0x5a;
const MINE: u8 = 0xee;

/// An exporter. Importers call it as its service would have them called: once they have proven the token.
struct Exporter {
    device: Arc<Device>,
    table: Arc<ExportTable>,
    exports: Arc<Exports>,
}

/// Memory of it, and its export.
struct Exported {
    mem: Arc<LocalMem>,
    export: Export,
}

impl Exporter {
    fn with(limits: Limits) -> Self {
        let device = Device::any();
        let table = Arc::new(ExportTable::new(Duration::from_secs(5)).unwrap());
        let exports = Arc::new(Exports::new(&device, false, &table, limits));
        Self { device, table, exports }
    }

    fn new() -> Self {
        Self::with(Limits::default())
    }

    fn export(&self, mem: LocalMem) -> Exported {
        let mem = Arc::new(mem);
        let export = self.table.publish(&mem).unwrap();
        Exported { mem, export }
    }

    fn page(&self, rights: Rights) -> Exported {
        let mem = LocalMem::anonymous(PAGE, rights).unwrap();
        mem.write(0, &[BEFORE; PAGE]).unwrap();
        self.export(mem)
    }

    fn subject(&self, of: &Exported) -> Vec<u8> {
        Subject::new(self.device.context.guid(), of.export.claim()).encode().to_vec()
    }

    fn importer(&self, number: u64) -> Importer {
        let device = Device::any();
        let queue = Queue::new(&device);
        let lanes = Lanes {
            conn: ConnId(number),
            device,
            exports: Arc::clone(&self.exports),
            connected: AtomicUsize::new(0),
        };
        Importer { lanes, queue }
    }
}

impl Exported {
    fn start(&self) -> u64 {
        self.export.claim().address
    }

    #[track_caller]
    fn is_untouched(&self) {
        let mut bytes = vec![0; self.mem.len()];
        self.mem.read(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == BEFORE), "it was written");
    }
}

/// An importer with a device, so a protection domain, of its own.
struct Importer {
    lanes: Lanes,
    queue: Queue,
}

/// How its queue pairs are connected, and how often they were.
#[derive(Debug)]
struct Lanes {
    conn: ConnId,
    device: Arc<Device>,
    exports: Arc<Exports>,
    connected: AtomicUsize,
}

impl Connect for Lanes {
    fn connect(&self, lane: u8) -> Result<Qp, AccessError> {
        let cq = Cq::new(&self.device.context, DEPTH).unwrap();
        let unconnected = self.device.queue_pair(cq, REQUESTS, ibv_access_flags(0)).unwrap();
        let request = Request::Connect { lane, address: unconnected.address() };
        let reply = self.exports.call(self.conn, &anything(), &request.encode()).unwrap();
        self.connected.fetch_add(1, Ordering::Relaxed);
        Ok(unconnected.connect(&QpAddress::decode(&reply).unwrap()).unwrap())
    }
}

/// A connection is the same for all exports of an exporter: what it is asked about does not matter.
fn anything() -> Vec<u8> {
    Subject { guid: [0; 8], slot: 1, id: 1, epoch: 1, address: 0, length: 0 }.encode().to_vec()
}

impl Importer {
    fn call(&self, from: &Exporter, of: &Exported, request: &[u8]) -> Result<Vec<u8>, Status> {
        from.exports.call(self.lanes.conn, &from.subject(of), request)
    }

    /// The key that it gets.
    fn attach(&self, from: &Exporter, of: &Exported) -> Result<u32, Status> {
        let reply = self.call(from, of, &Request::Attach.encode())?;
        Ok(Attached::decode(&reply).unwrap().rkey)
    }

    fn detach(&self, from: &Exporter, of: &Exported) {
        assert_eq!(self.call(from, of, &Request::Detach.encode()), Ok(Vec::new()));
    }

    fn read(&self, rkey: u32, address: u64, len: usize) -> Result<Vec<u8>, AccessError> {
        let mut bytes = vec![0; len];
        self.queue.read(Remote { address, rkey }, &mut bytes, &self.lanes)?;
        Ok(bytes)
    }

    fn write(&self, rkey: u32, address: u64, bytes: &[u8]) -> Result<(), AccessError> {
        self.queue.write(Remote { address, rkey }, bytes, &self.lanes)
    }

    fn connected(&self) -> usize {
        self.lanes.connected.load(Ordering::Relaxed)
    }

    /// Its device says that the exporter's refuses, both ways.
    #[track_caller]
    fn is_refused(&self, what: &str, rkey: u32, address: u64, len: usize) {
        let refused = AccessError::Stale { done: 0, why: StaleReason::Revoked };
        assert_eq!(self.read(rkey, address, len), Err(refused.clone()), "READ: {what}");
        assert_eq!(self.write(rkey, address, &vec![MINE; len]), Err(refused), "WRITE: {what}");
    }

    #[track_caller]
    fn reads(&self, rkey: u32, of: &Exported) {
        assert_eq!(self.read(rkey, of.start(), PAGE), Ok(vec![BEFORE; PAGE]));
    }
}

/// The key of another importer's registration of the very same memory: what would reach it over that one's queue pair reaches nothing over
/// any other.
#[test]
fn another_importer_s_key_reaches_nothing() {
    let exporter = Exporter::new();
    let (of, secret) = (exporter.page(Rights::READ_WRITE), exporter.page(Rights::READ_WRITE));
    let (good, bad) = (exporter.importer(1), exporter.importer(2));
    let its = good.attach(&exporter, &of).unwrap();
    let hidden = good.attach(&exporter, &secret).unwrap();
    let own = bad.attach(&exporter, &of).unwrap();
    assert!(own != its && own != hidden);
    good.reads(its, &of);
    good.reads(hidden, &secret);
    bad.reads(own, &of);
    assert_eq!((good.connected(), bad.connected()), (1, 1));
    bad.is_refused("the other one's key", its, of.start(), 8);
    bad.is_refused("the key of what it has not attached", hidden, secret.start(), 8);
    secret.is_untouched();
    of.is_untouched();
    // Its queue pairs have ended, each time, and nobody else's.
    bad.reads(own, &of);
    good.reads(its, &of);
    good.reads(hidden, &secret);
    assert_eq!((good.connected(), bad.connected()), (1, 5));
    // The key is right: over the queue pairs of who got it.
    good.write(hidden, secret.start(), &[MINE]).unwrap();
    // And of whoever is in the same domain: it is the domain that protects.
    let same_domain = exporter.importer(1);
    assert_eq!(same_domain.read(hidden, secret.start(), 2), Ok(vec![MINE, BEFORE]));
}

/// Keys that nobody got, around one that somebody did.
#[test]
fn guessed_keys_reach_nothing() {
    let exporter = Exporter::new();
    let of = exporter.page(Rights::READ_WRITE);
    let (good, bad) = (exporter.importer(1), exporter.importer(2));
    let its = good.attach(&exporter, &of).unwrap();
    let own = bad.attach(&exporter, &of).unwrap();
    for key in [0, 1, its ^ 1, its ^ 0x100, its.wrapping_add(1), u32::MAX] {
        if key != own {
            bad.is_refused("a guess", key, of.start(), 1);
        }
    }
    of.is_untouched();
    good.reads(its, &of);
    assert_eq!(good.connected(), 1);
    bad.reads(own, &of);
}

/// Memory in the middle of other memory of the exporter's, which is mapped, and may be written by anybody but the device.
#[test]
fn one_byte_out_of_range_is_too_much() {
    let exporter = Exporter::new();
    let around = Mapping::anonymous(3 * PAGE).unwrap();
    around.bytes().write(0, &[BEFORE; 3 * PAGE]).unwrap();
    let (begin, len) = (PAGE + 100, PAGE - 200);
    // SAFETY: bytes of `around`, which are accessed as atomics, and live longer than the export (module rule).
    let raw = unsafe { RawMem::new(around.bytes().as_ptr().wrapping_add(begin), len) };
    let of = exporter.export(LocalMem::raw(&raw, Rights::READ_WRITE));
    let importer = exporter.importer(1);
    let key = importer.attach(&exporter, &of).unwrap();
    let (start, end) = (of.start(), of.start() + len as u64);
    for (what, address, bytes) in [
        ("the byte before", start - 1, 1),
        ("the byte behind", end, 1),
        ("one more at the beginning", start - 1, 2),
        ("one more at the end", end - 1, 2),
        ("all and one more", start, len + 1),
        ("around its end of the address space", u64::MAX, 2),
        ("nothing", 0, 1),
    ] {
        importer.is_refused(what, key, address, bytes);
    }
    let mut bytes = vec![0; 3 * PAGE];
    around.bytes().read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == BEFORE), "it was written");
    // What is in range is reached, to the last byte.
    importer.write(key, start, &[MINE]).unwrap();
    importer.write(key, end - 1, &[MINE]).unwrap();
    around.bytes().read(0, &mut bytes).unwrap();
    let written: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] == MINE).collect();
    assert_eq!(written, [begin, begin + len - 1]);
}

#[test]
fn a_key_is_of_one_export() {
    let exporter = Exporter::new();
    let (one, other) = (exporter.page(Rights::READ_WRITE), exporter.page(Rights::READ_WRITE));
    let kept = exporter.page(Rights::READ_WRITE);
    let importer = exporter.importer(1);
    let key = importer.attach(&exporter, &one).unwrap();
    let other_key = importer.attach(&exporter, &other).unwrap();
    importer.is_refused("memory of another key", key, other.start(), 8);
    importer.is_refused("memory that was not attached", key, kept.start(), 8);
    importer.is_refused("the other way round", other_key, one.start(), 8);
    [&one, &other, &kept].into_iter().for_each(Exported::is_untouched);
    importer.reads(key, &one);
    importer.reads(other_key, &other);
}

#[test]
fn what_may_be_read_only_is_not_written() {
    let exporter = Exporter::new();
    let of = exporter.page(Rights::READ);
    let importer = exporter.importer(1);
    let key = importer.attach(&exporter, &of).unwrap();
    let refused = importer.write(key, of.start(), &[MINE]).unwrap_err();
    assert_eq!(refused.status(), Status::Stale, "{refused}");
    of.is_untouched();
    importer.reads(key, &of);
}

/// A request that comes late, by the key of an export that is over: it ends the queue pair that it comes by, and no other.
#[test]
fn a_key_of_a_revoked_export_ends_its_own_queue_pair() {
    let exporter = Exporter::new();
    let (of, other) = (exporter.page(Rights::READ_WRITE), exporter.page(Rights::READ_WRITE));
    let (good, bad) = (exporter.importer(1), exporter.importer(2));
    let its = good.attach(&exporter, &other).unwrap();
    let [key, other_key] = [&of, &other].map(|of| bad.attach(&exporter, of).unwrap());
    good.reads(its, &other);
    bad.reads(key, &of);
    bad.reads(other_key, &other);
    assert_eq!((good.connected(), bad.connected()), (1, 1));
    assert_eq!(of.export.revoke(), Ok(()));
    bad.is_refused("over", key, of.start(), 8);
    of.is_untouched();
    good.reads(its, &other);
    bad.reads(other_key, &other);
    assert_eq!((good.connected(), bad.connected()), (1, 3), "once for each that was refused");
}

#[test]
fn so_many_are_attached_and_no_more() {
    let exporter = Exporter::with(Limits { attached: 2, ..Limits::default() });
    let all: Vec<Exported> = (0..3).map(|_| exporter.page(Rights::READ_WRITE)).collect();
    let (greedy, other) = (exporter.importer(1), exporter.importer(2));
    let keys = [0, 1].map(|at| greedy.attach(&exporter, &all[at]).unwrap());
    assert_eq!(greedy.attach(&exporter, &all[2]), Err(Status::ExceedsLimit));
    assert_eq!(greedy.attach(&exporter, &all[0]), Ok(keys[0]), "what it has, it may attach again");
    let its = other.attach(&exporter, &all[2]).unwrap();
    other.reads(its, &all[2]);
    greedy.reads(keys[1], &all[1]);
    // One that is over makes room; and one that is detached as often as it was attached.
    all[1].export.revoke().unwrap();
    let third = greedy.attach(&exporter, &all[2]).unwrap();
    greedy.reads(third, &all[2]);
    let fourth = exporter.page(Rights::READ_WRITE);
    greedy.detach(&exporter, &all[0]);
    assert_eq!(greedy.attach(&exporter, &fourth), Err(Status::ExceedsLimit), "it was attached twice");
    greedy.detach(&exporter, &all[0]);
    let key = greedy.attach(&exporter, &fourth).unwrap();
    greedy.reads(key, &fourth);
}

/// A key that was once an importer's is never another one of its: it gets so many, and has to connect anew.
#[test]
fn so_many_keys_and_no_more() {
    let exporter = Exporter::with(Limits { keys: 3, ..Limits::default() });
    let of = exporter.page(Rights::READ_WRITE);
    let (greedy, other) = (exporter.importer(1), exporter.importer(2));
    let mut keys: Vec<u32> = Vec::new();
    for _ in 0..3 {
        keys.push(greedy.attach(&exporter, &of).unwrap());
        greedy.detach(&exporter, &of);
    }
    assert_eq!(greedy.attach(&exporter, &of), Err(Status::Busy));
    keys.iter().for_each(|key| greedy.is_refused("a key of before", *key, of.start(), 1));
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 3, "no key comes twice");
    let its = other.attach(&exporter, &of).unwrap();
    other.reads(its, &of);
    exporter.exports.ended(greedy.lanes.conn);
    assert!(greedy.attach(&exporter, &of).is_ok(), "it is another connection's");
}

/// Whoever guesses the key of a registration that is just being made reaches nothing either, once the revocation is over: it is over after that.
#[test]
fn nothing_is_registered_once_it_is_revoked() {
    let exporter = Exporter::new();
    let importer = exporter.importer(1);
    for round in 0..100 {
        let of = exporter.export(LocalMem::anonymous(256 * PAGE, Rights::READ_WRITE).unwrap());
        let begins = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                begins.store(1, Ordering::Release);
                let attached = importer.attach(&exporter, &of);
                assert!(attached.is_ok() || attached == Err(Status::Stale), "{attached:?}");
            });
            while begins.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_micros(20 * round));
            assert_eq!(of.export.revoke(), Ok(()));
            assert_eq!(Arc::strong_count(&of.mem), 1, "in round {round}, somebody has it yet");
        });
    }
}

#[test]
fn detached_more_often_than_attached() {
    let exporter = Exporter::new();
    let (of, other) = (exporter.page(Rights::READ_WRITE), exporter.page(Rights::READ_WRITE));
    let (good, bad) = (exporter.importer(1), exporter.importer(2));
    bad.detach(&exporter, &of); // it is unknown yet
    let its = good.attach(&exporter, &of).unwrap();
    let key = bad.attach(&exporter, &of).unwrap();
    assert_eq!(bad.attach(&exporter, &of), Ok(key));
    bad.detach(&exporter, &other); // which it has never attached
    bad.detach(&exporter, &of);
    bad.reads(key, &of);
    for _ in 0..3 {
        bad.detach(&exporter, &of);
    }
    bad.is_refused("detached", key, of.start(), 1);
    good.reads(its, &of);
    assert_eq!(good.connected(), 1);
    let anew = bad.attach(&exporter, &of).unwrap();
    assert_ne!(anew, key);
    bad.reads(anew, &of);
    bad.is_refused("a key of before", key, of.start(), 1);
    of.is_untouched();
}

#[test]
fn connections_that_cannot_be() {
    let exporter = Exporter::new();
    let of = exporter.page(Rights::READ_WRITE);
    let (good, bad) = (exporter.importer(1), exporter.importer(2));
    let its = good.attach(&exporter, &of).unwrap();
    good.reads(its, &of);
    let cq = Cq::new(&bad.lanes.device.context, DEPTH).unwrap();
    let address = bad.lanes.device.queue_pair(cq, REQUESTS, ibv_access_flags(0)).unwrap().address();
    let connect = |lane, address| bad.call(&exporter, &of, &Request::Connect { lane, address }.encode());
    assert_eq!(connect(0, address), Err(Status::InvalidParam), "before anything was attached");
    let key = bad.attach(&exporter, &of).unwrap();
    for lane in [LANES, u8::MAX] {
        assert_eq!(connect(lane, address), Err(Status::InvalidParam), "lane {lane}");
    }
    // Of no network that this device is in: it has a GID.
    assert_eq!(connect(0, QpAddress { gid: None, lid: 7, ..address }), Err(Status::Unreachable));
    for request in
        [&[][..], &[9, 0, 0, 0, 0, 0, 0, 0], &[1, 0, 0, 0, 0, 0, 0, 0, 0], &[2, 0, 0, 0, 0, 0, 0, 0]]
    {
        assert_eq!(bad.call(&exporter, &of, request), Err(Status::InvalidParam), "{request:?}");
    }
    // A queue pair that ends is its own, and one that nobody is behind is waited for by nobody.
    assert!(connect(0, QpAddress { number: 0xff_fffe, ..address }).is_ok());
    bad.reads(key, &of);
    good.reads(its, &of);
    assert_eq!(good.connected(), 1);
}
