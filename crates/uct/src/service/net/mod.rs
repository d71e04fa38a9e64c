//! The part of a context's service that reaches other machines: TCP, with a proof of a token for each call, which is never sent.
//!
//! It knows nothing of what is asked: transports register a [`Responder`] each. The messages are in [`wire`].

mod client;
mod conn;
mod error;
mod links;
pub mod server;
mod socket;
#[cfg(test)]
mod tests;
pub mod wire;

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use ucs::Status;
use ucs::sync::{AtomicU64, Ordering};
use ucs::time::Deadline;

pub use conn::MAX_FAILURES;
pub use error::{NetError, NetListenError};
pub use links::{NetCall, NetLink};
pub(super) use server::NetServer;
pub(super) use socket::NetListener;

use super::server::{Service, ServiceError};
use super::watch::Watches;
use crate::export::Token;
use links::Links;

/// A connection of a peer: no two of a context have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub u64);

/// What is known of a subject: the secret that whoever asks for it must prove to have.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Secret {
    /// It is there.
    Live(Token),
    /// It was there and had this token. Who proves to have it is told that it has ended, with a proof:
    /// [`NetError::Stale`]. Without its token nothing can be proven.
    Ended(Token),
    /// Nothing: [`NetError::Unknown`].
    Unknown,
}

/// What a transport answers to peers of other machines. Called by the service thread, which must not be kept waiting. One that
/// panics is told as [`Status::IoError`].
pub trait Responder: Send + Sync + fmt::Debug {
    /// What is known of `subject`.
    fn secret(&self, subject: &[u8]) -> Secret;

    /// Answers a proven request: at most [`wire::MAX_BODY`] bytes.
    ///
    /// # Errors
    /// What the peer is told instead.
    fn call(&self, conn: ConnId, subject: &[u8], request: &[u8]) -> Result<Vec<u8>, Status>;

    /// A connection on which it was called has ended: told once, after the last call.
    fn ended(&self, conn: ConnId);
}

/// Who answers, by kind.
#[derive(Debug, Default)]
struct Responders(Mutex<HashMap<u16, Weak<dyn Responder>>>);

impl Responders {
    fn find(&self, kind: u16) -> Option<Arc<dyn Responder>> {
        self.0.lock().get(&kind).and_then(Weak::upgrade)
    }
}

/// What a service has for other machines.
#[derive(Debug)]
pub(super) struct Net {
    uuid: [u8; 16],
    responders: Arc<Responders>,
    listening: Mutex<Vec<SocketAddr>>,
    links: Links,
    /// The next number of a user of these.
    users: AtomicU64,
}

impl Net {
    pub(super) fn new(uuid: [u8; 16]) -> Self {
        let (listening, links, users) = (Mutex::default(), Links::default(), AtomicU64::new(1));
        Self { uuid, responders: Arc::default(), listening, links, users }
    }

    pub(super) fn server(&self, watches: &Arc<Watches>, next: &Arc<AtomicU64>) -> NetServer {
        NetServer::new(self.uuid, &self.responders, watches, next)
    }
}

impl Service {
    /// Listens at these addresses of this machine, at a port of the kernel's choice each; those at which it listens already stay as
    /// they are. Answers one socket address for each, in order.
    ///
    /// # Errors
    /// [`ServiceError`]: then it listens where it has before, and nowhere else.
    pub fn serve_net(&self, addresses: &[IpAddr]) -> Result<Vec<SocketAddr>, ServiceError> {
        self.check_generation()?;
        let mut listening = self.net.listening.lock();
        let (mut all, mut new) = (Vec::with_capacity(addresses.len()), Vec::<NetListener>::new());
        for address in addresses {
            let made = new.iter().map(|listener| listener.address);
            let known = listening.iter().copied().chain(made).find(|known| known.ip() == *address);
            let at = match known {
                Some(known) => known,
                None => {
                    let listener = NetListener::at(*address)?;
                    let at = listener.address;
                    new.push(listener);
                    at
                }
            };
            all.push(at);
        }
        let made: Vec<SocketAddr> = new.iter().map(|listener| listener.address).collect();
        self.serve_at(new)?;
        listening.extend(made);
        Ok(all)
    }

    /// Has `responder` answer calls of `kind`, in the place of who did. It is held weakly: once it is gone, nobody does.
    pub fn respond(&self, kind: u16, responder: Weak<dyn Responder>) {
        if self.check_generation().is_ok() {
            self.net.responders.0.lock().insert(kind, responder);
        }
    }

    /// As [`Service::respond`], of the first kind in `kinds` that nobody answers calls of. Answers which; `None`: there is none.
    pub fn respond_in(&self, kinds: RangeInclusive<u16>, responder: Weak<dyn Responder>) -> Option<u16> {
        self.check_generation().ok()?;
        let mut all = self.net.responders.0.lock();
        let is_free = |kind: &u16| all.get(kind).is_none_or(|one| one.strong_count() == 0);
        let kind = kinds.into_iter().find(is_free)?;
        all.insert(kind, responder);
        Some(kind)
    }

    /// A number of a user of connections, for [`Service::call_net`], that no other has.
    #[must_use]
    pub fn new_user(&self) -> u64 {
        self.net.users.fetch_add(1, Ordering::Relaxed)
    }

    /// Calls the context with this uuid, at the first of `addresses` where it is. Calls of one `user` of this context ([`Service::new_user`]) to
    /// the same context at the same addresses share a connection, which ends with the last [`NetLink`] of it. The peer takes the call once at
    /// most, whatever the answer is.
    ///
    /// # Errors
    /// [`NetError`].
    pub fn call_net(
        &self,
        user: u64,
        uuid: &[u8; 16],
        addresses: &[SocketAddr],
        call: &NetCall<'_>,
        deadline: &Deadline,
    ) -> Result<(Arc<NetLink>, Vec<u8>), NetError> {
        self.check_generation()?;
        self.net.links.call(self, user, (uuid, addresses), call, deadline)
    }

    /// As [`Service::call_net`], on a connection that nobody else calls on: a call that is refused, or that nobody answers in time, harms
    /// no other.
    ///
    /// # Errors
    /// [`NetError`].
    pub fn call_net_alone(
        &self,
        uuid: &[u8; 16],
        addresses: &[SocketAddr],
        call: &NetCall<'_>,
        deadline: &Deadline,
    ) -> Result<(Arc<NetLink>, Vec<u8>), NetError> {
        self.check_generation()?;
        links::call_alone(self, uuid, addresses, call, deadline)
    }
}
