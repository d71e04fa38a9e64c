//! What `verbs.h` defines itself: the calls of the fast path, which go straight to the device's provider, and those that go by the
//! `verbs_context` before the context.
//!
//! # Safety
//!
//! A context that libibverbs has made lies at the end of a `verbs_context`, whose size stands in `sz`. That structure grows at its front: an older
//! library's is shorter, so a field is read only where `sz` covers it, and by its distance from the context. No reference to the whole structure is
//! made, nor a pointer to what may lie before it. What a function wants of its arguments its caller promises.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_uint, c_void};
use core::mem::{offset_of, size_of};

use crate::bindings::*;
use crate::library::Library;

/// The bits of access flags that a library or a kernel may ignore (`IBV_ACCESS_OPTIONAL_RANGE`).
pub const IBV_ACCESS_OPTIONAL_RANGE: c_uint = ib_uverbs_access_flags::IB_UVERBS_ACCESS_OPTIONAL_RANGE.0;

/// What `abi_compat` is of a context with a `verbs_context` (`__VERBS_ABI_IS_EXTENDED`).
const EXTENDED: usize = usize::MAX;

/// Posts work requests to a send queue: [ibv_post_send(3)](https://man7.org/linux/man-pages/man3/ibv_post_send.3.html). 0 or an errno.
///
/// # Safety
///
/// `qp` is open; `wr` leads to a list of requests whose lists of buffers are valid during the call; `bad_wr` may be written. The buffers stay registered and
/// where they are until the request has completed.
#[inline]
pub unsafe fn ibv_post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: the caller says that it is a queue pair.
    let context = unsafe { (*qp).context };
    // SAFETY: a queue pair's context is open.
    let post = unsafe { (*context).ops.post_send };
    match post {
        // SAFETY: the caller keeps to what the function asks for.
        Some(post) => unsafe { post(qp, wr, bad_wr) },
        None => libc::EOPNOTSUPP,
    }
}

/// Posts work requests to a receive queue: [ibv_post_recv(3)](https://man7.org/linux/man-pages/man3/ibv_post_recv.3.html). 0 or an errno.
///
/// # Safety
///
/// As of [`ibv_post_send`]; the device writes to the buffers.
#[inline]
pub unsafe fn ibv_post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: the caller says that it is a queue pair.
    let context = unsafe { (*qp).context };
    // SAFETY: a queue pair's context is open.
    let post = unsafe { (*context).ops.post_recv };
    match post {
        // SAFETY: the caller keeps to what the function asks for.
        Some(post) => unsafe { post(qp, wr, bad_wr) },
        None => libc::EOPNOTSUPP,
    }
}

/// Posts work requests to a shared receive queue: [ibv_post_srq_recv(3)](https://man7.org/linux/man-pages/man3/ibv_post_srq_recv.3.html).
/// 0 or an errno.
///
/// # Safety
///
/// As of [`ibv_post_recv`].
#[inline]
pub unsafe fn ibv_post_srq_recv(
    srq: *mut ibv_srq,
    recv_wr: *mut ibv_recv_wr,
    bad_recv_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller says that it is a shared receive queue.
    let context = unsafe { (*srq).context };
    // SAFETY: its context is open.
    let post = unsafe { (*context).ops.post_srq_recv };
    match post {
        // SAFETY: the caller keeps to what the function asks for.
        Some(post) => unsafe { post(srq, recv_wr, bad_recv_wr) },
        None => libc::EOPNOTSUPP,
    }
}

/// Takes completions: [ibv_poll_cq(3)](https://man7.org/linux/man-pages/man3/ibv_poll_cq.3.html). Their number, or a negative one.
///
/// # Safety
///
/// `cq` is open; `wc` has room for `num_entries`.
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller says that it is a completion queue.
    let context = unsafe { (*cq).context };
    // SAFETY: its context is open.
    let poll = unsafe { (*context).ops.poll_cq };
    match poll {
        // SAFETY: the caller keeps to what the function asks for.
        Some(poll) => unsafe { poll(cq, num_entries, wc) },
        None => -libc::EOPNOTSUPP,
    }
}

/// Asks for an event of the next completion: [ibv_req_notify_cq(3)](https://man7.org/linux/man-pages/man3/ibv_req_notify_cq.3.html).
/// 0 or an errno.
///
/// # Safety
///
/// `cq` is open.
#[inline]
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller says that it is a completion queue.
    let context = unsafe { (*cq).context };
    // SAFETY: its context is open.
    let notify = unsafe { (*context).ops.req_notify_cq };
    match notify {
        // SAFETY: the caller keeps to what the function asks for.
        Some(notify) => unsafe { notify(cq, solicited_only) },
        None => libc::EOPNOTSUPP,
    }
}

