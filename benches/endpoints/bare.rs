//! The reference of connections: memory is made, passed over a socket, mapped by both sides, and all of it is given back.
//!
//! # Safety
//! A mapping made here is used by nobody, until it is unmapped here.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr;
use std::sync::OnceLock;
use std::time::Duration;

use rucx_benches::timed;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create};
use rustix::io::{IoSlice, IoSliceMut};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recv, recvmsg, send, sendmsg, socket_with,
};

use crate::processors::beside;

/// Bytes of an introduction and of its answer.
const MESSAGE: usize = 96;

/// Bytes of the memory that both sides map: about what two rings take.
const SHARED: usize = 260 << 10;

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

fn socket() -> OwnedFd {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("socket")
}

/// Has `f` run while the memory is mapped.
fn mapped(fd: &OwnedFd, f: impl FnOnce()) {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a null hint without MAP_FIXED replaces no mapping.
    let start = unsafe { mmap(ptr::null_mut(), SHARED, access, MapFlags::SHARED, fd, 0) }.expect("mmap");
    f();
    // SAFETY: mapped above, and nobody else knows of it.
    unsafe { munmap(start, SHARED) }.expect("munmap");
}

/// The socket at which a thread maps what it is given; one connection at a time, until that is closed.
static SERVER: OnceLock<SocketAddrUnix> = OnceLock::new();

fn start() -> SocketAddrUnix {
    let name = format!("rucx-bench-{}-rings", std::process::id());
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("a name");
    let listener = socket();
    bind(&listener, &address).expect("bind");
    listen(&listener, 16).expect("listen");
    std::thread::spawn(move || {
        loop {
            serve(&accept_with(&listener, SocketFlags::CLOEXEC).expect("accept"));
        }
    });
    address
}

/// How it is called in a table.
pub(crate) const CONNECTION: &str = "connect, memfd, mmap × 2";

/// Each time: connects, gives memory, waits for the answer, and gives all back.
pub(crate) fn connections() -> impl FnMut(u64) -> Duration {
    let server = SERVER.get_or_init(|| beside(start));
    timed(move |n| (0..n).for_each(|_| connection(server)))
}

fn connection(server: &SocketAddrUnix) {
    let socket = socket();
    connect(&socket, server).expect("connect");
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = memfd_create("bare", flags).expect("memfd_create");
    ftruncate(&memory, SHARED as u64).expect("ftruncate");
    fcntl_add_seals(&memory, SEALS | SealFlags::SEAL).expect("seals");
    mapped(&memory, || {
        let fds = [memory.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        let question = [0; MESSAGE];
        sendmsg(&socket, &[IoSlice::new(&question)], &mut control, SendFlags::NOSIGNAL).expect("sendmsg");
        let mut answer = [0; MESSAGE];
        assert_eq!(recv(&socket, &mut answer, RecvFlags::empty()).expect("recv").0, MESSAGE);
    });
}

/// Maps what a peer gives, says so, and waits until the peer is gone.
fn serve(peer: &OwnedFd) {
    let mut question = [0; MESSAGE];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut question)];
    recvmsg(peer, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC).expect("recvmsg");
    for message in control.drain() {
        let RecvAncillaryMessage::ScmRights(fds) = message else { continue };
        for memory in fds {
            assert!(fcntl_get_seals(&memory).expect("seals").contains(SEALS));
            mapped(&memory, || {
                send(peer, &[0; MESSAGE], SendFlags::NOSIGNAL).expect("send");
                let _ = recv(peer, &mut [0; 1], RecvFlags::empty());
            });
        }
    }
}
