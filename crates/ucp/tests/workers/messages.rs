//! Active messages.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use ucp::{AmFlags, AmMessage, Request, Status};

use crate::{BETWEEN, BY_DEVICE, PATIENCE, Pair, Seen, TRANSPORTS, pattern};

/// Lengths around those at which something changes: a line of the ring, the longest message, a fragment.
const LENGTHS: [usize; 16] =
    [0, 1, 8, 54, 55, 56, 57, 100, 4096, 16_376, 16_384, 32_700, 32_702, 32_703, 100_000, 1_000_000];

#[test]
fn all_lengths_with_and_without_header() {
    for tls in TRANSPORTS {
        for flags in [AmFlags::empty(), AmFlags::RNDV] {
            let pair = Pair::new(tls);
            let seen: Seen<(Vec<u8>, Vec<u8>)> = Rc::default();
            let into = Rc::clone(&seen);
            let running: Rc<RefCell<Vec<Request<Vec<u8>>>>> = Rc::default();
            let list = Rc::clone(&running);
            pair.b()
                .am_handler(7, move |message: AmMessage| {
                    let header = message.header().to_vec();
                    let len = usize::try_from(message.len()).unwrap();
                    if message.is_rendezvous() {
                        assert!(message.data().is_empty());
                        into.borrow_mut().push((header, Vec::new()));
                        list.borrow_mut().push(message.recv_data(vec![0; len]));
                    } else {
                        assert_eq!(message.data().len(), len);
                        into.borrow_mut().push((header, message.data().to_vec()));
                    }
                })
                .unwrap();
            for (count, len) in LENGTHS.into_iter().enumerate() {
                for header in [&b""[..], b"h", &[7; 300]] {
                    let data = pattern(len, count as u8);
                    let request = pair.ep.am_send_with(flags, 7, header, data.clone());
                    let before = seen.borrow().len();
                    pair.until("the message", || {
                        seen.borrow().len() > before || !running.borrow().is_empty()
                    });
                    pair.until("its data", || running.borrow().iter().all(Request::is_ended));
                    let (its_header, mut its_data) = seen.borrow_mut().pop().unwrap();
                    if let Some(received) = running.borrow_mut().pop() {
                        its_data = received.into_result().unwrap().unwrap();
                    }
                    assert_eq!(its_header, header, "{tls} {len}");
                    assert!(its_data == data, "{tls}: {len} bytes came as {}", its_data.len());
                    let back = pair.a.wait(request, PATIENCE).unwrap();
                    assert!(back == data, "the operand comes back");
                }
            }
        }
    }
}

#[test]
fn many_come_in_order_also_when_nobody_takes_them_for_a_while() {
    for tls in TRANSPORTS {
        let pair = Pair::new(tls);
        let seen: Seen<u32> = Rc::default();
        let into = Rc::clone(&seen);
        pair.b()
            .am_handler(0, move |message| {
                let number = u32::from_le_bytes(message.data()[..4].try_into().unwrap());
                assert!(message.data()[4..].iter().all(|byte| *byte == number as u8));
                into.borrow_mut().push(number);
            })
            .unwrap();
        let mut requests = Vec::new();
        for number in 0..20_000_u32 {
            let mut data = number.to_le_bytes().to_vec();
            data.resize(4 + number as usize % 200, number as u8);
            requests.push(pair.ep.am_send(0, b"", data));
        }
        assert!(requests.iter().any(|request| !request.is_ended()), "{tls}: there was no end of room");
        pair.until("all of them", || seen.borrow().len() == 20_000);
        assert!(seen.borrow().iter().copied().eq(0..20_000), "{tls}");
        for request in requests {
            request.into_result().unwrap().unwrap();
        }
    }
}

#[test]
fn replies_and_kept_messages() {
    for tls in TRANSPORTS {
        let pair = Pair::new(tls);
        let kept: Seen<AmMessage> = Rc::default();
        let into = Rc::clone(&kept);
        pair.b().am_handler(1, move |message| into.borrow_mut().push(message)).unwrap();
        let seen: Seen<Vec<u8>> = Rc::default();
        let into = Rc::clone(&seen);
        pair.a.am_handler(2, move |message| into.borrow_mut().push(message.data().to_vec())).unwrap();
        for number in 0..100_u8 {
            let _detached = pair.ep.am_send(1, b"head", vec![number; 100]);
        }
        pair.until("all messages", || kept.borrow().len() == 100);
        // What they hold is theirs until they are dropped.
        for (number, message) in kept.borrow_mut().drain(..).enumerate() {
            assert_eq!((message.header(), message.data()), (&b"head"[..], &[number as u8; 100][..]));
            let _detached = message.reply().am_send(2, b"", vec![number as u8; 3]);
        }
        pair.until("all replies", || seen.borrow().len() == 100);
        assert_eq!(seen.borrow()[99], [99; 3]);
    }
}

