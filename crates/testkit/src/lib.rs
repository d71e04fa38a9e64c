//! Test support for rucx.
//!
//! What rucx promises is promised between processes, so its integration tests run real ones. A test binary sets
//! `harness = false` and hands its roles and its tests to [`main!`]; started again as a role, the same binary runs that role.
//!
//! ```mermaid
//! sequenceDiagram
//!     participant T as test (libtest-mimic)
//!     participant H as role "host" (the same binary)
//!     T->>H: Role::spawn("host"): clone, exec, nothing inherited
//!     H-->>T: role::send(handle)
//!     T->>H: child.send(b"go")
//!     T->>H: child.kill() / stop() / cont()
//!     T->>T: the watchdog bounds it all
//! ```
//!
//! ```no_run
//! use testkit::{Role, role};
//!
//! fn host() {
//!     role::send(b"a handle");
//!     assert_eq!(role::recv(), b"go");
//! }
//!
//! fn a_host_answers() {
//!     let mut host = Role::spawn("host");
//!     assert_eq!(host.recv(), b"a handle");
//!     host.send(b"go");
//!     host.expect_exit(0);
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     testkit::main! { roles: [host], tests: [a_host_answers => .secs(30)] }
//! }
//! ```
//!
//! Clippy knows such a file's functions as no tests: let it start with
//! `#![allow(clippy::unwrap_used, clippy::missing_panics_doc)] // tests`.
//!
//! | module | subject |
//! |---|---|
//! | [`harness`] | [`main!`], [`Test`], [`skip`], [`expect_panic`] |
//! | [`child`] | [`Role`] and [`Child`]: the test's side of a role |
//! | [`role`] | the role's side |
//! | [`watchdog`] | every test has a bound |
//! | [`golden`] | golden vectors of the workspace |
//! | [`guard`] | buffers that end at a guard page, canaries |
//! | [`limits`] | resource limits, dropping root |
//! | [`deny`](mod@deny) | system calls refused, as by a container's profile |
//! | [`forked`] | children of a plain fork |
//! | [`alloc`] | counting allocations |
//! | [`census`] | descriptors, mappings, names left behind |
//! | [`seed`](mod@seed) | reproducible randomness |

#![deny(unsafe_code)]
// A test's output is for the person who runs it.
#![allow(clippy::print_stdout, clippy::print_stderr)]

pub mod alloc;
pub mod census;
pub mod child;
pub mod deny;
pub mod forked;
mod frame;
pub mod golden;
pub mod guard;
pub mod harness;
pub mod limits;
pub mod role;
pub mod seed;
mod sys;
pub mod watchdog;

pub use alloc::{CountingAlloc, count_allocs};
pub use census::{leaves_nothing, mappings, open_fds};
pub use child::{Child, Exit, RecvError, Role};
pub use deny::{Deny, Filter, deny};
pub use forked::{Forked, in_child, in_plain_child};
pub use guard::{Canary, GuardedBuf, assert_writes_exactly};
pub use harness::{RoleFn, Test, expect_panic, main, skip};
pub use limits::{drop_to_uid, is_root, with_rlimit};
pub use rustix::process::{Resource, Signal};
pub use seed::{Rng, seed};
