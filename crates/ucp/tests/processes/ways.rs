//! The ways to a descriptor, and who is denied them. As root nothing would be denied: these roles become another user first.

use std::os::fd::{AsFd, BorrowedFd};

use testkit::{Role, role};
use ucp::Status;
use ucs::time::Deadline;
use uct::service::wire::Request;

use super::roles::{Actor, FILL, TOKEN, assert_each_says, mkey_offset, repaired, with_keys};

/// The user nobody on Debian; any that is not root would do.
const NOBODY: u32 = 65_534;

/// A DPU that attaches memory of shm in these ways, and has no other transport.
fn by_shm(attach: &str) -> Actor {
    Actor::dpu_of(&[("UCX_TLS", "mm"), ("UCX_SHM_ATTACH", attach)])
}

pub fn by_proc() {
    let mut host = Actor::host(4096);
    let mut dpu = by_shm("proc");
    let handle = host.export();
    let how = dpu.import(&handle).text();
    assert!(how.contains("shm: descriptor taken from /proc/PID/fd"), "{how}");
    used_like_any_other(&mut host, &mut dpu, &handle);
}

pub fn by_pidfd() {
    let mut host = Actor::host(4096);
    let mut dpu = by_shm("pidfd");
    let handle = host.export();
    let how = dpu.import(&handle).text();
    assert!(how.contains("shm: descriptor taken by pidfd_getfd"), "{how}");
    used_like_any_other(&mut host, &mut dpu, &handle);
}

/// Data, a wrong token, a second export, revocation, a newer export: as over the socket.
fn used_like_any_other(host: &mut Actor, dpu: &mut Actor, handle: &[u8]) {
    assert_eq!(dpu.read(0, 8).ok(), [FILL; 8]);
    dpu.write(100, b"directly").ok();
    assert_eq!(host.read(100, 8).ok(), b"directly");
    dpu.import(&with_keys(handle, &[2], |key| key[TOKEN] ^= 1)).err(Status::AccessDenied);
    let mut forged = handle.to_vec();
    forged[24] ^= 1;
    dpu.import(&repaired(forged)).err(Status::InvalidHandle);
    let second = host.export();
    host.ask("revoke 0").ok();
    dpu.read(0, 8).err(Status::Stale);
    dpu.import(handle).err(Status::Stale);
    dpu.import(&second).ok();
    assert_eq!(dpu.read(0, 8).ok(), [FILL; 8]);
    host.ask("drop-region").ok();
    dpu.read(0, 8).err(Status::Stale);
    dpu.import(&second).err(Status::Stale);
    host.0.kill();
    dpu.import(&second).err(Status::Stale);
}

/// A handle is a bearer capability: over the socket, its token is what counts.
pub fn by_socket_as_another_user() {
    let mut host = Actor::host(4096);
    let mut dpu = Actor(Role::new("roles::dpu").as_uid(NOBODY).start());
    dpu.import(&host.export()).ok();
    dpu.write(0, b"nobody").ok();
    assert_eq!(host.read(0, 6).ok(), b"nobody");
    // Not so for cma, which needs the rights over the exporter.
    let mut dpu = Actor(Role::new("roles::dpu").as_uid(NOBODY).env("UCX_TLS", "cma").start());
    dpu.import(&host.export()).err(Status::Unreachable);
}

pub fn denied_to_another_user() {
    let mut host = Actor::host(4096);
    // A network would let him: there the token is what counts.
    let dpu = Role::new("roles::dpu")
        .as_uid(NOBODY)
        .env("UCX_TLS", "self,shm,cma")
        .env("UCX_SHM_ATTACH", "^socket");
    let mut dpu = Actor(dpu.start());
    let text = dpu.import(&host.export()).err(Status::Unreachable);
    assert!(text.contains("proc: open(/proc/PID/fd): Permission denied (os error 13)"), "{text}");
    assert!(text.contains("pidfd: pidfd_getfd: Operation not permitted (os error 1)"), "{text}");
    assert_each_says(
        &[3],
        &text,
        "process_vm_readv: Operation not permitted (os error 1): the exporter runs as user 0",
    );
    assert!(text.contains("run as the exporter's user, with ptrace allowed"), "{text}");
}

/// Its socket cannot be seen from there; with ptrace rights, its descriptors can.
pub fn other_network_namespace() {
    let mut host = Actor(Role::new("roles::host").arg("4096").in_new_netns().start());
    let mut dpu = Actor::dpu();
    let how = dpu.import(&host.export()).text();
    assert!(how.contains("shm: descriptor taken from /proc/PID/fd"), "{how}");
    dpu.write(0, b"across").ok();
    assert_eq!(host.read(0, 6).ok(), b"across");
}

