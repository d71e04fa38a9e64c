//! Remote memory.

use std::rc::Rc;

use ucp::{AmFlags, AmoOp, Context, ContextBuilder, Features, MemMap, Request, Status};

use crate::{BETWEEN, BY_DEVICE, PATIENCE, Pair, Seen, context, pattern};

/// What workers of two contexts have for memory; in the guest of `cargo xtask rxe` its device alone.
const ALL: &str = if BY_DEVICE { "verbs" } else { "all" };
/// Sets of transports that move bytes by keys.
const BY_KEYS: [&str; 2] = [ALL, if BY_DEVICE { "self,verbs" } else { "self,posix" }];

#[test]
fn put_and_get_by_rkey() {
    let (owner, user) = (context(ALL), context(ALL));
    let (a, b) = (owner.worker().unwrap(), user.worker().unwrap());
    let region = owner.mem_map(MemMap::allocate(1 << 20)).unwrap();
    let ep = b.connect(a.address().unwrap().as_bytes()).unwrap();
    let rkey = region.rkey_pack().unwrap();
    assert_eq!(rkey.as_bytes(), region.rkey_pack().unwrap().as_bytes(), "one key a region");
    let remote = ep.rkey_unpack(rkey.as_bytes()).unwrap();
    assert_eq!((remote.len(), remote.transport()), (1 << 20, BETWEEN));
    for len in [0, 1, 7, 8, 100, 4096, 100_000, 1 << 20] {
        let data = pattern(len, 9);
        let data = b.wait(remote.put(0, data), PATIENCE).unwrap();
        b.wait(ep.flush(), PATIENCE).unwrap();
        let mut seen = vec![0; len];
        region.read(0, &mut seen).unwrap();
        assert!(seen == data, "{len}");
        let back = b.wait(remote.get(0, vec![0; len]), PATIENCE).unwrap();
        assert!(back == data, "{len}");
    }
    let error = remote.put((1 << 20) - 1, vec![1, 2]).into_result().unwrap().unwrap_err();
    assert_eq!((error.status(), error.operand), (Status::OutOfRange, vec![1, 2]));
    drop(region);
    let error = remote.get(0, vec![0; 8]).into_result().unwrap().unwrap_err();
    assert_eq!(error.status(), Status::Stale);
}

/// Operations without requests of their own: flush tells that they have ended.
#[test]
fn implicit_operations_end_with_the_next_flush() {
    for tls in BY_KEYS {
        let (owner, user) = (context(tls), context(tls));
        let (a, b) = (owner.worker().unwrap(), user.worker().unwrap());
        let region = owner.mem_map(MemMap::allocate(1 << 16)).unwrap();
        let ep = b.connect(a.address().unwrap().as_bytes()).unwrap();
        let remote = ep.rkey_unpack(region.rkey_pack().unwrap().as_bytes()).unwrap();
        let here = user.mem_map(MemMap::allocate(1 << 16)).unwrap();
        for at in 0..16_u64 {
            remote.put_nbi(at << 12, pattern(1 << 12, at as u8)).unwrap();
        }
        b.wait(ep.flush(), PATIENCE).unwrap();
        remote.get_nbi(0, here.slice(..).unwrap()).unwrap();
        b.wait(b.flush(), PATIENCE).unwrap();
        for at in 0..16_usize {
            let mut seen = vec![0; 1 << 12];
            here.read((at << 12) as u64, &mut seen).unwrap();
            assert!(seen == pattern(1 << 12, at as u8), "{at}");
        }
        let error = remote.put_nbi((1 << 16) - 1, vec![1, 2]).unwrap_err();
        assert_eq!((error.status(), error.operand), (Status::OutOfRange, vec![1, 2]));
        let closed = remote.clone();
        b.wait(ep.close(ucp::CloseMode::Flush), PATIENCE).unwrap();
        assert_eq!(closed.put_nbi(0, vec![1]).unwrap_err().status(), ucp::EpError::Closed.status());
        assert_eq!(closed.get_nbi(0, vec![1]).unwrap_err().status(), ucp::EpError::Closed.status());
    }
}

/// One whose atomics are done by processors, or by a device where that is what reaches memory.
fn atomics_context(mode: &str) -> Context {
    atomics_builder(mode).build().unwrap()
}

fn atomics_builder(mode: &str) -> ContextBuilder {
    let features = Features::AM | Features::RMA | Features::AMO64;
    Context::builder().features(features).set("UCX_TLS", BETWEEN).set("UCX_ATOMIC_MODE", mode)
}

/// The mode in which there are atomics.
const MODE: &str = if BY_DEVICE { "device" } else { "cpu" };

#[test]
fn atomics_by_rkey() {
    atomics_between(&atomics_context(MODE), &atomics_context(MODE));
}

