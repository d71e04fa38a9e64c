//! The steps of `cargo xtask test`, in order. Another check is another row; another run of a sanitizer or of a model checker is
//! another row of its table.
//!
//! In arguments and variables `{host}` stands for this machine's target triple, `{root}` for the workspace, `{target}` for
//! cargo's target directory.

/// One step.
#[derive(Debug)]
pub(crate) struct Step {
    /// For `--step`, the log's file name and the summary.
    pub(crate) name: &'static str,
    /// What it shows, in a line.
    pub(crate) about: &'static str,
    /// Left out by `--fast`.
    pub(crate) slow: bool,
    /// Minutes after which it is killed and has failed.
    pub(crate) minutes: u64,
    pub(crate) action: Action,
}

/// What a step does.
#[derive(Debug)]
pub(crate) enum Action {
    /// The checks of [`crate::tidy`].
    Tidy,
    /// A command that says by its exit status whether the step has passed, or by 77 that the system has not what it needs. One that
    /// `prints` must say something, too.
    Command { argv: &'static [&'static str], env: &'static [(&'static str, &'static str)], prints: bool },
    /// `cargo test`, or what prints its results, once per row, whose arguments follow `argv`. Each row must run at least one test, or
    /// say by 77 that the system has not what it needs.
    Tests {
        argv: &'static [&'static str],
        rows: &'static [&'static [&'static str]],
        env: &'static [(&'static str, &'static str)],
    },
    /// The same runs, with a protection switched off: each row must fail, and say `says`. Else the step they guard proves nothing.
    Guards {
        argv: &'static [&'static str],
        rows: &'static [&'static [&'static str]],
        env: &'static [(&'static str, &'static str)],
        says: &'static str,
    },
    /// Builds with `argv`, then runs the first program with its output piped into the second's input. Both must exit with 0.
    Pipe { argv: &'static [&'static str], from: &'static str, into: &'static str },
}

/// Tests with the feature `hooks`: what calls of the C library go through then.
const HOOKS: &[&[&str]] = &[
    &["-p", "ucs", "--features", "hooks", "--lib", "monitor::"],
    &["-p", "uct-conformance", "--features", "hooks", "--test", "rcache"],
];

/// Models checked by loom.
const LOOM: &[&[&str]] = &[&["-p", "ucs", "-p", "uct", "--lib", "loom"]];

/// Tests under the thread sanitizer: code whose races a test can provoke.
const TSAN: &[&[&str]] = &[
    &["-p", "ucs", "--lib", "mem::"],
    &["-p", "ucs", "--lib", "rcache::index"],
    // The sanitizer has no threads in a fork's child.
    &["-p", "ucs", "--lib", "rcache::tests", "--", "--skip", "forks"],
    &["-p", "uct", "--lib", "export::"],
    &["-p", "uct", "--lib", "ring::"],
    &["-p", "uct", "--lib", "memory::pipeline"],
    // The sanitizer sees no order in the channels of std.
    &[
        "-p",
        "ucp",
        "--test",
        "workers",
        "--",
        "--skip",
        "remote::",
        "--skip",
        "sleepers_",
        "--skip",
        "waiting::",
    ],
];

/// Those that race when `RUCX_TSAN_GUARD` takes their atomics away.
const TSAN_GUARDS: &[&[&str]] = &[&["-p", "ucs", "--lib", "mem::copy"]];

/// -R: the sanitizer's shadow memory does not go with every random layout.
const TSAN_ARGV: &[&str] = &["setarch", "-R", "cargo", "test", "--locked", "--target", "{host}"];

const TSAN_ENV: [(&str, &str); 4] = [
    // The sanitizers are unstable options of the stable compiler.
    ("RUSTC_BOOTSTRAP", "1"),
    ("RUSTFLAGS", "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer --cfg rucx_sanitizer"),
    ("TSAN_OPTIONS", "suppressions={root}/ci/tsan.supp halt_on_error=1"),
    ("CARGO_TARGET_DIR", "{target}/tsan"),
];

/// Tests under the address sanitizer: all of the two lower layers, and their transports between real processes; and one of tests, which
/// registers operands.
const ASAN: &[&[&str]] = &[
    &["-p", "ucs", "-p", "uct", "--lib", "--tests"],
    &[
        "-p",
        "uct-conformance",
        "--test",
        "self_",
        "--test",
        "shm",
        "--test",
        "shm_proc",
        "--test",
        "cma",
        "--test",
        "nic_transport",
    ],
    // Endpoints and workers go in all orders, with operations in flight.
    &["-p", "ucp", "--test", "workers", "--test", "peers"],
];