pub fn other_network_namespace_without_ptrace() {
    let mut host = Actor(Role::new("roles::host").arg("4096").in_new_netns().start());
    let mut dpu = Actor(Role::new("roles::dpu").as_uid(NOBODY).start());
    let text = dpu.import(&host.export()).err(Status::Unreachable);
    assert!(text.contains("socket: the exporter's service socket is in another network namespace"), "{text}");
    assert_each_says(&[3], &text, "the exporter's service socket is in another network namespace");
    assert!(
        text.contains(
            "set UCX_SERVICE_DIR on both sides to a directory that both see, or run both in one network"
        ),
        "{text}"
    );
}

pub fn other_pid_namespace() {
    // The socket reaches it: the peer's pidfd tells who it is, though its pid cannot be seen from here.
    let mut host = Actor(Role::new("roles::host").arg("4096").in_new_pidns().start());
    let handle = host.export();
    let mut dpu = Actor::dpu();
    dpu.import(&handle).ok();
    dpu.write(0, b"pidns").ok();
    assert_eq!(host.read(0, 5).ok(), b"pidns");
    let text = by_shm("proc").import(&handle).err(Status::Unreachable);
    assert!(text.contains("proc: the exporter lives in another pid namespace"), "{text}");
    // Where cma may be used, it takes shm's place: the process behind the socket has a pid here.
    let mut dpu = Actor::dpu_with("UCX_SHM_ATTACH", "proc");
    let how = dpu.import(&handle).text();
    assert!(how.contains("proc: the exporter lives in another pid namespace"), "{how}");
    assert!(how.contains("cma: process_vm_readv and process_vm_writev"), "{how}");
    dpu.write(0, b"again").ok();
    assert_eq!(host.read(0, 5).ok(), b"again");
    // And the other way round.
    let mut host = Actor::host(4096);
    let mut dpu = Actor(Role::new("roles::dpu").in_new_pidns().start());
    dpu.import(&host.export()).ok();
    host.ask("revoke 0").ok();
    dpu.read(0, 1).err(Status::Stale);
    let mut dpu = Actor(Role::new("roles::dpu").in_new_pidns().env("UCX_TLS", "cma").start());
    let text = dpu.import(&host.export()).err(Status::Unreachable);
    assert_each_says(&[3], &text, "the exporter's pid is not visible from this pid namespace");
}

pub fn no_way_allowed() {
    let mut host = Actor::host(4096);
    let text = by_shm("").import(&host.export()).err(Status::Unreachable);
    assert!(text.contains("shm: no: no way to attach is allowed"), "{text}");
    assert!(text.contains("[allow a way to attach in UCX_SHM_ATTACH]"), "{text}");
    // The variable is shm's: cma is not meant.
    let mut dpu = Actor::dpu_with("UCX_SHM_ATTACH", "");
    let how = dpu.import(&host.export()).text();
    assert!(how.contains("shm: no: no way to attach is allowed"), "{how}");
    assert!(how.contains("cma: process_vm_readv and process_vm_writev"), "{how}");
    assert_eq!(dpu.read(0, 8).ok(), [FILL; 8]);
}

/// Slots that importers without the socket share are claimed one each, and given back: by those that go, and of those that die.
pub fn vault_slots_run_out() {
    let mut host = Actor::host(4096);
    let handle = host.export();
    let by = |tls: &str| {
        let builder = ucp::Context::builder().features(ucp::Features::EXPORTED_MEMH).set("UCX_TLS", tls);
        builder.set("UCX_SHM_ATTACH", "proc").build().unwrap()
    };
    let context = || by("mm");
    let mut imports: Vec<_> = (0..64).map(|_| context().mem_import(&handle).unwrap()).collect();
    let error = context().mem_import(&handle).unwrap_err();
    assert!(error.to_string().contains("all in-flight slots the exporter shares out are taken"), "{error}");
    // One with a connection has slots of its own: cma goes on.
    assert_eq!(by("all").mem_import(&handle).unwrap().transport(), "cma");
    imports.pop();
    let mut dead = by_shm("proc");
    dead.import(&handle).ok();
    context().mem_import(&handle).unwrap_err();
    dead.0.kill();
    // Those of the dead are taken over.
    context().mem_import(&handle).unwrap();
}

