//! The service socket of a context: where importers show a token and get descriptors.
//!
//! One thread per context, started when it is first needed and ended with the context. It serves importers of this context's
//! exports, introduces workers of other contexts to those of this one, and watches the exporters whose memory this context has
//! imported and the peers its workers are connected with.
//!
//! The socket is an abstract unix socket of type SOCK_SEQPACKET with a random name: nothing is left behind in any file
//! system, and it reaches the network namespace of the process (`unix(7)`, `network_namespaces(7)`). Where `UCX_SERVICE_DIR`
//! names a directory, there is a second one with a path in it, for importers in other network namespaces. The messages are in
//! [`wire`].

pub mod arrivals;
pub mod client;
mod conn;
pub mod listener;
pub mod net;
pub mod peers;
pub mod placing;
pub mod server;
pub mod shares;
mod sys;
pub mod tended;
pub mod watch;
pub mod wire;

pub use arrivals::{Arrival, Door};
pub use client::{ConnectError, Connection, Granted};
pub use listener::{ListenError, Listener};
pub use net::{ConnId, NetCall, NetError, NetLink, NetListenError, Responder, Secret};
pub use peers::{Connected, Exporter, Grant, Link, Peer};
pub use placing::{Domain, Placed, Placement, Placer};
pub use server::{Service, ServiceError};
pub use shares::{Share, Shares};
pub use tended::{Tended, Tending};
