//! Opening a library at run time, and looking its functions up.
//!
//! # Safety
//!
//! A symbol becomes a function of the type that the header declares under that name, and is asked for in the version of the interface that the
//! declaration belongs to: a library keeps older versions of a name for older programs. It is never closed, so its functions stay. What a function
//! wants of its arguments its caller promises.
#![allow(unsafe_code)]

use core::ffi::{CStr, c_void};
use core::ptr::NonNull;
use std::ffi::CString;
use std::io;

/// Why a library cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no libibverbs: a machine without RDMA.
    #[error("libibverbs.so.1 is not installed")]
    Absent,
    /// It is there, and cannot be loaded.
    #[error("{library} cannot be loaded: {message}")]
    Load {
        /// Its name.
        library: &'static str,
        /// What the dynamic linker says.
        message: String,
    },
    /// It has not a function that this crate needs.
    #[error("{library} has no {name} of version {version}")]
    Symbol {
        /// Its name.
        library: &'static str,
        /// The function.
        name: &'static str,
        /// The version of the interface.
        version: &'static str,
    },
}

impl OpenError {
    /// What can be done about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Absent => "install libibverbs (Debian: libibverbs1, ibverbs-providers) to use RDMA devices",
            Self::Load { .. } => "install what the message names, or install the library anew",
            Self::Symbol { .. } => "install a newer one: that of rdma-core",
        }
    }
}

/// An open library.
#[derive(Debug)]
pub(crate) struct Handle {
    library: NonNull<c_void>,
    soname: &'static CStr,
}

