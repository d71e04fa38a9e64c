//! Workers of this context that others may connect to, and those that have.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::net::{Shutdown, shutdown};
use ucs::fork::{self, Generation};
use ucs::mem::{Mapping, MemError};
use ucs::sync::{AtomicBool, Ordering};

use super::shares::{Share, Shares};
use crate::doorbell::Doorbell;
use crate::export::{Refusal, Token};
use crate::process::Process;

/// Connections that a worker has not looked at yet; more are told to come again.
const MAX_WAITING: usize = 1024;

/// A peer's worker that has shown the secret of one of ours.
#[derive(Debug)]
pub struct Arrival {
    /// Each side's end is told by it, and it wakes: one byte says that there is a message. Non-blocking.
    pub socket: OwnedFd,
    /// The process at its other end, where that can be told.
    pub process: Option<Process>,
    /// The memory that both share.
    pub memory: Mapping,
    /// The context that it is of, as it says.
    pub from: [u8; 16],
    /// Its place among the connections that the worker lets come: to be kept as long as the socket, and dropped after it.
    pub share: Share,
}

/// All workers of a context.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    workers: Mutex<Numbered>,
}

#[derive(Debug, Default)]
struct Numbered {
    last: u32,
    all: HashMap<u32, Arc<Entrance>>,
}

impl Arrivals {
    /// Has a worker that shares memory of `length` bytes with each peer, and lets `most` connections come, be found, by its number and
    /// token.
    pub(super) fn open(self: &Arc<Self>, token: Token, length: usize, most: usize) -> Result<Door, MemError> {
        let bell = Arc::new(Doorbell::new()?);
        let news = AtomicBool::new(false);
        let (shares, waiting) = (Shares::new(most), Mutex::default());
        let entrance = Arc::new(Entrance { token, length, bell, news, shares, waiting });
        let mut workers = self.workers.lock();
        // Numbers are not used again as long as one lives: so it ends.
        let number = loop {
            workers.last = workers.last.wrapping_add(1);
            if !workers.all.contains_key(&workers.last) {
                break workers.last;
            }
        };
        workers.all.insert(number, Arc::clone(&entrance));
        Ok(Door { arrivals: Arc::clone(self), number, entrance, generation: fork::generation() })
    }

    /// The worker of that number, to who shows its token.
    pub(super) fn find(&self, number: u32, token: &Token) -> Result<Arc<Entrance>, Refusal> {
        let entrance = self.workers.lock().all.get(&number).map(Arc::clone).ok_or(Refusal::Stale)?;
        if entrance.token == *token { Ok(entrance) } else { Err(Refusal::WrongToken) }
    }
}

/// Where a worker's peers come in. Filled by the service thread.
pub(super) struct Entrance {
    token: Token,
    length: usize,
    bell: Arc<Doorbell>,
    news: AtomicBool,
    shares: Arc<Shares>,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    arrivals: Vec<Arrival>,
    /// The worker is gone: the service thread may have found the entrance before.
    is_closed: bool,
}

impl Entrance {
    /// Bytes of the memory that is shared with each peer.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// A place for one more connection, of the process with this number; `None`: there is none, or none for that process.
    pub(super) fn share(&self, process: u64) -> Option<Share> {
        self.shares.take(process)
    }

    pub(super) fn has_room(&self) -> bool {
        self.waiting.lock().arrivals.len() < MAX_WAITING
    }

    pub(super) fn enter(&self, arrival: Arrival) {
        let mut waiting = self.waiting.lock();
        if waiting.is_closed {
            let _ = shutdown(&arrival.socket, Shutdown::Both);
            return;
        }
        waiting.arrivals.push(arrival);
        drop(waiting);
        self.news.store(true, Ordering::Release);
        self.bell.ring();
    }

    fn close(&self) -> Vec<Arrival> {
        let mut waiting = self.waiting.lock();
        waiting.is_closed = true;
        std::mem::take(&mut waiting.arrivals)
    }
}

impl fmt::Debug for Entrance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entrance").field("length", &self.length).finish_non_exhaustive()
    }
}

/// A worker's own side of it: as long as it lives, peers can come. Those that it has not taken go with it, and are told so by the end of
/// their connection.
#[derive(Debug)]
pub struct Door {
    arrivals: Arc<Arrivals>,
    number: u32,
    entrance: Arc<Entrance>,
    generation: Generation,
}

impl Door {
    /// The worker's number in its context.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Its secret.
    #[must_use]
    pub fn token(&self) -> &Token {
        &self.entrance.token
    }

    /// Rung when somebody has come, and by who else has it.
    #[must_use]
    pub fn bell(&self) -> &Arc<Doorbell> {
        &self.entrance.bell
    }

    /// Whether somebody has come since [`Door::take`]: one load.
    #[inline]
    #[must_use]
    pub fn has_news(&self) -> bool {
        self.entrance.news.load(Ordering::Acquire)
    }

