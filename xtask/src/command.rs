//! Running one command: its output goes to a log, its time is bounded, nothing of it outlives the bound.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Where the steps run.
#[derive(Debug)]
pub(crate) struct Env {
    pub(crate) root: PathBuf,
    /// cargo's target directory.
    pub(crate) target: PathBuf,
    /// The machine's target triple.
    pub(crate) host: String,
}

impl Env {
    /// Asks the environment and rustc.
    pub(crate) fn new(root: &Path) -> Self {
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir));
        let version = output("rustc", &["-vV"]).unwrap_or_default();
        let host =
            version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or("unknown").to_owned();
        Self { root: root.to_path_buf(), target, host }
    }

    /// Fills the placeholders of the table in.
    pub(crate) fn expand(&self, text: &str) -> String {
        text.replace("{host}", &self.host)
            .replace("{root}", &self.root.to_string_lossy())
            .replace("{target}", &self.target.to_string_lossy())
    }

    /// A command in the workspace, without what cargo has told this program about itself.
    pub(crate) fn command(&self, argv: &[String]) -> Command {
        let mut command = match argv[0].as_str() {
            "cargo" => Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())),
            program => Command::new(program),
        };
        // Into a log, colours are noise.
        command.args(&argv[1..]).current_dir(&self.root).stdin(Stdio::null()).env("TERM", "dumb");
        for (name, _) in std::env::vars_os() {
            let told = name.to_string_lossy();
            if ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"]
                .iter()
                .any(|start| told.starts_with(start))
            {
                command.env_remove(&name);
            }
        }
        command
    }
}

/// What test drivers take for "skipped" (automake(info), "Scripts-based Testsuites").
pub(crate) const LACKING: u8 = 77;

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) ok: bool,
    /// It has said, by status 77, that the system has not what it needs.
    pub(crate) lacking: bool,
    /// Its exit status, if it has one.
    pub(crate) code: Option<i32>,
    /// In words, when not `ok`.
    pub(crate) how: String,
    /// Standard output and error, as they came.
    pub(crate) output: String,
}

/// Runs a command to its end or to the deadline, and shows each line to `see`; every half minute says that it still runs.
pub(crate) fn run(
    command: &mut Command,
    log: &mut File,
    deadline: Instant,
    see: &mut dyn FnMut(&str),
) -> Ended {
    let ended = |how: String, output: String| Ended { ok: false, lacking: false, code: None, how, output };
    let name = command.get_program().to_string_lossy().into_owned();
    let mut start = || -> std::io::Result<_> {
        let (read, write) = std::io::pipe()?;
        let child = command.stdout(write.try_clone()?).stderr(write).spawn()?;
        // The command holds the writing ends until it is replaced or dropped.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Ok((read, child))
    };
    let (read, mut child) = match start() {
        Ok(started) => started,
        Err(error) => {
            return ended(format!("{name} cannot be started: {error}{}", remedy(&name)), String::new());
        }
    };
    let (sender, lines) = channel();
    let reader = std::thread::spawn(move || {
        let mut read = BufReader::new(read);
        let mut line = Vec::new();
        while read.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                break;
            }
            line.clear();
        }
    });
    let started = Instant::now();
    let mut output = String::new();
    let mut next_sign = started + Duration::from_secs(30);
    let mut timed_out = false;
    loop {
        match lines.recv_timeout(next_sign.min(deadline).saturating_duration_since(Instant::now())) {
            Ok(line) => {
                let _ = log.write_all(line.as_bytes());
                see(&line);
                output.push_str(&line);
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) if Instant::now() >= deadline => {
                timed_out = true;
                kill_tree(child.id());
                break;
            }
            Err(RecvTimeoutError::Timeout) => {
                let last = output.lines().next_back().unwrap_or_default();
                println!(
                    "    … {} s: {}",
                    started.elapsed().as_secs(),
                    last.chars().take(100).collect::<String>()
                );
                next_sign += Duration::from_secs(30);
            }
        }
    }
    let status = child.wait();
    drop(lines);
    if timed_out {
        return ended(format!("killed after {} s", started.elapsed().as_secs()), output);
    }
    let _ = reader.join();
    match status {
        Ok(status) => {
            let code = status.code();
            let lacking = code == Some(i32::from(LACKING));
            Ended { ok: status.success(), lacking, code, how: status.to_string(), output }
        }
        Err(error) => ended(format!("waiting for {name}: {error}"), output),
    }
}

/// What to install for a command that is not there.
fn remedy(name: &str) -> &'static str {
    match name {
        "setarch" => " (apt-get install util-linux)",
        "sha256sum" => " (apt-get install coreutils)",
        _ => "",
    }
}

/// Kills a process and its descendants, the youngest last: none can start another unseen.
pub(crate) fn kill_tree(pid: u32) {
    let mut pids = vec![pid.to_string()];
    let mut at = 0;
    while at < pids.len() {
        // Stopped, it starts no more children while they are listed.
        let _ = Command::new("/bin/sh")
            .args(["-c", "kill -STOP \"$1\"", "sh", &pids[at]])
            .stderr(Stdio::null())
            .status();
        let tasks = std::fs::read_dir(format!("/proc/{}/task", pids[at])).into_iter().flatten().flatten();
        for task in tasks {
            let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            pids.extend(children.split_whitespace().map(str::to_owned));
        }
        at += 1;
    }
    let _ = Command::new("/bin/sh")
        .args(["-c", "kill -KILL \"$@\"", "sh"])
        .args(&pids)
        .stderr(Stdio::null())
        .status();
}

/// The standard output of a command that succeeds.
pub(crate) fn output(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> File {
        File::options().write(true).open("/dev/null").unwrap()
    }

    fn sh(script: &str, bound: Duration) -> Ended {
        run(Command::new("/bin/sh").args(["-c", script]), &mut log(), Instant::now() + bound, &mut |_| {})
    }

    #[test]
    fn both_outputs_and_the_status_are_kept() {
        let ended = sh("echo one; echo two >&2; exit 3", Duration::from_secs(20));
        assert!(!ended.ok);
        assert_eq!(ended.output, "one\ntwo\n");
        assert!(ended.how.contains('3'));
    }

    #[test]
    fn a_command_that_hangs_is_killed_with_its_children() {
        let started = Instant::now();
        let ended = sh("sh -c 'echo $$; exec sleep 100'; true", Duration::from_millis(300));
        assert!(!ended.ok && ended.how.starts_with("killed"), "{}", ended.how);
        assert!(started.elapsed() < Duration::from_secs(20));
        let pid = ended.output.trim();
        let comm = || std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        while comm().trim() == "sleep" && !is_zombie(pid) {
            assert!(started.elapsed() < Duration::from_secs(20), "sleep still runs");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn is_zombie(pid: &str) -> bool {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z"))
    }

    #[test]
    fn a_missing_program_is_named() {
        let ended = run(&mut Command::new("no-such-program"), &mut log(), Instant::now(), &mut |_| {});
        assert!(ended.how.starts_with("no-such-program cannot be started"));
    }
}
