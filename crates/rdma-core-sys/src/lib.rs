//! FFI to libibverbs and librdmacm, without their headers and without linking to them.
//!
//! | module | subject |
//! |---|---|
//! | `bindings` | the types of `<infiniband/verbs.h>`, generated and committed: building needs neither libclang nor headers |
//! | `cm_bindings` | those of `<rdma/rdma_cma.h>`, likewise |
//! | `opaque` | types that are only pointed to |
//! | `load` | opening a library when it is first wanted; its functions, by name and version |
//! | `library` | [`Library`]: libibverbs |
//! | `cm` | [`CmLibrary`]: librdmacm, for those who connect by it |
//! | `devices` | [`DeviceList`]: a machine without RDMA has none, which is no error |
//! | `inline` | what `verbs.h` defines in the header itself: posting, polling, and the functions that only newer libraries have |
//! | `layout` | where fields must lie, checked when this is compiled |
//!
//! Names are those of the headers, and so are the rules: what a function wants of its arguments stands in its man page. Structures of flags and
//! enumerators are types of their own: `ibv_wc_status::IBV_WC_SUCCESS`. Addresses of sockets are those of the crate `libc`.
//!
//! ```
//! use rdma_core_sys::DeviceList;
//!
//! let list = DeviceList::get()?;
//! println!("{} RDMA devices", list.devices().len());
//! # Ok::<(), rdma_core_sys::DevicesError>(())
//! ```

#![deny(unsafe_code)]

mod bindings;
mod cm;
mod cm_bindings;
mod devices;
mod inline;
mod layout;
mod library;
mod load;
mod opaque;

pub use bindings::*;
pub use cm::{CmLibrary, rdma_get_local_addr, rdma_get_peer_addr};
pub use cm_bindings::*;
pub use devices::{DeviceList, DevicesError};
pub use inline::{
    IBV_ACCESS_OPTIONAL_RANGE, ibv_poll_cq, ibv_post_recv, ibv_post_send, ibv_post_srq_recv,
    ibv_req_notify_cq,
};
pub use library::Library;
pub use load::OpenError;
pub use opaque::*;
