//! A device, and two queue pairs of it that are connected to each other.
//!
//! # Safety
//!
//! Everything here is the library's and is destroyed once, in the order that it asks for: queue pairs and memory before what they belong to. Memory that the
//! device reaches is only accessed by pointers, and given back after it was deregistered.
#![allow(unsafe_code)]

use core::ffi::{CStr, c_int};
use std::io;
use std::ptr;
use std::time::{Duration, Instant};

use rdma_core_sys::*;

/// How long anything may take: the device may be software, on a machine that is emulated.
pub(crate) const BOUND: Duration = Duration::from_secs(60);

/// Panics with errno, where a function has answered null.
pub(crate) fn made<T>(what: &str, pointer: *mut T) -> *mut T {
    assert!(!pointer.is_null(), "{what}: {}", io::Error::last_os_error());
    pointer
}

/// Panics, where a function has answered an errno, or -1 and errno.
pub(crate) fn done(what: &str, answer: c_int) {
    let error = if answer < 0 { io::Error::last_os_error() } else { io::Error::from_raw_os_error(answer) };
    assert_eq!(answer, 0, "{what}: {error}");
}

/// What is not destroyed right when a test fails is of no interest.
pub(crate) fn destroyed(what: &str, answer: c_int) {
    if !std::thread::panicking() {
        done(what, answer);
    }
}

/// The first device, opened.
pub(crate) struct Device {
    pub(crate) library: &'static Library,
    pub(crate) context: *mut ibv_context,
}

impl Device {
    pub(crate) fn open() -> Self {
        let list = DeviceList::get().unwrap();
        let device = *list.devices().first().expect(
            "these tests need an RDMA device, and there is none: \
             modprobe rdma_rxe; rdma link add rxe0 type rxe netdev IF",
        );
        let library = Library::open().unwrap();
        // SAFETY: a device of the list.
        let context = made("ibv_open_device", unsafe { library.ibv_open_device(device) });
        Self { library, context }
    }

    pub(crate) fn properties(&self) -> ibv_device_attr_ex {
        let mut attr = ibv_device_attr_ex::default();
        // SAFETY: an open context, and a structure of this type.
        let answer = unsafe { self.library.ibv_query_device_ex(self.context, ptr::null(), &mut attr) };
        done("ibv_query_device_ex", answer);
        attr
    }

    pub(crate) fn port(&self) -> ibv_port_attr {
        let mut attr = ibv_port_attr::default();
        // SAFETY: an open context, and a structure of this type.
        done("ibv_query_port", unsafe { self.library.ibv_query_port(self.context, 1, &mut attr) });
        attr
    }

    /// The first GID of RoCE v2 that is an address of IPv4, and its index.
    pub(crate) fn gid(&self) -> (u8, ibv_gid) {
        for index in 0..u8::try_from(self.port().gid_tbl_len).unwrap_or(u8::MAX) {
            let mut entry = ibv_gid_entry::default();
            // SAFETY: an open context, and a structure of this type.
            let answer = unsafe { self.library.ibv_query_gid_ex(self.context, 1, index.into(), &mut entry) };
            // SAFETY: all of the union is bytes.
            let raw = unsafe { entry.gid.raw };
            let is_v4 = raw[..10] == [0; 10] && raw[10..12] == [0xff; 2];
            if answer == 0 && entry.gid_type == ibv_gid_type::IBV_GID_TYPE_ROCE_V2.0 && is_v4 {
                return (index, entry.gid);
            }
        }
        panic!("the device has no GID of RoCE v2 with an IPv4 address: its network interface has none?")
    }

    pub(crate) fn words(&self, status: ibv_wc_status) -> &'static str {
        // SAFETY: any number.
        let text = unsafe { self.library.ibv_wc_status_str(status) };
        // SAFETY: a static string.
        unsafe { CStr::from_ptr(text) }.to_str().unwrap()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: all that was made of it is destroyed.
        destroyed("ibv_close_device", unsafe { self.library.ibv_close_device(self.context) });
    }
}

/// Memory that the device reaches.
pub(crate) struct Memory {
    library: &'static Library,
    pub(crate) mr: *mut ibv_mr,
    at: *mut u8,
    len: usize,
}

pub(crate) const PAGE: usize = 4096;

impl Memory {
    /// Whole pages of zeros, registered for everything, and for what else is asked.
    pub(crate) fn registered(
        library: &'static Library,
        pd: *mut ibv_pd,
        pages: usize,
        more: ibv_access_flags,
    ) -> Self {
        let mut memory = Self { library, mr: ptr::null_mut(), at: ptr::null_mut(), len: pages * PAGE };
        memory.map();
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
            | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
            | ibv_access_flags::IBV_ACCESS_REMOTE_READ
            | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC
            | more;
        // SAFETY: an open protection domain; the memory is there until it is deregistered.
        let mr = unsafe { library.ibv_reg_mr(pd, memory.at.cast(), memory.len, access) };
        memory.mr = made("ibv_reg_mr", mr);
        memory
    }

