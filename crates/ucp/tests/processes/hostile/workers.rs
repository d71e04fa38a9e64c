//! Peers that keep to no rule when two workers are connected: those that come, and those that are come to.

use ucp::wire::address;
use uct::export::Refusal;
use uct::ring::ring_len;
use uct::service::wire::Introduction;
use uct::transports::shm;

use super::victim::ECHO;
use super::*;

/// Bytes that two workers share: two rings, whole pages.
pub(super) fn shared_len() -> usize {
    (2 * ring_len(2048)).next_multiple_of(rustix::param::page_size())
}

/// The part of a worker's address by which other processes reach it.
pub(super) fn shm_part(bytes: &[u8]) -> shm::wire::Address {
    let entries = address::decode(bytes).unwrap();
    let entry = entries.iter().find(|entry| entry.component == SHM).unwrap();
    shm::wire::Address::decode(&entry.bytes).unwrap()
}

/// An address of a worker that is reached by shm alone.
fn address_of(part: &shm::wire::Address) -> Vec<u8> {
    let entry = address::Entry { component: SHM, bytes: part.encode().to_vec() };
    address::encode(&[entry]).unwrap()
}

pub(super) fn introduction(to: &shm::wire::Address) -> Introduction {
    Introduction {
        sequence: 3,
        uuid: to.context_uuid,
        worker: to.worker,
        token: to.token,
        from: uuid(),
        length: shared_len() as u64,
    }
}

pub(super) fn connect_to_worker(to: &shm::wire::Address) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let name = name_of(&to.context_uuid);
    connect(&socket, &SocketAddrUnix::new_abstract_name(&name).unwrap()).unwrap();
    socket
}

/// Sends a message with descriptors; answers what is said to it, if anything is.
pub(super) fn say(socket: &OwnedFd, bytes: &[u8], fds: &[OwnedFd]) -> Option<Verdict> {
    reply(socket, bytes, fds);
    let mut bytes = [0; 64];
    let (_, len) = recv(socket, &mut bytes, RecvFlags::empty()).unwrap_or_default();
    let answer = Reply::decode(bytes.get(..len).filter(|bytes| !bytes.is_empty())?).unwrap();
    assert_eq!((answer.length, answer.fds, answer.rights.bits()), (0, 0, 0));
    Some(answer.verdict)
}

/// Nothing comes on it for a while, and no end either.
fn is_silent(socket: &OwnedFd) -> bool {
    let mut fds = [rustix::event::PollFd::new(socket, rustix::event::PollFlags::IN)];
    let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
    rustix::event::poll(&mut fds, Some(&timeout)).unwrap() == 0
}

/// Whether it ends, soon.
pub(super) fn ends_soon(socket: &OwnedFd) -> bool {
    let mut fds = [rustix::event::PollFd::new(socket, rustix::event::PollFlags::RDHUP)];
    let timeout = rustix::event::Timespec { tv_sec: 5, tv_nsec: 0 };
    rustix::event::poll(&mut fds, Some(&timeout)).unwrap() == 1
}

fn rings() -> OwnedFd {
    memfd(shared_len(), SEALS)
}

/// A genuine worker of this process connects with it, sends, and is answered.
pub(super) fn genuine(victim: &mut Actor, address: &[u8]) {
    let ctx = Context::builder().features(Features::AM).set("UCX_TLS", "mm").build().unwrap();
    let worker = ctx.worker().unwrap();
    let ep = worker.connect(address).unwrap();
    let sent = ep.am_send(ECHO, b"", vec![5; 100]);
    let came = std::rc::Rc::new(std::cell::Cell::new(0));
    let count = std::rc::Rc::clone(&came);
    worker.am_handler(ECHO, move |message| count.set(message.data().len())).unwrap();
    let begin = Instant::now();
    while came.get() == 0 {
        assert!(begin.elapsed() < Duration::from_secs(20));
        victim.ask("work 5 0").ok();
        worker.progress();
    }
    assert_eq!(came.get(), 100);
    assert!(sent.is_ended());
}

fn fds_of(victim: &mut Actor) -> usize {
    victim.ask("fds").text().parse().unwrap()
}

/// Waits until it has as few descriptors as that.
fn comes_back_to(victim: &mut Actor, fds: usize) {
    let begin = Instant::now();
    while fds_of(victim) > fds {
        assert!(begin.elapsed() < Duration::from_secs(5), "{fds} descriptors, then {}", fds_of(victim));
        victim.ask("work 20 0").ok();
    }
}

