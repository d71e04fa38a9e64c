//! The exporter: makes regions and exports as it is told, in this process or as a role.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::Pid;
use testkit::{Child, Role, role};
use ucs::mem::page::page_size;
use ucs::mem::{Access, Mapping, Memfd};
use ucs::sync::{AtomicBool, Ordering};
use ucs::time::Deadline;
use uct::api::{AttachRequest, ComponentId, Memh, PackFlags};
use uct::channel::Channel;
use uct::export::Export;
use uct::memory::Rights;
use uct::process::Process;
use uct::wire::Reader;

use crate::fixture::{Fixture, IMPORT_TIMEOUT, Kind, Made, Side};

/// A region of the exporter's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region(u64);

/// What travels from exporter to importer: what a packed handle says, and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    /// The exporter's number of it.
    pub(crate) export: u64,
    pub(crate) component: ComponentId,
    pub(crate) global_id: Vec<u8>,
    pub(crate) context_uuid: [u8; 16],
    pub(crate) id: u64,
    pub(crate) epoch: u64,
    pub(crate) address: u64,
    pub(crate) length: u64,
    /// The line of the exporter's table.
    pub(crate) slot: u32,
    pub(crate) token: [u8; 16],
    pub(crate) mkey: Vec<u8>,
}

impl Ticket {
    pub(crate) fn of(side: &Side, export: &Export, number: u64, mkey: Vec<u8>) -> Self {
        let claim = export.claim();
        Self {
            export: number,
            component: side.md.attr().component,
            global_id: side.md.attr().global_id.as_bytes().to_vec(),
            context_uuid: *side.exports.uuid(),
            id: claim.id,
            epoch: claim.epoch,
            address: claim.address,
            length: claim.length,
            slot: claim.slot,
            token: *claim.token.as_bytes(),
            mkey,
        }
    }

    pub(crate) fn request(&self) -> AttachRequest<'_> {
        self.request_within(IMPORT_TIMEOUT)
    }

    /// As [`Self::request`], with another bound.
    pub(crate) fn request_within(&self, patience: Duration) -> AttachRequest<'_> {
        AttachRequest {
            context_uuid: self.context_uuid,
            id: self.id,
            epoch: self.epoch,
            address: self.address,
            length: self.length,
            mkey: &self.mkey,
            deadline: Deadline::after(patience),
        }
    }

    /// Where the token lies in the key.
    pub(crate) fn token_at(&self) -> usize {
        let mut found =
            (0..=self.mkey.len().saturating_sub(16)).filter(|at| self.mkey[*at..*at + 16] == self.token);
        let at = found.next().expect("the key carries the export's token");
        assert_eq!(found.next(), None, "the key carries the token once");
        at
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for number in [self.export, self.id, self.epoch, self.address, self.length] {
            out.extend(number.to_le_bytes());
        }
        out.extend(self.slot.to_le_bytes());
        out.extend(self.component.0.to_le_bytes());
        out.extend(self.context_uuid);
        out.extend(self.token);
        out.push(u8::try_from(self.global_id.len()).unwrap());
        out.extend(&self.global_id);
        out.extend(&self.mkey);
        out
    }

    fn decode(bytes: &[u8]) -> Self {
        let mut from = Reader::new(bytes);
        let mut number = || from.u64().unwrap();
        let (export, id, epoch, address, length) = (number(), number(), number(), number(), number());
        let (slot, component) = (from.u32().unwrap(), ComponentId(from.u16().unwrap()));
        let (context_uuid, token) = (from.array().unwrap(), from.array().unwrap());
        let len = usize::from(from.u8().unwrap());
        let global_id = from.bytes(len).unwrap().to_vec();
        let mkey = from.bytes(from.remaining()).unwrap().to_vec();
        Self { export, component, global_id, context_uuid, id, epoch, address, length, slot, token, mkey }
    }
}

/// What an exporter can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Create,
    Write,
    Read,
    Export,
    Revoke,
    DropRegion,
    DropExport,
    Replace,
    Hammer,
    Add,
    Calm,
    Share,
    GiveUp,
    Close,
}

