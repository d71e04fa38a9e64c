//! Data that was announced, between two processes: by messages, and read where the sender has it.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use testkit::{Child, Role, role};
use ucp::{
    AccessError, AmFlags, AmMessage, CloseMode, Context, Destination, Endpoint, LaneUse, Local, MemMap,
    RawMem, Request, Source, Status, TransferError, Worker,
};
use ucs::mem::Mapping;

use crate::roles::{self, ALL, BY_DEVICE, PATIENCE};

/// The handler of announcements.
const TAKE: u16 = 1;

/// What a sender can be told: what to send.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Owned,
    Region,
    /// Memory that may not be used.
    Forbidden,
}

/// Transports by which data comes by messages, and by which it is read where it lies.
const BOTH_WAYS: &[(&str, bool)] =
    if BY_DEVICE { &[(ALL, false)] } else { &[("posix,self", false), ("sm,self", true)] };
/// Transports of both ways.
const SETS: &[&str] = if BY_DEVICE { &[ALL] } else { &["posix", "sm"] };

const KINDS: [Kind; 3] = [Kind::Owned, Kind::Region, Kind::Forbidden];

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
    let worker = Rc::new(ctx.worker().unwrap());
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
        if order == b"give up by a callback" {
            given_up_by_a_callback(&worker, &ep, given.take().unwrap());
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
            Some(Kind::Forbidden) => {
                let memory = forbidden(len);
                send(ended(&worker, ep.am_send_with(AmFlags::RNDV, TAKE, b"h", raw(&memory))));
            }
            None if *kind == INLINE => {
                let request = send_inline(&ep);
                overwrite_the_stack();
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

/// An order to send bytes that the operand holds itself, and that move with it.
const INLINE: u8 = 8;
/// An order to announce bytes, and to wait for another one.
const ANNOUNCE: u8 = 9;

struct Inline([u8; 100_000]);

impl Source for Inline {
    fn local(&self) -> Local<'_> {
        Local::bytes(&self.0)
    }
}

#[inline(never)]
fn send_inline(ep: &Endpoint) -> Request<Inline> {
    let mut data = Inline([0; 100_000]);
    data.0.copy_from_slice(&bytes(100_000));
    ep.am_send_with(AmFlags::RNDV, TAKE, b"h", data)
}

#[inline(never)]
fn overwrite_the_stack() {
    std::hint::black_box(&mut [0x55_u8; 600_000]);
}

/// Closes by force, and what the handler of errors holds makes progress and takes the operand when it is dropped.
fn given_up_by_a_callback(worker: &Rc<Worker>, ep: &Endpoint, request: Request<Vec<u8>>) {
    struct OnDrop<F: FnMut()>(F);
    impl<F: FnMut()> Drop for OnDrop<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }
    let (worker, mut request) = (Rc::clone(worker), Some(request));
    let on_drop = OnDrop(move || {
        worker.progress();
        let ended = request.take().unwrap().into_result();
        let mut buffer = ended.expect("it has ended").unwrap_err().operand;
        buffer.fill(0xee);
        role::send(b"given up");
        let _go_on = role::recv();
    });
    ep.on_error(move |_| drop(on_drop));
    let _closed = ep.clone().close(CloseMode::Force);
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
            if let Ok(verdict) = self.sender.try_recv(Duration::from_millis(1)) {
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
    for &(tls, reads) in BOTH_WAYS {
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
pub fn memory_that_cannot_be_used_fails_the_operation_on_both_sides() {
    for &tls in SETS {
        let mut pair = Pair::new(tls);
        for len in [8 << 10, 3 << 20] {
            let message = pair.announce(2, len);
            let taken = pair.take(message, vec![0; len]);
            if len > 1 << 20 && pins_what_may_not_be_read() {
                assert!(taken.unwrap() == vec![0; len], "as it was mapped");
                assert_eq!(pair.verdict(), 0);
            } else {
                assert_eq!(taken.unwrap_err().0, TransferError::Aborted.status(), "{tls}");
                assert_ne!(pair.verdict(), 0, "{tls}: the sender's own memory");
            }

            let message = pair.announce(0, len);
            let memory = forbidden(len);
            assert!(pair.take(message, raw(&memory)).is_err(), "{tls}: the receiver's memory");
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
        let message = pair.announce(usize::from(ANNOUNCE), len);
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

/// As above, by what runs within the call that closes.
pub fn operands_come_back_only_when_the_peer_was_told() {
    let mut pair = Pair::new("sm");
    let message = pair.announce(usize::from(ANNOUNCE), 100_000);
    assert!(is_read(&message));
    let _announced = pair.sender.recv();
    assert_eq!(pair.sender.request(b"give up by a callback"), b"given up");
    let request = message.recv_data(vec![0; 100_000]);
    let taken = pair.worker.wait(request, Duration::from_secs(5));
    pair.sender.send(b"go on");
    assert!(matches!(taken, Err(ucp::WaitError::Failed(error)) if error.status() == Status::ConnectionReset));
}

/// An operand may hold its bytes itself: they are read where it lies, not where it was.
pub fn operands_that_move_are_read_where_they_stay() {
    for &tls in SETS {
        let mut pair = Pair::new(tls);
        let message = pair.announce(usize::from(INLINE), 100_000);
        assert!(pair.take(message, vec![0; 100_000]).unwrap() == bytes(100_000), "{tls}");
        assert_eq!(pair.verdict(), 0, "{tls}");
    }
}

fn is_readable(worker: &Worker, limit: Duration) -> bool {
    let limit = Timespec::try_from(limit).unwrap();
    poll(&mut [PollFd::new(worker, PollFlags::IN)], Some(&limit)).unwrap() > 0
}

/// Arms it. What was sent before may end meanwhile, which a device tells of; then nothing does.
fn arm_until_quiet(worker: &Worker) {
    let end = Instant::now() + PATIENCE;
    while !worker.arm() || is_readable(worker, Duration::from_millis(50)) {
        worker.progress();
        assert!(Instant::now() < end, "it is woken again and again, for nothing");
    }
}

/// Who waits for the descriptor is woken by what was posted meanwhile, where no peer tells of it.
pub fn what_is_posted_while_the_worker_is_armed_wakes_it() {
    let mut pair = Pair::new("sm");
    for len in [100_000, 3 << 20] {
        let message = pair.announce(0, len);
        arm_until_quiet(&pair.worker);
        let request = message.recv_data(vec![0; len]);
        while !request.is_ended() {
            // As long as there is something left to read, nobody need wait; then the descriptor tells.
            assert!(is_readable(&pair.worker, Duration::from_secs(5)) || !pair.worker.arm(), "{len} bytes");
            pair.worker.progress();
            let _ = pair.worker.arm();
        }
        assert!(request.into_result().unwrap().unwrap() == bytes(len));
        assert_eq!(pair.verdict(), 0);
    }
}

/// Also when something waits for room, which its peer will perhaps not make before it has been read.
pub fn data_that_is_left_to_be_read_keeps_the_worker_awake() {
    let mut pair = Pair::new("sm");
    let len = 64 << 20;
    let message = pair.announce(usize::from(ANNOUNCE), len);
    let _announced = pair.sender.recv(); // it takes nothing from here on
    let reply = message.reply();
    let mut sent = Vec::new();
    while sent.last().is_none_or(Request::is_ended) {
        sent.push(reply.am_send(7, b"", vec![1; 30_000]));
    }
    let request = message.recv_data(vec![0; len]);
    pair.worker.progress();
    assert!(!request.is_ended(), "a part at a time");
    assert!(!pair.worker.arm());
    assert!(pair.worker.wait(request, PATIENCE).unwrap() == bytes(len));
}

/// What could not be used is told with the bytes that were moved before, of all.
pub fn errors_tell_how_much_had_come() {
    let mut pair = Pair::new("sm");
    let (len, hole) = (3 << 20, (2 << 20) + (512 << 10));
    let message = pair.announce(usize::from(ANNOUNCE), len);
    let _announced = pair.sender.recv();
    let memory = Mapping::anonymous(len).unwrap();
    protect(&memory, hole, 4096);
    let request = message.recv_data(raw(&memory));
    let Err(ucp::WaitError::Failed(error)) = pair.worker.wait(request, PATIENCE) else {
        panic!("there is a hole")
    };
    let TransferError::Access(AccessError::Operand { done, .. }) = error.error else { panic!("{error}") };
    assert_eq!(done, hole as u64);
}

/// Whether a device is given memory that its owner may not read: by kernels before 6.2 (FOLL_FORCE in `drivers/infiniband/core/umem.c`).
fn pins_what_may_not_be_read() -> bool {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    BY_DEVICE && (numbers.next(), numbers.next()) < (Some(6), Some(2))
}

/// Memory that nobody may use.
fn forbidden(len: usize) -> Mapping {
    let memory = Mapping::anonymous(len).unwrap();
    protect(&memory, 0, len);
    memory
}

#[allow(unsafe_code)]
fn protect(memory: &Mapping, at: usize, len: usize) {
    let start = memory.bytes().as_ptr().wrapping_add(at).cast();
    // SAFETY: it lies within the mapping, and nobody else uses it.
    let done = unsafe { libc::mprotect(start, len, libc::PROT_NONE) };
    assert_eq!(done, 0);
}

/// Connects many times, and announces a mebibyte by each.
pub fn many() {
    let worker = roles::context_of("sm").worker().unwrap();
    let address = role::recv();
    let eps: Vec<_> = (0..20).map(|_| worker.connect(&address).unwrap()).collect();
    let _sent: Vec<_> = eps.iter().map(|ep| ep.am_send(TAKE, b"h", bytes(1 << 20))).collect();
    role::send(b"announced");
    while role::try_recv().is_some() {}
}

/// However many endpoints have data to be read: a call reads some of it, and of all of them in the end.
pub fn one_call_reads_a_bounded_part_of_what_many_announce() {
    let worker = roles::context_of("sm").worker().unwrap();
    let requests: Rc<RefCell<Vec<Request<Vec<u8>>>>> = Rc::default();
    let into = Rc::clone(&requests);
    let take = move |message: AmMessage| into.borrow_mut().push(message.recv_data(vec![0; 1 << 20]));
    worker.am_handler(TAKE, take).unwrap();
    let mut sender = Role::new("rendezvous::many").start();
    sender.send(worker.address().unwrap().as_bytes());
    let _announced = sender.recv();
    let ended = || requests.borrow().iter().filter(|request| request.is_ended()).count();
    let (mut before, end) = (0, Instant::now() + PATIENCE);
    while before < 20 {
        worker.progress();
        let now = ended();
        assert!(now - before <= 5, "{} mebibytes in one call", now - before);
        before = now;
        assert!(Instant::now() < end, "{before} of 20 have come");
    }
    for request in requests.take() {
        assert!(request.into_result().unwrap().unwrap() == bytes(1 << 20));
    }
}
