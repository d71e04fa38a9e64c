//! Exporters that go, change or unmap while their memory is in use.

use std::time::{Duration, Instant};

use testkit::{Child, Role, role};
use ucp::Status;

use super::{NOBODY, dpu_of_nobody, raw_host, raw_host_of_nobody};
use crate::roles::{Actor, FILL, context};

/// Imports the handle it is sent and reads (or, with `args[0] == "write"`, writes) all of it, again and again, until it is told that
/// the export is stale for another reason than unmapped pages. Then tells why, and how often it was all, and part.
pub fn hammer() {
    let import = context().mem_import(&role::recv()).unwrap();
    let writes = role::args()[0] == "write";
    let mut bytes = vec![FILL; usize::try_from(import.len()).unwrap()];
    role::send(b"inside");
    let (mut whole, mut parts) = (0_u32, 0_u32);
    let error = loop {
        let answer = if writes {
            import.write(0, &bytes)
        } else {
            bytes.fill(0xbb);
            import.read(0, &mut bytes)
        };
        let done = match &answer {
            Ok(()) => bytes.len(),
            Err(ucp::AccessError::Stale { done, .. } | ucp::AccessError::AccessDenied { done, .. }) => {
                usize::try_from(*done).unwrap()
            }
            Err(error) => panic!("{error}"),
        };
        if !writes {
            // What came is the exporter's, and no more came than it says; a page that was replaced is zero.
            let wrong = bytes[..done].iter().position(|byte| *byte != FILL && *byte != 0);
            assert_eq!(wrong, None, "a byte of somebody else's, of {done}");
        }
        match answer {
            Ok(()) => whole += 1,
            Err(ucp::AccessError::Stale { why: ucp::StaleReason::Unmapped, .. }) => parts += 1,
            Err(error) => break error,
        }
    };
    role::send(format!("{:?} {whole} {parts} {error}", error.status()).as_bytes());
}

/// A hammer that is inside the memory of `host`.
fn hammering(host: &mut Actor, how: &str) -> Child {
    let mut hammer = Role::new("cma::faults::hammer").arg(how).start();
    hammer.send(&host.export());
    assert_eq!(hammer.recv(), b"inside");
    std::thread::sleep(Duration::from_millis(30));
    hammer
}

const LEN: usize = 4 << 20;

pub fn exporter_is_killed_in_mid_transfer() {
    for how in ["read", "write"] {
        for _ in 0..5 {
            let mut host = raw_host(LEN);
            let mut hammer = hammering(&mut host, how);
            host.0.kill();
            let said = String::from_utf8(hammer.recv()).unwrap();
            assert!(
                said.starts_with("Stale ") && said.ends_with(": the exporting process is gone"),
                "{how}: {said}"
            );
        }
    }
}

pub fn exporter_exits_in_mid_transfer() {
    for how in ["read", "write"] {
        let mut host = raw_host(LEN);
        let mut hammer = hammering(&mut host, how);
        host.0.send(b"exit");
        let said = String::from_utf8(hammer.recv()).unwrap();
        // Its context goes first: which of the two is told is a matter of moments.
        assert!(said.starts_with("Stale "), "{how}: {said}");
    }
}

/// The pid stays, and the pidfd; the memory is another program's.
pub fn exporter_execs_in_mid_transfer() {
    for how in ["read", "write"] {
        for _ in 0..5 {
            let mut host = raw_host(LEN);
            let mut hammer = hammering(&mut host, how);
            host.0.send(b"exec");
            let said = String::from_utf8(hammer.recv()).unwrap();
            assert!(
                said.starts_with("Stale ") && said.ends_with(": the exporting process is gone"),
                "{how}: {said}"
            );
        }
    }
}

pub fn exporter_execs_after_import() {
    let (mut host, mut dpu) = (raw_host(4096), Actor::dpu());
    let handle = host.export();
    dpu.import(&handle).ok();
    host.0.send(b"exec");
    let text = dpu.read_until(Status::Stale);
    assert_eq!(text, "stale after 0 bytes: the exporting process is gone");
    dpu.write(0, b"into another program").err(Status::Stale);
    Actor::dpu().import(&handle).err(Status::Stale);
}

