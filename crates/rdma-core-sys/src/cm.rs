//! librdmacm, opened at run time: connecting queue pairs by IP addresses and ports, through the kernel's connection manager.
//!
//! # Safety
//!
//! The types are those that `rdma_cma.h` declares; see `load`. The library loads libibverbs by the name that [`Library`](crate::Library) does, so in a
//! process there is one, and each may be given what the other has made.
#![allow(unsafe_code)]

use core::ffi::{c_char, c_int, c_void};
use core::fmt;
use core::mem::transmute;
use core::ptr::NonNull;
use std::sync::OnceLock;

use libc::sockaddr;

use crate::bindings::*;
use crate::cm_bindings::*;
use crate::load::{Handle, OpenError, functions};

functions! {
    /// librdmacm.
    ///
    /// What an identifier's queue pair is made of, and sends and receives, is of verbs: [`Library`](crate::Library), [`ibv_post_send`](crate::ibv_post_send).
    ///
    /// # Safety
    ///
    /// All functions but [`rdma_create_event_channel`](Self::rdma_create_event_channel) and [`rdma_event_str`](Self::rdma_event_str) take pointers: to
    /// what this library, or libibverbs, has made and not destroyed yet, or to a value of the type that the signature names, for the time of the
    /// call. Null stands where the man page allows it. An address is as long as its family says; private data as its number of bytes. An event is
    /// read until it is acknowledged.
    CmLibrary: c"librdmacm.so.1";
    needed {
        /// [rdma_create_event_channel(3)](https://man7.org/linux/man-pages/man3/rdma_create_event_channel.3.html). Null, where there is no RDMA
        /// device (`ENODEV`), or the kernel's `rdma_ucm` is not loaded.
        rdma_create_event_channel: "RDMACM_1.0" () -> *mut rdma_event_channel;
        /// [rdma_destroy_event_channel(3)](https://man7.org/linux/man-pages/man3/rdma_destroy_event_channel.3.html): after its identifiers.
        rdma_destroy_event_channel: "RDMACM_1.0" (channel: *mut rdma_event_channel);
        /// [rdma_create_id(3)](https://man7.org/linux/man-pages/man3/rdma_create_id.3.html). Without a channel its calls block until what they ask for has
        /// happened.
        rdma_create_id: "RDMACM_1.0" (channel: *mut rdma_event_channel, id: *mut *mut rdma_cm_id, context: *mut c_void, ps: rdma_port_space) -> c_int;
        /// [rdma_destroy_id(3)](https://man7.org/linux/man-pages/man3/rdma_destroy_id.3.html): after its queue pair. Waits until its events are acknowledged.
        rdma_destroy_id: "RDMACM_1.0" (id: *mut rdma_cm_id) -> c_int;
        /// [rdma_migrate_id(3)](https://man7.org/linux/man-pages/man3/rdma_migrate_id.3.html). Waits until its events are acknowledged.
        rdma_migrate_id: "RDMACM_1.0" (id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int;
        /// [rdma_bind_addr(3)](https://man7.org/linux/man-pages/man3/rdma_bind_addr.3.html). Port 0: one that is free.
        rdma_bind_addr: "RDMACM_1.0" (id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int;
        /// [rdma_listen(3)](https://man7.org/linux/man-pages/man3/rdma_listen.3.html).
        rdma_listen: "RDMACM_1.0" (id: *mut rdma_cm_id, backlog: c_int) -> c_int;
        /// [rdma_resolve_addr(3)](https://man7.org/linux/man-pages/man3/rdma_resolve_addr.3.html). `timeout_ms` are milliseconds.
        rdma_resolve_addr: "RDMACM_1.0" (id: *mut rdma_cm_id, src_addr: *mut sockaddr, dst_addr: *mut sockaddr, timeout_ms: c_int) -> c_int;
        /// [rdma_resolve_route(3)](https://man7.org/linux/man-pages/man3/rdma_resolve_route.3.html). `timeout_ms` are milliseconds.
        rdma_resolve_route: "RDMACM_1.0" (id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int;
        /// [rdma_create_qp(3)](https://man7.org/linux/man-pages/man3/rdma_create_qp.3.html). Null for `pd`, or for queues, lets the library make its own.
        rdma_create_qp: "RDMACM_1.0" (id: *mut rdma_cm_id, pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> c_int;
        /// [rdma_destroy_qp(3)](https://man7.org/linux/man-pages/man3/rdma_destroy_qp.3.html).
        rdma_destroy_qp: "RDMACM_1.0" (id: *mut rdma_cm_id);
        /// [rdma_connect(3)](https://man7.org/linux/man-pages/man3/rdma_connect.3.html).
        rdma_connect: "RDMACM_1.0" (id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int;
        /// [rdma_accept(3)](https://man7.org/linux/man-pages/man3/rdma_accept.3.html).
        rdma_accept: "RDMACM_1.0" (id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int;
        /// [rdma_reject(3)](https://man7.org/linux/man-pages/man3/rdma_reject.3.html).
        rdma_reject: "RDMACM_1.0" (id: *mut rdma_cm_id, private_data: *const c_void, private_data_len: u8) -> c_int;
        /// [rdma_disconnect(3)](https://man7.org/linux/man-pages/man3/rdma_disconnect.3.html).
        rdma_disconnect: "RDMACM_1.0" (id: *mut rdma_cm_id) -> c_int;
        /// [rdma_get_cm_event(3)](https://man7.org/linux/man-pages/man3/rdma_get_cm_event.3.html). Waits for one, if the channel's descriptor is not
        /// set to `O_NONBLOCK`.
        rdma_get_cm_event: "RDMACM_1.0" (channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int;
        /// [rdma_ack_cm_event(3)](https://man7.org/linux/man-pages/man3/rdma_ack_cm_event.3.html): frees it.
        rdma_ack_cm_event: "RDMACM_1.0" (event: *mut rdma_cm_event) -> c_int;
        /// [rdma_event_str(3)](https://man7.org/linux/man-pages/man3/rdma_event_str.3.html): a static string, for any number.
        rdma_event_str: "RDMACM_1.0" (event: rdma_cm_event_type) -> *const c_char;
        /// [rdma_get_src_port(3)](https://man7.org/linux/man-pages/man3/rdma_get_src_port.3.html): in network byte order.
        rdma_get_src_port: "RDMACM_1.0" (id: *mut rdma_cm_id) -> __be16;
        /// [rdma_get_dst_port(3)](https://man7.org/linux/man-pages/man3/rdma_get_dst_port.3.html): in network byte order.
        rdma_get_dst_port: "RDMACM_1.0" (id: *mut rdma_cm_id) -> __be16;
        /// [rdma_getaddrinfo(3)](https://man7.org/linux/man-pages/man3/rdma_getaddrinfo.3.html). Not 0: it has failed, and
        /// errno may be a number of `getaddrinfo(3)`.
        rdma_getaddrinfo: "RDMACM_1.0" (node: *const c_char, service: *const c_char, hints: *const rdma_addrinfo, res: *mut *mut rdma_addrinfo) -> c_int;
        /// [rdma_freeaddrinfo(3)](https://man7.org/linux/man-pages/man3/rdma_getaddrinfo.3.html).
        rdma_freeaddrinfo: "RDMACM_1.0" (res: *mut rdma_addrinfo);
    }
    wrapped {}
    optional {
        /// [rdma_establish(3)](https://man7.org/linux/man-pages/man3/rdma_establish.3.html), for a queue pair that is not the identifier's. Since
        /// rdma-core 23.
        rdma_establish: "RDMACM_1.2" (id: *mut rdma_cm_id) -> c_int;
        /// [rdma_init_qp_attr(3)](https://man7.org/linux/man-pages/man3/rdma_init_qp_attr.3.html), for a queue pair that is not the identifier's. Since
        /// rdma-core 23.
        rdma_init_qp_attr: "RDMACM_1.2" (id: *mut rdma_cm_id, qp_attr: *mut ibv_qp_attr, qp_attr_mask: *mut c_int) -> c_int;
    }
}

impl CmLibrary {
    /// The library: opens it, the first time it is called. `None`: there is none (Debian: librdmacm1), which is no error.
    ///
    /// # Errors
    ///
    /// It is there, and none that can be used; the answer does not change.
    pub fn open() -> Result<Option<&'static Self>, OpenError> {
        Self::loaded()
    }
}

/// The address at this end: [rdma_get_local_addr(3)](https://man7.org/linux/man-pages/man3/rdma_get_local_addr.3.html). It lives as long as the identifier.
///
/// # Safety
///
/// `id` is not destroyed yet.
#[inline]
pub unsafe fn rdma_get_local_addr(id: *mut rdma_cm_id) -> *mut sockaddr {
    // SAFETY: the caller says that it is an identifier; a union is all of its fields.
    unsafe { &raw mut (*id).route.addr.__bindgen_anon_1.src_addr }
}

/// The address at the other end: [rdma_get_peer_addr(3)](https://man7.org/linux/man-pages/man3/rdma_get_peer_addr.3.html). It lives as long as the
/// identifier.
///
/// # Safety
///
/// `id` is not destroyed yet.
#[inline]
pub unsafe fn rdma_get_peer_addr(id: *mut rdma_cm_id) -> *mut sockaddr {
    // SAFETY: the caller says that it is an identifier; a union is all of its fields.
    unsafe { &raw mut (*id).route.addr.__bindgen_anon_2.dst_addr }
}

#[cfg(test)]
mod tests {
    use core::ffi::CStr;
    use core::ptr;

    use super::*;

    #[test]
    fn another_library_lacks_functions() {
        let libc = Handle::open(c"libc.so.6").unwrap().unwrap();
        let error = CmLibrary::look_up(&libc).unwrap_err();
        let (library, name, version) = ("libc.so.6", "rdma_create_event_channel", "RDMACM_1.0");
        assert_eq!(error, OpenError::Symbol { library, name, version });
    }

    #[test]
    fn it_is_opened_once_or_there_is_none() {
        let [first, second] = [(); 2].map(|()| CmLibrary::open().unwrap());
        assert_eq!(first.map(ptr::from_ref), second.map(ptr::from_ref));
    }

    #[test]
    fn events_have_words() {
        let Some(library) = CmLibrary::open().unwrap() else { return };
        // SAFETY: any number will do.
        let text = unsafe { library.rdma_event_str(rdma_cm_event_type::RDMA_CM_EVENT_REJECTED) };
        // SAFETY: a static string.
        assert_eq!(unsafe { CStr::from_ptr(text) }, c"RDMA_CM_EVENT_REJECTED");
    }
}
