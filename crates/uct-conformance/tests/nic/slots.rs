//! Many registrations, and those that have ended.

use testkit::{Rng, leaves_nothing, seed};
use uct_conformance::nic::{DmaError, Mr, Nic, RegisterError};

use crate::in_a_process;
use crate::memory::{FEW, Pages, page};

pub(crate) fn ten_thousand_at_once() {
    const N: usize = 10_000;
    let nic = Nic::open_or_skip(10_000, 2 * N * page());
    // Of one mapping, so that they need no 10,000 of them; 128 bytes apart, so that most share their page with others.
    let memory = Pages::new(320);
    let place = |i: usize| i * 128 + 3;
    let register = |i: usize| {
        memory.put_u64(place(i), i as u64);
        (i, memory.register_part(&nic, place(i), 100).unwrap())
    };
    let mut all: Vec<(usize, Mr)> = (0..N).map(register).collect();
    assert_eq!(nic.registrations(), N);
    let mut gone = Vec::new();
    let mut rng = Rng::new(seed());
    for _ in 0..3 {
        for (i, mr) in &all {
            assert_eq!(nic.dma_out_u64(mr, memory.addr() + place(*i)), Ok(*i as u64));
        }
        for _ in 0..N / 2 {
            let (i, mr) = all.swap_remove(rng.below(all.len()));
            nic.deregister(mr).unwrap();
            gone.push((i, mr));
        }
        assert_eq!(nic.registrations(), N / 2);
        let holes: Vec<usize> = gone[gone.len() - N / 2..].iter().map(|(i, _)| *i).collect();
        all.extend(holes.into_iter().map(register));
        for (i, mr) in &gone {
            assert_eq!(nic.dma_out_u64(mr, memory.addr() + place(*i)), Err(DmaError::Stale));
        }
    }
    for (_, mr) in all {
        nic.deregister(mr).unwrap();
    }
    assert_eq!((nic.registrations(), nic.pinned_bytes()), (0, 0));
}

pub(crate) fn a_full_table() {
    for (asked, slots) in [(0, 1), (1, 1), (3, 3), (u16::MAX, Nic::MAX_SLOTS)] {
        let nic = Nic::open_or_skip(asked, usize::from(slots) * page());
        let memory = Pages::new(1);
        let mrs: Vec<Mr> = (0..slots).map(|_| memory.register_part(&nic, 0, 8).unwrap()).collect();
        assert_eq!(memory.register(&nic), Err(RegisterError::Full { slots }));
        nic.deregister(mrs[0]).unwrap();
        let last = memory.register(&nic).unwrap();
        assert_eq!(memory.register(&nic), Err(RegisterError::Full { slots }));
        memory.put_u64(0, 9);
        assert_eq!(nic.dma_out_u64(&last, memory.addr()), Ok(9));
    }
}

#[track_caller]
fn refused(nic: &Nic, memory: &Pages, mr: Mr) {
    let before = nic.registrations();
    assert!(!nic.is_registered(&mr));
    assert_eq!(nic.dma_out(&mr, memory.addr(), 8), Err(DmaError::Stale));
    assert_eq!(nic.dma_out_u64(&mr, memory.addr()), Err(DmaError::Stale));
    assert_eq!(memory.dma_in(nic, &mr, 0, &[1; 8]), Err(DmaError::Stale));
    assert_eq!(nic.start_out(&mr, memory.addr(), 8).map(|_| ()), Err(DmaError::Stale));
    assert_eq!(memory.start_in(nic, &mr, 0, 8).map(|_| ()), Err(DmaError::Stale));
    assert_eq!(nic.deregister(mr), Err(DmaError::Stale));
    assert_eq!(nic.registrations(), before);
}

pub(crate) fn stale_ones_are_refused() {
    let nic = Nic::open_or_skip(1, FEW);
    let memory = Pages::new(1);
    let mut gone = Vec::new();
    for round in 0..50 {
        memory.put_u64(0, round);
        // One slot: each is in the place of all before it, at the same address.
        let mr = memory.register(&nic).unwrap();
        gone.iter().for_each(|old| refused(&nic, &memory, *old));
        assert_eq!(nic.dma_out_u64(&mr, memory.addr()), Ok(round), "nothing was done to the new one");
        nic.deregister(mr).unwrap();
        refused(&nic, &memory, mr);
        gone.push(mr);
    }
}

pub(crate) fn words_that_are_no_registration() {
    let nic = Nic::open_or_skip(4, FEW);
    let memory = Pages::new(1);
    let mr = memory.register(&nic).unwrap();
    assert_eq!(Mr::from_bits(mr.to_bits()), Some(mr));
    assert_eq!(Mr::from_bits(0), None);
    for bit in 0..64 {
        if let Some(other) = Mr::from_bits(mr.to_bits() ^ (1 << bit)) {
            refused(&nic, &memory, other);
        }
    }
    for word in [1, 0xffff, 0x1_0000, u64::MAX, 1 << 63] {
        refused(&nic, &memory, Mr::from_bits(word).unwrap());
    }
    assert!(nic.is_registered(&mr));
}

pub(crate) fn another_nic() {
    let (one, other) = (Nic::open_or_skip(1, FEW), Nic::open_or_skip(1, FEW));
    let memory = Pages::new(1);
    let mr = memory.register(&one).unwrap();
    refused(&other, &memory, mr);
    let second = memory.register(&other).unwrap();
    refused(&other, &memory, mr);
    refused(&one, &memory, second);
    assert_eq!(one.dma_out_u64(&mr, memory.addr()), Ok(0));
}

pub(crate) fn nothing_is_left() {
    in_a_process("slots::comes_and_goes");
}

pub(crate) fn comes_and_goes() {
    let memory = Pages::new(1);
    let mappings = testkit::mappings();
    leaves_nothing("rucx", || {
        let nic = Nic::open(64).unwrap();
        let mr = memory.register(&nic).unwrap();
        assert_eq!(nic.dma_out_u64(&mr, memory.addr()), Ok(0));
        let held = nic.start_out(&mr, memory.addr(), 8).unwrap();
        assert_eq!(held.finish().unwrap(), [0; 8]);
        drop(nic.start_out(&mr, memory.addr(), 8).unwrap());
        drop(memory.start_in(&nic, &mr, 0, 8).unwrap());
        // The registration is still there.
    });
    assert!(testkit::mappings() <= mappings + 1, "the rings are unmapped");
}
