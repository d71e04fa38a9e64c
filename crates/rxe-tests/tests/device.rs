//! The guest has the device that its tests are to use.

use std::fs::File;
use std::path::Path;

use rdma_core_sys::DeviceList;
use rxe_tests::{DEVICE, GID_INDEX, gid, port};

#[test]
fn the_device_is_there() {
    assert!(Path::new("/sys/class/infiniband").join(DEVICE).exists());
}

#[test]
fn its_port_is_active() {
    assert_eq!(port("state").unwrap(), "4: ACTIVE");
}

#[test]
fn it_has_a_gid_of_an_ipv4_address() {
    let gid = gid(GID_INDEX).unwrap();
    assert!(gid.to_ipv4_mapped().is_some(), "{gid}");
}

#[test]
fn its_file_can_be_opened() {
    File::options().read(true).write(true).open("/dev/infiniband/uverbs0").unwrap();
}

#[test]
fn libibverbs_sees_it_alone() {
    assert_eq!(DeviceList::get().unwrap().names(), [DEVICE]);
}

#[test]
fn memory_may_be_locked_without_limit() {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max locked memory")).unwrap();
    assert_eq!(line.split_whitespace().nth(3), Some("unlimited"), "{line}");
}
