//! A NIC and children of its process.

use uct_conformance::nic::{DmaError, Mr, Nic, RegisterError};

use crate::in_a_process;
use crate::memory::{Pages, in_a_child};

pub(crate) fn pages_stay_the_parents() {
    in_a_process("forks::copies");
}

pub(crate) fn copies() {
    let nic = Nic::open(2).unwrap();
    let memory = Pages::new(2);
    memory.put_u64(0, 1);
    let mr = memory.register(&nic).unwrap();
    let ok = in_a_child(|| {
        let before = memory.get_u64(0);
        memory.put_u64(0, 2);
        before == 1
    });
    assert!(ok);
    assert_eq!(nic.dma_out_u64(&mr, memory.addr()), Ok(1), "the child has written to a copy");
    memory.put_u64(0, 3);
    assert_eq!(nic.dma_out_u64(&mr, memory.addr()), Ok(3), "and the parent to its own");
}

pub(crate) fn a_child_is_refused() {
    in_a_process("forks::refused");
}

pub(crate) fn refused() {
    let nic = Nic::open(2).unwrap();
    let memory = Pages::new(1);
    memory.put_u64(0, 1);
    let mr = memory.register(&nic).unwrap();
    every_call(&nic, &memory, mr);
    let mut nic = Some(nic);
    assert!(in_a_child(|| nic.take().is_some()), "dropped there");
    let nic = nic.unwrap();
    assert_eq!(nic.dma_out_u64(&mr, memory.addr()), Ok(1), "and here still good");
    assert_eq!(nic.deregister(mr), Ok(()));
}

fn every_call(nic: &Nic, memory: &Pages, mr: Mr) {
    let addr = memory.addr();
    let start = || (nic.start_out(&mr, addr, 8).unwrap(), memory.start_in(nic, &mr, 8, 8).unwrap());
    let mut held = Some((start(), start()));
    let ok = in_a_child(|| {
        let ((out, into), given_up) = held.take().unwrap();
        drop(given_up);
        let answers = [
            out.finish().map(|_| ()),
            into.finish(&[5; 8]),
            nic.dma_out(&mr, addr, 8).map(|_| ()),
            nic.dma_out_u64(&mr, addr).map(|_| ()),
            memory.dma_in_u64(nic, &mr, 0, 9),
            nic.start_out(&mr, addr, 8).map(|_| ()),
            nic.deregister(mr),
        ];
        answers == [Err(DmaError::Stale); 7]
            && memory.register(nic) == Err(RegisterError::Child)
            && !nic.is_registered(&mr)
    });
    assert!(ok);
    let ((out, into), given_up) = held.take().unwrap();
    assert_eq!(out.finish().unwrap(), 1u64.to_ne_bytes(), "the child has not let it go");
    into.finish(&[6; 8]).unwrap();
    drop(given_up);
    assert_eq!(memory.get(8, 8), [6; 8]);
}
