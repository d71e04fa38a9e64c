//! Exporters that keep no rules, or end what an importer has, on a device: `cargo xtask rxe --filter liars`.

#![allow(clippy::unwrap_used)] // tests

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdma_core_sys::ibv_access_flags as Access;
use ucs::Status;
use ucs::time::Deadline;

use super::exporter::{Exports, Limits};
use super::importer::{At, Importers};
use super::wire::{Attached, Request};
use crate::api::{AttachError, Attachment};
use crate::export::{Export, ExportTable};
use crate::memory::{AccessError, DeviceReason, LocalMem, Rights};
use crate::service::{ConnId, Responder, Secret, Service};
use crate::transports::verbs::device::{DEPTH, Device, REQUESTS};
use crate::transports::verbs::queue::{Connect, Queue, Remote};
use crate::transports::verbs::sys::{Cq, Mr, Qp};
use crate::transports::verbs::wire::QpAddress;

const PAGE: usize = 4096;
const BEFORE: u8 = 0x5a;
/// Longer than a device tries.
const BOUND: Duration = Duration::from_secs(30);
const KIND: u16 = 0x100;

type Answer = Result<Vec<u8>, Status>;

/// What is answered in place of the truth.
#[derive(Clone, Debug)]
enum Lie {
    /// To who attaches.
    Attach(Answer),
    /// To who connects.
    Connect(Answer),
    /// To who connects: the importer's own queue pair.
    Echo,
    /// To who connects: a queue pair that is the test's to use.
    Trap,
}

/// Answers as an exporter does, but for its lies.
#[derive(Debug)]
struct Liar {
    device: Arc<Device>,
    exports: Exports,
    lie: Mutex<Option<Lie>>,
    /// Queue pairs that importers are connected with.
    traps: Mutex<Vec<Qp>>,
    /// Who has connected a queue pair, each time.
    connected: Mutex<Vec<ConnId>>,
}

impl Responder for Liar {
    fn secret(&self, subject: &[u8]) -> Secret {
        self.exports.secret(subject)
    }

    fn call(&self, conn: ConnId, subject: &[u8], request: &[u8]) -> Answer {
        let asked = Request::decode(request).unwrap();
        let truth = self.exports.call(conn, subject, request);
        match (self.lie.lock().clone(), asked) {
            (Some(Lie::Attach(lie)), Request::Attach)
            | (Some(Lie::Connect(lie)), Request::Connect { .. }) => lie,
            (Some(Lie::Echo), Request::Connect { address, .. }) => Ok(address.encode().to_vec()),
            (Some(Lie::Trap), Request::Connect { address, .. }) => {
                let cq = Cq::new(&self.device.context, DEPTH).unwrap();
                let unconnected = self.device.queue_pair(cq, REQUESTS, Access(0)).unwrap();
                let own = unconnected.address();
                self.traps.lock().push(unconnected.connect(&address).unwrap());
                Ok(own.encode().to_vec())
            }
            (_, Request::Connect { .. }) => {
                self.connected.lock().push(conn);
                truth
            }
            _ => truth,
        }
    }

    fn ended(&self, conn: ConnId) {
        self.exports.ended(conn);
    }
}

/// By which it sends requests to an importer.
impl Connect for Liar {
    fn connect(&self, _lane: u8) -> Result<Qp, AccessError> {
        Ok(self.traps.lock().pop().expect("an importer has connected"))
    }
}

/// An exporter, with a service that its importers call.
struct Exporter {
    device: Arc<Device>,
    table: Arc<ExportTable>,
    liar: Arc<Liar>,
    at: SocketAddr,
    _service: Arc<Service>,
}

/// Memory of it, and its export.
struct Exported {
    _mem: Arc<LocalMem>,
    export: Export,
}

impl Exporter {
    fn new() -> Self {
        Self::with(Limits::default())
    }

    fn with(limits: Limits) -> Self {
        let device = Device::any();
        let table = Arc::new(ExportTable::new(BOUND).unwrap());
        let service = Arc::new(Service::new(Arc::clone(&table), None));
        let exports = Exports::new(&device, false, &table, limits);
        let liar = Arc::new(Liar {
            device: Arc::clone(&device),
            exports,
            lie: Mutex::default(),
            traps: Mutex::default(),
            connected: Mutex::default(),
        });
        let responder: Arc<dyn Responder> = Arc::clone(&liar) as _;
        service.respond(KIND, Arc::downgrade(&responder));
        let at = service.serve_net(&[device.port.ip().unwrap()]).unwrap()[0];
        Self { device, table, liar, at, _service: service }
    }

    fn page(&self) -> Exported {
        let mem = LocalMem::anonymous(PAGE, Rights::READ_WRITE).unwrap();
        mem.write(0, &[BEFORE; PAGE]).unwrap();
        let mem = Arc::new(mem);
        Exported { export: self.table.publish(&mem).unwrap(), _mem: mem }
    }

