//! The bindings against a real library and a real kernel: needs an RDMA device that speaks RoCE v2, for which the kernel's `rdma_rxe` will do. Without
//! one these tests fail. They are only built with the feature `rxe-tests`:
//!
//! ```sh
//! cargo test -p rdma-core-sys --features rxe-tests --test rxe
//! ```
//!
//! # Safety
//!
//! What is passed to the libraries lives in `pair` and `identifier`, which say so for all of it.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used)]
// What a device has not is said, beside what it has.
#![allow(clippy::print_stderr)]

mod connected;
mod identifier;
mod on_demand;
mod pair;

use std::ptr;
use std::time::{Duration, Instant};

use pair::{BOUND, Device, Memory, Pair, done};
use rdma_core_sys::*;

/// No flags but those that [`Pair::memory`] has anyway.
pub(crate) const PLAIN: ibv_access_flags = ibv_access_flags(0);

/// The vendor that `rdma_rxe` names.
pub(crate) const RXE: u32 = 0xff_ffff;

/// A request that accesses the other end's memory.
pub(crate) fn rdma(wr_id: u64, opcode: ibv_wr_opcode, remote_addr: u64, rkey: u32) -> ibv_send_wr {
    let mut request = ibv_send_wr { wr_id, opcode, ..Default::default() };
    request.wr.rdma.remote_addr = remote_addr;
    request.wr.rdma.rkey = rkey;
    request
}

/// A request for an atomic operation on the other end's word.
pub(crate) fn atomic(wr_id: u64, opcode: ibv_wr_opcode, on: &Memory, add: u64, swap: u64) -> ibv_send_wr {
    let mut request = ibv_send_wr { wr_id, opcode, ..Default::default() };
    request.wr.atomic.remote_addr = on.address();
    request.wr.atomic.rkey = on.rkey();
    request.wr.atomic.compare_add = add;
    request.wr.atomic.swap = swap;
    request
}

/// Bytes that tell where they are.
pub(crate) fn pattern(len: usize) -> impl Iterator<Item = u8> {
    (0..len).map(|at| u8::try_from(at * 7 % 251).unwrap())
}

/// Waits until a descriptor can be read: whether it can.
fn readable(fd: i32, bound: Duration) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // poll(2). SAFETY: one structure.
    unsafe { libc::poll(&mut poll, 1, i32::try_from(bound.as_millis()).unwrap()) == 1 }
}

#[test]
fn the_device_and_its_port_say_what_they_can() {
    let device = Device::open();
    let properties = device.properties();
    assert!(properties.orig_attr.max_qp > 0 && properties.orig_attr.phys_port_cnt > 0);
    let mut plain = ibv_device_attr::default();
    // SAFETY: an open context, and a structure of this type.
    done("ibv_query_device", unsafe { device.library.ibv_query_device(device.context, &mut plain) });
    assert_eq!(plain.max_mr_size, properties.orig_attr.max_mr_size);
    assert_eq!(plain.phys_port_cnt, properties.orig_attr.phys_port_cnt);
    eprintln!(
        "on-demand paging: general {:#x}, rc {:#x}",
        properties.odp_caps.general_caps, properties.odp_caps.per_transport_caps.rc_odp_caps
    );

    let port = device.port();
    assert_eq!(port.state, ibv_port_state::IBV_PORT_ACTIVE);
    assert_eq!(u32::from(port.link_layer), IBV_LINK_LAYER_ETHERNET);
    assert!(port.gid_tbl_len > 0 && port.max_msg_sz > 0);
}

#[test]
fn a_gid_is_the_same_by_both_calls() {
    let device = Device::open();
    let (index, gid) = device.gid();
    let mut again = ibv_gid::default();
    // SAFETY: an open context, and a union of this type.
    let answer = unsafe { device.library.ibv_query_gid(device.context, 1, index.into(), &mut again) };
    done("ibv_query_gid", answer);
    // SAFETY: all of the union is bytes.
    let raw = unsafe { gid.raw };
    // SAFETY: as above.
    assert_eq!(raw, unsafe { again.raw });
}

#[test]
fn what_is_written_there_is_read_back() {
    let pair = Pair::connected();
    let [from, there, back] = [(); 3].map(|()| pair.memory(4, PLAIN));
    let len = 10_000;
    from.fill(pattern(len as usize));
    pair.post(from.sge(len), rdma(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, there.address(), there.rkey()));
    pair.success(1, ibv_wc_opcode::IBV_WC_RDMA_WRITE);
    assert!(there.bytes().into_iter().take(len as usize).eq(pattern(len as usize)));
    assert!(there.bytes()[len as usize..].iter().all(|&byte| byte == 0), "more was written than was asked");

    pair.post(back.sge(len), rdma(2, ibv_wr_opcode::IBV_WR_RDMA_READ, there.address(), there.rkey()));
    pair.success(2, ibv_wc_opcode::IBV_WC_RDMA_READ);
    assert_eq!(back.bytes(), there.bytes());
}

