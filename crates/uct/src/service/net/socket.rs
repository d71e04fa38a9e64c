//! TCP sockets as both sides use them.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, listen, socket_with, sockopt};
use rustix::rand::{GetRandomFlags, getrandom};
use ucs::mem::MemError;

use super::error::NetListenError;
use crate::service::ServiceError;

/// Connections the kernel queues before the service takes them.
const BACKLOG: i32 = 64;
/// After how long a silent peer is asked for a sign of life, and how long it is waited for in between.
const KEEPALIVE: Duration = Duration::from_secs(4);
const KEEPALIVE_AGAIN: Duration = Duration::from_secs(2);
const KEEPALIVE_COUNT: u32 = 3;
/// After how long a peer that does not acknowledge is gone, in milliseconds.
const USER_TIMEOUT: u32 = 10_000;

/// A socket that listens for peers of other machines.
#[derive(Debug)]
pub(in crate::service) struct NetListener {
    socket: OwnedFd,
    pub(super) address: SocketAddr,
}

impl NetListener {
    /// Listens at `address`, at a port of the kernel's choice.
    pub(super) fn at(address: IpAddr) -> Result<Self, ServiceError> {
        let failed = |errno| NetListenError { address, errno };
        let asked = SocketAddr::new(address, 0);
        let socket = socket(&asked).map_err(|errno| match errno {
            Errno::AFNOSUPPORT => ServiceError::from(failed(errno)),
            errno => MemError::of("socket", errno, 0).into(),
        })?;
        bind(&socket, &asked).map_err(failed)?;
        listen(&socket, BACKLOG).map_err(failed)?;
        let address = local(socket.as_fd()).map_err(failed)?;
        Ok(Self { socket, address })
    }
}

impl AsFd for NetListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A non-blocking socket for `address`.
pub(super) fn socket(address: &SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

/// Its own address.
pub(super) fn local(socket: BorrowedFd<'_>) -> Result<SocketAddr, Errno> {
    SocketAddr::try_from(getsockname(socket)?)
}

/// Small messages go at once, and a machine that vanishes is noticed (`tcp(7)`).
pub(super) fn prepare(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_AGAIN)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_COUNT)?;
    sockopt::set_tcp_user_timeout(socket, USER_TIMEOUT)
}

/// Random bytes that no other connection has.
pub(super) fn nonce() -> Result<[u8; 16], Errno> {
    let mut nonce = [0; 16];
    loop {
        match getrandom(&mut nonce, GetRandomFlags::empty()) {
            Ok(16) => return Ok(nonce),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}
