//! Registering memory of this process in a protection domain of another one, by the command descriptor that it has passed.
//!
//! The kernel refuses `write(2)` to a command descriptor that another process has opened; its ioctl does not, and knows the same
//! commands (`<rdma/ib_user_ioctl_cmds.h>`, UVERBS_METHOD_INVOKE_WRITE).
//!
//! # Safety
//! A request's structures are laid out as the headers named beside them say, and what they point to lives during the call. A command that
//! registers pins pages of *this* process and changes none; what the device does to them afterwards is what exporting memory for writing, or
//! for reading, allows (contract of [`LocalMem`](crate::memory::LocalMem)).

#![allow(unsafe_code)]

use std::ffi::c_ulong;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};

use rdma_core_sys::ibv_access_flags;
use rustix::io::Errno;

/// `struct ib_uverbs_ioctl_hdr`, `<rdma/rdma_user_ioctl_cmds.h>`.
#[repr(C)]
#[derive(Default)]
struct Header {
    length: u16,
    object_id: u16,
    method_id: u16,
    num_attrs: u16,
    reserved1: u64,
    driver_id: u32,
    reserved2: u32,
}

/// `struct ib_uverbs_attr`, there.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Attr {
    attr_id: u16,
    len: u16,
    flags: u16,
    attr_data: u16,
    data: u64,
}

#[repr(C)]
#[derive(Default)]
struct Request {
    header: Header,
    attrs: [Attr; 3],
}

/// A registration in another context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Registered {
    /// The kernel's number of the registration, in the context of the domain.
    pub(super) handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

const _: () = assert!(size_of::<Header>() == 24 && size_of::<Attr>() == 16 && size_of::<Request>() == 72);

/// `RDMA_VERBS_IOCTL`: `_IOWR(0x1b, 1, struct ib_uverbs_ioctl_hdr)`, `<rdma/rdma_user_ioctl_cmds.h>`.
const RDMA_VERBS_IOCTL: c_ulong = 3 << 30 | 24 << 16 | 0x1b << 8 | 1;

/// `enum uverbs_attrs_invoke_write_cmd_attr_ids`, `<rdma/ib_user_ioctl_cmds.h>`.
const CORE_IN: u16 = 0;
const CORE_OUT: u16 = 1;
const WRITE_CMD: u16 = 2;
/// `UVERBS_ATTR_F_MANDATORY`, `<rdma/rdma_user_ioctl_cmds.h>`.
const MANDATORY: u16 = 1;

/// `enum ib_uverbs_write_cmds`, `<rdma/ib_user_verbs.h>`.
const QUERY_DEVICE: u64 = 1;
const REG_MR: u64 = 9;
const DEREG_MR: u64 = 13;

/// More numbers of drivers than there are in `enum rdma_driver_id`, `<rdma/ib_user_ioctl_verbs.h>`.
const DRIVERS: u32 = 64;

/// Has the kernel run `command`.
///
/// # Safety
/// `input` is the structure of that command, in which addresses are of what the command may read or write; `output` is as long as its
/// answer at least.
unsafe fn run(
    fd: BorrowedFd<'_>,
    driver_id: u32,
    command: u64,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Errno> {
    let length = |len: usize| u16::try_from(len).map_err(|_| Errno::INVAL);
    let attr = |attr_id, len, data| Attr { attr_id, len, flags: MANDATORY, attr_data: 0, data };
    // What fits in the attribute stands in it.
    let inline = input.first_chunk::<8>().map_or_else(
        || input.first_chunk::<4>().map_or(0, |bytes| u32::from_ne_bytes(*bytes).into()),
        |bytes| u64::from_ne_bytes(*bytes),
    );
    let data = if input.len() <= 8 { inline } else { input.as_ptr().expose_provenance() as u64 };
    let mut attrs = [attr(WRITE_CMD, 8, command), attr(CORE_IN, length(input.len())?, data), Attr::default()];
    let mut count: u16 = 2;
    if !output.is_empty() {
        attrs[2] = attr(CORE_OUT, length(output.len())?, output.as_mut_ptr().expose_provenance() as u64);
        count = 3;
    }
    let header = Header {
        length: length(size_of::<Header>() + usize::from(count) * size_of::<Attr>())?,
        num_attrs: count,
        driver_id,
        ..Header::default() // UVERBS_OBJECT_DEVICE and UVERBS_METHOD_INVOKE_WRITE are 0
    };
    let mut request = Request { header, attrs };
    // SAFETY: the structure that this ioctl takes; the caller answers for the command.
    match unsafe { libc::ioctl(fd.as_raw_fd(), RDMA_VERBS_IOCTL, &raw mut request) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// The number of the driver behind a command descriptor: the one with which the kernel takes commands.
pub(super) fn driver(fd: BorrowedFd<'_>) -> Option<u32> {
    (0..DRIVERS).find(|driver| {
        let mut answer = [0; 256];
        // SAFETY: `struct ib_uverbs_query_device` is the address of the answer, which the ioctl does not use; the answer has 176 bytes.
        unsafe { run(fd, *driver, QUERY_DEVICE, &[0; 8], &mut answer) }.is_ok()
    })
}

/// Registers memory of this process in domain `pd` of the context behind `fd`.
pub(super) fn register(
    fd: BorrowedFd<'_>,
    driver: u32,
    pd: u32,
    (address, len): (u64, u64),
    access: ibv_access_flags,
) -> Result<Registered, Errno> {
    // `struct ib_uverbs_reg_mr`, `<rdma/ib_user_verbs.h>`: response, start, length, hca_va; pd_handle, access_flags.
    let mut input = [0; 40];
    for (to, word) in input.chunks_exact_mut(8).zip([0, address, len, address]) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    input[32..36].copy_from_slice(&pd.to_ne_bytes());
    input[36..].copy_from_slice(&access.0.to_ne_bytes());
    // `struct ib_uverbs_reg_mr_resp`, there: three words.
    let mut output = [0; 12];
    // SAFETY: the structure of this command; it pins pages (module rule).
    unsafe { run(fd, driver, REG_MR, &input, &mut output) }?;
    let word = |at: usize| output[at..].first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
    Ok(Registered { handle: word(0), lkey: word(4), rkey: word(8) })
}

/// Ends the registration of this number in the context behind `fd`.
pub(super) fn deregister(fd: BorrowedFd<'_>, driver: u32, handle: u32) -> Result<(), Errno> {
    // SAFETY: `struct ib_uverbs_dereg_mr` is the number.
    unsafe { run(fd, driver, DEREG_MR, &handle.to_ne_bytes(), &mut []) }
}