/// Within one machine, in the importer's own protection domain.
#[cfg(feature = "rxe-tests")]
#[test]
fn atomics_by_rkey_in_the_importers_domain() {
    let shared = || atomics_builder(MODE).set("UCX_VERBS_SHARE", "y").set("UCX_VERBS_REMOTE", "n");
    atomics_between(&shared().build().unwrap(), &shared().build().unwrap());
}

fn atomics_between(user: &Context, owner: &Context) {
    let user = user.worker().unwrap();
    let worker = owner.worker().unwrap();
    let region = owner.mem_map(MemMap::allocate(4096)).unwrap();
    let ep = user.connect(worker.address().unwrap().as_bytes()).unwrap();
    let remote = ep.rkey_unpack(region.rkey_pack().unwrap().as_bytes()).unwrap();
    let wait = |request| user.wait(request, PATIENCE).unwrap();
    assert_eq!(wait(remote.fetch_add(8, 5_u64)), 0);
    assert_eq!(wait(remote.fetch_add(8, u64::MAX)), 5);
    assert_eq!(wait(remote.cswap(8, 4_u64, 9)), 4);
    assert_eq!(wait(remote.cswap(8, 4_u64, 1)), 9, "it was not expected, and stays");
    for (op, after) in [
        (AmoOp::Add(1_u64), 10),
        (AmoOp::And(0b1110), 10),
        (AmoOp::Or(1), 11),
        (AmoOp::Xor(2), 9),
        (AmoOp::Swap(7), 7),
        (AmoOp::Cswap { expected: 7, new: 8 }, 8),
    ] {
        user.wait(remote.atomic_post(8, op), PATIENCE).unwrap();
        assert_eq!(region.load::<u64>(8).unwrap(), after, "{op:?}");
    }
    let error = remote.fetch_add(4, 1_u64).into_result().unwrap().unwrap_err();
    assert_eq!((error.status(), error.operand), (Status::InvalidParam, 1), "{error}");
    let error = remote.fetch_add(8, 1_u32).into_result().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the context was made without Features::AMO32");
    let error = remote.fetch_add(4096, 1_u64).into_result().unwrap().unwrap_err();
    assert_eq!(error.status(), Status::OutOfRange);
    drop(region);
    let error = remote.fetch_add(8, 1_u64).into_result().unwrap().unwrap_err();
    assert_eq!(error.status(), Status::Stale);
}

/// Processors' atomics are not atomic towards a device's: which of them are meant is said, and the others are refused.
#[test]
fn atomics_of_the_other_kind_are_refused() {
    let owner = context(BETWEEN);
    let worker = owner.worker().unwrap();
    let region = owner.mem_map(MemMap::allocate(4096)).unwrap();
    for mode in ["guess", "cpu", "device"] {
        let user = atomics_context(mode).worker().unwrap();
        let ep = user.connect(worker.address().unwrap().as_bytes()).unwrap();
        let remote = ep.rkey_unpack(region.rkey_pack().unwrap().as_bytes()).unwrap();
        let before = region.load::<u64>(8).unwrap();
        let answer = remote.fetch_add(8, 1_u64).into_result().unwrap();
        if BY_DEVICE == (mode == "device") {
            assert_eq!(answer.unwrap(), before, "{mode}");
            assert_eq!(region.load::<u64>(8).unwrap(), before + 1);
        } else {
            let error = answer.unwrap_err();
            assert_eq!(error.status(), Status::Unsupported, "{mode}");
            assert!(error.to_string().contains("UCX_ATOMIC_MODE"), "{error}");
            assert_eq!(region.load::<u64>(8).unwrap(), before);
        }
    }
    let error = Context::builder().set("UCX_ATOMIC_MODE", "both").build().unwrap_err();
    assert!(error.to_string().contains("guess, cpu or device"), "{error}");
}

/// Three contexts at one word and at the one beside it: no addition is lost, and none of those that are made of a comparison.
#[test]
fn atomics_are_atomic_towards_each_other() {
    const EACH: u64 = if BY_DEVICE { 20 } else { 5000 };
    let owner = context(BETWEEN);
    let worker = owner.worker().unwrap();
    let region = owner.mem_map(MemMap::allocate(4096)).unwrap();
    let (address, rkey) = (worker.address().unwrap(), region.rkey_pack().unwrap());
    std::thread::scope(|scope| {
        for number in 0..3_u32 {
            let (address, rkey) = (address.as_bytes(), rkey.as_bytes());
            scope.spawn(move || {
                let user = atomics_context(MODE).worker().unwrap();
                let remote = user.connect(address).unwrap().rkey_unpack(rkey).unwrap();
                for round in 0..EACH {
                    user.wait(remote.fetch_add(8, 1_u64), PATIENCE).unwrap();
                    let bit = 1_u64 << (number * 20 + (round % 20) as u32);
                    user.wait(remote.fetch_xor(16, bit), PATIENCE).unwrap();
                }
            });
        }
    });
    assert_eq!(region.load::<u64>(8).unwrap(), 3 * EACH);
    assert_eq!(
        region.load::<u64>(16).unwrap(),
        if (EACH / 20).is_multiple_of(2) { 0 } else { (1 << 60) - 1 }
    );
    assert_eq!((region.load::<u64>(0).unwrap(), region.load::<u64>(24).unwrap()), (0, 0));
}

