//! The references: what an operation cannot do without, by bare system calls and nothing around them.
//!
//! # Safety
//! A mapping made here is used only until it is unmapped here, and known to nobody else.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::io::{IoSlice, IoSliceMut};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recv, recvmsg, send, sendmsg, socket_with,
};
use ucs::sync::{Ordering, Word64, fence};

/// Bytes of a page; a step that is too small for another page size only makes both sides touch more often.
pub(crate) const PAGE: usize = 4096;

/// An unnamed memory file of `len` bytes.
fn memfd_of(len: usize) -> OwnedFd {
    let fd = memfd_create("bare", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd_create");
    ftruncate(&fd, len as u64).expect("ftruncate");
    fd
}

fn seal(fd: &OwnedFd) {
    fcntl_add_seals(fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).expect("seals");
}

/// Maps `len` bytes of `fd`, has them used, and unmaps them.
fn mapped(fd: &OwnedFd, len: usize, access: ProtFlags, f: impl FnOnce(*mut u8)) {
    // SAFETY: a null hint without MAP_FIXED replaces no mapping.
    let start = unsafe { mmap(ptr::null_mut(), len, access, MapFlags::SHARED, fd, 0) }.expect("mmap");
    f(start.cast());
    // SAFETY: mapped above, and f has ended.
    unsafe { munmap(start, len) }.expect("munmap");
}

/// Memory that can be given away, made and unmade: `memfd_create`, `ftruncate`, `mmap`, seals, the pages, `munmap`, `close`.
pub(crate) fn memfd(len: usize, touch: bool) {
    let fd = memfd_of(len);
    mapped(&fd, len, ProtFlags::READ | ProtFlags::WRITE, |start| {
        seal(&fd);
        for at in (0..len).step_by(PAGE).take_while(|_| touch) {
            // SAFETY: within the mapping, which is writable; nobody else knows of it.
            unsafe { start.wrapping_add(at).write_volatile(1) };
        }
    });
}

/// The cheapest system call: what this machine takes to enter its kernel.
pub(crate) fn system_calls(n: u64) {
    for _ in 0..n {
        std::hint::black_box(rustix::process::getppid());
    }
}

/// Bytes of a question and of an answer: about what a key and a grant take.
const MESSAGE: usize = 96;
/// Most descriptors of an answer.
const FDS: usize = 3;

fn address(name: &[u8]) -> SocketAddrUnix {
    SocketAddrUnix::new_abstract_name(name).expect("a name")
}

fn socket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("socket")
}

/// Answers each message with as many descriptors as its first byte asks for; one thread, one connection at a time.
pub(crate) fn serve(name: &[u8], lens: [usize; FDS]) {
    let listener = socket();
    bind(&listener, &address(name)).expect("bind");
    listen(&listener, 16).expect("listen");
    let files = lens.map(memfd_of);
    files.iter().for_each(seal);
    std::thread::spawn(move || {
        loop {
            let peer = accept_with(&listener, SocketFlags::CLOEXEC).expect("accept");
            let mut question = [0; MESSAGE];
            while recv(&peer, &mut question, RecvFlags::empty()).is_ok_and(|(received, _)| received > 0) {
                let fds: Vec<_> = files.iter().take(usize::from(question[0])).map(AsFd::as_fd).collect();
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
                let answer = [0; MESSAGE];
                sendmsg(&peer, &[IoSlice::new(&answer)], &mut control, SendFlags::NOSIGNAL).expect("sendmsg");
            }
        }
    });
}

/// A connection to [`serve`].
#[derive(Debug)]
pub(crate) struct Client(OwnedFd);

impl Client {
    pub(crate) fn connect(name: &[u8]) -> Self {
        let socket = socket();
        connect(&socket, &address(name)).expect("connect");
        Self(socket)
    }

    /// One message there, one back with `count` descriptors: the first's seals and size are looked at; each is mapped, unmapped and
    /// closed.
    pub(crate) fn fetch(&self, count: u8) {
        let mut question = [0; MESSAGE];
        question[0] = count;
        send(&self.0, &question, SendFlags::NOSIGNAL).expect("send");
        let mut answer = [0; MESSAGE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut answer)];
        recvmsg(&self.0, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC).expect("recvmsg");
        for message in control.drain() {
            let RecvAncillaryMessage::ScmRights(fds) = message else { continue };
            map_all(fds, [REGION, TABLE, SLOTS]);
        }
    }
}

/// Bytes of the memory that is passed: a region, a table of exports and a page of in-flight slots.
pub(crate) const REGION: usize = 1 << 20;
pub(crate) const TABLE: usize = 4 << 20;
pub(crate) const SLOTS: usize = 4 << 10;

/// Maps all, then unmaps all.
fn map_all(mut fds: impl Iterator<Item = OwnedFd>, lens: [usize; FDS]) {
    let [first, rest @ ..] = lens;
    let Some(fd) = fds.next() else { return };
    let seals = fcntl_get_seals(&fd).expect("seals");
    assert!(seals.contains(SealFlags::SHRINK | SealFlags::GROW));
    assert_eq!(fstat(&fd).expect("fstat").st_size, first.try_into().expect("a size"));
    mapped(&fd, first, ProtFlags::READ | ProtFlags::WRITE, |_| {
        let Some(second) = fds.next() else { return };
        mapped(&second, rest[0], ProtFlags::READ, |_| {
            let Some(third) = fds.next() else { return };
            mapped(&third, rest[1], ProtFlags::READ | ProtFlags::WRITE, |_| {});
        });
    });
}

/// What a revocation cannot do without: move a word on, a fence, and a look at each in-flight slot of each importer.
#[derive(Debug)]
pub(crate) struct Revocation {
    epoch: Word64,
    words: Vec<Word64>,
}

/// In-flight slots of an importer, and words of a cache line.
const SLOTS_EACH: usize = 64;
const LINE: usize = 8;

impl Revocation {
    pub(crate) fn of(importers: usize) -> Self {
        let words = std::iter::repeat_with(Word64::default).take(importers * SLOTS_EACH * LINE).collect();
        Self { epoch: Word64::new(1), words }
    }

    pub(crate) fn run(&self) -> bool {
        self.epoch.store(2, Ordering::Release);
        fence(Ordering::SeqCst);
        self.words.iter().step_by(LINE).all(|word| word.load(Ordering::Acquire) != 7)
    }
}
