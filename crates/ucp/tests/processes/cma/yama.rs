//! Yama, as this kernel has it set: where `kernel.yama.ptrace_scope` is 1, a process reaches into its descendants only, whoever their user is.
//!
//! The scope is the machine's, so no test changes it: `cargo xtask rxe` has a guest whose scope is 1.

use std::time::{Duration, Instant};

use testkit::{Role, role, skip};
use ucp::Status;

use super::{NOBODY, dpu_of_nobody, raw_host_of_nobody};
use crate::roles::{Actor, FILL, context};

/// Skips the test where Yama does not do what it is about.
fn needs_scope_1() {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok();
    let reason = match scope.as_deref().map(str::trim) {
        Some("1") => return,
        Some(scope) => format!("kernel.yama.ptrace_scope is {scope}, not 1"),
        None => "this kernel has no Yama".to_owned(),
    };
    skip(reason, "cargo xtask rxe --filter yama")
}

pub fn a_sibling_is_denied_and_told_the_remedy() {
    needs_scope_1();
    let mut host = raw_host_of_nobody(4096);
    let begin = Instant::now();
    let text = dpu_of_nobody().import(&host.export()).err(Status::Unreachable);
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    assert!(
        text.contains(
            "cma: no: process_vm_readv: Operation not permitted (os error 1): Yama forbids it: kernel.yama.ptrace_scope is 1"
        ),
        "{text}"
    );
    assert!(text.contains("set UCX_CMA_PTRACER_ANY=y for the exporter"), "{text}");
}

pub fn an_exporter_lets_everyone_in() {
    needs_scope_1();
    let host = Role::new("cma::host").arg("4096").as_uid(NOBODY).env("UCX_CMA_PTRACER_ANY", "y");
    reaches(&mut Actor(host.start()), &mut dpu_of_nobody());
}

pub fn the_capability_lets_in() {
    needs_scope_1();
    reaches(&mut raw_host_of_nobody(4096), &mut Actor::dpu());
}

/// Importing works, both ways.
#[track_caller]
fn reaches(host: &mut Actor, dpu: &mut Actor) {
    dpu.import(&host.export()).ok();
    assert_eq!(dpu.read(0, 8).ok(), [FILL; 8]);
    dpu.write(100, b"let in").ok();
    assert_eq!(host.ask("read 6 100").ok(), b"let in");
}

pub fn allocated_memory_needs_no_such_right() {
    needs_scope_1();
    let host = || Actor(Role::new("roles::host").arg("4096").as_uid(NOBODY).start());
    let how = dpu_of_nobody().import(&host().export()).text();
    assert!(how.contains("shm: descriptor passed over the exporter's service socket"), "{how}");
    // Of the ways without the socket, one asks for the right to read, which Yama leaves alone, the other for that to attach.
    let dpu = |way: &str| {
        let dpu = Role::new("roles::dpu").env("UCX_TLS", "mm").env("UCX_SHM_ATTACH", way);
        Actor(dpu.as_uid(NOBODY).start())
    };
    dpu("proc").import(&host().export()).ok();
    let text = dpu("pidfd").import(&host().export()).err(Status::Unreachable);
    assert!(text.contains("pidfd: pidfd_getfd: Operation not permitted (os error 1)"), "{text}");
}

/// Imports from a host that it has started itself.
pub fn ancestor() {
    let mut host = super::raw_host(4096);
    let ctx = context();
    let import = ctx.mem_import(&host.export()).map_err(|error| format!("{error} [{}]", error.remedy()));
    let mut seen = [0; 4];
    import.unwrap().read(0, &mut seen).unwrap();
    role::send(&seen);
}

pub fn an_ancestor_needs_nothing() {
    needs_scope_1();
    let mut ancestor = Role::new("cma::yama::ancestor").as_uid(NOBODY).start();
    assert_eq!(ancestor.recv(), [FILL; 4]);
    ancestor.expect_exit(0);
}
