//! System calls that answer an error, as under a container's seccomp profile. Changes the whole process for good: use it in roles, or
//! between fork and exec.

use std::io;

use crate::sys;

/// A system call that is refused, and what it does then.
#[derive(Clone, Copy, Debug)]
pub struct Deny {
    /// Its number: `libc::SYS_…`.
    pub call: libc::c_long,
    /// Only where an argument, counted from 0, is this.
    pub argument: Option<(usize, u32)>,
    /// What it answers; `None`: the process dies (SIGSYS).
    pub errno: Option<i32>,
}

impl Deny {
    /// The call answers EPERM, whatever its arguments.
    #[must_use]
    pub fn eperm(call: libc::c_long) -> Self {
        Self { call, argument: None, errno: Some(libc::EPERM) }
    }
}

/// What refuses system calls, made ready beforehand.
#[derive(Clone, Debug)]
pub struct Filter(Vec<libc::sock_filter>);

impl Filter {
    /// A filter that refuses those, and nothing else.
    ///
    /// # Panics
    /// What is to be refused is no system call, or none of its six arguments.
    #[must_use]
    pub fn of(calls: &[Deny]) -> Self {
        let number = offset_of(std::mem::offset_of!(libc::seccomp_data, nr));
        let load = |at| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, at);
        let unless = |value, skip| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, skip, value);
        let answer = |what| step(libc::BPF_RET | libc::BPF_K, 0, 0, what);
        let mut steps = Vec::new();
        for Deny { call, argument, errno } in calls {
            let action = match errno {
                Some(errno) => libc::SECCOMP_RET_ERRNO | u32::try_from(*errno).expect("errors are positive"),
                None => libc::SECCOMP_RET_KILL_PROCESS,
            };
            let call = u32::try_from(*call).expect("numbers of system calls are positive");
            steps.push(load(number));
            match argument {
                None => steps.extend([unless(call, 1), answer(action)]),
                Some((which, value)) => {
                    assert!(*which < 6, "a system call has six arguments");
                    // The lower half, on a little-endian machine.
                    let at = offset_of(std::mem::offset_of!(libc::seccomp_data, args) + 8 * which);
                    steps.extend([unless(call, 3), load(at), unless(*value, 1), answer(action)]);
                }
            }
        }
        steps.push(answer(libc::SECCOMP_RET_ALLOW));
        Self(steps)
    }

    /// Refuses them from now on, in all threads of this process and in what it starts (`seccomp(2)`). Nothing is allocated: it may be
    /// called between fork and exec.
    ///
    /// # Errors
    /// The kernel takes no filter.
    pub fn set(&self) -> io::Result<()> {
        sys::set_filter(&self.0)
    }
}

/// Refuses system calls from now on: [`Filter::set`].
///
/// # Panics
/// The kernel takes no filter.
pub fn deny(calls: &[Deny]) {
    if let Err(error) = Filter::of(calls).set() {
        panic!("a seccomp filter is needed: {error}");
    }
}

fn offset_of(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("a small struct")
}

fn step(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: u16::try_from(code).expect("an opcode"), jt, jf, k }
}
