//! Importers that keep to no rule of the service socket, or of what they were given.

use super::*;

fn service_of(handle: &[u8]) -> Vec<u8> {
    let content = Handle::decode(handle, |_| true).unwrap();
    let entry = content.entries.into_iter().find(|entry| entry.component == SHM).unwrap();
    Mkey::decode(&entry.mkey).unwrap().service
}

fn connect_to(name: &[u8]) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    connect(&socket, &SocketAddrUnix::new_abstract_name(name).unwrap()).unwrap();
    socket
}

/// Reads until the end of the connection, which must come soon.
fn ends(socket: &OwnedFd) -> Duration {
    let begin = Instant::now();
    let mut bytes = [0; 64];
    while let Ok((_, 1..)) = recv(socket, &mut bytes, RecvFlags::empty()) {}
    begin.elapsed()
}

pub fn peers_of_the_service_socket() {
    let mut host = Actor::host(4096);
    let exported = host.export();
    let name = service_of(&exported);
    bad_peers(&exported, || connect_to(&name));
}

/// The socket with a path is as the abstract one.
pub fn peers_of_the_socket_in_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let mut host = Actor(testkit::Role::new("roles::host").arg("4096").env("UCX_SERVICE_DIR", path).start());
    let exported = host.export();
    let file = std::fs::read_dir(path).unwrap().next().unwrap().unwrap().path();
    bad_peers(&exported, || {
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(&file).unwrap()).unwrap();
        socket
    });
}

fn bad_peers(exported: &[u8], connect: impl Fn() -> OwnedFd) {
    // Says nothing: dropped after a second.
    let silent = connect();
    // Says a byte now and then: dropped at the first, which is no request.
    let slow = connect();
    send(&slow, b"R", SendFlags::NOSIGNAL).unwrap();
    assert!(ends(&slow) < Duration::from_millis(900), "one byte");
    assert!(send(&slow, b"X", SendFlags::NOSIGNAL).is_err(), "nobody reads the second");
    // Says something that is no request, half of one, too much: dropped at once.
    for bytes in [&b"hello"[..], &[0; 87], &[0; 89], &[0xff; 88]] {
        let socket = connect();
        send(&socket, bytes, SendFlags::NOSIGNAL).unwrap();
        assert!(ends(&socket) < Duration::from_millis(900), "{} bytes", bytes.len());
    }
    // Shows a wrong token: answered, then dropped.
    let content = Handle::decode(exported, |_| true).unwrap();
    let claim = uct::export::Claim {
        slot: 1,
        id: content.registration_id,
        epoch: content.epoch,
        address: content.address,
        length: content.length,
        token: Token::from_bytes([7; 16]),
    };
    let request =
        Request { sequence: 5, want_control: true, want_memory: true, uuid: content.context_uuid, claim };
    let socket = connect();
    // Descriptors that come along are nobody's.
    reply(&socket, &request.encode(), &[memfd(4096, SEALS), memfd(4096, SEALS)]);
    let mut bytes = [0; 64];
    let (_, len) = recv(&socket, &mut bytes, RecvFlags::empty()).unwrap();
    let answer = Reply::decode(&bytes[..len]).unwrap();
    assert_eq!(answer.verdict, Verdict::Refused(uct::export::Refusal::WrongToken));
    assert!(ends(&socket) < Duration::from_millis(900));
    let waited = ends(&silent);
    assert!(waited < Duration::from_secs(3), "{waited:?}");
    // Others are unaffected.
    let mut dpu = Actor::dpu();
    dpu.import(exported).ok();
    assert_eq!(dpu.read(0, 4).ok(), [FILL; 4]);
}

pub fn a_thousand_connections() {
    let mut host = Actor::host(4096);
    let exported = host.export();
    let name = Arc::new(service_of(&exported));
    let mut good = Actor::dpu();
    good.import(&exported).ok();
    let before: usize = host.ask("fds").text().parse().unwrap();
    let mut sockets = Vec::new();
    for index in 0..1000 {
        sockets.push(connect_to(&name));
        if index % 100 == 50 {
            // In the midst of it another importer comes, and gets its memory.
            let mut dpu = Actor::dpu();
            dpu.import(&exported).ok();
        }
    }
    let during: usize = host.ask("fds").text().parse().unwrap();
    assert!(during <= before + uct::service::server::MAX_CONNECTIONS + 8, "{during} descriptors");
    assert_eq!(good.read(0, 4).ok(), [FILL; 4]);
    let begin = Instant::now();
    while host.ask("fds").text().parse::<usize>().unwrap() > before + 12 {
        assert!(begin.elapsed() < Duration::from_secs(5), "idle connections stay");
        thread::sleep(Duration::from_millis(50));
    }
}

