//! `cargo xtask test`: runs the table of steps and ends with one line of counts.

use std::fs::File;
use std::path::Path;
use std::process::{Child, ExitCode, Stdio};
use std::time::{Duration, Instant};

use crate::command::{self, Ended, Env};
use crate::results::{self, Results, Skip};
use crate::steps::{Action, STEPS, Step};
use crate::tidy;

/// What the command line asks for.
#[derive(Debug, Default)]
pub(crate) struct Options {
    /// Without the slow steps.
    pub(crate) fast: bool,
    /// Only these; all when empty.
    pub(crate) only: Vec<String>,
    /// A skip is a failure.
    pub(crate) in_ci: bool,
}

impl Options {
    pub(crate) fn parse(args: &[&str], in_ci: bool) -> Result<Self, String> {
        let mut options = Self { in_ci, ..Self::default() };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match *arg {
                "--fast" => options.fast = true,
                "--step" => {
                    let name = args.next().ok_or("--step needs a name")?;
                    if STEPS.iter().all(|step| step.name != *name) {
                        return Err(format!("no step {name:?}"));
                    }
                    options.only.push((*name).to_owned());
                }
                other => return Err(format!("unknown option {other:?}")),
            }
        }
        Ok(options)
    }
}

/// Runs the steps and prints the summary.
pub(crate) fn run(root: &Path, options: &Options) -> ExitCode {
    let env = Env::new(root);
    print_machine(&env);
    let started = Instant::now();
    let mut total = Results::default();
    let mut rows = Vec::new();
    for step in STEPS
        .iter()
        .filter(|step| options.only.is_empty() || options.only.iter().any(|name| name == step.name))
    {
        println!("==> {}: {}", step.name, step.about);
        let began = Instant::now();
        let results = if options.fast && step.slow {
            skipped(step, "left out by --fast — run without it".to_owned())
        } else {
            run_step(&env, step, options)
        };
        let row =
            format!("{:<10} {:>7.1} s  {}", step.name, began.elapsed().as_secs_f64(), in_words(&results));
        println!("    {row}");
        rows.push(row);
        let named = results.failures.iter().map(|failure| format!("{}: {failure}", step.name)).collect();
        total.add(Results { failures: named, ..results });
    }
    print!("{}", summary(&mut total, &rows, started.elapsed(), options.in_ci));
    if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The summary; the last line is the one others read.
fn summary(total: &mut Results, rows: &[String], elapsed: Duration, in_ci: bool) -> String {
    let mut text =
        format!("\ntime per step\n  {}\n  total      {:>7.1} s\n", rows.join("\n  "), elapsed.as_secs_f64());
    if !total.skips.is_empty() {
        text += "\nskipped\n";
        for skip in &total.skips {
            text += &format!("  {}: {}\n", skip.name, skip.reason);
        }
        // Those of tests, the harness has checked against the list.
        let of_steps: Vec<String> =
            total.skips.iter().filter(|s| s.name.starts_with("step ")).map(|s| s.name.clone()).collect();
        if in_ci {
            of_steps.iter().for_each(|name| total.add_failure(format!("{name} was skipped, in CI")));
        }
    }
    if !total.failures.is_empty() {
        text += &format!("\nfailed\n  {}\n", total.failures.join("\n  "));
    }
    text + &format!("\n{} passed, {} failed, {} skipped\n", total.passed, total.failed, total.skips.len())
}

fn in_words(results: &Results) -> String {
    match results {
        Results { passed: 1, failed: 0, skips, .. } if skips.is_empty() => "passed".to_owned(),
        Results { passed: 0, failed: 0, .. } => "skipped".to_owned(),
        Results { passed, failed, skips, .. } => {
            format!("{passed} passed, {failed} failed, {} skipped", skips.len())
        }
    }
}

/// Versions and machine: what one asks first about a failure elsewhere.
fn print_machine(env: &Env) {
    let first_line = |program, args: &[&str]| {
        let text = command::output(program, args).unwrap_or_default();
        text.lines().next().unwrap_or("?").to_owned()
    };
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kilobytes = memory.split_whitespace().nth(1).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let system = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let system =
        system.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).unwrap_or("?").trim_matches('"');
    println!("{}, {}", first_line("rustc", &["-V"]), first_line("cargo", &["-V"]));
    println!("{}, {}", env.host, first_line("cc", &["--version"]));
    println!(
        "{system}, Linux {}, {} CPUs, {} GiB, user {}",
        kernel.trim(),
        std::thread::available_parallelism().map_or(0, usize::from),
        kilobytes >> 20,
        first_line("id", &["-un"])
    );
}

fn skipped(step: &Step, reason: String) -> Results {
    Results { skips: vec![Skip { name: format!("step {}", step.name), reason }], ..Results::default() }
}

/// Why a command lacks something: its last line.
fn reason(ended: &Ended) -> String {
    ended.output.lines().last().unwrap_or("it has not said why").to_owned()
}

