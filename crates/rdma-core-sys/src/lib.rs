//! FFI to libibverbs, without its headers and without linking to it.
//!
//! | module | subject |
//! |---|---|
//! | `bindings` | the types of `<infiniband/verbs.h>`, generated and committed: building needs neither libclang nor headers |
//! | `opaque` | types that are only pointed to |
//! | `library` | [`Library`]: the library, opened when it is first wanted; its functions, by name and version |
//! | `devices` | [`DeviceList`]: a machine without RDMA has none, which is no error |
//! | `inline` | what `verbs.h` defines in the header itself: posting, polling, and the functions that only newer libraries have |
//! | `layout` | where fields must lie, checked when this is compiled |
//!
//! Names are those of verbs, and so are the rules: what a function wants of its arguments stands in its man page. Structures of flags and
//! enumerators are types of their own: `ibv_wc_status::IBV_WC_SUCCESS`. librdmacm is not here.
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
mod devices;
mod inline;
mod layout;
mod library;
mod opaque;

pub use bindings::*;
pub use devices::{DeviceList, DevicesError};
pub use inline::{
    IBV_ACCESS_OPTIONAL_RANGE, ibv_poll_cq, ibv_post_recv, ibv_post_send, ibv_post_srq_recv,
    ibv_req_notify_cq,
};
pub use library::{Library, OpenError};
pub use opaque::*;
