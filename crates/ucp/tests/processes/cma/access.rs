//! Who may reach another process's memory, and who is told why not. As root nothing would be denied: these roles become another user
//! first, or are under a filter.

use std::time::{Duration, Instant};

use testkit::{Deny, Role, deny, role};
use ucp::Status;

use super::{dpu_of_nobody, raw_host, raw_host_of_nobody};
use crate::roles::{Actor, FILL};

/// The right token is not enough: the kernel asks for ptrace rights, and the reason is told.
pub fn another_user() {
    let mut host = raw_host(4096);
    let handle = host.export();
    let text = dpu_of_nobody().import(&handle).err(Status::Unreachable);
    assert!(
        text.contains(
            "cma: no: process_vm_readv: Operation not permitted (os error 1): the exporter runs as user 0 and group 0, this \
             process as 65534 and 65534"
        ),
        "{text}"
    );
    assert!(text.contains("run both sides as one user"), "{text}");
    // Allocated memory is passed as a descriptor, to whoever has the token.
    let mut host = Actor::host(4096);
    let mut dpu = dpu_of_nobody();
    let how = dpu.import(&host.export()).text();
    assert!(how.contains("shm: descriptor passed"), "{how}");
    dpu.write(0, b"fine").ok();
    // As one user, it works.
    let mut host = raw_host_of_nobody(4096);
    let mut dpu = dpu_of_nobody();
    dpu.import(&host.export()).ok();
    dpu.write(0, b"nobody").ok();
    assert_eq!(host.ask("read 6 0").ok(), b"nobody");
}

/// A DPU under a filter that refuses what containers refuse.
pub fn filtered_dpu() {
    let calls = [
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_pidfd_getfd,
        libc::SYS_userfaultfd,
    ];
    deny(&calls.map(Deny::eperm));
    crate::roles::dpu();
}

pub fn filter_against_importers() {
    let mut dpu = Actor(Role::new("cma::access::filtered_dpu").start());
    // Raw memory: a clear reason, at once.
    let mut host = raw_host(4096);
    let begin = Instant::now();
    let text = dpu.import(&host.export()).err(Status::Unreachable);
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
    assert!(
        text.contains(
            "cma: no: process_vm_readv: Operation not permitted (os error 1): the system call is refused here"
        ),
        "{text}"
    );
    assert!(text.contains("by a seccomp filter, or the kernel"), "{text}");
    assert!(text.contains("or export memory of MemMap::allocate"), "{text}");
    // And that remedy works.
    let mut host = Actor::host(4096);
    let how = dpu.import(&host.export()).text();
    assert!(how.contains("shm: descriptor passed over the exporter's service socket"), "{how}");
    assert_eq!(dpu.read(0, 4).ok(), [FILL; 4]);
    let mut dpu = Role::new("cma::access::filtered_dpu").env("UCX_SHM_ATTACH", "pidfd").env("UCX_TLS", "mm");
    dpu = dpu.deadline(Duration::from_secs(10));
    let text = Actor(dpu.start()).import(&host.export()).err(Status::Unreachable);
    assert!(text.contains("pidfd: pidfd_getfd: Operation not permitted (os error 1)"), "{text}");
}

/// A DPU under a filter that refuses writing only.
pub fn dpu_that_may_not_write() {
    deny(&[Deny::eperm(libc::SYS_process_vm_writev)]);
    crate::roles::dpu();
}

pub fn filter_against_writing() {
    let mut dpu = Actor(Role::new("cma::access::dpu_that_may_not_write").start());
    let text = dpu.import(&raw_host(4096).export()).err(Status::Unreachable);
    assert!(text.contains("the system call is refused here, for every process"), "{text}");
    assert!(text.contains("allow process_vm_readv and process_vm_writev"), "{text}");
    // What is exported for reading only is reached.
    let ctx = crate::roles::context();
    let region = ctx.mem_map(ucp::MemMap::buffer(vec![FILL; 4096]).read_only().exported()).unwrap();
    dpu.import(region.memh_pack().unwrap().as_bytes()).ok();
    assert_eq!(dpu.read(0, 4).ok(), [FILL; 4]);
}

/// A host under the same filter: it exports, for it is the importer that makes the calls.
pub fn filtered_host() {
    let calls = [libc::SYS_process_vm_readv, libc::SYS_process_vm_writev, libc::SYS_pidfd_getfd];
    deny(&calls.map(Deny::eperm));
    let ctx = crate::roles::context();
    let region = ctx.mem_map(ucp::MemMap::buffer(vec![FILL; 4096]).exported()).unwrap();
    let handle = region.memh_pack().unwrap();
    role::send(handle.as_bytes());
    let _ = role::try_recv();
    let mut seen = [0; 6];
    region.read(0, &mut seen).unwrap();
    role::send(&seen);
    // Raw memory of its own it cannot touch, and is told so.
    let pages = super::Pages::map(4096);
    let raw = ctx.mem_map(ucp::MemMap::raw(pages.raw())).unwrap();
    role::send(raw.read(0, &mut seen).unwrap_err().to_string().as_bytes());
}

pub fn filter_against_exporters() {
    let mut host = Role::spawn("cma::access::filtered_host");
    let mut dpu = Actor::dpu();
    dpu.import(&host.recv()).ok();
    dpu.write(0, b"inside").ok();
    host.send(b"look");
    assert_eq!(host.recv(), b"inside");
    let text = String::from_utf8(host.recv()).unwrap();
    assert!(
        text.contains("a seccomp filter refuses process_vm_readv/writev, which raw memory needs"),
        "{text}"
    );
    host.expect_exit(0);
}

/// Exports under a filter that kills whoever lets other processes trace it.
pub fn host_that_must_not_be_traced() {
    let ptracer = u32::try_from(libc::PR_SET_PTRACER).unwrap();
    deny(&[Deny { call: libc::SYS_prctl, argument: Some((0, ptracer)), errno: None }]);
    let region = crate::roles::context().mem_map(ucp::MemMap::buffer(vec![0; 4096]).exported()).unwrap();
    role::send(region.memh_pack().unwrap().as_bytes());
}

/// Yama's rule is loosened on request only: PR_SET_PTRACER lets every process of the user read all of this one.
pub fn tracers_are_let_in_on_request_only() {
    let mut careful = Role::spawn("cma::access::host_that_must_not_be_traced");
    let _ = careful.recv();
    careful.expect_exit(0);
    let open = Role::new("cma::access::host_that_must_not_be_traced").env("UCX_CMA_PTRACER_ANY", "y");
    open.start().expect_signal(rustix::process::Signal::SYS);
}

/// What travels is no secret's worth to another user, and the handle is: a process with ptrace rights and a wrong token gets nothing.
pub fn the_token_is_asked_for_nevertheless() {
    let mut host = raw_host(4096);
    let handle = host.export();
    let at = crate::roles::mkey_offset(&handle, 3) + 48;
    for bit in [0, 64, 127] {
        let mut wrong = handle.clone();
        wrong[at + bit / 8] ^= 1 << (bit % 8);
        let text = Actor::dpu().import(&crate::roles::repaired(wrong)).err(Status::AccessDenied);
        assert!(text.contains("cma: no: the exporter refuses: the token is wrong"), "{text}");
    }
    // Another pid in the handle leads nowhere else: the process behind the socket is what counts.
    let mut forged = handle.clone();
    let pid = at - 48;
    forged[pid..pid + 4].copy_from_slice(&1_u32.to_le_bytes());
    let mut dpu = Actor::dpu();
    dpu.import(&crate::roles::repaired(forged)).ok();
    assert_eq!(dpu.read(0, 4).ok(), [FILL; 4]);
}
