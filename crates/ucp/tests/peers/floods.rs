//! Peers that connect as often as they can, and a worker whose process has no descriptors left.

use std::time::{Duration, Instant};

use testkit::{Child, Resource, Role, role, with_rlimit};
use ucp::{CloseMode, Context, Features, Status};

use crate::roles::{
    ALL, BY_DEVICE, NO_ANSWER, PATIENCE, Peer, Side, connect_soon, context, go_with_the_test,
};

/// Connections that the victims here let come.
const MOST: usize = 16;

/// Connects until it may not; tells how often that was, and what was said then; tries again and again.
pub fn flooder() {
    let address = role::recv();
    go_with_the_test();
    let worker = context().worker().unwrap();
    let mut eps = Vec::new();
    let error = loop {
        match worker.connect(&address) {
            Ok(ep) => eps.push(ep),
            Err(error) => break error,
        }
        assert!(eps.len() < 10_000, "nobody stops it");
    };
    role::send(eps.len().to_string().as_bytes());
    role::send(format!("{:?}: {error} [{}]", error.status(), error.remedy()).as_bytes());
    loop {
        eps.extend(worker.connect(&address));
    }
}

/// As long as the test says nothing, this process can have `spare` descriptors more. Tells how many milliseconds of processor time that took.
pub fn starve(spare: u64) {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let highest = fds.filter_map(|fd| fd.file_name().to_str()?.parse::<u64>().ok()).max().unwrap();
    let spent = with_rlimit(Resource::Nofile, highest + 1 + spare, || {
        // What is free below it is taken.
        let null = || std::fs::File::open("/dev/null");
        let mut taken: Vec<_> = std::iter::from_fn(|| null().ok()).collect();
        taken.truncate(taken.len().saturating_sub(usize::try_from(spare).unwrap()));
        let before = cpu_time();
        role::send(b"few are left");
        let _ = role::try_recv();
        cpu_time() - before
    });
    // Now there are descriptors again.
    role::send(spent.as_millis().to_string().as_bytes());
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.try_into().unwrap()
}

/// A victim, and what it has open.
fn victim(most: usize) -> (Peer, usize) {
    let mut peer = Peer::of(Role::new("roles::peer").env("UCX_MAX_CONNECTIONS", most.to_string()));
    let fds = fds_of(&mut peer);
    (peer, fds)
}

fn fds_of(peer: &mut Peer) -> usize {
    number(&peer.child.request(b"fds"))
}

/// Waits until it has no more than `wanted` open.
fn settle(peer: &mut Peer, wanted: usize) {
    let end = Instant::now() + PATIENCE;
    while fds_of(peer) > wanted {
        assert!(Instant::now() < end, "{wanted} descriptors, then {}", fds_of(peer));
    }
}

fn number(text: &[u8]) -> usize {
    std::str::from_utf8(text).unwrap().parse().unwrap()
}

/// A process that floods it; how many connections it came to, and what it was told then.
fn flood(peer: &Peer, timeout: &str) -> (Child, usize, String) {
    let mut flooder = Role::new("floods::flooder").env("UCX_CONNECT_TIMEOUT", timeout).start();
    flooder.send(&peer.address);
    let count = number(&flooder.recv());
    let text = String::from_utf8(flooder.recv()).unwrap();
    (flooder, count, text)
}

