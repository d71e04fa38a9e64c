//! Identifiers of librdmacm, each one end of a connection, and the channels of their events.
//!
//! # Safety
//!
//! An identifier is destroyed once: after its queue pair, and before the channel of its events, which is borrowed as long. An event is copied, and
//! acknowledged right then. Whoever sends has the memory longer than the queue pair is used.
#![allow(unsafe_code)]

use core::ffi::{CStr, c_int, c_void};
use std::ffi::CString;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::ptr;
use std::time::Instant;

use rdma_core_sys::*;

use crate::pair::{BOUND, Memory, completion, destroyed, done, made};
use crate::readable;

/// How long the kernel may take to find an address, or the way there, in milliseconds.
const RESOLVING: c_int = 20_000;

/// librdmacm, which these tests need.
pub(crate) fn library() -> &'static CmLibrary {
    CmLibrary::open().unwrap().expect("these tests need librdmacm (apt-get install librdmacm1)")
}

/// An address, as librdmacm reads it.
struct Address(*mut rdma_addrinfo);

impl Address {
    /// To listen at, or to connect to.
    fn of(address: SocketAddrV4, passive: bool) -> Self {
        let node = CString::new(address.ip().to_string()).unwrap();
        let service = CString::new(address.port().to_string()).unwrap();
        let hints = rdma_addrinfo {
            ai_flags: RAI_NUMERICHOST | if passive { RAI_PASSIVE } else { 0 },
            ai_family: libc::AF_INET,
            ai_qp_type: ibv_qp_type::IBV_QPT_RC.0.cast_signed(),
            ai_port_space: rdma_port_space::RDMA_PS_TCP.0.cast_signed(),
            ..Default::default()
        };
        let mut found = ptr::null_mut();
        // SAFETY: two strings, and structures of this type.
        let answer =
            unsafe { library().rdma_getaddrinfo(node.as_ptr(), service.as_ptr(), &hints, &mut found) };
        done("rdma_getaddrinfo", answer);
        Self(made("rdma_getaddrinfo", found))
    }
}

impl Drop for Address {
    fn drop(&mut self) {
        // SAFETY: found by the library, and not freed yet.
        unsafe { library().rdma_freeaddrinfo(self.0) };
    }
}

/// What an event has told.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) event: rdma_cm_event_type,
    /// Of a refusal: the reason.
    pub(crate) status: c_int,
    pub(crate) id: *mut rdma_cm_id,
    pub(crate) listen_id: *mut rdma_cm_id,
    /// The other end's data, and zeros behind it.
    pub(crate) private: Vec<u8>,
}

/// Where events arrive.
#[derive(Debug)]
pub(crate) struct Channel(*mut rdma_event_channel);

impl Channel {
    pub(crate) fn new() -> Self {
        // SAFETY: no arguments.
        let channel =
            Self(made("rdma_create_event_channel", unsafe { library().rdma_create_event_channel() }));
        // fcntl(2). So that no event is waited for longer than is polled. SAFETY: a descriptor.
        done("fcntl", unsafe { libc::fcntl(channel.fd(), libc::F_SETFL, libc::O_NONBLOCK) });
        channel
    }

    fn fd(&self) -> c_int {
        // SAFETY: an open channel.
        unsafe { (*self.0).fd }
    }

    /// The next event, which is this one.
    pub(crate) fn tells(&self, wanted: rdma_cm_event_type) -> Told {
        let told = self.next();
        let words = [wanted, told.event].map(words);
        assert_eq!(told.event, wanted, "{} was waited for, and it was {}: {told:?}", words[0], words[1]);
        told
    }

    fn next(&self) -> Told {
        let deadline = Instant::now() + BOUND;
        let mut event = ptr::null_mut();
        // SAFETY: an open channel, and a pointer.
        while unsafe { library().rdma_get_cm_event(self.0, &mut event) } != 0 {
            let error = io::Error::last_os_error();
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "rdma_get_cm_event: {error}");
            assert!(readable(self.fd(), deadline.saturating_duration_since(Instant::now())), "no event");
        }
        // SAFETY: an event that is not acknowledged yet.
        let rdma_cm_event { id, listen_id, event: kind, status, param } = unsafe { *event };
        // SAFETY: an event of a connection.
        let conn = unsafe { param.conn };
        let data = conn.private_data.cast::<u8>();
        let len = if data.is_null() { 0 } else { conn.private_data_len };
        // SAFETY: the event has so many bytes.
        let private = (0..len.into()).map(|at| unsafe { data.wrapping_add(at).read() }).collect();
        // SAFETY: it is not used any more.
        done("rdma_ack_cm_event", unsafe { library().rdma_ack_cm_event(event) });
        Told { event: kind, status, id, listen_id, private }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: its identifiers are destroyed, as they borrow it.
        unsafe { library().rdma_destroy_event_channel(self.0) };
    }
}