/// A DPU moves between a host's imported memory and a peer's, and sends messages from it and into it.
#[test]
fn imported_memory_as_an_operand() {
    let (host, dpu, peer) = (context(ALL), context(ALL), context(ALL));
    let memory = host.mem_map(MemMap::allocate(1 << 20).exported()).unwrap();
    memory.write(0, &pattern(1 << 20, 1)).unwrap();
    let imported = dpu.mem_import(memory.memh_pack().unwrap().as_bytes()).unwrap();

    let (a, b) = (dpu.worker().unwrap(), peer.worker().unwrap());
    let region = peer.mem_map(MemMap::allocate(1 << 20)).unwrap();
    let ep = a.connect(b.address().unwrap().as_bytes()).unwrap();
    let remote = ep.rkey_unpack(region.rkey_pack().unwrap().as_bytes()).unwrap();
    let half = imported.slice(..1 << 19).unwrap();
    let half = a.wait(remote.put(100, half), PATIENCE).unwrap();
    let mut seen = vec![0; 1 << 19];
    region.read(100, &mut seen).unwrap();
    assert!(seen == pattern(1 << 20, 1)[..1 << 19]);
    region.write(0, &pattern(1 << 19, 2)).unwrap();
    a.wait(remote.get(0, half), PATIENCE).unwrap();
    memory.read(0, &mut seen).unwrap();
    assert!(seen == pattern(1 << 19, 2));

    let received: Seen<Request<Vec<u8>>> = Rc::default();
    let into = Rc::clone(&received);
    b.am_handler(1, move |message| {
        assert!(message.is_rendezvous(), "also when it is short");
        let buffer = vec![0; message.len() as usize];
        into.borrow_mut().push(message.recv_data(buffer));
    })
    .unwrap();
    for range in [0..1 << 20, 5..6, 7..100_000] {
        let sent = ep.am_send(1, b"", imported.slice(range.clone()).unwrap());
        let end = std::time::Instant::now() + PATIENCE;
        let ended = || sent.is_ended() && received.borrow().first().is_some_and(Request::is_ended);
        while !ended() && std::time::Instant::now() < end {
            a.progress();
            b.progress();
        }
        sent.into_result().unwrap().unwrap();
        let mut expected = vec![0; (range.end - range.start) as usize];
        memory.read(range.start, &mut expected).unwrap();
        let got = received.borrow_mut().pop().unwrap().into_result().unwrap().unwrap();
        assert!(got == expected, "{range:?}");
    }
    let error = ep.am_send_with(AmFlags::EAGER, 1, b"", imported.slice(..8).unwrap());
    assert_eq!(error.into_result().unwrap().unwrap_err().status(), Status::InvalidParam);

    // The host takes it back in the middle of a rendezvous: each side hears of it, and the endpoint lives.
    let sent = ep.am_send(1, b"", imported.slice(..).unwrap());
    while received.borrow().is_empty() {
        a.progress();
        b.progress();
    }
    drop(memory);
    let end = std::time::Instant::now() + PATIENCE;
    while !(sent.is_ended() && received.borrow()[0].is_ended()) && std::time::Instant::now() < end {
        a.progress();
        b.progress();
    }
    assert_eq!(sent.into_result().unwrap().unwrap_err().status(), Status::Stale);
    let error = received.borrow_mut().pop().unwrap().into_result().unwrap().unwrap_err();
    assert_eq!((error.status(), error.operand.len()), (Status::Canceled, 1 << 20));
    assert_eq!(ep.check(), Ok(()));
}

#[test]
fn keys_are_told_from_handles_and_from_other_contexts_keys() {
    let pair = Pair::new(BETWEEN);
    let other = context(BETWEEN);
    let region = other.mem_map(MemMap::allocate(4096).exported()).unwrap();
    let rkey = region.rkey_pack().unwrap();
    let error = pair.ep.rkey_unpack(rkey.as_bytes()).unwrap_err();
    assert_eq!(error.to_string(), "the rkey is of another context than the peer of this endpoint");
    let handle = region.memh_pack().unwrap();
    let error = pair.ep.rkey_unpack(handle.as_bytes()).unwrap_err();
    assert!(error.to_string().contains("Context::mem_import"), "{error}");
    let error = other.mem_import(rkey.as_bytes()).unwrap_err();
    assert_eq!(error.status(), Status::InvalidHandle);
    assert!(error.to_string().contains("rkey_unpack"), "{error}");
    let error = pair.a.connect(handle.as_bytes()).unwrap_err();
    assert!(error.to_string().contains("Context::mem_import"), "{error}");
    assert_eq!(format!("{rkey:?}"), format!("PackedRkey(<{} secret bytes>)", rkey.as_bytes().len()));
}