pub fn introductions_that_are_refused() {
    let mut victim = Actor(testkit::Role::spawn("hostile::victim"));
    let bytes = victim.ask("address").ok();
    let to = shm_part(&bytes);
    let before = fds_of(&mut victim);
    let refused = |asked: Introduction, fds: &[OwnedFd], expected: Verdict| {
        let socket = connect_to_worker(&to);
        assert_eq!(say(&socket, &asked.encode(), fds), Some(expected), "{asked:?}");
        assert!(ends_soon(&socket));
    };
    let good = introduction(&to);
    let stale = Verdict::Refused(Refusal::Stale);
    let mismatch = Verdict::Refused(Refusal::Mismatch);
    let wrong = Introduction { token: Token::from_bytes([7; 16]), ..good.clone() };
    refused(wrong, &[rings()], Verdict::Refused(Refusal::WrongToken));
    for worker in [0, to.worker + 1, u32::MAX] {
        refused(Introduction { worker, ..good.clone() }, &[rings()], stale);
    }
    refused(Introduction { uuid: uuid(), ..good.clone() }, &[rings()], stale);
    for length in [0, 1, good.length - 1, good.length + 1, u64::MAX] {
        let asked = Introduction { length, ..good.clone() };
        let len = usize::try_from(length).unwrap_or(0).min(1 << 20);
        refused(asked, &[memfd(len, SEALS)], mismatch);
    }
    // No descriptor, and such as are none that could be mapped.
    refused(good.clone(), &[], mismatch);
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let shm = tempfile::tempfile_in("/dev/shm").unwrap();
    shm.set_len(shared_len() as u64).unwrap();
    let file = |path: &str| OwnedFd::from(std::fs::File::open(path).unwrap());
    let others = [reader, writer, file("/dev/zero"), file("/"), file("/proc/self/exe"), shm.into()];
    for fd in others.into_iter().chain([connect_to_worker(&to)]) {
        refused(good.clone(), &[fd], mismatch);
    }
    for seals in [SealFlags::empty(), SealFlags::SHRINK, SealFlags::GROW, SealFlags::WRITE] {
        refused(good.clone(), &[memfd(shared_len(), seals)], mismatch);
    }
    for len in [0, 1, shared_len() - 1, shared_len() + 1, 2 * shared_len()] {
        refused(good.clone(), &[memfd(len, SEALS)], mismatch);
    }
    // The right one behind a wrong one is nobody's.
    refused(good.clone(), &[memfd(4096, SEALS), rings()], mismatch);
    // It has seals and the right length, and cannot be mapped for writing.
    refused(good.clone(), &[memfd(shared_len(), SEALS | SealFlags::WRITE)], Verdict::NoResource);
    comes_back_to(&mut victim, before);
    // More than one: the first is taken, and the others are closed.
    let many: Vec<_> = (0..8).map(|_| rings()).collect();
    let socket = connect_to_worker(&to);
    assert_eq!(say(&socket, &good.encode(), &many), Some(Verdict::Granted));
    // Its socket, and a pidfd.
    assert!(fds_of(&mut victim) <= before + 2, "{before} descriptors, then {}", fds_of(&mut victim));
    drop(socket);
    genuine(&mut victim, &bytes);
    comes_back_to(&mut victim, before);
}

pub fn introductions_and_requests_on_one_connection() {
    let mut victim = Actor(testkit::Role::spawn("hostile::victim"));
    let bytes = victim.ask("address").ok();
    let to = shm_part(&bytes);
    let content = Handle::decode(&victim.ask("export").ok(), |_| true).unwrap();
    let entry = content.entries.iter().find(|entry| entry.component == SHM).unwrap();
    let key = Mkey::decode(&entry.mkey).unwrap();
    assert_eq!(content.context_uuid, to.context_uuid, "one context has both");
    let claim = uct::export::Claim {
        slot: key.slot,
        id: content.registration_id,
        epoch: content.epoch,
        address: content.address,
        length: content.length,
        token: key.token,
    };
    let attach = Request { sequence: 9, want_control: true, want_memory: true, uuid: to.context_uuid, claim };
    let introduction = introduction(&to).encode();
    let before = fds_of(&mut victim);
    // Twice, or an attach after it: the connection is the worker's by then, and takes what comes for a byte that wakes.
    for second in [introduction, attach.encode()] {
        let socket = connect_to_worker(&to);
        assert_eq!(say(&socket, &introduction, &[rings()]), Some(Verdict::Granted));
        for _ in 0..100 {
            reply(&socket, &second, &[rings()]);
        }
        assert!(is_silent(&socket));
        victim.ask("work 20 0").ok();
        assert!(is_silent(&socket));
        drop(socket);
        victim.ask("work 20 0").ok();
    }
    // After an attach: its imports stay, and it is listened to no more.
    let socket = connect_to_worker(&to);
    send(&socket, &attach.encode(), SendFlags::NOSIGNAL).unwrap();
    assert_eq!(recv(&socket, &mut [0; 64], RecvFlags::empty()).unwrap().1, 32);
    reply(&socket, &introduction, &[rings()]);
    assert!(is_silent(&socket));
    drop(socket);
    genuine(&mut victim, &bytes);
    comes_back_to(&mut victim, before);
}

