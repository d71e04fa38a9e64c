//! What goes wrong on the way: ports and devices.

use std::time::{Duration, Instant};

use rxe_tests::guest::{Unplugged, ip};
use rxe_tests::{GID_INDEX, Host, gid_of, port_of};
use testkit::Child;

use crate::roles::{Ask, expect};
use crate::{LONG, OF_LONG, Way, device, report, soon, start, two_hosts, under_way};

/// Longer than a device tries, and much longer than an emulated one takes for that.
pub(crate) const BOUND: Duration = Duration::from_secs(60);

/// How what is under way ends, in words.
fn outcome(importer: &mut Child) -> String {
    let begin = Instant::now();
    let answer = importer.recv();
    assert!(begin.elapsed() < BOUND, "{:?}", begin.elapsed());
    let answer = String::from_utf8_lossy(&answer).into_owned();
    report(&format!("after {:?}: {answer}", begin.elapsed()));
    answer
}

pub(crate) fn a_port_that_goes_down_fails_accesses_in_time() {
    two_hosts();
    let (mut exporter, mut importer) = Way::Connected.both(OF_LONG);
    expect(&mut importer, &Ask::Access(0), "fine");
    under_way(&mut importer, &Ask::PutOn { len: LONG, seed: 1 });
    let down = Unplugged::now();
    let answer = outcome(&mut importer);
    // The other end of the cable has no carrier either.
    assert!(
        answer.contains("the device has failed") && answer.contains("the device's port has gone down"),
        "{answer}"
    );
    assert!(answer.contains("plug the cable in"), "{answer}");
    // By now the connection by which exporters are asked may have ended, too.
    importer.send(&Ask::Words(0).frame());
    let answer = outcome(&mut importer);
    assert!(answer.starts_with("the device has failed") || answer.starts_with("stale after"), "{answer}");
    drop(down);
    for device in [Host::A, Host::B].map(device) {
        soon("the port is up", || port_of(&device, "state").unwrap() == "4: ACTIVE");
    }
    // Once the kernel has forgotten that nobody answered: the same import, of which nobody has said that it is over, or it has been said.
    let mut ends = String::new();
    soon("an end of the failures", || {
        ends = String::from_utf8(importer.request(&Ask::Access(0).frame())).unwrap();
        ["fine", "stale"].contains(&ends.as_str())
    });
    report(&format!("the same import afterwards: {ends}"));
    if ends == "stale" {
        let handle = exporter.request(&Ask::Export.frame());
        expect(&mut importer, &Ask::Import(handle), "verbs");
    }
    expect(&mut importer, &Ask::Put { len: LONG, seed: 2 }, "done");
    expect(&mut exporter, &Ask::ComparePut { len: LONG, seed: 2 }, "same");
    // Who comes now.
    let mut other = start("importer", Host::A, &[]);
    let handle = exporter.request(&Ask::Export.frame());
    soon("a way", || other.request(&Ask::TryImport(handle.clone()).frame()) == b"imported");
    expect(&mut other, &Ask::Import(handle), "verbs");
    expect(&mut other, &Ask::Access(0), "fine");
}

fn rdma(host: Host, args: &[&str]) {
    let inside = ["netns", "exec", host.name(), "/bin/rdma"];
    ip(&[&inside, args].concat());
}

/// Takes a host's device away.
fn take_away(host: Host) {
    rdma(host, &["link", "delete", &device(host)]);
}

/// Gives the host a device of the same name.
fn give_back(host: Host) {
    let (device, end) = (device(host), format!("net-{}", host.name()));
    rdma(host, &["link", "add", &device, "type", "rxe", "netdev", &end]);
    soon("it has its address", || gid_of(&device, GID_INDEX).is_ok_and(|gid| !gid.is_unspecified()));
}

/// Its owner's memory is its own again.
fn is_its_own(exporter: &mut Child) {
    expect(exporter, &Ask::Revoke(0), "revoked");
    expect(exporter, &Ask::Fill(2), "filled");
    expect(exporter, &Ask::CompareFill(2), "same");
}

/// One of the last: the device is another one afterwards. The importer's own is the same, and goes on.
pub(crate) fn a_device_that_is_taken_away_fails_accesses() {
    two_hosts();
    let (mut exporter, mut importer) = Way::Connected.both(OF_LONG);
    under_way(&mut importer, &Ask::PutOn { len: LONG, seed: 1 });
    take_away(Host::B);
    let answer = outcome(&mut importer);
    assert!(answer.starts_with("the device has failed after"), "{answer}");
    assert_ne!(importer.request(&Ask::Access(0).frame()), b"fine");
    is_its_own(&mut exporter);
    give_back(Host::B);
    let mut newer = Way::Connected.exporter(OF_LONG);
    let handle = newer.request(&Ask::Export.frame());
    soon("a way", || importer.request(&Ask::TryImport(handle.clone()).frame()) == b"imported");
    expect(&mut importer, &Ask::Import(handle.clone()), "verbs");
    expect(&mut importer, &Ask::Put { len: LONG, seed: 3 }, "done");
    expect(&mut newer, &Ask::ComparePut { len: LONG, seed: 3 }, "same");
}

/// The last of all. HOST and DPU have the same device, and each makes a new context of the new one.
pub(crate) fn a_device_of_both_that_is_taken_away_fails_accesses() {
    two_hosts();
    let (mut host, mut dpu) = Way::Shared.both(OF_LONG);
    under_way(&mut dpu, &Ask::PutOn { len: LONG, seed: 1 });
    take_away(Host::A);
    let answer = outcome(&mut dpu);
    assert!(answer.contains("the device was taken away") || answer.starts_with("stale after"), "{answer}");
    assert_ne!(dpu.request(&Ask::Access(0).frame()), b"fine");
    is_its_own(&mut host);
    give_back(Host::A);
    let mut newer = Way::Shared.exporter(OF_LONG);
    let handle = newer.request(&Ask::Export.frame());
    expect(&mut dpu, &Ask::Anew(handle), "verbs");
    expect(&mut dpu, &Ask::Put { len: LONG, seed: 3 }, "done");
    expect(&mut newer, &Ask::ComparePut { len: LONG, seed: 3 }, "same");
}
