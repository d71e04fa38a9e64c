//! Ports, GIDs and events of a device: `cargo xtask rxe --filter verbs::tests`.

#![allow(clippy::unwrap_used)] // tests
#![allow(unsafe_code)] // a request to post

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma_core_sys::{
    ibv_access_flags as Access, ibv_event_type, ibv_send_flags, ibv_send_wr,
    ibv_send_wr__bindgen_ty_2__bindgen_ty_1 as Rdma, ibv_sge, ibv_wc_status, ibv_wr_opcode,
};
use ucs::config::Config;
use ucs::mem::Mapping;

use super::device::{DEPTH, Device, REQUESTS, names};
use super::sys::{Cq, Element, Qp};
use super::{GID_INDEX, VerbsComponent};
use crate::api::{Component, MdParams, MdResource};
use crate::config::NET_DEVICES;
use crate::export::ExportTable;
use crate::service::Service;

const PATIENCE: Duration = Duration::from_secs(30);

fn name() -> String {
    names().into_iter().next().expect("a device")
}

/// What the memory domain of the device tells of itself, or why there is none.
fn details(settings: &[(&str, &str)]) -> Result<String, String> {
    let exports = Arc::new(ExportTable::new(PATIENCE).unwrap());
    let service = Arc::new(Service::new(Arc::clone(&exports), None));
    let config = Config::builder(crate::config::VARS).vars(VerbsComponent.vars()).ignore_env();
    let config = settings.iter().fold(config, |config, (name, value)| config.set(*name, *value));
    let params = MdParams { exports, service, config: config.build().unwrap() };
    let md = VerbsComponent.open_md(&MdResource { name: name() }, &params);
    let md = md.map_err(|error| format!("{error} / {}", error.remedy()))?;
    Ok(md.details().into_iter().map(|(name, value)| format!("{name} {value}; ")).collect())
}

#[test]
fn ports_are_chosen_and_refused() {
    let (name, variable) = (name(), NET_DEVICES.name());
    for good in [name.clone(), format!("{name}:1"), format!("^{name}:2"), format!("other,{name}")] {
        let told = details(&[(variable, &good)]).unwrap();
        assert!(told.starts_with("port 1, Ethernet (RoCE v2); GID index "), "{told}");
    }
    for (bad, why) in [
        (format!("{name}:2"), format!("there is no port 2: it has 1 / correct {variable}={name}:2")),
        (format!("^{name}:1"), format!("{variable}=^{name}:1 allows none of its ports, of which it has 1 /")),
        (format!("^{name}"), format!("not allowed by {variable}=^{name} / name {name} in {variable}")),
        ("other".to_owned(), format!("not allowed by {variable}=other /")),
    ] {
        let told = details(&[(variable, &bad)]).unwrap_err();
        assert!(told.starts_with(&why), "{bad}: {told}");
    }
}

/// Entry 1 stands for the IPv4 address of the guest's device, 0 for its address of the link; the others are empty.
#[test]
fn gids_are_chosen_and_refused() {
    let told = |index| details(&[(GID_INDEX.name(), index)]);
    assert_eq!(told("1"), details(&[]), "auto prefers the IPv4 address");
    assert!(told("0").unwrap().contains("GID index 0: fe80:"), "{:?}", told("0"));
    let empty = told("9").unwrap_err();
    assert!(
        empty.starts_with("port 1 has no GID of index 9, which UCX_IB_GID_INDEX names: that entry is empty"),
        "{empty}"
    );
    let beyond = told("5000").unwrap_err();
    assert!(
        beyond.starts_with("port 1 has ") && beyond.contains(" GIDs, and none of index 5000"),
        "{beyond}"
    );
    for error in [empty, beyond] {
        assert!(
            error.contains("/ set UCX_IB_GID_INDEX to 0 (fe80:") && error.ends_with("or to auto"),
            "{error}"
        );
    }
}

/// A queue pair whose event is not acknowledged could not be destroyed. `rdma_rxe` of Linux 6.1 tells of no such event.
#[test]
fn a_refused_access_is_told_and_its_queue_pair_can_be_destroyed() {
    let device = Device::any();
    let access = Access::IBV_ACCESS_REMOTE_WRITE | Access::IBV_ACCESS_REMOTE_READ;
    let unconnected =
        || device.queue_pair(Cq::new(&device.context, DEPTH).unwrap(), REQUESTS, access).unwrap();
    let (a, b) = (unconnected(), unconnected());
    let (to_a, to_b) = (a.address(), b.address());
    let (a, b): (Qp, Qp) = (a.connect(&to_b).unwrap(), b.connect(&to_a).unwrap());
    let map = Mapping::anonymous(4096).unwrap();
    let mr = device.register(map.bytes().as_ptr().addr(), 4096, true).unwrap();
    let sge = ibv_sge { addr: map.bytes().as_ptr().addr() as u64, length: 8, lkey: mr.lkey() };
    let opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
    let mut request =
        ibv_send_wr { opcode, send_flags: ibv_send_flags::IBV_SEND_SIGNALED.0, ..Default::default() };
    request.wr.rdma = Rdma { remote_addr: sge.addr, rkey: mr.rkey() ^ 0x55 };
    // SAFETY: registered memory, which is there until the queue pairs are dropped; its key is not that of any remote range.
    unsafe { a.post(sge, request) }.unwrap();
    let begin = Instant::now();
    let wc = loop {
        if let Some(wc) = a.cq().poll().unwrap() {
            break wc;
        }
        assert!(begin.elapsed() < PATIENCE, "no completion");
    };
    assert_eq!(wc.status, ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
    let begin = Instant::now();
    let event = loop {
        match device.context.take_event().unwrap() {
            Some(event) => break Some(event),
            None if begin.elapsed() > Duration::from_secs(3) => break None,
            None => std::thread::yield_now(),
        }
    };
    match event {
        Some(event) => {
            assert_eq!(event.kind, ibv_event_type::IBV_EVENT_QP_ACCESS_ERR);
            assert_eq!(event.of, Element::Qp(b.number()));
        }
        None => eprintln!("known: rdma_rxe tells of no wrong access"),
    }
    assert_eq!(device.events.since(begin), None, "none of the port's or the device's");
    drop((a, b));
}
