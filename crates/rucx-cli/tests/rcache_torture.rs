//! `rucx rcache-torture` as a user starts it.

#[allow(dead_code)] // what the tests of other commands need beside
mod support;

use std::process::Command;
use std::sync::OnceLock;

use parking_lot::{Mutex, MutexGuard};
use rustix::process::Signal;
use serde_json::Value;
use support::{Running, changed, denying, finish, rucx, text};
use testkit::Deny;

fn torture(args: &[&str]) -> Command {
    rucx(&[&["rcache-torture"], args].concat())
}

/// What it prints, after the exit status was compared.
fn printed(command: &mut Command, code: i32) -> String {
    let output = finish(command);
    let page = text(&output.stdout);
    assert_eq!(output.status.code(), Some(code), "{page}{}", text(&output.stderr));
    page
}

fn json(args: &[&str], code: i32) -> Value {
    serde_json::from_str(&printed(&mut torture(&[&["--json"], args].concat()), code))
        .expect("a JSON document")
}

fn number(document: &Value, key: &str) -> u64 {
    document[key].as_u64().unwrap_or_else(|| panic!("{key} is a number: {document}"))
}

/// One run at a time: on few processors several would wait for each other's threads.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock()
}

/// Whether there is a NIC to test with, and somebody who tells of changes; if not, the tests that need it say why, and do nothing.
#[allow(clippy::print_stdout)]
fn can_run() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| {
        let output = finish(&mut torture(&["--json", "--seconds", "1", "--monitor", "uffd"]));
        let document: Value = serde_json::from_slice(&output.stdout).expect("a JSON document");
        if !document["error"].is_null() {
            println!("skipped: {}", document["error"]);
            assert!(std::env::var_os("CI").is_none(), "skipped, in CI: {}", document["error"]);
        }
        document["error"].is_null()
    })
}

#[test]
fn protected_nothing_is_wrong() {
    let _turn = turn();
    if !can_run() {
        return;
    }
    // How many look-ups are hits with all patterns at once depends on how soon the handler gets a processor; with malloc and free less so.
    for (pattern, hits) in [("all", 5), ("malloc", 30)] {
        let report = json(&["--seconds", "3", "--seed", "0x5eed", "--pattern", pattern], 0);
        assert_eq!((report["ok"].as_bool(), number(&report, "corrupted")), (Some(true), 0), "{report}");
        assert_eq!((number(&report, "bystander_lost"), number(&report, "refused")), (0, 0), "{report}");
        assert_eq!(number(&report, "seed"), 0x5eed);
        assert!(number(&report, "operations") > 1000, "{report}");
        // It is a cache, and it was in danger.
        assert!(number(&report, "hits") * 100 >= number(&report, "gets") * hits, "{report}");
        assert!(number(&report, "hit_invalidations") > 100, "{report}");
        assert!(number(&report, "events") > 100 && number(&report, "checks") > 100, "{report}");
    }
}

#[test]
fn each_pattern_is_survived() {
    let _turn = turn();
    if !can_run() {
        return;
    }
    for pattern in ["remap", "madvise", "mremap", "brk", "malloc"] {
        let args = ["--seconds", "2", "--pattern", pattern, "--handler-delay", "30us"];
        let report = json(&args, 0);
        assert_eq!((number(&report, "corrupted"), &report["pattern"]), (0, &pattern.into()), "{report}");
        assert!(number(&report, "operations") > 100 && number(&report, "hits") > 0, "{report}");
    }
}

#[test]
fn few_registrations_are_evicted_and_nothing_is_wrong() {
    let _turn = turn();
    if !can_run() {
        return;
    }
    let report = json(&["--seconds", "2", "--regions", "8"], 0);
    assert!(number(&report, "evictions") > 0 && number(&report, "corrupted") == 0, "{report}");
}

#[test]
fn without_protection_operations_are_wrong() {
    let _turn = turn();
    if !can_run() {
        return;
    }
    let report = json(&["--seconds", "2", "--unsafe-no-protection"], 0);
    assert!(number(&report, "corrupted") > number(&report, "operations") / 10, "{report}");
    assert!(report["first_corrupted"].as_str().is_some_and(|first| first.contains("thread")), "{report}");
    let page = printed(&mut torture(&["--seconds", "1", "--unsafe-no-protection"]), 0);
    assert!(page.contains("as was to be shown") && page.contains("first: "), "{page}");
}

