//! An exporter, and importers: by the library's connection, by hand, and in processes of their own.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use testkit::role;
use ucs::time::Deadline;
use uct::export::{Claim, Export, ExportTable};
use uct::memory::{LocalMem, Rights};
use uct::service::wire::{PlacedKeys, Placing, REPLY_LEN, Reply, Request, Verdict, encode_unplace};
use uct::service::{ConnectError, Connection, Placer, Service};

use super::fake::Fake;

pub const PAGE: usize = 4096;
/// The domain's number in what importers ask.
pub const DOMAIN: u32 = 7;

pub fn deadline() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}

pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(10), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Any file: the fake device does not look at it.
pub fn file() -> File {
    File::open("/dev/null").unwrap()
}

/// A context whose memory is placed by a fake device.
pub struct Exporter {
    pub table: Arc<ExportTable>,
    pub service: Service,
    pub fake: Arc<Fake>,
}

impl Exporter {
    pub fn new() -> Self {
        let table = Arc::new(ExportTable::new(Duration::from_secs(5)).unwrap());
        let service = Service::new(Arc::clone(&table), None);
        let fake = Arc::<Fake>::default();
        let placer: Weak<Fake> = Arc::downgrade(&fake);
        service.place_by(placer as Weak<dyn Placer>);
        service.serve().unwrap();
        Self { table, service, fake }
    }

    pub fn export(&self) -> Export {
        let mem = LocalMem::anonymous(PAGE, Rights::READ_WRITE).unwrap();
        self.table.publish(&Arc::new(mem)).unwrap()
    }

    pub fn request(&self, claim: &Claim) -> Request {
        let (uuid, claim) = (*self.table.uuid(), *claim);
        Request { sequence: 0, want_control: true, want_memory: false, uuid, claim }
    }

    pub fn placing(&self, claim: &Claim) -> Placing {
        Placing { sequence: 0, uuid: *self.table.uuid(), claim: *claim, domain: DOMAIN }
    }

    pub fn connection(&self) -> Connection {
        Connection::open(self.service.name(), &deadline()).unwrap()
    }

    /// One that has shown the export's token, and has its page.
    pub fn importer(&self, export: &Export) -> Connection {
        let mut connection = self.connection();
        connection.ask(self.request(export.claim()), &deadline()).unwrap();
        connection
    }

    pub fn place(&self, by: &mut Connection, export: &Export) -> Result<PlacedKeys, ConnectError> {
        by.place(self.placing(export.claim()), file().as_fd(), &deadline())
    }

    /// Somebody else is served: what another one has done is no matter.
    #[track_caller]
    pub fn serves_others(&self) {
        let export = self.export();
        let before = self.fake.asked().len();
        let mut importer = self.importer(&export);
        assert!(self.place(&mut importer, &export).is_ok());
        assert_eq!(self.fake.asked().len(), before + 1);
        let ended = self.fake.ended();
        drop(importer);
        until("its placement ends", || self.fake.ended() == ended + 1);
    }
}

/// Sends these bytes and descriptors as one message.
pub fn send(by: &Connection, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
    sendmsg(&*by.socket(), &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
}

/// What an exporter answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Keys(PlacedKeys),
    Verdict(u32, Verdict),
    /// The connection has ended.
    End,
    /// Nothing, for a while.
    Nothing,
}

pub fn answer_within(by: &Connection, patience: Duration) -> Answer {
    let socket = by.socket();
    let mut fds = [PollFd::new(&*socket, PollFlags::IN)];
    if poll(&mut fds, Some(&Timespec::try_from(patience).unwrap())).unwrap() == 0 {
        return Answer::Nothing;
    }
    let mut bytes = [0; REPLY_LEN + 1];
    let mut control = RecvAncillaryBuffer::default();
    let received = recvmsg(&*socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::DONTWAIT);
    match received.map_or(0, |received| received.bytes) {
        0 => Answer::End,
        len => match PlacedKeys::decode(&bytes[..len]).unwrap() {
            Some(keys) => Answer::Keys(keys),
            None => {
                let reply = Reply::decode(&bytes[..len]).unwrap();
                assert_eq!((reply.length, reply.fds, reply.rights), (0, 0, Rights::empty()));
                Answer::Verdict(reply.sequence, reply.verdict)
            }
        },
    }
}

pub fn answer(by: &Connection) -> Answer {
    answer_within(by, Duration::from_secs(10))
}

/// A placing by hand, with a descriptor.
pub fn send_placing(by: &Connection, placing: &Placing) {
    send(by, &placing.encode(), &[file().as_fd()]);
}

pub fn send_unplacing(by: &Connection, sequence: u32) {
    send(by, &encode_unplace(sequence), &[]);
}

/// The role of an importer: is told what to show to whom, and how often to place it; says what became of that, and stays.
pub fn importer() {
    let [name, placements] = role::args() else { panic!("whom to ask, and how often") };
    let request = Request::decode(&role::recv()).unwrap();
    let mut connection = Connection::open(name.as_bytes(), &deadline()).unwrap();
    connection.ask(request.clone(), &deadline()).unwrap();
    let placing = Placing { sequence: 0, uuid: request.uuid, claim: request.claim, domain: DOMAIN };
    for _ in 0..placements.parse().unwrap() {
        let placed = connection.place(placing.clone(), file().as_fd(), &deadline());
        role::send(placed.map_or_else(|error| format!("{error:?}"), |_| "placed".to_owned()).as_bytes());
    }
    while role::try_recv().is_some_and(|asked| asked == b"again") {
        let placed = connection.place(placing.clone(), file().as_fd(), &deadline());
        role::send(placed.map_or_else(|error| format!("{error:?}"), |_| "placed".to_owned()).as_bytes());
    }
}
