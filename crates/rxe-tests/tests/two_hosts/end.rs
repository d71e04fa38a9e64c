//! One end of a reliable connection, with the memory that both ends reach.
//!
//! # Safety
//!
//! Everything here is the library's, and is destroyed once, in the order that it asks for, or never: a role that fails ends its process. Memory
//! that the device reaches is only accessed by pointers, and given back after it was deregistered.
#![allow(unsafe_code)]

use core::ffi::c_int;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::net::Ipv6Addr;
use std::ptr;
use std::time::{Duration, Instant};

use rdma_core_sys::*;
use rxe_tests::{GID_INDEX, gid_of};

/// Until a request is completed.
const BOUND: Duration = Duration::from_secs(60);

/// What an end tells the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) qp: u32,
    pub(crate) gid: Ipv6Addr,
    pub(crate) rkey: u32,
    pub(crate) address: u64,
}

pub(crate) struct End {
    library: &'static Library,
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    cq: *mut ibv_cq,
    qp: *mut ibv_qp,
    mr: *mut ibv_mr,
    at: *mut u8,
    len: usize,
    gid: Ipv6Addr,
}

fn made<T>(what: &str, pointer: *mut T) -> *mut T {
    assert!(!pointer.is_null(), "{what}: {}", io::Error::last_os_error());
    pointer
}

fn done(what: &str, answer: c_int) {
    assert_eq!(answer, 0, "{what}: {}", io::Error::from_raw_os_error(answer.abs()));
}

fn layout(len: usize) -> Layout {
    Layout::from_size_align(len, 4096).unwrap()
}

const ACCESS: ibv_access_flags = ibv_access_flags(
    ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
        | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
        | ibv_access_flags::IBV_ACCESS_REMOTE_READ.0,
);

impl End {
    /// An end at this device, not connected, with so many zeros.
    pub(crate) fn open(name: &str, len: usize) -> Self {
        let library = Library::open().unwrap();
        let list = DeviceList::get().unwrap();
        let at = list.names().iter().position(|known| known == name);
        let device = list.devices()[at.unwrap_or_else(|| panic!("{name} is not there: {:?}", list.names()))];
        // SAFETY: a device of the list.
        let context = made("ibv_open_device", unsafe { library.ibv_open_device(device) });
        // SAFETY: an open context.
        let pd = made("ibv_alloc_pd", unsafe { library.ibv_alloc_pd(context) });
        // SAFETY: an open context.
        let cq = unsafe { library.ibv_create_cq(context, 16, ptr::null_mut(), ptr::null_mut(), 0) };
        let cq = made("ibv_create_cq", cq);
        let cap = ibv_qp_cap {
            max_send_wr: 4,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            ..Default::default()
        };
        let qp_type = ibv_qp_type::IBV_QPT_RC;
        let mut init = ibv_qp_init_attr { send_cq: cq, recv_cq: cq, cap, qp_type, ..Default::default() };
        // SAFETY: an open protection domain; a queue of its context.
        let qp = made("ibv_create_qp", unsafe { library.ibv_create_qp(pd, &mut init) });
        // SAFETY: not of length 0.
        let at = unsafe { alloc_zeroed(layout(len)) };
        // SAFETY: the memory is there until it is deregistered.
        let mr = made("ibv_reg_mr", unsafe { library.ibv_reg_mr(pd, at.cast(), len, ACCESS) });
        Self { library, context, pd, cq, qp, mr, at, len, gid: gid_of(name, GID_INDEX).unwrap() }
    }

    /// What the other end is to know.
    pub(crate) fn own(&self) -> Peer {
        // SAFETY: an open queue pair.
        let qp = unsafe { (*self.qp).qp_num };
        // SAFETY: registered memory.
        let rkey = unsafe { (*self.mr).rkey };
        Peer { qp, gid: self.gid, rkey, address: self.at.addr() as u64 }
    }

    fn port(&self) -> ibv_port_attr {
        let mut attr = ibv_port_attr::default();
        // SAFETY: an open context, and a structure of this type.
        done("ibv_query_port", unsafe { self.library.ibv_query_port(self.context, 1, &mut attr) });
        attr
    }

    /// Bytes in a packet, at most.
    pub(crate) fn mtu(&self) -> usize {
        // 1 stands for 256, and each next for twice as many.
        128 << self.port().active_mtu.0
    }

    fn modify(&self, attr: &mut ibv_qp_attr, mask: ibv_qp_attr_mask) {
        // SAFETY: an open queue pair, and a structure of this type.
        let answer = unsafe { self.library.ibv_modify_qp(self.qp, attr, c_int::try_from(mask.0).unwrap()) };
        done("ibv_modify_qp", answer);
    }