fn run_step(env: &Env, step: &Step, options: &Options) -> Results {
    let logs = env.target.join("xtask");
    let path = logs.join(format!("{}.log", step.name));
    let log = std::fs::create_dir_all(&logs).and_then(|()| File::create(&path));
    let mut log = match log {
        Ok(log) => log,
        Err(error) => return Results::fail(format!("{}: {error}", path.display())),
    };
    let deadline = Instant::now() + Duration::from_secs(60 * step.minutes);
    let mut execute = |argv: &[&str], more: &[&str], vars: &[(&str, &str)]| {
        let argv: Vec<String> = argv.iter().chain(more).map(|arg| env.expand(arg)).collect();
        let mut command = env.command(&argv);
        command.envs(vars.iter().map(|(name, value)| (name, env.expand(value))));
        if options.in_ci {
            command.env("CI", "true").env("RUCX_ALLOWED_SKIPS", allowed_skips(&env.root));
        }
        command::run(&mut command, &mut log, deadline, &mut |_| {})
    };
    let show = |ended: &Ended| {
        println!("{}\n    {}; all of it: {}", results::excerpt(&ended.output), ended.how, path.display())
    };
    match &step.action {
        Action::Tidy => {
            let findings = tidy::check(&env.root);
            findings.iter().for_each(|finding| println!("{finding}"));
            match findings.iter().filter(|finding| !finding.warning).count() {
                0 => Results::pass(),
                n => Results::fail(format!("{n} findings")),
            }
        }
        Action::Command { argv, env: vars, prints } => {
            let ended = execute(argv, &[], vars);
            if ended.ok && *prints && ended.output.trim().is_empty() {
                return Results::fail("it printed nothing");
            }
            if ended.ok {
                return Results::pass();
            }
            if ended.lacking {
                return skipped(step, reason(&ended));
            }
            show(&ended);
            Results::fail(ended.how)
        }
        Action::Tests { argv, rows, env: vars } => {
            let mut sum = Results::default();
            for row in *rows {
                let ended = execute(argv, row, vars);
                if ended.lacking {
                    sum.add(skipped(step, reason(&ended)));
                    continue;
                }
                let mut results = results::of_cargo_test(&ended.output, ended.ok);
                if !ended.ok && ended.output.is_empty() {
                    results = Results::fail(ended.how.clone());
                }
                if results.failed > 0 {
                    show(&ended);
                }
                sum.add(results);
            }
            sum
        }
        Action::Guards { argv, rows, env: vars, says } => {
            let mut sum = Results::default();
            for row in *rows {
                let ended = execute(argv, row, vars);
                if !ended.ok && ended.output.contains(says) {
                    sum.add(Results::pass());
                } else {
                    show(&ended);
                    sum.add(Results::fail(format!("{row:?} was to fail with {says:?}")));
                }
            }
            sum
        }
        Action::Pipe { argv, from, into } => {
            let built = execute(argv, &[], &[]);
            if !built.ok {
                show(&built);
                return Results::fail(built.how);
            }
            match pipe(env, &env.expand(from), &env.expand(into)) {
                Ok(()) => Results::pass(),
                Err(why) => Results::fail(why),
            }
        }
    }
}

/// The names in `ci/allowed-skips`, as the test harness takes them.
fn allowed_skips(root: &Path) -> String {
    let text = std::fs::read_to_string(root.join("ci/allowed-skips")).unwrap_or_default();
    let names = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    names.collect::<Vec<_>>().join(",")
}

/// Runs `from | into` and waits for both, a minute at most.
fn pipe(env: &Env, from: &str, into: &str) -> Result<(), String> {
    let deadline = Instant::now() + Duration::from_secs(60);
    let start = |program: &str, input: Stdio, output: Stdio| {
        let mut command = env.command(&[program.to_owned()]);
        command.stdin(input).stdout(output).spawn().map_err(|error| format!("{program}: {error}"))
    };
    let mut first = start(from, Stdio::null(), Stdio::piped())?;
    let handle = first.stdout.take().map_or_else(Stdio::null, Stdio::from);
    let second = start(into, handle, Stdio::inherit());
    let wait = |child: &mut Child, name: &str| loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("{name}: {status}")),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            Ok(None) => {
                command::kill_tree(child.id());
                let _ = child.wait();
                return Err(format!("{name} did not end within a minute"));
            }
            Err(error) => return Err(format!("{name}: {error}")),
        }
    };
    let second = second.and_then(|mut second| wait(&mut second, into));
    let first = wait(&mut first, from);
    second.and(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options() {
        let options = Options::parse(&["--fast", "--step", "tidy", "--step", "fmt"], false).unwrap();
        assert!(options.fast && options.only == ["tidy", "fmt"]);
        assert!(Options::parse(&["--step", "nope"], false).is_err());
        assert!(Options::parse(&["--step"], false).is_err());
        assert!(Options::parse(&["--slow"], false).is_err());
    }

    #[test]
    fn the_last_line_is_the_counts() {
        let skip = Skip { name: "a::b".into(), reason: "no device — plug one in".into() };
        let mut total = Results { passed: 12, failed: 0, skips: vec![skip], failures: Vec::new() };
        let text = summary(&mut total, &["tidy 1 s".to_owned()], Duration::from_secs(3), true);
        assert!(text.ends_with("\n12 passed, 0 failed, 1 skipped\n"), "{text}");
        assert!(text.contains("\nskipped\n  a::b: no device — plug one in\n"), "{text}");
    }

    #[test]
    fn a_step_left_out_fails_in_ci() {
        let skip = Skip { name: "step tsan".into(), reason: "left out".into() };
        let mut total = Results { passed: 1, skips: vec![skip], ..Results::default() };
        assert!(
            summary(&mut total, &[], Duration::ZERO, true).ends_with("\n1 passed, 1 failed, 1 skipped\n")
        );
    }

    #[test]
    fn pipes_report_either_side() {
        let env = Env::new(Path::new("/"));
        assert_eq!(pipe(&env, "/bin/true", "/bin/true"), Ok(()));
        assert!(pipe(&env, "/bin/false", "/bin/true").unwrap_err().starts_with("/bin/false: "));
        assert!(pipe(&env, "/bin/true", "/bin/false").unwrap_err().starts_with("/bin/false: "));
        assert!(pipe(&env, "/bin/true", "/no/such/program").is_err());
    }
}
