//! Where the fields lie that are used here: checked when this is compiled, on every machine, and by a test with the headers' own compiler,
//! where there are headers.
//!
//! Structures with a lock in them are as long as the C library's locks make them; all other numbers are the same on each machine of 64 bits.

use core::mem::{offset_of, size_of};

use crate::bindings::*;
use crate::cm_bindings::*;

/// Bytes of a `pthread_mutex_t`: 40 on x86_64, 48 on aarch64.
const MUTEX: usize = size_of::<libc::pthread_mutex_t>();

/// Bytes of a `pthread_cond_t`: 48.
const COND: usize = size_of::<libc::pthread_cond_t>();

#[cfg(target_arch = "x86_64")]
const _: () = assert!(MUTEX == 40 && COND == 48);
#[cfg(target_arch = "aarch64")]
const _: () = assert!(MUTEX == 48 && COND == 48);

/// Sizes and offsets, asserted; and as assertions in C, for the test.
macro_rules! layout {
    ($in_c:ident; $($kind:ident $name:ident: $size:expr => { $($($field:ident).+: $offset:expr),* $(,)? })*) => {
        $(
            const _: () = {
                assert!(size_of::<$name>() == $size);
                $(assert!(offset_of!($name, $($field).+) == $offset);)*
            };
        )*

        #[cfg(test)]
        const $in_c: &[&str] = &[
            $(
                concat!("_Static_assert(sizeof(", stringify!($kind $name), ") == ", stringify!($size), ", \"size\");"),
                $(concat!(
                    "_Static_assert(offsetof(", stringify!($kind $name), ", ", stringify!($($field).+), ") == ",
                    stringify!($offset), ", \"offset\");"
                ),)*
            )*
        ];
    };
}

