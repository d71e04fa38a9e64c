//! What a transfer does when the pid is another process's. Another process is one that does not hold the nonce: this one does here.

use rustix::process::getpid;
use ucs::mem::Mapping;

use super::transfer::{Nonce, Target, Why};
use crate::process::vm;

/// Two pages: the nonce at the beginning of the first, the range is the second.
fn target(map: &Mapping) -> (Target, Nonce) {
    map.bytes().store(0, 4711_u64).unwrap();
    map.bytes().write(4096, &[7; 4096]).unwrap();
    let at = map.bytes().as_ptr().addr() as u64;
    (Target { pid: getpid(), address: at + 4096 }, Nonce { at, value: 4711 })
}

#[test]
fn bytes_of_another_process_are_never_shown() {
    let map = Mapping::anonymous(8192).unwrap();
    let (target, good) = target(&map);
    let mut seen = [1; 100];
    assert_eq!(target.read(good, 0, &mut seen, 0), Ok(()));
    assert_eq!(seen, [7; 100]);
    for (what, nonce) in [
        ("other bytes at the nonce's address", Nonce { value: 4712, ..good }),
        ("nothing at the nonce's address", Nonce { at: 8, ..good }),
    ] {
        seen.fill(1);
        let stopped = target.read(nonce, 0, &mut seen, 0).unwrap_err();
        assert_eq!((stopped.done, stopped.why), (0, Why::AnotherProcess), "{what}");
        assert!(!seen.contains(&7), "{what}: its bytes are shown");
        let stopped = target.write(nonce, 0, &[9; 100], 0).unwrap_err();
        assert_eq!((stopped.done, stopped.why), (0, Why::AnotherProcess), "{what}");
        assert_eq!(target.probe(nonce), Err(Why::AnotherProcess), "{what}");
    }
    let mut bytes = [0; 100];
    map.bytes().read(4096, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 100], "its bytes are as before");
    // Without the nonce, the same pid and address lead there: it is the nonce that protects.
    assert_eq!(vm::read(target.pid, target.address, &mut seen), Ok(100));
    assert_eq!(seen, [7; 100]);
}

/// The process is replaced in the middle: what came before stays, what came after is wiped.
#[test]
fn what_came_before_another_process_stays() {
    let map = Mapping::anonymous(8192).unwrap();
    let (target, good) = target(&map);
    let mut seen = [1; 100];
    let stopped = target.read(Nonce { value: 1, ..good }, 0, &mut seen, 40).unwrap_err();
    assert_eq!((stopped.done, stopped.why), (40, Why::AnotherProcess));
    assert_eq!((&seen[..40], &seen[40..]), (&[1; 40][..], &[0; 60][..]));
}

#[test]
fn a_page_that_is_missing_stops_it_where_it_is() {
    let map = Mapping::anonymous(8192).unwrap();
    let (target, good) = target(&map);
    let target = Target { address: 0, ..target };
    let mut seen = [1; 100];
    for done in [0, 50] {
        let stopped = target.read(good, 0, &mut seen, done).unwrap_err();
        assert_eq!((stopped.done, stopped.why), (done, Why::Fault));
        let stopped = target.write(good, 0, &seen, done).unwrap_err();
        assert_eq!((stopped.done, stopped.why), (done, Why::Fault));
    }
    assert_eq!(seen, [1; 100]);
}
