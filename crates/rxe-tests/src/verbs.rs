//! libibverbs, loaded when the test runs, by its name.
//!
//! # Safety
//! The functions are called with the types that `infiniband/verbs.h` declares for them, within the life of the library: it is never
//! unloaded. A list of devices is read up to the count that came with it, and freed once.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;

/// `struct ibv_device`, of which only pointers are used.
#[repr(C)]
struct Device {
    _opaque: [u8; 0],
}

type GetDeviceList = unsafe extern "C" fn(*mut c_int) -> *mut *mut Device;
type GetDeviceName = unsafe extern "C" fn(*mut Device) -> *const c_char;
type FreeDeviceList = unsafe extern "C" fn(*mut *mut Device);

/// The address of a function of the library.
fn symbol(library: *mut c_void, name: &str) -> Result<*mut c_void, String> {
    let text = CString::new(name).map_err(|error| error.to_string())?;
    // SAFETY: dlsym(3): the library is open, the name ends with a zero.
    let address = unsafe { libc::dlsym(library, text.as_ptr()) };
    if address.is_null() { Err(format!("libibverbs.so.1 has no {name}")) } else { Ok(address) }
}

/// The names of all devices the library sees.
///
/// # Errors
/// In words, when there is no library, or one without these functions, or it answers with no list.
pub fn devices() -> Result<Vec<String>, String> {
    // SAFETY: dlopen(3): the name ends with a zero; the library's constructors are those of a library that programs link with.
    let library = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        return Err("no libibverbs.so.1".to_owned());
    }
    let get = symbol(library, "ibv_get_device_list")?;
    // SAFETY: ibv_get_device_list(3) has this type.
    let get = unsafe { std::mem::transmute::<*mut c_void, GetDeviceList>(get) };
    let name = symbol(library, "ibv_get_device_name")?;
    // SAFETY: ibv_get_device_name(3) has this type.
    let name = unsafe { std::mem::transmute::<*mut c_void, GetDeviceName>(name) };
    let free = symbol(library, "ibv_free_device_list")?;
    // SAFETY: ibv_free_device_list(3) has this type.
    let free = unsafe { std::mem::transmute::<*mut c_void, FreeDeviceList>(free) };

    let mut count = 0;
    // SAFETY: ibv_get_device_list(3) writes the count, and returns an array of so many pointers or null.
    let list = unsafe { get(ptr::from_mut(&mut count)) };
    if list.is_null() {
        return Err(format!("ibv_get_device_list: {}", std::io::Error::last_os_error()));
    }
    let mut names = Vec::new();
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the array has `count` pointers.
        let device = unsafe { list.add(at) };
        // SAFETY: as above; it is aligned, as the library has made it for pointers.
        let device = unsafe { device.read() };
        // SAFETY: ibv_get_device_name(3): the device is of a list that is not freed yet.
        let text = unsafe { name(device) };
        // SAFETY: the name ends with a zero and lives as long as the device, which outlives this loop.
        let text = unsafe { CStr::from_ptr(text) };
        names.push(text.to_string_lossy().into_owned());
    }
    // SAFETY: ibv_free_device_list(3): the list is freed once, and used no more.
    unsafe { free(list) };
    Ok(names)
}