    fn connected(&self) -> Vec<ConnId> {
        self.liar.connected.lock().clone()
    }
}

/// A context that imports.
struct Importer {
    device: Arc<Device>,
    importers: Importers,
}

impl Importer {
    fn new() -> Self {
        let table = Arc::new(ExportTable::new(BOUND).unwrap());
        let service = Arc::new(Service::new(table, None));
        let device = Device::any();
        Self { importers: Importers::new(&device, &service, BOUND), device }
    }

    fn attach(&self, from: &Exporter, of: &Exported) -> Result<Arc<dyn Attachment>, AttachError> {
        let guid = from.device.context.guid();
        let at = At { uuid: from.table.uuid(), address: from.at, kind: KIND, guid, by_address: false };
        self.importers.attach(&at, of.export.claim(), &Deadline::after(BOUND))
    }
}

#[track_caller]
fn reads(memory: &Arc<dyn Attachment>) {
    let mut bytes = [0; PAGE];
    memory.read(0, &mut bytes).unwrap();
    assert!(bytes == [BEFORE; PAGE]);
}

/// The importer's process, and its connection to the exporter's, live on.
#[test]
fn a_queue_pair_that_the_exporter_ends_is_told_and_made_anew() {
    let exporter = Exporter::new();
    let (of, kept) = (exporter.page(), exporter.page());
    let (good, bad) = (Importer::new(), Importer::new());
    let its = good.attach(&exporter, &of).unwrap();
    let [memory, _connection] = [&of, &kept].map(|of| bad.attach(&exporter, of).unwrap());
    reads(&its);
    reads(&memory);
    let [good_conn, again, bad_conn, ..] = exporter.connected()[..] else { panic!("two lanes each") };
    assert!(good_conn == again && good_conn != bad_conn);
    exporter.liar.exports.ended(bad_conn);
    let begin = Instant::now();
    let error = memory.read(0, &mut [0; 8]).unwrap_err();
    assert!(begin.elapsed() < BOUND, "{:?}", begin.elapsed());
    assert!(matches!(&error, AccessError::Device { done: 0, .. }), "{error}");
    assert!(error.to_string().contains("retry"), "{error}");
    reads(&its);
    drop(memory);
    let anew = bad.attach(&exporter, &of).unwrap();
    reads(&anew);
    reads(&its);
    let connected = exporter.connected();
    assert_eq!(connected.iter().filter(|conn| **conn == good_conn).count(), 2, "its lanes, once each");
    assert_eq!(connected.last(), Some(&bad_conn), "by the connection that it had");
}

#[test]
fn answers_that_are_none_are_errors_and_harm_no_other_import() {
    let (liar, honest) = (Exporter::new(), Exporter::new());
    let (of, true_one) = (liar.page(), honest.page());
    let importer = Importer::new();
    let kept = importer.attach(&honest, &true_one).unwrap();
    let attached = Attached { rkey: 7, rights: Rights::READ_WRITE }.encode().to_vec();
    let long = |len| vec![0xff; len];
    let end = attached.len() - 1;
    let mut answers = vec![Ok(Vec::new()), Ok(attached[..end].to_vec()), Ok([&attached[..], &[0]].concat())];
    answers.extend([Ok(long(1024)), Ok(long(1025)), Ok(long(16)), Err(Status::Ok), Err(Status::Canceled)]);
    let mut lies: Vec<Lie> = answers.into_iter().map(Lie::Attach).collect();
    let own = importer_s_address();
    let one = own.encode().to_vec();
    let mut answers = vec![Ok(Vec::new()), Ok(one[..31].to_vec()), Ok([&one[..], &[0]].concat())];
    answers.extend([Ok(long(1024)), Ok(long(1025)), Ok(long(32)), Ok(vec![0; 32]), Err(Status::Ok)]);
    answers.push(Ok(QpAddress { gid: None, lid: 7, ..own }.encode().to_vec()));
    lies.extend(answers.into_iter().map(Lie::Connect));
    for lie in lies {
        *liar.liar.lie.lock() = Some(lie.clone());
        let begin = Instant::now();
        let error = importer.attach(&liar, &of).unwrap_err();
        assert!(begin.elapsed() < BOUND, "{lie:?}: {:?}", begin.elapsed());
        let status = error.status();
        assert!(matches!(status, Status::InvalidHandle | Status::Unreachable), "{lie:?}: {error}");
        assert!(!error.remedy().is_empty(), "{lie:?}: {error}");
        reads(&kept);
    }
    // The truth at last: nothing is left of it.
    *liar.liar.lie.lock() = None;
    reads(&importer.attach(&liar, &of).unwrap());
    reads(&importer.attach(&honest, &true_one).unwrap());
}

