//! `rucx demo` as a user starts it.

#[allow(dead_code)] // what the tests of other commands need beside
mod support;

use std::fs;
use std::io::BufRead;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use support::{Running, assert_no_secret, finish, rucx, text};

#[test]
fn all_checks_hold_and_the_output_fits() {
    let output = finish(&mut rucx(&["demo", "--size", "8M"]));
    let story = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{story}{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "");
    assert!(!story.contains('\u{1b}'), "no escape codes in a pipe: {story}");
    for line in story.lines() {
        assert!(line.chars().count() <= 80, "{line:?}");
        assert_eq!(line.trim_end(), line);
    }
    let held = story.lines().filter(|line| line.contains("  ✓     ")).count();
    let last = story.lines().last().unwrap_or_default();
    assert!(last.starts_with(&format!("✓  all {held} checks held")), "{last}");
    assert!(held >= 15, "{story}");
    assert!(!story.contains('✗'), "{story}");
    assert_no_secret(&story);
}

#[test]
fn events_of_all_levels_show_no_secret() {
    let output = finish(rucx(&["demo", "--size", "4K"]).env("UCX_LOG_LEVEL", "trace"));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    assert_no_secret(&text(&output.stdout));
    assert_no_secret(&text(&output.stderr));
}

#[test]
fn in_another_locale_it_is_ascii() {
    let output = finish(rucx(&["demo", "--size", "4K"]).env("LC_ALL", "C"));
    let story = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{story}");
    assert!(story.is_ascii(), "{story}");
    assert!(story.lines().last().is_some_and(|line| line.starts_with("ok all ")), "{story}");
}

#[test]
fn colours_can_be_forced_and_lines_still_fit() {
    let output = finish(rucx(&["demo", "--size", "4K"]).env("CLICOLOR_FORCE", "1"));
    let story = text(&output.stdout);
    assert!(story.contains("\u{1b}["), "{story}");
    for line in story.lines() {
        assert!(anstream::adapter::strip_str(line).to_string().chars().count() <= 80, "{line:?}");
    }
}

#[test]
fn quiet_is_one_line() {
    let output = finish(&mut rucx(&["demo", "--size", "4K", "--quiet"]));
    let story = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{story}");
    assert_eq!(story.lines().count(), 1, "{story}");
    assert!(story.starts_with("✓  all "), "{story}");
}

#[test]
fn without_a_transport_that_reaches_the_other_side_the_error_and_its_remedy_are_told() {
    let output = finish(&mut rucx(&["demo", "--size", "4K", "--tls", "self"]));
    let story = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{story}");
    for part in ["UCX_TLS=self", "cannot import the handle: Unreachable", "unreachable: ", "remedy: "] {
        assert!(story.contains(part), "{part}: {story}");
    }
    assert!(story.lines().last().is_some_and(|line| line.starts_with("✗  1 of ")), "{story}");
    assert_no_secret(&story);
}

#[test]
fn by_shm_alone_it_works_as_well() {
    let output = finish(&mut rucx(&["demo", "--size", "1M", "--tls", "shm"]));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
}

#[test]
fn the_environment_configures_both_roles() {
    let output = finish(rucx(&["demo", "--size", "4K"]).env("UCX_SHM_ATTACH", "proc"));
    let story = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{story}");
    assert!(story.contains("UCX_SHM_ATTACH=proc") && story.contains("/proc/PID/fd"), "{story}");
}

#[test]
fn a_transport_that_does_not_exist_is_told_with_the_remedy() {
    let output = finish(&mut rucx(&["demo", "--tls", "shn", "--quiet"]));
    let story = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{story}");
    assert_eq!(story.lines().count(), 1, "{story}");
    assert!(story.starts_with("✗  HOST ") && story.contains("did you mean shm?"), "{story}");
}

#[test]
fn wrong_arguments_and_levels_are_usage_errors() {
    for args in [&["demo", "--size", "4095"][..], &["demo", "--size", "x"], &["demo", "--tls", ""], &["x"]] {
        let output = finish(&mut rucx(args));
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert_eq!(text(&output.stdout), "");
    }
    let output = finish(rucx(&["demo"]).env("UCX_LOG_LEVEL", "loud"));
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("expected one of fatal, error, warn, "));
}

#[test]
fn whichever_role_dies_the_demo_ends_and_says_so() {
    for (role, name) in [("demo-host", "HOST"), ("demo-dpu", "DPU")] {
        let mut demo = Running::start(&["demo", "--size", "256M"]);
        demo.wait_for("The DPU imports it");
        let begin = Instant::now();
        kill_process(demo.role(role), Signal::KILL).unwrap();
        let (status, story) = demo.finish();
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
        assert_eq!(status.code(), Some(1), "{story}");
        let last = story.lines().last().unwrap_or_default();
        assert!(last.starts_with(&format!("✗  {name} ended in part ")), "{story}");
        assert!(last.ends_with("killed by signal 9 (SIGKILL)"), "{story}");
    }
}

