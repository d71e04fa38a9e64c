//! System calls that answer an error, as under a container's seccomp profile. Changes the whole process for good: use it in roles.

use crate::sys;

/// A system call that is refused, and what it does then.
#[derive(Clone, Copy, Debug)]
pub struct Deny {
    /// Its number: `libc::SYS_…`.
    pub call: libc::c_long,
    /// Only where the first argument is this.
    pub first_argument: Option<u32>,
    /// What it answers; `None`: the process dies (SIGSYS).
    pub errno: Option<i32>,
}

impl Deny {
    /// The call answers EPERM, whatever its arguments.
    #[must_use]
    pub fn eperm(call: libc::c_long) -> Self {
        Self { call, first_argument: None, errno: Some(libc::EPERM) }
    }
}

/// Refuses system calls, in all threads of this process and in what it starts (`seccomp(2)`).
///
/// # Panics
/// The kernel takes no filter.
pub fn deny(calls: &[Deny]) {
    let number = offset_of(std::mem::offset_of!(libc::seccomp_data, nr));
    // The lower half of the first argument, on a little-endian machine.
    let argument = offset_of(std::mem::offset_of!(libc::seccomp_data, args));
    let load = |at| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, at);
    let unless = |value, skip| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, skip, value);
    let answer = |what| step(libc::BPF_RET | libc::BPF_K, 0, 0, what);
    let mut steps = Vec::new();
    for Deny { call, first_argument, errno } in calls {
        let action = match errno {
            Some(errno) => libc::SECCOMP_RET_ERRNO | u32::try_from(*errno).expect("errors are positive"),
            None => libc::SECCOMP_RET_KILL_PROCESS,
        };
        let call = u32::try_from(*call).expect("numbers of system calls are positive");
        steps.push(load(number));
        match first_argument {
            None => steps.extend([unless(call, 1), answer(action)]),
            Some(value) => {
                steps.extend([unless(call, 3), load(argument), unless(*value, 1), answer(action)]);
            }
        }
    }
    steps.push(answer(libc::SECCOMP_RET_ALLOW));
    if let Err(error) = sys::set_filter(&mut steps) {
        panic!("a seccomp filter is needed: {error}");
    }
}

fn offset_of(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("a small struct")
}

fn step(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: u16::try_from(code).expect("an opcode"), jt, jf, k }
}