/// One that writes beyond the end of a vector when `RUCX_ASAN_GUARD` says so.
const ASAN_GUARDS: &[&[&str]] = &[&["-p", "ucs", "--lib", "mem::copy"]];

const ASAN_ARGV: &[&str] = &["cargo", "test", "--locked", "--target", "{host}"];

const ASAN_ENV: [(&str, &str); 5] = [
    ("RUSTC_BOOTSTRAP", "1"),
    ("RUSTFLAGS", "-Zsanitizer=address --cfg rucx_sanitizer"),
    ("ASAN_OPTIONS", "halt_on_error=1"),
    ("LSAN_OPTIONS", "suppressions={root}/ci/lsan.supp"),
    ("CARGO_TARGET_DIR", "{target}/asan"),
];

/// An example that is run by itself.
macro_rules! example {
    ($name:literal, $about:literal) => {
        Step {
            name: $name,
            about: $about,
            slow: false,
            minutes: 15,
            action: Action::Command {
                argv: &[
                    "cargo",
                    "run",
                    "--locked",
                    "-q",
                    "--release",
                    "-p",
                    "rucx-examples",
                    "--example",
                    $name,
                ],
                env: &[],
                prints: true,
            },
        }
    };
}

/// The table.
pub(crate) const STEPS: &[Step] = &[
    Step {
        name: "tidy",
        about: "rules no compiler checks: layers, invariants, licences, links",
        slow: false,
        minutes: 5,
        action: Action::Tidy,
    },
    Step {
        name: "fmt",
        about: "rustfmt would change nothing",
        slow: false,
        minutes: 5,
        action: Action::Command { argv: &["cargo", "fmt", "--all", "--check"], env: &[], prints: false },
    },
    Step {
        name: "clippy",
        about: "no lint fires, in any target",
        slow: false,
        minutes: 20,
        action: Action::Command {
            argv: &["cargo", "clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"],
            env: &[],
            prints: false,
        },
    },
    Step {
        name: "clippy-all",
        about: "the same, with all features",
        slow: false,
        minutes: 20,
        action: Action::Command {
            argv: &[
                "cargo",
                "clippy",
                "--locked",
                "--workspace",
                "--all-targets",
                "--all-features",
                "--",
                "-D",
                "warnings",
            ],
            env: &[],
            prints: false,
        },
    },
    Step {
        name: "doc",
        about: "the documentation builds, its links resolve",
        slow: false,
        minutes: 20,
        action: Action::Command {
            argv: &["cargo", "doc", "--locked", "--workspace", "--no-deps"],
            env: &[("RUSTDOCFLAGS", "-D warnings")],
            prints: false,
        },
    },
    Step {
        name: "test",
        about: "unit, integration and documentation tests",
        slow: false,
        minutes: 40,
        action: Action::Tests {
            argv: &["cargo", "test", "--locked", "--workspace", "--no-fail-fast"],
            rows: &[&[]],
            env: &[],
        },
    },
    Step {
        name: "hooks",
        about: "the same of memory monitor and registration cache, with hooks of memory calls",
        slow: false,
        minutes: 20,
        action: Action::Tests { argv: &["cargo", "test", "--locked"], rows: HOOKS, env: &[] },
    },
    Step {
        name: "loom",
        about: "models of the lock-free parts, all interleavings",
        slow: true,
        minutes: 30,
        action: Action::Tests {
            argv: &["cargo", "test", "--locked", "--release"],
            rows: LOOM,
            env: &[("RUSTFLAGS", "--cfg loom"), ("CARGO_TARGET_DIR", "{target}/loom")],
        },
    },
    Step {
        name: "tsan",
        about: "the thread sanitizer sees no race",
        slow: true,
        minutes: 30,
        action: Action::Tests { argv: TSAN_ARGV, rows: TSAN, env: &TSAN_ENV },
    },
    Step {
        name: "tsan-guard",
        about: "the thread sanitizer sees the races of plain copies",
        slow: true,
        minutes: 30,
        action: Action::Guards {
            argv: TSAN_ARGV,
            rows: TSAN_GUARDS,
            env: &[TSAN_ENV[0], TSAN_ENV[1], TSAN_ENV[2], TSAN_ENV[3], ("RUCX_TSAN_GUARD", "1")],
            says: "WARNING: ThreadSanitizer: data race",
        },
    },
    Step {
        name: "asan",
        about: "the address sanitizer sees no access out of place",
        slow: true,
        minutes: 30,
        action: Action::Tests { argv: ASAN_ARGV, rows: ASAN, env: &ASAN_ENV },
    },
    Step {
        name: "asan-guard",
        about: "the address sanitizer sees a copy beyond the end",
        slow: true,
        minutes: 30,
        action: Action::Guards {
            argv: ASAN_ARGV,
            rows: ASAN_GUARDS,
            env: &[ASAN_ENV[0], ASAN_ENV[1], ASAN_ENV[2], ASAN_ENV[3], ASAN_ENV[4], ("RUCX_ASAN_GUARD", "1")],
            says: "ERROR: AddressSanitizer: heap-buffer-overflow",
        },
    },
    Step {
        name: "rxe",
        about: "tests of RDMA, and of what depends on the kernel, pass in a virtual machine with Soft-RoCE",
        slow: true,
        minutes: 40,
        action: Action::Tests {
            argv: &["cargo", "run", "--locked", "-q", "-p", "xtask", "--", "rxe"],
            rows: &[&["--kernel", "new"], &["--kernel", "6.1"]],
            env: &[],
        },
    },
    Step {
        name: "rxe-two",
        about: "bytes go from one virtual machine to another by Soft-RoCE",
        slow: true,
        minutes: 30,
        action: Action::Tests {
            argv: &["cargo", "run", "--locked", "-q", "-p", "xtask", "--", "rxe", "--two-hosts", "vm"],
            rows: &[&["--kernel", "new"]],
            env: &[],
        },
    },
    Step {
        name: "examples",
        about: "the README's two programs, host | dpu",
        slow: false,
        minutes: 15,
        action: Action::Pipe {
            argv: &["cargo", "build", "--locked", "--release", "-p", "rucx-examples", "--examples"],
            from: "{target}/release/examples/host",
            into: "{target}/release/examples/dpu",
        },
    },
    example!("buffers", "the example of owned buffers as operands"),
    example!("hello", "the example of two workers that say hello"),
    example!("rma", "the example of remote memory"),
    example!("am_rpc", "the example of remote procedure calls"),
    example!("dpu_offload", "the example of a DPU between its host's memory and a peer's"),
    example!("tokio_echo", "the example of workers within tokio"),
    Step {
        name: "demo",
        about: "what ./run demo shows works",
        slow: false,
        minutes: 15,
        action: Action::Command {
            argv: &["cargo", "run", "--locked", "-q", "--release", "-p", "rucx-cli", "--", "demo"],
            env: &[],
            prints: true,
        },
    },
    Step {
        name: "offload",
        about: "what ./run demo offload shows works: bytes moved for a host that is stopped",
        slow: false,
        minutes: 15,
        action: Action::Command {
            argv: &["cargo", "run", "--locked", "-q", "--release", "-p", "rucx-cli", "--", "demo", "offload"],
            env: &[],
            prints: true,
        },
    },
    Step {
        name: "torture",
        about: "the registration cache is never wrong, in a minute, and would be without protection",
        slow: true,
        minutes: 15,
        action: Action::Command {
            argv: &[
                "cargo",
                "run",
                "--locked",
                "-q",
                "--release",
                "-p",
                "rucx-cli",
                "--",
                "rcache-torture",
                "--seconds",
                "60",
                "--prove",
                "--quiet",
            ],
            env: &[],
            prints: true,
        },
    },
];

/// Prints the table.
pub(crate) fn list() {
    for step in STEPS {
        println!("{:<10} {}{}", step.name, step.about, if step.slow { " (not with --fast)" } else { "" });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_rows_are_there() {
        for (at, step) in STEPS.iter().enumerate() {
            assert!(STEPS[..at].iter().all(|other| other.name != step.name), "{}", step.name);
            if let Action::Tests { rows, .. } | Action::Guards { rows, .. } = &step.action {
                assert!(!rows.is_empty(), "{} would test nothing", step.name);
            }
        }
    }
}