layout! {
    VERBS_IN_C;
    struct ibv_device: 664 => {
        node_type: 16, transport_type: 20, name: 24, dev_name: 88, dev_path: 152, ibdev_path: 408,
    }
    struct ibv_context: 288 + MUTEX => {
        device: 0, ops: 8, cmd_fd: 264, async_fd: 268, num_comp_vectors: 272, mutex: 280,
        abi_compat: 280 + MUTEX,
    }
    struct ibv_context_ops: 256 => {
        poll_cq: 88, req_notify_cq: 96, post_srq_recv: 160, post_send: 200, post_recv: 208,
    }
    struct ibv_device_attr: 232 => {
        node_guid: 64, max_mr_size: 80, device_cap_flags: 116, max_qp_rd_atom: 144,
        max_qp_init_rd_atom: 156, atomic_cap: 164, phys_port_cnt: 227,
    }
    struct ibv_odp_caps: 24 => {
        general_caps: 0, per_transport_caps.rc_odp_caps: 8, per_transport_caps.ud_odp_caps: 16,
    }
    struct ibv_device_attr_ex: 400 => {
        comp_mask: 232, odp_caps: 240, device_cap_flags_ex: 280, pci_atomic_caps: 384, xrc_odp_caps: 392,
        phys_port_cnt_ex: 396,
    }
    struct ibv_query_device_ex_input: 4 => {
        comp_mask: 0,
    }
    struct ibv_port_attr: 52 => {
        state: 0, max_mtu: 4, active_mtu: 8, gid_tbl_len: 12, port_cap_flags: 16, max_msg_sz: 20, lid: 34,
        active_width: 43, link_layer: 46, flags: 47, port_cap_flags2: 48,
    }
    union ibv_gid: 16 => {
        raw: 0, global.subnet_prefix: 0, global.interface_id: 8,
    }
    struct ibv_gid_entry: 32 => {
        gid: 0, gid_index: 16, port_num: 20, gid_type: 24, ndev_ifindex: 28,
    }
    struct ibv_pd: 16 => {
        context: 0, handle: 8,
    }
    struct ibv_mr: 48 => {
        context: 0, pd: 8, addr: 16, length: 24, handle: 32, lkey: 36, rkey: 40,
    }
    struct ibv_comp_channel: 16 => {
        context: 0, fd: 8, refcnt: 12,
    }
    struct ibv_cq: 40 + MUTEX + COND => {
        context: 0, channel: 8, cq_context: 16, handle: 24, cqe: 28, mutex: 32, cond: 32 + MUTEX,
        comp_events_completed: 32 + MUTEX + COND, async_events_completed: 36 + MUTEX + COND,
    }
    struct ibv_srq_init_attr: 24 => {
        srq_context: 0, attr.max_wr: 8, attr.max_sge: 12, attr.srq_limit: 16,
    }
    struct ibv_srq: 40 + MUTEX + COND => {
        context: 0, srq_context: 8, pd: 16, handle: 24, mutex: 32, cond: 32 + MUTEX,
        events_completed: 32 + MUTEX + COND,
    }
    struct ibv_qp_cap: 20 => {
        max_send_wr: 0, max_recv_wr: 4, max_send_sge: 8, max_recv_sge: 12, max_inline_data: 16,
    }
    struct ibv_qp_init_attr: 64 => {
        qp_context: 0, send_cq: 8, recv_cq: 16, srq: 24, cap: 32, qp_type: 52, sq_sig_all: 56,
    }
    struct ibv_global_route: 24 => {
        dgid: 0, flow_label: 16, sgid_index: 20, hop_limit: 21, traffic_class: 22,
    }
    struct ibv_ah_attr: 32 => {
        grh: 0, dlid: 24, sl: 26, src_path_bits: 27, static_rate: 28, is_global: 29, port_num: 30,
    }
    struct ibv_qp_attr: 144 => {
        qp_state: 0, cur_qp_state: 4, path_mtu: 8, path_mig_state: 12, qkey: 16, rq_psn: 20, sq_psn: 24,
        dest_qp_num: 28, qp_access_flags: 32, cap: 36, ah_attr: 56, alt_ah_attr: 88, pkey_index: 120,
        max_rd_atomic: 126, max_dest_rd_atomic: 127, min_rnr_timer: 128, port_num: 129, timeout: 130,
        retry_cnt: 131, rnr_retry: 132, rate_limit: 136,
    }
    struct ibv_qp: 72 + MUTEX + COND => {
        context: 0, qp_context: 8, pd: 16, send_cq: 24, recv_cq: 32, srq: 40, handle: 48, qp_num: 52,
        state: 56, qp_type: 60, mutex: 64, cond: 64 + MUTEX, events_completed: 64 + MUTEX + COND,
    }
    struct ibv_sge: 16 => {
        addr: 0, length: 8, lkey: 12,
    }
    struct ibv_send_wr: 128 => {
        wr_id: 0, next: 8, sg_list: 16, num_sge: 24, opcode: 28, send_flags: 32,
        __bindgen_anon_1.imm_data: 36, wr.rdma.remote_addr: 40, wr.rdma.rkey: 48, wr.atomic.remote_addr: 40,
        wr.atomic.compare_add: 48, wr.atomic.swap: 56, wr.atomic.rkey: 64, wr.ud.ah: 40,
        wr.ud.remote_qpn: 48, wr.ud.remote_qkey: 52, qp_type.xrc.remote_srqn: 72,
    }
    struct ibv_recv_wr: 32 => {
        wr_id: 0, next: 8, sg_list: 16, num_sge: 24,
    }
    struct ibv_wc: 48 => {
        wr_id: 0, status: 8, opcode: 12, vendor_err: 16, byte_len: 20, __bindgen_anon_1.imm_data: 24,
        qp_num: 28, src_qp: 32, wc_flags: 36, pkey_index: 40, slid: 42, sl: 44, dlid_path_bits: 45,
    }
    struct ibv_async_event: 16 => {
        element.cq: 0, element.port_num: 0, event_type: 8,
    }
}

layout! {
    CM_IN_C;
    struct ibv_sa_path_rec: 64 => {
        dgid: 0, sgid: 16, dlid: 32, slid: 34, raw_traffic: 36, flow_label: 40, hop_limit: 44, reversible: 48,
        numb_path: 52, pkey: 54, sl: 56, mtu: 58, rate: 60, packet_life_time: 62, preference: 63,
    }
    struct rdma_ib_addr: 40 => {
        sgid: 0, dgid: 16, pkey: 32,
    }
    struct rdma_addr: 296 => {
        __bindgen_anon_1.src_addr: 0, __bindgen_anon_1.src_sin.sin_port: 2,
        __bindgen_anon_1.src_sin.sin_addr: 4, __bindgen_anon_1.src_sin6.sin6_addr: 8,
        __bindgen_anon_1.src_storage: 0, __bindgen_anon_2.dst_addr: 128,
        __bindgen_anon_2.dst_sin.sin_port: 130, __bindgen_anon_2.dst_sin6.sin6_scope_id: 152,
        addr.ibaddr: 256,
    }
    struct rdma_route: 312 => {
        addr: 0, path_rec: 296, num_paths: 304,
    }
    struct rdma_event_channel: 4 => {
        fd: 0,
    }
    struct rdma_cm_id: 416 => {
        verbs: 0, channel: 8, context: 16, qp: 24, route: 32, ps: 344, port_num: 348, event: 352,
        send_cq_channel: 360, send_cq: 368, recv_cq_channel: 376, recv_cq: 384, srq: 392, pd: 400,
        qp_type: 408,
    }
    struct rdma_conn_param: 24 => {
        private_data: 0, private_data_len: 8, responder_resources: 9, initiator_depth: 10, flow_control: 11,
        retry_count: 12, rnr_retry_count: 13, srq: 14, qp_num: 16,
    }
    struct rdma_ud_param: 56 => {
        private_data: 0, private_data_len: 8, ah_attr: 16, qp_num: 48, qkey: 52,
    }
    struct rdma_cm_event: 80 => {
        id: 0, listen_id: 8, event: 16, status: 20, param.conn: 24, param.ud: 24,
    }
    struct rdma_addrinfo: 96 => {
        ai_flags: 0, ai_family: 4, ai_qp_type: 8, ai_port_space: 12, ai_src_len: 16, ai_dst_len: 20,
        ai_src_addr: 24, ai_dst_addr: 32, ai_src_canonname: 40, ai_dst_canonname: 48, ai_route_len: 56,
        ai_route: 64, ai_connect_len: 72, ai_connect: 80, ai_next: 88,
    }
}

