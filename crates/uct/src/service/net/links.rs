//! The connections that this context has made to others, shared by all who call the same one.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{RecvFlags, recv};
use ucs::fork::{self, Generation};
use ucs::mem::MemError;
use ucs::time::Deadline;

use super::client::Stream;
use super::error::NetError;
use super::socket;
use crate::export::{PeerState, Token};
use crate::service::server::{Service, ServiceError};
use crate::service::watch::{Watch, Watching};

/// A call: what another context is asked for. The token is not sent: that it is had is proven by it.
#[derive(Clone, Copy, Debug)]
pub struct NetCall<'a> {
    /// Whom: the number of the one that answers, which [`Service::respond`] has been given.
    pub kind: u16,
    /// Of what: an export, say. Who answers knows the token of it.
    pub subject: &'a [u8],
    /// The token of the subject.
    pub token: &'a Token,
    /// For what.
    pub request: &'a [u8],
}

/// A connection to another context. Send + Sync: calls come one after the other. Its end tells the other side that this one needs
/// nothing any more.
#[derive(Debug)]
pub struct NetLink {
    _watching: Watching,
    state: Arc<PeerState>,
    stream: Mutex<Stream>,
    socket: Arc<OwnedFd>,
    peer: SocketAddr,
    local: SocketAddr,
    generation: Generation,
}

impl NetLink {
    fn new(service: &Service, stream: Stream) -> Result<Self, NetError> {
        let (socket, peer) = (Arc::clone(&stream.socket), stream.peer);
        let failed = |errno| NetError::Connect { address: peer, errno };
        let local = socket::local(socket.as_fd()).map_err(failed)?;
        let state = Arc::default();
        let watching = service.watch(&state, vec![Watch::Connection(Arc::clone(&socket))])?;
        let generation = fork::generation();
        Ok(Self { _watching: watching, state, stream: Mutex::new(stream), socket, peer, local, generation })
    }

    /// Another call on the same connection.
    ///
    /// # Errors
    /// [`NetError`]. After one by which the stream may be out of step, the connection is of no further use.
    pub fn call(&self, call: &NetCall<'_>, deadline: &Deadline) -> Result<Vec<u8>, NetError> {
        if !self.generation.is_current() {
            return Err(ServiceError::Forked.into());
        }
        let locked = self.stream.try_lock_for(deadline.left().unwrap_or_default());
        let waited = || NetError::TimedOut { address: self.peer, waited: deadline.elapsed() };
        let mut stream = locked.ok_or_else(waited)?;
        if self.state.is_gone() {
            return Err(NetError::Closed { address: self.peer });
        }
        // Sent in no time left, it would end the connection, and nobody would have its answer.
        if deadline.left().is_none() {
            return Err(waited());
        }
        let answer = stream.call(call, deadline);
        match &answer {
            Ok(_) => {}
            Err(
                NetError::Stale { .. }
                | NetError::Denied { .. }
                | NetError::Unknown { .. }
                | NetError::Refused { .. }
                | NetError::TooLong { .. },
            ) => {}
            // The answer is skipped when it comes: others who use the connection need not suffer.
            Err(NetError::TimedOut { .. }) if !stream.is_broken() => {}
            Err(_) => {
                stream.shut_down();
                self.state.set_gone();
            }
        }
        answer
    }

    /// A call whose answer nobody waits for: it has gone when this returns `true`. Otherwise it could not be sent at once, or within
    /// `patience` where other calls are on their way, and was not.
    #[must_use]
    pub fn tell(&self, call: &NetCall<'_>, patience: Duration) -> bool {
        if !self.generation.is_current() {
            return false;
        }
        let Some(mut stream) = self.stream.try_lock_for(patience) else { return false };
        let told = stream.tell(call);
        if told.is_err() {
            stream.shut_down();
            self.state.set_gone();
        }
        told == Ok(true)
    }

    /// Whether the other side has ended the connection, or its process or machine has: kept by the service thread.
    #[must_use]
    pub fn state(&self) -> &Arc<PeerState> {
        &self.state
    }

