//! Many connections, many processes, many workers.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use testkit::{Role, role};
use ucp::{CloseMode, Endpoint};

use crate::roles::{BACK, BY_DEVICE, COUNT, ECHO, PATIENCE, Peer, Side, connect_soon, context};

pub fn a_thousand_connections_leave_nothing_behind() {
    let peer = Peer::start(&[]);
    let worker = context().worker().unwrap();
    let cycle = |mode| {
        let ep = connect_soon(&worker, &peer.address);
        let sent = ep.am_send(COUNT, b"", vec![1; 100]);
        let closed = ep.close(mode);
        worker.wait(closed, PATIENCE).unwrap();
        assert!(sent.is_ended());
    };
    // What is made once is made now.
    (0..10).for_each(|_| cycle(CloseMode::Flush));
    let before = (testkit::open_fds(), testkit::mappings());
    for number in 0..1000 {
        cycle(if number % 2 == 0 { CloseMode::Flush } else { CloseMode::Force });
    }
    // The service thread may hold the last of them for a moment, and so may the worker, until its device has heard that an end has come; the
    // allocator's own mappings may grow by a few.
    let end = Instant::now() + PATIENCE;
    let left = || (testkit::open_fds(), testkit::mappings());
    while left().0 > before.0 && Instant::now() < end {
        worker.progress();
        std::thread::sleep(Duration::from_millis(5));
    }
    let after = left();
    assert!(
        after.0 <= before.0 && after.1 <= before.1 + 16,
        "descriptors and mappings: {before:?}, then {after:?}"
    );
    let side = Side::connect(&peer);
    side.round_trip();
}

/// One of many: connects to all, and sends each a message.
pub fn member() {
    let worker = context().worker().unwrap();
    let seen = Rc::new(RefCell::new(0));
    let count = Rc::clone(&seen);
    worker.am_handler(COUNT, move |_| *count.borrow_mut() += 1).unwrap();
    role::send(worker.address().unwrap().as_bytes());
    let count: usize = role::args()[0].parse().unwrap();
    let addresses: Vec<Vec<u8>> = (0..count).map(|_| role::recv()).collect();
    let eps: Vec<Endpoint> = addresses.iter().map(|address| worker.connect(address).unwrap()).collect();
    for ep in &eps {
        worker.wait(ep.am_send(COUNT, b"", vec![1; 1000]), PATIENCE).unwrap();
    }
    let end = Instant::now() + Duration::from_secs(60);
    while *seen.borrow() < count && Instant::now() < end {
        worker.wait_any(Duration::from_millis(100)).unwrap();
    }
    role::send(seen.borrow().to_string().as_bytes());
    while role::try_recv().is_some() {}
}

/// By an emulated device fewer: each pair has two queue pairs each way.
pub fn sixty_four_processes() {
    const COUNT: usize = if BY_DEVICE { 12 } else { 64 };
    let deadline = Duration::from_secs(100);
    let start = |_| Role::new("many::member").arg(COUNT.to_string()).deadline(deadline).start();
    let mut members: Vec<_> = (0..COUNT).map(start).collect();
    let addresses: Vec<_> = members.iter_mut().map(|member| member.recv()).collect();
    for member in &mut members {
        addresses.iter().for_each(|address| member.send(address));
    }
    for member in &mut members {
        assert_eq!(member.recv(), COUNT.to_string().as_bytes());
    }
}

pub fn several_workers_of_one_context() {
    let ctx = context();
    let workers: Vec<_> = (0..5).map(|_| ctx.worker().unwrap()).collect();
    let seen = Rc::new(RefCell::new(0));
    for worker in &workers {
        let count = Rc::clone(&seen);
        worker
            .am_handler(ECHO, |message| {
                let _detached = message.reply().am_send(BACK, b"", message.data().to_vec());
            })
            .unwrap();
        worker.am_handler(BACK, move |_| *count.borrow_mut() += 1).unwrap();
    }
    let mut eps = Vec::new();
    for from in &workers {
        for to in &workers {
            let ep = from.connect(to.address().unwrap().as_bytes()).unwrap();
            let _detached = ep.am_send(ECHO, b"", vec![3; 10]);
            eps.push(ep);
        }
    }
    let end = Instant::now() + PATIENCE;
    while *seen.borrow() < 25 && Instant::now() < end {
        workers.iter().for_each(|worker| _ = worker.progress());
    }
    assert_eq!(*seen.borrow(), 25);
    // Workers go in any order, with endpoints to and from them.
    let mut workers = workers;
    drop(workers.remove(2));
    drop(eps);
    drop(ctx);
    drop(workers);
}
