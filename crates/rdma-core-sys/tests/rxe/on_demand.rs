//! Memory that the device pages in itself: its registration names the address, and pins nothing.

use rdma_core_sys::*;

use crate::pair::{Memory, PAGE, Pair};
use crate::{PLAIN, RXE, atomic, pattern, rdma};

/// A pair whose device says that it pages memory in itself, for writes and reads.
fn on_demand() -> Option<Pair> {
    let pair = Pair::connected();
    let caps = pair.device.properties().odp_caps;
    let needed =
        ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_WRITE | ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_READ;
    let general = caps.general_caps & u64::from(ibv_odp_general_caps::IBV_ODP_SUPPORT.0);
    let has = general != 0 && caps.per_transport_caps.rc_odp_caps & needed.0 == needed.0;
    if !has {
        eprintln!("left out: this device has no on-demand paging for writes and reads");
    }
    has.then_some(pair)
}

#[test]
fn memory_that_the_device_pages_in_itself() {
    let Some(pair) = on_demand() else { return };
    let [from, there] = [(); 2].map(|()| pair.memory(8, ibv_access_flags::IBV_ACCESS_ON_DEMAND));
    from.fill(pattern(512));
    // There is no page there yet.
    pair.post(from.sge(512), rdma(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, there.address(), there.rkey()));
    pair.success(1, ibv_wc_opcode::IBV_WC_RDMA_WRITE);
    assert!(there.bytes().into_iter().take(512).eq(pattern(512)));
}

/// `rdma_rxe` of Linux 7.3 does not look at the offset in the page: it says that all went well, and the bytes are at the page's start. So a device's word
/// that it has on-demand paging is not enough for a transport to use it.
#[test]
fn memory_paged_in_is_written_within_a_page_where_it_should_be() {
    let Some(pair) = on_demand() else { return };
    let from = pair.memory(1, PLAIN);
    let there = pair.memory(1, ibv_access_flags::IBV_ACCESS_ON_DEMAND);
    from.fill(pattern(16));
    pair.post(from.sge(16), rdma(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, there.address() + 256, there.rkey()));
    pair.success(1, ibv_wc_opcode::IBV_WC_RDMA_WRITE);
    let bytes = there.bytes();
    if !bytes[256..272].iter().copied().eq(pattern(16)) {
        assert!(bytes.into_iter().take(16).eq(pattern(16)), "the bytes are neither here nor there");
        assert_eq!(pair.device.properties().orig_attr.vendor_id, RXE, "not only rdma_rxe has this bug");
        eprintln!("known: rdma_rxe has put the bytes at the start of the page");
    }
}

#[test]
fn atomics_on_memory_paged_in_are_within_a_page_where_they_should_be() {
    let Some(pair) = on_demand() else { return };
    let caps = pair.device.properties().odp_caps.per_transport_caps.rc_odp_caps;
    if caps & ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_ATOMIC.0 == 0 {
        return eprintln!("left out: this device has no atomics on such memory");
    }
    let was = pair.memory(1, PLAIN);
    let there = pair.memory(1, ibv_access_flags::IBV_ACCESS_ON_DEMAND);
    let mut request = atomic(1, ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, &there, 5, 0);
    request.wr.atomic.remote_addr = there.address() + 264;
    pair.post(was.sge(8), request);
    pair.success(1, ibv_wc_opcode::IBV_WC_FETCH_ADD);
    let bytes = there.bytes();
    assert_eq!(bytes[264..272], 5_u64.to_ne_bytes());
    assert!(bytes[..264].iter().chain(&bytes[272..]).all(|&byte| byte == 0));
    assert_eq!(was.word(), 0);
}

