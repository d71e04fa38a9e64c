//! How a peer's end is told to who has connected: by the end of a connection to its service.

use std::sync::Arc;

use crate::api::AttachError;
use crate::doorbell::Doorbell;
use crate::export::PeerState;
use crate::service::watch::Watching;
use crate::service::{NetLink, Service};

/// A connection that ends with the peer's process, and tells the peer of the end of this one. All endpoints to one interface have it in
/// common.
#[derive(Debug)]
pub(super) struct Life {
    // Before the connection that it watches.
    _watching: Watching,
    state: Arc<PeerState>,
    number: u64,
    _link: Arc<NetLink>,
}

impl Life {
    /// Of `link`, which the peer knows by this number. Its end rings `bell`.
    pub(super) fn new(
        service: &Service,
        link: &Arc<NetLink>,
        number: u64,
        bell: &Arc<Doorbell>,
    ) -> Result<Arc<Self>, AttachError> {
        let state = Arc::new(PeerState::with_bell(bell));
        let watching = link.watch(service, &state).map_err(AttachError::from)?;
        Ok(Arc::new(Self { _watching: watching, state, number, _link: Arc::clone(link) }))
    }

    pub(super) fn state(&self) -> &Arc<PeerState> {
        &self.state
    }

    /// The peer's number of the connection.
    pub(super) fn number(&self) -> u64 {
        self.number
    }
}
