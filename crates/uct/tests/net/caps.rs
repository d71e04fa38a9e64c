//! How many may be connected: who has proven a token keeps its place.

use uct::service::net::server::FILES;

use super::peer::{At, Raw, Server, until};

/// Descriptors of the server.
const NOFILE: u64 = 256;
/// As many as may have proven a token, and of one address.
const PROVEN: usize = (NOFILE / FILES) as usize;
const PER_ADDRESS: usize = PROVEN / 2;

/// As many from that address as may come, each with a proof.
fn proven(host: u8, at: &At) -> Vec<Raw> {
    let one = || {
        let mut raw = Raw::from(host, at).expect("there is room");
        assert!(raw.is_answered());
        raw
    };
    (0..PER_ADDRESS).map(|_| one()).collect()
}

/// Whether one from that address is let in, and answered.
fn is_let_in(host: u8, at: &At) -> bool {
    Raw::from(host, at).is_some_and(|mut raw| raw.is_answered())
}

pub fn one_address_has_its_share() {
    let mut server = Server::with_files(NOFILE);
    let mut all = proven(1, &server.at);
    let mut other = Raw::from(2, &server.at).unwrap();
    assert!(!is_let_in(1, &server.at), "one more than may be");
    assert!(other.is_answered(), "nobody of another address gives way");
    assert!(all.iter_mut().all(Raw::is_answered), "those that were there go on");
    let before = server.ended();
    drop(all.pop());
    until("its place is free", || server.ended() > before);
    // One without a proof gives way to the next of its address.
    let mut idle: Vec<_> = (0..PER_ADDRESS).map(|_| Raw::from(1, &server.at).unwrap()).collect();
    assert!(is_let_in(1, &server.at));
    assert!(!idle[0].is_answered(), "it has given way");
    assert!(all.iter_mut().all(Raw::is_answered));
}

pub fn who_has_proven_a_token_keeps_its_place() {
    let mut server = Server::with_files(NOFILE);
    let mut all: Vec<Raw> = (1..=2).flat_map(|host| proven(host, &server.at)).collect();
    assert_eq!(all.len(), PROVEN);
    assert!(!is_let_in(3, &server.at), "one more than may be");
    assert!(all.iter_mut().all(Raw::is_answered), "those that were there go on");
    let before = server.ended();
    drop(all.pop());
    until("its place is free", || server.ended() > before);
    assert!(is_let_in(3, &server.at));
    assert!(all.iter_mut().all(Raw::is_answered));
}

/// All were let in while there was room, and prove something at once.
pub fn who_proves_a_token_when_there_are_enough_is_turned_away() {
    let server = Server::with_files(NOFILE);
    let crowd = |host| (0..20).map(move |_| Raw::from(host, &server.at).unwrap());
    let mut crowd: Vec<Raw> = [1, 3, 4].into_iter().flat_map(crowd).collect();
    let mut all = proven(2, &server.at);
    crowd.iter_mut().for_each(|raw| _ = raw.is_answered());
    let kept = crowd.iter_mut().map(Raw::is_answered).filter(|is_answered| *is_answered).count();
    assert_eq!(kept, PROVEN - PER_ADDRESS);
    assert!(all.iter_mut().all(Raw::is_answered), "those that were there go on");
}