/// More than wait are told to come again, or that one process may have no more; with the worker goes all that has come to it, and who came is told.
pub fn thousands_come_to_a_worker_that_rests() {
    let most = rustix::process::getrlimit(testkit::Resource::Nofile).current.unwrap_or(u64::MAX) / 4;
    let wait = usize::try_from(most.min(4096)).unwrap().div_ceil(2).min(1024);
    let role = testkit::Role::new("hostile::victim").env("UCX_MAX_CONNECTIONS", "4096");
    let mut victim = Actor(role.start());
    let to = shm_part(&victim.ask("address").ok());
    let census = |victim: &mut Actor| (fds_of(victim), victim.ask("maps").text().parse::<usize>().unwrap());
    let before = census(&mut victim);
    let asked = introduction(&to).encode();
    let memory = [rings()];
    let mut waiting = Vec::new();
    for number in 0..2000 {
        let socket = connect_to_worker(&to);
        match say(&socket, &asked, &memory) {
            Some(Verdict::Granted) => waiting.push(socket),
            Some(Verdict::NoResource | Verdict::TooMany) => assert!(ends_soon(&socket)),
            other => panic!("{other:?} for number {number}"),
        }
    }
    assert_eq!(waiting.len(), wait);
    let (fds, maps) = census(&mut victim);
    // A socket and a pidfd each; neighbouring mappings may be counted as one.
    assert!(fds <= before.0 + 2 * wait + 4, "{fds} descriptors");
    assert!(maps <= before.1 + wait + 4, "{maps} mappings");
    victim.ask("drop").ok();
    assert!(waiting.iter().all(ends_soon));
    let (fds, maps) = census(&mut victim);
    // The worker's own have gone, too.
    assert!(fds < before.0, "{} descriptors, then {fds}", before.0);
    assert!(maps <= before.1 + 4, "{} mappings, then {maps}", before.1);
    let socket = connect_to_worker(&to);
    assert_eq!(say(&socket, &asked, &memory), Some(Verdict::Refused(Refusal::Stale)));
}

/// Connects to a worker that the test plays, on a socket that `acceptor` is given.
fn connect_with(acceptor: impl FnOnce(OwnedFd) + Send + 'static) -> Result<(), ucp::ConnectError> {
    let to = played(uuid(), Identity::of_self());
    let listener = bind_to(&name_of(&to.context_uuid));
    let thread = thread::spawn(move || acceptor(listener));
    let ctx = Context::builder().features(Features::AM).set("UCX_CONNECT_TIMEOUT", "500ms").build().unwrap();
    let connected = ctx.worker().unwrap().connect(&address_of(&to)).map(drop);
    thread.join().unwrap();
    connected
}

/// The address of a worker that is not there.
fn played(context_uuid: [u8; 16], process: Identity) -> shm::wire::Address {
    shm::wire::Address {
        process,
        worker: 1,
        token: Token::from_bytes([1; 16]),
        context_uuid,
        in_directory: false,
        boot: uct::process::boot_id().unwrap(),
    }
}

/// What is said by an acceptor that answers so.
fn refused_by(answer: impl FnOnce(&OwnedFd, Introduction) + Send + 'static) -> ucp::ConnectError {
    let connected = connect_with(move |listener| {
        let socket = accept(&listener).unwrap();
        let mut bytes = [0; 200];
        let (_, len) = recv(&socket, &mut bytes, RecvFlags::empty()).unwrap();
        answer(&socket, Introduction::decode(&bytes[..len]).unwrap());
    });
    connected.unwrap_err()
}

