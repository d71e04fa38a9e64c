//! Operations in flight across what happens to their memory and their registration.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use testkit::{Rng, seed};
use uct_conformance::nic::{DmaError, Nic};

use crate::in_a_process;
use crate::memory::{FEW, Pages, page, status};

pub(crate) fn across_a_remap_and_a_deregistration() {
    // One slot: what is registered next is in the place of what is in flight.
    let nic = Nic::open_or_skip(1, FEW);
    let memory = Pages::new(2);
    memory.put_u64(8, 1);
    let mr = memory.register(&nic).unwrap();
    let held = nic.start_out(&mr, memory.addr() + 8, 8).unwrap();
    nic.deregister(mr).unwrap();
    memory.replace();
    memory.put_u64(8, 2);
    let next = memory.register(&nic).unwrap();
    assert_eq!(nic.dma_out_u64(&next, memory.addr() + 8), Ok(2));
    assert_eq!(held.finish().unwrap(), 1u64.to_ne_bytes(), "the old pages, although their slot has others");
    assert_eq!(nic.dma_out_u64(&mr, memory.addr() + 8), Err(DmaError::Stale));
}

pub(crate) fn bytes_are_those_at_the_end() {
    let nic = Nic::open_or_skip(1, FEW);
    let memory = Pages::new(1);
    let mr = memory.register(&nic).unwrap();
    let held = nic.start_out(&mr, memory.addr(), 8).unwrap();
    memory.put_u64(0, 3);
    assert_eq!(held.finish().unwrap(), 3u64.to_ne_bytes());
}

pub(crate) fn writes_go_to_the_old_pages() {
    let nic = Nic::open_or_skip(4, FEW);
    let memory = Pages::new(2);
    let mr = memory.register(&nic).unwrap();
    let held = memory.start_in(&nic, &mr, 100, 8).unwrap();
    assert_eq!(memory.get_u64(100), 0, "held back");
    memory.replace();
    held.finish(&5u64.to_ne_bytes()).unwrap();
    assert_eq!(memory.get(0, memory.len()), vec![0; memory.len()]);
    assert_eq!(nic.dma_out_u64(&mr, memory.addr() + 100), Ok(5));

    let now = memory.register(&nic).unwrap();
    let held = memory.start_in(&nic, &now, 100, 8).unwrap();
    nic.deregister(now).unwrap();
    held.finish(&6u64.to_ne_bytes()).unwrap();
    assert_eq!(memory.get_u64(100), 6, "deregistered, but not over");
}

