//! Workers of this context that others may connect to, and those that have.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use ucs::fork::{self, Generation};
use ucs::mem::{Mapping, MemError};
use ucs::sync::{AtomicBool, Ordering};

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
    /// Has a worker that shares memory of `length` bytes with each peer be found, by its number and token.
    pub(super) fn open(self: &Arc<Self>, token: Token, length: usize) -> Result<Door, MemError> {
        let bell = Arc::new(Doorbell::new()?);
        let news = AtomicBool::new(false);
        let entrance = Arc::new(Entrance { token, length, bell, news, waiting: Mutex::default() });
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
    waiting: Mutex<Vec<Arrival>>,
}

impl Entrance {
    /// Bytes of the memory that is shared with each peer.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    pub(super) fn has_room(&self) -> bool {
        self.waiting.lock().len() < MAX_WAITING
    }

    pub(super) fn enter(&self, arrival: Arrival) {
        self.waiting.lock().push(arrival);
        self.news.store(true, Ordering::Release);
        self.bell.ring();
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
        std::mem::take(&mut *self.entrance.waiting.lock())
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        if !self.generation.is_current() {
            return; // in a fork's child, the parent's service thread may have held the locks
        }
        self.arrivals.workers.lock().all.remove(&self.number);
        // The service thread may hold the entrance for a moment: nobody looks at what it puts there.
        self.entrance.waiting.lock().clear();
    }
}
