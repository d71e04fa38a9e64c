//! Connecting by librdmacm: both ends in this process, at the address of the device's port.

use std::net::Ipv4Addr;
use std::ptr;

use rdma_core_sys::*;

use crate::identifier::{Channel, Id, library, queue_pair};
use crate::pair::{Device, completion, destroyed, done, made};
use crate::pattern;

use rdma_cm_event_type as Event;

/// The reasons of a refusal: nobody listens there; who listens does not want (`IB_CM_REJ_*` of the kernel).
const INVALID_SERVICE_ID: i32 = 8;
const CONSUMER_DEFINED: i32 = 28;

/// The address that stands in the device's GID.
fn address() -> Ipv4Addr {
    let (_, gid) = Device::open().gid();
    // SAFETY: all of the union is bytes.
    let raw = unsafe { gid.raw };
    let octets: [u8; 4] = *raw.last_chunk().unwrap();
    octets.into()
}

#[test]
fn two_identifiers_connect_talk_and_part() {
    let [at_server, at_client, later] = [(); 3].map(|()| Channel::new());
    let listener = Id::listening(&at_server, address());
    let client = Id::to(&at_client, listener.local());
    assert_eq!(client.peer(), listener.local());
    client.create_qp();
    client.connect(b"may I?", 0);

    let mut server = Id::asked_by(&listener, b"may I?");
    assert_eq!((server.peer(), server.local()), (client.local(), listener.local()));
    server.create_qp();
    let [question, answer] = [&server, &client].map(Id::memory);
    server.post_recv(&question);
    client.post_recv(&answer);
    server.accept(b"yes");
    let told = client.events.tells(Event::RDMA_CM_EVENT_ESTABLISHED);
    assert!(told.id == client.id && told.private.starts_with(b"yes"), "{told:?}");
    assert_eq!(server.events.tells(Event::RDMA_CM_EVENT_ESTABLISHED).id, server.id);

    // Each way, once.
    let [from_client, from_server] = [&client, &server].map(Id::memory);
    from_client.fill(pattern(1000));
    client.send(&from_client, 1000);
    let wc = server.received();
    assert_eq!((wc.status, wc.byte_len), (ibv_wc_status::IBV_WC_SUCCESS, 1000));
    assert!(question.bytes().into_iter().take(1000).eq(pattern(1000)));
    from_server.fill(pattern(77));
    server.send(&from_server, 77);
    let wc = client.received();
    assert_eq!((wc.status, wc.byte_len), (ibv_wc_status::IBV_WC_SUCCESS, 77));
    assert!(answer.bytes().into_iter().take(77).eq(pattern(77)));

    // The end arrives on another channel than the beginning; what is still to be received is flushed.
    server.migrate(&later);
    server.post_recv(&question);
    client.post_recv(&answer);
    client.disconnect();
    assert_eq!(later.tells(Event::RDMA_CM_EVENT_DISCONNECTED).id, server.id);
    server.disconnect();
    assert_eq!(at_client.tells(Event::RDMA_CM_EVENT_DISCONNECTED).id, client.id);
    for end in [&client, &server] {
        assert_eq!(end.received().status, ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
    }
}

#[test]
fn one_that_is_refused_is_told_so_and_the_next_is_taken() {
    let [at_server, at_client] = [(); 2].map(|()| Channel::new());
    let listener = Id::listening(&at_server, address());
    let refused = Id::to(&at_client, listener.local());
    refused.create_qp();
    refused.connect(b"first", 0);
    Id::asked_by(&listener, b"first").reject(b"no room");
    let told = at_client.tells(Event::RDMA_CM_EVENT_REJECTED);
    assert_eq!((told.id, told.status), (refused.id, CONSUMER_DEFINED));
    assert!(told.private.starts_with(b"no room"), "{told:?}");

    let taken = Id::to(&at_client, listener.local());
    taken.create_qp();
    taken.connect(b"second", 0);
    let server = Id::asked_by(&listener, b"second");
    server.create_qp();
    server.accept(b"");
    assert_eq!(at_client.tells(Event::RDMA_CM_EVENT_ESTABLISHED).id, taken.id);
    at_server.tells(Event::RDMA_CM_EVENT_ESTABLISHED);
}

#[test]
fn where_nobody_listens_a_connection_is_refused() {
    let [at_server, at_client] = [(); 2].map(|()| Channel::new());
    let listener = Id::listening(&at_server, address());
    let there = listener.local();
    let id = Id::to(&at_client, there);
    id.create_qp();
    drop(listener);
    id.connect(b"anybody?", 0);
    let told = at_client.tells(Event::RDMA_CM_EVENT_REJECTED);
    assert_eq!((told.id, told.status), (id.id, INVALID_SERVICE_ID));
}

/// As programs do that make their queue pairs themselves.
#[test]
fn a_queue_pair_that_is_not_the_identifier_s_is_connected_by_hand() {
    let verbs = Library::open().unwrap();
    let [at_server, at_client] = [(); 2].map(|()| Channel::new());
    let listener = Id::listening(&at_server, address());
    let client = Id::to(&at_client, listener.local());
    let context = client.fields().verbs;
    // SAFETY: an open context.
    let pd = made("ibv_alloc_pd", unsafe { verbs.ibv_alloc_pd(context) });
    // SAFETY: an open context.
    let cq = unsafe { verbs.ibv_create_cq(context, 8, ptr::null_mut(), ptr::null_mut(), 0) };
    let cq = made("ibv_create_cq", cq);
    let mut init = ibv_qp_init_attr { send_cq: cq, recv_cq: cq, ..queue_pair() };
    // SAFETY: an open protection domain; queues of its context.
    let qp = made("ibv_create_qp", unsafe { verbs.ibv_create_qp(pd, &mut init) });
    // SAFETY: an open queue pair.
    client.connect(b"by hand", unsafe { (*qp).qp_num });

    let server = Id::asked_by(&listener, b"by hand");
    server.create_qp();
    let heard = server.memory();
    server.post_recv(&heard);
    server.accept(b"");
    at_client.tells(Event::RDMA_CM_EVENT_CONNECT_RESPONSE);
    for qp_state in [ibv_qp_state::IBV_QPS_INIT, ibv_qp_state::IBV_QPS_RTR, ibv_qp_state::IBV_QPS_RTS] {
        let mut attr = ibv_qp_attr { qp_state, ..Default::default() };
        let mut mask = 0;
        // SAFETY: an identifier, and structures of these types.
        let answer = unsafe { library().rdma_init_qp_attr(client.id, &mut attr, &mut mask) };
        done("rdma_init_qp_attr", answer.expect("librdmacm of rdma-core 23 or later"));
        // SAFETY: an open queue pair, and a structure of this type.
        done("ibv_modify_qp", unsafe { verbs.ibv_modify_qp(qp, &mut attr, mask) });
    }
    // SAFETY: an identifier.
    let answer = unsafe { library().rdma_establish(client.id) };
    done("rdma_establish", answer.expect("librdmacm of rdma-core 23 or later"));
    at_server.tells(Event::RDMA_CM_EVENT_ESTABLISHED);

    let mut send = ibv_send_wr {
        opcode: ibv_wr_opcode::IBV_WR_SEND_WITH_IMM,
        send_flags: ibv_send_flags::IBV_SEND_SIGNALED.0,
        ..Default::default()
    };
    send.__bindgen_anon_1.imm_data = 7_u32.to_be();
    // SAFETY: an open queue pair.
    done("ibv_post_send", unsafe { ibv_post_send(qp, &mut send, &mut ptr::null_mut()) });
    assert_eq!(completion(cq).status, ibv_wc_status::IBV_WC_SUCCESS);
    let wc = server.received();
    assert_eq!(wc.status, ibv_wc_status::IBV_WC_SUCCESS);
    // SAFETY: a message with such a word.
    assert_eq!(unsafe { wc.__bindgen_anon_1.imm_data }, 7_u32.to_be());

    // SAFETY: nobody posts to it any more.
    destroyed("ibv_destroy_qp", unsafe { verbs.ibv_destroy_qp(qp) });
    // SAFETY: its queue pair is destroyed.
    destroyed("ibv_destroy_cq", unsafe { verbs.ibv_destroy_cq(cq) });
    // SAFETY: all that was made of it is destroyed.
    destroyed("ibv_dealloc_pd", unsafe { verbs.ibv_dealloc_pd(pd) });
}
