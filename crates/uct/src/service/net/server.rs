//! Peers of other machines, on the side that answers: part of the service thread.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags, acceptfrom_with, shutdown};
use ucs::mem::Limit;
use ucs::sync::{AtomicU64, Ordering};

use super::conn::{Conn, Next};
use super::socket::{self, NetListener};
use super::{ConnId, Responders};
use crate::service::server::PROOF_TIME;
use crate::service::watch::Watches;

/// Connections at once that have proven nothing.
pub const MAX_UNPROVEN: usize = 256;
/// Those of one address: it cannot keep the others out.
pub const MAX_UNPROVEN_PER_ADDRESS: usize = 64;
/// Of the descriptors that this process may have, one in so many is for a connection that has proven a token: of each peer that has imported memory of this
/// context, and of each interface that has endpoints to one here. Half of them may be of one address. Of those without a proof there are no more either.
pub const FILES: u64 = 4;
/// As many, whatever the descriptors are: the service looks at all of them.
const MAX_PROVEN: usize = 16_384;
/// How long no connection is taken when there was no descriptor for one.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// Listeners and connections.
#[derive(Debug)]
pub(in crate::service) struct NetServer {
    uuid: [u8; 16],
    responders: Arc<Responders>,
    watches: Arc<Watches>,
    next: Arc<AtomicU64>,
    listeners: HashMap<u64, NetListener>,
    conns: HashMap<u64, Conn>,
    /// Since when no connection is taken: there was no descriptor for one.
    paused: Option<Instant>,
    /// The last that wanted to come could not; it was told to the log.
    is_short: bool,
    /// That there were as many as may be was told to the log.
    is_full: bool,
}

/// How many connections there are, and of one address.
#[derive(Debug, Default)]
struct Count {
    /// With a proof, that may be.
    most: usize,
    proven: usize,
    proven_of_address: usize,
    unproven: usize,
    unproven_of_address: usize,
}

impl Count {
    /// Whether those with a proof, and so many more of the address, are more than may be.
    fn is_beyond(&self, more: usize) -> bool {
        self.proven + more > self.most || self.proven_of_address + more > self.most.div_ceil(2)
    }
}

impl NetServer {
    pub(super) fn new(
        uuid: [u8; 16],
        responders: &Arc<Responders>,
        watches: &Arc<Watches>,
        next: &Arc<AtomicU64>,
    ) -> Self {
        Self {
            uuid,
            responders: Arc::clone(responders),
            watches: Arc::clone(watches),
            next: Arc::clone(next),
            listeners: HashMap::new(),
            conns: HashMap::new(),
            paused: None,
            is_short: false,
            is_full: false,
        }
    }

    /// Takes connections from `listener`.
    pub(in crate::service) fn listen(&mut self, listener: NetListener) {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        // In a pause, it is looked at with the others, once that ends.
        if self.paused.is_none() {
            self.look_at(id, &listener);
        }
        self.listeners.insert(id, listener);
    }

    fn look_at(&self, id: u64, listener: &NetListener) {
        let data = EventData::new_u64(id);
        if let Err(error) = epoll::add(self.watches.epoll(), listener, data, EventFlags::IN) {
            tracing::error!(%error, "a listening socket cannot be watched: peers of other machines will time out");
        }
    }

    /// Whether something waits for time to pass.
    pub(in crate::service) fn needs_time(&self) -> bool {
        self.paused.is_some() || self.conns.values().any(|conn| !conn.proven)
    }

    /// The service was busy for so long: that is none of the time in which peers have to prove something.
    pub(in crate::service) fn spare(&mut self, busy: Duration) {
        let now = Instant::now(); // who has come meanwhile is not younger than who comes next
        self.conns.values_mut().for_each(|conn| conn.since = now.min(conn.since + busy));
    }

    /// Ends connections without a proof, and takes new ones again.
    pub(in crate::service) fn tidy(&mut self) {
        if self.paused.is_some_and(|since| since.elapsed() >= PAUSE) {
            self.paused = None;
            self.listeners.iter().for_each(|(id, listener)| self.look_at(*id, listener));
        }
        let late = |conn: &Conn| !conn.proven && conn.since.elapsed() > PROOF_TIME;
        let late: Vec<u64> = self.conns.iter().filter(|(_, conn)| late(conn)).map(|(id, _)| *id).collect();
        late.into_iter().for_each(|id| self.close(id));
    }