/// One process that holds a good token keeps all the connections it may have: others still come in.
pub fn one_process_cannot_keep_others_out() {
    let mut host = Actor::host(4096);
    let exported = host.export();
    let per_process = uct::service::server::MAX_PER_PROCESS;
    let contexts: Vec<_> = (0..per_process + 8).map(|_| patient("2s")).collect();
    let imports: Vec<_> = contexts.iter().map(|ctx| ctx.mem_import(&exported)).collect();
    assert_eq!(imports.iter().filter(|import| import.is_ok()).count(), per_process);
    for refused in imports.iter().filter_map(|import| import.as_ref().err()) {
        assert!(refused.to_string().contains("the exporter has no room for another importer"), "{refused}");
        assert_eq!(refused.remedy(), "try again when the exporter has fewer importers");
    }
    let mut dpu = Actor::dpu_with("UCX_SHM_ATTACH", "socket");
    dpu.import(&exported).ok();
    drop(imports);
    patient("2s").mem_import(&exported).unwrap();
}

/// Shows the token of `handle` on a connection of its own, and maps the in-flight page that comes. With the memory wanted or
/// without: as an importer by shm does, or by cma.
fn connected(handle: &[u8], want_memory: bool) -> Connected {
    try_connected(handle, want_memory).unwrap()
}

type Connected = (uct::service::Connection, ucs::mem::Mapping, u64);

fn try_connected(handle: &[u8], want_memory: bool) -> Result<Connected, uct::service::ConnectError> {
    let content = Handle::decode(handle, |_| true).unwrap();
    let entry = content.entries.iter().find(|entry| entry.component == SHM).unwrap();
    let key = Mkey::decode(&entry.mkey).unwrap();
    let deadline = ucs::time::Deadline::after(Duration::from_secs(5));
    let mut connection = uct::service::Connection::open(&key.service, &deadline)?;
    let claim = claim_of(&content, (key.slot, key.token));
    let request = Request { sequence: 0, want_control: true, want_memory, uuid: content.context_uuid, claim };
    let granted = connection.ask(request, &deadline)?;
    assert_eq!(granted.memory.is_some(), want_memory);
    let (_, page) = granted.control.unwrap();
    let page = ucs::mem::Memfd::map_foreign(page.as_fd(), SLOTS_LEN, ucs::mem::Access::ReadWrite).unwrap();
    Ok((connection, page, claim.id))
}

fn claim_of(content: &Handle, (slot, token): (u32, Token)) -> uct::export::Claim {
    uct::export::Claim {
        slot,
        id: content.registration_id,
        epoch: content.epoch,
        address: content.address,
        length: content.length,
        token,
    }
}

/// An importer that lies in its in-flight page delays the revocation of what it was granted, and of nothing else.
pub fn lies_in_flight_hold_only_what_was_granted() {
    let ctx = Context::builder()
        .features(Features::EXPORTED_MEMH)
        .set("UCX_REVOKE_TIMEOUT", "50ms")
        .build()
        .unwrap();
    for want_memory in [true, false] {
        let region = ctx.mem_map(ucp::MemMap::allocate(4096).exported()).unwrap();
        let (granted, other) = (region.memh_pack().unwrap(), region.memh_pack().unwrap());
        let (connection, page, id) = connected(granted.as_bytes(), want_memory);
        for slot in 0..64 {
            let lie = if slot % 2 == 0 { id } else { id + 1 };
            page.bytes().store(slot * 64, lie).unwrap();
        }
        other.revoke().unwrap();
        let error = granted.revoke().unwrap_err();
        assert_eq!(error.importers(), [std::process::id()]);
        for slot in 0..64 {
            page.bytes().store(slot * 64, 0_u64).unwrap();
        }
        granted.revoke().unwrap();
        drop(connection);
    }
}

/// Connections that end with something in flight leave nothing: whoever ends one has no access any more, if it is honest.
pub fn abandoned_pages_hold_nothing() {
    let mut host = Actor::host(4096);
    let exported = host.export();
    let before: usize = host.ask("fds").text().parse().unwrap();
    for round in 0..200 {
        let (connection, page, id) = connected(&exported, round % 2 == 0);
        page.bytes().store(0, id).unwrap();
        drop(connection);
        // The exporter sees its end.
        thread::sleep(Duration::from_millis(1));
    }
    let after: usize = host.ask("fds").text().parse().unwrap();
    assert!(after <= before + 10, "{before} descriptors, then {after}");
    host.ask("revoke 0").ok();
}

