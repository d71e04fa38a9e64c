//! Hostile exporters, importers and handles: bounded, told, and nobody else is harmed. Here: exporters.

mod handles;
mod importers;
mod scribblers;
mod victim;
mod workers;

pub use handles::*;
pub use importers::*;
pub use scribblers::*;
pub use victim::victim;
pub use workers::*;

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
use uct::transports::cma;
use uct::transports::shm::mkey::{LEN, Mkey};

use crate::roles::{Actor, FILL};

const SHM: u16 = 2;
const CMA: u16 = 3;

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

/// A uuid that no other context has.
fn uuid() -> [u8; 16] {
    let (a, b) = (testkit::Rng::new(testkit::seed()).next_u64() ^ thread_number(), thread_number());
    [a.to_le_bytes(), b.to_le_bytes()].concat().try_into().unwrap()
}

/// The name of the service of the context `uuid`.
fn name_of(uuid: &[u8; 16]) -> Vec<u8> {
    uct::service::server::name_of(uuid).into_bytes()
}

/// A handle of 4096 bytes by one component, whose service is in the hands of the test. By cma the bytes are some of this process,
/// which are there as long as it is.
fn handle(component: u16, uuid: [u8; 16], exporter: Identity) -> Vec<u8> {
    let key = cma::mkey::Mkey { exporter, slot: 1, token: Token::from_bytes([1; 16]), in_directory: false };
    if component == CMA { cma_handle(uuid, &key) } else { shm_handle(uuid, &name_of(&uuid), exporter) }
}

fn cma_handle(uuid: [u8; 16], key: &cma::mkey::Mkey) -> Vec<u8> {
    let mut mkey = vec![0; cma::mkey::LEN];
    key.encode(&mut mkey).unwrap();
    of_entry(CMA, mkey, uuid)
}

/// One by shm, whose service may have any name.
fn shm_handle(uuid: [u8; 16], name: &[u8], exporter: Identity) -> Vec<u8> {
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
    of_entry(SHM, mkey, uuid)
}

