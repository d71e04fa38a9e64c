//! Both sides do all they can, in all orders: every operation ends, with its operand, and what a flush has let go has come.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use ucp::{AmFlags, AmMessage, CloseMode, Endpoint, Request};

use crate::{BETWEEN, BY_DEVICE, Pair, TRANSPORTS};

/// Numbers that are as good as random.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

#[derive(Default)]
struct World {
    kept: Vec<AmMessage>,
    replies: Vec<Endpoint>,
    /// The numbers that came, by connection.
    came: HashMap<u8, Vec<u8>>,
}

struct Running {
    len: usize,
    request: Request<Vec<u8>>,
}

const LENGTHS: [usize; 5] = [2, 100, 20_000, 50_000, 200_000];

#[test]
fn all_orders_end() {
    for tls in TRANSPORTS {
        for seed in 1..if BY_DEVICE { 15 } else { 150_u64 } {
            let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15 ^ seed << 24);
            let mut pair = Pair::new(tls);
            let world: Rc<RefCell<World>> = Rc::default();
            for worker in [&pair.a, pair.b()] {
                let world = Rc::clone(&world);
                worker
                    .am_handler(1, move |message: AmMessage| {
                        let mut world = world.borrow_mut();
                        if let [connection, number] = *message.header() {
                            world.came.entry(connection).or_default().push(number);
                        }
                        world.kept.push(message);
                    })
                    .unwrap();
            }
            let mut running: Vec<Running> = Vec::new();
            let mut waits: Vec<Request<()>> = Vec::new();
            // Endpoints of the first, with their numbers, how many messages were sent, and whether all of them must come.
            let mut eps = vec![(pair.ep.clone(), 0_u8, 0_u8)];
            let mut flushed: Vec<(u8, u8)> = Vec::new();
            let mut connections = 1;
            let mut forced = false;
            for _ in 0..numbers.next(150) {
                let place = numbers.next(eps.len().max(1) as u64) as usize;
                let len = LENGTHS[numbers.next(5) as usize];
                match numbers.next(14) {
                    0..=3 => {
                        if let Some((ep, connection, count)) = eps.get_mut(place) {
                            let flags = if numbers.next(3) == 0 { AmFlags::RNDV } else { AmFlags::empty() };
                            let header = [*connection, *count];
                            let request = ep.am_send_with(flags, 1, &header, vec![7; len]);
                            *count += u8::from(ep.check().is_ok());
                            running.push(Running { len, request });
                        }
                    }
                    4 => {
                        let reply = world.borrow_mut().replies.pop();
                        if let Some(reply) = reply {
                            running.push(Running { len, request: reply.am_send(1, b"reply", vec![7; len]) });
                            world.borrow_mut().replies.push(reply);
                        }
                    }
                    5 => _ = pair.a.progress(),
                    6 => _ = pair.b().progress(),
                    7 => {
                        let message = world.borrow_mut().kept.pop();
                        if let Some(message) = message {
                            let reply = message.reply();
                            world.borrow_mut().replies.push(reply);
                            let len = usize::try_from(message.len()).unwrap();
                            running.push(Running { len, request: message.recv_data(vec![0; len]) });
                        }
                    }
                    8 => drop(world.borrow_mut().kept.pop()),
                    9 => waits.extend(eps.get(place).map(|(ep, ..)| ep.flush())),
                    10 if connections < 5 => {
                        let ep = pair.a.connect(pair.b().address().unwrap().as_bytes()).unwrap();
                        eps.push((ep, connections, 0));
                        connections += 1;
                    }
                    11 if place < eps.len() => {
                        let (ep, connection, count) = eps.swap_remove(place);
                        flushed.push((connection, count));
                        if numbers.next(2) == 0 && connection > 0 {
                            drop(ep);
                        } else {
                            waits.push(ep.close(CloseMode::Flush));
                        }
                    }
                    12 if place < eps.len() && numbers.next(3) == 0 => {
                        waits.push(eps.swap_remove(place).0.close(CloseMode::Force));
                    }
                    13 if numbers.next(6) == 0 => {
                        let reply = world.borrow_mut().replies.pop();
                        if let Some(reply) = reply {
                            forced = true;
                            let mode = if numbers.next(2) == 0 { CloseMode::Flush } else { CloseMode::Force };
                            waits.push(reply.close(mode));
                        }
                    }
                    _ => {}
                }
            }
            if numbers.next(3) == 0 && tls == BETWEEN {
                pair.lose_b();
                forced = true;
            }
            // All is refused that is not wanted; then nothing is left but to end.
            for _ in 0..5 {
                for _ in 0..300 {
                    pair.progress();
                }
                drop(std::mem::take(&mut world.borrow_mut().kept));
            }
            if !forced {
                for (connection, count) in flushed {
                    let came = || world.borrow().came.get(&connection).cloned().unwrap_or_default();
                    pair.until("what was flushed", || {
                        drop(std::mem::take(&mut world.borrow_mut().kept));
                        came().len() >= usize::from(count)
                    });
                    let came = came();
                    assert!(
                        came.iter().copied().eq(0..count),
                        "{tls} {seed} {connection}: {came:?} of {count}"
                    );
                }
            }
            for came in world.borrow().came.values() {
                assert!(came.iter().copied().eq(0..came.len() as u8), "{tls} {seed}: {came:?}");
            }
            drop(std::mem::take(&mut world.borrow_mut().replies));
            drop(eps);
            drop(pair);
            for Running { len, request } in running {
                let ended =
                    request.into_result().unwrap_or_else(|_| panic!("{tls} {seed}: it has not ended"));
                let operand = ended.unwrap_or_else(|error| error.operand);
                assert_eq!(operand.len(), len);
            }
            assert!(waits.iter().all(Request::is_ended), "{tls} {seed}");
        }
    }
}
