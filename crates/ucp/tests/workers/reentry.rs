//! Calls from where nobody expects them, and panics there.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use ucp::{AmFlags, AmMessage, CloseMode, Endpoint, EpError, Request, Status, Worker};

use crate::{BETWEEN, Pair, Seen, TRANSPORTS, context};

/// Runs that when it is dropped.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

thread_local! {
    /// What a waker of [`Calls`] runs, when it is woken and when it is dropped.
    static CALL: RefCell<Option<Rc<dyn Fn()>>> = const { RefCell::new(None) };
}

struct Calls;

impl Calls {
    fn call() {
        let call = CALL.with_borrow(Option::clone);
        call.into_iter().for_each(|call| call());
    }
}

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        Self::call();
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        Self::call();
    }
}

fn poll<M>(request: &mut Request<M>, waker: &Waker) -> bool {
    !matches!(Pin::new(request).poll(&mut Context::from_waker(waker)), Poll::Pending)
}

/// A panic without a message.
fn panics() -> ! {
    resume_unwind(Box::new(()))
}

#[test]
fn handlers_that_close_replace_and_drop_all_they_can_reach() {
    for tls in TRANSPORTS {
        let pair = Rc::new(Pair::new(tls));
        let calls = Rc::new(Cell::new(0));
        let (count, weak, own) = (Rc::clone(&calls), Rc::downgrade(&pair), pair.ep.clone());
        // Dropped when it is replaced: then it closes endpoints, posts, and sets handlers, too.
        let last = OnDrop({
            let (weak, own) = (Rc::downgrade(&pair), pair.ep.clone());
            move || {
                let Some(pair) = weak.upgrade() else { return };
                pair.b().am_handler(2, |_| {}).unwrap();
                let _detached = own.am_send(2, b"", vec![0; 8]);
                assert_eq!(pair.b().progress(), 0);
            }
        });
        pair.b()
            .am_handler(1, move |message: AmMessage| {
                let _kept = &last;
                count.set(count.get() + 1);
                let pair = weak.upgrade().unwrap();
                let reply = message.reply();
                reply.on_error(|_| {});
                drop(reply.clone().flush());
                // Another worker's, or this one's: connected and left within a handler.
                let address = pair.b().address().unwrap();
                drop(pair.a.connect(address.as_bytes()).unwrap());
                let count = Rc::clone(&count);
                pair.b().am_handler(1, move |_| count.set(count.get() + 100)).unwrap();
                let _detached = message.recv_data(vec![0; 100_000]);
                drop(reply.close(CloseMode::Force));
                drop(own.clone().close(CloseMode::Force));
            })
            .unwrap();
        let sent = pair.ep.am_send(1, b"", vec![1; 100_000]);
        let next = pair.ep.am_send(1, b"", vec![1; 10]);
        pair.until("the end", || sent.is_ended() && next.is_ended());
        for _ in 0..100 {
            pair.progress();
        }
        assert_eq!(calls.get() % 100, 1, "{tls}: {}", calls.get());
        assert_eq!(sent.into_result().unwrap().unwrap_err().operand.len(), 100_000);
    }
}

#[test]
fn the_error_callback_drops_endpoints_and_a_worker() {
    let mut pair = Pair::new(BETWEEN);
    let other = Rc::new(RefCell::new(Some(context(BETWEEN).worker().unwrap())));
    let errors: Seen<EpError> = Rc::default();
    let held: Rc<RefCell<Option<Endpoint>>> = Rc::new(RefCell::new(Some(pair.ep.clone())));
    let (into, take, own) = (Rc::clone(&errors), Rc::clone(&held), pair.ep.clone());
    let worker = Rc::clone(&other);
    pair.ep.on_error(move |error| {
        into.borrow_mut().push(error);
        drop(take.borrow_mut().take());
        drop(own.clone().close(CloseMode::Flush));
        drop(own);
        drop::<Option<Worker>>(worker.borrow_mut().take());
    });
    let sent = pair.ep.am_send(1, b"", vec![1; 100_000]);
    pair.lose_b();
    pair.a_until("it is told", || !errors.borrow().is_empty() && sent.is_ended());
    assert_eq!((errors.borrow().len(), other.borrow().is_none()), (1, true));
    assert_eq!(Rc::strong_count(&held), 1, "the callback is gone");
}