fn words(event: rdma_cm_event_type) -> &'static str {
    // SAFETY: any number.
    let text = unsafe { library().rdma_event_str(event) };
    // SAFETY: a static string.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap()
}

/// An identifier, and the channel of its events.
#[derive(Debug)]
pub(crate) struct Id<'a> {
    pub(crate) id: *mut rdma_cm_id,
    pub(crate) events: &'a Channel,
}

impl<'a> Id<'a> {
    fn new(events: &'a Channel) -> Self {
        let mut id = ptr::null_mut();
        let tcp = rdma_port_space::RDMA_PS_TCP;
        // SAFETY: an open channel, and a pointer.
        let answer = unsafe { library().rdma_create_id(events.0, &mut id, ptr::null_mut(), tcp) };
        done("rdma_create_id", answer);
        Self { id: made("rdma_create_id", id), events }
    }

    /// One that listens at a port that was free.
    pub(crate) fn listening(events: &'a Channel, ip: Ipv4Addr) -> Self {
        let id = Self::new(events);
        let address = Address::of(SocketAddrV4::new(ip, 0), true);
        // SAFETY: found by the library.
        let here = unsafe { (*address.0).ai_src_addr };
        // SAFETY: an identifier, and an address.
        done("rdma_bind_addr", unsafe { library().rdma_bind_addr(id.id, here) });
        // SAFETY: an identifier.
        done("rdma_listen", unsafe { library().rdma_listen(id.id, 4) });
        id
    }

    /// One that knows the way to an address.
    pub(crate) fn to(events: &'a Channel, peer: SocketAddrV4) -> Self {
        let id = Self::new(events);
        let address = Address::of(peer, false);
        // SAFETY: found by the library.
        let there = unsafe { (*address.0).ai_dst_addr };
        // SAFETY: an identifier, and an address.
        let answer = unsafe { library().rdma_resolve_addr(id.id, ptr::null_mut(), there, RESOLVING) };
        done("rdma_resolve_addr", answer);
        assert_eq!(events.tells(rdma_cm_event_type::RDMA_CM_EVENT_ADDR_RESOLVED).id, id.id);
        // SAFETY: an identifier.
        done("rdma_resolve_route", unsafe { library().rdma_resolve_route(id.id, RESOLVING) });
        events.tells(rdma_cm_event_type::RDMA_CM_EVENT_ROUTE_RESOLVED);
        id
    }

    /// The new one, of somebody who asks for a connection with `listener`.
    pub(crate) fn asked_by(listener: &Self, private: &[u8]) -> Self {
        let told = listener.events.tells(rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST);
        assert_eq!(told.listen_id, listener.id);
        assert!(told.private.starts_with(private), "{told:?}");
        Self { id: told.id, events: listener.events }
    }

    /// What the library has written there.
    pub(crate) fn fields(&self) -> rdma_cm_id {
        // SAFETY: an identifier, which nobody else uses.
        unsafe { *self.id }
    }

    pub(crate) fn local(&self) -> SocketAddrV4 {
        // SAFETY: an identifier.
        let address = of_ipv4(unsafe { rdma_get_local_addr(self.id) });
        // SAFETY: an identifier.
        assert_eq!(address.port(), u16::from_be(unsafe { library().rdma_get_src_port(self.id) }));
        address
    }

    pub(crate) fn peer(&self) -> SocketAddrV4 {
        // SAFETY: an identifier.
        let address = of_ipv4(unsafe { rdma_get_peer_addr(self.id) });
        // SAFETY: an identifier.
        assert_eq!(address.port(), u16::from_be(unsafe { library().rdma_get_dst_port(self.id) }));
        address
    }

    /// Makes a queue pair, whose protection domain and queues are the library's.
    pub(crate) fn create_qp(&self) {
        let mut init = queue_pair();
        // SAFETY: an identifier, and a structure of this type.
        let answer = unsafe { library().rdma_create_qp(self.id, ptr::null_mut(), &mut init) };
        done("rdma_create_qp", answer);
        assert!(init.cap.max_recv_wr >= 4, "{:?}", init.cap);
    }

