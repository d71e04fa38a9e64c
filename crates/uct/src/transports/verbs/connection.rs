//! Connecting a queue pair with another one, of this device or of another machine's.

use std::sync::Arc;

use rdma_core_sys::{
    ibv_access_flags, ibv_ah_attr, ibv_gid, ibv_global_route, ibv_mtu, ibv_qp_attr, ibv_qp_attr_mask as Mask,
    ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state, ibv_qp_type,
};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use super::device::Device;
use super::port::Port;
use super::sys::{Cq, Pd, Qp};
use super::wire::QpAddress;

/// 4.096 µs × 2^18, about a second, for an acknowledgement: seven times, then the connection is given up (`ibv_modify_qp(3)`). Seven
/// repetitions would be for ever with rxe (`drivers/infiniband/sw/rxe/rxe_comp.c`).
const ACK_TIMEOUT: u8 = 18;
const RETRIES: u8 = 6;
/// How often a peer that has posted no receive is asked again, each time after [`NOT_READY`]. More would be for ever (`ibv_modify_qp(3)`).
const NOT_READY_RETRIES: u8 = 6;
/// 10.24 ms (`ibv_modify_qp(3)`).
const NOT_READY: u8 = 20;
/// Router hops.
const HOPS: u8 = 64;
/// Numbers of packets and of queue pairs have 24 bits (InfiniBand Architecture, 9.2).
const MASK_24: u32 = (1 << 24) - 1;

/// A queue pair that is not connected yet.
#[derive(Debug)]
pub(super) struct Unconnected {
    qp: Qp,
    address: QpAddress,
    port: Port,
    reads_out: u8,
}

impl Device {
    /// A queue pair for `cap` in this device's own protection domain, as [`Device::queue_pair_in`].
    pub(super) fn queue_pair(
        &self,
        cq: Cq,
        cap: ibv_qp_cap,
        access: ibv_access_flags,
    ) -> Result<Unconnected, Errno> {
        self.queue_pair_in(&self.pd, cq, cap, access)
    }

    /// A queue pair for `cap`, whose completions come to `cq`. Its peer may do with memory of the protection domain what `access` says, as
    /// far as registrations allow it, too.
    pub(super) fn queue_pair_in(
        &self,
        pd: &Arc<Pd>,
        cq: Cq,
        cap: ibv_qp_cap,
        access: ibv_access_flags,
    ) -> Result<Unconnected, Errno> {
        let init = ibv_qp_init_attr { cap, qp_type: ibv_qp_type::IBV_QPT_RC, ..Default::default() };
        let qp = Qp::new(pd, cq, init)?;
        let attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_INIT,
            qp_access_flags: access.0,
            port_num: self.port.number,
            ..Default::default()
        };
        let mask =
            Mask::IBV_QP_STATE | Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT | Mask::IBV_QP_ACCESS_FLAGS;
        qp.modify(attr, mask)?;
        let mut psn = [0; 4];
        getrandom(&mut psn, GetRandomFlags::empty())?;
        let address = QpAddress {
            number: qp.number() & MASK_24,
            psn: u32::from_ne_bytes(psn) & MASK_24,
            gid: self.port.gid.map(|gid| gid.raw),
            lid: self.port.lid,
            mtu: u8::try_from(self.port.mtu.0).unwrap_or(1),
            reads: self.reads_in,
        };
        Ok(Unconnected { qp, address, port: self.port, reads_out: self.reads_out })
    }
}

impl Unconnected {
    /// To post receives to, before its peer can send.
    pub(super) fn qp(&self) -> &Qp {
        &self.qp
    }

    /// Where its peer is to connect to.
    pub(super) fn address(&self) -> QpAddress {
        self.address
    }

    /// Connects it with the one at `peer`, which connects with this one.
    pub(super) fn connect(self, peer: &QpAddress) -> Result<Qp, Errno> {
        let way = self.port.to(peer).ok_or(Errno::NETUNREACH)?;
        let attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTR,
            path_mtu: ibv_mtu(u32::from(self.address.mtu.min(peer.mtu))),
            dest_qp_num: peer.number,
            rq_psn: peer.psn,
            max_dest_rd_atomic: self.address.reads,
            min_rnr_timer: NOT_READY,
            ah_attr: way,
            ..Default::default()
        };
        let mask = Mask::IBV_QP_STATE
            | Mask::IBV_QP_AV
            | Mask::IBV_QP_PATH_MTU
            | Mask::IBV_QP_DEST_QPN
            | Mask::IBV_QP_RQ_PSN
            | Mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | Mask::IBV_QP_MIN_RNR_TIMER;
        self.qp.modify(attr, mask)?;
        let attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTS,
            sq_psn: self.address.psn,
            timeout: ACK_TIMEOUT,
            retry_cnt: RETRIES,
            rnr_retry: NOT_READY_RETRIES,
            max_rd_atomic: self.reads_out.min(peer.reads),
            ..Default::default()
        };
        let mask = Mask::IBV_QP_STATE
            | Mask::IBV_QP_TIMEOUT
            | Mask::IBV_QP_RETRY_CNT
            | Mask::IBV_QP_RNR_RETRY
            | Mask::IBV_QP_SQ_PSN
            | Mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.qp.modify(attr, mask)?;
        Ok(self.qp)
    }
}

impl Port {
    /// The way to a peer; `None`: this port has a GID and the peer none, or the other way round.
    fn to(self, peer: &QpAddress) -> Option<ibv_ah_attr> {
        let global = match (self.gid, peer.gid) {
            (Some(own), Some(gid)) => Some(ibv_global_route {
                dgid: ibv_gid { raw: gid },
                sgid_index: own.index,
                hop_limit: HOPS,
                ..Default::default()
            }),
            (None, None) => None,
            _ => return None,
        };
        Some(ibv_ah_attr {
            is_global: global.is_some().into(),
            grh: global.unwrap_or_default(),
            dlid: peer.lid,
            port_num: self.number,
            ..Default::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::port::Gid;
    use super::*;

    fn peer(gid: Option<[u8; 16]>, lid: u16) -> QpAddress {
        QpAddress { number: 7, psn: 8, gid, lid, mtu: 3, reads: 1 }
    }

    #[test]
    fn a_way_is_by_gids_of_both_or_of_none() {
        let gid = |raw| Gid { index: 3, raw };
        let port = |gid| Port { number: 2, lid: 1, mtu: ibv_mtu::IBV_MTU_1024, is_ethernet: true, gid };
        let way = port(Some(gid([1; 16]))).to(&peer(Some([2; 16]), 0)).expect("both have one");
        assert_eq!((way.is_global, way.port_num, way.grh.sgid_index), (1, 2, 3));
        let local = port(None).to(&peer(None, 9)).expect("none has one");
        assert_eq!((local.is_global, local.port_num, local.dlid), (0, 2, 9));
        assert!(port(Some(gid([1; 16]))).to(&peer(None, 9)).is_none());
        assert!(port(None).to(&peer(Some([2; 16]), 9)).is_none());
    }
}