pub fn exporter_unmaps_in_mid_transfer() {
    for how in ["read", "write"] {
        let mut host = raw_host(LEN);
        let mut hammer = hammering(&mut host, how);
        host.ask("churn").ok();
        std::thread::sleep(Duration::from_millis(300));
        host.ask("revoke 0").ok();
        let said = String::from_utf8(hammer.recv()).unwrap();
        let words: Vec<&str> = said.split(' ').collect();
        let count = |index: usize| words[index].parse::<u32>().unwrap();
        assert!(said.ends_with(": the export was revoked or dropped"), "{how}: {said}");
        assert!(count(2) > 0, "{how}: no transfer ever met unmapped pages: {said}");
    }
}

/// A process that is not dumpable any more, or another user's, is out of reach at once; and what went before is told.
pub fn exporter_becomes_another() {
    let mut host = raw_host_of_nobody(8192);
    let mut dpu = dpu_of_nobody();
    dpu.import(&host.export()).ok();
    assert_eq!(dpu.read(0, 4).ok(), [FILL; 4]);
    host.ask("not-dumpable").ok();
    for text in [dpu.read(0, 4).err(Status::AccessDenied), dpu.write(0, b"x").err(Status::AccessDenied)] {
        assert!(text.starts_with("access denied after 0 bytes: the kernel allows it no longer"), "{text}");
        assert!(text.contains("changed its user or is not dumpable any more"), "{text}");
    }
    // A new import says the same before anything is accessed.
    let text = dpu_of_nobody().import(&host.export()).err(Status::Unreachable);
    assert!(text.contains("the exporter is not dumpable"), "{text}");
    assert!(text.contains("prctl(PR_SET_DUMPABLE, 1)"), "{text}");
    assert_eq!(host.ask("read 4 0").ok(), [FILL; 4]);

    // Root's memory, in the hands of root; then the exporter gives its rights up, and keeps its connections.
    let mut host = raw_host(8192);
    let mut dpu = Actor(Role::new("cma::faults::dpu_without_capabilities").start());
    dpu.import(&host.export()).ok();
    dpu.read(0, 4).ok();
    host.ask(&format!("become {NOBODY}")).ok();
    dpu.read(0, 4).err(Status::AccessDenied);
    let text = dpu.import(&host.export()).err(Status::Unreachable);
    assert!(
        text.contains("the exporter runs as user 65534 and group 65534, this process as 0 and 0"),
        "{text}"
    );
}

/// A DPU of root's without its capabilities, which would reach everybody.
pub fn dpu_without_capabilities() {
    use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
    let mut sets: CapabilitySets = capabilities(None).unwrap();
    sets.effective = CapabilitySet::empty();
    // Permitted ones stay: whoever has less than the exporter is refused for that (ptrace(2)).
    set_capabilities(None, sets).unwrap();
    crate::roles::dpu();
}

pub fn stopped_exporter_is_still_read() {
    let (mut host, mut dpu) = (raw_host(1 << 20), Actor::dpu());
    dpu.import(&host.export()).ok();
    host.0.stop();
    assert_eq!(dpu.read(0, 1 << 20).ok(), vec![FILL; 1 << 20]);
    dpu.write(500_000, b"while you were stopped").ok();
    host.0.cont();
    assert_eq!(host.ask("read 22 500000").ok(), b"while you were stopped");
}

/// Without its service socket there is no cma: a stopped exporter makes an import time out, and says why.
pub fn stopped_exporter_times_out() {
    let mut host = raw_host(4096);
    let mut dpu = Actor::dpu_with("UCX_IMPORT_TIMEOUT", "300ms");
    let handle = host.export();
    host.0.stop();
    let begin = Instant::now();
    let text = dpu.import(&handle).err(Status::Unreachable);
    assert!(text.contains("cma: no: no answer on the service socket within 3"), "{text}");
    assert!(text.contains("see whether the exporter is stopped"), "{text}");
    let waited = begin.elapsed();
    assert!(waited > Duration::from_millis(290) && waited < Duration::from_secs(2), "{waited:?}");
    host.0.cont();
    dpu.import(&handle).ok();
}
