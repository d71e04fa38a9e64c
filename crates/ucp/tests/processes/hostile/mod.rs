//! Hostile exporters, importers and handles: bounded, told, and nobody else is harmed. Here: exporters.

mod handles;
mod importers;

pub use handles::*;
pub use importers::*;

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

use crate::roles::{Actor, FILL};

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
        in_directory: false,
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

/// An exporter on `name` that answers the first request of its first importer by `answer`, and keeps the connection.
fn exporter(
    name: &[u8],
    answer: impl FnOnce(&OwnedFd, Request) + Send + 'static,
) -> thread::JoinHandle<OwnedFd> {
    let listener = bind_to(name);
    thread::spawn(move || {
        let socket = accept(&listener).unwrap();
        let mut bytes = [0; 200];
        let (_, len) = recv(&socket, &mut bytes, RecvFlags::empty()).unwrap();
        answer(&socket, Request::decode(&bytes[..len]).unwrap());
        socket
    })
}

/// Imports from an exporter that answers the first request by `answer`.
fn import_from(answer: impl FnOnce(&OwnedFd, Request) + Send + 'static) -> ImportError {
    let name = format!("hostile-{:x}", testkit::Rng::new(testkit::seed()).next_u64() ^ thread_number());
    let exporter = exporter(name.as_bytes(), answer);
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
    let exporter = exporter(name, |socket, request| {
        reply(socket, &granted(request.sequence, 3).encode(), &with_region(memfd(4096, SEALS)));
    });
    let import = patient("5s").mem_import(&handle(name, Identity::of_self())).unwrap();
    import.write(0, b"fine").unwrap();
    drop(exporter.join().unwrap());
}

/// An in-flight page whose slots never come free: an access gives up in time.
pub fn an_in_flight_page_full_of_lies() {
    let name = b"hostile-full-page";
    let exporter = exporter(name, |socket, request| {
        let fds = with_region(memfd(4096, SEALS));
        rustix::io::pwrite(&fds[2], &[0xff; SLOTS_LEN], 0).unwrap();
        reply(socket, &granted(request.sequence, 3).encode(), &fds);
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
    assert_eq!(error.remedy(), "see whether the exporter is ending, and import again");
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