    /// INIT, ready to receive, ready to send.
    pub(crate) fn connect(&self, peer: &Peer) {
        use ibv_qp_attr_mask as Mask;
        let state = |qp_state| ibv_qp_attr { qp_state, ..Default::default() };
        let mut init =
            ibv_qp_attr { qp_access_flags: ACCESS.0, port_num: 1, ..state(ibv_qp_state::IBV_QPS_INIT) };
        let mask =
            Mask::IBV_QP_STATE | Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT | Mask::IBV_QP_ACCESS_FLAGS;
        self.modify(&mut init, mask);

        let dgid = ibv_gid { raw: peer.gid.octets() };
        let sgid_index = u8::try_from(GID_INDEX).unwrap();
        let grh = ibv_global_route { dgid, sgid_index, hop_limit: 64, ..Default::default() };
        let mut receive = ibv_qp_attr {
            path_mtu: self.port().active_mtu,
            dest_qp_num: peer.qp,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            ah_attr: ibv_ah_attr { grh, is_global: 1, port_num: 1, ..Default::default() },
            ..state(ibv_qp_state::IBV_QPS_RTR)
        };
        let mask = Mask::IBV_QP_STATE
            | Mask::IBV_QP_AV
            | Mask::IBV_QP_PATH_MTU
            | Mask::IBV_QP_DEST_QPN
            | Mask::IBV_QP_RQ_PSN
            | Mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | Mask::IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut receive, mask);

        let mut send = ibv_qp_attr {
            timeout: 18,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 1,
            ..state(ibv_qp_state::IBV_QPS_RTS)
        };
        let mask = Mask::IBV_QP_STATE
            | Mask::IBV_QP_TIMEOUT
            | Mask::IBV_QP_RETRY_CNT
            | Mask::IBV_QP_RNR_RETRY
            | Mask::IBV_QP_SQ_PSN
            | Mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut send, mask);
    }

    /// Writes all of this end's memory into the other's.
    pub(crate) fn write(&self, peer: &Peer) {
        self.request(ibv_wr_opcode::IBV_WR_RDMA_WRITE, peer);
    }

    /// Reads all of the other end's memory into this one's.
    pub(crate) fn read(&self, peer: &Peer) {
        self.request(ibv_wr_opcode::IBV_WR_RDMA_READ, peer);
    }

    fn request(&self, opcode: ibv_wr_opcode, peer: &Peer) {
        // SAFETY: registered memory.
        let lkey = unsafe { (*self.mr).lkey };
        let length = u32::try_from(self.len).unwrap();
        let mut sge = ibv_sge { addr: self.at.addr() as u64, length, lkey };
        let mut request = ibv_send_wr {
            opcode,
            sg_list: &mut sge,
            num_sge: 1,
            send_flags: ibv_send_flags::IBV_SEND_SIGNALED.0,
            ..Default::default()
        };
        request.wr.rdma.remote_addr = peer.address;
        request.wr.rdma.rkey = peer.rkey;
        let mut bad = ptr::null_mut();
        // SAFETY: an open queue pair; the memory outlives the request, whose completion is taken below.
        done("ibv_post_send", unsafe { ibv_post_send(self.qp, &mut request, &mut bad) });
        let deadline = Instant::now() + BOUND;
        loop {
            let mut wc = ibv_wc::default();
            // SAFETY: an open queue, and room for one.
            match unsafe { ibv_poll_cq(self.cq, 1, &mut wc) } {
                0 => assert!(Instant::now() < deadline, "no completion of {opcode:?}"),
                answer => {
                    assert_eq!((answer, wc.status), (1, ibv_wc_status::IBV_WC_SUCCESS), "{opcode:?}");
                    return;
                }
            }
            std::thread::yield_now();
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        // SAFETY: it is this long; a byte that the device is writing is one or the other.
        (0..self.len).map(|at| unsafe { self.at.wrapping_add(at).read_volatile() }).collect()
    }

    pub(crate) fn fill(&self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.len);
        for (at, byte) in bytes.iter().enumerate() {
            // SAFETY: within it, as was just said.
            unsafe { self.at.wrapping_add(at).write_volatile(*byte) };
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // SAFETY: nobody posts to it any more.
        done("ibv_destroy_qp", unsafe { self.library.ibv_destroy_qp(self.qp) });
        // SAFETY: no request that names it is on its way.
        done("ibv_dereg_mr", unsafe { self.library.ibv_dereg_mr(self.mr) });
        // SAFETY: allocated so, and nobody reaches it any more.
        unsafe { dealloc(self.at, layout(self.len)) };
        // SAFETY: its queue pair is destroyed.
        done("ibv_destroy_cq", unsafe { self.library.ibv_destroy_cq(self.cq) });
        // SAFETY: all that was made of it is destroyed.
        done("ibv_dealloc_pd", unsafe { self.library.ibv_dealloc_pd(self.pd) });
        // SAFETY: all that was made of it is destroyed.
        done("ibv_close_device", unsafe { self.library.ibv_close_device(self.context) });
    }
}
