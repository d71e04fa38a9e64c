//! Remote memory.

use ucp::{MemMap, Status};

use crate::{PATIENCE, Pair, Seen, context, pattern};

#[test]
fn put_and_get_by_rkey() {
    let (owner, user) = (context("all"), context("all"));
    let (a, b) = (owner.worker().unwrap(), user.worker().unwrap());
    let region = owner.mem_map(MemMap::allocate(1 << 20)).unwrap();
    let ep = b.connect(a.address().unwrap().as_bytes()).unwrap();
    let rkey = region.rkey_pack().unwrap();
    assert_eq!(rkey.as_bytes(), region.rkey_pack().unwrap().as_bytes(), "one key a region");
    let remote = ep.rkey_unpack(rkey.as_bytes()).unwrap();
    assert_eq!((remote.len(), remote.transport()), (1 << 20, "shm"));
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

#[test]
fn keys_are_told_from_handles_and_from_other_contexts_keys() {
    let pair = Pair::new("shm");
    let other = context("shm");
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

#[test]
fn imported_memory_is_an_operand_of_rkeys_and_messages() {
    for tls in crate::TRANSPORTS {
        let pair = Pair::new(tls);
        // A third one's memory, and the peer's; where the transport reaches one context only, all are of that.
        let third = context("shm");
        let region = third.mem_map(MemMap::allocate(1 << 20).exported()).unwrap();
        let data = pattern(1 << 20, 3);
        region.write(0, &data).unwrap();
        let importer = context("shm");
        let import = importer.mem_import(region.memh_pack().unwrap().as_bytes()).unwrap();
        for len in [0, 8, 5000, 100_000, 1 << 20] {
            let seen: Seen<Vec<u8>> = Seen::default();
            let (into, waiting) = (seen.clone(), Seen::default());
            let announced = waiting.clone();
            let handler = move |message: ucp::AmMessage| match message.is_rendezvous() {
                true => announced.borrow_mut().push(message),
                false => into.borrow_mut().push(message.data().to_vec()),
            };
            pair.b().am_handler(1, handler).unwrap();
            let sent = pair.ep.am_send(1, b"", import.slice(0..len as u64).unwrap());
            pair.until("the message", || !seen.borrow().is_empty() || !waiting.borrow().is_empty());
            let message = waiting.borrow_mut().pop();
            let come = message.map(|message| message.recv_data(vec![0; len]));
            pair.until("its end", || sent.is_ended() && come.as_ref().is_none_or(ucp::Request::is_ended));
            assert_eq!(sent.into_result().unwrap().unwrap().len(), len as u64);
            let got =
                come.map_or_else(|| seen.borrow()[0].clone(), |come| come.into_result().unwrap().unwrap());
            assert!(got == data[..len], "{tls}, {len}");
        }
    }
    let (owner, user) = (context("all"), context("all"));
    let (a, b) = (owner.worker().unwrap(), user.worker().unwrap());
    let (theirs, host) = (owner.mem_map(MemMap::allocate(1 << 20)).unwrap(), context("all"));
    let hosts = host.mem_map(MemMap::allocate(1 << 20).exported()).unwrap();
    let import = user.mem_import(hosts.memh_pack().unwrap().as_bytes()).unwrap();
    let ep = b.connect(a.address().unwrap().as_bytes()).unwrap();
    let remote = ep.rkey_unpack(theirs.rkey_pack().unwrap().as_bytes()).unwrap();
    let (data, mut seen) = (pattern(300_000, 5), vec![0; 300_000]);
    hosts.write(100, &data).unwrap();
    let slice = b.wait(remote.put(7, import.slice(100..300_100).unwrap()), PATIENCE).unwrap();
    theirs.read(7, &mut seen).unwrap();
    assert!(seen == data);
    hosts.write(100, &vec![0; 300_000]).unwrap();
    b.wait(remote.get(7, slice), PATIENCE).unwrap();
    hosts.read(100, &mut seen).unwrap();
    assert!(seen == data);
}

#[test]
fn atomics_by_rkey() {
    let (owner, user) = (context("all"), context("all"));
    let (a, b) = (owner.worker().unwrap(), user.worker().unwrap());
    let region = owner.mem_map(MemMap::allocate(4096)).unwrap();
    let ep = b.connect(a.address().unwrap().as_bytes()).unwrap();
    let remote = ep.rkey_unpack(region.rkey_pack().unwrap().as_bytes()).unwrap();
    assert_eq!(remote.fetch_add(8, 5_u64).unwrap(), 0);
    assert_eq!(remote.fetch_or(8, 8_u64).unwrap(), 5);
    assert_eq!(remote.fetch_and(8, 12_u64).unwrap(), 13);
    assert_eq!(remote.fetch_xor(8, 1_u64).unwrap(), 12);
    assert_eq!(remote.swap(8, 100_u64).unwrap(), 13);
    assert_eq!(remote.cswap(8, 99, 1_u64).unwrap(), 100);
    assert_eq!(remote.cswap(8, 100, 1_u64).unwrap(), 100);
    assert_eq!(remote.atomic(8, ucp::AmoOp::Add(1_u64)).unwrap(), 1);
    assert_eq!(region.load::<u64>(8), Ok(2));
    assert_eq!(remote.fetch_add(4, u32::MAX).unwrap(), 0);
    assert_eq!(remote.fetch_add(4, 1_u32).unwrap(), u32::MAX);
    assert_eq!(remote.fetch_add(4096, 1_u64).unwrap_err().status(), Status::OutOfRange);
    assert_eq!(remote.fetch_add(12, 1_u64).unwrap_err().status(), Status::InvalidParam);
    let closed = ep.clone().close(ucp::CloseMode::Force);
    assert!(closed.is_ended());
    let error = remote.fetch_add(8, 1_u64).unwrap_err();
    assert_eq!(error.status(), ep.check().unwrap_err().status());
    drop(region);
}