/// The function in a field of the `verbs_context` that the context is the end of, where the library has it.
macro_rules! verbs_get_ctx_op {
    ($context:expr, $field:ident) => {
        extended(
            $context,
            offset_of!(verbs_context, context) - offset_of!(verbs_context, $field),
            |whole: &verbs_context| whole.$field,
        )
    };
}

/// The function in the field that lies `before` bytes before the context; `_type` tells its type, and is not called.
///
/// # Safety
///
/// `context` is open, and a field of this type lies there in the structure of the bindings.
unsafe fn extended<F>(
    context: *mut ibv_context,
    before: usize,
    _type: fn(&verbs_context) -> Option<F>,
) -> Option<F> {
    // SAFETY: the caller says that it is open.
    if unsafe { (*context).abi_compat }.addr() != EXTENDED {
        return None;
    }
    let sz = context.wrapping_byte_sub(offset_of!(verbs_context, context) - offset_of!(verbs_context, sz));
    // SAFETY: there is a `verbs_context`, and its size lies right before the context in each version.
    let sz = unsafe { sz.cast::<usize>().read() };
    if sz < before + size_of::<ibv_context>() {
        return None;
    }
    // SAFETY: the structure begins there, or before; the field is a pointer to a function, or null.
    unsafe { context.wrapping_byte_sub(before).cast::<Option<F>>().read() }
}

impl Library {
    /// Asks for a port's properties: [ibv_query_port(3)](https://man7.org/linux/man-pages/man3/ibv_query_port.3.html). 0 or an errno. Fields
    /// that an older library does not know are 0.
    ///
    /// # Safety
    ///
    /// `context` is open; `port_attr` may be written.
    pub unsafe fn ibv_query_port(
        &self,
        context: *mut ibv_context,
        port_num: u8,
        port_attr: *mut ibv_port_attr,
    ) -> c_int {
        // SAFETY: the caller says that it is open; the macro names field and type.
        match unsafe { verbs_get_ctx_op!(context, query_port) } {
            // SAFETY: the caller keeps to what the function asks for; the size is that of the structure.
            Some(query) => unsafe { query(context, port_num, port_attr, size_of::<ibv_port_attr>()) },
            None => {
                // SAFETY: the caller says that it may be written.
                unsafe { port_attr.write(ibv_port_attr::default()) };
                // SAFETY: the function writes what the structure began with before it grew.
                unsafe { (self.ibv_query_port)(context, port_num, port_attr.cast()) }
            }
        }
    }

    /// Asks for a device's properties, those of on-demand paging among them:
    /// [ibv_query_device_ex(3)](https://man7.org/linux/man-pages/man3/ibv_query_device_ex.3.html). 0 or an errno. What an older library does not
    /// tell is 0.
    ///
    /// # Safety
    ///
    /// `context` is open; `input` is null or can be read; `attr` may be written.
    pub unsafe fn ibv_query_device_ex(
        &self,
        context: *mut ibv_context,
        input: *const ibv_query_device_ex_input,
        attr: *mut ibv_device_attr_ex,
    ) -> c_int {
        // SAFETY: the caller says that it is null, or can be read.
        if unsafe { input.as_ref() }.is_some_and(|input| input.comp_mask != 0) {
            return libc::EINVAL;
        }
        // SAFETY: the caller says that it is open; the macro names field and type.
        if let Some(query) = unsafe { verbs_get_ctx_op!(context, query_device_ex) } {
            // SAFETY: the caller keeps to what the function asks for; the size is that of the structure.
            let answer = unsafe { query(context, input, attr, size_of::<ibv_device_attr_ex>()) };
            if answer != libc::EOPNOTSUPP && answer != libc::ENOSYS {
                return answer;
            }
        }
        // SAFETY: the caller says that it may be written.
        unsafe { attr.write(ibv_device_attr_ex::default()) };
        // SAFETY: as above.
        let plain = unsafe { &raw mut (*attr).orig_attr };
        // SAFETY: the context is open, and this part of the structure may be written.
        unsafe { self.ibv_query_device(context, plain) }
    }