const OPS: [Op; 14] = [
    Op::Create,
    Op::Write,
    Op::Read,
    Op::Export,
    Op::Revoke,
    Op::DropRegion,
    Op::DropExport,
    Op::Replace,
    Op::Hammer,
    Op::Add,
    Op::Calm,
    Op::Share,
    Op::GiveUp,
    Op::Close,
];

/// One order: what, of what, and bytes.
#[derive(Debug)]
struct Order<'a> {
    op: Op,
    numbers: [u64; 4],
    bytes: &'a [u8],
}

impl<'a> Order<'a> {
    fn encode(&self) -> Vec<u8> {
        let op = OPS.iter().position(|op| *op == self.op).unwrap();
        let mut out = vec![u8::try_from(op).unwrap()];
        for number in self.numbers {
            out.extend(number.to_le_bytes());
        }
        out.extend(self.bytes);
        out
    }

    fn decode(bytes: &'a [u8]) -> Self {
        let mut from = Reader::new(bytes);
        let op = OPS[usize::from(from.u8().unwrap())];
        let numbers = std::array::from_fn(|_| from.u64().unwrap());
        Self { op, numbers, bytes: from.bytes(from.remaining()).unwrap() }
    }
}

#[derive(Debug)]
struct HostRegion {
    made: Made,
    memh: Box<dyn Memh>,
}

/// An exporter in this process.
#[derive(Debug)]
pub(crate) struct Host {
    side: Mutex<Option<Side>>,
    regions: Mutex<Vec<Option<Arc<HostRegion>>>>,
    exports: Mutex<Vec<Option<Arc<Export>>>>,
    stop: Arc<AtomicBool>,
    hammers: Mutex<Vec<JoinHandle<()>>>,
    channel: Mutex<Option<Channel>>,
}

fn nth<T: Clone>(list: &Mutex<Vec<Option<T>>>, index: u64) -> T {
    list.lock()[usize::try_from(index).unwrap()].clone().expect("not dropped yet")
}

fn push<T>(list: &Mutex<Vec<Option<T>>>, value: T) -> u64 {
    let mut list = list.lock();
    list.push(Some(value));
    list.len() as u64 - 1
}

impl Host {
    pub(crate) fn new(side: Side) -> Self {
        Self {
            side: Mutex::new(Some(side)),
            regions: Mutex::default(),
            exports: Mutex::default(),
            stop: Arc::default(),
            hammers: Mutex::default(),
            channel: Mutex::default(),
        }
    }

    pub(crate) fn side(&self) -> Side {
        self.side.lock().clone().expect("the context is not closed yet")
    }