    /// Who has come.
    #[must_use]
    pub fn take(&self) -> Vec<Arrival> {
        self.entrance.news.store(false, Ordering::Relaxed);
        std::mem::take(&mut self.entrance.waiting.lock().arrivals)
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        if !self.generation.is_current() {
            return; // the parent's, whose other threads may have held the locks
        }
        self.arrivals.workers.lock().all.remove(&self.number);
        // A fork's child has copies of their sockets: closing them here would tell nobody.
        for arrival in self.entrance.close() {
            let _ = shutdown(&arrival.socket, Shutdown::Both);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn token(byte: u8) -> Token {
        Token::from_bytes([byte; 16])
    }

    fn open(arrivals: &Arc<Arrivals>, byte: u8, length: usize) -> Door {
        arrivals.open(token(byte), length, 100).unwrap()
    }

    fn share() -> Share {
        Shares::new(1).take(0).unwrap()
    }

    /// Who comes, and the other end of its socket.
    fn arrival(from: u8) -> (Arrival, OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (socket, peer) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let memory = Mapping::anonymous(4096).unwrap();
        (Arrival { socket, process: None, memory, from: [from; 16], share: share() }, peer)
    }

    fn is_ready(fd: impl AsFd, events: PollFlags) -> bool {
        poll(&mut [PollFd::new(&fd, events)], Some(&Timespec::default())).unwrap() == 1
    }

    #[test]
    fn workers_are_found_by_number_and_token_as_long_as_they_live() {
        let arrivals = Arc::new(Arrivals::default());
        let (a, b) = (open(&arrivals, 1, 4096), open(&arrivals, 2, 8192));
        assert_ne!(a.number(), b.number());
        assert_eq!(arrivals.find(b.number(), &token(2)).unwrap().length(), 8192);
        assert_eq!(arrivals.find(b.number(), &token(1)).unwrap_err(), Refusal::WrongToken);
        assert_eq!(arrivals.find(0, &token(1)).unwrap_err(), Refusal::Stale);
        let number = a.number();
        drop(a);
        assert_eq!(arrivals.find(number, &token(1)).unwrap_err(), Refusal::Stale);
        assert!(arrivals.find(b.number(), b.token()).is_ok());
    }

    #[test]
    fn numbers_that_live_are_passed_over_when_they_begin_anew() {
        let arrivals = Arc::new(Arrivals::default());
        let first = open(&arrivals, 1, 4096);
        arrivals.workers.lock().last = u32::MAX;
        let (zero, next) = (open(&arrivals, 2, 4096), open(&arrivals, 3, 4096));
        assert_eq!((first.number(), zero.number(), next.number()), (1, 0, 2));
        assert!(arrivals.find(1, &token(1)).is_ok());
    }

    #[test]
    fn who_comes_rings_and_is_taken_once_in_order() {
        let arrivals = Arc::new(Arrivals::default());
        let door = open(&arrivals, 1, 4096);
        let entrance = arrivals.find(door.number(), &token(1)).unwrap();
        assert!(!door.has_news() && !is_ready(&**door.bell(), PollFlags::IN));
        let peers: Vec<_> = (0..3)
            .map(|from| {
                let (arrival, peer) = arrival(from);
                entrance.enter(arrival);
                peer
            })
            .collect();
        assert!(door.has_news() && is_ready(&**door.bell(), PollFlags::IN));
        let taken: Vec<u8> = door.take().iter().map(|arrival| arrival.from[0]).collect();
        assert_eq!(taken, [0, 1, 2]);
        assert!(!door.has_news() && door.take().is_empty());
        drop(peers);
    }

    #[test]
    fn there_is_room_for_so_many() {
        let arrivals = Arc::new(Arrivals::default());
        let door = open(&arrivals, 1, 4096);
        let entrance = arrivals.find(door.number(), &token(1)).unwrap();
        // One socket for all: descriptors are few.
        let (one, _peer) = arrival(0);
        let socket = |arrival: &Arrival| arrival.socket.try_clone().unwrap();
        for _ in 0..10 {
            assert!(entrance.has_room());
            let memory = Mapping::anonymous(4096).unwrap();
            let (socket, share) = (socket(&one), entrance.share(1).unwrap());
            entrance.enter(Arrival { socket, process: None, memory, from: [0; 16], share });
        }
        assert!(entrance.has_room());
        assert_eq!(door.take().len(), 10);
        assert_eq!(MAX_WAITING, 1024);
    }

    #[test]
    fn who_waits_when_the_worker_goes_or_comes_after_it_is_told() {
        let arrivals = Arc::new(Arrivals::default());
        let door = open(&arrivals, 1, 4096);
        let entrance = arrivals.find(door.number(), &token(1)).unwrap();
        let (waits, peer) = arrival(1);
        // As a fork's child has one.
        let copy = waits.socket.try_clone().unwrap();
        entrance.enter(waits);
        assert!(!is_ready(&peer, PollFlags::RDHUP));
        drop(door);
        assert!(is_ready(&peer, PollFlags::RDHUP));
        let (late, peer) = arrival(2);
        let copies = (copy, late.socket.try_clone().unwrap());
        entrance.enter(late);
        assert!(is_ready(&peer, PollFlags::RDHUP));
        drop(copies);
    }

    #[test]
    fn who_waits_or_is_taken_has_its_share_until_it_is_dropped() {
        let arrivals = Arc::new(Arrivals::default());
        let door = arrivals.open(token(1), 4096, 2).unwrap();
        let entrance = arrivals.find(door.number(), &token(1)).unwrap();
        let (one, _peer) = arrival(1);
        entrance.enter(Arrival { share: entrance.share(7).unwrap(), ..one });
        assert!(entrance.share(7).is_none());
        let taken = door.take();
        assert!(entrance.share(7).is_none());
        let (two, _peer) = arrival(2);
        entrance.enter(Arrival { share: entrance.share(8).unwrap(), ..two });
        assert!(entrance.share(9).is_none());
        drop(taken);
        assert!(entrance.share(7).is_some() && entrance.share(8).is_none());
        drop(door);
        assert!(entrance.share(8).is_some());
    }
}