    /// Goes on with what has this number. Answers whether it is one of these.
    pub(in crate::service) fn ready(&mut self, id: u64) -> bool {
        if self.listeners.contains_key(&id) {
            self.accept(id);
            return true;
        }
        let Some(conn) = self.conns.get_mut(&id) else { return false };
        let was_proven = conn.proven;
        let next = conn.step(&self.responders);
        let (is_new, address) = (conn.proven && !was_proven, conn.address);
        let flags = match next {
            Next::Read => EventFlags::IN,
            Next::Write => EventFlags::OUT,
            Next::Close => {
                self.close(id);
                return true;
            }
        };
        // Others may have proven something since it came.
        let is_beyond = is_new && self.count(address).is_beyond(0);
        let Some(conn) = self.conns.get(&id).filter(|_| !is_beyond) else {
            self.close(id);
            return true;
        };
        if epoll::modify(self.watches.epoll(), conn.as_fd(), EventData::new_u64(id), flags).is_err() {
            self.close(id);
        }
        true
    }

    fn accept(&mut self, id: u64) {
        let Some(listener) = self.listeners.get(&id) else { return };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match acceptfrom_with(listener, flags) {
            Ok((socket, from)) => {
                self.is_short = false;
                let from = from.and_then(|from| SocketAddr::try_from(from).ok());
                if let Some(from) = from {
                    self.come(socket, from.ip().to_canonical());
                }
            }
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                self.pause();
            }
            Err(_) => {}
        }
    }

    fn come(&mut self, socket: OwnedFd, address: IpAddr) {
        let count = self.count(address);
        if count.is_beyond(1) {
            return self.tell_once(&count);
        }
        if count.unproven_of_address >= MAX_UNPROVEN_PER_ADDRESS.min(count.most.div_ceil(2)) {
            self.make_room(|conn| conn.address == address);
        }
        if count.unproven >= MAX_UNPROVEN.min(count.most) {
            self.make_room(|_| true);
        }
        let (Ok(()), Ok(nonce)) = (socket::prepare(socket.as_fd()), socket::nonce()) else { return };
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let conn = Conn::new(socket, ConnId(id), address, self.uuid, nonce);
        if epoll::add(self.watches.epoll(), &conn, EventData::new_u64(id), EventFlags::IN).is_ok() {
            self.conns.insert(id, conn);
            self.ready(id);
        }
    }

    /// The one of these that has waited longest without a proof goes.
    fn make_room(&mut self, of: impl Fn(&Conn) -> bool) {
        let idle = self.conns.iter().filter(|(_, conn)| !conn.proven && of(conn));
        let idle = idle.min_by_key(|(id, conn)| (conn.since, **id)).map(|(id, _)| *id);
        idle.into_iter().for_each(|id| self.close(id));
    }

    fn count(&self, address: IpAddr) -> Count {
        let most = usize::try_from(Limit::OpenFiles.value() / FILES).unwrap_or(usize::MAX).min(MAX_PROVEN);
        let mut count = Count { most, ..Count::default() };
        for conn in self.conns.values() {
            let (all, of_address) = match conn.proven {
                true => (&mut count.proven, &mut count.proven_of_address),
                false => (&mut count.unproven, &mut count.unproven_of_address),
            };
            *all += 1;
            *of_address += usize::from(conn.address == address);
        }
        count
    }

    /// There are as many as may be.
    #[cold]
    fn tell_once(&mut self, count: &Count) {
        if !std::mem::replace(&mut self.is_full, true) {
            tracing::warn!(
                ?count,
                "a peer of another machine is turned away, and others will be without a word: a quarter of RLIMIT_NOFILE (`ulimit -n`) may \
                 be connected, and half of these from one address"
            );
        }
    }

    /// There is no descriptor for a connection: it stays in the queue, and looking again at once would spin.
    pub(super) fn pause(&mut self) {
        if !std::mem::replace(&mut self.is_short, true) {
            tracing::warn!("peers of other machines have to wait: no descriptor for their connection");
        }
        for listener in self.listeners.values() {
            let _ = epoll::delete(self.watches.epoll(), listener);
        }
        self.paused = Some(Instant::now());
    }

    fn close(&mut self, id: u64) {
        let Some(conn) = self.conns.remove(&id) else { return };
        let _ = epoll::delete(self.watches.epoll(), conn.as_fd());
        conn.end();
    }

    /// Ends all: a fork's child has copies of these descriptors, and whoever came, or comes, must not find them open and wait.
    pub(in crate::service) fn shut_down(&mut self) {
        for listener in self.listeners.values() {
            let _ = shutdown(listener, Shutdown::Both);
        }
        self.listeners.clear();
        self.conns.drain().for_each(|(_, conn)| conn.end());
    }
}