    /// Does as it is told; only a revocation may fail.
    fn serve(&self, order: &Order<'_>) -> Result<Vec<u8>, String> {
        let [a, b, c, d] = order.numbers;
        match order.op {
            Op::Create => {
                let side = self.side();
                let rights = Rights::from_bits(u32::try_from(c).unwrap()).unwrap();
                let made = Kind::from_index(a).make(&*side.md, usize::try_from(b).unwrap(), rights, d);
                let memh = side.md.reg(&made.mem).unwrap();
                Ok(push(&self.regions, Arc::new(HostRegion { made, memh })).to_le_bytes().to_vec())
            }
            Op::Write => {
                nth(&self.regions, a).made.mem.write(b, order.bytes).unwrap();
                Ok(Vec::new())
            }
            Op::Read => {
                let mut bytes = vec![0; usize::try_from(c).unwrap()];
                nth(&self.regions, a).made.mem.read(b, &mut bytes).unwrap();
                Ok(bytes)
            }
            Op::Export => {
                let (side, region) = (self.side(), nth(&self.regions, a));
                let flags = PackFlags::from_bits(u32::try_from(b).unwrap()).unwrap();
                let export = Arc::new(side.exports.publish(&region.made.mem).unwrap());
                let mut mkey = vec![0; region.memh.packed_size(flags).unwrap()];
                region.memh.pack(&export, flags, &mut mkey).unwrap();
                let number = push(&self.exports, Arc::clone(&export));
                Ok(Ticket::of(&side, &export, number, mkey).encode())
            }
            Op::Revoke => {
                let export = nth(&self.exports, a);
                export.revoke().map(|()| Vec::new()).map_err(|error| error.to_string())
            }
            Op::DropRegion => {
                self.regions.lock()[usize::try_from(a).unwrap()] = None;
                Ok(Vec::new())
            }
            Op::DropExport => {
                self.exports.lock()[usize::try_from(a).unwrap()] = None;
                Ok(Vec::new())
            }
            Op::Replace => {
                let region = nth(&self.regions, a);
                crate::sys::replace(&region.made.mem);
                region.made.mem.write(0, order.bytes).unwrap();
                Ok(Vec::new())
            }
            Op::Hammer => {
                let (region, stop) = (nth(&self.regions, a), Arc::clone(&self.stop));
                let width = usize::try_from(c).unwrap();
                self.hammers.lock().push(std::thread::spawn(move || {
                    for round in (0..=u8::MAX).cycle() {
                        if stop.load(Ordering::Acquire) {
                            return;
                        }
                        region.made.mem.write(b, &vec![round; width]).unwrap();
                    }
                }));
                Ok(Vec::new())
            }
            Op::Add => {
                let region = nth(&self.regions, a);
                self.hammers.lock().push(std::thread::spawn(move || {
                    for _ in 0..c {
                        region.made.mem.atomic_u64(b).unwrap().fetch_add(1, Ordering::SeqCst);
                    }
                }));
                Ok(Vec::new())
            }
            Op::Calm => {
                self.stop.store(true, Ordering::Release);
                self.hammers.lock().drain(..).for_each(|hammer| hammer.join().unwrap());
                self.stop.store(false, Ordering::Release);
                Ok(Vec::new())
            }
            Op::Share => {
                let path = std::str::from_utf8(order.bytes).unwrap();
                let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
                let memory = Mapping::of_file(file.as_fd(), page_size(), Access::ReadWrite).unwrap();
                let other = Process::open(Pid::from_raw(i32::try_from(a).unwrap()).unwrap()).unwrap();
                let channel = Channel::new(Arc::new(memory), 0, false, Arc::new(other)).unwrap();
                *self.channel.lock() = Some(channel);
                Ok(Vec::new())
            }
            Op::GiveUp => {
                self.channel.lock().as_ref().unwrap().close();
                Ok(Vec::new())
            }
            Op::Close => {
                self.exports.lock().clear();
                self.regions.lock().clear();
                *self.side.lock() = None;
                Ok(Vec::new())
            }
        }
    }
}

impl Drop for Host {
    /// A check that fails leaves no hammering thread behind.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}

/// An exporter, here or in a process of its own.
#[derive(Debug)]
pub(crate) enum Exporter {
    Here(Host),
    There(Mutex<Child>),
}

impl Exporter {
    /// In a process of its own.
    pub(crate) fn there(fixture: &Fixture) -> Self {
        Self::There(Mutex::new(Role::new("exporter").arg(fixture.name).start()))
    }

    fn tell(&self, op: Op, numbers: [u64; 4], bytes: &[u8]) -> Result<Vec<u8>, String> {
        let order = Order { op, numbers, bytes };
        match self {
            Self::Here(host) => host.serve(&order),
            Self::There(child) => {
                let mut reply = child.lock().request(&order.encode());
                match reply.pop() {
                    Some(0) => Ok(reply),
                    _ => Err(String::from_utf8(reply).unwrap()),
                }
            }
        }
    }

    fn must(&self, op: Op, numbers: [u64; 4], bytes: &[u8]) -> Vec<u8> {
        self.tell(op, numbers, bytes).unwrap()
    }

    /// Makes a region filled with the pattern of `seed`.
    pub(crate) fn create(&self, kind: Kind, len: usize, rights: Rights, seed: u64) -> Region {
        let number = self.must(Op::Create, [kind.index(), len as u64, rights.bits().into(), seed], &[]);
        Region(u64::from_le_bytes(number.try_into().unwrap()))
    }

