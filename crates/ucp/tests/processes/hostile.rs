//! Hostile exporters and hostile importers: bounded, told, and nobody else is harmed.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::IoSlice;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, accept, bind, connect, listen, recv, send, sendmsg, socket_with,
};
use ucp::wire::handle::{Entry, Handle};
use ucp::{Context, Features, ImportError, Status};
use uct::export::Token;
use uct::export::table::FileNumbers;
use uct::export::wire::{SLOTS_LEN, TABLE_LEN};
use uct::memory::Rights;
use uct::process::Identity;
use uct::service::wire::{Reply, Request, Verdict};
use uct::transports::shm::mkey::{LEN, Mkey};

use super::roles::{Actor, FILL};

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

fn memfd(len: usize, seals: SealFlags) -> OwnedFd {
    let fd = memfd_create("hostile", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, len as u64).unwrap();
    fcntl_add_seals(&fd, seals).unwrap();
    fd
}

fn bind_to(name: &[u8]) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    bind(&socket, &SocketAddrUnix::new_abstract_name(name).unwrap()).unwrap();
    listen(&socket, 8).unwrap();
    socket
}

/// A handle of 4096 bytes, whose service is in the hands of the test.
fn handle(name: &[u8], exporter: Identity) -> Vec<u8> {
    let key = Mkey {
        exporter,
        slot: 1,
        token: Token::from_bytes([1; 16]),
        region: (0, 0),
        files: FileNumbers { table: (0, 0), vault: (0, 0) },
        service: name.to_vec(),
    };
    let mut mkey = vec![0; LEN];
    key.encode(&mut mkey).unwrap();
    let global_id = uct::process::boot_id().unwrap().to_vec();
    let entry = Entry { component: 2, mandatory: false, global_id, mkey };
    let handle = Handle {
        address: 4096,
        length: 4096,
        context_uuid: [9; 16],
        registration_id: 1,
        epoch: 1,
        entries: vec![entry],
    };
    handle.encode().unwrap()
}

fn patient(timeout: &str) -> Context {
    Context::builder()
        .features(Features::EXPORTED_MEMH)
        .set("UCX_IMPORT_TIMEOUT", timeout)
        .set("UCX_SHM_ATTACH", "socket")
        .build()
        .unwrap()
}

fn granted(sequence: u32, fds: u32) -> Reply {
    Reply { sequence, verdict: Verdict::Granted, rights: Rights::READ_WRITE, length: 4096, fds }
}

fn reply(to: &OwnedFd, bytes: &[u8], fds: &[OwnedFd]) {
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(&fds)));
    sendmsg(to, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
}

/// Imports from an exporter that answers the first request by `answer`.
fn import_from(answer: impl FnOnce(&OwnedFd, Request) + Send + 'static) -> ImportError {
    let name = format!("hostile-{:x}", testkit::Rng::new(testkit::seed()).next_u64() ^ thread_number());
    let listener = bind_to(name.as_bytes());
    let exporter = thread::spawn(move || {
        let socket = accept(&listener).unwrap();
        let mut bytes = [0; 200];
        let (_, len) = recv(&socket, &mut bytes, RecvFlags::empty()).unwrap();
        answer(&socket, Request::decode(&bytes[..len]).unwrap());
        socket
    });
    let error = patient("500ms").mem_import(&handle(name.as_bytes(), Identity::of_self())).unwrap_err();
    drop(exporter.join().unwrap());
    error
}

fn thread_number() -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    (thread::current().id(), Instant::now()).hash(&mut hasher);
    hasher.finish()
}

/// The descriptors a good exporter passes, but for the region's.
fn with_region(region: OwnedFd) -> [OwnedFd; 3] {
    let table = memfd(TABLE_LEN, SEALS);
    // The line's epoch is the handle's: the table is one in which the export lives.
    rustix::io::pwrite(&table, &1_u64.to_ne_bytes(), 64).unwrap();
    [region, table, memfd(SLOTS_LEN, SEALS)]
}