#[test]
fn a_role_that_hangs_ends_the_demo_and_is_named() {
    let mut demo = Running::start(&["demo", "--size", "64M"]);
    demo.wait_for("The DPU imports it");
    let role = demo.role("demo-dpu");
    kill_process(role, Signal::STOP).unwrap();
    let (status, story) = demo.finish();
    assert_eq!(status.code(), Some(1), "{story}");
    let last = story.lines().last().unwrap_or_default();
    assert!(last.starts_with("✗  DPU has not answered within 10 s in part "), "{story}");
    assert!(!Path::new(&format!("/proc/{}", role.as_raw_nonzero())).exists(), "it was killed");
}

#[test]
fn when_the_demo_is_killed_its_roles_die() {
    let mut demo = Running::start(&["demo", "--size", "256M"]);
    demo.wait_for("The DPU imports it");
    let roles = [demo.role("demo-host"), demo.role("demo-dpu")];
    kill_process(demo.pid(), Signal::KILL).unwrap();
    let (status, _) = demo.finish();
    assert_eq!(status.code(), None);
    let deadline = Instant::now() + Duration::from_secs(5);
    for pid in roles {
        let path = format!("/proc/{}/cmdline", pid.as_raw_nonzero());
        // Who reaps it, and when, is not ours to say: a zombie has no command line.
        while fs::read(&path).is_ok_and(|line| line.windows(5).any(|part| part == b"demo-")) {
            assert!(Instant::now() < deadline, "{pid:?} lives on");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_dpu_moves_bytes_for_a_host_that_does_nothing() {
    let output = finish(&mut rucx(&["demo", "offload", "--size", "8M"]));
    let story = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{story}{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "");
    assert!(story.lines().all(|line| line.chars().count() <= 80 && line.trim_end() == line), "{story}");
    let held = story.lines().filter(|line| line.contains("  ✓     ")).count();
    let last = story.lines().last().unwrap_or_default();
    assert!(held == 14 && last.starts_with("✓  all 14 checks held"), "{story}");
    for part in ["is stopped", "of CPU time", "the HOST goes on"] {
        assert!(story.contains(part), "{part}: {story}");
    }
    assert_no_secret(&story);
    // An odd number of bytes has halves of different lengths.
    let output = finish(&mut rucx(&["demo", "offload", "--size", "65537", "--quiet", "--tls", "shm"]));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
}

#[test]
fn offloading_tells_what_is_missing() {
    for (tls, part) in
        [("self", "the DPU can import the HOST's memory: "), ("cma", "allow self or shm in UCX_TLS")]
    {
        let output = finish(&mut rucx(&["demo", "offload", "--size", "4K", "--tls", tls]));
        let story = text(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{story}");
        let flat = story.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains(part) && story.contains("remedy: "), "{story}");
    }
    assert_eq!(finish(&mut rucx(&["demo", "--size", "4K", "offload"])).status.code(), Some(2));
    assert_eq!(finish(&mut rucx(&["demo", "offload", "--size", "1"])).status.code(), Some(2));
}

#[test]
fn whichever_role_of_three_dies_offloading_ends_and_says_so() {
    for (role, name) in [("demo-host", "HOST"), ("demo-dpu", "DPU"), ("demo-peer", "PEER")] {
        let mut demo = Running::start(&["demo", "offload", "--size", "64M"]);
        demo.wait_for("connected to the PEER");
        kill_process(demo.role(role), Signal::KILL).unwrap();
        let (status, story) = demo.finish();
        assert_eq!(status.code(), Some(1), "{story}");
        let last = story.lines().last().unwrap_or_default();
        assert!(last.starts_with(&format!("✗  {name} ended in part ")), "{story}");
    }
}

#[test]
fn a_stopped_host_does_not_outlive_the_demo() {
    let mut demo = Running::start(&["demo", "offload", "--size", "64M"]);
    demo.wait_for("is stopped");
    let host = demo.role("demo-host");
    kill_process(demo.pid(), Signal::KILL).unwrap();
    demo.finish();
    let deadline = Instant::now() + Duration::from_secs(5);
    let path = format!("/proc/{}/cmdline", host.as_raw_nonzero());
    while fs::read(&path).is_ok_and(|line| line.windows(5).any(|part| part == b"demo-")) {
        assert!(Instant::now() < deadline, "it lives on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn who_stops_reading_ends_it_quietly() {
    let mut demo = Running::start(&["demo", "--size", "256M"]);
    let mut line = String::new();
    demo.output().read_line(&mut line).unwrap();
    assert!(line.contains("demo"), "{line}");
    demo.close_output();
    let (status, _) = demo.finish();
    assert_eq!(status.code(), Some(1));
}

#[test]
fn a_role_started_by_hand_says_what_it_is() {
    // Standard output is a pipe here and standard input is closed: it ends at once.
    let output = finish(&mut rucx(&["demo-host"]));
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("talking to the demo"), "{}", text(&output.stderr));
}

#[test]
fn help_has_examples_and_no_hidden_roles() {
    let help = text(&finish(&mut rucx(&["--help"])).stdout);
    assert!(help.contains("rucx demo --size 1G") && !help.contains("demo-host"), "{help}");
    let help = text(&finish(&mut rucx(&["demo", "--help"])).stdout);
    assert!(
        help.contains("rucx demo --tls self") && help.contains("offload") && help.contains("exit status"),
        "{help}"
    );
    let version = text(&finish(&mut rucx(&["--version"])).stdout);
    assert_eq!(version.trim(), concat!("rucx ", env!("CARGO_PKG_VERSION")));
}
