//! Which of the two devices is used: `UCX_NET_DEVICES`. Devices of rxe are seen in all network namespaces (`rdma-system(8)`: shared).

use rxe_tests::{Host, Hosts};
use ucp::{Context, InitError};

use crate::roles::{Ask, bytes_of_work, expect};
use crate::{report, sent, start, two_hosts};

fn context(devices: &str) -> Result<Context, InitError> {
    Context::builder().ignore_env().set("UCX_TLS", "verbs").set("UCX_NET_DEVICES", devices).build()
}

/// The devices that a context uses, and why not the others.
fn used(devices: &str) -> (Vec<String>, String) {
    match context(devices) {
        Ok(ctx) => {
            let names = ctx.memory_domains().map(|(_, name, _)| name.to_owned()).collect();
            (names, ctx.left_out().to_string())
        }
        Err(error) => (Vec::new(), error.to_string()),
    }
}

pub(crate) fn devices_are_picked_and_excluded() {
    two_hosts();
    let [a, b] = [Host::A, Host::B].map(|host| host.device(Hosts::Namespaces));
    for (list, expected, why) in [
        ("all".to_owned(), vec![a.clone(), b.clone()], String::new()),
        (b.clone(), vec![b.clone()], format!("{a}: not allowed by UCX_NET_DEVICES={b}")),
        (format!("^{b}"), vec![a.clone()], format!("{b}: not allowed by UCX_NET_DEVICES=^{b}")),
        (format!("{a}:1,{b}:2"), vec![a.clone()], format!("{b}: there is no port 2: it has 1")),
        (format!("{b}:2"), vec![], format!("{b}: there is no port 2: it has 1")),
        ("mlx5_0".to_owned(), vec![], format!("{a}: not allowed by UCX_NET_DEVICES=mlx5_0")),
    ] {
        let (mut names, told) = used(&list);
        report(&format!("UCX_NET_DEVICES={list}: {names:?}; {told}"));
        names.sort();
        assert_eq!(names, expected, "{list}: {told}");
        assert!(told.contains(&why), "{list}: {told}");
    }
    let malformed = context("rxe-a:0").unwrap_err();
    assert!(matches!(malformed, InitError::Config(_)), "{malformed:?}");
    assert!(malformed.to_string().contains("ports have numbers from 1 to 255"), "{malformed}");
}

/// With the device of this host alone, and its address of IPv4 by number.
pub(crate) fn bytes_go_by_the_device_that_was_chosen() {
    two_hosts();
    let of = |host: Host| {
        [("UCX_NET_DEVICES", host.device(Hosts::Namespaces)), ("UCX_IB_GID_INDEX", "1".to_owned())]
    };
    let [of_a, of_b] = [of(Host::A), of(Host::B)];
    let mut exporter =
        start("exporter", Host::B, &of_b.each_ref().map(|(name, value)| (*name, value.as_str())));
    let mut importer =
        start("importer", Host::A, &of_a.each_ref().map(|(name, value)| (*name, value.as_str())));
    let handle = exporter.request(&Ask::Export.frame());
    let before = sent(Host::A);
    expect(&mut importer, &Ask::Import(handle), "verbs");
    expect(&mut importer, &Ask::Work(9), "done");
    expect(&mut exporter, &Ask::Compare(9), "same");
    assert!(sent(Host::A) - before >= bytes_of_work() / 4096);
}