#[test]
fn atomics_answer_what_was_there() {
    let pair = Pair::connected();
    let [word, was] = [(); 2].map(|()| pair.memory(1, PLAIN));
    word.fill(40_u64.to_ne_bytes());

    let add = ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
    pair.post(was.sge(8), atomic(1, add, &word, 2, 0));
    pair.success(1, ibv_wc_opcode::IBV_WC_FETCH_ADD);
    assert_eq!((was.word(), word.word()), (40, 42));

    let swap = ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP;
    pair.post(was.sge(8), atomic(2, swap, &word, 42, 7));
    pair.success(2, ibv_wc_opcode::IBV_WC_COMP_SWAP);
    assert_eq!((was.word(), word.word()), (42, 7));

    pair.post(was.sge(8), atomic(3, swap, &word, 42, 8));
    pair.success(3, ibv_wc_opcode::IBV_WC_COMP_SWAP);
    assert_eq!((was.word(), word.word()), (7, 7), "another word was there, so it stays");
}

#[test]
fn a_message_comes_where_it_is_received() {
    let pair = Pair::connected();
    let [from, shared, own] = [(); 3].map(|()| pair.memory(1, PLAIN));
    from.fill(pattern(1000));

    // To the end that has a shared receive queue, with a word beside the data.
    let mut sge = shared.sge(4096);
    let mut receive = ibv_recv_wr { wr_id: 1, sg_list: &mut sge, num_sge: 1, ..Default::default() };
    let mut bad = ptr::null_mut();
    // SAFETY: an open queue; the memory outlives the request.
    done("ibv_post_srq_recv", unsafe { ibv_post_srq_recv(pair.srq, &mut receive, &mut bad) });
    let mut send = ibv_send_wr {
        wr_id: 2,
        opcode: ibv_wr_opcode::IBV_WR_SEND_WITH_IMM,
        send_flags: ibv_send_flags::IBV_SEND_SOLICITED.0,
        ..Default::default()
    };
    send.__bindgen_anon_1.imm_data = 0x0102_0304_u32.to_be();
    pair.post(from.sge(1000), send);
    let mut both = [pair.completion(), pair.completion()];
    both.sort_by_key(|wc| wc.wr_id);
    for wc in &both {
        assert_eq!(wc.status, ibv_wc_status::IBV_WC_SUCCESS, "{}", pair.device.words(wc.status));
    }
    assert_eq!(both.map(|wc| wc.opcode), [ibv_wc_opcode::IBV_WC_RECV, ibv_wc_opcode::IBV_WC_SEND]);
    assert_eq!(both[0].byte_len, 1000);
    assert_ne!(both[0].wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0, 0);
    // SAFETY: the flag says that it is this one.
    assert_eq!(unsafe { both[0].__bindgen_anon_1.imm_data }, 0x0102_0304_u32.to_be());
    assert!(shared.bytes().into_iter().take(1000).eq(pattern(1000)));

    // And back, to the end that has a receive queue of its own.
    let mut sge = own.sge(4096);
    let mut receive = ibv_recv_wr { wr_id: 3, sg_list: &mut sge, num_sge: 1, ..Default::default() };
    // SAFETY: an open queue pair; the memory outlives the request.
    done("ibv_post_recv", unsafe { ibv_post_recv(pair.a, &mut receive, &mut bad) });
    let mut sge = shared.sge(500);
    let mut send = ibv_send_wr {
        sg_list: &mut sge,
        num_sge: 1,
        opcode: ibv_wr_opcode::IBV_WR_SEND,
        ..Default::default()
    };
    let mut bad = ptr::null_mut();
    // SAFETY: an open queue pair; the memory outlives the request, which the receiver's completion follows.
    done("ibv_post_send", unsafe { ibv_post_send(pair.b, &mut send, &mut bad) });
    assert_eq!(pair.success(3, ibv_wc_opcode::IBV_WC_RECV).byte_len, 500);
    assert!(own.bytes().into_iter().take(500).eq(pattern(500)));
}