#[test]
fn messages_that_outlive_their_worker() {
    for tls in TRANSPORTS {
        let pair = Pair::new(tls);
        let kept: Seen<AmMessage> = Rc::default();
        let into = Rc::clone(&kept);
        pair.b().am_handler(1, move |message| into.borrow_mut().push(message)).unwrap();
        let requests: Vec<_> =
            (0..3).map(|_| pair.ep.am_send_with(AmFlags::RNDV, 1, b"h", vec![1; 100_000])).collect();
        assert!(pair.ep.am_send(1, b"h", vec![2; 10]).is_ended());
        pair.until("all", || kept.borrow().len() == 4);
        drop(pair);
        for request in requests {
            let error = request.into_result().unwrap().unwrap_err();
            assert_eq!((error.status(), error.operand.len()), (Status::Canceled, 100_000), "{tls}");
        }
        let mut kept = kept.take();
        assert_eq!((kept[0].header(), kept[0].len()), (&b"h"[..], 100_000));
        let error = kept.remove(0).recv_data(vec![0; 100_000]).into_result().unwrap().unwrap_err();
        assert_eq!((error.status(), error.operand.len()), (Status::Canceled, 100_000));
        let reply = kept[0].reply();
        assert_eq!(reply.check(), Err(EpError::Closed));
        assert_eq!(kept.remove(2).recv_data(vec![0; 10]).into_result().unwrap().unwrap(), [2; 10]);
        drop(kept);
        drop(reply);
    }
}

#[test]
fn wakers_that_make_progress_post_and_drop() {
    for tls in TRANSPORTS {
        let pair = Rc::new(Pair::new(tls));
        pair.b().am_handler(1, |message| drop(message.recv_data(vec![0; 100_000]))).unwrap();
        let weak = Rc::downgrade(&pair);
        let calls = Rc::new(Cell::new(0));
        let count = Rc::clone(&calls);
        let call: Rc<dyn Fn()> = Rc::new(move || {
            count.set(count.get() + 1);
            let Some(pair) = weak.upgrade() else { return };
            pair.progress();
            let _detached = pair.ep.am_send(1, b"", vec![3; 10]);
            drop(pair.ep.flush());
        });
        CALL.set(Some(call));
        let mut sent = pair.ep.am_send(1, b"", vec![1; 100_000]);
        // Each waker that another one replaces is dropped; what that runs may end the operation.
        for _ in 0..5 {
            let waker = Waker::from(Arc::new(Calls));
            if poll(&mut sent, &waker) {
                break;
            }
        }
        pair.until("its end or more", || sent.is_ended() || calls.get() > 5);
        for _ in 0..200 {
            pair.progress();
        }
        // A future that was ready stays pending, and does not panic.
        let mut sent = pair.ep.am_send(1, b"", vec![1; 100_000]);
        pair.until("its end", || sent.is_ended());
        let waker = Waker::noop();
        assert!(poll(&mut sent, waker) && !poll(&mut sent, waker) && !poll(&mut sent, waker));
        assert!(sent.is_ended() && sent.into_result().is_err());
        CALL.set(None);
        assert!(calls.get() > 1);
    }
}

#[test]
fn panics_in_handlers_wakers_and_callbacks_lose_nothing_else() {
    for tls in TRANSPORTS {
        let pair = Pair::new(tls);
        let seen = Rc::new(Cell::new(0));
        let count = Rc::clone(&seen);
        pair.b()
            .am_handler(1, move |message| {
                if message.data() == b"panic" {
                    panics();
                }
                count.set(count.get() + 1);
            })
            .unwrap();
        let mut requests: Vec<_> = (0..20).map(|_| pair.ep.am_send(1, b"", vec![1; 100_000])).collect();
        // The waker of the first panics; of others nobody may be told.
        CALL.set(Some(Rc::new(|| panics())));
        let waker = Waker::from(Arc::new(Calls));
        for request in &mut requests[..5] {
            assert!(!poll(request, &waker));
        }
        std::mem::forget(waker);
        let _detached = pair.ep.am_send(1, b"", b"panic".to_vec());
        let _detached = pair.ep.am_send(1, b"", b"panic".to_vec());
        let mut panicked = 0;
        let end = std::time::Instant::now() + crate::PATIENCE;
        while !requests.iter().all(Request::is_ended) || seen.get() < 20 || panicked < 7 {
            assert!(std::time::Instant::now() < end, "{tls}: {panicked} panics, {} messages", seen.get());
            panicked += u32::from(catch_unwind(AssertUnwindSafe(|| pair.progress())).is_err());
        }
        CALL.set(None);
        assert_eq!(panicked, 7, "{tls}: each once");
        assert!(requests.into_iter().all(|request| request.into_result().unwrap().is_ok()));
        let flush = pair.ep.flush();
        pair.until("a flush", || flush.is_ended());
    }
}

