//! Processes killed, stopped and replaced at bad moments.

use std::time::{Duration, Instant};

use testkit::role;
use ucp::Status;

use super::roles::{
    Actor, Answer, BY_DEVICE, FILL, REMOTE, WAYS, assert_each_says, context, role_by, status_of_gone,
    words_of_gone,
};

pub fn exporter_killed_before_import() {
    for (tls, components) in WAYS {
        let (mut host, mut dpu) = (Actor::host(4096), Actor::dpu_by(tls));
        let handle = host.export();
        host.0.kill();
        let text = dpu.import(&handle).err(status_of_gone(tls));
        assert_each_says(components, &text, if tls == REMOTE { "" } else { "stale: " });
    }
}

/// The exporter is stopped, so that the import waits for it; then it is killed.
pub fn exporter_killed_during_import() {
    for (tls, _) in WAYS {
        let mut host = Actor::host(4096);
        let mut dpu = Actor::dpu_by_with(tls, &[("UCX_SHM_ATTACH", "socket")]);
        let handle = host.export();
        host.0.stop();
        dpu.0.send(b"import");
        dpu.0.send(&handle);
        assert!(dpu.0.try_recv(Duration::from_millis(100)).is_err(), "the import waits for the exporter");
        let begin = Instant::now();
        host.0.kill();
        let answer = Answer::parse(&dpu.0.recv());
        answer.err(status_of_gone(tls));
        assert!(begin.elapsed() < Duration::from_secs(2), "it does not wait for the timeout");
        dpu.import(&handle).err(status_of_gone(tls));
    }
}

pub fn exporter_killed_after_import() {
    for (tls, components) in WAYS {
        let (mut host, mut dpu) = (Actor::host(4096), Actor::dpu_by(tls));
        let handle = host.export();
        dpu.import(&handle).ok();
        host.0.kill();
        let text = dpu.read_until(Status::Stale);
        assert_eq!(text, format!("stale after 0 bytes: {}", words_of_gone(tls)));
        dpu.write(0, b"nobody is there").err(Status::Stale);
        // A view held stays a view of the memory: what is not revocable says so.
        if components.contains(&2) {
            assert_eq!(dpu.ask("view-read 8 0").ok(), [FILL; 8]);
        }
        dpu.import(&handle).err(status_of_gone(tls));
    }
}

/// An import of a dead exporter's memory that is kept costs nothing: the service thread does not spin on its end.
pub fn a_dead_exporter_costs_no_time() {
    let mut host = Actor::host(4096);
    let mut dpus = Vec::from(WAYS.map(|(tls, _)| Actor::dpu_by(tls)));
    if !BY_DEVICE {
        dpus.push(Actor::dpu_with("UCX_SHM_ATTACH", "proc"));
    }
    for dpu in &mut dpus {
        dpu.import(&host.export()).ok();
    }
    host.0.kill();
    for dpu in &mut dpus {
        dpu.read_until(Status::Stale);
        let before: u64 = dpu.ask("cpu").text().parse().unwrap();
        std::thread::sleep(Duration::from_millis(300));
        let millis = dpu.ask("cpu").text().parse::<u64>().unwrap() - before;
        assert!(millis < 100, "{millis} ms of processor time in 300 ms of doing nothing");
    }
}

pub fn exporter_exits_after_import() {
    for (tls, _) in WAYS {
        let (mut host, mut dpu) = (Actor::host(4096), Actor::dpu_by(tls));
        dpu.import(&host.export()).ok();
        host.0.send(b"exit");
        host.0.expect_exit(0);
        dpu.read_until(Status::Stale);
    }
}

/// exec keeps the pid and the pidfd's inode: the end of the connection tells.
pub fn exporter_execs_after_import() {
    for (tls, _) in WAYS {
        let (mut host, mut dpu) = (Actor::host(4096), Actor::dpu_by(tls));
        let handle = host.export();
        dpu.import(&handle).ok();
        host.0.send(b"exec");
        let text = dpu.read_until(Status::Stale);
        assert_eq!(text, format!("stale after 0 bytes: {}", words_of_gone(tls)));
        Actor::dpu_by(tls).import(&handle).err(status_of_gone(tls));
        Actor::dpu_by_with(tls, &[("UCX_SHM_ATTACH", "proc")]).import(&handle).err(status_of_gone(tls));
    }
}

pub fn stopped_exporter_is_still_read() {
    for (tls, _) in WAYS {
        let (mut host, mut dpu) = (Actor::host(1 << 20), Actor::dpu_by(tls));
        dpu.import(&host.export()).ok();
        host.0.stop();
        assert_eq!(dpu.read(0, 1 << 20).ok(), vec![FILL; 1 << 20]);
        dpu.write(500_000, b"while you were stopped").ok();
        host.0.cont();
        assert_eq!(host.read(500_000, 22).ok(), b"while you were stopped");
    }
}

/// With ptrace rights, descriptors come from /proc even from an exporter that does not answer.
pub fn stopped_exporter_is_still_imported_from() {
    let mut host = Actor::host(4096);
    let mut dpu = Actor::dpu_with("UCX_IMPORT_TIMEOUT", "300ms");
    let handle = host.export();
    host.0.stop();
    let how = dpu.import(&handle).text();
    assert!(how.contains("shm: descriptor taken from /proc/PID/fd"), "{how}");
    dpu.write(0, b"in").ok();
    host.0.cont();
    assert_eq!(host.read(0, 2).ok(), b"in");
}