/// An importer that keeps to no rule: takes the descriptor for itself and tries all that could write.
pub fn grabber() {
    use rustix::fs::{
        FallocateFlags, MemfdFlags, OFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
    };
    use ucs::mem::{Access, Mapping};
    let handle = ucp::wire::handle::Handle::decode(&role::recv(), |_| true).unwrap();
    let entry = handle.entries.iter().find(|entry| entry.component == 2).unwrap();
    let key = uct::transports::shm::mkey::Mkey::decode(&entry.mkey).unwrap();
    let deadline = Deadline::after(std::time::Duration::from_secs(5));
    let mut connection = uct::service::Connection::open(&key.service, &deadline).unwrap();
    let claim = uct::export::Claim {
        slot: key.slot,
        id: handle.registration_id,
        epoch: handle.epoch,
        address: handle.address,
        length: handle.length,
        token: key.token,
    };
    let wire =
        Request { sequence: 0, want_control: true, want_memory: true, uuid: handle.context_uuid, claim };
    let granted = connection.ask(wire, &deadline).unwrap();
    let (table, _page) = granted.control.unwrap();
    let reopened = |fd: BorrowedFd<'_>| {
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
        rustix::fs::open(path, OFlags::RDWR, rustix::fs::Mode::empty()).unwrap()
    };
    let tries = |fd: BorrowedFd<'_>, len: usize| {
        let mut landed = Vec::new();
        let mut note = |what: &str, done: bool| {
            if done {
                landed.push(what.to_owned());
            }
        };
        note("pwrite", rustix::io::pwrite(fd, b"x", 0).is_ok());
        note("map", Mapping::of_file(fd, len, Access::ReadWrite).is_ok());
        note("map re-opened", Mapping::of_file(reopened(fd).as_fd(), len, Access::ReadWrite).is_ok());
        note("truncate", ftruncate(fd, 0).is_ok());
        note("grow", ftruncate(fd, 1 << 20).is_ok());
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        note("punch", fallocate(fd, punch, 0, 4096).is_ok());
        note("seal", fcntl_add_seals(fd, rustix::fs::SealFlags::WRITE).is_ok());
        note("map for reading", Mapping::of_file(fd, len, Access::Read).is_ok());
        landed
    };
    let region = tries(granted.memory.unwrap().as_fd(), usize::try_from(handle.length).unwrap());
    let table = tries(table.as_fd(), uct::export::wire::TABLE_LEN);
    // The same tries on a memfd without seals land: they are no idle threats.
    let free = memfd_create("free", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&free, 4096).unwrap();
    let free = tries(free.as_fd(), 4096);
    role::send(format!("{region:?} {table:?} {free:?}").as_bytes());
}

pub fn read_only_is_kept_by_the_kernel() {
    let all = r#"["pwrite", "map", "map re-opened", "truncate", "grow", "punch", "seal", "map for reading"]"#;
    let grab = |host: &mut Actor| {
        let mut grabber = Role::spawn("ways::grabber");
        String::from_utf8(grabber.request(&host.export())).unwrap()
    };
    let mut host = Actor::read_only_host(8192);
    let reading = r#"["map for reading"]"#;
    assert_eq!(grab(&mut host), format!("{reading} {reading} {all}"));
    assert_eq!(host.read(0, 8192).ok(), vec![FILL; 8192]);
    // A region with write rights: its size is kept by the kernel, its bytes are the importer's to write.
    let writing = r#"["pwrite", "map", "map re-opened", "punch", "map for reading"]"#;
    assert_eq!(grab(&mut Actor::host(8192)), format!("{writing} {reading} {all}"));
}

/// A handle names descriptors by number: what is none of the exporter's memory is not opened, and its bytes are not reached.
pub fn a_handle_that_names_other_descriptors() {
    let mut host = Actor::host(4096);
    let handle = host.export();
    let at = mkey_offset(&handle, 2);
    let mut dpu = by_shm("^socket");
    let mut both = Actor::dpu_with("UCX_SHM_ATTACH", "^socket");
    let number = |offset: usize| {
        u32::from_le_bytes([
            handle[at + offset],
            handle[at + offset + 1],
            handle[at + offset + 2],
            handle[at + offset + 3],
        ])
    };
    // Region, table, vault; 0 is /dev/null of the role, 1 a pipe, 1000 nothing.
    for offset in [88, 92, 96] {
        for fd in [0, 1, 1000, u32::MAX, number(88), number(92), number(96)] {
            if fd == number(offset) {
                continue;
            }
            let mut forged = handle.clone();
            forged[at + offset..at + offset + 4].copy_from_slice(&fd.to_le_bytes());
            let forged = repaired(forged);
            let text = dpu.import(&forged).err(Status::Stale);
            assert!(text.contains("the exporter has closed the memory"), "{offset} as {fd}: {text}");
            // By cma's key the right memory is reached all the same.
            let how = both.import(&forged).text();
            assert!(how.contains("cma: process_vm_readv and process_vm_writev"), "{how}");
            assert_eq!(both.read(0, 8).ok(), [FILL; 8]);
        }
    }
    // With the inode to the number: the wrong memory is still none of the kind.
    for (offset, inode, other, other_inode) in [(92, 72, 96, 80), (96, 80, 92, 72)] {
        let mut forged = handle.clone();
        forged.copy_within(at + other..at + other + 4, at + offset);
        forged.copy_within(at + other_inode..at + other_inode + 8, at + inode);
        let text = dpu.import(&repaired(forged)).err(Status::Unreachable);
        assert!(text.contains("the exporter passed unsafe memory"), "{text}");
    }
    dpu.import(&handle).ok();
}
