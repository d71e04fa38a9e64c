//! Who waits is woken, and sleeps until then.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::mpsc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};
use ucp::{Request, WaitError, Worker};

use crate::{BETWEEN, PATIENCE, Pair, context};

/// Processor time that this thread has had.
fn cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap()
}

/// It sleeps for half a second, whatever wakes it once or twice for nothing.
#[track_caller]
fn sleeps(worker: &Worker, what: &str) {
    let (begin, before) = (Instant::now(), cpu());
    while begin.elapsed() < Duration::from_millis(500) {
        worker.wait_any(Duration::from_millis(250)).unwrap();
    }
    let spent = cpu() - before;
    assert!(spent < Duration::from_millis(100), "{what}: {spent:?} of half a second");
}

/// Whether the descriptor is readable.
fn readable(worker: &Worker) -> bool {
    poll(&mut [PollFd::new(worker, PollFlags::IN)], Some(&Timespec::default())).unwrap() == 1
}

#[test]
fn idle_workers_take_no_processor_whatever_their_endpoints() {
    let mut pair = Pair::new(BETWEEN);
    pair.b().am_handler(1, |_| {}).unwrap();
    sleeps(&context(BETWEEN).worker().unwrap(), "no endpoint");
    sleeps(&pair.a, "one endpoint");
    let others: Vec<_> = (0..9).map(|_| context(BETWEEN).worker().unwrap()).collect();
    let eps: Vec<_> =
        others.iter().map(|other| pair.a.connect(other.address().unwrap().as_bytes()).unwrap()).collect();
    sleeps(&pair.a, "ten");
    // One with a full ring, one with an announcement that nobody answers.
    let mut full = Vec::new();
    while full.iter().all(Request::is_ended) {
        full.push(eps[0].am_send(1, b"", vec![1; 4096]));
    }
    let announced = eps[1].am_send(1, b"", vec![1; 100_000]);
    sleeps(&pair.a, "a full ring");
    // One whose peer has gone, with its handle still held.
    pair.lose_b();
    sleeps(&pair.a, "a peer that has gone");
    assert!(pair.ep.check().is_err());
    // All of them gone, one with a full ring among them.
    drop(others);
    pair.a_until("all ends", || eps.iter().all(|ep| ep.check().is_err()) && announced.is_ended());
    sleeps(&pair.a, "all have gone");
    assert!(full.iter().all(Request::is_ended));
}

#[test]
fn a_signal_during_another_wait_neither_spins_nor_is_lost() {
    let pair = Pair::new(BETWEEN);
    let request = pair.ep.am_send(1, b"", vec![1; 100_000]);
    pair.a.signaler().signal();
    let before = cpu();
    let Err(WaitError::TimedOut(_request)) = pair.a.wait(request, Duration::from_millis(500)) else {
        panic!("nobody answers");
    };
    let spent = cpu() - before;
    assert!(spent < Duration::from_millis(100), "{spent:?} of half a second");
    assert!(pair.a.wait_any(Duration::ZERO).unwrap(), "the signal");
    assert!(!pair.a.wait_any(Duration::from_millis(5)).unwrap());
    sleeps(&pair.a, "after it");
}

#[test]
fn a_signal_before_arming_is_told_and_leaves_nothing_behind() {
    let pair = Pair::new(BETWEEN);
    pair.progress();
    pair.progress();
    let signaler = pair.a.signaler();
    for _ in 0..3 {
        signaler.signal();
        assert!(!pair.a.arm(), "something was said before");
        pair.a.progress();
        assert!(pair.a.arm());
        assert!(!readable(&pair.a));
        signaler.signal();
        assert!(readable(&pair.a));
    }
}

/// Signals, and messages that come at any moment of each other: the worker wakes for each, and sleeps afterwards.
#[test]
fn signals_at_any_moment_wake_and_leave_it_asleep() {
    let worker = context(BETWEEN).worker().unwrap();
    let signaler = worker.signaler();
    let (sender, receiver) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let mut spins = 0_u32;
        while receiver.recv().is_ok() {
            spins = spins.wrapping_mul(1_103_515_245).wrapping_add(12_345);
            (0..spins >> 18).for_each(|_| std::hint::spin_loop());
            signaler.signal();
        }
    });
    for _ in 0..3000 {
        sender.send(()).unwrap();
        assert!(worker.wait_any(PATIENCE).unwrap(), "a signal is lost");
    }
    drop(sender);
    thread.join().unwrap();
    sleeps(&worker, "after all signals");
}

/// Ready after it was polled so often; wakes itself.
fn yields(times: u32) -> impl Future<Output = ()> {
    let mut left = times;
    std::future::poll_fn(move |cx| {
        if left == 0 {
            return Poll::Ready(());
        }
        left -= 1;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
}

#[test]
fn a_future_that_wakes_itself_keeps_no_progress_out() {
    for tls in crate::TRANSPORTS {
        let pair = Pair::new(tls);
        let seen = Rc::new(Cell::new(false));
        let flag = Rc::clone(&seen);
        pair.b().am_handler(1, move |_| flag.set(true)).unwrap();
        let _detached = pair.ep.am_send(1, b"", vec![1]);
        let turns = pair.b().block_on(async {
            let mut turns = 0;
            while !seen.get() && turns < 100_000 {
                yields(1).await;
                turns += 1;
            }
            turns
        });
        assert!(turns.unwrap() < 100_000, "{tls}");
    }
}

#[test]
fn waiting_within_what_is_awaited_loses_no_wake_up() {
    let pair = Pair::new(BETWEEN);
    let worker = &pair.a;
    let (sender, receiver) = mpsc::channel::<Waker>();
    let thread = std::thread::spawn(move || {
        // Woken while the inner one waits.
        receiver.recv().unwrap().wake();
    });
    let thread = Cell::new(Some(thread));
    let mut polled = 0;
    let outer = std::future::poll_fn(|cx| {
        polled += 1;
        if polled > 1 {
            return Poll::Ready(());
        }
        sender.send(cx.waker().clone()).unwrap();
        thread.take().unwrap().join().unwrap();
        worker.block_on(yields(3)).unwrap();
        assert!(!worker.wait_any(Duration::from_millis(2)).unwrap());
        Poll::Pending
    });
    let begin = Instant::now();
    let mut outer = Box::pin(outer);
    let limit = Duration::from_millis(500);
    // Bounded: a wake-up that is lost would be waited for for ever.
    let signaler = worker.signaler();
    let (done, told) = mpsc::channel::<()>();
    let guard = std::thread::spawn(move || {
        if told.recv_timeout(PATIENCE).is_err() {
            signaler.signal();
        }
    });
    worker.block_on(Pin::as_mut(&mut outer)).unwrap();
    done.send(()).unwrap();
    guard.join().unwrap();
    assert!(begin.elapsed() < limit * 10);
}