/// The same when the exporter is known already, by a connection that does not answer any more.
pub fn stopped_exporter_is_imported_from_again() {
    let mut host = Actor::host(4096);
    let mut dpu = Actor::dpu_with("UCX_IMPORT_TIMEOUT", "300ms");
    let (first, second) = (host.export(), host.export());
    dpu.import(&first).ok();
    host.0.stop();
    let how = dpu.import(&second).text();
    assert!(how.contains("shm: descriptor taken from /proc/PID/fd"), "{how}");
    assert_eq!(dpu.read(0, 8).ok(), [FILL; 8]);
    host.0.cont();
    host.ask("revoke 1").ok();
    dpu.read(0, 8).err(Status::Stale);
}

pub fn stopped_exporter_times_out() {
    for (tls, components) in WAYS {
        let mut host = Actor::host(4096);
        let timeout = ("UCX_IMPORT_TIMEOUT", "300ms");
        let mut dpu = Actor::dpu_by_with(tls, &[("UCX_SHM_ATTACH", "socket"), timeout]);
        let handle = host.export();
        host.0.stop();
        let begin = Instant::now();
        let text = dpu.import(&handle).err(Status::Unreachable);
        let way = match components[0] {
            2 => "shm: no: socket",
            3 => "cma: no",
            _ => "verbs: no",
        };
        if tls == REMOTE {
            assert_each_says(components, &text, "");
        } else {
            assert!(text.contains(&format!("{way}: no answer on the service socket within 3")), "{text}");
            assert!(text.contains("see whether the exporter is stopped"), "{text}");
        }
        // Where there are two, they share the time.
        let waited = begin.elapsed();
        assert!(waited > Duration::from_millis(290) && waited < Duration::from_millis(550), "{waited:?}");
        host.0.cont();
        dpu.import(&handle).ok();
    }
}

pub fn importer_killed() {
    for (tls, _) in WAYS {
        is_given_back(tls);
    }
}

fn is_given_back(tls: &str) {
    let (mut host, mut dpu) = (Actor::host(4096), Actor::dpu_by(tls));
    let fds = host.ask("fds").text();
    dpu.import(&host.export()).ok();
    dpu.0.kill();
    host.ask("revoke 0").ok();
    // What it had is given back, but for what the first export has made.
    let begin = Instant::now();
    let mut other = Actor::dpu_by(tls);
    other.import(&host.export()).ok();
    drop(other);
    let mut counts = Vec::new();
    while begin.elapsed() < Duration::from_secs(2) {
        counts.push(host.ask("fds").text().parse::<usize>().unwrap());
        std::thread::sleep(Duration::from_millis(20));
        // table, vault, epoll, eventfd, listener; one more for other machines
        if *counts.last().unwrap() <= fds.parse::<usize>().unwrap() + 5 + usize::from(BY_DEVICE) {
            return;
        }
    }
    panic!("{fds} descriptors before, then {counts:?}");
}

/// The test that matters most: an import that outlives its export never reaches a newer region, at the same address or not.
pub fn newer_region_is_never_reached() {
    for (tls, _) in WAYS {
        let (mut host, mut dpu) = (Actor::host(1 << 20), Actor::dpu_by(tls));
        let handle = host.export();
        let address = host.ask("address").text();
        dpu.import(&handle).ok();
        let mut same_address = 0;
        for _ in 0..50 {
            host.ask("drop-region").ok();
            same_address += u32::from(host.ask("another").text() == address);
            dpu.read(0, 16).err(Status::Stale);
            dpu.write(0, b"never").err(Status::Stale);
            dpu.import(&handle).err(Status::Stale);
            assert_eq!(host.read(0, 16).ok(), b"the newer region");
        }
        assert!(same_address > 0, "no address was used again: this shows nothing");
    }
}

/// Reads a long region again and again in a thread, and replaces itself by another program meanwhile.
pub fn execing_importer() {
    use std::os::unix::process::CommandExt;
    let import = context().mem_import(&role::recv()).unwrap();
    std::thread::spawn(move || {
        let mut bytes = vec![0; 32 << 20];
        while import.read(0, &mut bytes).is_ok() {}
    });
    std::thread::sleep(Duration::from_millis(20));
    role::send(b"inside");
    let error = std::process::Command::new("/bin/sleep").arg("60").exec();
    panic!("exec: {error}");
}

/// An importer that execs inside an access has no mapping any more: it is not waited for, though its process lives.
pub fn importer_execs_inside_an_access() {
    let ctx = context();
    for round in 0..12 {
        let region = ctx.mem_map(ucp::MemMap::allocate(32 << 20).exported()).unwrap();
        let handle = region.memh_pack().unwrap();
        let mut importer = role_by("faults::execing_importer", WAYS[round % WAYS.len()].0).start();
        importer.send(handle.as_bytes());
        assert_eq!(importer.recv(), b"inside");
        let comm = format!("/proc/{}/comm", importer.pid());
        let begin = Instant::now();
        while std::fs::read_to_string(&comm).unwrap().trim() != "sleep" {
            assert!(begin.elapsed() < Duration::from_secs(5));
            std::thread::sleep(Duration::from_millis(1));
        }
        // The end of its connection is noticed by a thread.
        std::thread::sleep(Duration::from_millis(20));
        handle.revoke().unwrap();
    }
}
