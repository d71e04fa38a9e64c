//! What statuses and ranges mean.

use super::*;

#[test]
fn statuses_are_errors_that_say_what_it_was() {
    let error = |status| error_of(status, "words");
    assert_eq!(error(ibv_wc_status::IBV_WC_REM_ACCESS_ERR).status(), ucs::Status::Stale);
    assert_eq!(error(ibv_wc_status::IBV_WC_LOC_PROT_ERR).status(), ucs::Status::AccessDenied);
    let others = [
        ibv_wc_status::IBV_WC_RETRY_EXC_ERR,
        ibv_wc_status::IBV_WC_REM_OP_ERR,
        ibv_wc_status::IBV_WC_REM_INV_REQ_ERR,
    ];
    for other in others.map(error) {
        assert_eq!(other.status(), ucs::Status::IoError, "an import is not over for that");
        assert!(other.to_string().contains("words"), "{other}");
    }
}

#[test]
fn ranges_go_on_by_bytes_and_keep_their_keys() {
    let (near, remote) =
        (Near { address: 0x1000, lkey: 1 }.at(FRAGMENT), Remote { address: 0x1000, rkey: 2 }.at(7));
    assert_eq!((near.address, near.lkey), (0x1000 + FRAGMENT as u64, 1));
    assert_eq!((remote.address, remote.rkey), (0x1007, 2));
    let end = Remote { address: u64::MAX, rkey: 2 }.at(2); // an exporter's address is any number
    assert_eq!(end.address, 1);
}
