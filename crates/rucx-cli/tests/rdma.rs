//! `rucx` with RDMA devices: in the guest of `cargo xtask rxe`, which has it in /bin, and two network namespaces with a device each.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // tests

use std::process::Command;

/// Packets that a device has sent (`hw_counters` of its port in sysfs); what was read milliseconds ago is answered again.
fn sent(device: &str) -> u64 {
    std::thread::sleep(std::time::Duration::from_millis(20));
    let path = format!("/sys/class/infiniband/{device}/ports/1/hw_counters/sent_pkts");
    std::fs::read_to_string(path).unwrap().trim().parse().unwrap()
}

/// HOST and DPU on one host, the PEER on the other one: all bytes go by their devices, and the HOST is stopped in the second half.
#[test]
fn a_dpu_offloads_by_rdma_between_two_hosts() {
    let before = [sent("rxe-a"), sent("rxe-b")];
    let mut demo = Command::new("/bin/ip");
    demo.args(["netns", "exec", "a", "/bin/rucx", "demo", "offload", "--size", "1M", "--tls", "verbs"]);
    let output = demo.args(["--peer-netns", "b"]).env("UCX_VERBS_SHARE", "y").output().unwrap();
    let (said, failed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{said}{failed}");
    // An emulated HOST takes milliseconds of CPU time for being asked how much it took.
    let held_not = |line: &&str| line.contains("  NO    ") && !line.contains("of CPU time, in");
    assert_eq!(said.lines().find(held_not), None);
    let held = said.lines().filter(|line| line.contains("  ok    ")).count();
    assert!(held >= 12, "{held} checks");
    assert!(said.contains("over verbs") && said.contains("is stopped"));
    let rise = [sent("rxe-a") - before[0], sent("rxe-b") - before[1]];
    println!("packets sent by the two devices: {rise:?}");
    // A half each way, twice, in packets of 1024 bytes at most.
    assert!(rise.iter().all(|rise| *rise >= 2 * (512 << 10) / 1024), "{rise:?}");
}

#[test]
fn info_tells_from_where_on_long_data_is_gathered() {
    let info = |threshold: &str| {
        let mut rucx = Command::new("/bin/ip");
        rucx.args(["netns", "exec", "a", "/bin/rucx", "info", "-e"]);
        rucx.env("UCX_TLS", "verbs").env("UCX_NET_DEVICES", "rxe-a").env("UCX_ZCOPY_THRESH", threshold);
        let said = String::from_utf8(rucx.output().unwrap().stdout).unwrap();
        println!("{said}");
        said.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let words =
        |from: &str| format!("more by rendezvous, and from {from} on by the device, from where it lies");
    assert!(info("32k").contains(&words("32 KiB")));
    let copied = info("inf");
    assert!(copied.contains("more by rendezvous") && !copied.contains("by the device"), "{copied}");
}

/// Devices of rxe are seen in all network namespaces (`rdma-system(8)`: shared): which is used is the user's to say.
#[test]
fn info_tells_the_port_and_gid_in_use_and_why_a_device_is_not() {
    let info = |settings: &[(&str, &str)]| {
        let mut rucx = Command::new("/bin/ip");
        rucx.args(["netns", "exec", "a", "/bin/rucx", "info", "-d"]).env("UCX_TLS", "verbs");
        let output = rucx.envs(settings.iter().copied()).output().unwrap();
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
        println!("{said}");
        said.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let said = info(&[("UCX_NET_DEVICES", "rxe-a")]);
    for words in [
        "verbs: memory domain rxe-a",
        "port 1, Ethernet (RoCE v2)",
        "GID index 1: 10.0.0.1",
        "not in use: rxe-b: not allowed by UCX_NET_DEVICES=rxe-a (name rxe-b in",
    ] {
        assert!(said.contains(words), "{words}");
    }
    let said = info(&[("UCX_NET_DEVICES", "rxe-c,rxe-b"), ("UCX_IB_GID_INDEX", "40")]);
    for words in [
        "no network device for rxe-c; did you mean rxe-a? There are: rxe-a, rxe-b",
        "not in use: rxe-a: not allowed by",
        "rxe-b: port 1 has no GID of index 40, which UCX_IB_GID_INDEX names: that entry is empty",
        "1 (10.0.0.2)",
    ] {
        assert!(said.contains(words), "{words}");
    }
}

/// Whether on-demand paging is used is told, and why not: rxe of Linux 7.3 says that it has it, and does it wrong.
#[test]
fn why_on_demand_paging_is_not_used_is_told() {
    let mut info = Command::new("/bin/ip");
    let output = info.args(["netns", "exec", "a", "/bin/rucx", "info", "-d"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let joined = said.split_whitespace().collect::<Vec<_>>().join(" ");
    let note = "on-demand paging not used, exported memory is pinned: the device puts what it writes within a page at the page's \
                beginning";
    assert!(joined.contains(note), "{said}");
}