    pub(crate) fn connect(&self, private: &[u8], qp_num: u32) {
        // SAFETY: an identifier, and a structure of this type.
        done("rdma_connect", unsafe { library().rdma_connect(self.id, &mut asked(private, qp_num)) });
    }

    pub(crate) fn accept(&self, private: &[u8]) {
        // SAFETY: an identifier, and a structure of this type.
        done("rdma_accept", unsafe { library().rdma_accept(self.id, &mut asked(private, 0)) });
    }

    pub(crate) fn reject(&self, private: &[u8]) {
        let (data, len) = (private.as_ptr().cast::<c_void>(), u8::try_from(private.len()).unwrap());
        // SAFETY: an identifier, and so many bytes.
        done("rdma_reject", unsafe { library().rdma_reject(self.id, data, len) });
    }

    pub(crate) fn disconnect(&self) {
        // SAFETY: an identifier.
        done("rdma_disconnect", unsafe { library().rdma_disconnect(self.id) });
    }

    /// From now on its events arrive there.
    pub(crate) fn migrate(&mut self, events: &'a Channel) {
        // SAFETY: an identifier, and an open channel; all events are acknowledged.
        done("rdma_migrate_id", unsafe { library().rdma_migrate_id(self.id, events.0) });
        self.events = events;
    }

    /// Memory of the library's protection domain.
    pub(crate) fn memory(&self) -> Memory {
        Memory::registered(Library::open().unwrap(), self.fields().pd, 1, crate::PLAIN)
    }

    pub(crate) fn post_recv(&self, memory: &Memory) {
        let mut sge = memory.sge(4096);
        let mut receive = ibv_recv_wr { sg_list: &mut sge, num_sge: 1, ..Default::default() };
        // SAFETY: an open queue pair; the memory outlives the request.
        let answer = unsafe { ibv_post_recv(self.fields().qp, &mut receive, &mut ptr::null_mut()) };
        done("ibv_post_recv", answer);
    }

    /// Sends, and waits until that is acknowledged.
    pub(crate) fn send(&self, memory: &Memory, len: u32) {
        let mut sge = memory.sge(len);
        let mut send = ibv_send_wr {
            sg_list: &mut sge,
            num_sge: 1,
            opcode: ibv_wr_opcode::IBV_WR_SEND,
            send_flags: ibv_send_flags::IBV_SEND_SIGNALED.0,
            ..Default::default()
        };
        // SAFETY: an open queue pair; the memory outlives the request, whose completion is taken.
        let answer = unsafe { ibv_post_send(self.fields().qp, &mut send, &mut ptr::null_mut()) };
        done("ibv_post_send", answer);
        assert_eq!(completion(self.fields().send_cq).status, ibv_wc_status::IBV_WC_SUCCESS);
    }

    /// The next completion of what it receives.
    pub(crate) fn received(&self) -> ibv_wc {
        completion(self.fields().recv_cq)
    }
}

impl Drop for Id<'_> {
    fn drop(&mut self) {
        if !self.fields().qp.is_null() {
            // SAFETY: nobody posts to it any more.
            unsafe { library().rdma_destroy_qp(self.id) };
        }
        // SAFETY: its queue pair is destroyed, and its events are acknowledged.
        destroyed("rdma_destroy_id", unsafe { library().rdma_destroy_id(self.id) });
    }
}

/// A queue pair of a reliable connection.
pub(crate) fn queue_pair() -> ibv_qp_init_attr {
    let cap =
        ibv_qp_cap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, ..Default::default() };
    ibv_qp_init_attr { cap, qp_type: ibv_qp_type::IBV_QPT_RC, ..Default::default() }
}

/// What is asked for, or agreed to. `qp_num` is read where the queue pair is not the identifier's.
fn asked(private: &[u8], qp_num: u32) -> rdma_conn_param {
    rdma_conn_param {
        private_data: private.as_ptr().cast(),
        private_data_len: u8::try_from(private.len()).unwrap(),
        responder_resources: 1,
        initiator_depth: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        qp_num,
        ..Default::default()
    }
}

/// An identifier's address, in which there is room for each kind.
fn of_ipv4(address: *mut libc::sockaddr) -> SocketAddrV4 {
    // SAFETY: an identifier's address.
    let address = unsafe { address.cast::<libc::sockaddr_in>().read() };
    assert_eq!(i32::from(address.sin_family), libc::AF_INET);
    SocketAddrV4::new(u32::from_be(address.sin_addr.s_addr).into(), u16::from_be(address.sin_port))
}