    /// Maps fresh pages: at its address, where that is set and nothing else is.
    pub(crate) fn map(&mut self) {
        let mut flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        if !self.at.is_null() {
            flags |= libc::MAP_FIXED_NOREPLACE;
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // mmap(2). SAFETY: it replaces nothing.
        let at = unsafe { libc::mmap(self.at.cast(), self.len, access, flags, -1, 0) };
        assert!(at != libc::MAP_FAILED, "mmap: {}", io::Error::last_os_error());
        assert!(self.at.is_null() || self.at == at.cast(), "mapped elsewhere");
        self.at = at.cast();
    }

    /// Nothing is mapped there afterwards; the registration stays.
    pub(crate) fn unmap(&mut self) {
        // munmap(2). SAFETY: mapped by this.
        done("munmap", unsafe { libc::munmap(self.at.cast(), self.len) });
    }

    /// Unmaps, and maps fresh pages at the same address.
    pub(crate) fn map_anew(&mut self) {
        self.unmap();
        self.map();
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        // SAFETY: it is this long; a byte that the device is writing is one or the other.
        (0..self.len).map(|at| unsafe { self.at.wrapping_add(at).read_volatile() }).collect()
    }

    pub(crate) fn word(&self) -> u64 {
        u64::from_ne_bytes(self.bytes()[..8].try_into().unwrap())
    }

    pub(crate) fn fill(&self, bytes: impl IntoIterator<Item = u8>) {
        for (at, byte) in bytes.into_iter().enumerate() {
            assert!(at < self.len);
            // SAFETY: within it, as was just said.
            unsafe { self.at.wrapping_add(at).write_volatile(byte) };
        }
    }

    pub(crate) fn sge(&self, len: u32) -> ibv_sge {
        // SAFETY: registered memory.
        let lkey = unsafe { (*self.mr).lkey };
        ibv_sge { addr: self.at.addr() as u64, length: len, lkey }
    }

    pub(crate) fn address(&self) -> u64 {
        self.at.addr() as u64
    }

    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: registered memory.
        unsafe { (*self.mr).rkey }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if !self.mr.is_null() {
            // SAFETY: no request that names it is on its way.
            destroyed("ibv_dereg_mr", unsafe { self.library.ibv_dereg_mr(self.mr) });
        }
        self.unmap();
    }
}

/// The next completion of an open queue.
pub(crate) fn completion(cq: *mut ibv_cq) -> ibv_wc {
    let deadline = Instant::now() + BOUND;
    loop {
        let mut wc = ibv_wc::default();
        // SAFETY: an open queue, and room for one.
        match unsafe { ibv_poll_cq(cq, 1, &mut wc) } {
            0 => assert!(Instant::now() < deadline, "no completion"),
            1 => return wc,
            answer => panic!("ibv_poll_cq: {answer}"),
        }
        std::thread::yield_now();
    }
}

/// Two reliable connections, the ends of one: what is posted to `a` goes to `b`.
pub(crate) struct Pair {
    pub(crate) a: *mut ibv_qp,
    pub(crate) b: *mut ibv_qp,
    /// Of both.
    pub(crate) cq: *mut ibv_cq,
    pub(crate) channel: *mut ibv_comp_channel,
    /// What `b` receives to.
    pub(crate) srq: *mut ibv_srq,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) device: Device,
}

impl Pair {
    pub(crate) fn connected() -> Self {
        let device = Device::open();
        let library = device.library;
        // SAFETY: an open context.
        let pd = made("ibv_alloc_pd", unsafe { library.ibv_alloc_pd(device.context) });
        // SAFETY: an open context.
        let channel =
            made("ibv_create_comp_channel", unsafe { library.ibv_create_comp_channel(device.context) });
        // SAFETY: an open context, and a channel of it.
        let cq = unsafe { library.ibv_create_cq(device.context, 64, ptr::null_mut(), channel, 0) };
        let cq = made("ibv_create_cq", cq);
        let mut shared = ibv_srq_init_attr {
            attr: ibv_srq_attr { max_wr: 16, max_sge: 1, srq_limit: 0 },
            ..Default::default()
        };
        // SAFETY: an open protection domain.
        let srq = made("ibv_create_srq", unsafe { library.ibv_create_srq(pd, &mut shared) });
        let end = |srq| {
            let cap = ibv_qp_cap {
                max_send_wr: 16,
                max_recv_wr: 16,
                max_send_sge: 1,
                max_recv_sge: 1,
                ..Default::default()
            };
            let qp_type = ibv_qp_type::IBV_QPT_RC;
            let mut init =
                ibv_qp_init_attr { send_cq: cq, recv_cq: cq, srq, cap, qp_type, ..Default::default() };
            // SAFETY: an open protection domain; queues of its context.
            made("ibv_create_qp", unsafe { library.ibv_create_qp(pd, &mut init) })
        };
        let (a, b) = (end(ptr::null_mut()), end(srq));
        let pair = Self { a, b, cq, channel, srq, pd, device };
        pair.connect(a, b);
        pair.connect(b, a);
        pair
    }

