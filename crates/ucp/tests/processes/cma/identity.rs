//! Whose address space it is, where pid, pidfd and connection cannot tell.

use std::time::{Duration, Instant};

use testkit::{Role, role};
use ucp::{MemMap, Status};

use super::Pages;
use crate::roles::{Actor, FILL, context};

/// Exports, has a child that holds all its descriptors, and then replaces itself by another program.
pub fn host_that_execs_beside_a_child() {
    use std::os::unix::process::CommandExt;
    let ctx = context();
    let pages = Pages::map(8192);
    let region = ctx.mem_map(MemMap::raw(pages.raw()).exported()).unwrap();
    region.write(0, &[FILL; 8192]).unwrap();
    let handle = region.memh_pack().unwrap();
    role::send(handle.as_bytes());
    let _ = role::recv();
    // SAFETY: the child calls nothing but sleep and _exit.
    if unsafe { libc::fork() } == 0 {
        // SAFETY: takes a number.
        unsafe { libc::sleep(20) };
        // SAFETY: ends the child without anything of its parent's.
        unsafe { libc::_exit(0) };
    }
    let error = std::process::Command::new("/bin/sleep").arg("20").exec();
    panic!("exec: {error}");
}

/// The pid is the same, the process lives, and the connection is open: nobody is told of the exec. What an access meets is told by the
/// page that both sides have mapped, and another program has not.
pub fn exec_that_nobody_tells_of() {
    let mut host = Role::new("cma::identity::host_that_execs_beside_a_child").start();
    let handle = host.recv();
    let mut dpu = Actor::dpu();
    dpu.import(&handle).ok();
    assert_eq!(dpu.read(0, 4).ok(), [FILL; 4]);
    host.send(b"exec");
    let comm = format!("/proc/{}/comm", host.pid());
    let begin = Instant::now();
    while std::fs::read_to_string(&comm).unwrap().trim() != "sleep" {
        assert!(begin.elapsed() < Duration::from_secs(5));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(dpu.ask("check").text(), "Ok(())", "nobody has told of it");
    for _ in 0..3 {
        let text = dpu.read(0, 4).err(Status::Stale);
        assert_eq!(text, "stale after 0 bytes: the exporting process is gone");
        dpu.write(0, b"into another program").err(Status::Stale);
    }
}

/// Goes on in a second thread, after the first has ended.
pub fn host_without_a_main_thread() {
    let serve = std::thread::spawn(super::host);
    std::mem::forget(serve);
    // SAFETY: ends this thread only; nothing of it is used by others.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
}

/// The kernel reaches a process's memory by its first thread. An exporter without one is out of reach, and is not called dead.
pub fn main_thread_that_has_ended() {
    let mut host = Actor(Role::new("cma::identity::host_without_a_main_thread").arg("8192").start());
    // Its own raw memory it reaches by whatever thread it has.
    assert_eq!(host.ask("read 4 0").ok(), [FILL; 4]);
    let text = Actor::dpu().import(&host.export()).err(Status::Unreachable);
    assert!(text.contains("cma: no: process_vm_readv: the exporter's main thread has ended"), "{text}");
    assert!(text.contains("keep the exporter's main thread"), "{text}");
}