/// Where nothing is cached, nothing can be wrong; where threads announce what they do, no kernel has to tell.
#[test]
fn other_monitors_and_modes() {
    let _turn = turn();
    if !can_run() {
        return;
    }
    for (args, hits) in [
        (&["--monitor", "none"][..], false),
        (&["--mode", "off"], false),
        (&["--monitor", "explicit"], true),
        (&["--mode", "hooks"], true),
        (&["--monitor", "explicit", "--mode", "hooks"], true),
    ] {
        let report = json(&[&["--seconds", "2"], args].concat(), 0);
        assert_eq!((number(&report, "corrupted"), number(&report, "hits") > 0), (0, hits), "{report}");
    }
}

/// What the environment says are defaults; the command line wins.
#[test]
fn variables_are_the_defaults_of_options() {
    let _turn = turn();
    if !can_run() {
        return;
    }
    let run = |variables: &[(&str, &str)], args: &[&str]| -> Value {
        let mut command = torture(&[&["--json", "--seconds", "1"], args].concat());
        let page = printed(command.envs(variables.iter().copied()), 0);
        serde_json::from_str(&page).expect("a JSON document")
    };
    for off in [("UCX_MEM_EVENTS", "n"), ("UCX_RCACHE_ENABLE", "n"), ("UCX_RCACHE_MODE", "off")] {
        let report = run(&[off], &[]);
        assert_eq!((&report["mode"], number(&report, "hits")), (&"off".into(), 0), "{off:?}: {report}");
        assert_eq!(report["monitor"], "none: it is turned off", "{off:?}: {report}");
        assert_eq!(report["scheme_in_words"], "rucx: nothing kept");
        assert!(number(&report, "one_shots") > 0 && number(&report, "corrupted") == 0, "{report}");
        // A scheme stands for all of it.
        let report = run(&[off], &["--scheme", "rucx"]);
        assert!(report["mode"] == "strict" && number(&report, "hits") > 0, "{off:?}: {report}");
    }
    let report = run(&[("UCX_MEM_EVENTS", "n"), ("UCX_RCACHE_ENABLE", "n")], &["--monitor", "uffd"]);
    assert!(report["mode"] == "strict" && number(&report, "hits") > 0, "{report}");
    let report = run(&[("UCX_RCACHE_MODE", "off")], &["--mode", "strict"]);
    assert!(report["mode"] == "strict" && number(&report, "hits") > 0, "{report}");
    let few = [("UCX_RCACHE_MAX_REGIONS", "8"), ("UCX_RCACHE_ENABLE", "y"), ("UCX_RCACHE_ADDR_ALIGN", "64K")];
    assert!(number(&run(&few, &[]), "evictions") > 0);
    assert_eq!(number(&run(&few, &["--regions", "4096"]), "evictions"), 0);
    let little = [("UCX_RCACHE_MAX_SIZE", "128K")];
    let report = run(&little, &[]);
    assert!(number(&report, "evictions") > 0 && number(&report, "pinned_bytes") <= 128 << 10, "{report}");
}

#[test]
fn wrong_variables_are_told_with_the_remedy() {
    for (variables, parts) in [
        (
            &[("UCX_RCACHE_MAX_REGIONS", "0")][..],
            ["UCX_RCACHE_ENABLE=n is for none", "set UCX_RCACHE_MAX_REGIONS to"],
        ),
        (
            &[("UCX_RCACHE_MODE", "hooks")],
            ["UCX_RCACHE_MODE=hooks in the environment", "set UCX_RCACHE_MODE=strict"],
        ),
        (
            &[("UCX_RCACHE_ENABLE", "y"), ("UCX_MEM_EVENTS", "n")],
            ["UCX_MEM_EVENTS=n turns it off", "set one of UCX_RCACHE_ENABLE and UCX_MEM_EVENTS only"],
        ),
        (&[("UCX_TLS", "self"), ("UCX_IMPORT_TIMEOUT", "soon")], ["UCX_IMPORT_TIMEOUT=", "such as"]),
    ] {
        for args in [&[][..], &["--quiet"]] {
            let page = printed(torture(args).envs(variables.iter().copied()), 1);
            let joined: String = page.split_whitespace().collect();
            for part in parts.iter().chain(&["a variable is wrong"]) {
                assert!(joined.contains(&part.replace(' ', "")), "{part}: {page}");
            }
        }
        let page = printed(torture(&["--json"]).envs(variables.iter().copied()), 1);
        let document: Value = serde_json::from_str(&page).expect("a JSON document");
        assert_eq!(document["error"]["what"], "a variable is wrong");
    }
}

