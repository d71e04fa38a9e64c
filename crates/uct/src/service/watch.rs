//! Watching exporters: descriptors in the service thread's epoll set, put there and taken out by whoever imports.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::event::epoll::{self, EventData, EventFlags};
use ucs::fork::{self, Generation};
use ucs::mem::MemError;

use crate::export::PeerState;
use crate::process::Process;

/// A descriptor that tells when a process is gone.
#[derive(Debug)]
pub enum Watch {
    /// A process: its pidfd is readable once it has ended (`pidfd_open(2)`).
    Process(Arc<Process>),
    /// A connection, which others may be reading from: hung up once the process has closed its end, by ending or by exec.
    Connection(Arc<OwnedFd>),
}

impl Watch {
    fn events(&self) -> (BorrowedFd<'_>, EventFlags) {
        match self {
            Self::Process(process) => (process.as_fd(), EventFlags::IN),
            Self::Connection(fd) => (fd.as_fd(), EventFlags::RDHUP),
        }
    }
}

#[derive(Debug)]
struct Watched {
    state: Arc<PeerState>,
    fds: Vec<Watch>,
}

/// All that is watched, and the epoll set it is in.
#[derive(Debug)]
pub(super) struct Watches {
    epoll: OwnedFd,
    all: Mutex<HashMap<u64, Watched>>,
}

impl Watches {
    pub(super) fn new(epoll: OwnedFd) -> Arc<Self> {
        Arc::new(Self { epoll, all: Mutex::new(HashMap::new()) })
    }

    pub(super) fn epoll(&self) -> &OwnedFd {
        &self.epoll
    }

    /// Watches `fds` under the number `id`, which nothing else has.
    pub(super) fn add(
        self: &Arc<Self>,
        id: u64,
        state: &Arc<PeerState>,
        fds: Vec<Watch>,
    ) -> Result<Watching, MemError> {
        let mut all = self.all.lock();
        let watched = all.entry(id).or_insert(Watched { state: Arc::clone(state), fds });
        let added = watched.fds.iter().try_for_each(|watch| {
            let (fd, events) = watch.events();
            epoll::add(&self.epoll, fd, EventData::new_u64(id), events)
        });
        drop(all);
        let watching = Watching { watches: Arc::clone(self), id, generation: fork::generation() };
        added.map(|()| watching).map_err(|errno| MemError::of("epoll_ctl", errno, 0))
    }

    /// Ends a watch: the descriptors go out of the epoll set here, for they may be open elsewhere, too, and would be told of for
    /// ever.
    pub(super) fn remove(&self, id: u64) -> Option<Arc<PeerState>> {
        let watched = self.all.lock().remove(&id)?;
        for watch in &watched.fds {
            let _ = epoll::delete(&self.epoll, watch.events().0);
        }
        Some(watched.state)
    }
}

/// An exporter is watched as long as this lives.
#[derive(Debug)]
pub struct Watching {
    watches: Arc<Watches>,
    id: u64,
    generation: Generation,
}

impl Drop for Watching {
    fn drop(&mut self) {
        // A fork's child shares the epoll set with its parent, whose it is.
        if self.generation.is_current() {
            drop(self.watches.remove(self.id));
        }
    }
}