/// Fields of a `verbs_context`, asserted by how far before its context they lie: the structure grows at its front, so nothing else stays.
macro_rules! before_the_context {
    ($($field:ident: $distance:expr),* $(,)?) => {
        const _: () = {
            $(assert!(offset_of!(verbs_context, context) - offset_of!(verbs_context, $field) == $distance);)*
            assert!(size_of::<verbs_context>() == offset_of!(verbs_context, context) + size_of::<ibv_context>());
        };

        #[cfg(test)]
        const BEFORE_IN_C: &[&str] = &[
            $(concat!(
                "_Static_assert(offsetof(struct verbs_context, context) - offsetof(struct verbs_context, ",
                stringify!($field), ") == ", stringify!($distance), ", \"distance\");"
            ),)*
            "_Static_assert(sizeof(struct verbs_context) == offsetof(struct verbs_context, context) \
             + sizeof(struct ibv_context), \"end\");",
        ];
    };
}

before_the_context! { query_port: 320, query_device_ex: 104, sz: 8 }

/// As many pointers as there are words.
const _: () =
    assert!(size_of::<*const ()>() == 8, "libibverbs's structures are laid out for machines of 64 bits");

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use super::*;

    /// What functions are told the size of: newer headers may have more at their ends.
    const GROW: [&str; 3] = ["struct ibv_device_attr_ex", "struct ibv_gid_entry", "struct ibv_port_attr"];

    /// What `cc` says of a header with the lines behind it. `RDMA_CORE_HEADERS` is looked for the header first.
    fn compile(header: &str, lines: &[&str]) -> std::io::Result<std::process::Output> {
        let mut text = format!("#include <stddef.h>\n#include <{header}>\n");
        let _ = writeln!(text, "#define MUTEX sizeof(pthread_mutex_t)\n#define COND sizeof(pthread_cond_t)");
        for line in lines {
            // Members of a structure without a name are the outer one's in C.
            let mut line = line.replace("__bindgen_anon_1.", "").replace("__bindgen_anon_2.", "");
            for name in GROW {
                line = line.replace(&format!("sizeof({name}) =="), &format!("sizeof({name}) >="));
            }
            let _ = writeln!(text, "{line}");
        }
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-fsyntax-only", "-x", "c", "-"]);
        cc.args(std::env::var_os("RDMA_CORE_HEADERS").map(|dir| ["-I".into(), dir]).into_iter().flatten());
        let mut cc = cc.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        cc.stdin.take().map_or(Ok(()), |mut input| input.write_all(text.as_bytes()))?;
        cc.wait_with_output()
    }

    /// Asserts in C what is asserted here, where there is the header.
    fn says_the_same(header: &str, package: &str, lines: &[&str]) {
        match compile(header, &[]) {
            Ok(output) if output.status.success() => {}
            Ok(_) => return eprintln!("skipped: cc finds no <{header}> (apt-get install {package})"),
            Err(error) => return eprintln!("skipped: cc: {error}"),
        }
        let output = compile(header, lines).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let wrong = compile(header, &["_Static_assert(sizeof(struct ibv_wc) == 47, \"size\");"]).unwrap();
        assert!(!wrong.status.success(), "cc checks nothing");
    }

    #[test]
    fn the_header_of_verbs_says_the_same() {
        says_the_same("infiniband/verbs.h", "libibverbs-dev", &[VERBS_IN_C, BEFORE_IN_C].concat());
    }

    #[test]
    fn the_header_of_the_connection_manager_says_the_same() {
        says_the_same("rdma/rdma_cma.h", "librdmacm-dev", CM_IN_C);
    }
}