pub fn acceptors_that_answer_garbage() {
    let cases: [(&[u8], &str); 4] = [
        (b"HTTP/1.1 400 Bad Request\r\nlength", "a message with an unknown magic"),
        (b"RXSA", "a message of 4 bytes where 32 were expected"),
        (&[0; 100], "a message of 33 bytes where 32 were expected"),
        (b"RXSA\x01\0\x06\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", "an unknown verdict"),
    ];
    for (bytes, expected) in cases {
        let error = refused_by(move |socket, _| reply(socket, bytes, &[]));
        assert_eq!(error.status(), Status::Unreachable, "{error}");
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(error.remedy(), "see that both sides run compatible versions of rucx");
    }
    let error = refused_by(|socket, asked| {
        let granted = Reply::without(Verdict::Granted, asked.sequence + 1);
        reply(socket, &granted.encode(), &[memfd(4096, SEALS)]);
    });
    assert!(error.to_string().contains("a message with an unknown sequence number"), "{error}");
}

pub fn acceptors_that_refuse() {
    let cases = [
        (Verdict::Refused(Refusal::Stale), Status::Stale),
        (Verdict::Refused(Refusal::WrongToken), Status::AccessDenied),
        (Verdict::Refused(Refusal::Mismatch), Status::AccessDenied),
        (Verdict::NoDescriptor, Status::Unreachable),
        (Verdict::NoResource, Status::Unreachable),
        (Verdict::TooMany, Status::ExceedsLimit),
    ];
    for (verdict, expected) in cases {
        let error = refused_by(move |socket, asked| {
            reply(socket, &Reply::without(verdict, asked.sequence).encode(), &[]);
        });
        assert_eq!(error.status(), expected, "{error}");
        if verdict == Verdict::NoResource {
            assert!(error.remedy().starts_with("have the peer make progress, or raise"), "{error}");
        }
    }
    // Descriptors with a grant are nobody's. Whoever grants and goes was connected, and is gone.
    let granted = connect_with(|listener| {
        let socket = accept(&listener).unwrap();
        recv(&socket, &mut [0; 200], RecvFlags::empty()).unwrap();
        reply(&socket, &granted(1, 3).encode(), &[memfd(4096, SEALS), memfd(1, SEALS), memfd(0, SEALS)]);
    });
    granted.unwrap();
}

pub fn acceptors_that_never_answer() {
    let silent = |connected: Result<(), ucp::ConnectError>, begin: Instant| {
        let error = connected.unwrap_err();
        assert_eq!(error.status(), Status::Unreachable, "{error}");
        assert!(error.to_string().contains("no answer on the service socket within 5"), "{error}");
        assert_eq!(error.remedy(), "see whether the peer is stopped, or raise UCX_CONNECT_TIMEOUT");
        assert!(begin.elapsed() < Duration::from_secs(3));
    };
    let begin = Instant::now();
    silent(connect_with(|_listener| thread::sleep(Duration::from_millis(700))), begin);
    let begin = Instant::now();
    silent(
        connect_with(|listener| {
            let _socket = accept(&listener).unwrap();
            thread::sleep(Duration::from_millis(700));
        }),
        begin,
    );
}

pub fn acceptors_that_close() {
    let error = connect_with(|listener| drop(accept(&listener).unwrap())).unwrap_err();
    assert_eq!(error.status(), Status::Unreachable, "{error}");
    assert!(error.to_string().contains("the exporter closed the connection"), "{error}");
    let error = refused_by(|_, _| {});
    assert_eq!(error.status(), Status::Unreachable, "{error}");
}

/// The token is not shown to a process that is not the worker's.
pub fn another_process_has_taken_the_worker_s_name() {
    let me = Identity::of_self();
    let other = Identity { pidfd_inode: me.pidfd_inode + 1, start_time: me.start_time + 1, ..me };
    let to = played(uuid(), other);
    let listener = bind_to(&name_of(&to.context_uuid));
    let seen = thread::spawn(move || {
        let socket = accept(&listener).unwrap();
        recv(&socket, &mut [0; 200], RecvFlags::empty()).unwrap().1
    });
    let worker = Context::builder().features(Features::AM).build().unwrap().worker().unwrap();
    let error = worker.connect(&address_of(&to)).unwrap_err();
    assert_eq!(error.status(), Status::Stale);
    assert!(error.to_string().contains("another one has its place"), "{error}");
    assert_eq!(seen.join().unwrap(), 0, "nothing was sent");
}
