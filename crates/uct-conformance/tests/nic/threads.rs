//! One NIC, many threads.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use uct_conformance::nic::{DmaError, Nic};

use crate::memory::{FEW, Pages, page};

const THREADS: u64 = 4;

pub(crate) fn each_its_own() {
    // Few slots: they change hands all the time.
    let nic = Nic::open_or_skip(2 * u16::try_from(THREADS).unwrap(), FEW);
    let barrier = Barrier::new(THREADS.try_into().unwrap());
    let run = |thread: u64| {
        let memory = Pages::new(2);
        barrier.wait();
        for round in 0..3_000 {
            let tag = thread << 32 | round;
            memory.put_u64(0, tag);
            let mr = memory.register(&nic).unwrap();
            memory.replace();
            memory.put_u64(0, !tag);
            let now = memory.register(&nic).unwrap();
            assert_eq!(nic.dma_out_u64(&mr, memory.addr()), Ok(tag));
            assert_eq!(nic.dma_out_u64(&now, memory.addr()), Ok(!tag));
            memory.dma_in_u64(&nic, &now, page(), tag).unwrap();
            assert_eq!(memory.get_u64(page()), tag);
            nic.deregister(mr).unwrap();
            nic.deregister(now).unwrap();
            assert_eq!(nic.dma_out_u64(&mr, memory.addr()), Err(DmaError::Stale));
        }
    };
    std::thread::scope(|scope| (0..THREADS).for_each(|thread| drop(scope.spawn(move || run(thread)))));
    assert_eq!((nic.registrations(), nic.pinned_bytes()), (0, 0));
}

pub(crate) fn one_for_all() {
    let nic = Nic::open_or_skip(2, FEW);
    let memory = Pages::new(4);
    let mr = memory.register(&nic).unwrap();
    let run = |thread: usize| {
        let (offset, len) = (thread * page(), page());
        for round in 0..500u64 {
            let byte = u8::try_from(round % 251).unwrap();
            memory.dma_in(&nic, &mr, offset, &vec![byte; len]).unwrap();
            assert_eq!(nic.dma_out(&mr, memory.addr() + offset, len).unwrap(), vec![byte; len]);
            let held = nic.start_out(&mr, memory.addr() + offset, 8).unwrap();
            assert_eq!(held.finish().unwrap(), [byte; 8]);
        }
    };
    let run = &run;
    std::thread::scope(|scope| (0..4).for_each(|thread| drop(scope.spawn(move || run(thread)))));
}

/// A registration answers with its own bytes or is stale, at whatever moment it ends.
pub(crate) fn registrations_that_end_meanwhile() {
    let nic = Nic::open_or_skip(1, FEW);
    let memory = Pages::new(1);
    memory.put_u64(0, 1);
    let current = Mutex::new((memory.register(&nic).unwrap(), 1));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let (mut good, mut stale) = (0, 0);
                    while !over.load(Ordering::Relaxed) {
                        let (mr, tag) = *current.lock();
                        match nic.dma_out_u64(&mr, memory.addr()) {
                            Ok(read) => {
                                assert_eq!(read, tag);
                                good += 1;
                            }
                            Err(DmaError::Stale) => stale += 1,
                            Err(error) => panic!("{error}"),
                        }
                    }
                    (good, stale)
                })
            })
            .collect();
        for tag in 2..4_000 {
            // Pages of its own for each tag.
            memory.replace();
            memory.put_u64(0, tag);
            nic.deregister(current.lock().0).unwrap();
            let mr = memory.register(&nic).unwrap();
            *current.lock() = (mr, tag);
            while tag % 64 == 0 && nic.dma_out_u64(&mr, memory.addr()) != Ok(tag) {}
        }
        over.store(true, Ordering::Relaxed);
        let seen = readers.into_iter().map(|reader| reader.join().unwrap());
        let (good, stale) = seen.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
        assert!(good > 0 && stale > 0, "{good} good, {stale} stale");
    });
}