impl Handle {
    /// Opens it for good. `None`: there is none.
    pub(crate) fn open(soname: &'static CStr) -> Result<Option<Self>, OpenError> {
        // dlopen(3). SAFETY: the name is a string, and these libraries' initialisers do nothing but register providers.
        let library = unsafe { libc::dlopen(soname.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        match NonNull::new(library) {
            Some(library) => Ok(Some(Self { library, soname })),
            None => refusal(soname).map_or(Ok(None), Err),
        }
    }

    /// A function that must be there.
    pub(crate) fn needed(
        &self,
        name: &'static str,
        version: &'static str,
    ) -> Result<NonNull<c_void>, OpenError> {
        self.symbol(name, version).ok_or(OpenError::Symbol { library: text(self.soname), name, version })
    }

    /// A function of a version.
    pub(crate) fn symbol(&self, name: &str, version: &str) -> Option<NonNull<c_void>> {
        let name = CString::new(name).ok()?;
        let version = CString::new(version).ok()?;
        // dlvsym(3). SAFETY: an open library, and two strings.
        NonNull::new(unsafe { libc::dlvsym(self.library.as_ptr(), name.as_ptr(), version.as_ptr()) })
    }
}

fn text(soname: &'static CStr) -> &'static str {
    soname.to_str().unwrap_or_default()
}

/// Why dlopen has refused; `None`: there is no such file. The linker tells that in words alone, which depend on the language, and names the file: it
/// may be one that the library needs.
fn refusal(soname: &'static CStr) -> Option<OpenError> {
    // dlerror(3). SAFETY: no arguments.
    let message = unsafe { libc::dlerror() };
    let message = match message.is_null() {
        true => String::new(),
        // SAFETY: a string, this thread's until its next call of the linker.
        false => unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned(),
    };
    let missing = io::Error::from_raw_os_error(libc::ENOENT).to_string();
    let missing = missing.split(" (os error").next().unwrap_or_default();
    let library = text(soname);
    let own = message.starts_with(&format!("{library}: "));
    (!own || !message.ends_with(missing)).then_some(OpenError::Load { library, message })
}

/// A library as the table of its functions: fields, looking them up, and methods to call them.
macro_rules! functions {
    (
        $(#[$attribute:meta])* $library:ident: $soname:literal;
        needed { $($(#[$doc:meta])* $name:ident: $version:literal ($($arg:ident: $type:ty),*) $(-> $ret:ty)?;)* }
        wrapped { $($(#[$wdoc:meta])* $wname:ident: $wversion:literal ($($warg:ident: $wtype:ty),*) -> $wret:ty;)* }
        optional { $($(#[$odoc:meta])* $oname:ident: $oversion:literal ($($oarg:ident: $otype:ty),*) -> $oret:ty;)* }
    ) => {
        $(#[$attribute])*
        ///
        /// There is one a process, which stays. A method is the function of that name; its man page says what it does, wants and answers. Methods may
        /// be called by any thread.
        pub struct $library {
            $($name: unsafe extern "C" fn($($arg: $type),*) $(-> $ret)?,)*
            $($(#[$wdoc])* pub(crate) $wname: unsafe extern "C" fn($($warg: $wtype),*) -> $wret,)*
            $($oname: Option<unsafe extern "C" fn($($oarg: $otype),*) -> $oret>,)*
        }

        impl $library {
            /// Opens it, the first time this is called; the answer does not change. `None`: there is none.
            fn loaded() -> Result<Option<&'static Self>, OpenError> {
                static LIBRARY: OnceLock<Result<Option<$library>, OpenError>> = OnceLock::new();
                let load = || Handle::open($soname)?.map(|handle| Self::look_up(&handle)).transpose();
                LIBRARY.get_or_init(load).as_ref().map(Option::as_ref).map_err(OpenError::clone)
            }

            /// Looks all functions up.
            fn look_up(handle: &Handle) -> Result<Self, OpenError> {
                Ok(Self {
                    $($name: {
                        let symbol = handle.needed(stringify!($name), $version)?;
                        // SAFETY: the library's function of this name and version has this type, and stays where it is.
                        unsafe { transmute::<NonNull<c_void>, unsafe extern "C" fn($($type),*) $(-> $ret)?>(symbol) }
                    },)*
                    $($wname: {
                        let symbol = handle.needed(stringify!($wname), $wversion)?;
                        // SAFETY: as above.
                        unsafe { transmute::<NonNull<c_void>, unsafe extern "C" fn($($wtype),*) -> $wret>(symbol) }
                    },)*
                    $($oname: handle.symbol(stringify!($oname), $oversion).map(|symbol| {
                        // SAFETY: as above.
                        unsafe { transmute::<NonNull<c_void>, unsafe extern "C" fn($($otype),*) -> $oret>(symbol) }
                    }),)*
                })
            }

            $(
                $(#[$doc])*
                ///
                /// # Safety
                ///
                #[doc = concat!("See [`", stringify!($library), "`].")]
                #[inline]
                pub unsafe fn $name(&self, $($arg: $type),*) $(-> $ret)? {
                    // SAFETY: the caller keeps to what the function asks for.
                    unsafe { (self.$name)($($arg),*) }
                }
            )*

            $(
                $(#[$odoc])*
                /// `None`: the library is too old to have it.
                ///
                /// # Safety
                ///
                #[doc = concat!("See [`", stringify!($library), "`].")]
                #[inline]
                pub unsafe fn $oname(&self, $($oarg: $otype),*) -> Option<$oret> {
                    // SAFETY: the caller keeps to what the function asks for.
                    self.$oname.map(|function| unsafe { function($($oarg),*) })
                }
            )*
        }

        impl fmt::Debug for $library {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($library)).field("soname", &$soname).finish_non_exhaustive()
            }
        }
    };
}

pub(crate) use functions;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_none() {
        assert!(Handle::open(c"librucx-has-no-such.so.1").unwrap().is_none());
    }

    #[test]
    fn a_library_that_is_none_is_not_missing() {
        let error = Handle::open(c"/dev/null").unwrap_err();
        assert!(
            matches!(&error, OpenError::Load { message, .. } if message.contains("/dev/null")),
            "{error}"
        );
    }

    #[test]
    fn versions_are_told_apart() {
        let libc = Handle::open(c"libc.so.6").unwrap().unwrap();
        let error = libc.needed("memcpy", "GLIBC_0.0").unwrap_err();
        assert_eq!(error.to_string(), "libc.so.6 has no memcpy of version GLIBC_0.0");
    }
}
