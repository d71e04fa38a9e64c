//! The main function of a test binary: roles, tests, bounds and skips.

use std::any::Any;
use std::cell::Cell;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Once;
use std::time::Duration;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use parking_lot::{Mutex, RwLock};

use crate::{role, seed, watchdog};

/// A role: what a process started by [`crate::Role`] runs. It ends the process with 0, or 101 when it panics.
pub type RoleFn = fn();

/// Comma-separated names of tests that may skip where `CI=true` makes a skip a failure. A trailing `*` stands for any ending.
pub const ALLOWED_SKIPS: &str = "RUCX_ALLOWED_SKIPS";

/// A test of [`main`].
pub struct Test {
    name: String,
    bound: Duration,
    alone: bool,
    run: Box<dyn FnOnce() + Send>,
}

impl std::fmt::Debug for Test {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Test")
            .field("name", &self.name)
            .field("bound", &self.bound)
            .field("alone", &self.alone)
            .finish()
    }
}

impl Test {
    /// A test, which fails by panicking.
    pub fn new(name: impl Into<String>, run: impl FnOnce() + Send + 'static) -> Self {
        Self { name: name.into(), bound: watchdog::DEFAULT, alone: false, run: Box::new(run) }
    }

    /// Its bound in seconds. Default: 60.
    #[must_use]
    pub fn secs(mut self, secs: u64) -> Self {
        self.bound = Duration::from_secs(secs);
        self
    }

    /// No other test runs beside it in this process: for tests that count what the process holds.
    #[must_use]
    pub fn alone(mut self) -> Self {
        self.alone = true;
        self
    }

    fn into_trial(self) -> Trial {
        let name = self.name.clone();
        Trial::ignorable_test(name, move || self.execute())
    }

    fn execute(self) -> Result<Completion, Failed> {
        static BESIDE: RwLock<()> = RwLock::new(());
        let (_alone, _beside) =
            if self.alone { (Some(BESIDE.write()), None) } else { (None, Some(BESIDE.read())) };
        let _bound = watchdog::arm(&self.name, self.bound);
        SKIPPING.set(false);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(self.run));
        SKIPPING.set(false);
        let Err(payload) = result else { return Ok(Completion::Completed) };
        match payload.downcast::<Skipped>() {
            Ok(skipped) => skipped.report(&self.name),
            Err(payload) => {
                let seed = seed::used().map(|seed| format!("\n{}={seed:#x} repeats it", seed::VARIABLE));
                Err(Failed::from(message(payload.as_ref()) + &seed.unwrap_or_default()))
            }
        }
    }
}

/// The text of a panic.
fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without text".to_owned())
}

/// What [`skip`] unwinds with.
#[derive(Debug)]
pub(crate) struct Skipped {
    pub(crate) reason: String,
    remedy: String,
}

impl Skipped {
    fn report(&self, test: &str) -> Result<Completion, Failed> {
        let Self { reason, remedy } = self;
        let in_ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
        if in_ci && !is_listed(test, &std::env::var(ALLOWED_SKIPS).unwrap_or_default()) {
            return Err(Failed::from(format!("skipped, which is a failure in CI: {reason} — {remedy}")));
        }
        SKIPS.lock().push(format!("SKIP {test}: {reason} — {remedy}"));
        Ok(Completion::ignored_with(reason))
    }
}

fn is_listed(test: &str, list: &str) -> bool {
    list.split(',').map(str::trim).filter(|entry| !entry.is_empty()).any(|entry| {
        match entry.strip_suffix('*') {
            Some(start) => test.starts_with(start),
            None => test == entry,
        }
    })
}

static SKIPS: Mutex<Vec<String>> = Mutex::new(Vec::new());
static ROUNDS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Has it said that a role has made fewer rounds, if it has said so itself.
pub(crate) fn note_rounds(role: &str, stderr: &str) {
    let fewer = stderr.lines().filter_map(|line| line.strip_prefix(role::ROUNDS));
    ROUNDS.lock().extend(fewer.map(|rounds| format!("{role}: {rounds} rounds")));
}

thread_local! {
    static SKIPPING: Cell<bool> = const { Cell::new(false) };
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread's unwinding is no failure: a [`skip`], or inside [`expect_panic`].
pub(crate) fn is_quiet() -> bool {
    SKIPPING.get() || QUIET.get()
}

/// Ends this test as skipped: it could not run here because of `reason`; `remedy` is what would let it.
///
/// For tests of [`main`] only, on the test's own thread. Shown as a line `SKIP <test>: <reason> — <remedy>` after the results.
/// With `CI=true` it is a failure, unless the test is listed in `RUCX_ALLOWED_SKIPS`.
pub fn skip(reason: impl Into<String>, remedy: impl Into<String>) -> ! {
    SKIPPING.set(true);
    // Unlike `panic!`, without a message from the panic hook.
    std::panic::resume_unwind(Box::new(Skipped { reason: reason.into(), remedy: remedy.into() }))
}

/// Runs `f`, which must panic, without the panic's usual output, and returns its message.
///
/// # Panics
/// `f` returns.
#[track_caller]
pub fn expect_panic<R>(f: impl FnOnce() -> R) -> String {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                loud(info);
            }
        }));
    });
    let before = QUIET.replace(true);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
    QUIET.set(before);
    match result {
        Err(payload) => message(payload.as_ref()),
        Ok(_) => panic!("this was to panic, and returned"),
    }
}

/// Runs the role this process was started as; else the tests that the command line selects, as `cargo test` passes it.
#[must_use]
pub fn main(roles: &[(&str, RoleFn)], tests: Vec<Test>) -> ExitCode {
    role::run_if_started(roles);
    run(std::env::args(), tests)
}

/// Runs the tests that a command line, its program's name first, selects: [`main`] without roles.
#[must_use]
pub fn run(args: impl IntoIterator<Item = impl Into<OsString> + Clone>, tests: Vec<Test>) -> ExitCode {
    let arguments = Arguments::from_iter(args);
    let conclusion = libtest_mimic::run(&arguments, tests.into_iter().map(Test::into_trial).collect());
    for line in ROUNDS.lock().iter().chain(SKIPS.lock().iter()) {
        println!("{line}");
    }
    conclusion.exit_code()
}

/// The body of a test binary's `main` (`harness = false`): its roles and its tests, by the paths of their functions.
///
/// ```no_run
/// mod puts {
///     pub fn small() {}
///     pub fn huge() {}
/// }
/// fn host() {}
///
/// fn main() -> std::process::ExitCode {
///     testkit::main! { roles: [host], tests: [puts::small, puts::huge => .secs(120).alone()] }
/// }
/// ```
#[macro_export]
macro_rules! main {
    (
        roles: [$($role:path),* $(,)?],
        tests: [$($test:path $(=> $(.$option:ident($($value:expr),*))+)?),* $(,)?] $(,)?
    ) => {
        $crate::main(
            &[$((stringify!($role), $role as $crate::RoleFn)),*],
            vec![$($crate::Test::new(stringify!($test), $test)$($(.$option($($value),*))+)?),*],
        )
    };
}

#[cfg(test)]
mod tests {
    use super::is_listed;

    #[test]
    fn listed_skips() {
        assert!(is_listed("a::b", "x, a::b"));
        assert!(is_listed("a::b", "a::*"));
        assert!(!is_listed("a::b", "a::bc,a"));
        assert!(!is_listed("a::b", ""));
    }
}
