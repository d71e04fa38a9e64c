//! Bytes out of registered memory and into it.

use testkit::{Rng, count_allocs, seed};
use uct_conformance::nic::{DmaError, Nic};

use crate::memory::{FEW, Pages, page};

fn pattern(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    bytes
}

pub(crate) fn both_ways() {
    let nic = Nic::open_or_skip(4, FEW);
    // Longer than the pipe the bytes go through.
    let memory = Pages::new(70);
    let mut rng = Rng::new(seed());
    let bytes = pattern(&mut rng, memory.len());
    memory.put(0, &bytes);
    let mr = memory.register(&nic).unwrap();
    assert_eq!(nic.dma_out(&mr, memory.addr(), memory.len()).unwrap(), bytes);

    let other = pattern(&mut rng, memory.len());
    memory.dma_in(&nic, &mr, 0, &other).unwrap();
    assert_eq!(memory.get(0, memory.len()), other);
    assert_eq!(nic.dma_out(&mr, memory.addr(), memory.len()).unwrap(), other);
    nic.deregister(mr).unwrap();
}

pub(crate) fn any_address_any_length() {
    let nic = Nic::open_or_skip(4, FEW);
    let memory = Pages::new(24);
    let mut rng = Rng::new(seed());
    let mut model = pattern(&mut rng, memory.len());
    memory.put(0, &model);
    for round in 0..300 {
        // A range of any alignment, and within it accesses of any.
        let start = rng.below(memory.len());
        let len = 1 + rng.below(memory.len() - start);
        let mr = memory.register_part(&nic, start, len).unwrap();
        for _ in 0..4 {
            let at = rng.below(len);
            let n = if round % 2 == 0 { rng.below(len - at + 1) } else { rng.below(20).min(len - at) };
            let offset = start + at;
            let read = nic.dma_out(&mr, memory.addr() + offset, n).unwrap();
            assert_eq!(read, model[offset..offset + n], "{n} bytes at {offset}");
            let new = pattern(&mut rng, n);
            memory.dma_in(&nic, &mr, offset, &new).unwrap();
            model[offset..offset + n].copy_from_slice(&new);
        }
        nic.deregister(mr).unwrap();
    }
    assert_eq!(memory.get(0, memory.len()), model);
}

pub(crate) fn outside_of_the_registration() {
    let nic = Nic::open_or_skip(4, FEW);
    let memory = Pages::new(3);
    let (start, len) = (page() + 8, 100);
    let mr = memory.register_part(&nic, start, len).unwrap();
    let first = memory.addr() + start;
    let end = first + len;
    let out = |addr, len| nic.dma_out(&mr, addr, len).map(|bytes| bytes.len());
    assert_eq!(out(first, len), Ok(len));
    assert_eq!(out(end, 0), Ok(0));
    // Also bytes that lie in pages that are pinned.
    let outside = [
        (first - 1, 1),
        (first - 1, len),
        (first, len + 1),
        (end - 1, 2),
        (end, 1),
        (end + 1, 0),
        (first - 1, 0),
        (first, usize::MAX),
        (first + 1, usize::MAX),
        (usize::MAX, 1),
        (usize::MAX, usize::MAX),
        (0, 8),
        (0, 0),
    ];
    for (addr, len) in outside {
        assert_eq!(out(addr, len), Err(DmaError::Bounds { addr, len }));
        let started = nic.start_out(&mr, addr, len);
        assert_eq!(started.map(|_| ()), Err(DmaError::Bounds { addr, len }));
        if len <= 2 * page() {
            let into = memory.dma_in(&nic, &mr, addr.wrapping_sub(memory.addr()), &vec![1; len]);
            assert_eq!(into, Err(DmaError::Bounds { addr, len }));
        }
    }
    assert_eq!(memory.get(0, memory.len()), vec![0; memory.len()], "nothing was written");
}

pub(crate) fn words_without_allocation() {
    let nic = Nic::open_or_skip(4, FEW);
    let memory = Pages::new(2);
    let mr = memory.register(&nic).unwrap();
    let mut offsets = vec![0, 1, 7, page() - 4, 2 * page() - 8];
    let mut rng = Rng::new(seed());
    offsets.extend((0..20).map(|_| rng.below(memory.len() - 8)));
    // Once: what is collected there grows on the first use.
    nic.dma_out_u64(&mr, memory.addr()).unwrap();
    for offset in offsets {
        memory.put_u64(offset, 0x0123_4567_89ab_cdef);
        let mut read = Ok(0);
        assert_eq!(count_allocs(|| read = nic.dma_out_u64(&mr, memory.addr() + offset)), 0);
        assert_eq!(read, Ok(0x0123_4567_89ab_cdef));
        assert_eq!(count_allocs(|| memory.dma_in_u64(&nic, &mr, offset, 42).unwrap()), 0);
        assert_eq!(memory.get_u64(offset), 42);
        let mut mr = None;
        assert_eq!(count_allocs(|| mr = memory.register(&nic).ok()), 0);
        assert_eq!(count_allocs(|| nic.deregister(mr.unwrap()).unwrap()), 0);
    }
}
