//! What goes wrong on the way: ports, devices, limits, processes.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use rxe_tests::{Host, Hosts, port_of};

use crate::roles::{Ask, expect};
use crate::{both, objects, role, soon, start};

/// Longer than a device tries, and much longer than an emulated one takes for that.
const BOUND: Duration = Duration::from_secs(60);

fn ip(args: &[&str]) {
    let output = Command::new("/bin/ip").args(args).output().unwrap();
    assert!(output.status.success(), "ip {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

pub(crate) fn a_port_that_goes_down_fails_accesses_in_time() {
    let (_exporter, mut importer) = both();
    expect(&mut importer, &Ask::Access(0), "fine");
    ip(&["-n", "b", "link", "set", "net-b", "down"]);
    let begin = Instant::now();
    let answer = importer.request(&Ask::Words(0).frame());
    assert!(begin.elapsed() < BOUND, "{:?}", begin.elapsed());
    let answer = String::from_utf8_lossy(&answer);
    crate::report(&answer);
    // The other end of the cable has no carrier either.
    assert!(
        answer.contains("the device has failed") && answer.contains("the device's port has gone down"),
        "{answer}"
    );
    assert!(answer.contains("plug the cable in"), "{answer}");
    ip(&["-n", "b", "link", "set", "net-b", "up"]);
    // Who comes now, once the kernel has forgotten that nobody answered.
    for device in [Host::A, Host::B].map(|host| host.device(Hosts::Namespaces)) {
        soon("the port is up", || port_of(&device, "state").unwrap() == "4: ACTIVE");
    }
    let mut exporter = start("exporter", Host::B, &[]);
    let mut importer = start("importer", Host::A, &[]);
    let handle = exporter.request(&Ask::Export.frame());
    soon("a way", || importer.request(&Ask::TryImport(handle.clone()).frame()) == b"imported");
    expect(&mut importer, &Ask::Import(handle), "verbs");
    expect(&mut importer, &Ask::Access(0), "fine");
}

/// A role whose user may pin 64 KiB, and use the devices.
fn poor(name: &str, host: Host) -> testkit::Child {
    const NOBODY: u32 = 65_534;
    for entry in std::fs::read_dir("/dev/infiniband").unwrap() {
        std::fs::set_permissions(entry.unwrap().path(), Permissions::from_mode(0o666)).unwrap();
    }
    role(name, host).as_uid(NOBODY).env("RUCX_TEST_MEMLOCK", "65536").start()
}

/// What does not go by registered memory of a few pages fails, and says what to do.
pub(crate) fn without_memory_to_pin_it_is_told_and_the_rest_goes_on() {
    let mut exporter = start("exporter", Host::B, &[]);
    let mut importer = poor("importer", Host::A);
    let handle = exporter.request(&Ask::Export.frame());
    expect(&mut importer, &Ask::Import(handle), "verbs");
    let answer = importer.request(&Ask::Put(1 << 20).frame());
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.contains("RLIMIT_MEMLOCK is 65536 bytes") && answer.contains("ulimit -l"), "{answer}");
    expect(&mut importer, &Ask::Put(16 << 10), "done");
}

pub(crate) fn an_exporter_that_may_not_pin_refuses_and_goes_on() {
    let mut exporter = poor("exporter", Host::B);
    let mut importer = start("importer", Host::A, &[]);
    let handle = exporter.request(&Ask::Export.frame());
    let answer = importer.request(&Ask::TryImport(handle).frame());
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.contains("cannot register it") && answer.contains("ulimit -l"), "{answer}");
    expect(&mut exporter, &Ask::Revoke(0), "revoked");
}

/// Whatever of its requests has arrived: the exporter lives, nothing of the DPU's stays registered, and others reach its memory.
pub(crate) fn a_dpu_killed_while_it_writes_leaves_its_peers_whole() {
    let mut exporter = start("exporter", Host::B, &[]);
    let handle = exporter.request(&Ask::Export.frame());
    for round in 0..3 {
        let mut importer = start("importer", Host::A, &[]);
        expect(&mut importer, &Ask::Import(handle.clone()), "verbs");
        importer.send(&Ask::Put(1 << 20).frame());
        std::thread::sleep(Duration::from_millis(30 + 70 * round));
        importer.kill();
        soon("nothing is registered for it", || objects(Host::B, "mr") == 0);
    }
    let mut other = start("importer", Host::A, &[]);
    expect(&mut other, &Ask::Import(handle), "verbs");
    expect(&mut exporter, &Ask::Fill(1), "filled");
    expect(&mut other, &Ask::Access(0), "fine");
    expect(&mut exporter, &Ask::CompareFill(1), "same");
}

/// The parent goes on, and so does who exports to it.
pub(crate) fn a_child_has_none_of_it() {
    let (mut exporter, mut importer) = both();
    expect(&mut importer, &Ask::Fork, "forked");
    expect(&mut importer, &Ask::Work(10), "done");
    expect(&mut exporter, &Ask::Fork, "forked");
    expect(&mut exporter, &Ask::Compare(10), "same");
    expect(&mut importer, &Ask::Access(0), "fine");
}

/// The last of all: the device is another one afterwards.
pub(crate) fn a_device_that_is_taken_away_fails_accesses() {
    let (mut exporter, mut importer) = both();
    expect(&mut importer, &Ask::Access(0), "fine");
    let device = Host::B.device(Hosts::Namespaces);
    let output = Command::new("/bin/rdma").args(["link", "delete", &device]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let begin = Instant::now();
    let answer = importer.request(&Ask::Access(0).frame());
    assert!(begin.elapsed() < BOUND, "{:?}", begin.elapsed());
    assert_ne!(answer, b"fine");
    // Its owner's memory is its own again.
    expect(&mut exporter, &Ask::Revoke(0), "revoked");
    expect(&mut exporter, &Ask::Fill(2), "filled");
    expect(&mut exporter, &Ask::CompareFill(2), "same");
}
