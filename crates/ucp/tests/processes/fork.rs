//! Forks, on either side: the child has nothing, and harms nothing.

use testkit::{Role, role};
use ucp::{MemMap, Status};

use super::roles::{Actor, FILL, REMOTE, WAYS, context, role_by, status_of_gone};

/// Forks; the child sends what `child` says, and ends without running destructors or with.
fn in_child(child: impl FnOnce() -> String) -> rustix::process::Pid {
    // SAFETY: this role has one other thread at most, the service's, which holds no lock the child takes: the child makes its
    // checks, allocates, and exits.
    match unsafe { libc::fork() } {
        0 => {
            let text = child();
            role::send(text.as_bytes());
            // SAFETY: ends this process.
            unsafe { libc::_exit(0) }
        }
        pid => {
            // What the child's side has taken is the parent's, too, and stays.
            std::mem::forget(child);
            rustix::process::Pid::from_raw(pid).unwrap()
        }
    }
}

pub fn forking_host() {
    let ctx = context();
    let region = ctx.mem_map(MemMap::allocate(4096).exported()).unwrap();
    region.write(0, &[FILL; 4096]).unwrap();
    let handle = region.memh_pack().unwrap();
    let buf = ctx.buf(100).unwrap();
    role::send(handle.as_bytes());
    let _ = role::recv();
    let stays = role::args()[0] == "child stays";
    in_child(|| {
        let told = [
            ctx.mem_map(MemMap::allocate(10)).unwrap_err().status(),
            ctx.buf(10).unwrap_err().status(),
            region.memh_pack().unwrap_err().status(),
            region.read(0, &mut [0]).unwrap_err().status(),
            region.write(0, b"x").unwrap_err().status(),
            ctx.mem_import(handle.as_bytes()).unwrap_err().status(),
        ];
        let panicked = testkit::expect_panic(|| buf[0]);
        // Dropping the parent's things in the child ends no export, and unmaps nothing that is now somebody else's.
        let revoked = handle.revoke();
        drop((region, handle, buf, ctx));
        // A context of its own works.
        let own = context();
        let mine = own.mem_map(MemMap::allocate(4096).exported()).unwrap();
        let import = own.mem_import(mine.memh_pack().unwrap().as_bytes()).unwrap();
        import.write(0, b"child").unwrap();
        if stays {
            role::send(b"the child stays");
            let _ = role::recv();
        }
        format!("{told:?} {revoked:?} {}", panicked.contains("fork's child must make its own"))
    });
    std::thread::sleep(std::time::Duration::from_secs(60));
}

pub fn child_of_exporter() {
    for (tls, _) in WAYS {
        let mut host = Role::new("fork::forking_host").arg("child goes").start();
        let handle = host.recv();
        let mut dpu = Actor::dpu_by(tls);
        dpu.import(&handle).ok();
        host.send(b"fork");
        let told = String::from_utf8(host.recv()).unwrap();
        assert_eq!(told, "[Forked, Forked, Forked, Forked, Forked, Forked] Err(Forked) true");
        assert_eq!(dpu.read(0, 8).ok(), [FILL; 8]);
        Actor::dpu_by(tls).import(&handle).ok();
    }
}

/// A child holds copies of its parent's sockets, open: the parent's death is told by its pidfd. Not to another machine, which is told by nothing but
/// the sockets.
pub fn exporter_dies_and_its_child_lives() {
    for (tls, _) in WAYS.into_iter().filter(|(way, _)| *way != REMOTE) {
        let mut host = Role::new("fork::forking_host").arg("child stays").start();
        let handle = host.recv();
        let mut dpu = Actor::dpu_by(tls);
        dpu.import(&handle).ok();
        host.send(b"fork");
        assert_eq!(host.recv(), b"the child stays");
        host.signal(testkit::Signal::KILL);
        dpu.read_until(Status::Stale);
        Actor::dpu_by(tls).import(&handle).err(Status::Stale);
    }
}

pub fn forking_dpu() {
    let ctx = context();
    let import = ctx.mem_import(&role::recv()).unwrap();
    let parents = import.clone();
    in_child(move || {
        let told = [
            import.read(0, &mut [0]).unwrap_err().status(),
            import.write(0, b"x").unwrap_err().status(),
            ctx.mem_import(&[]).unwrap_err().status(),
        ];
        assert_eq!(import.check(), Err(ucp::StaleReason::Forked));
        let view = import.view().is_some();
        drop((import, ctx));
        format!("{told:?} {view}")
    });
    let _ = role::recv();
    let mut bytes = [0; 8];
    parents.read(0, &mut bytes).unwrap();
    role::send(&bytes);
}

pub fn child_of_importer() {
    for (tls, _) in WAYS {
        let mut host = Actor::host(4096);
        let mut dpu = role_by("fork::forking_dpu", tls).start();
        dpu.send(&host.export());
        assert_eq!(String::from_utf8(dpu.recv()).unwrap(), "[Forked, Forked, Forked] false");
        // The child's end has not detached the parent.
        dpu.send(b"read");
        assert_eq!(dpu.recv(), [FILL; 8]);
        host.ask("revoke 0").ok();
    }
}

/// Forks a child that stays, then gives its context up.
pub fn host_with_a_child() {
    let ctx = context();
    let region = ctx.mem_map(MemMap::allocate(4096).exported()).unwrap();
    let handle = region.memh_pack().unwrap();
    role::send(handle.as_bytes());
    let _ = role::recv();
    in_child(|| {
        role::send(b"forked");
        std::thread::sleep(std::time::Duration::from_secs(60));
        String::new()
    });
    let _ = role::recv();
    drop((region, handle, ctx));
    role::send(b"dropped");
    let _ = role::recv();
}

/// The child holds the listening socket, open: whoever comes for the context that is gone learns so at once all the same.
pub fn child_of_a_context_that_is_gone() {
    for (tls, _) in WAYS {
        let mut host = Role::spawn("fork::host_with_a_child");
        let handle = host.recv();
        let mut before = Actor::dpu_by_with(tls, &[("UCX_SHM_ATTACH", "socket")]);
        before.import(&handle).ok();
        host.send(b"fork");
        assert_eq!(host.recv(), b"forked");
        host.send(b"drop");
        assert_eq!(host.recv(), b"dropped");
        let begin = std::time::Instant::now();
        let mut late = Actor::dpu_by_with(tls, &[("UCX_SHM_ATTACH", "socket")]);
        late.import(&handle).err(status_of_gone(tls));
        assert!(begin.elapsed() < std::time::Duration::from_secs(2), "{:?}", begin.elapsed());
        before.read(0, 1).err(Status::Stale);
    }
}