/// Of a queue pair that could be.
fn importer_s_address() -> QpAddress {
    let port = Device::any().port;
    let gid = port.gid.map(|gid| gid.raw);
    QpAddress { number: 0xff_fffe, psn: 1, gid, lid: port.lid, mtu: 3, reads: 1 }
}

/// What is well-formed is found out by the first access: one that nobody answers, and the importer's own, by which it reaches nothing either.
#[test]
fn a_queue_pair_that_is_not_the_exporter_s_reaches_nothing() {
    let (liar, honest) = (Exporter::new(), Exporter::new());
    let (of, true_one) = (liar.page(), honest.page());
    let importer = Importer::new();
    let kept = importer.attach(&honest, &true_one).unwrap();
    let nobody = Lie::Connect(Ok(importer_s_address().encode().to_vec()));
    for lie in [
        nobody,
        Lie::Echo,
        Lie::Attach(Ok(Attached { rkey: 7, rights: Rights::READ_WRITE }.encode().to_vec())),
    ] {
        *liar.liar.lie.lock() = Some(lie.clone());
        let memory = importer.attach(&liar, &of).unwrap();
        let begin = Instant::now();
        let error = memory.write(0, &[1; 8]).unwrap_err();
        assert!(begin.elapsed() < BOUND, "{lie:?}: {:?}", begin.elapsed());
        assert!(matches!(error.status(), Status::Stale | Status::IoError), "{lie:?}: {error}");
        reads(&kept);
    }
    *liar.liar.lie.lock() = None;
    reads(&importer.attach(&liar, &of).unwrap());
}

/// Memory is imported and dropped as often as one likes, while one import keeps its connection: others get keys on connections of their own.
#[test]
fn keys_that_are_spent_are_got_on_a_new_connection() {
    let exporter = Exporter::with(Limits { keys: 3, ..Limits::default() });
    let (of, other) = (exporter.page(), exporter.page());
    let importer = Importer::new();
    let kept = importer.attach(&exporter, &of).unwrap();
    for _ in 0..10 {
        reads(&importer.attach(&exporter, &other).unwrap());
    }
    reads(&kept);
    let mut conns = exporter.connected();
    conns.sort_unstable();
    conns.dedup();
    assert!((2..=11).contains(&conns.len()), "{conns:?}");
}

#[test]
fn memory_that_is_attached_without_end_is_refused_with_a_remedy() {
    let exporter = Exporter::with(Limits { attached: 2, ..Limits::default() });
    let all = [exporter.page(), exporter.page(), exporter.page()];
    let importer = Importer::new();
    let kept = [&all[0], &all[1]].map(|of| importer.attach(&exporter, of).unwrap());
    let error = importer.attach(&exporter, &all[2]).unwrap_err();
    assert!(error.to_string().contains("as much memory attached"), "{error}");
    assert!(error.remedy().contains("drop imports"), "{}", error.remedy());
    kept.iter().for_each(reads);
}

/// Memory of the importer's own domain, as of its operands and of what it has others share with it, by a key that is right for peers.
#[test]
fn an_importer_s_queue_pairs_let_its_exporter_do_nothing() {
    let (liar, honest) = (Exporter::new(), Exporter::new());
    let (of, true_one) = (liar.page(), honest.page());
    let importer = Importer::new();
    let kept = importer.attach(&honest, &true_one).unwrap();
    let mem = LocalMem::anonymous(PAGE, Rights::READ_WRITE).unwrap();
    mem.write(0, &[BEFORE; PAGE]).unwrap();
    let for_peers =
        Access::IBV_ACCESS_LOCAL_WRITE | Access::IBV_ACCESS_REMOTE_WRITE | Access::IBV_ACCESS_REMOTE_READ;
    let mr = Mr::remote(&importer.device.pd, &mem, for_peers).unwrap();
    *liar.liar.lie.lock() = Some(Lie::Trap);
    let _attached = importer.attach(&liar, &of).unwrap();
    let queue = Queue::new(&liar.device);
    let (remote, trap) = (Remote { address: mem.address(), rkey: mr.rkey() }, &*liar.liar);
    // Its queue pairs allow no such request, whatever the key.
    for answer in [queue.write(remote, &[1; 8], trap), queue.read(remote, &mut [0; 8], trap)] {
        let why = DeviceReason::Refused { words: "remote invalid request error" };
        assert_eq!(answer, Err(AccessError::Device { done: 0, why }));
    }
    assert!(liar.liar.traps.lock().is_empty(), "by both lanes that there were");
    let mut bytes = [0; PAGE];
    mem.read(0, &mut bytes).unwrap();
    assert!(bytes == [BEFORE; PAGE], "it was written");
    reads(&kept);
}
