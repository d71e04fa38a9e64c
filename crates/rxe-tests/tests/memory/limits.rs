//! Limits of what may be pinned, and of a device's objects: what does not go is told, with what to do, and the rest goes on.

use std::path::{Path, PathBuf};
use std::process::Command;

use rxe_tests::Host;
use rxe_tests::guest::devices_are_for_all;
use testkit::{Child, Role, skip};

use crate::roles::{Ask, expect};
use crate::{ONLY_SHARED, SHARE, Way, device, report, role, start};

/// A user with no rights. It is not `nobody`, who may be anybody: processes of that share nothing.
const USER: u32 = 1000;
const POOR: (&str, &str) = ("RUCX_TEST_MEMLOCK", "65536");

/// A role of a user who may use the devices, and nothing else.
fn user_s(name: &str, host: Host, settings: &[(&str, &str)]) -> Child {
    devices_are_for_all();
    let with = |role: Role, (name, value): &(&str, &str)| role.env(*name, *value);
    settings.iter().fold(role(name, host).as_uid(USER), with).start()
}

/// What does not go by registered memory of a few pages fails, and says what to do.
fn puts_little(importer: &mut Child) {
    let answer = importer.request(&Ask::Put { len: 1 << 20, seed: 1 }.frame());
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.contains("RLIMIT_MEMLOCK is 65536 bytes") && answer.contains("ulimit -l"), "{answer}");
    expect(importer, &Ask::Put { len: 16 << 10, seed: 2 }, "done");
}

/// Has it refuse to register its memory, and say so.
fn refuses(exporter: &mut Child, importer: &mut Child) {
    let handle = exporter.request(&Ask::Export.frame());
    let answer = importer.request(&Ask::TryImport(handle).frame());
    let answer = String::from_utf8_lossy(&answer);
    report(&answer);
    assert!(answer.contains("cannot register it") && answer.contains("ulimit -l"), "{answer}");
}

pub(crate) fn without_memory_to_pin_it_is_told_and_the_rest_goes_on() {
    let mut exporter = start("exporter", Host::B, &[]);
    let mut importer = user_s("importer", Host::A, &[POOR]);
    let handle = exporter.request(&Ask::Export.frame());
    expect(&mut importer, &Ask::Import(handle), "verbs");
    puts_little(&mut importer);
    expect(&mut exporter, &Ask::ComparePut { len: 16 << 10, seed: 2 }, "same");
}

pub(crate) fn an_exporter_that_may_not_pin_refuses_and_goes_on() {
    let mut exporter = user_s("exporter", Host::B, &[POOR]);
    refuses(&mut exporter, &mut start("importer", Host::A, &[]));
    expect(&mut exporter, &Ask::Revoke(0), "revoked");
}

/// HOST and DPU of one user: the HOST may pin as much as it likes, the DPU 64 KiB.
pub(crate) fn a_dpu_without_memory_to_pin_is_told_and_goes_on() {
    let mut host = user_s("exporter", Host::A, ONLY_SHARED);
    let mut dpu = user_s("importer", Host::A, &[SHARE, &[POOR]].concat());
    let handle = host.request(&Ask::Export.frame());
    expect(&mut dpu, &Ask::Import(handle), "verbs");
    puts_little(&mut dpu);
    expect(&mut host, &Ask::ComparePut { len: 16 << 10, seed: 2 }, "same");
}

/// The other way round: the pages are the HOST's, and count for it. What fits in is imported all the same.
pub(crate) fn a_host_that_may_not_pin_refuses_and_goes_on() {
    let mut host = user_s("exporter", Host::A, &[ONLY_SHARED, &[POOR]].concat());
    let mut dpu = user_s("importer", Host::A, SHARE);
    refuses(&mut host, &mut dpu);
    expect(&mut host, &Ask::Revoke(0), "revoked");
    let mut other = user_s("exporter", Host::A, &[ONLY_SHARED, &[("RUCX_TEST_LEN", "16384"), POOR]].concat());
    let handle = other.request(&Ask::Export.frame());
    expect(&mut dpu, &Ask::Import(handle), "verbs");
    expect(&mut dpu, &Ask::Put { len: 16 << 10, seed: 3 }, "done");
    expect(&mut other, &Ask::ComparePut { len: 16 << 10, seed: 3 }, "same");
}

/// A group of processes that may have so many more objects of a device as `rdma.max` of it says
/// (`Documentation/admin-guide/cgroup-v2.rst`, RDMA).
struct Group(PathBuf);

impl Group {
    fn new() -> Self {
        let root = Path::new("/tmp/cgroup");
        if !root.join("cgroup.controllers").exists() {
            std::fs::create_dir_all(root).unwrap();
            let mount = Command::new("mount").args(["-t", "cgroup2", "none"]).arg(root).status();
            assert!(mount.unwrap().success(), "no cgroups");
        }
        let controllers = std::fs::read_to_string(root.join("cgroup.controllers")).unwrap();
        if !controllers.split_whitespace().any(|name| name == "rdma") {
            skip("the kernel has no limits of RDMA objects by cgroups", "use one with CONFIG_CGROUP_RDMA");
        }
        std::fs::write(root.join("cgroup.subtree_control"), "+rdma").unwrap();
        let group = root.join("limited");
        std::fs::create_dir_all(&group).unwrap();
        Self(group)
    }

    fn take(&self, process: &Child) {
        std::fs::write(self.0.join("cgroup.procs"), process.pid().to_string()).unwrap();
    }

    /// Of each device: processes have all of them, in whichever network namespace.
    fn limit(&self, objects: &str) {
        for device in [Host::A, Host::B].map(device) {
            std::fs::write(self.0.join("rdma.max"), format!("{device} hca_object={objects}")).unwrap();
        }
    }
}

/// The kernel refuses registrations, whatever may be pinned, and lets them be made again.
fn limited(way: Way) {
    let group = Group::new();
    let (mut exporter, mut importer) = way.both(&[]);
    expect(&mut importer, &Ask::Put { len: 4096, seed: 4 }, "done");
    expect(&mut importer, &Ask::Access(0), "fine");

    group.take(&importer);
    group.limit("0");
    let answer = importer.request(&Ask::Put { len: 1 << 20, seed: 5 }.frame());
    let answer = String::from_utf8_lossy(&answer);
    report(&answer);
    assert!(answer.contains("could not be pinned") && answer.contains("rdma.max"), "{answer}");
    expect(&mut importer, &Ask::Access(0), "fine");
    group.limit("max");
    expect(&mut importer, &Ask::Put { len: 1 << 20, seed: 6 }, "done");
    expect(&mut exporter, &Ask::ComparePut { len: 1 << 20, seed: 6 }, "same");

    let mut other = way.importer();
    group.take(&exporter);
    group.limit("0");
    refuses(&mut exporter, &mut other);
    expect(&mut importer, &Ask::Access(0), "fine");
    group.limit("max");
    let handle = exporter.request(&Ask::Export.frame());
    expect(&mut other, &Ask::Import(handle), "verbs");
    expect(&mut other, &Ask::Access(0), "fine");
}

pub(crate) fn what_the_kernel_counts_of_a_device_has_limits_that_are_told() {
    limited(Way::Connected);
    limited(Way::Shared);
}
