//! The traits a transport implements.
//!
//! [`Component`] → [`Md`] → [`Memh`] on the side that owns memory, [`Md`] → [`Attachment`] on the side that was sent a key;
//! [`Md`] → [`Iface`] for a worker, which sends messages by it. All
//! traits are object-safe, none is sealed: tests implement fakes.

mod atomic;
mod attr;
mod component;
mod error;
mod iface;
mod md;

pub use atomic::{AmoOp, AtomicOp, AtomicWord};
pub use attr::{Capability, GlobalId, LinearCost, MdAttr, MdFlags, MemTypes};
pub use component::{Component, ComponentId, MdParams, MdResource};
pub use error::{AllocError, AttachError, IfaceError, OpenError, PackError, RegError};
pub use iface::{EpId, Gone, Iface, IfaceAttr, IfaceFlags, NewEp, Payload, SendError, Sink};
pub use md::{
    AttachRequest, Attached, Attachment, LocalMemh, Md, Memh, PackFlags, PeerMemory, get_by_read,
    put_by_write,
};