    fn modify(&self, qp: *mut ibv_qp, attr: &mut ibv_qp_attr, mask: ibv_qp_attr_mask) {
        // SAFETY: an open queue pair, and a structure of this type.
        let answer = unsafe { self.device.library.ibv_modify_qp(qp, attr, c_int::try_from(mask.0).unwrap()) };
        done("ibv_modify_qp", answer);
    }

    /// INIT, ready to receive, ready to send.
    fn connect(&self, qp: *mut ibv_qp, peer: *mut ibv_qp) {
        use ibv_qp_attr_mask as Mask;
        let (index, gid) = self.device.gid();
        let access = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
            | ibv_access_flags::IBV_ACCESS_REMOTE_READ
            | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC;
        let mut init = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_INIT,
            qp_access_flags: access.0,
            port_num: 1,
            ..Default::default()
        };
        let mask =
            Mask::IBV_QP_STATE | Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT | Mask::IBV_QP_ACCESS_FLAGS;
        self.modify(qp, &mut init, mask);

        let grh = ibv_global_route { dgid: gid, sgid_index: index, hop_limit: 64, ..Default::default() };
        let mut receive = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTR,
            path_mtu: self.device.port().active_mtu,
            // SAFETY: an open queue pair.
            dest_qp_num: unsafe { (*peer).qp_num },
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            ah_attr: ibv_ah_attr { grh, is_global: 1, port_num: 1, ..Default::default() },
            ..Default::default()
        };
        let mask = Mask::IBV_QP_STATE
            | Mask::IBV_QP_AV
            | Mask::IBV_QP_PATH_MTU
            | Mask::IBV_QP_DEST_QPN
            | Mask::IBV_QP_RQ_PSN
            | Mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | Mask::IBV_QP_MIN_RNR_TIMER;
        self.modify(qp, &mut receive, mask);

        let mut send = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTS,
            timeout: 18,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 1,
            ..Default::default()
        };
        let mask = Mask::IBV_QP_STATE
            | Mask::IBV_QP_TIMEOUT
            | Mask::IBV_QP_RETRY_CNT
            | Mask::IBV_QP_RNR_RETRY
            | Mask::IBV_QP_SQ_PSN
            | Mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(qp, &mut send, mask);
    }

    pub(crate) fn state(&self, qp: *mut ibv_qp) -> ibv_qp_state {
        let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
        let mask = c_int::try_from(ibv_qp_attr_mask::IBV_QP_STATE.0).unwrap();
        // SAFETY: an open queue pair, and structures of these types.
        done("ibv_query_qp", unsafe { self.device.library.ibv_query_qp(qp, &mut attr, mask, &mut init) });
        attr.qp_state
    }

    /// As [`Memory::registered`].
    pub(crate) fn memory(&self, pages: usize, more: ibv_access_flags) -> Memory {
        Memory::registered(self.device.library, self.pd, pages, more)
    }

    /// Posts a request, with one buffer and a completion.
    pub(crate) fn post(&self, mut sge: ibv_sge, mut request: ibv_send_wr) {
        request.sg_list = &mut sge;
        request.num_sge = 1;
        request.send_flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
        let mut bad = ptr::null_mut();
        // SAFETY: an open queue pair; the memory outlives the request, for each test takes its completion.
        done("ibv_post_send", unsafe { ibv_post_send(self.a, &mut request, &mut bad) });
    }

    /// The next completion.
    pub(crate) fn completion(&self) -> ibv_wc {
        completion(self.cq)
    }

    /// The next completion, which is one of success.
    pub(crate) fn success(&self, wr_id: u64, opcode: ibv_wc_opcode) -> ibv_wc {
        let wc = self.completion();
        assert_eq!(wc.status, ibv_wc_status::IBV_WC_SUCCESS, "{}", self.device.words(wc.status));
        assert_eq!((wc.wr_id, wc.opcode), (wr_id, opcode));
        wc
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let library = self.device.library;
        for qp in [self.a, self.b] {
            // SAFETY: nobody posts to it any more.
            destroyed("ibv_destroy_qp", unsafe { library.ibv_destroy_qp(qp) });
        }
        // SAFETY: its queue pair is destroyed.
        destroyed("ibv_destroy_srq", unsafe { library.ibv_destroy_srq(self.srq) });
        // SAFETY: its queue pairs are destroyed.
        destroyed("ibv_destroy_cq", unsafe { library.ibv_destroy_cq(self.cq) });
        // SAFETY: its queue is destroyed.
        destroyed("ibv_destroy_comp_channel", unsafe { library.ibv_destroy_comp_channel(self.channel) });
        // SAFETY: all that was made of it is destroyed.
        destroyed("ibv_dealloc_pd", unsafe { library.ibv_dealloc_pd(self.pd) });
    }
}