#[test]
fn rendezvous_that_is_refused_completes_at_the_sender() {
    for tls in TRANSPORTS {
        let pair = Pair::new(tls);
        let calls = Rc::new(Cell::new(0));
        let count = Rc::clone(&calls);
        pair.b()
            .am_handler(1, move |message| {
                assert_eq!((message.is_rendezvous(), message.len()), (true, 100_000));
                count.set(count.get() + 1);
            })
            .unwrap();
        let dropped = pair.ep.am_send(1, b"", vec![1; 100_000]);
        let unhandled = pair.ep.am_send(2, b"", vec![2; 100_000]);
        pair.until("both", || dropped.is_ended() && unhandled.is_ended());
        assert_eq!(calls.get(), 1);
        assert_eq!(dropped.into_result().unwrap().unwrap(), vec![1; 100_000]);
        let error = unhandled.into_result().unwrap().unwrap_err();
        assert_eq!((error.status(), error.operand.len()), (Status::Rejected, 100_000));
        // A receiver without room.
        let failed: Rc<RefCell<Option<Request<Vec<u8>>>>> = Rc::default();
        let into = Rc::clone(&failed);
        pair.b()
            .am_handler(1, move |message| *into.borrow_mut() = Some(message.recv_data(vec![0; 99_999])))
            .unwrap();
        let sent = pair.ep.am_send(1, b"", vec![1; 100_000]);
        pair.until("the message", || failed.borrow().is_some());
        let error = failed.borrow_mut().take().unwrap().into_result().unwrap().unwrap_err();
        assert_eq!(error.status(), Status::MessageTruncated);
        pair.until("its end", || sent.is_ended());
    }
}

#[test]
fn what_cannot_be_sent_gives_the_operand_back() {
    let pair = Pair::new(BETWEEN);
    let error =
        pair.ep.am_send_with(AmFlags::EAGER, 1, b"", vec![3; 40_000]).into_result().unwrap().unwrap_err();
    assert_eq!((error.status(), error.operand.len()), (Status::ExceedsLimit, 40_000));
    let most = if BY_DEVICE { 4342 } else { 32_702 };
    assert_eq!(error.to_string(), format!("40000 bytes are more than the {most} that can be sent at once"));
    let error = pair.ep.am_send(1, &[0; 4097], vec![3; 4]).into_result().unwrap().unwrap_err();
    assert_eq!((error.status(), error.operand), (Status::ExceedsLimit, vec![3; 4]));
    let without = ucp::Context::builder().build().unwrap().worker().unwrap();
    assert_eq!(without.am_handler(1, |_| {}).unwrap_err().status(), Status::InvalidParam);
    let ep = without.connect(pair.b().address().unwrap().as_bytes()).unwrap();
    let error = ep.am_send(1, b"", vec![1]).into_result().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the context was made without Features::AM");
}

#[test]
fn handlers_do_not_wait_and_may_replace_themselves() {
    let pair = Rc::new(Pair::new("self"));
    let seen: Seen<&str> = Rc::default();
    let (inner, into) = (Rc::downgrade(&pair), Rc::clone(&seen));
    pair.a
        .am_handler(1, move |message| {
            let pair = inner.upgrade().unwrap();
            assert_eq!(pair.a.progress(), 0, "no progress within progress");
            let big = message.reply().am_send_with(AmFlags::RNDV, 9, b"", vec![0; 10]);
            let error = pair.a.wait(big, PATIENCE).unwrap_err();
            assert_eq!(error.to_string(), "a handler or callback must not wait");
            into.borrow_mut().push("first");
            let into = Rc::clone(&into);
            pair.a.am_handler(1, move |_| into.borrow_mut().push("second")).unwrap();
        })
        .unwrap();
    let _detached = pair.ep.am_send(1, b"", vec![]);
    let _detached = pair.ep.am_send(1, b"", vec![]);
    pair.until("both", || seen.borrow().len() == 2);
    assert_eq!(*seen.borrow(), ["first", "second"]);
}
