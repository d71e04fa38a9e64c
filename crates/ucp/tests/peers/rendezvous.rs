//! Data that was announced, between two processes: by messages, and read where the sender has it.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use testkit::{Child, Role, role};
use ucp::{
    AmFlags, AmMessage, CloseMode, Context, Destination, LaneUse, MemMap, RawMem, Request, Status, Worker,
};
use ucs::mem::Mapping;

use crate::roles::{self, PATIENCE};

/// The handler of announcements.
const TAKE: u16 = 1;

/// What a sender can be told: what to send.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Owned,
    Region,
    /// Memory that is unmapped as soon as it was announced.
    Unmapped,
}

const KINDS: [Kind; 3] = [Kind::Owned, Kind::Region, Kind::Unmapped];

/// Byte `at` of what is sent.
fn byte(at: usize) -> u8 {
    (at ^ (at >> 8) ^ (at >> 16)) as u8
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(byte).collect()
}

/// Sends what it is told to, by the transports of its argument, and tells what has become of it. `give up`: it closes the endpoint and
/// uses the memory for other things.
pub fn sender() {
    let ctx = roles::context_of(&role::args()[0]);
    let worker = ctx.worker().unwrap();
    let ep = worker.connect(&role::recv()).unwrap();
    let mut given: Option<Request<Vec<u8>>> = None;
    while let Some(order) = role::try_recv() {
        if order == b"give up" {
            let mut request = given.take().unwrap();
            let _closed = ep.clone().close(CloseMode::Force);
            let end = Instant::now() + PATIENCE;
            let mut buffer = loop {
                worker.progress();
                match request.into_result() {
                    Ok(result) => break result.unwrap_err().operand,
                    Err(still) => request = still,
                }
                assert!(Instant::now() < end, "a forced close ends everything");
            };
            buffer.fill(0xee);
            role::send(b"given up");
            std::mem::forget(buffer);
            continue;
        }
        let (kind, len) = order.split_first().unwrap();
        let len = usize::from_le_bytes(len.try_into().unwrap());
        let send = |status: Result<(), Status>| role::send(&[status.err().unwrap_or(Status::Ok) as u8]);
        match KINDS.get(usize::from(*kind)) {
            Some(Kind::Owned) => send(ended(&worker, ep.am_send_with(AmFlags::RNDV, TAKE, b"h", bytes(len)))),
            Some(Kind::Region) => {
                let region = ctx.mem_map(MemMap::allocate(len)).unwrap();
                region.write(0, &bytes(len)).unwrap();
                let slice = region.slice(..).unwrap();
                send(ended(&worker, ep.am_send_with(AmFlags::RNDV, TAKE, b"h", slice)));
            }
            Some(Kind::Unmapped) => {
                let memory = Mapping::anonymous(len).unwrap();
                let request = ep.am_send_with(AmFlags::RNDV, TAKE, b"h", raw(&memory));
                drop(memory);
                send(ended(&worker, request));
            }
            None => {
                given = Some(ep.am_send(TAKE, b"h", bytes(len)));
                worker.progress();
                role::send(b"announced");
            }
        }
    }
}

/// The addresses of a mapping, whoever unmaps it.
#[allow(unsafe_code)]
fn raw(memory: &Mapping) -> RawMem {
    let bytes = memory.bytes();
    // SAFETY: nothing else is there while it is mapped but bytes that anybody may change.
    unsafe { RawMem::new(bytes.as_ptr(), bytes.len()) }
}

fn ended<M>(worker: &Worker, request: Request<M>) -> Result<(), Status> {
    worker.wait(request, PATIENCE).map(drop).map_err(|error| error.status())
}

/// A receiver, and a sender in a process of its own.
struct Pair {
    ctx: Context,
    worker: Worker,
    sender: Child,
    announced: Rc<RefCell<Vec<AmMessage>>>,
}

impl Pair {
    fn new(tls: &str) -> Self {
        let ctx = roles::context_of(tls);
        let worker = ctx.worker().unwrap();
        let announced: Rc<RefCell<Vec<AmMessage>>> = Rc::default();
        let into = Rc::clone(&announced);
        worker.am_handler(TAKE, move |message| into.borrow_mut().push(message)).unwrap();
        let mut sender = Role::new("rendezvous::sender").arg(tls).start();
        sender.send(worker.address().unwrap().as_bytes());
        Self { ctx, worker, sender, announced }
    }

    /// Has so much of that kind be announced.
    fn announce(&mut self, kind: usize, len: usize) -> AmMessage {
        let mut order = vec![kind as u8];
        order.extend(len.to_le_bytes());
        self.sender.send(&order);
        let end = Instant::now() + PATIENCE;
        loop {
            self.worker.progress();
            if let Some(message) = self.announced.borrow_mut().pop() {
                assert!(message.is_rendezvous() && message.header() == b"h");
                assert_eq!(message.len(), len as u64);
                return message;
            }
            assert!(Instant::now() < end, "no announcement");
        }
    }