#[test]
fn all_schemes_are_compared() {
    let _turn = turn();
    if !can_run() {
        return;
    }
    let document = json(&["--seconds", "2", "--scheme", "all", "--handler-delay", "30us"], 0);
    let schemes = document["schemes"].as_array().expect("a list");
    let of = |name: &str| schemes.iter().find(|one| one["scheme"] == name).expect("there is such a row");
    for name in ["nothing", "naive"] {
        assert!(number(of(name), "corrupted") > 0, "{}", of(name));
    }
    for name in ["lock-before-read", "pre-hooks", "both-hooks", "rucx"] {
        assert!(number(of(name), "operations") > 100, "{}", of(name));
    }
    for name in ["both-hooks", "rucx"] {
        assert_eq!(number(of(name), "corrupted"), 0, "{}", of(name));
    }
}

/// One alone: the exit status says whether it was seen to be wrong.
#[test]
fn a_weaker_scheme_alone() {
    let _turn = turn();
    if !can_run() {
        return;
    }
    for scheme in ["naive", "lock-before-read", "pre-hooks"] {
        let output = finish(&mut torture(&["--seconds", "1", "--json", "--scheme", scheme]));
        let report: Value = serde_json::from_slice(&output.stdout).expect("a JSON document");
        let seen = number(&report, "corrupted") > 0;
        assert_eq!(output.status.code(), Some(i32::from(!seen)), "{report}");
    }
}

#[test]
fn pages_fit_and_have_no_escape_codes_in_a_pipe() {
    let _turn = turn();
    for args in [&["--help"][..], &["--seconds", "1"], &["--seconds", "4", "--scheme", "rucx"]] {
        for locale in ["C.UTF-8", "C"] {
            if args[0] != "--help" && !can_run() {
                continue;
            }
            let page = printed(torture(args).env("LC_ALL", locale), 0);
            assert!(!page.contains('\u{1b}') && !page.contains('\r'), "{page}");
            for line in page.lines() {
                let trimmed = args[0] == "--help" || line.trim_end() == line;
                assert!(line.chars().count() <= 80 && trimmed, "{line:?}");
                assert!(locale != "C" || line.is_ascii(), "{line:?}");
            }
            if args.contains(&"4") {
                assert!(page.contains("3 of 4 s: "), "progress is told: {page}");
            }
        }
    }
}

#[test]
fn quiet_is_one_line() {
    let _turn = turn();
    if !can_run() {
        return;
    }
    let page = printed(&mut torture(&["--seconds", "1", "--quiet", "--seed", "7"]), 0);
    assert_eq!(page.lines().count(), 1, "{page}");
    assert!(page.starts_with("✓  corrupted: 0 of ") && page.ends_with("(seed 0x7)\n"), "{page}");
}

#[test]
fn wrong_arguments_are_usage_errors() {
    for args in [
        &["--seconds", "0"][..],
        &["--threads", "0"],
        &["--threads", "65"],
        &["--pattern", "x"],
        &["--scheme", "x"],
        &["--seed", "x"],
        &["--handler-delay", "x"],
        &["--unsafe-no-protection", "--scheme", "naive"],
        &["--unsafe-no-protection", "--monitor", "uffd"],
        &["--scheme", "naive", "--mode", "off"],
    ] {
        assert_eq!(printed(&mut torture(args), 2), "", "{args:?}");
    }
}

#[test]
fn interrupted_it_reports_what_it_has() {
    let _turn = turn();
    if !can_run() {
        return;
    }
    let mut running = Running::of(&mut torture(&["--seconds", "50"]));
    running.wait_for("rcache-torture");
    running.wait_for("3 of 50 s");
    running.signal(Signal::INT);
    let (status, page) = running.finish();
    assert_eq!(status.code(), Some(0), "{page}");
    assert!(page.contains("interrupted; corrupted: 0 of"), "{page}");
}