#[test]
fn forgotten_endpoints_and_requests_end_with_their_worker() {
    for tls in TRANSPORTS {
        let pair = Pair::new(tls);
        let held = Rc::new(());
        let token = Rc::clone(&held);
        std::mem::forget(pair.ep.clone());
        pair.ep.on_error(move |_| drop(token));
        let request = pair.ep.am_send(1, b"", vec![1; 100_000]);
        std::mem::forget(request);
        let fds = |pair: &Pair| format!("{:?}", pair.a);
        assert!(fds(&pair).contains(tls));
        drop(pair);
        assert_eq!(Rc::strong_count(&held), 1, "{tls}");
    }
}

#[test]
fn what_is_posted_while_an_endpoint_is_being_closed_fails() {
    for tls in TRANSPORTS {
        let pair = Pair::new(tls);
        let kept: Seen<AmMessage> = Rc::default();
        let into = Rc::clone(&kept);
        pair.b().am_handler(1, move |message| into.borrow_mut().push(message)).unwrap();
        let sent = pair.ep.am_send(1, b"", vec![1; 100_000]);
        let closed = pair.ep.clone().close(CloseMode::Flush);
        assert!(!closed.is_ended());
        let late = pair.ep.am_send(1, b"", vec![2]).into_result().unwrap().unwrap_err();
        assert_eq!((late.status(), late.operand), (Status::Canceled, vec![2]), "{tls}");
        assert_eq!(pair.ep.flush().into_result().unwrap().unwrap_err().status(), Status::Canceled);
        // Closed once more, in the same way: that does not end what goes on.
        let again = pair.ep.clone().close(CloseMode::Flush);
        assert!(!again.is_ended() && !sent.is_ended());
        pair.until("the message", || kept.borrow().len() == 1);
        assert!(!sent.is_ended());
        let received = kept.borrow_mut().pop().unwrap().recv_data(vec![0; 100_000]);
        pair.until("all", || sent.is_ended() && closed.is_ended() && again.is_ended() && received.is_ended());
        assert!(sent.into_result().unwrap().is_ok() && closed.into_result().unwrap().is_ok());
        assert!(again.into_result().unwrap().is_ok() && received.into_result().unwrap().is_ok());
        assert_eq!(pair.ep.check(), Err(EpError::Closed));
    }
}

#[test]
fn sent_and_closed_before_the_peer_has_looked() {
    for tls in TRANSPORTS {
        let pair = Pair::new(tls);
        let seen = Rc::new(Cell::new(0));
        let count = Rc::clone(&seen);
        pair.b().am_handler(1, move |_| count.set(count.get() + 1)).unwrap();
        for mode in [CloseMode::Flush, CloseMode::Force] {
            let ep = pair.a.connect(pair.b().address().unwrap().as_bytes()).unwrap();
            let sent = ep.am_send(1, b"", vec![1; 100]);
            assert!(sent.is_ended() && ep.close(mode).is_ended());
        }
        drop(pair.ep.clone().close(CloseMode::Force));
        pair.until("both", || seen.get() == 2);
    }
}

/// The peer hears of the end also where what the handler of errors holds panics when it is dropped.
#[test]
fn a_panic_within_a_forced_close_is_after_the_peer_was_told() {
    let pair = Pair::new(BETWEEN);
    let told = Rc::new(Cell::new(false));
    let tell = Rc::clone(&told);
    let on_message = move |message: AmMessage| {
        let tell = Rc::clone(&tell);
        message.reply().on_error(move |_| tell.set(true));
    };
    pair.b().am_handler(1, on_message).unwrap();
    assert!(pair.ep.am_send(1, b"", vec![1; 10]).is_ended());
    pair.progress();
    let guard = OnDrop(|| panics());
    pair.ep.on_error(move |_| drop(guard));
    let ep = pair.ep.clone();
    assert!(catch_unwind(AssertUnwindSafe(move || drop(ep.close(CloseMode::Force)))).is_err());
    pair.until("the end", || told.get());
}