    /// What the sender says has become of it.
    fn verdict(&mut self) -> u8 {
        let end = Instant::now() + PATIENCE;
        loop {
            self.worker.progress();
            if let Ok(verdict) = self.sender.try_recv(std::time::Duration::from_millis(1)) {
                return verdict[0];
            }
            assert!(Instant::now() < end, "the sender's operation does not end");
        }
    }

    /// Takes announced data into `operand`.
    fn take<M: Destination>(&self, message: AmMessage, operand: M) -> Result<M, (Status, M)> {
        let request = message.recv_data(operand);
        self.worker.wait(request, PATIENCE).map_err(|error| match error {
            ucp::WaitError::Failed(error) => (error.status(), error.operand),
            other => panic!("{other}"),
        })
    }
}

/// Whether the data of a sender's is read where it has it.
fn is_read(message: &AmMessage) -> bool {
    let lanes = message.reply().info().lanes;
    let lane = lanes.iter().find(|lane| lane.of == LaneUse::Data);
    lane.is_some_and(|lane| lane.transport == "cma" && lane.from < 32 << 10)
}

/// Both ways give the same bytes, into operands of all kinds.
pub fn data_comes_whole_by_messages_and_by_reading() {
    for (tls, reads) in [("posix,self", false), ("sm,self", true)] {
        let mut pair = Pair::new(tls);
        let region = pair.ctx.mem_map(MemMap::allocate(8 << 20).exported()).unwrap();
        let import = pair.ctx.mem_import(region.memh_pack().unwrap().as_bytes()).unwrap();
        for len in [0, 1, 100, 40_000, 1 << 20, (1 << 20) + 1, 5_000_001] {
            for kind in [Kind::Owned, Kind::Region] {
                if len == 0 && kind == Kind::Region {
                    continue;
                }
                let number = KINDS.iter().position(|one| *one == kind).unwrap();
                let message = pair.announce(number, len);
                assert_eq!(is_read(&message), reads, "{tls}");
                let got = pair.take(message, vec![0; len]).unwrap();
                assert!(got == bytes(len), "{tls} {kind:?} {len}");
                assert_eq!(pair.verdict(), 0);
                let message = pair.announce(number, len);
                pair.take(message, region.slice(7..7 + len).unwrap()).unwrap();
                let mut got = vec![0; len];
                region.read(7, &mut got).unwrap();
                assert!(got == bytes(len), "{tls} {kind:?} {len}, into a region");
                assert_eq!(pair.verdict(), 0);
                region.write(0, &vec![0; 8 << 20]).unwrap();
                let message = pair.announce(number, len);
                pair.take(message, import.slice(9..9 + len as u64).unwrap()).unwrap();
                region.read(9, &mut got).unwrap();
                assert!(got == bytes(len), "{tls} {kind:?} {len}, into imported memory");
                assert_eq!(pair.verdict(), 0);
            }
        }
    }
}

/// Each side hears what became of it, whichever side's memory it is that cannot be used, as long as the data has not all been sent.
pub fn memory_that_is_not_there_fails_the_operation_on_both_sides() {
    for tls in ["posix", "sm"] {
        let mut pair = Pair::new(tls);
        for len in [8 << 10, 3 << 20] {
            let message = pair.announce(2, len);
            let (status, _) = pair.take(message, vec![0; len]).unwrap_err();
            assert_eq!(status, ucp::TransferError::Aborted.status(), "{tls}");
            assert_ne!(pair.verdict(), 0, "{tls}: the sender's own memory");

            let message = pair.announce(0, len);
            let gone = Mapping::anonymous(len).unwrap();
            let operand = raw(&gone);
            drop(gone);
            assert!(pair.take(message, operand).is_err(), "{tls}: the receiver's memory");
            // By messages all of it has been sent: what becomes of it then, the sender does not hear.
            let expected = if tls == "sm" { Status::Rejected } else { Status::Ok };
            assert_eq!(pair.verdict(), expected as u8, "{tls}");

            let message = pair.announce(0, len);
            assert!(pair.take(message, vec![0; len - 1]).is_err(), "{tls}: too short");
            assert_eq!(pair.verdict(), Status::Rejected as u8, "{tls}");
        }
        let message = pair.announce(0, 100_000);
        assert!(pair.take(message, vec![0; 100_000]).unwrap() == bytes(100_000), "it goes on");
        assert_eq!(pair.verdict(), 0);
    }
}

/// The sender has given up what it had announced, and uses the memory for something else; the receiver has not heard of that.
pub fn what_its_sender_has_given_up_is_not_taken() {
    for len in [100_000, 5 << 20] {
        let mut pair = Pair::new("sm");
        let message = pair.announce(9, len);
        assert!(is_read(&message));
        let _announced = pair.sender.recv();
        assert_eq!(pair.sender.request(b"give up"), b"given up");
        let request = message.recv_data(vec![0; len]); // which begins to read at once
        let error = match pair.worker.wait(request, PATIENCE) {
            Err(ucp::WaitError::Failed(error)) => error,
            other => panic!("other bytes were taken for those announced: {:?}", other.map(|bytes| bytes[0])),
        };
        assert_eq!(error.status(), Status::ConnectionReset);
    }
}
