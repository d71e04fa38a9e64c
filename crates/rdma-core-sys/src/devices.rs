//! The devices of this machine.
//!
//! # Safety
//!
//! The list is the library's, with as many devices as it says, until it is given back: once, when the value is dropped.
#![allow(unsafe_code)]

use core::ffi::CStr;
use core::ptr::NonNull;
use core::slice;
use std::io;

use crate::bindings::ibv_device;
use crate::library::Library;
use crate::load::OpenError;

/// Why [`DeviceList::get`] has no list.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DevicesError {
    /// There is a library that cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The library cannot tell which devices there are.
    #[error("ibv_get_device_list: {0}")]
    List(#[source] io::Error),
}

impl DevicesError {
    /// What can be done about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Open(error) => error.remedy(),
            Self::List(_) => {
                "look at /sys/class/infiniband_verbs: the library reads it, or asks the kernel by netlink"
            }
        }
    }
}

/// The devices there were when it was made. A device that was opened stays open when the list is dropped.
#[derive(Debug)]
pub struct DeviceList {
    /// `None`: no devices.
    list: Option<(&'static Library, NonNull<*mut ibv_device>)>,
    len: usize,
}

// SAFETY: the library keeps nothing per thread; what the list holds is only read.
unsafe impl Send for DeviceList {}
// SAFETY: as above.
unsafe impl Sync for DeviceList {}

impl DeviceList {
    /// Asks for the devices. A machine without libibverbs has none, nor has one whose kernel has no RDMA.
    ///
    /// # Errors
    ///
    /// The library is there and cannot be used, or cannot tell.
    pub fn get() -> Result<Self, DevicesError> {
        let library = match Library::open() {
            Ok(library) => library,
            Err(OpenError::Absent) => return Ok(Self { list: None, len: 0 }),
            Err(error) => return Err(error.into()),
        };
        let mut len = 0;
        // SAFETY: it writes one number.
        let list = unsafe { library.ibv_get_device_list(&mut len) };
        match NonNull::new(list) {
            Some(list) => {
                Ok(Self { list: Some((library, list)), len: usize::try_from(len).unwrap_or_default() })
            }
            None => match io::Error::last_os_error() {
                // The kernel has no RDMA.
                error if error.raw_os_error() == Some(libc::ENOSYS) => Ok(Self { list: None, len: 0 }),
                error => Err(DevicesError::List(error)),
            },
        }
    }

    /// The devices, for [`Library::ibv_open_device`]. Not to be used after the list is dropped.
    pub fn devices(&self) -> &[*mut ibv_device] {
        match self.list {
            // SAFETY: the library has made it of this length.
            Some((_, list)) => unsafe { slice::from_raw_parts(list.as_ptr(), self.len) },
            None => &[],
        }
    }

    /// Their names: `mlx5_0`, `rxe0`.
    pub fn names(&self) -> Vec<String> {
        let Some((library, _)) = self.list else { return Vec::new() };
        let name = |device: &*mut ibv_device| {
            // SAFETY: a device of the list, which is not given back yet.
            let name = unsafe { library.ibv_get_device_name(*device) };
            // SAFETY: a string of the device's, which lives as long as the list.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        };
        self.devices().iter().map(name).collect()
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        if let Some((library, list)) = self.list {
            // SAFETY: it is the library's, and not given back yet.
            unsafe { library.ibv_free_device_list(list.as_ptr()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_devices_are_no_error() {
        let list = DeviceList::get().unwrap();
        let class = std::fs::read_dir("/sys/class/infiniband_verbs").into_iter().flatten().flatten();
        let nodes = class.filter(|entry| entry.file_name().to_string_lossy().starts_with("uverbs")).count();
        assert!(list.devices().len() <= nodes, "{} devices, {nodes} nodes", list.devices().len());
        let names = list.names();
        assert_eq!(names.len(), list.devices().len());
        assert!(names.iter().all(|name| !name.is_empty()), "{names:?}");
    }
}