    /// Has `state` told of the end, too, as long as the value returned lives: that of a worker whose bell is to ring. `service` is
    /// that of which this is a connection.
    ///
    /// # Errors
    /// [`ServiceError`].
    pub fn watch(&self, service: &Service, state: &Arc<PeerState>) -> Result<Watching, ServiceError> {
        // An epoll set holds a descriptor once.
        let copy = fcntl_dupfd_cloexec(&*self.socket, 0);
        let copy = copy.map_err(|errno| MemError::of("fcntl", errno, 0))?;
        service.watch(state, vec![Watch::Connection(Arc::new(copy))])
    }

    /// Looks whether it has, where the service thread that keeps [`NetLink::state`] may have ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let mut byte = [0; 1];
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        let peeked = recv(&*self.socket, &mut byte, flags);
        self.state.is_gone() || !matches!(peeked, Ok((_, 1..)) | Err(Errno::AGAIN | Errno::INTR))
    }

    /// Where the other side listens.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// This side's address on the connection.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

impl Drop for NetLink {
    fn drop(&mut self) {
        // In a fork's child it is the parent's connection.
        if self.generation.is_current() {
            let _ = rustix::net::shutdown(&*self.socket, rustix::net::Shutdown::Both);
        }
    }
}

/// Who calls, and all by which a peer is named. A handle that borrows another context's uuid must not decide where that one is looked for.
type Peer = (u64, [u8; 16], Vec<SocketAddr>);
/// Held locked while a connection is made, so that many threads make one.
type Entry = Arc<Mutex<Weak<NetLink>>>;

/// The connections of a context.
#[derive(Debug, Default)]
pub(super) struct Links {
    known: Mutex<HashMap<Peer, Entry>>,
}

impl Links {
    pub(super) fn call(
        &self,
        service: &Service,
        user: u64,
        (uuid, addresses): (&[u8; 16], &[SocketAddr]),
        call: &NetCall<'_>,
        deadline: &Deadline,
    ) -> Result<(Arc<NetLink>, Vec<u8>), NetError> {
        let first = *addresses.first().ok_or(NetError::NoAddress)?;
        let entry = {
            let mut known = self.known.lock();
            let is_used = |entry: &Entry| {
                Arc::strong_count(entry) > 1 || entry.try_lock().is_none_or(|link| link.strong_count() > 0)
            };
            known.retain(|_, entry| is_used(entry));
            Arc::clone(known.entry((user, *uuid, addresses.to_vec())).or_default())
        };
        let locked = entry.try_lock_for(deadline.left().unwrap_or_default());
        let waited = || NetError::TimedOut { address: first, waited: deadline.elapsed() };
        let mut entry = locked.ok_or_else(waited)?;
        if let Some(link) = entry.upgrade().filter(|link| !link.state.is_gone()) {
            match link.call(call, deadline) {
                // It went before the call was sent: perhaps the peer answers on a new connection. One that may have been taken is
                // not sent again.
                Err(NetError::Closed { .. }) => {}
                answer => return answer.map(|reply| (link, reply)),
            }
        }
        let (link, reply) = call_alone(service, uuid, addresses, call, deadline)?;
        *entry = Arc::downgrade(&link);
        Ok((link, reply))
    }
}

/// A call on a connection of its own.
pub(super) fn call_alone(
    service: &Service,
    uuid: &[u8; 16],
    addresses: &[SocketAddr],
    call: &NetCall<'_>,
    deadline: &Deadline,
) -> Result<(Arc<NetLink>, Vec<u8>), NetError> {
    let link = Arc::new(NetLink::new(service, find(uuid, addresses, deadline)?)?);
    let reply = link.call(call, deadline)?;
    Ok((link, reply))
}

/// Connects at the first of these addresses where that context is. None of them takes the time of those that follow.
fn find(uuid: &[u8; 16], addresses: &[SocketAddr], deadline: &Deadline) -> Result<Stream, NetError> {
    let mut failure = NetError::NoAddress;
    for (tried, address) in addresses.iter().enumerate() {
        let rest = u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
        let part = Deadline::after(deadline.left().unwrap_or_default() / rest);
        match Stream::open(uuid, *address, &part) {
            Ok(stream) => return Ok(stream),
            Err(error @ (NetError::Mem(_) | NetError::Service(_))) => return Err(error),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}