    /// Registers memory: [ibv_reg_mr(3)](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html). `access` are [`ibv_access_flags`]. Null and
    /// errno, if it fails. Optional flags ([`IBV_ACCESS_OPTIONAL_RANGE`]) are left out where the library has no function for them.
    ///
    /// # Safety
    ///
    /// `pd` is open. The memory is there, or `access` has `IBV_ACCESS_ON_DEMAND`; what the device does to it until it is deregistered is the caller's
    /// business.
    pub unsafe fn ibv_reg_mr(
        &self,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        access: ibv_access_flags,
    ) -> *mut ibv_mr {
        let access = access.0;
        if access & IBV_ACCESS_OPTIONAL_RANGE != 0 {
            // SAFETY: the caller keeps to what the function asks for.
            let answer = unsafe { self.ibv_reg_mr_iova2(pd, addr, length, addr.addr() as u64, access) };
            if let Some(mr) = answer {
                return mr;
            }
        }
        let access = (access & !IBV_ACCESS_OPTIONAL_RANGE).cast_signed();
        // SAFETY: the caller keeps to what the function asks for.
        unsafe { (self.ibv_reg_mr)(pd, addr, length, access) }
    }

    /// Asks for an entry of a port's table of GIDs, and its type:
    /// [ibv_query_gid_ex(3)](https://man7.org/linux/man-pages/man3/ibv_query_gid_ex.3.html). 0 or an errno: `EOPNOTSUPP`, where the library is too old.
    ///
    /// # Safety
    ///
    /// `context` is open; `entry` may be written.
    pub unsafe fn ibv_query_gid_ex(
        &self,
        context: *mut ibv_context,
        port_num: u32,
        gid_index: u32,
        entry: *mut ibv_gid_entry,
    ) -> c_int {
        const SIZE: usize = size_of::<ibv_gid_entry>();
        // SAFETY: the caller keeps to what the function asks for; there are no flags; the size is that of the structure.
        let answer = unsafe { self._ibv_query_gid_ex(context, port_num, gid_index, entry, 0, SIZE) };
        answer.unwrap_or(libc::EOPNOTSUPP)
    }
}

#[cfg(test)]
mod tests {
    use core::ptr;

    use super::*;

    unsafe extern "C" fn query_port(
        _: *mut ibv_context,
        port: u8,
        _: *mut ibv_port_attr,
        size: usize,
    ) -> c_int {
        assert_eq!(size, size_of::<ibv_port_attr>());
        c_int::from(port)
    }

    /// A context of which `sz` says that so many bytes are there.
    fn context(sz: usize, abi_compat: usize) -> Box<verbs_context> {
        // SAFETY: function pointers that are none, integers, null pointers, and a mutex: all may be 0.
        let mut whole: Box<verbs_context> = unsafe { Box::new(core::mem::zeroed()) };
        whole.query_port = Some(query_port);
        whole.sz = sz;
        whole.context.abi_compat = ptr::without_provenance_mut(abi_compat);
        whole
    }

    /// What is found of `query_port`, the frontmost field.
    fn found(whole: &mut verbs_context) -> Option<c_int> {
        let context = (&raw mut *whole).wrapping_byte_add(offset_of!(verbs_context, context));
        // SAFETY: the context of a `verbs_context`.
        let query = unsafe { verbs_get_ctx_op!(context.cast(), query_port) }?;
        // SAFETY: the function above.
        Some(unsafe { query(context.cast(), 7, ptr::null_mut(), size_of::<ibv_port_attr>()) })
    }

    #[test]
    fn fields_are_found_where_the_size_covers_them() {
        let size = size_of::<verbs_context>();
        assert_eq!(found(&mut context(size, EXTENDED)), Some(7));
        assert_eq!(found(&mut context(size + 64, EXTENDED)), Some(7), "a newer library");
        assert_eq!(found(&mut context(size - 1, EXTENDED)), None, "an older library");
        assert_eq!(found(&mut context(size, 0)), None, "an ancient library");
        let mut none = context(size, EXTENDED);
        none.query_port = None;
        assert_eq!(found(&mut none), None, "a provider without it");
    }

    #[test]
    fn providers_without_a_function_are_answered_for() {
        let mut whole = context(0, 0);
        // SAFETY: integers, null pointers and a mutex: all may be 0.
        let mut cq: Box<ibv_cq> = unsafe { Box::new(core::mem::zeroed()) };
        cq.context = &raw mut whole.context;
        // SAFETY: a queue whose context has no functions.
        assert!(unsafe { ibv_poll_cq(&raw mut *cq, 0, ptr::null_mut()) } < 0);
        // SAFETY: as above.
        assert_eq!(unsafe { ibv_req_notify_cq(&raw mut *cq, 0) }, libc::EOPNOTSUPP);
    }
}
