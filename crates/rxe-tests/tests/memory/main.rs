//! Memory of another host, and of another process of this one, used by a device: bytes against a model, while those whose memory it is are
//! stopped; revocations, ends, and what is pinned afterwards.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::missing_panics_doc)] // tests

mod choice;
mod faults;
mod forks;
mod kills;
mod limits;
mod roles;
mod stops;

use std::process::Command;
use std::time::{Duration, Instant};

use rxe_tests::guest::SlowCable;
use rxe_tests::{DEVICE, Host, Hosts, counters, hosts};
use testkit::{Child, Role, skip};

use roles::{Ask, LEN, expect, exporter, importer};

/// Until something has come about that nobody waits for.
const SOON: Duration = Duration::from_secs(20);

/// A process on one of the hosts, yet to be started. Where there is one host only, it is on that one.
fn role(name: &str, host: Host) -> Role {
    let role = Role::new(name).deadline(Duration::from_secs(150));
    match hosts() {
        None => role,
        Some(_) => role.in_netns(host.namespace()),
    }
}

/// Where there is one host only, the test is skipped.
fn two_hosts() {
    if hosts() != Some(Hosts::Namespaces) {
        skip(
            "this guest has no second host: network namespaces with a device of rxe each are for newer kernels",
            "cargo xtask rxe --kernel new",
        );
    }
}

/// The device of a host: where there is one host only, that one's.
fn device(host: Host) -> String {
    hosts().map_or_else(|| DEVICE.to_owned(), |hosts| host.device(hosts))
}

/// A process on one of the hosts with these settings.
fn start(name: &str, host: Host, settings: &[(&str, &str)]) -> Child {
    settings.iter().fold(role(name, host), |role, (name, value)| role.env(*name, *value)).start()
}

/// An exporter on B, and an importer on A that has imported from it.
fn both() -> (Child, Child) {
    Way::Connected.both(&[])
}

/// How a device reaches memory of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Connected with the exporter's, which is another host's where there are two.
    Connected,
    /// Registered with it, on A: the exporter offers nothing else.
    Shared,
}

impl Way {
    /// Where exporters are.
    fn host(self) -> Host {
        match self {
            Self::Connected => Host::B,
            Self::Shared => Host::A,
        }
    }

    fn exporter(self, settings: &[(&str, &str)]) -> Child {
        let own = if self == Self::Shared { ONLY_SHARED } else { &[] };
        start("exporter", self.host(), &[own, settings].concat())
    }

    /// It is on A.
    fn importer(self) -> Child {
        start("importer", Host::A, if self == Self::Shared { SHARE } else { &[] })
    }

    /// An exporter with these settings, and an importer that has imported from it.
    fn both(self, settings: &[(&str, &str)]) -> (Child, Child) {
        let (mut exporter, mut importer) = (self.exporter(settings), self.importer());
        let handle = exporter.request(&Ask::Export.frame());
        expect(&mut importer, &Ask::Import(handle), "verbs");
        (exporter, importer)
    }
}

const SHARE: &[(&str, &str)] = &[("UCX_VERBS_SHARE", "y")];
/// Of an exporter whose memory is not reached in another way.
const ONLY_SHARED: &[(&str, &str)] = &[("UCX_VERBS_SHARE", "y"), ("UCX_VERBS_REMOTE", "n")];

/// What takes a while to put, for something to happen meanwhile.
const LONG: u32 = 16 << 20;
/// Of an exporter of as many bytes.
const OF_LONG: &[(&str, &str)] = &[("RUCX_TEST_LEN", "16777216")];

/// Has an importer put something; when this returns, packets of that have been sent. How many had been before.
fn under_way(importer: &mut Child, put: &Ask) -> u64 {
    let before = sent(Host::A);
    importer.send(&put.frame());
    let begin = Instant::now();
    while sent(Host::A) == before {
        assert!(begin.elapsed() < SOON, "packets are sent");
    }
    before
}

fn sent(host: Host) -> u64 {
    counters(&device(host)).unwrap().sent()
}

/// Objects of this kind that processes have of a host's device now (`rdma-resource(8)`).
fn objects(host: Host, kind: &str) -> u64 {
    let device = device(host);
    let output = Command::new("/bin/rdma").args(["resource", "show", &device]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut words = text.split_whitespace();
    let found = words.by_ref().find(|word| *word == kind).and_then(|_| words.next());
    found.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("no count of {kind}: {text:?}"))
}