/// Bytes of a request that is one packet, at most a page: one that begins with a page then is all in it, and at its place also with rxe.
fn piece(pair: &Pair) -> u32 {
    let bytes = 128 << pair.device.port().active_mtu.0; // IBV_MTU_256 is 1 (`<infiniband/verbs.h>`)
    if std::env::var_os("RUCX_LONG_PACKETS").is_some() {
        assert!(bytes as usize >= PAGE, "packets have {bytes} bytes only");
    }
    bytes.min(u32::try_from(PAGE).unwrap())
}

/// Has the device write to the beginning of each page.
fn write(pair: &Pair, from: &Memory, there: &Memory) {
    for page in (0..there.bytes().len()).step_by(PAGE) {
        let request = rdma(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, there.address() + page as u64, there.rkey());
        pair.post(from.sge(piece(pair)), request);
        pair.success(1, ibv_wc_opcode::IBV_WC_RDMA_WRITE);
    }
}

/// What the device reads there.
fn read(pair: &Pair, back: &Memory, there: &Memory) -> Vec<u8> {
    let request = rdma(2, ibv_wr_opcode::IBV_WR_RDMA_READ, there.address(), there.rkey());
    pair.post(back.sge(piece(pair)), request);
    pair.success(2, ibv_wc_opcode::IBV_WC_RDMA_READ);
    back.bytes()[..piece(pair) as usize].to_vec()
}

/// Writes by a key, unmaps, maps anew at the same address, and writes by the same key: whether the new pages have it, and reading finds
/// what a processor writes there.
fn follows(pair: &Pair, access: ibv_access_flags) -> bool {
    let [from, back] = [(); 2].map(|()| pair.memory(1, PLAIN));
    let mut there = pair.memory(3, access);
    from.fill(pattern(PAGE));
    let piece = piece(pair) as usize;
    let arrived = |there: &Memory| {
        there.bytes().chunks(PAGE).filter(|page| page[..piece] == from.bytes()[..piece]).count()
    };
    write(pair, &from, &there);
    assert_eq!(arrived(&there), 3);
    let mut answers = Vec::new();
    for round in 1..=3 {
        there.map_anew();
        assert!(there.bytes().iter().all(|&byte| byte == 0), "new pages");
        from.fill(std::iter::repeat_n(round, PAGE));
        write(pair, &from, &there);
        answers.push(arrived(&there) == 3);
        there.fill(std::iter::repeat_n(round + 100, PAGE));
        answers.push(read(pair, &back, &there) == vec![round + 100; piece]);
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]), "neither the one nor the other: {answers:?}");
    answers[0]
}

/// Requests of whole pages, of one packet each, are put right by `rdma_rxe` of Linux 7.3, too.
#[test]
fn after_a_remap_the_same_key_reaches_the_new_pages() {
    let Some(pair) = on_demand() else { return };
    assert!(follows(&pair, ibv_access_flags::IBV_ACCESS_ON_DEMAND));
    eprintln!("by requests of {} bytes", piece(&pair));
}

/// The guard of that: what is pinned is not followed.
#[test]
fn after_a_remap_the_key_of_pinned_pages_reaches_the_old_ones() {
    assert!(!follows(&Pair::connected(), PLAIN));
}

#[test]
fn where_nothing_is_mapped_a_request_fails_and_nothing_is_written() {
    let Some(pair) = on_demand() else { return };
    let from = pair.memory(1, PLAIN);
    let mut there = pair.memory(1, ibv_access_flags::IBV_ACCESS_ON_DEMAND);
    from.fill(pattern(64));
    there.unmap();
    pair.post(from.sge(64), rdma(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, there.address(), there.rkey()));
    let wc = pair.completion();
    eprintln!("where nothing is mapped: {}", pair.device.words(wc.status));
    assert!(
        [ibv_wc_status::IBV_WC_REM_ACCESS_ERR, ibv_wc_status::IBV_WC_REM_OP_ERR].contains(&wc.status),
        "{}",
        pair.device.words(wc.status)
    );
    there.map();
    assert!(there.bytes().iter().all(|&byte| byte == 0));
}
