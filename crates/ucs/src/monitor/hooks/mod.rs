//! The C library's memory calls announce themselves: before they are made, and until they are over.
//!
//! The C library makes each system call in a few instructions, which begin with one that names the call (`mov $11, %eax` for
//! `munmap`). That one instruction is replaced by a jump to code of ours, which opens a [window](super::Monitor::begin), makes the
//! call, waits until the kernel's event of it is applied, and closes the window. So everything that goes through the C library is
//! announced, also what it does by itself, for `free` or for the stacks of threads. What makes system calls by itself is not; the
//! events of userfaultfd tell when that happens ([`super::Monitor::announces`]).
//!
//! It is done once for the process, and never undone: a thread may be in the code at any time. A function that does not look as expected
//! is left alone.
//!
//! | file | subject |
//! |---|---|
//! | `stub.rs` | finding the instruction |
//! | `patch.rs` | code near the C library's; replacing the instruction |
//! | `call.rs` | what happens instead of the call |

mod call;
mod patch;
mod stub;

use std::ffi::CStr;
use std::sync::OnceLock;

use super::HookError;
use crate::sync::AtomicU64;

/// A function of the C library.
#[derive(Debug)]
struct Function {
    name: &'static CStr,
    /// The number of its system call.
    number: u32,
    /// Whether all is for nothing without it.
    needed: bool,
}

const fn function(name: &'static CStr, number: libc::c_long, needed: bool) -> Function {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // numbers of system calls are small
    let number = number as u32;
    Function { name, number, needed }
}

/// Those that are replaced. `mmap` is only where the instruction lies well: what it maps over is told by userfaultfd, and counts as not
/// announced. System V segments are not cached, so nothing need be known of `shmdt`.
const FUNCTIONS: [Function; 7] = [
    function(c"munmap", libc::SYS_munmap, true),
    function(c"madvise", libc::SYS_madvise, true),
    function(c"mremap", libc::SYS_mremap, true),
    function(c"brk", libc::SYS_brk, true),
    function(c"shmat", libc::SYS_shmat, true),
    function(c"process_madvise", libc::SYS_process_madvise, false),
    function(c"mmap", libc::SYS_mmap, false),
];

/// How often each function was called since.
static CALLS: [AtomicU64; FUNCTIONS.len()] = [const { AtomicU64::new(0) }; FUNCTIONS.len()];

/// Sees to it that the calls are announced: by the first that asks, for ever.
pub(super) fn install() -> Result<(), HookError> {
    static INSTALLED: OnceLock<Result<(), HookError>> = OnceLock::new();
    *INSTALLED.get_or_init(|| {
        patch::replace(&FUNCTIONS, call::entry_address())?;
        call::prove()
    })
}