fn of_entry(component: u16, mkey: Vec<u8>, context_uuid: [u8; 16]) -> Vec<u8> {
    let global_id = uct::process::boot_id().unwrap().to_vec();
    let entry = Entry { component, mandatory: false, global_id, mkey };
    let bytes: &'static mut [u8; 4096] = Box::leak(Box::new([0; 4096]));
    let handle = Handle {
        address: bytes.as_mut_ptr().expose_provenance() as u64,
        length: 4096,
        context_uuid,
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

/// Imports by a component from an exporter that answers the first request by `answer`.
fn import_from(component: u16, answer: impl FnOnce(&OwnedFd, Request) + Send + 'static) -> ImportError {
    let uuid = uuid();
    let exporter = exporter(&name_of(&uuid), answer);
    let error = patient("500ms").mem_import(&handle(component, uuid, Identity::of_self())).unwrap_err();
    drop(exporter.join().unwrap());
    error
}

fn thread_number() -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    (thread::current().id(), Instant::now()).hash(&mut hasher);
    hasher.finish()
}

/// A table in which the export lives: the line's epoch is the handle's.
fn table() -> OwnedFd {
    let table = memfd(TABLE_LEN, SEALS);
    rustix::io::pwrite(&table, &1_u64.to_ne_bytes(), 64).unwrap();
    table
}

/// Grants a request, with these descriptors; the first, the region's, where it is wanted.
fn grant(to: &OwnedFd, request: &Request, fds: [OwnedFd; 3]) {
    let fds: Vec<_> = fds.into_iter().skip(usize::from(!request.want_memory)).collect();
    reply(to, &granted(request.sequence, u32::try_from(fds.len()).unwrap()).encode(), &fds);
}

/// The descriptors a good exporter passes, but for the region's.
fn with_region(region: OwnedFd) -> [OwnedFd; 3] {
    [region, table(), memfd(SLOTS_LEN, SEALS)]
}

fn unsafe_region(region: OwnedFd) -> String {
    let error = import_from(SHM, move |socket, request| grant(socket, &request, with_region(region)));
    assert_eq!(error.status(), Status::Unreachable, "{error}");
    assert_eq!(error.remedy(), "do not trust that exporter");
    error.to_string().strip_suffix("; cma: no: not offered by the exporter").unwrap().to_owned()
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
    let uuid = uuid();
    let exporter = exporter(&name_of(&uuid), |socket, request| {
        grant(socket, &request, with_region(memfd(4096, SEALS)));
    });
    let import = patient("5s").mem_import(&handle(SHM, uuid, Identity::of_self())).unwrap();
    import.write(0, b"fine").unwrap();
    drop(exporter.join().unwrap());
}

/// An in-flight page whose slots never come free: an access gives up in time.
pub fn an_in_flight_page_full_of_lies() {
    let uuid = uuid();
    let exporter = exporter(&name_of(&uuid), |socket, request| {
        let fds = with_region(memfd(4096, SEALS));
        rustix::io::pwrite(&fds[2], &[0xff; SLOTS_LEN], 0).unwrap();
        grant(socket, &request, fds);
    });
    let import = patient("200ms").mem_import(&handle(SHM, uuid, Identity::of_self())).unwrap();
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
    for component in [SHM, CMA] {
        for (table, page) in [(4096, SLOTS_LEN), (TABLE_LEN, 64)] {
            let error = import_from(component, move |socket, request| {
                grant(socket, &request, [memfd(4096, SEALS), memfd(table, SEALS), memfd(page, SEALS)]);
            });
            assert!(error.to_string().contains("the exporter passed unsafe memory"), "{error}");
        }
        for unsealed in [1, 2] {
            let error = import_from(component, move |socket, request| {
                let mut fds = with_region(memfd(4096, SEALS));
                fds[unsealed] = memfd([0, TABLE_LEN, SLOTS_LEN][unsealed], SealFlags::empty());
                grant(socket, &request, fds);
            });
            assert!(error.to_string().contains("not sealed"), "{error}");
        }
        // A table in which the export does not live.
        let error = import_from(component, |socket, request| {
            let table = memfd(TABLE_LEN, SEALS);
            grant(socket, &request, [memfd(4096, SEALS), table, memfd(SLOTS_LEN, SEALS)]);
        });
        assert_eq!(error.status(), Status::Stale);
    }
}

pub fn missing_descriptors() {
    for (component, wanted) in [(SHM, 3_u32), (CMA, 2)] {
        for count in 0..=3 {
            if count == wanted {
                continue;
            }
            let error = import_from(component, move |socket, request| {
                let skipped = usize::from(count < 3 && !request.want_memory);
                let fds = with_region(memfd(4096, SEALS)).into_iter().skip(skipped);
                let fds: Vec<_> = fds.take(count as usize).collect();
                reply(socket, &granted(request.sequence, wanted).encode(), &fds);
            });
            let expected =
                format!("the exporter's reply came with {count} descriptors where {wanted} were announced");
            assert!(error.to_string().contains(&expected), "{error}");
        }
        let before = testkit::open_fds();
        let error = import_from(component, move |socket, request| {
            let more: Vec<_> = (0..8).map(|_| memfd(4096, SEALS)).collect();
            reply(socket, &granted(request.sequence, wanted).encode(), &more);
        });
        assert_eq!(error.status(), Status::Unreachable, "{error}");
        // Other tests open some meanwhile; eight leaked each time would show.
        assert!(testkit::open_fds() < before + 200);
    }
}

/// Memory that nobody asked for, rightly announced.
pub fn a_descriptor_nobody_asked_for() {
    let error = import_from(CMA, |socket, request| {
        assert!(!request.want_memory && request.want_control);
        reply(socket, &granted(request.sequence, 3).encode(), &with_region(memfd(4096, SEALS)));
    });
    assert_eq!(error.status(), Status::Unreachable, "{error}");
    assert!(error.to_string().contains("came with 3 descriptors where 2 were announced"), "{error}");
}

pub fn garbage() {
    let cases: [(&[u8], &str); 3] = [
        (b"HTTP/1.1 400 Bad Request\r\nlength", "a message with an unknown magic"),
        (b"RXSA", "a message of 4 bytes where 32 were expected"),
        (&[0; 100], "a message of 33 bytes where 32 were expected"),
    ];
    for component in [SHM, CMA] {
        for (bytes, expected) in cases {
            let error = import_from(component, move |socket, _| reply(socket, bytes, &[]));
            assert!(error.to_string().contains(expected), "{error}");
            assert_eq!(error.status(), Status::Unreachable);
            assert_eq!(error.remedy(), "see that both sides run compatible versions of rucx");
        }
        let error = import_from(component, |socket, request| {
            let request = Request { sequence: request.sequence + 1, ..request };
            grant(socket, &request, with_region(memfd(4096, SEALS)));
        });
        assert!(error.to_string().contains("a message with an unknown sequence number"), "{error}");
    }
}

pub fn silence() {
    for component in [SHM, CMA] {
        let begin = Instant::now();
        let error = import_from(component, |_, _| thread::sleep(Duration::from_millis(700)));
        assert!(error.to_string().contains("no answer on the service socket within 5"), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(3));
    }
}

pub fn closes_at_once() {
    for component in [SHM, CMA] {
        let uuid = uuid();
        let listener = bind_to(&name_of(&uuid));
        let closer = thread::spawn(move || {
            for _ in 0..2 {
                drop(accept(&listener).unwrap());
            }
            listener
        });
        let error = patient("2s").mem_import(&handle(component, uuid, Identity::of_self())).unwrap_err();
        assert_eq!(error.status(), Status::Unreachable);
        assert!(error.to_string().contains("the exporter closed the connection"), "{error}");
        assert_eq!(error.remedy(), "see whether the exporter is ending, and import again");
        drop(closer.join().unwrap());
    }
}

/// The token is not shown to a process that is not the exporter.
pub fn another_process_has_taken_the_name() {
    for component in [SHM, CMA] {
        let uuid = uuid();
        let listener = bind_to(&name_of(&uuid));
        let me = Identity::of_self();
        let other = Identity { pidfd_inode: me.pidfd_inode + 1, start_time: me.start_time + 1, ..me };
        let seen = thread::spawn(move || {
            let socket = accept(&listener).unwrap();
            let mut bytes = [0; 200];
            recv(&socket, &mut bytes, RecvFlags::empty()).unwrap().1
        });
        let error = patient("2s").mem_import(&handle(component, uuid, other)).unwrap_err();
        assert_eq!(error.status(), Status::Stale);
        assert!(error.to_string().contains("another one has its place"), "{error}");
        assert_eq!(seen.join().unwrap(), 0, "nothing was sent");
    }
}

/// Somebody in this very process answers on a socket, and grants access to whatever the handle names: that would be any memory of this
/// process. It is accessed only if one of the process's contexts says that it is a region of its own.
pub fn an_exporter_in_this_process_that_is_none_of_its_contexts() {
    let uuid = uuid();
    let exporter = exporter(&name_of(&uuid), |socket, request| {
        grant(socket, &request, with_region(memfd(4096, SEALS)));
    });
    let error = patient("2s").mem_import(&handle(CMA, uuid, Identity::of_self())).unwrap_err();
    assert_eq!(error.status(), Status::Stale, "{error}");
    assert!(error.to_string().contains("the exporting context is gone"), "{error}");
    drop(exporter.join().unwrap());
}
