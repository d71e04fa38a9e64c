//! Operands whose memory is mapped anew while a registration of it is kept: what goes is what is mapped there now. In the guest of
//! `cargo xtask rxe` by its device, which reaches pages by their registration alone.

use ucp::{MemMap, RawMem, Status};
use ucs::mem::Mapping;

use crate::{BETWEEN, BY_DEVICE, PATIENCE, context, pattern};

/// Long enough to be registered.
const LEN: usize = 1 << 17;
const PAGE: usize = 4096;

/// The addresses of a mapping, whatever is mapped there.
#[allow(unsafe_code)]
fn raw(memory: &Mapping) -> RawMem {
    let bytes = memory.bytes();
    // SAFETY: nothing else is there while it is mapped but bytes that anybody may change.
    unsafe { RawMem::new(bytes.as_ptr(), bytes.len()) }
}

/// Maps new pages over those from byte `at` on.
#[allow(unsafe_code)]
fn map_anew(memory: &Mapping, at: usize) {
    let start = memory.bytes().as_ptr().wrapping_add(at).cast();
    let (rights, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
    // SAFETY: it lies within the mapping, whose bytes anybody may change.
    let mapped = unsafe { libc::mmap(start, LEN - at, rights, flags, -1, 0) };
    assert_eq!(mapped, start);
}

/// Leaves nothing mapped in the page at `at`.
#[allow(unsafe_code)]
fn unmap(memory: &Mapping, at: usize) {
    let start = memory.bytes().as_ptr().wrapping_add(at).cast();
    // SAFETY: it lies within the mapping, and nobody reads it but by what takes note of that.
    assert_eq!(unsafe { libc::munmap(start, PAGE) }, 0);
}

/// Of a region too, which names the addresses.
#[test]
fn operands_are_what_is_mapped_now() {
    let (owner, user) = (context(BETWEEN), context(BETWEEN));
    let (a, b) = (owner.worker().unwrap(), user.worker().unwrap());
    let region = owner.mem_map(MemMap::allocate(LEN)).unwrap();
    let ep = b.connect(a.address().unwrap().as_bytes()).unwrap();
    let remote = ep.rkey_unpack(region.rkey_pack().unwrap().as_bytes()).unwrap();
    let memory = Mapping::anonymous(LEN).unwrap();
    let holds = |round: u8| {
        let mut seen = vec![0; LEN];
        region.read(0, &mut seen).unwrap();
        seen == pattern(LEN, round)
    };
    for round in 0..40 {
        // All of it is mapped anew, or the latter half.
        map_anew(&memory, if round % 2 == 0 { 0 } else { LEN / 2 });
        memory.bytes().write(0, &pattern(LEN, round)).unwrap();
        b.wait(remote.put(0, raw(&memory)), PATIENCE).unwrap();
        assert!(holds(round), "in round {round}: what was mapped before");
        memory.bytes().write(0, &pattern(LEN, round + 100)).unwrap();
        b.wait(remote.put(0, raw(&memory)), PATIENCE).unwrap();
        assert!(holds(round + 100), "in round {round}, again");
        map_anew(&memory, 0);
        b.wait(remote.get(0, raw(&memory)), PATIENCE).unwrap();
        let mut back = vec![0; LEN];
        memory.bytes().read(0, &mut back).unwrap();
        assert!(back == pattern(LEN, round + 100), "in round {round}: to what was mapped before");
        if round % 8 == 7 {
            unmap(&memory, 5 * PAGE);
            let failed = b.wait(remote.put(0, raw(&memory)), PATIENCE).map(drop);
            assert_eq!(failed.unwrap_err().status(), Status::InvalidAddr, "in round {round}");
            map_anew(&memory, 5 * PAGE);
        }
    }
    if BY_DEVICE {
        let stats = user.rcache_stats();
        assert!(stats.hits >= 20, "it is not by registrations that are kept: {stats:?}");
    }
}
