//! Long data that is sent from where it lies: by a device, in the guest of `cargo xtask rxe`.

use std::cell::RefCell;
use std::rc::Rc;

use ucp::{
    AmFlags, AmMessage, CloseMode, Context, Endpoint, EpError, Features, LaneUse, Request, Status, Worker,
};

use crate::{BETWEEN, BY_DEVICE, PATIENCE, Pair, Seen, pattern};

const LONG: usize = 1 << 20;

fn with(threshold: &str) -> Context {
    let builder = Context::builder().features(Features::AM).set("UCX_TLS", BETWEEN);
    builder.set("UCX_ZCOPY_THRESH", threshold).build().unwrap()
}

/// Has messages to number 1 be kept.
fn keep(worker: &Worker) -> Seen<AmMessage> {
    let seen: Seen<AmMessage> = Rc::default();
    let keep = Rc::clone(&seen);
    worker.am_handler(1, move |message| keep.borrow_mut().push(message)).unwrap();
    seen
}

/// Sends as a rendezvous, and takes it.
fn goes(a: &Worker, ep: &Endpoint, (b, seen): (&Worker, &RefCell<Vec<AmMessage>>), data: Vec<u8>) -> Vec<u8> {
    let sent = ep.am_send_with(AmFlags::RNDV, 1, b"long", data.clone());
    let end = std::time::Instant::now() + PATIENCE;
    let mut taken: Option<Request<Vec<u8>>> = None;
    loop {
        assert!(std::time::Instant::now() < end, "it does not come");
        a.progress();
        b.progress();
        if let Some(message) = seen.borrow_mut().pop() {
            taken = Some(message.recv_data(vec![0; data.len()]));
        }
        let has_come = taken.as_ref().is_some_and(Request::is_ended);
        if has_come && sent.is_ended() {
            break;
        }
    }
    assert!(a.wait(sent, PATIENCE).unwrap() == data, "it comes back as it was");
    b.wait(taken.unwrap(), PATIENCE).unwrap()
}

/// What is long is registered, once, and what is short is not; unless the user says otherwise.
#[test]
fn long_data_is_registered_and_short_data_copied() {
    // Whether 1,000 and 1 MiB are.
    for (threshold, short, long) in [("auto", false, true), ("inf", false, false), ("0", true, true)] {
        let (ours, theirs) = (with(threshold), with(threshold));
        let (a, b) = (ours.worker().unwrap(), theirs.worker().unwrap());
        let seen = keep(&b);
        let ep = a.connect(b.address().unwrap().as_bytes()).unwrap();
        let lane = ep.info().lanes.into_iter().find(|lane| lane.of == LaneUse::Gathered);
        assert_eq!(lane.is_some(), BY_DEVICE && threshold != "inf");
        for (len, is_registered) in [(1000, short), (LONG, long), (LONG + 1, long)] {
            let from = lane.as_ref().map_or(u64::MAX, |lane| lane.from);
            assert_eq!(len as u64 >= from, BY_DEVICE && is_registered, "{threshold}: {len}");
            let before = ours.rcache_stats();
            let data = pattern(len, 5);
            assert!(goes(&a, &ep, (&b, &seen), data.clone()) == data, "{threshold}: {len}");
            let after = ours.rcache_stats();
            let asked = after.gets - before.gets;
            assert_eq!(asked, u64::from(BY_DEVICE && is_registered), "{threshold}: {len}");
        }
        assert_eq!(theirs.rcache_stats().gets, 0, "who receives has registered nothing");
    }
}

/// An endpoint that ends while its device reads an operand gives it back when it does not any more.
#[test]
fn operands_come_back_from_an_endpoint_that_is_closed_meanwhile() {
    for round in 0..10 {
        let pair = Pair::new(BETWEEN);
        let seen = keep(pair.b());
        let data = pattern(LONG, round);
        let sent = pair.ep.am_send(1, b"", data.clone());
        pair.until("an announcement", || !seen.borrow().is_empty());
        let taken = seen.borrow_mut().pop().unwrap().recv_data(vec![0; LONG]);
        // The answer comes, and as much as there is room for is on its way.
        let end = std::time::Instant::now() + PATIENCE;
        while pair.a.progress() == 0 && round % 2 == 0 {
            assert!(std::time::Instant::now() < end, "no answer");
        }
        assert!(pair.ep.clone().close(CloseMode::Force).is_ended());
        let failed = match pair.a.wait(sent, PATIENCE) {
            Err(ucp::WaitError::Failed(failed)) => failed,
            other => panic!("it was closed: {:?}", other.map(drop)),
        };
        assert!(failed.operand == data && failed.error == EpError::Closed.into(), "round {round}");
        let lost = pair.b().wait(taken, PATIENCE).map(drop);
        assert_eq!(lost.unwrap_err().status(), Status::ConnectionReset, "round {round}");
    }
}

/// Who closes without force waits until the device has read all of it.
#[test]
fn an_endpoint_closed_with_care_sends_all_of_it() {
    let pair = Pair::new(BETWEEN);
    let seen = keep(pair.b());
    let data = pattern(LONG, 3);
    let sent: Vec<_> = (0..3).map(|_| pair.ep.am_send(1, b"", data.clone())).collect();
    pair.until("announcements", || seen.borrow().len() == 3);
    let taken: Vec<_> = seen.borrow_mut().drain(..).map(|message| message.recv_data(vec![0; LONG])).collect();
    let closed = pair.ep.clone().close(CloseMode::Flush);
    pair.until("the end", || closed.is_ended());
    assert!(closed.into_result().unwrap().is_ok());
    for sent in sent {
        // What it waited for has ended, and is told of before.
        assert!(sent.into_result().unwrap().unwrap() == data);
    }
    for taken in taken {
        assert!(pair.b().wait(taken, PATIENCE).unwrap() == data);
    }
}