fn unsafe_region(region: OwnedFd) -> String {
    let error = import_from(move |socket, request| {
        reply(socket, &granted(request.sequence, 3).encode(), &with_region(region));
    });
    assert_eq!(error.status(), Status::Unreachable, "{error}");
    assert_eq!(error.remedy(), "do not trust that exporter");
    error.to_string()
}

pub fn unsealed_memfd() {
    for seals in [SealFlags::empty(), SealFlags::SHRINK, SealFlags::GROW, SealFlags::WRITE] {
        let text = unsafe_region(memfd(4096, seals));
        let expected = format!(
            "shm: no: the exporter passed unsafe memory: the memfd received is not sealed against changes of its size \
             (seals: {:#x})",
            seals.bits()
        );
        assert!(text.ends_with(&expected), "{text}");
    }
    // The same with seals is accepted: it is the seals that made the difference.
    let name = b"hostile-but-correct";
    let listener = bind_to(name);
    let exporter = thread::spawn(move || {
        let socket = accept(&listener).unwrap();
        let mut bytes = [0; 200];
        let (_, len) = recv(&socket, &mut bytes, RecvFlags::empty()).unwrap();
        let request = Request::decode(&bytes[..len]).unwrap();
        reply(&socket, &granted(request.sequence, 3).encode(), &with_region(memfd(4096, SEALS)));
        socket
    });
    let import = patient("5s").mem_import(&handle(name, Identity::of_self())).unwrap();
    import.write(0, b"fine").unwrap();
    drop(exporter.join().unwrap());
}

/// An in-flight page whose slots never come free: an access gives up in time.
pub fn an_in_flight_page_full_of_lies() {
    let name = b"hostile-full-page";
    let listener = bind_to(name);
    let exporter = thread::spawn(move || {
        let socket = accept(&listener).unwrap();
        let mut bytes = [0; 200];
        let (_, len) = recv(&socket, &mut bytes, RecvFlags::empty()).unwrap();
        let request = Request::decode(&bytes[..len]).unwrap();
        let fds = with_region(memfd(4096, SEALS));
        rustix::io::pwrite(&fds[2], &[0xff; SLOTS_LEN], 0).unwrap();
        reply(&socket, &granted(request.sequence, 3).encode(), &fds);
        socket
    });
    let import = patient("200ms").mem_import(&handle(name, Identity::of_self())).unwrap();
    let begin = Instant::now();
    let error = import.write(0, b"never").unwrap_err();
    assert_eq!(error.status(), Status::Busy);
    assert!(error.to_string().starts_with("no in-flight slot came free within 2"), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(2));
    drop(exporter.join().unwrap());
}

pub fn resized_memfd() {
    for len in [0, 1, 4095, 8192] {
        let text = unsafe_region(memfd(len, SEALS));
        let expected = format!("the memfd received has {len} bytes where 4096 were announced");
        assert!(text.ends_with(&expected), "{text}");
    }
}

pub fn no_memfd() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, [0; 4096]).unwrap();
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    let shm = tempfile::tempfile_in("/dev/shm").unwrap();
    shm.set_len(4096).unwrap();
    let cases: [(OwnedFd, &str); 5] = [
        (std::fs::File::open(&path).unwrap().into(), "the descriptor received is no memfd"),
        (std::fs::File::open("/dev/zero").unwrap().into(), "the descriptor received is no memfd"),
        (reader, "the descriptor received is no memfd"),
        (std::fs::File::open("/").unwrap().into(), "the descriptor received is no memfd"),
        // A file of a tmpfs has seals of a kind, but none that keep its size.
        (shm.into(), "is not sealed against changes of its size (seals: 0x1)"),
    ];
    for (fd, expected) in cases {
        let text = unsafe_region(fd);
        assert!(text.ends_with(expected), "{text}");
    }
}