    pub(crate) fn write(&self, region: Region, at: u64, bytes: &[u8]) {
        self.must(Op::Write, [region.0, at, 0, 0], bytes);
    }

    pub(crate) fn read(&self, region: Region, at: u64, len: usize) -> Vec<u8> {
        self.must(Op::Read, [region.0, at, len as u64, 0], &[])
    }

    /// Exports a region, and packs its key with these flags.
    pub(crate) fn export_with(&self, region: Region, flags: PackFlags) -> Ticket {
        Ticket::decode(&self.must(Op::Export, [region.0, flags.bits().into(), 0, 0], &[]))
    }

    pub(crate) fn export(&self, region: Region) -> Ticket {
        self.export_with(region, PackFlags::EXPORT)
    }

    /// Revokes; it must answer that nothing is in flight any more.
    #[track_caller]
    pub(crate) fn revoke(&self, ticket: &Ticket) {
        if let Err(error) = self.tell(Op::Revoke, [ticket.export, 0, 0, 0], &[]) {
            panic!("not revoked: {error}");
        }
    }

    pub(crate) fn drop_region(&self, region: Region) {
        self.must(Op::DropRegion, [region.0, 0, 0, 0], &[]);
    }

    pub(crate) fn drop_export(&self, ticket: &Ticket) {
        self.must(Op::DropExport, [ticket.export, 0, 0, 0], &[]);
    }

    /// Puts other memory, with these bytes, at the address of a region of whole pages.
    pub(crate) fn replace(&self, region: Region, bytes: &[u8]) {
        self.must(Op::Replace, [region.0, 0, 0, 0], bytes);
    }

    /// Writes words of `width` equal bytes at `at`, again and again, until [`Self::calm`].
    pub(crate) fn hammer(&self, region: Region, at: u64, width: usize) {
        self.must(Op::Hammer, [region.0, at, width as u64, 0], &[]);
    }

    /// Adds 1 to the word at `at`, so many times; [`Self::calm`] waits for that.
    pub(crate) fn add(&self, region: Region, at: u64, times: u64) {
        self.must(Op::Add, [region.0, at, times, 0], &[]);
    }

    pub(crate) fn calm(&self) {
        self.must(Op::Calm, [0; 4], &[]);
    }

    /// Shares memory with it that nobody else has; answers this side's end, which knows it as `process`.
    pub(crate) fn share(&self, process: Process) -> Channel {
        let (file, memory) = Memfd::create("test", page_size(), false).unwrap();
        let me = std::process::id();
        let path = format!("/proc/{me}/fd/{}", file.as_fd().as_raw_fd());
        let channel = Channel::new(Arc::new(memory), 0, true, Arc::new(process)).unwrap();
        self.must(Op::Share, [me.into(), 0, 0, 0], path.as_bytes());
        channel
    }

    /// Has it say that what it had announced may change.
    pub(crate) fn give_up(&self) {
        self.must(Op::GiveUp, [0; 4], &[]);
    }

    /// Drops everything it has, its context too.
    pub(crate) fn close(&self) {
        self.must(Op::Close, [0; 4], &[]);
    }

    /// Its process, where it has one of its own.
    pub(crate) fn process(&self) -> &Mutex<Child> {
        match self {
            Self::There(child) => child,
            Self::Here(_) => panic!("the exporter is in this process"),
        }
    }
}

/// An exporter as a process: one order a frame. An answer ends with 0, or with 1 after the text of an error.
pub(crate) fn role() {
    let host = Host::new(Side::open(&Fixture::of(&role::args()[0], &[])));
    while let Some(order) = role::try_recv() {
        let (mut reply, verdict) = match host.serve(&Order::decode(&order)) {
            Ok(bytes) => (bytes, 0),
            Err(text) => (text.into_bytes(), 1),
        };
        reply.push(verdict);
        role::send(&reply);
    }
}
