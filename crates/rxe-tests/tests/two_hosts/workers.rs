//! Workers of two hosts: messages at once and by rendezvous, with no transport but `verbs`.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use rxe_tests::{Host, Hosts, counters};
use testkit::Rng;
use ucp::{Context, Features, Request};

use crate::messages::{bytes_of, text_of};
use crate::{Line, PATIENCE};

const ECHO: u16 = 1;
/// Bytes of data: at once, about what goes at once, and by rendezvous.
const LENGTHS: [usize; 5] = [0, 100, 4000, 5000, 300_000];
/// The longest header that a message may have.
const LONGEST: usize = 4096;

fn content(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(len as u64).fill(&mut bytes);
    bytes
}

/// What this host does, and what its device has counted then.
pub(crate) fn talk(host: Host, hosts: Hosts) {
    let device = host.device(hosts);
    // Of the two devices of a guest with namespaces the worker takes the one whose address is there.
    let ctx = Context::builder().features(Features::AM).ignore_env().set("UCX_TLS", "verbs").build().unwrap();
    let worker = ctx.worker().unwrap();
    let came: Rc<RefCell<Vec<Request<Vec<u8>>>>> = Rc::default();
    let into = Rc::clone(&came);
    let is_echo = host == Host::B;
    let sending: Rc<RefCell<Vec<Request<Vec<u8>>>>> = Rc::default();
    let sends = Rc::clone(&sending);
    worker
        .am_handler(ECHO, move |message| {
            let header = message.header().to_vec();
            let len = usize::try_from(message.len()).unwrap();
            assert_eq!(content(header.len()), header, "a header of {} bytes", header.len());
            if is_echo {
                let back = message.reply().am_send(ECHO, &header, content(len));
                sends.borrow_mut().push(back);
            }
            into.borrow_mut().push(message.recv_data(vec![0; len]));
        })
        .unwrap();
    let mut line = Line::open(host);
    let address = worker.address().unwrap();
    let theirs = bytes_of(&line.swap_text(&text_of(address.as_bytes())));
    let before = counters(&device).unwrap();
    let ep = (host == Host::A).then(|| worker.connect(&theirs).unwrap());
    if let Some(ep) = &ep {
        for (number, len) in LENGTHS.into_iter().enumerate() {
            let header = content(if number.is_multiple_of(2) { 8 } else { LONGEST });
            worker.wait(ep.am_send(ECHO, &header, content(len)), PATIENCE).unwrap();
        }
    }
    let begin = Instant::now();
    while came.borrow().len() < LENGTHS.len() {
        assert!(begin.elapsed() < PATIENCE, "{} have come", came.borrow().len());
        worker.wait_any(PATIENCE).unwrap();
    }
    for (request, len) in came.take().into_iter().zip(LENGTHS) {
        assert!(worker.wait(request, PATIENCE).unwrap() == content(len), "{len} bytes");
    }
    for request in sending.take() {
        worker.wait(request, PATIENCE).unwrap();
    }
    let packets = (LENGTHS.iter().sum::<usize>() / 4096) as u64;
    let rise = counters(&device).unwrap().since(&before);
    assert!(rise.received() >= packets, "{packets} packets: {rise:?}");
    line.swap_words("done");
}
