//! `cargo xtask rxe`: tests of RDMA on the kernel's Soft-RoCE (`rdma_rxe`), in a small virtual machine.
//!
//! Nothing is installed on this machine and no root is needed: Debian's packages of qemu, of a kernel and of what the guest wants are
//! downloaded from the mirror the machine has been set up with, and unpacked under `target/rxe`. What is there is not asked for
//! again; to have newer packages, remove the directory.
//!
//! | file | subject |
//! |---|---|
//! | `apt` | Debian's packages, by a configuration of apt of our own |
//! | `tools` | the programs and libraries this takes, unpacked where the machine has none |
//! | `kernel` | a kernel as qemu starts it |
//! | `modules` | which kernel modules, in which order |
//! | `guest` | the tests and the guest's first program |
//! | `initramfs`, `cpio` | the guest's files |
//! | `boot` | running the guest, and what its end means |

mod apt;
mod boot;
mod cpio;
mod guest;
mod initramfs;
mod kernel;
mod modules;
mod tools;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::command::{self, Env};
use crate::results;

/// Why the guest could not be asked.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// This machine has not what it takes: a reason to skip. In words, with what would let it run.
    Lacking(String),
    /// Something that should have worked.
    Failed(String),
}

impl Trouble {
    /// Of a file or directory.
    fn file(path: &Path, error: impl fmt::Display) -> Self {
        Self::Failed(format!("{}: {error}", path.display()))
    }
}

/// What the command line asks for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) kernel: kernel::Choice,
    /// Only tests whose names contain this.
    pub(crate) filter: Option<String>,
    /// A shell instead of the tests.
    pub(crate) shell: bool,
}

impl Options {
    pub(crate) fn parse(args: &[&str]) -> Result<Self, String> {
        let mut options = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match *arg {
                "--kernel" => {
                    let name = *args.next().ok_or("--kernel needs new or 6.1")?;
                    options.kernel =
                        kernel::Choice::of(name).ok_or(format!("no kernel {name:?}: new or 6.1"))?;
                }
                "--filter" => {
                    let text = *args.next().ok_or("--filter needs a part of a test's name")?;
                    if text.is_empty() || !text.chars().all(|c| c.is_alphanumeric() || "_:".contains(c)) {
                        return Err(format!("{text:?} is no part of a test's name"));
                    }
                    options.filter = Some(text.to_owned());
                }
                "--shell" => options.shell = true,
                other => return Err(format!("unknown option {other:?}")),
            }
        }
        Ok(options)
    }
}

/// Runs the tests and says how it went. A machine that cannot is no failure of the tests: it exits with 77 and says why in its last line.
pub(crate) fn main(root: &Path, options: &Options) -> ExitCode {
    match run(&Env::new(root), options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(Trouble::Lacking(why)) => {
            println!("{why}");
            ExitCode::from(command::LACKING)
        }
        Err(Trouble::Failed(why)) => {
            println!("rxe: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(env: &Env, options: &Options) -> Result<bool, Trouble> {
    if !env.host.starts_with("x86_64-") {
        let why = format!("this is {}, and the guest an x86_64 — run it on x86_64", env.host);
        return Err(Trouble::Lacking(why));
    }
    let dir = env.target.join("rxe");
    std::fs::create_dir_all(&dir).map_err(|error| Trouble::file(&dir, error))?;
    let mut clock = Clock(Instant::now());
    let apt = apt::Apt::new(&dir);
    let tools = tools::Tools::get(&apt, &dir)?;
    clock.print("tools");
    let kernel = kernel::get(&apt, &tools, &dir, options.kernel)?;
    clock.print(&format!("Linux {}", kernel.release));
    let tests = if options.shell { Vec::new() } else { guest::build_tests(env, &dir)? };
    clock.print(&format!("{} test binaries", tests.len()));
    let image: PathBuf = dir.join("initramfs");
    let size = initramfs::write(&image, &tools, &kernel, &tests, &guest::init(options))?;
    clock.print(&format!("initramfs of {} MB", size / 1_000_000));
    let machine = boot::Machine { tools: &tools, kernel: &kernel.elf, initramfs: &image };
    if options.shell {
        return boot::interactive(&machine);
    }
    let secs = guest::TEST_BOUND * tests.len() as u64;
    let ended = boot::run(&machine, secs, &dir.join("guest.log"))?;
    clock.print("guest");
    let verdict = boot::verdict(ended.code, &ended.output, tests.len());
    let counted = results::of_cargo_test(&ended.output, verdict.is_ok());
    if verdict.is_err() || counted.failed > 0 {
        boot::print_tail(&ended.output);
        println!("rxe: all of it: {}", dir.join("guest.log").display());
    }
    if let Err(why) = &verdict {
        println!("rxe: {why}{}", if ended.how.is_empty() { "" } else { "; qemu: " }.to_owned() + &ended.how);
    }
    for failure in &counted.failures {
        println!("rxe: failed: {failure}");
    }
    println!("rxe: {} passed, {} failed, {} skipped", counted.passed, counted.failed, counted.skips.len());
    Ok(verdict.is_ok() && counted.failed == 0)
}

/// Says how long each part has taken.
struct Clock(Instant);

impl Clock {
    fn print(&mut self, what: &str) {
        println!("rxe: {what}: {:.1} s", self.0.elapsed().as_secs_f64());
        self.0 = Instant::now();
    }
}

/// The point in time that many seconds from now.
fn within(secs: u64) -> Instant {
    Instant::now() + Duration::from_secs(secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options() {
        let options = Options::parse(&["--kernel", "6.1", "--filter", "port::is_active"]).unwrap();
        assert_eq!(options.kernel, kernel::Choice::Old);
        assert_eq!(options.filter.as_deref(), Some("port::is_active"));
        assert_eq!(Options::parse(&[]).unwrap(), Options::default());
        for bad in [&["--kernel"][..], &["--kernel", "5"], &["--filter", "a; b"], &["--filter", ""], &["-x"]]
        {
            assert!(Options::parse(bad).is_err(), "{bad:?}");
        }
    }
}
