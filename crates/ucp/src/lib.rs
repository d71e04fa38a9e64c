//! rucx's programming interface.
//!
//! A *host* process maps memory and exports it; a *DPU* process, which shares nothing with it but the handle's bytes, imports it
//! and reads and writes the host's memory; the host revokes it.
//!
//! ```
//! use ucp::{Context, Features, MemMap};
//!
//! # fn main() -> Result<(), ucp::Error> {
//! // HOST
//! let ctx = Context::builder().features(Features::EXPORTED_MEMH).build()?;
//! let mem = ctx.mem_map(MemMap::allocate(1 << 20).exported())?;
//! mem.write(0, b"hello")?;
//! let handle = mem.memh_pack()?; // its bytes are a secret: send them through a pipe or a 0600 file, never in argv
//!
//! // DPU: another process, usually
//! let dpu = Context::builder().features(Features::EXPORTED_MEMH).build()?;
//! let host = dpu.mem_import(handle.as_bytes())?;
//! let mut hello = [0; 5];
//! host.read(0, &mut hello)?;
//! assert_eq!(&hello, b"hello");
//!
//! // HOST
//! handle.revoke()?;
//! assert_eq!(host.read(0, &mut hello).unwrap_err().status(), ucp::Status::Stale);
//! # Ok(())
//! # }
//! ```
//!
//! # Memory: three types, by who can see it
//!
//! | type | who can touch it |
//! |---|---|
//! | [`Buf`] | only this process: plain slices |
//! | [`Region`] | peers may, too: copying accessors, no references |
//! | [`ImportedRegion`] | it is somebody else's |
//!
//! # Operands: given by value, and given back
//!
//! [`ImportedRegion::put`] and [`ImportedRegion::get`] take memory of this process by value and answer it, in the error, too: nobody frees or
//! changes it while an operation runs. What a transport needs registered is looked up in the context's registration cache, which is
//! right whatever becomes of memory between two operations ([`Context::rcache_stats`]).
//!
//! ```
//! # use ucp::{Context, Features, MemMap};
//! # fn main() -> Result<(), ucp::Error> {
//! # let ctx = Context::builder().features(Features::EXPORTED_MEMH).build()?;
//! # let mem = ctx.mem_map(MemMap::allocate(1 << 20).exported())?;
//! # let host = ctx.mem_import(mem.memh_pack()?.as_bytes())?;
//! let buf = host.put(0, vec![7; 4096])?; // the same vector comes back
//! let buf = host.get(8192, buf)?;
//! assert_eq!(buf, [0; 4096]);
//!
//! let failed = host.put(1 << 20, buf).unwrap_err();
//! assert_eq!(failed.status(), ucp::Status::OutOfRange);
//! assert_eq!(failed.operand.len(), 4096);
//! # Ok(())
//! # }
//! ```
//!
//! A part of an import is an operand, too ([`ImportedRegion::slice`]): a DPU process moves bytes between a host's memory and a third process's,
//! `peer.put(0, host.slice(0..4096)?)?`, and each owner's revocation holds for its own side.

//!
//! # Workers, endpoints, messages
//!
//! A [`Worker`] is one thread's. It connects to another worker, whose address came by a channel of yours, and has an [`Endpoint`] then:
//! for active messages ([`Endpoint::am_send`], [`Worker::am_handler`]), and for a peer's regions ([`Region::rkey_pack`],
//! [`Endpoint::rkey_unpack`], [`RemoteRegion`]). Operations are [`Request`]s: futures that give the operand back, or [`Worker::wait`]. Nothing
//! goes on but in [`Worker::progress`], which waiting does for you.
//!
//! ```
//! use std::{cell::RefCell, rc::Rc, time::Duration};
//! use ucp::{Context, Features};
//!
//! # fn main() -> Result<(), ucp::Error> {
//! let ctx = Context::builder().features(Features::AM).build()?;
//! let server = ctx.worker()?;
//! server.am_handler(1, |m| {
//!     let _detached = m.reply().am_send(2, m.header(), m.data().to_vec());
//! })?;
//! let address = server.address()?; // a secret: it goes to the client, another process usually
//!
//! let client = ctx.worker()?;
//! let echo = Rc::new(RefCell::new(None));
//! let into = Rc::clone(&echo);
//! client.am_handler(2, move |m| *into.borrow_mut() = Some(m.data().to_vec()))?;
//! let ep = client.connect(address.as_bytes())?;
//! let sent = client.wait(ep.am_send(1, b"", b"hello".to_vec()), Duration::from_secs(5))?;
//! assert_eq!(sent, b"hello"); // the operand, back
//! while echo.borrow().is_none() {
//!     server.progress();
//!     client.progress();
//! }
//! assert_eq!(echo.take().unwrap(), b"hello");
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod am;
pub mod config;
mod context;
mod devices;
mod ep;
mod error;
mod mem;
mod proto;
mod remote;
mod request;
mod rma;
pub mod wire;
mod worker;

pub use am::{AmFlags, AmMessage};
pub use context::{Context, ContextBuilder, Features, InitError, Stats};
pub use ep::{CloseMode, ConnectError, Endpoint, EpError, EpInfo, LaneInfo, LaneUse, WorkerError};
pub use error::Error;
pub use mem::{
    Buf, ImportError, ImportedRegion, ImportedSlice, MapError, MdOutcome, MdResult, MdResults, MemMap,
    MemSlice, Offer, OpError, PackError, PackedMemh, RegMode, Region, RegionReader, RegionWriter,
    TransferError, read_handle,
};
pub use remote::{Remote, Resident, ThreadEnded, WorkerThread};
pub use request::Request;
pub use rma::{PackedRkey, RemoteRegion, RkeyError};
pub use ucs::Status;
pub use ucs::config::{Config, Env};
pub use ucs::mem::shared::BoundsError;
pub use ucs::mem::{Limit, MemError};
pub use ucs::rcache::Stats as RcacheStats;
pub use uct::api::{AmoOp, AtomicWord, ComponentId, GlobalId, Gone, IfaceError, RegError};
pub use uct::export::NotRevoked;
pub use uct::memory::{
    AccessError, DeniedReason, Destination, Local, LocalMut, MappedView, OperandReason, RawMem, Rights,
    Source, StableBuf, StableBufMut, StaleReason,
};

pub use uct::registrations::RegisterError;
pub use worker::{Signaler, WaitError, Worker, WorkerAddress};

#[cfg(test)]
mod tests {
    use super::*;

    fn shared_by_threads<T: Send + Sync>() {}

    #[test]
    fn what_threads_may_share() {
        shared_by_threads::<Context>();
        shared_by_threads::<Buf>();
        shared_by_threads::<Region>();
        shared_by_threads::<PackedMemh>();
        shared_by_threads::<ImportedRegion>();
        shared_by_threads::<MemSlice>();
        shared_by_threads::<ImportedSlice>();
        shared_by_threads::<Error>();
    }
}