#[test]
fn an_event_tells_of_the_next_completion() {
    let pair = Pair::connected();
    let [from, there] = [(); 2].map(|()| pair.memory(1, PLAIN));
    // SAFETY: an open queue.
    done("ibv_req_notify_cq", unsafe { ibv_req_notify_cq(pair.cq, 0) });
    pair.post(from.sge(8), rdma(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, there.address(), there.rkey()));
    // SAFETY: an open channel.
    assert!(readable(unsafe { (*pair.channel).fd }, BOUND), "no event");
    let (mut cq, mut of_ours) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: an open channel with an event, and two pointers.
    let answer = unsafe { pair.device.library.ibv_get_cq_event(pair.channel, &mut cq, &mut of_ours) };
    done("ibv_get_cq_event", answer);
    assert_eq!(cq, pair.cq);
    // SAFETY: one event was taken.
    unsafe { pair.device.library.ibv_ack_cq_events(cq, 1) };
    pair.success(1, ibv_wc_opcode::IBV_WC_RDMA_WRITE);
}

#[test]
fn a_wrong_key_is_told_in_words_and_nothing_is_written() {
    let pair = Pair::connected();
    let [from, there] = [(); 2].map(|()| pair.memory(1, PLAIN));
    from.fill(pattern(64));
    let wrong = there.rkey() ^ 0x55;
    pair.post(from.sge(64), rdma(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, there.address(), wrong));
    let wc = pair.completion();
    assert_eq!((wc.wr_id, wc.status), (1, ibv_wc_status::IBV_WC_REM_ACCESS_ERR));
    assert_eq!(pair.device.words(wc.status), "remote access error");
    assert!(there.bytes().iter().all(|&byte| byte == 0));

    // That ends the connection: what is posted from now on is flushed.
    let deadline = Instant::now() + BOUND;
    while pair.state(pair.a) != ibv_qp_state::IBV_QPS_ERR {
        assert!(Instant::now() < deadline, "the queue pair is in state {:?}", pair.state(pair.a));
    }
    pair.post(from.sge(64), rdma(2, ibv_wr_opcode::IBV_WR_RDMA_WRITE, there.address(), there.rkey()));
    let wc = pair.completion();
    assert_eq!((wc.wr_id, wc.status), (2, ibv_wc_status::IBV_WC_WR_FLUSH_ERR));
}

/// `rdma_rxe` of Linux 6.1 tells of no such thing, that of 7.3 does.
#[test]
fn the_end_that_was_accessed_wrongly_is_told_by_an_event_of_the_device() {
    let pair = Pair::connected();
    let [from, there] = [(); 2].map(|()| pair.memory(1, PLAIN));
    let wrong = there.rkey() ^ 0x55;
    pair.post(from.sge(64), rdma(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, there.address(), wrong));
    assert_eq!(pair.completion().status, ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
    // SAFETY: an open context.
    if !readable(unsafe { (*pair.device.context).async_fd }, Duration::from_secs(5)) {
        assert_eq!(pair.device.properties().orig_attr.vendor_id, RXE, "not only rdma_rxe is silent");
        return eprintln!("known: rdma_rxe tells of no wrong access");
    }
    let mut event = ibv_async_event::default();
    // SAFETY: an open context with an event, and a structure of this type.
    let answer = unsafe { pair.device.library.ibv_get_async_event(pair.device.context, &mut event) };
    done("ibv_get_async_event", answer);
    assert_eq!(event.event_type, ibv_event_type::IBV_EVENT_QP_ACCESS_ERR);
    // SAFETY: an event of a queue pair.
    assert_eq!(unsafe { event.element.qp }, pair.b);
    // SAFETY: taken, and not acknowledged yet.
    unsafe { pair.device.library.ibv_ack_async_event(&mut event) };
}

#[test]
fn optional_flags_are_for_devices_that_know_them() {
    let pair = Pair::connected();
    let [from, there] = [(); 2].map(|()| pair.memory(1, ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING));
    from.fill(pattern(64));
    pair.post(from.sge(64), rdma(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, there.address(), there.rkey()));
    pair.success(1, ibv_wc_opcode::IBV_WC_RDMA_WRITE);
    assert_eq!(there.bytes(), from.bytes());
}

#[test]
fn forks_are_told_of() {
    let device = Device::open();
    // SAFETY: no arguments.
    let status = unsafe { device.library.ibv_is_fork_initialized() };
    let known = [
        ibv_fork_status::IBV_FORK_DISABLED,
        ibv_fork_status::IBV_FORK_ENABLED,
        ibv_fork_status::IBV_FORK_UNNEEDED,
    ];
    assert!(status.is_none_or(|status| known.contains(&status)), "{status:?}");
}