/// Memory of the user's has no descriptor: whoever wants it is told so, and whoever does not gets table and in-flight page.
pub fn memory_without_a_descriptor() {
    let ctx = crate::roles::context();
    let region = ctx.mem_map(ucp::MemMap::buffer(vec![FILL; 4096]).exported()).unwrap();
    let packed = region.memh_pack().unwrap();
    let content = Handle::decode(packed.as_bytes(), |_| true).unwrap();
    let entry = content.entries.iter().find(|entry| entry.component == CMA).unwrap();
    let key = cma::mkey::Mkey::decode(&entry.mkey).unwrap();
    let claim = claim_of(&content, (key.slot, key.token));
    let deadline = ucs::time::Deadline::after(Duration::from_secs(5));
    let name = name_of(&content.context_uuid);
    // The token counts first.
    let wrong = uct::export::Claim { token: Token::from_bytes([7; 16]), ..claim };
    let request =
        Request { sequence: 0, want_control: true, want_memory: true, uuid: content.context_uuid, claim };
    let mut connection = uct::service::Connection::open(&name, &deadline).unwrap();
    let error = connection.ask(Request { claim: wrong, ..request.clone() }, &deadline).unwrap_err();
    let denied = uct::service::ConnectError::Denied(uct::export::Refusal::WrongToken);
    assert_eq!(error.to_string(), denied.to_string());
    let mut connection = uct::service::Connection::open(&name, &deadline).unwrap();
    for want_control in [true, false] {
        let asked = Request { want_control, ..request.clone() };
        let error = connection.ask(asked.clone(), &deadline).unwrap_err();
        assert!(matches!(error, uct::service::ConnectError::NoDescriptor), "{error}");
        let granted = connection.ask(Request { want_memory: false, ..asked }, &deadline).unwrap();
        assert_eq!((granted.memory.is_some(), granted.control.is_some()), (false, want_control));
    }
    // Without table and in-flight page an importer could not take part in a revocation: the first request of a connection wants them.
    let mut connection = uct::service::Connection::open(&name, &deadline).unwrap();
    let asked = Request { want_control: false, want_memory: false, ..request };
    let error = connection.ask(asked, &deadline).unwrap_err();
    assert!(matches!(error, uct::service::ConnectError::NoResource), "{error}");
}

/// One that has shown its token and then sends garbage is listened to no more; its imports live on.
pub fn garbage_after_the_token_is_not_heard() {
    let mut host = Actor::host(4096);
    let exported = host.export();
    let name = service_of(&exported);
    let content = Handle::decode(&exported, |_| true).unwrap();
    let entry = content.entries.iter().find(|entry| entry.component == SHM).unwrap();
    let key = Mkey::decode(&entry.mkey).unwrap();
    let claim = claim_of(&content, (key.slot, key.token));
    let request =
        Request { sequence: 1, want_control: false, want_memory: true, uuid: content.context_uuid, claim };
    let socket = connect_to(&name);
    let mut bytes = [0; 64];
    let control = Request { want_control: true, ..request.clone() };
    send(&socket, &control.encode(), SendFlags::NOSIGNAL).unwrap();
    assert_eq!(recv(&socket, &mut bytes, RecvFlags::empty()).unwrap().1, 32);
    send(&socket, b"garbage", SendFlags::NOSIGNAL).unwrap();
    send(&socket, &request.encode(), SendFlags::NOSIGNAL).unwrap();
    let mut fds = [rustix::event::PollFd::new(&socket, rustix::event::PollFlags::IN)];
    let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
    assert_eq!(rustix::event::poll(&mut fds, Some(&timeout)).unwrap(), 0, "no answer, and no end");
    drop(socket);
    let mut dpu = Actor::dpu();
    dpu.import(&exported).ok();
    dpu.read(0, 1).ok();
}

/// Shows the token of the handle it is sent, on some connections, and asks again and again without taking a reply.
pub fn hoarder() {
    let exported = testkit::role::recv();
    let content = Handle::decode(&exported, |_| true).unwrap();
    let entry = content.entries.iter().find(|entry| entry.component == SHM).unwrap();
    let key = Mkey::decode(&entry.mkey).unwrap();
    let request = Request {
        sequence: 1,
        want_control: false,
        want_memory: true,
        uuid: content.context_uuid,
        claim: claim_of(&content, (key.slot, key.token)),
    };
    let control = Request { want_control: true, ..request.clone() };
    let mut sockets = Vec::new();
    for _ in 0..4 {
        let socket = connect_to(&key.service);
        send(&socket, &control.encode(), SendFlags::NOSIGNAL).unwrap();
        for _ in 0..400 {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            let _ = send(&socket, &request.encode(), flags);
            thread::yield_now();
        }
        sockets.push(socket);
    }
    testkit::role::send(b"hoarding");
    let _ = testkit::role::recv();
}

/// Descriptors on their way count against the exporter's user: one importer that takes none of its replies must not use them up.
pub fn descriptors_do_not_pile_up() {
    let nobody = 65_534;
    // Without root's rights, the limit on descriptors on their way holds for the exporter.
    let mut host =
        Actor(testkit::Role::new("roles::host").arg("4096").arg("nofile=256").as_uid(nobody).start());
    let exported = host.export();
    let mut hoarder = testkit::Role::new("hostile::hoarder").as_uid(nobody).start();
    hoarder.send(&exported);
    assert_eq!(hoarder.recv(), b"hoarding");
    let dpu = testkit::Role::new("roles::dpu").as_uid(nobody).env("UCX_SHM_ATTACH", "socket");
    let mut dpu = Actor(dpu.start());
    let begin = Instant::now();
    dpu.import(&exported).ok();
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
}
