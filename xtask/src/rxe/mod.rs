//! `cargo xtask rxe`: tests of RDMA on the kernel's Soft-RoCE (`rdma_rxe`), in a small virtual machine.
//!
//! Nothing is installed on this machine and no root is needed: Debian's packages of qemu, of a kernel and of what the guest wants are
//! downloaded from the mirror the machine has been set up with, and unpacked under `target/rxe`. What is there is not asked for
//! again, but with `--renew`.
//!
//! | file | subject |
//! |---|---|
//! | `apt` | Debian's packages, by a configuration of apt of our own |
//! | `tools` | the programs and libraries this takes, unpacked where the machine has none |
//! | `kernel` | a kernel as qemu starts it |
//! | `modules` | which kernel modules, in which order |
//! | `rows` | the tests: add rows there |
//! | `guest` | the guest's first program |
//! | `guests` | one guest, or two that have a cable between them |
//! | `initramfs`, `cpio` | the guest's files |
//! | `boot` | running the guest, and what its end means |

mod apt;
mod boot;
mod cpio;
mod guest;
mod guests;
mod initramfs;
mod kernel;
mod modules;
mod rows;
mod tools;

use std::fmt;
use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use crate::command::{self, Env};
use guests::Guests;
use rows::{ROWS, Row, Setting};

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
    /// Only the tests of this binary, by its name for cargo.
    pub(crate) test: Option<String>,
    /// The newest packages, whatever is there.
    pub(crate) renew: bool,
    /// A shell instead of the tests.
    pub(crate) shell: bool,
    /// Only tests between two hosts, and where those are.
    pub(crate) two_hosts: Option<TwoHosts>,
}

/// Where two hosts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TwoHosts {
    /// In network namespaces of one guest.
    Namespaces,
    /// In two guests.
    Guests,
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
                "--test" => {
                    let name = *args.next().ok_or("--test needs the name of a test")?;
                    if ROWS.iter().all(|row| row.test() != name) {
                        let mut names: Vec<_> = ROWS.iter().map(Row::test).collect();
                        names.dedup();
                        return Err(format!("no test {name:?}: {}", names.join(", ")));
                    }
                    options.test = Some(name.to_owned());
                }
                "--renew" => options.renew = true,
                "--shell" => options.shell = true,
                "--two-hosts" => {
                    options.two_hosts = Some(match args.next() {
                        Some(&"netns") => TwoHosts::Namespaces,
                        Some(&"vm") => TwoHosts::Guests,
                        _ => return Err("--two-hosts needs netns or vm".to_owned()),
                    });
                }
                other => return Err(format!("unknown option {other:?}")),
            }
        }
        match options.two_hosts {
            Some(_) if options.shell => Err("--shell is for one host".to_owned()),
            _ => Ok(options),
        }
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

/// Has this directory to itself as long as what it returns lives: another run in it is waited for.
fn lock(dir: &Path) -> Result<File, Trouble> {
    let path = dir.join("lock");
    std::fs::create_dir_all(dir).map_err(|error| Trouble::file(dir, error))?;
    let file = File::create(&path).map_err(|error| Trouble::file(&path, error))?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        println!("rxe: another run is in {}: its end is waited for", dir.display());
        flock(&file, FlockOperation::LockExclusive).map_err(|error| Trouble::file(&path, error))?;
    }
    Ok(file)
}

/// Removes what has been downloaded.
fn renew(dir: &Path) -> Result<(), Trouble> {
    for name in ["apt", "packages", "tools", "kernels"] {
        let path = dir.join(name);
        match std::fs::remove_dir_all(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(Trouble::file(&path, error)),
            _ => {}
        }
    }
    Ok(())
}

fn run(env: &Env, options: &Options) -> Result<bool, Trouble> {
    if !env.host.starts_with("x86_64-") {
        let why = format!("this is {}, and the guest an x86_64 — run it on x86_64", env.host);
        return Err(Trouble::Lacking(why));
    }
    let dir = env.target.join("rxe");
    let _lock = lock(&dir)?;
    if options.renew {
        renew(&dir)?;
    }
    let mut clock = Clock(Instant::now());
    let apt = apt::Apt::new(&dir);
    let tools = tools::Tools::get(&apt, &dir)?;
    clock.print("tools");
    let kernel = kernel::get(&apt, &tools, &dir, options.kernel)?;
    clock.print(&format!("Linux {}", kernel.release));
    let rows = ROWS.iter().filter(|row| match options.two_hosts {
        None => true,
        Some(TwoHosts::Namespaces) => row.setting >= Setting::TwoHosts,
        Some(TwoHosts::Guests) => row.setting == Setting::TwoHosts,
    });
    let rows = rows.filter(|row| options.test.as_ref().is_none_or(|name| row.test() == name));
    let tests = if options.shell { Vec::new() } else { rows::build(env, &dir, rows)? };
    clock.print(&format!("{} test binaries", tests.len()));
    let guests = Guests { tools: &tools, kernel: &kernel, tests: &tests, options, dir: &dir };
    let results = match options.two_hosts {
        Some(TwoHosts::Guests) => guests.run_two()?,
        _ => guests.run_one()?,
    };
    clock.print("guest");
    if !results.failures.is_empty() {
        println!("\nfailures:\n    {}\n", results.failures.join("\n    "));
    }
    println!("rxe: {} passed, {} failed, {} skipped", results.passed, results.failed, results.skips.len());
    Ok(results.failed == 0)
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
    fn one_run_waits_for_the_other() {
        let dir = std::env::temp_dir().join(format!("rxe-lock-{}", std::process::id()));
        let first = lock(&dir).unwrap();
        let (begin, there) = (Instant::now(), dir.clone());
        let second = std::thread::spawn(move || lock(&there).map(|_| begin.elapsed()));
        std::thread::sleep(Duration::from_millis(50));
        drop(first);
        assert!(second.join().unwrap().unwrap() >= Duration::from_millis(50));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn what_was_downloaded_goes_and_nothing_else() {
        let dir = std::env::temp_dir().join(format!("rxe-renew-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("kernels/x")).unwrap();
        std::fs::write(dir.join("guest.log"), "").unwrap();
        renew(&dir).unwrap();
        assert!(!dir.join("kernels").exists() && dir.join("guest.log").exists());
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn options() {
        let options = Options::parse(&["--kernel", "6.1", "--filter", "port::is_active"]).unwrap();
        assert_eq!(options.kernel, kernel::Choice::Old);
        assert_eq!(options.filter.as_deref(), Some("port::is_active"));
        assert_eq!(Options::parse(&[]).unwrap(), Options::default());
        let test = Options::parse(&["--test", "workers", "--renew"]).unwrap();
        assert!(test.renew && test.test.as_deref() == Some("workers"));
        assert!(Options::parse(&["--test", "worker"]).unwrap_err().contains("device, rxe, verbs"));
        let two = |name| Options::parse(&["--two-hosts", name]).unwrap().two_hosts;
        assert_eq!([two("netns"), two("vm")], [TwoHosts::Namespaces, TwoHosts::Guests].map(Some));
        assert!(Options::parse(&["--two-hosts"]).is_err());
        assert!(Options::parse(&["--two-hosts", "vm", "--shell"]).is_err());
        for bad in [
            &["--kernel"][..],
            &["--kernel", "5"],
            &["--filter", "a; b"],
            &["--test"],
            &["--filter", ""],
            &["-x"],
        ] {
            assert!(Options::parse(bad).is_err(), "{bad:?}");
        }
    }
}