/// Bytes this process has pinned, once they are `wanted` (older kernels unpin a little later).
fn pinned(wanted: u64) -> u64 {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let pinned = status("VmPin");
        if pinned == wanted || Instant::now() > deadline {
            return pinned;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn pages_stay_pinned_until_the_end() {
    in_a_process("flight::pinned_pages");
}

pub(crate) fn pinned_pages() {
    let nic = Nic::open(4).unwrap();
    let memory = Pages::new(8);
    let none = status("VmPin");
    let all = none + memory.len() as u64;
    let mr = memory.register(&nic).unwrap();
    assert_eq!(pinned(all), all);
    nic.deregister(mr).unwrap();
    assert_eq!(pinned(none), none, "nothing in flight: at once");

    let mr = memory.register(&nic).unwrap();
    let held = (nic.start_out(&mr, memory.addr(), 8).unwrap(), memory.start_in(&nic, &mr, 8, 8).unwrap());
    nic.deregister(mr).unwrap();
    assert_eq!(status("VmPin"), all);
    held.0.finish().unwrap();
    assert_eq!(status("VmPin"), all, "one is still in flight");
    held.1.finish(&[1; 8]).unwrap();
    assert_eq!(pinned(none), none);
    assert_eq!(memory.get(8, 8), [1; 8]);
}

pub(crate) fn given_up() {
    let nic = Nic::open_or_skip(4, FEW);
    let memory = Pages::new(1);
    memory.put_u64(0, 8);
    let mr = memory.register(&nic).unwrap();
    for deregistered in [false, true] {
        let (out, into) = (nic.start_out(&mr, memory.addr(), 64), memory.start_in(&nic, &mr, 0, 64));
        if deregistered {
            nic.deregister(mr).unwrap();
        }
        drop((out.unwrap(), into.unwrap()));
        assert_eq!(memory.get_u64(0), 8, "nothing was written");
    }
}

pub(crate) fn many_in_any_order() {
    const N: usize = 100;
    let nic = Nic::open_or_skip(4, FEW);
    let memory = Pages::new(N);
    let mr = memory.register(&nic).unwrap();
    let mut rng = Rng::new(seed());
    let mut held = Vec::new();
    for i in 0..N {
        memory.put_u64(i * page(), i as u64);
        held.push((i, nic.start_out(&mr, memory.addr() + i * page(), 8).unwrap()));
    }
    memory.replace();
    while !held.is_empty() {
        let (i, out) = held.swap_remove(rng.below(held.len()));
        // Others that are waited for pass between.
        assert_eq!(nic.dma_out_u64(&mr, memory.addr() + i * page()), Ok(i as u64));
        if rng.below(4) > 0 {
            assert_eq!(out.finish().unwrap(), (i as u64).to_ne_bytes());
        }
    }
}

pub(crate) fn finished_by_another_thread() {
    let nic = Nic::open_or_skip(4, FEW);
    let memory = Pages::new(1);
    memory.put_u64(0, 4);
    let mr = memory.register(&nic).unwrap();
    let held = nic.start_out(&mr, memory.addr(), 8).unwrap();
    let bytes = std::thread::scope(|scope| scope.spawn(|| held.finish()).join().unwrap());
    assert_eq!(bytes.unwrap(), 4u64.to_ne_bytes());
}

pub(crate) fn of_a_thread_that_has_ended() {
    let nic = Nic::open_or_skip(4, FEW);
    let memory = Pages::new(1);
    let mr = memory.register(&nic).unwrap();
    let (send, receive) = mpsc::channel();
    std::thread::scope(|scope| {
        let start = || {
            send.send((
                nic.start_out(&mr, memory.addr(), 8).unwrap(),
                memory.start_in(&nic, &mr, 0, 8).unwrap(),
            ))
        };
        scope.spawn(start).join().unwrap().unwrap();
    });
    let (out, into) = receive.recv().unwrap();
    assert_eq!(out.finish(), Err(DmaError::Failed(Errno::CANCELED)));
    assert_eq!(into.finish(&[1; 8]), Err(DmaError::Failed(Errno::CANCELED)));
    assert_eq!(memory.get_u64(0), 0);
    assert_eq!(nic.dma_out_u64(&mr, memory.addr()), Ok(0), "others go on");
}

pub(crate) fn long_and_empty_ones() {
    let nic = Nic::open_or_skip(4, FEW);
    let memory = Pages::new(16);
    let mut bytes = vec![0; memory.len()];
    Rng::new(seed()).fill(&mut bytes);
    memory.put(0, &bytes);
    let mr = memory.register(&nic).unwrap();
    // Of any alignment: a pipe holds pages.
    for (offset, len) in [(0, bytes.len()), (1, bytes.len() - 1), (page() - 1, 10 * page() + 2), (5, 0)] {
        let held = nic.start_out(&mr, memory.addr() + offset, len).unwrap();
        assert_eq!(held.finish().unwrap(), bytes[offset..offset + len]);
        let held = memory.start_in(&nic, &mr, offset, len).unwrap();
        bytes[offset..offset + len].reverse();
        held.finish(&bytes[offset..offset + len]).unwrap();
        assert_eq!(memory.get(0, memory.len()), bytes);
    }
    let held = memory.start_in(&nic, &mr, 0, 8).unwrap();
    let message = testkit::expect_panic(|| held.finish(&[1; 9]));
    assert!(message.contains("the bytes it was started for"), "{message}");
}