/// In a second there is too little to prove anything; both runs are told.
#[test]
fn a_proof_says_what_it_lacks() {
    let _turn = turn();
    if !can_run() {
        return;
    }
    let proof = |secs| json(&["--seconds", secs, "--prove", "--regions", "16", "--pattern", "brk"], 1);
    let mut document = proof("1");
    if number(&document["unprotected"], "corrupted") == 0 {
        document = proof("10"); // there is much else to do
    }
    assert_eq!(document["ok"], false);
    let lacks = document["lacks"].as_array().expect("a list");
    assert!(
        lacks.iter().any(|lack| lack.as_str().is_some_and(|lack| lack.ends_with("of 10,000 at least"))),
        "{document}"
    );
    for (run, corrupted) in [("protected", false), ("unprotected", true)] {
        assert_eq!(number(&document[run], "corrupted") > 0, corrupted, "{document}");
    }
    let page = printed(&mut torture(&["--seconds", "1", "--prove", "--quiet", "--pattern", "brk"]), 1);
    assert!(page.contains("nothing is proven") && page.lines().count() == 1, "{page}");
}

#[test]
fn what_is_denied_is_told_with_the_remedy() {
    let _turn = turn();
    // Where one is denied already, what is said is the same.
    // USERFAULTFD_IOC_NEW, on /dev/userfaultfd.
    let new_by_device = Deny { argument: Some((1, 0xAA00)), ..Deny::eperm(libc::SYS_ioctl) };
    let userfaultfd = denying(&[Deny::eperm(libc::SYS_userfaultfd), new_by_device]);
    let io_uring = denying(&[Deny::eperm(libc::SYS_io_uring_setup)]);
    for (change, parts) in [
        (&userfaultfd, ["nothing tells of changes", "userfaultfd is denied", "allow the system call"]),
        (&io_uring, ["no page-bound NIC", "io_uring_setup", "seccomp"]),
    ] {
        for args in [
            &["--seconds", "1"][..],
            &["--seconds", "1", "--quiet"],
            &["--seconds", "1", "--prove"],
            &["--seconds", "1", "--scheme", "all"],
        ] {
            // The first of all schemes needs none.
            let is_denied_later = args.contains(&"all") && parts[1].contains("userfaultfd");
            if is_denied_later && !can_run() {
                continue;
            }
            let page = printed(changed(&mut torture(args), change), 77);
            let joined: String = page.split_whitespace().collect();
            for part in parts {
                assert!(joined.contains(&part.replace(' ', "")), "{part}: {page}");
            }
        }
    }
    // Who asks for a cache is told that there can be none, and how to do without.
    let mut required = torture(&["--json"]);
    let page = printed(changed(required.env("UCX_RCACHE_ENABLE", "y"), &userfaultfd), 77);
    for part in ["UCX_RCACHE_ENABLE=y, but nothing tells of changes", "or set UCX_RCACHE_ENABLE=auto"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let page = printed(changed(&mut torture(&["--json"]), &io_uring), 77);
    let document: Value = serde_json::from_str(&page).expect("a JSON document");
    assert_eq!(document["ok"], false);
    assert!(document["error"]["remedy"].as_str().is_some_and(|remedy| !remedy.is_empty()), "{document}");
    // Without the kernel's events it can be shown what is wrong without them.
    if can_run() {
        let mut command = torture(&["--seconds", "1", "--unsafe-no-protection", "--quiet"]);
        printed(changed(&mut command, &userfaultfd), 0);
    }
}

#[test]
fn help_has_examples() {
    let help = printed(&mut torture(&["--help"]), 0);
    for part in ["--unsafe-no-protection", "--scheme all", "exit status", "lock-before-read"] {
        assert!(help.contains(part), "{part}: {help}");
    }
    assert!(printed(&mut rucx(&["--help"]), 0).contains("rcache-torture"));
}

#[test]
fn a_slow_handler_only_costs_hits() {
    let _turn = turn();
    if !can_run() {
        return;
    }
    let report = json(&["--seconds", "2", "--handler-delay", "1ms"], 0);
    assert!(number(&report, "corrupted") == 0 && number(&report, "operations") > 10, "{report}");
}