pub fn a_table_that_is_none() {
    for (table, page) in [(4096, SLOTS_LEN), (TABLE_LEN, 64)] {
        let error = import_from(move |socket, request| {
            let fds = [memfd(4096, SEALS), memfd(table, SEALS), memfd(page, SEALS)];
            reply(socket, &granted(request.sequence, 3).encode(), &fds);
        });
        assert!(error.to_string().contains("the exporter passed unsafe memory"), "{error}");
    }
    let error = import_from(|socket, request| {
        let fds = [memfd(4096, SEALS), memfd(TABLE_LEN, SealFlags::empty()), memfd(SLOTS_LEN, SEALS)];
        reply(socket, &granted(request.sequence, 3).encode(), &fds);
    });
    assert!(error.to_string().contains("not sealed"), "{error}");
    // A table in which the export does not live.
    let error = import_from(|socket, request| {
        let fds = [memfd(4096, SEALS), memfd(TABLE_LEN, SEALS), memfd(SLOTS_LEN, SEALS)];
        reply(socket, &granted(request.sequence, 3).encode(), &fds);
    });
    assert_eq!(error.status(), Status::Stale);
}

pub fn missing_descriptors() {
    for count in 0..3 {
        let error = import_from(move |socket, request| {
            let fds: Vec<_> = with_region(memfd(4096, SEALS)).into_iter().take(count).collect();
            reply(socket, &granted(request.sequence, 3).encode(), &fds);
        });
        let expected = format!("the exporter's reply came with {count} descriptors where 3 were announced");
        assert!(error.to_string().contains(&expected), "{error}");
    }
    let before = testkit::open_fds();
    let error = import_from(|socket, request| {
        let more: Vec<_> = (0..8).map(|_| memfd(4096, SEALS)).collect();
        reply(socket, &granted(request.sequence, 3).encode(), &more);
    });
    assert_eq!(error.status(), Status::Unreachable, "{error}");
    // Other tests open some meanwhile; eight leaked each time would show.
    assert!(testkit::open_fds() < before + 200);
}

pub fn garbage() {
    let cases: [(&[u8], &str); 3] = [
        (b"HTTP/1.1 400 Bad Request\r\nlength", "a message with an unknown magic"),
        (b"RXSA", "a message of 4 bytes where 32 were expected"),
        (&[0; 100], "a message of 33 bytes where 32 were expected"),
    ];
    for (bytes, expected) in cases {
        let error = import_from(move |socket, _| reply(socket, bytes, &[]));
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(error.status(), Status::Unreachable);
        assert_eq!(error.remedy(), "see that both sides run compatible versions of rucx");
    }
    let error = import_from(|socket, request| {
        reply(socket, &granted(request.sequence + 1, 3).encode(), &with_region(memfd(4096, SEALS)));
    });
    assert!(error.to_string().contains("a message with an unknown sequence number"), "{error}");
}

pub fn silence() {
    let begin = Instant::now();
    let error = import_from(|_, _| thread::sleep(Duration::from_millis(700)));
    assert!(error.to_string().contains("no answer on the service socket within 5"), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(3));
}

pub fn closes_at_once() {
    let name = b"hostile-closer";
    let listener = bind_to(name);
    let closer = thread::spawn(move || {
        for _ in 0..2 {
            drop(accept(&listener).unwrap());
        }
        listener
    });
    let error = patient("2s").mem_import(&handle(name, Identity::of_self())).unwrap_err();
    assert_eq!(error.status(), Status::Unreachable);
    assert!(error.to_string().contains("the exporter closed the connection"), "{error}");
    drop(closer.join().unwrap());
}

/// The token is not shown to a process that is not the exporter.
pub fn another_process_has_taken_the_name() {
    let name = b"hostile-taken-name";
    let listener = bind_to(name);
    let me = Identity::of_self();
    let other = Identity { pidfd_inode: me.pidfd_inode + 1, start_time: me.start_time + 1, ..me };
    let seen = thread::spawn(move || {
        let socket = accept(&listener).unwrap();
        let mut bytes = [0; 200];
        recv(&socket, &mut bytes, RecvFlags::empty()).unwrap().1
    });
    let error = patient("2s").mem_import(&handle(name, other)).unwrap_err();
    assert_eq!(error.status(), Status::Stale);
    assert!(error.to_string().contains("another one has its place"), "{error}");
    assert_eq!(seen.join().unwrap(), 0, "nothing was sent");
}

