//! A pid is not a process: another exporter has it now, with exports of the same ids.

use std::time::{Duration, Instant};

use testkit::{Role, role};
use ucp::Status;

use super::raw_host;
use crate::roles::Actor;

/// Starts hosts until one has the pid wanted: in a pid namespace of its own, where the next pid can be chosen.
fn host_with_pid(wanted: i32) -> Option<Actor> {
    for _ in 0..50 {
        // `ns_last_pid` of proc_sys_kernel(5): the next process gets the next number.
        std::fs::write("/proc/sys/kernel/ns_last_pid", (wanted - 1).to_string()).unwrap();
        let host = raw_host(8192);
        if host.0.pid() == wanted {
            return Some(host);
        }
    }
    None
}

/// As pid 1 of a pid namespace: an exporter ends, and another has its pid, its address and its ids.
pub fn world() {
    let mut dpu = Actor::dpu();
    let mut first = host_with_pid(4_000).expect("a host of this pid");
    let old = first.export();
    dpu.import(&old).ok();
    dpu.read(0, 8).ok();
    first.0.kill();
    let mut second = host_with_pid(4_000).expect("another host of this pid");
    let new = second.export();
    // Address, id, epoch and slot are the same, as far as two processes can have the same.
    let same = [32..48, 48..56, 56..64].map(|range| old[range.clone()] == new[range]);
    assert!(same[1] && same[2], "registration id and epoch");
    let old_import = dpu.read_until(Status::Stale);
    assert_eq!(old_import, "stale after 0 bytes: the exporting process is gone");
    dpu.write(0, b"into another process").err(Status::Stale);
    dpu.import(&old).err(Status::Stale);
    Actor::dpu().import(&old).err(Status::Stale);
    // The old handle under the new one's context: its token is none of that one's.
    let mut mixed = new.clone();
    let at = crate::roles::mkey_offset(&new, 3) + 48;
    mixed[at..at + 16].copy_from_slice(&old[at..at + 16]);
    dpu.import(&crate::roles::repaired(mixed)).err(Status::AccessDenied);
    // And the new one's uuid in the old handle, whose pidfd is another's.
    let mut mixed = old.clone();
    mixed[32..48].copy_from_slice(&new[32..48]);
    dpu.import(&crate::roles::repaired(mixed)).err(Status::Stale);
    assert_eq!(second.ask("read 20 0").ok(), [crate::roles::FILL; 20]);
    dpu.import(&new).ok();
    dpu.write(0, b"to the second").ok();
    assert_eq!(second.ask("read 13 0").ok(), b"to the second");
    role::send(b"done");
}

pub fn used_again_by_another_exporter() {
    let mut world = Role::new("cma::pids::world").in_new_pidns().deadline(Duration::from_secs(50)).start();
    let begin = Instant::now();
    assert_eq!(world.recv(), b"done", "{:?}", begin.elapsed());
}