/// One process gets half of the connections, and more of them all; the others are answered all the time. Those of who ends are others' then.
pub fn who_connects_in_a_loop_keeps_nobody_out() {
    let (mut peer, before) = victim(MOST);
    let (mut first, count, text) = flood(&peer, "5s");
    assert_eq!(count, MOST / 2);
    assert!(text.starts_with("ExceedsLimit: too many connections: "), "{text}");
    assert!(
        text.contains("as many connections as it lets come, or as one process may have of them"),
        "{text}"
    );
    assert!(text.contains("UCX_MAX_CONNECTIONS") && text.contains("ulimit -n"), "{text}");
    let side = Side::connect(&peer);
    (0..50).for_each(|_| side.round_trip());
    let (_second, count, _) = flood(&peer, "5s");
    assert_eq!(count, MOST / 2 - 1, "all but this side's");
    let error = context().worker().unwrap().connect(&peer.address).unwrap_err();
    assert_eq!(error.status(), Status::ExceedsLimit, "{error}");
    (0..50).for_each(|_| side.round_trip());
    // A socket and a pidfd each, also of those that are being refused.
    let open = fds_of(&mut peer);
    assert!(open <= before + 2 * (MOST + 4), "{before} descriptors, then {open}");
    first.kill();
    drop(side);
    // One of those is the second one's now; no more.
    Side::connect(&peer).round_trip();
}

/// A process that may have one connection has one after another.
pub fn connections_that_end_make_room() {
    let (mut peer, before) = victim(2);
    for number in 0..50 {
        let worker = context().worker().unwrap();
        let ep = connect_soon(&worker, &peer.address);
        assert_eq!(worker.connect(&peer.address).unwrap_err().status(), Status::ExceedsLimit);
        let closed = ep.close(if number % 2 == 0 { CloseMode::Flush } else { CloseMode::Force });
        worker.wait(closed, PATIENCE).unwrap();
    }
    settle(&mut peer, before);
}

/// Its endpoints go on, its service thread sleeps, and whoever waits comes as soon as there are descriptors again.
pub fn without_descriptors_a_worker_goes_on() {
    let (mut peer, _) = victim(MOST);
    let side = Side::connect(&peer);
    side.round_trip();
    assert_eq!(peer.child.request(b"starve 0"), b"few are left");
    let (_flooder, count, text) = flood(&peer, "100ms");
    assert_eq!(count, 0);
    assert!(text.starts_with("Unreachable: ") && text.contains(NO_ANSWER), "{text}");
    assert!(text.contains("or raise UCX_CONNECT_TIMEOUT"), "{text}");
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(1) {
        side.round_trip();
        std::thread::sleep(Duration::from_millis(20));
    }
    let millis = number(&peer.child.request(b"enough"));
    assert!(millis < 300, "{millis} ms of processor time in more than a second of waiting");
    side.round_trip();
    Side::connect(&peer).round_trip();
}

/// However few there are: it connects, or says why it does not, and never that the peer's secret or memory were wrong.
pub fn each_number_of_spare_descriptors() {
    let (mut peer, before) = victim(MOST);
    let side = Side::connect(&peer);
    let ctx = Context::builder().features(Features::AM).set("UCX_TLS", ALL);
    let ctx = ctx.set("UCX_CONNECT_TIMEOUT", "300ms").build().unwrap();
    let worker = ctx.worker().unwrap();
    let mut connected = Vec::new();
    for spare in 0..6 {
        assert_eq!(peer.child.request(format!("starve {spare}").as_bytes()), b"few are left");
        match worker.connect(&peer.address) {
            Ok(ep) => connected.push((spare, ep)),
            Err(error) => {
                let text = error.to_string();
                let is_told = match error.status() {
                    Status::Unreachable => {
                        text.contains(NO_ANSWER) || text.contains("no room for another connection")
                    }
                    // A quarter of so few descriptors may have been taken.
                    Status::ExceedsLimit => text.contains("too many connections"),
                    _ => false,
                };
                assert!(is_told, "{spare} spare: {error}");
            }
        }
        side.round_trip();
        let _ = peer.child.request(b"enough");
        // An attempt that was given up may still wait to be taken, before this one; what it takes then must not be spare the next time.
        Side::connect(&peer).round_trip();
        settle(&mut peer, before + 2 * (1 + connected.len()));
    }
    let spare: Vec<u64> = connected.iter().map(|(spare, _)| *spare).collect();
    // A socket; from the same machine a pidfd, too.
    let least = if BY_DEVICE { 1 } else { 2 };
    assert!(spare.first().is_some_and(|spare| *spare >= least), "{spare:?}");
    side.round_trip();
}
