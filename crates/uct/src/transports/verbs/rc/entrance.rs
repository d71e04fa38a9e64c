//! Where peers come in: calls of the service's peers, answered by its thread. A call's queue pair is connected and can receive when it is
//! answered; the interface takes it when it looks.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use ucs::Status;
use ucs::sync::{AtomicBool, Ordering};

use super::endpoint::{Endpoint, Guest};
use super::queue::{MESSAGES, OpenError, Opening};
use super::wire::{Call, Reply};
use crate::doorbell::Doorbell;
use crate::export::{PeerState, Token};
use crate::service::{ConnId, Responder, Secret, Shares};
use crate::transports::verbs::device::Device;
use crate::transports::verbs::sys::Channel;

/// What an interface has for those who come.
#[derive(Debug)]
pub(super) struct Entrance {
    device: Arc<Device>,
    channel: Arc<Channel>,
    token: Token,
    instance: [u8; 8],
    bell: Arc<Doorbell>,
    shares: Arc<Shares>,
    has_news: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// As many as there are shares at most.
    arrivals: Vec<Endpoint>,
    conns: HashMap<ConnId, Conn>,
    /// The interface is gone.
    is_closed: bool,
}

/// A connection that was called on.
#[derive(Debug)]
struct Conn {
    state: Arc<PeerState>,
    from: [u8; 16],
}

impl Entrance {
    pub(super) fn new(
        device: &Arc<Device>,
        channel: &Arc<Channel>,
        (token, instance): (Token, [u8; 8]),
        bell: &Arc<Doorbell>,
        most: usize,
    ) -> Arc<Self> {
        Arc::new(Self {
            device: Arc::clone(device),
            channel: Arc::clone(channel),
            token,
            instance,
            bell: Arc::clone(bell),
            shares: Shares::new(most),
            has_news: AtomicBool::new(false),
            inner: Mutex::default(),
        })
    }

    pub(super) fn token(&self) -> Token {
        self.token
    }

    pub(super) fn instance(&self) -> [u8; 8] {
        self.instance
    }

    /// Whether somebody has come since [`Entrance::take`]: one load.
    #[inline]
    pub(super) fn has_news(&self) -> bool {
        self.has_news.load(Ordering::Acquire)
    }

    /// Who has come.
    pub(super) fn take(&self) -> Vec<Endpoint> {
        self.has_news.store(false, Ordering::Relaxed);
        std::mem::take(&mut self.inner.lock().arrivals)
    }

    /// Nobody comes any more; who has come and was not taken.
    pub(super) fn close(&self) -> Vec<Endpoint> {
        let mut inner = self.inner.lock();
        inner.is_closed = true;
        std::mem::take(&mut inner.arrivals)
    }

    /// Who is behind this call, and whose end its endpoint ends with.
    fn conns_of(&self, conn: ConnId, call: &Call) -> Result<(Arc<PeerState>, Arc<PeerState>), Status> {
        let mut inner = self.inner.lock();
        let new = || Conn { state: Arc::new(PeerState::with_bell(&self.bell)), from: call.context_uuid };
        let asked = Arc::clone(&inner.conns.entry(conn).or_insert_with(new).state);
        if call.life == 0 {
            return Ok((Arc::clone(&asked), asked));
        }
        let life = inner.conns.get(&ConnId(call.life)).filter(|life| life.from == call.context_uuid);
        life.map(|life| (Arc::clone(&life.state), asked)).ok_or(Status::Stale)
    }
}

fn status_of(error: &OpenError) -> Status {
    match error {
        OpenError::Mem(error) => error.status(),
        OpenError::Reg(error) => error.status(),
        OpenError::Device { .. } => Status::NoResource,
    }
}

impl Responder for Entrance {
    fn secret(&self, subject: &[u8]) -> Secret {
        if *subject == self.instance { Secret::Live(self.token) } else { Secret::Unknown }
    }

    fn call(&self, conn: ConnId, _subject: &[u8], request: &[u8]) -> Result<Vec<u8>, Status> {
        let call = Call::decode(request).map_err(|_| Status::InvalidParam)?;
        let (life, asked) = self.conns_of(conn, &call)?;
        let owner = if call.life == 0 { conn.0 } else { call.life };
        let share = self.shares.take(owner).ok_or(Status::ExceedsLimit)?;
        let opening = Opening::new(&self.device, &self.channel);
        let opening = opening.inspect_err(|error| tracing::warn!(%error, "a peer is turned away"));
        let opening = opening.map_err(|error| status_of(&error))?;
        let qp = opening.address();
        let queue = opening.connect(&call.qp).map_err(|errno| {
            tracing::warn!(%errno, "a peer's queue pair cannot be connected with");
            Status::Unreachable
        })?;
        let guest = Guest { from: call.context_uuid, asked };
        let ep = Endpoint::new(queue, &self.device, call.receives, life, Some((guest, share)));
        let mut inner = self.inner.lock();
        if inner.is_closed {
            return Err(Status::Stale);
        }
        inner.arrivals.push(ep);
        drop(inner);
        self.has_news.store(true, Ordering::Release);
        self.bell.ring();
        Ok(Reply { qp, life: conn.0, receives: MESSAGES }.encode().to_vec())
    }

    fn ended(&self, conn: ConnId) {
        let conn = self.inner.lock().conns.remove(&conn);
        if let Some(conn) = conn {
            conn.state.set_gone();
        }
    }
}
