//! What a cache of registrations must prevent, seen: the registration is of the pages of then.

use rustix::mm::Advice;
use uct_conformance::nic::Nic;

use crate::memory::{FEW, Pages, page};

/// What an application does to memory it has registered, after which other pages are at the address.
type Way = (&'static str, fn(&Pages));

const WAYS: &[Way] = &[
    ("munmap, mmap", Pages::unmap_and_map),
    ("mmap over it", Pages::replace),
    ("MADV_DONTNEED", |pages| pages.advise(Advice::LinuxDontNeed).unwrap()),
    ("mremap onto it", |pages| Pages::new(pages.len() / page()).move_to(pages)),
];

pub(crate) fn every_way_to_lose_pages() {
    let nic = Nic::open_or_skip(4, FEW);
    for (way, lose) in WAYS {
        for n in [1, 2, 16, 600] {
            let pages = Pages::new(n);
            let offsets = [0, pages.len() / 2 + 8, pages.len() - 8];
            offsets.iter().for_each(|offset| pages.put_u64(*offset, 1));
            let mr = pages.register(&nic).unwrap();
            lose(&pages);
            for offset in offsets {
                assert_eq!(pages.get_u64(offset), 0, "{way}: other pages are at the address");
                pages.put_u64(offset, 2);
                let seen = nic.dma_out_u64(&mr, pages.addr() + offset);
                assert_eq!(seen, Ok(1), "{way}, {n} pages: the NIC sees the old ones");
            }
            nic.deregister(mr).unwrap();
            let mr = pages.register(&nic).unwrap();
            for offset in offsets {
                let seen = nic.dma_out_u64(&mr, pages.addr() + offset);
                assert_eq!(seen, Ok(2), "{way}, {n} pages: registered again, it sees the new ones");
            }
            nic.deregister(mr).unwrap();
        }
    }
}

pub(crate) fn writes_reach_the_old_pages() {
    let nic = Nic::open_or_skip(4, FEW);
    let pages = Pages::new(4);
    let mr = pages.register(&nic).unwrap();
    pages.replace();
    pages.dma_in_u64(&nic, &mr, 16, 7).unwrap();
    assert_eq!(pages.get(0, pages.len()), vec![0; pages.len()]);
    assert_eq!(nic.dma_out_u64(&mr, pages.addr() + 16), Ok(7));
}

/// A registration follows its pages to another address, for which its own address says nothing.
pub(crate) fn pages_that_moved() {
    let nic = Nic::open_or_skip(4, FEW);
    let (from, to) = (Pages::new(4), Pages::new(4));
    let mr = from.register(&nic).unwrap();
    from.move_to(&to);
    to.put_u64(8, 5);
    from.put_u64(8, 6);
    assert_eq!(nic.dma_out_u64(&mr, from.addr() + 8), Ok(5));
}

/// As tests of caches use it: register, use, lose, without ever being wrong about which pages a registration holds.
pub(crate) fn a_torture_loop() {
    let nic = Nic::open_or_skip(8, FEW);
    let pages = Pages::new(16);
    for round in 1..=5_000u64 {
        pages.put_u64(0, round);
        let mr = pages.register(&nic).unwrap();
        pages.unmap_and_map();
        pages.put_u64(0, !round);
        let again = pages.register(&nic).unwrap();
        assert_eq!(nic.dma_out_u64(&mr, pages.addr()), Ok(round));
        assert_eq!(nic.dma_out_u64(&again, pages.addr()), Ok(!round));
        nic.deregister(mr).unwrap();
        nic.deregister(again).unwrap();
    }
}