fn service_of(handle: &[u8]) -> Vec<u8> {
    let content = Handle::decode(handle, |_| true).unwrap();
    let entry = content.entries.into_iter().find(|entry| entry.component == 2).unwrap();
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
    // Says nothing: dropped after a second.
    let silent = connect_to(&name);
    // Says something that is no request, half of one, too much: dropped at once.
    for bytes in [&b"hello"[..], &[0; 87], &[0; 89], &[0xff; 88]] {
        let socket = connect_to(&name);
        send(&socket, bytes, SendFlags::NOSIGNAL).unwrap();
        assert!(ends(&socket) < Duration::from_millis(900), "{} bytes", bytes.len());
    }
    // Shows a wrong token: answered, then dropped.
    let content = Handle::decode(&exported, |_| true).unwrap();
    let claim = uct::export::Claim {
        slot: 1,
        id: content.registration_id,
        epoch: content.epoch,
        address: content.address,
        length: content.length,
        token: Token::from_bytes([7; 16]),
    };
    let request = Request { sequence: 5, want_control: true, uuid: content.context_uuid, claim };
    let socket = connect_to(&name);
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
    dpu.import(&exported).ok();
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

/// A handle that borrows the uuid of another context, and leads to a socket of its own, comes first. The handles of that context
/// are still asked for where they lead: their tokens are not shown to the impostor, nor is its memory taken for theirs.
pub fn a_borrowed_uuid_gets_no_tokens() {
    let mut host = Actor::host(4096);
    let genuine = host.export();
    let name = b"hostile-borrower";
    let mut borrowed = handle(name, Identity::of_self());
    borrowed[32..48].copy_from_slice(&genuine[32..48]);
    let borrowed = super::roles::repaired(borrowed);
    let listener = bind_to(name);
    let impostor = thread::spawn(move || {
        let socket = accept(&listener).unwrap();
        let mut bytes = [0; 200];
        let (_, len) = recv(&socket, &mut bytes, RecvFlags::empty()).unwrap();
        let request = Request::decode(&bytes[..len]).unwrap();
        reply(&socket, &granted(request.sequence, 3).encode(), &with_region(memfd(4096, SEALS)));
        // The end of the connection, or another request.
        recv(&socket, &mut bytes, RecvFlags::empty()).unwrap().1
    });
    let ctx = patient("2s");
    let first = ctx.mem_import(&borrowed).unwrap();
    let import = ctx.mem_import(&genuine).unwrap();
    let mut seen = [0; 8];
    import.read(0, &mut seen).unwrap();
    assert_eq!(seen, [FILL; 8], "the genuine memory");
    first.read(0, &mut seen).unwrap();
    assert_eq!(seen, [0; 8], "the impostor's");
    drop((first, import));
    assert_eq!(impostor.join().unwrap(), 0, "the impostor was asked once");
}

/// Shows the token of `handle` on a connection of its own, and maps the in-flight page that comes.
fn connected(handle: &[u8]) -> Connected {
    try_connected(handle).unwrap()
}

type Connected = (uct::service::Connection, ucs::mem::Mapping, u64);

fn try_connected(handle: &[u8]) -> Result<Connected, uct::service::ConnectError> {
    let content = Handle::decode(handle, |_| true).unwrap();
    let entry = content.entries.iter().find(|entry| entry.component == 2).unwrap();
    let key = Mkey::decode(&entry.mkey).unwrap();
    let deadline = ucs::time::Deadline::after(Duration::from_secs(5));
    let mut connection = uct::service::Connection::open(&key.service, &deadline)?;
    let claim = claim_of(&content, &key);
    let request = Request { sequence: 0, want_control: true, uuid: content.context_uuid, claim };
    let (_, page) = connection.ask(request, &deadline)?.control.unwrap();
    let page = ucs::mem::Memfd::map_foreign(page.as_fd(), SLOTS_LEN, ucs::mem::Access::ReadWrite).unwrap();
    Ok((connection, page, claim.id))
}

fn claim_of(content: &Handle, key: &Mkey) -> uct::export::Claim {
    uct::export::Claim {
        slot: key.slot,
        id: content.registration_id,
        epoch: content.epoch,
        address: content.address,
        length: content.length,
        token: key.token,
    }
}

/// An importer that lies in its in-flight page delays the revocation of what it was granted, and of nothing else.
pub fn lies_in_flight_hold_only_what_was_granted() {
    let ctx = Context::builder()
        .features(Features::EXPORTED_MEMH)
        .set("UCX_REVOKE_TIMEOUT", "50ms")
        .build()
        .unwrap();
    let region = ctx.mem_map(ucp::MemMap::allocate(4096).exported()).unwrap();
    let (granted, other) = (region.memh_pack().unwrap(), region.memh_pack().unwrap());
    let (connection, page, id) = connected(granted.as_bytes());
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

/// Connections that end with something in flight leave nothing: whoever ends one has no access any more, if it is honest.
pub fn abandoned_pages_hold_nothing() {
    let mut host = Actor::host(4096);
    let exported = host.export();
    let before: usize = host.ask("fds").text().parse().unwrap();
    for _ in 0..200 {
        let (connection, page, id) = connected(&exported);
        page.bytes().store(0, id).unwrap();
        drop(connection);
        // The exporter sees its end.
        thread::sleep(Duration::from_millis(1));
    }
    let after: usize = host.ask("fds").text().parse().unwrap();
    assert!(after <= before + 10, "{before} descriptors, then {after}");
    host.ask("revoke 0").ok();
}

/// One that has shown its token and then sends garbage is listened to no more; its imports live on.
pub fn garbage_after_the_token_is_not_heard() {
    let mut host = Actor::host(4096);
    let exported = host.export();
    let name = service_of(&exported);
    let content = Handle::decode(&exported, |_| true).unwrap();
    let entry = content.entries.iter().find(|entry| entry.component == 2).unwrap();
    let key = Mkey::decode(&entry.mkey).unwrap();
    let claim = claim_of(&content, &key);
    let request = Request { sequence: 1, want_control: false, uuid: content.context_uuid, claim };
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

/// A handle with one more entry, of a component nobody knows.
fn variant(handle: &[u8], number: u16) -> Vec<u8> {
    let mut content = Handle::decode(handle, |_| true).unwrap();
    let entry = Entry { component: 1000 + number, mandatory: false, global_id: vec![], mkey: vec![] };
    content.entries.push(entry);
    content.encode().unwrap()
}

/// Whoever sends handles can vary their bytes: each is an import, and counts as one.
pub fn variants_of_a_handle_are_counted() {
    let mut host = Actor::host(4096);
    let exported = host.export();
    let ctx =
        Context::builder().features(Features::EXPORTED_MEMH).set("UCX_MAX_IMPORTS", "4").build().unwrap();
    let imports: Vec<_> = (0..10).map(|number| ctx.mem_import(&variant(&exported, number))).collect();
    assert_eq!(imports.iter().filter(|import| import.is_ok()).count(), 4);
    assert_eq!(ctx.stats().imports, 4);
    let refused = imports[9].as_ref().unwrap_err();
    assert_eq!(refused.status(), Status::ExceedsLimit);
    drop(imports);
    assert_eq!(ctx.stats().imports, 0);
    ctx.mem_import(&exported).unwrap();
}

/// A handle that names the same context and export as another, and leads to somebody who never answers, delays its own import
/// only.
pub fn a_silent_namesake_delays_nobody() {
    let mut host = Actor::host(4096);
    let genuine = host.export();
    let name = b"hostile-namesake";
    let mut namesake = handle(name, Identity::of_self());
    namesake[32..56].copy_from_slice(&genuine[32..56]);
    let namesake = super::roles::repaired(namesake);
    let _listener = bind_to(name); // and never accepts
    let ctx = patient("2s");
    let slow = {
        let ctx = ctx.clone();
        thread::spawn(move || ctx.mem_import(&namesake).unwrap_err().status())
    };
    thread::sleep(Duration::from_millis(100));
    let begin = Instant::now();
    ctx.mem_import(&genuine).unwrap();
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
    assert_eq!(slow.join().unwrap(), Status::Unreachable);
}
