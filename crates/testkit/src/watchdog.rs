//! Every test has a bound: when it is over, the process says what it was doing, kills its children and aborts.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::sys;

/// The bound of a test that names none.
pub const DEFAULT: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Bound {
    id: u64,
    name: String,
    started: Instant,
    deadline: Instant,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    bounds: Vec<Bound>,
    children: Vec<(i32, String)>,
}

static STATE: Mutex<State> = Mutex::new(State { next: 0, bounds: Vec::new(), children: Vec::new() });
static CHANGED: Condvar = Condvar::new();

/// A bound in force: dropped, it is lifted.
#[derive(Debug)]
#[must_use = "dropped at once, it bounds nothing"]
pub struct Guard(u64);

impl Drop for Guard {
    fn drop(&mut self) {
        STATE.lock().bounds.retain(|bound| bound.id != self.0);
    }
}

/// How many times as long everything may take here: `RUCX_TEST_SCALE`, 1 where it is not set. For a machine that is emulated.
#[must_use]
pub fn scale() -> u32 {
    static SCALE: OnceLock<u32> = OnceLock::new();
    let read = || std::env::var("RUCX_TEST_SCALE").ok()?.parse().ok();
    *SCALE.get_or_init(|| read().unwrap_or(1))
}

/// Bounds what follows, until the guard is dropped. [`crate::main!`] does it for its tests; `#[test]` functions and roles may.
///
/// # Panics
/// The watching thread cannot be started.
pub fn arm(name: impl Into<String>, bound: Duration) -> Guard {
    static THREAD: OnceLock<()> = OnceLock::new();
    THREAD.get_or_init(|| {
        std::thread::Builder::new()
            .name("watchdog".to_owned())
            .spawn(watch)
            .expect("a thread for the watchdog");
    });
    let mut state = STATE.lock();
    let id = state.next;
    state.next += 1;
    let started = Instant::now();
    state.bounds.push(Bound { id, name: name.into(), started, deadline: started + bound * scale() });
    CHANGED.notify_one();
    Guard(id)
}

/// Runs `f` under a bound.
pub fn bounded<R>(name: impl Into<String>, bound: Duration, f: impl FnOnce() -> R) -> R {
    let _guard = arm(name, bound);
    f()
}

fn watch() {
    let mut state = STATE.lock();
    loop {
        let Some(first) = state.bounds.iter().min_by_key(|bound| bound.deadline) else {
            CHANGED.wait(&mut state);
            continue;
        };
        let deadline = first.deadline;
        if Instant::now() < deadline {
            CHANGED.wait_until(&mut state, deadline);
            continue;
        }
        let mut children: Vec<i32> = state.children.iter().map(|child| child.0).collect();
        let report = report(first, &state);
        eprintln!("{report}");
        children.extend(children_of_this_process());
        for pid in children {
            sys::kill_pid(pid);
        }
        std::process::abort();
    }
}

/// What was running, and what each thread and child was doing.
fn report(over: &Bound, state: &State) -> String {
    let mut lines = vec![format!("WATCHDOG: {} still runs after {:.1?}", over.name, over.started.elapsed())];
    for other in state.bounds.iter().filter(|bound| bound.id != over.id) {
        lines.push(format!("  also running: {} since {:.1?}", other.name, other.started.elapsed()));
    }
    lines.push("  threads (name, where in the kernel, system call and arguments):".to_owned());
    lines.extend(tasks("self").map(|task| format!("    {}", describe(&task))));
    let mut children = children_of_this_process();
    children.retain(|pid| !state.children.iter().any(|child| child.0 == *pid));
    let roles = state.children.iter().map(|(pid, name)| (*pid, format!("role {name:?}")));
    for (pid, name) in roles.chain(children.into_iter().map(|pid| (pid, "another child".to_owned()))) {
        lines.push(format!("  {name}, pid {pid}, threads {:?}:", task_states(pid)));
        lines.extend(tasks(&pid.to_string()).map(|task| format!("    {}", describe(&task))));
    }
    lines.join("\n")
}

fn tasks(process: &str) -> impl Iterator<Item = std::path::PathBuf> + use<> {
    std::fs::read_dir(format!("/proc/{process}/task"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
}

fn describe(task: &std::path::Path) -> String {
    let tid = task.file_name().unwrap_or_default().to_string_lossy();
    let read = |name: &str| match std::fs::read_to_string(task.join(name)) {
        Ok(text) => text.trim().replace('\n', " < "),
        Err(error) => format!("({error})"),
    };
    format!("{tid} {}: wchan {} syscall {}", read("comm"), read("wchan"), read("syscall"))
}

/// Source: `proc_tid_children(5)`. Empty where the kernel lacks the file.
fn children_of_this_process() -> Vec<i32> {
    let lists = tasks("self").filter_map(|task| std::fs::read_to_string(task.join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// The state letter of each thread of a process; source: `proc_pid_stat(5)`. Empty once it is gone.
pub(crate) fn task_states(pid: i32) -> Vec<char> {
    let stats = tasks(&pid.to_string()).filter_map(|task| std::fs::read_to_string(task.join("stat")).ok());
    stats.filter_map(|stat| stat.rsplit_once(") ")?.1.chars().next()).collect()
}

/// From now on this child is named in reports, and killed when a bound is over.
pub(crate) fn child_started(pid: i32, name: &str) {
    STATE.lock().children.push((pid, name.to_owned()));
}

/// This child has been reaped.
pub(crate) fn child_ended(pid: i32) {
    STATE.lock().children.retain(|child| child.0 != pid);
}
