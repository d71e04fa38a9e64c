//! libibverbs, opened at run time.
//!
//! # Safety
//!
//! The types are those that `verbs.h` declares; see `load`.
#![allow(unsafe_code)]

use core::ffi::{c_char, c_int, c_uint, c_void};
use core::fmt;
use core::mem::transmute;
use core::ptr::NonNull;
use std::sync::OnceLock;

use crate::bindings::*;
use crate::load::{Handle, OpenError, functions};
use crate::opaque::_compat_ibv_port_attr;

functions! {
    /// libibverbs.
    ///
    /// # Safety
    ///
    /// All functions but [`ibv_fork_init`](Self::ibv_fork_init) take pointers: to what this library has made and not destroyed yet, or to
    /// a value of the type that the signature names, for the time of the call. Numbers are in the bounds the man page gives.
    Library: c"libibverbs.so.1";
    needed {
        /// [ibv_get_device_list(3)](https://man7.org/linux/man-pages/man3/ibv_get_device_list.3.html). [`DeviceList`](crate::DeviceList)
        /// calls it, and knows what its errors mean.
        ibv_get_device_list: "IBVERBS_1.1" (num_devices: *mut c_int) -> *mut *mut ibv_device;
        /// [ibv_free_device_list(3)](https://man7.org/linux/man-pages/man3/ibv_get_device_list.3.html).
        ibv_free_device_list: "IBVERBS_1.1" (list: *mut *mut ibv_device);
        /// [ibv_get_device_name(3)](https://man7.org/linux/man-pages/man3/ibv_get_device_name.3.html): lives as long as the device's list.
        ibv_get_device_name: "IBVERBS_1.1" (device: *mut ibv_device) -> *const c_char;
        /// [ibv_get_device_guid(3)](https://man7.org/linux/man-pages/man3/ibv_get_device_guid.3.html): in network byte order.
        ibv_get_device_guid: "IBVERBS_1.1" (device: *mut ibv_device) -> __be64;
        /// [ibv_open_device(3)](https://man7.org/linux/man-pages/man3/ibv_open_device.3.html).
        ibv_open_device: "IBVERBS_1.1" (device: *mut ibv_device) -> *mut ibv_context;
        /// [ibv_close_device(3)](https://man7.org/linux/man-pages/man3/ibv_open_device.3.html).
        ibv_close_device: "IBVERBS_1.1" (context: *mut ibv_context) -> c_int;
        /// [ibv_query_device(3)](https://man7.org/linux/man-pages/man3/ibv_query_device.3.html).
        ibv_query_device: "IBVERBS_1.1" (context: *mut ibv_context, device_attr: *mut ibv_device_attr) -> c_int;
        /// [ibv_query_gid(3)](https://man7.org/linux/man-pages/man3/ibv_query_gid.3.html).
        ibv_query_gid: "IBVERBS_1.1" (context: *mut ibv_context, port_num: u8, index: c_int, gid: *mut ibv_gid) -> c_int;
        /// [ibv_alloc_pd(3)](https://man7.org/linux/man-pages/man3/ibv_alloc_pd.3.html).
        ibv_alloc_pd: "IBVERBS_1.1" (context: *mut ibv_context) -> *mut ibv_pd;
        /// [ibv_dealloc_pd(3)](https://man7.org/linux/man-pages/man3/ibv_alloc_pd.3.html).
        ibv_dealloc_pd: "IBVERBS_1.1" (pd: *mut ibv_pd) -> c_int;
        /// [ibv_dereg_mr(3)](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html).
        ibv_dereg_mr: "IBVERBS_1.1" (mr: *mut ibv_mr) -> c_int;
        /// [ibv_create_comp_channel(3)](https://man7.org/linux/man-pages/man3/ibv_create_comp_channel.3.html).
        ibv_create_comp_channel: "IBVERBS_1.0" (context: *mut ibv_context) -> *mut ibv_comp_channel;
        /// [ibv_destroy_comp_channel(3)](https://man7.org/linux/man-pages/man3/ibv_create_comp_channel.3.html).
        ibv_destroy_comp_channel: "IBVERBS_1.0" (channel: *mut ibv_comp_channel) -> c_int;
        /// [ibv_create_cq(3)](https://man7.org/linux/man-pages/man3/ibv_create_cq.3.html).
        ibv_create_cq: "IBVERBS_1.1" (context: *mut ibv_context, cqe: c_int, cq_context: *mut c_void, channel: *mut ibv_comp_channel, comp_vector: c_int) -> *mut ibv_cq;
        /// [ibv_destroy_cq(3)](https://man7.org/linux/man-pages/man3/ibv_create_cq.3.html).
        ibv_destroy_cq: "IBVERBS_1.1" (cq: *mut ibv_cq) -> c_int;
        /// [ibv_get_cq_event(3)](https://man7.org/linux/man-pages/man3/ibv_get_cq_event.3.html).
        ibv_get_cq_event: "IBVERBS_1.1" (channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void) -> c_int;
        /// [ibv_ack_cq_events(3)](https://man7.org/linux/man-pages/man3/ibv_get_cq_event.3.html).
        ibv_ack_cq_events: "IBVERBS_1.1" (cq: *mut ibv_cq, nevents: c_uint);
        /// [ibv_create_qp(3)](https://man7.org/linux/man-pages/man3/ibv_create_qp.3.html).
        ibv_create_qp: "IBVERBS_1.1" (pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
        /// [ibv_modify_qp(3)](https://man7.org/linux/man-pages/man3/ibv_modify_qp.3.html).
        ibv_modify_qp: "IBVERBS_1.1" (qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int) -> c_int;
        /// [ibv_query_qp(3)](https://man7.org/linux/man-pages/man3/ibv_query_qp.3.html).
        ibv_query_qp: "IBVERBS_1.1" (qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int, init_attr: *mut ibv_qp_init_attr) -> c_int;
        /// [ibv_destroy_qp(3)](https://man7.org/linux/man-pages/man3/ibv_create_qp.3.html).
        ibv_destroy_qp: "IBVERBS_1.1" (qp: *mut ibv_qp) -> c_int;
        /// [ibv_create_srq(3)](https://man7.org/linux/man-pages/man3/ibv_create_srq.3.html).
        ibv_create_srq: "IBVERBS_1.1" (pd: *mut ibv_pd, srq_init_attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;
        /// [ibv_destroy_srq(3)](https://man7.org/linux/man-pages/man3/ibv_create_srq.3.html).
        ibv_destroy_srq: "IBVERBS_1.1" (srq: *mut ibv_srq) -> c_int;
        /// [ibv_get_async_event(3)](https://man7.org/linux/man-pages/man3/ibv_get_async_event.3.html).
        ibv_get_async_event: "IBVERBS_1.1" (context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
        /// [ibv_ack_async_event(3)](https://man7.org/linux/man-pages/man3/ibv_get_async_event.3.html).
        ibv_ack_async_event: "IBVERBS_1.1" (event: *mut ibv_async_event);
        /// [ibv_wc_status_str(3)](https://man7.org/linux/man-pages/man3/ibv_poll_cq.3.html): a static string, for any number.
        ibv_wc_status_str: "IBVERBS_1.1" (status: ibv_wc_status) -> *const c_char;
        /// [ibv_fork_init(3)](https://man7.org/linux/man-pages/man3/ibv_fork_init.3.html): before anything is registered.
        ibv_fork_init: "IBVERBS_1.1" () -> c_int;
    }
    wrapped {
        /// What programs called before `verbs.h` had the function of this name inline: it writes only the fields there were then.
        ibv_query_port: "IBVERBS_1.1" (context: *mut ibv_context, port_num: u8, port_attr: *mut _compat_ibv_port_attr) -> c_int;
        /// It knows no optional access flags.
        ibv_reg_mr: "IBVERBS_1.1" (pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr;
    }
    optional {
        /// [ibv_reg_mr_iova2(3)](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html): since rdma-core 28.
        ibv_reg_mr_iova2: "IBVERBS_1.8" (pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_uint) -> *mut ibv_mr;
        /// [ibv_query_gid_ex(3)](https://man7.org/linux/man-pages/man3/ibv_query_gid_ex.3.html), with the entry's size: an entry of the table,
        /// and its type. Since rdma-core 32.
        _ibv_query_gid_ex: "IBVERBS_1.11" (context: *mut ibv_context, port_num: u32, gid_index: u32, entry: *mut ibv_gid_entry, flags: u32, entry_size: usize) -> c_int;
        /// [ibv_is_fork_initialized(3)](https://man7.org/linux/man-pages/man3/ibv_is_fork_initialized.3.html). Since rdma-core 38.
        ibv_is_fork_initialized: "IBVERBS_1.13" () -> ibv_fork_status;
    }
}

impl Library {
    /// The library: opens it, the first time it is called.
    ///
    /// # Errors
    ///
    /// There is none ([`OpenError::Absent`]), or it is none that can be used; the answer does not change.
    pub fn open() -> Result<&'static Self, OpenError> {
        Self::loaded()?.ok_or(OpenError::Absent)
    }
}

#[cfg(test)]
mod tests {
    use core::ffi::CStr;

    use super::*;

    #[test]
    fn another_library_lacks_functions() {
        let libc = Handle::open(c"libc.so.6").unwrap().unwrap();
        let error = Library::look_up(&libc).unwrap_err();
        let (library, name, version) = ("libc.so.6", "ibv_get_device_list", "IBVERBS_1.1");
        assert_eq!(error, OpenError::Symbol { library, name, version });
        assert!(error.to_string().contains("ibv_get_device_list") && error.remedy().contains("newer"));
    }

    #[test]
    fn it_is_opened_once() {
        match (Library::open(), Library::open()) {
            (Ok(first), Ok(second)) => assert!(std::ptr::eq(first, second)),
            (first, second) => assert_eq!(first.unwrap_err(), second.unwrap_err()),
        }
    }

    #[test]
    fn statuses_have_words() {
        let Ok(library) = Library::open() else { return };
        // SAFETY: any number will do.
        let text = unsafe { library.ibv_wc_status_str(ibv_wc_status::IBV_WC_REM_ACCESS_ERR) };
        // SAFETY: a static string.
        assert_eq!(unsafe { CStr::from_ptr(text) }, c"remote access error");
    }
}
