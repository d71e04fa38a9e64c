//! Hostile exporters, importers and handles: bounded, told, and nobody else is harmed. Here: exporters.

pub mod answers;
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
use uct::transports::shm::mkey::{LEN, Mkey};
use uct::transports::{cma, verbs};

use crate::roles::{Actor, BY_DEVICE, FILL, NEARBY, builder, builder_by, context_by};

const SHM: u16 = 2;
const CMA: u16 = 3;
const VERBS: u16 = 4;

/// Those by which a handle is imported here.
const COMPONENTS: &[u16] = if BY_DEVICE { &[VERBS] } else { &[SHM, CMA] };

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
    match component {
        CMA => cma_handle(uuid, &key),
        VERBS => verbs_handle(uuid, exporter),
        _ => shm_handle(uuid, &name_of(&uuid), exporter),
    }
}

/// One by this machine's device.
fn verbs_handle(uuid: [u8; 16], exporter: Identity) -> Vec<u8> {
    let ctx = context_by(NEARBY);
    let genuine = ctx.mem_map(ucp::MemMap::allocate(1)).unwrap().memh_pack().unwrap();
    let entry = Handle::decode(genuine.as_bytes(), |_| true).unwrap().entries.remove(0);
    let own = verbs::mkey::Mkey::decode(&entry.mkey).unwrap();
    let key = verbs::mkey::Mkey { exporter, slot: 1, token: Token::from_bytes([1; 16]), ..own };
    let mut mkey = vec![0; verbs::mkey::LEN];
    key.encode(&mut mkey).unwrap();
    of_entry(Entry { mkey, ..entry }, uuid)
}

fn cma_handle(uuid: [u8; 16], key: &cma::mkey::Mkey) -> Vec<u8> {
    let mut mkey = vec![0; cma::mkey::LEN];
    key.encode(&mut mkey).unwrap();
    of_entry(local(CMA, mkey), uuid)
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
    of_entry(local(SHM, mkey), uuid)
}

/// What means something on this machine.
fn local(component: u16, mkey: Vec<u8>) -> Entry {
    let global_id = uct::process::boot_id().unwrap().to_vec();
    Entry { component, mandatory: false, global_id, mkey }
}

fn of_entry(entry: Entry, context_uuid: [u8; 16]) -> Vec<u8> {
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
    let builder = if BY_DEVICE { builder_by(NEARBY) } else { builder() };
    builder.set("UCX_IMPORT_TIMEOUT", timeout).set("UCX_SHM_ATTACH", "socket").build().unwrap()
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