/// What the device has counted, for who reads the results.
#[allow(clippy::print_stdout)]
fn report(text: &str) {
    println!("{text}");
}

#[track_caller]
fn soon(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < SOON, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn moves_what_is_asked() {
    let (mut exporter, mut importer) = both();
    let before = sent(Host::A);
    expect(&mut importer, &Ask::Work(1), "done");
    expect(&mut exporter, &Ask::Compare(1), "same");
    let least = roles::bytes_of_work() / 4096;
    let rise = sent(Host::A) - before;
    report(&format!("{} bytes of operations: {rise} packets", roles::bytes_of_work()));
    assert!(rise >= least, "{rise} packets, of at least {least}: by something else");
}

fn the_exporter_is_stopped() {
    let (mut exporter, mut importer) = both();
    exporter.stop();
    expect(&mut importer, &Ask::Work(2), "done");
    exporter.cont();
    expect(&mut exporter, &Ask::Compare(2), "same");
}

/// With a second importer, which nothing happens to, and a second export, which lives on.
fn revoked_is_stale_and_hits_nobody_else() {
    let (mut exporter, mut importer) = both();
    let mut other = start("importer", Host::A, &[]);
    let second = exporter.request(&Ask::Export.frame());
    expect(&mut other, &Ask::Import(second.clone()), "verbs");
    expect(&mut importer, &Ask::Import(second), "verbs");
    expect(&mut exporter, &Ask::Revoke(0), "revoked");
    expect(&mut importer, &Ask::Access(0), "stale");
    expect(&mut importer, &Ask::Access(0), "stale");
    expect(&mut importer, &Ask::Access(1), "fine");
    expect(&mut other, &Ask::Access(0), "fine");
    // Memory at the same address, exported anew: the old import does not reach it.
    let newer = exporter.request(&Ask::Export.frame());
    expect(&mut importer, &Ask::Import(newer), "verbs");
    expect(&mut importer, &Ask::Access(0), "stale");
    expect(&mut importer, &Ask::Access(2), "fine");
}

fn a_killed_exporter_is_stale_and_leaves_nothing_pinned() {
    let (mut exporter, mut importer) = both();
    expect(&mut importer, &Ask::Access(0), "fine"); // with what bytes go through, which is of the same device where there is one
    let with = objects(Host::B, "mr");
    assert!(with > 0, "its memory is registered");
    exporter.kill();
    soon("stale", || importer.request(&Ask::Access(0).frame()) == b"stale");
    soon("its registration is ended", || objects(Host::B, "mr") == with - 1);
    assert!(hosts().is_none() || with == 1, "nothing else is registered at B");
}

fn a_killed_importer_leaves_nothing_pinned() {
    let (exporter, mut importer) = both();
    assert!(objects(Host::B, "mr") > 0, "its memory is registered");
    importer.kill();
    soon("the registration for it is ended", || objects(Host::B, "mr") == 0);
    soon("its queue pairs are, too", || objects(Host::B, "qp") <= 1); // the one that rxe keeps for management
    drop(exporter);
}

/// HOST and DPU on A, PEER on B: the DPU's requests move bytes between the others' memory, and both are stopped.
fn a_dpu_moves_bytes_between_two_that_are_stopped() {
    let mut host = Way::Shared.exporter(&[]);
    let mut dpu = Way::Shared.importer();
    let mut peer = start("exporter", Host::B, &[]);
    let (of_host, of_peer) = (host.request(&Ask::Export.frame()), peer.request(&Ask::Export.frame()));
    expect(&mut dpu, &Ask::Import(of_host), "verbs");
    expect(&mut dpu, &Ask::Import(of_peer), "verbs");
    expect(&mut host, &Ask::Fill(3), "filled");
    expect(&mut peer, &Ask::Fill(4), "filled");
    host.stop();
    peer.stop();
    let before = sent(Host::A);
    expect(&mut dpu, &Ask::Carry { from: 0, to: 1, parts: 1 }, "done");
    let rise = sent(Host::A) - before;
    report(&format!("{LEN} bytes from the HOST to the PEER, both stopped: {rise} packets"));
    assert!(rise >= LEN as u64 / 4096, "{rise} packets: by something else");
    peer.cont();
    expect(&mut peer, &Ask::CompareFill(3), "same");
    expect(&mut peer, &Ask::Fill(5), "filled");
    peer.stop();
    expect(&mut dpu, &Ask::Carry { from: 1, to: 0, parts: 7 }, "done");
    host.cont();
    peer.cont();
    expect(&mut host, &Ask::CompareFill(5), "same");
}

/// HOST and DPU on A: nothing of the HOST's memory is mapped in the DPU, and the HOST, which is stopped, calls nothing, however long it is.
fn memory_of_a_stopped_process_of_this_host() {
    let (mut host, mut dpu) = Way::Shared.both(&[]);
    let place = host.request(&Ask::Where.frame());
    host.stop();
    expect(&mut dpu, &Ask::Work(8), "done");
    expect(&mut dpu, &Ask::IsMapped(place), "unmapped");
    host.cont();
    expect(&mut host, &Ask::Compare(8), "same");
    expect(&mut host, &Ask::Revoke(0), "revoked");
    expect(&mut dpu, &Ask::Access(0), "stale");
}

/// A process that is stopped makes no system call: none for a page, and none for 64 MiB.
fn a_put_of_any_length_asks_nothing_of_a_stopped_process() {
    const SHORT: u32 = 4096;
    const ALL: u32 = 64 << 20;
    let (mut host, mut dpu) = Way::Shared.both(&[("RUCX_TEST_LEN", "67108864")]);
    let place = host.request(&Ask::Where.frame());
    host.stop();
    for (len, seed) in [(SHORT, 21), (ALL, 22)] {
        let before = sent(Host::A);
        expect(&mut dpu, &Ask::Put { len, seed }, "done");
        let rise = sent(Host::A) - before;
        report(&format!("{len} bytes to a HOST that is stopped: {rise} packets"));
        assert!(rise >= u64::from(len) / 4096, "{rise} packets");
        expect(&mut dpu, &Ask::IsMapped(place.clone()), "unmapped");
        host.cont();
        expect(&mut host, &Ask::ComparePut { len, seed }, "same");
        host.stop();
    }
}

fn a_killed_host_leaves_nothing_pinned_in_the_dpu() {
    let mut host = Way::Shared.exporter(&[]);
    let mut dpu = Way::Shared.importer();
    let handle = host.request(&Ask::Export.frame());
    let before = objects(Host::A, "mr");
    expect(&mut dpu, &Ask::Import(handle), "verbs");
    expect(&mut dpu, &Ask::Access(0), "fine"); // with what bytes go through
    let with = objects(Host::A, "mr");
    assert!(with > before, "the HOST's memory is registered");
    host.kill();
    soon("the registration is ended", || objects(Host::A, "mr") == with - 1);
    soon("stale", || dpu.request(&Ask::Access(0).frame()) == b"stale");
}

fn a_killed_dpu_leaves_nothing_pinned() {
    let (mut host, mut dpu) = Way::Shared.both(&[]);
    assert!(objects(Host::A, "mr") > 0, "the HOST's memory is registered");
    dpu.kill();
    soon("nothing is registered", || objects(Host::A, "mr") == 0);
    expect(&mut host, &Ask::Revoke(0), "revoked");
}

/// Between two exporters of another host: through memory of the DPU, a fragment after the other.
fn a_dpu_moves_bytes_between_two_of_another_host() {
    let mut one = start("exporter", Host::B, &[]);
    let mut two = start("exporter", Host::B, &[]);
    let mut dpu = start("importer", Host::A, &[]);
    let (of_one, of_two) = (one.request(&Ask::Export.frame()), two.request(&Ask::Export.frame()));
    expect(&mut dpu, &Ask::Import(of_one), "verbs");
    expect(&mut dpu, &Ask::Import(of_two), "verbs");
    expect(&mut one, &Ask::Fill(6), "filled");
    expect(&mut two, &Ask::Fill(7), "filled");
    one.stop();
    two.stop();
    expect(&mut dpu, &Ask::Carry { from: 0, to: 1, parts: 3 }, "done");
    two.cont();
    expect(&mut two, &Ask::CompareFill(6), "same");
    one.cont();
    // One of them is revoked: told as such, on either side.
    expect(&mut one, &Ask::Revoke(0), "revoked");
    expect(&mut dpu, &Ask::Carry { from: 1, to: 0, parts: 1 }, "stale");
    expect(&mut dpu, &Ask::Carry { from: 0, to: 1, parts: 1 }, "stale operand");
    expect(&mut two, &Ask::CompareFill(6), "same");
}

/// Has a DPU at A get memory of one exporter at B, put all of another one's, and copy the one's to the other: milliseconds, told to who reads
/// the results.
fn legs(bytes: &str) -> [u64; 3] {
    two_hosts();
    let long = [("RUCX_TEST_LEN", bytes)];
    let mut one = start("exporter", Host::B, &long);
    let mut two = start("exporter", Host::B, &long);
    let mut dpu = start("importer", Host::A, &[]);
    for exporter in [&mut one, &mut two] {
        let handle = exporter.request(&Ask::Export.frame());
        expect(&mut dpu, &Ask::Import(handle), "verbs");
    }
    let times = String::from_utf8(dpu.request(&Ask::Time.frame())).unwrap();
    let times: Vec<u64> = times.split(' ').map(|time| time.parse().unwrap()).collect();
    let [get, put, both] = times[..] else { panic!("{times:?}") };
    let hundredths = both * 100 / get.max(put);
    report(&format!(
        "{bytes} bytes: get {get} ms, put {put} ms, from one to the other {both} ms: {hundredths} % of the slower"
    ));
    [get, put, both]
}

fn what_the_way_through_a_dpu_takes() {
    let _ = legs("4194304");
}

/// Where the cable is what is slow, as it is with devices: the bytes go twice, in about the time of once, for they are read while others are
/// written. One after the other they would take the sum.
fn by_a_slow_cable_the_way_through_a_dpu_takes_as_long_as_half_of_it() {
    two_hosts();
    let _cable = SlowCable::of("48mbit");
    let [get, put, both] = legs("67108864");
    assert!(both * 20 < (get + put) * 19, "nothing is read while others are written");
}

fn main() -> std::process::ExitCode {
    testkit::main! {
        roles: [exporter, importer],
        tests: [
            moves_what_is_asked => .secs(120),
            the_exporter_is_stopped => .secs(120),
            revoked_is_stale_and_hits_nobody_else => .secs(120),
            a_killed_exporter_is_stale_and_leaves_nothing_pinned => .secs(120),
            a_killed_importer_leaves_nothing_pinned => .secs(120),
            a_dpu_moves_bytes_between_two_that_are_stopped => .secs(120),
            a_dpu_moves_bytes_between_two_of_another_host => .secs(120),
            what_the_way_through_a_dpu_takes => .secs(120),
            by_a_slow_cable_the_way_through_a_dpu_takes_as_long_as_half_of_it => .secs(240),
            choice::devices_are_picked_and_excluded => .secs(60),
            choice::bytes_go_by_the_device_that_was_chosen => .secs(120),
            faults::a_port_that_goes_down_fails_accesses_in_time => .secs(120),
            limits::without_memory_to_pin_it_is_told_and_the_rest_goes_on => .secs(120),
            limits::an_exporter_that_may_not_pin_refuses_and_goes_on => .secs(120),
            limits::a_dpu_without_memory_to_pin_is_told_and_goes_on => .secs(120),
            limits::a_host_that_may_not_pin_refuses_and_goes_on => .secs(120),
            limits::what_the_kernel_counts_of_a_device_has_limits_that_are_told => .secs(120),
            kills::a_dpu_killed_while_it_writes_leaves_its_peers_whole => .secs(120),
            kills::an_exporter_killed_while_it_is_written_to_is_told => .secs(120),
            kills::a_dpu_killed_while_it_writes_leaves_its_host_whole => .secs(120),
            kills::a_host_killed_while_it_is_written_to_is_told => .secs(120),
            stops::a_stopped_importer_holds_up_no_revocation => .secs(120),
            stops::a_dpu_stopped_while_it_writes_keeps_the_memory => .secs(120),
            forks::a_child_has_none_of_it => .secs(120),
            forks::a_child_that_lives_changes_nothing => .secs(120),
            forks::a_child_that_lives_changes_nothing_of_a_host_s => .secs(120),
            memory_of_a_stopped_process_of_this_host => .secs(120),
            a_put_of_any_length_asks_nothing_of_a_stopped_process => .secs(120),
            a_killed_host_leaves_nothing_pinned_in_the_dpu => .secs(120),
            a_killed_dpu_leaves_nothing_pinned => .secs(120),
            faults::a_device_that_is_taken_away_fails_accesses => .secs(120),
            faults::a_device_of_both_that_is_taken_away_fails_accesses => .secs(120),
        ],
    }
}
