//! Remote memory.

use ucp::{MemMap, Status};

use crate::{PATIENCE, Pair, context, pattern};

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
