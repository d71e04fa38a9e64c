//! `rucx info` as a user starts it.

#[allow(dead_code)] // what the demo's tests need beside
mod support;

use std::io;
use std::process::Command;
use std::sync::Arc;

use rustix::process::{Resource, Rlimit, setrlimit};
use serde_json::Value;
use support::{Change, changed, denying, finish, rucx, text};
use testkit::Deny;

/// What it prints, after the exit status was compared.
fn printed(command: &mut Command, code: i32) -> String {
    let output = finish(command);
    let page = text(&output.stdout);
    assert_eq!(output.status.code(), Some(code), "{page}{}", text(&output.stderr));
    page
}

fn info(args: &[&str]) -> String {
    printed(&mut rucx(&[&["info"], args].concat()), 0)
}

fn json(command: &mut Command, code: i32) -> Value {
    serde_json::from_str(&printed(command, code)).expect("a JSON document")
}

fn list<'a>(document: &'a Value, key: &str) -> &'a Vec<Value> {
    document[key].as_array().unwrap_or_else(|| panic!("{key} is a list: {document}"))
}

fn string<'a>(object: &'a Value, key: &str) -> &'a str {
    object[key].as_str().unwrap_or_else(|| panic!("{key} is a text: {object}"))
}

fn string_list(object: &Value, key: &str) -> String {
    list(object, key).iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
}

/// Without the line breaks that made it fit.
fn joined(text: &str) -> String {
    text.split_whitespace().collect()
}

fn row<'a>(document: &'a Value, key: &str) -> &'a Value {
    list(document, "system").iter().find(|row| row["key"] == key).expect("there is such a row")
}

/// Also run in the guests of `cargo xtask rxe`, of which one has an old kernel: what that has not is told, with what it takes.
#[test]
fn what_this_kernel_has_not_is_told() {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let kernel = (numbers.next().unwrap(), numbers.next().unwrap());
    let document = json(&mut rucx(&["info", "-s", "--json"]), 0);
    for (key, since) in [("memory_monitor", (6, 7)), ("pidfs", (6, 9)), ("procmap_query", (6, 11))] {
        let row = row(&document, key);
        let is_there = string(row, "state") == "good";
        assert_eq!(is_there, kernel >= since, "{row}");
        if !is_there {
            let remedy = format!("boot Linux {}.{} or newer", since.0, since.1);
            assert_eq!(string(row, "remedy"), remedy, "{row}");
            assert!(!string(row, "cost").is_empty(), "{row}");
        }
    }
}

#[test]
fn pages_fit_and_have_no_escape_codes_in_a_pipe() {
    for args in
        [&[][..], &["-d"], &["-c"], &["-s"], &["-dcs"], &["-e"], &["--devices", "--config"], &["--help"]]
    {
        for locale in ["C.UTF-8", "C"] {
            let page = printed(rucx(&[&["info"], args].concat()).env("LC_ALL", locale), 0);
            assert!(page.lines().count() > 5, "{page}");
            assert!(!page.contains('\u{1b}'), "{page}");
            for line in page.lines() {
                assert!(line.chars().count() <= 80 && line.trim_end() == line, "{line:?}");
                assert!(locale != "C" || line.is_ascii(), "{line:?}");
            }
        }
    }
    let forced = printed(rucx(&["info"]).env("CLICOLOR_FORCE", "1"), 0);
    assert!(forced.contains("\u{1b}["), "{forced}");
}

#[test]
fn endpoints_tell_what_they_go_by_and_why() {
    let document = json(&mut rucx(&["info", "-e", "--json"]), 0);
    let uses = list(&document, "endpoints");
    let by: Vec<_> = uses.iter().map(|one| (string(one, "what"), string(one, "transport"))).collect();
    assert_eq!(by, [("messages", "shm"), ("long messages", "cma"), ("memory", "shm"), ("buffers", "cma")]);
    for one in uses {
        let cost = |name: &str| {
            let of = list(one, "candidates").iter().find(|of| of["transport"] == name);
            of.and_then(|of| of["cost_base"].as_f64())
        };
        assert!(cost(string(one, "transport")).is_some_and(|cost| cost > 0.0), "{one}");
    }
    let page = joined(&info(&["-e"]));
    for candidate in uses.iter().flat_map(|one| list(one, "candidates")) {
        // What is told differs from run to run only in the contexts' numbers.
        let why = string(candidate, "why");
        assert!(why.contains('…') || page.contains(&joined(why)), "{why}: {page}");
    }
    assert!(json(&mut rucx(&["info", "--json"]), 0)["endpoints"].is_null());

    let page = printed(rucx(&["info", "-e"]).env("UCX_TLS", "self"), 1);
    assert!(page.contains("no transport reaches it") && page.contains("remedy: "), "{page}");
}

#[test]
fn json_and_the_pages_tell_the_same() {
    let document = json(&mut rucx(&["info", "--json"]), 0);
    assert_eq!(document["rucx"], env!("CARGO_PKG_VERSION"));
    assert!(document["error"].is_null());
    let page = joined(&info(&["-dcs"]));
    let told = |text: &str| assert!(page.contains(&joined(text)), "{text:?} is missing: {page}");
    for transport in list(&document, "devices") {
        // Without a device, that is what is told of verbs.
        let is_used = string(transport, "name") != "verbs" || !list(transport, "memory_domains").is_empty();
        assert_eq!((transport["used"].as_bool(), transport["reason"].is_null()), (Some(is_used), is_used));
        for domain in list(transport, "memory_domains") {
            told(&format!("{}: memory domain {}", string(transport, "name"), string(domain, "name")));
            told(&string_list(domain, "flags"));
            for detail in list(domain, "details") {
                told(&format!("{} {}", string(detail, "name"), string(detail, "value")));
            }
        }
        for capability in list(transport, "capabilities") {
            let answer = if capability["supported"] == true { "yes" } else { "no" };
            told(&format!("{} {answer} {}", string(transport, "name"), string(capability, "note")));
            told(string(capability, "name"));
        }
    }
    for variable in list(&document, "config") {
        told(&format!(
            "{}={} ({})",
            string(variable, "name"),
            string(variable, "value"),
            string(variable, "origin")
        ));
        told(string(variable, "doc"));
    }
    for row in list(&document, "system") {
        told(string(row, "name"));
        let lacks = row["state"] != "good";
        for key in ["cost", "remedy"] {
            assert_eq!(row[key].is_string(), lacks, "{row}");
            if lacks {
                told(string(row, key));
            }
        }
        // How many huge pages are free may change in between.
        if row["key"] != "hugetlb" {
            told(string(row, "value"));
        }
    }
}

#[test]
fn json_has_what_was_asked_for() {
    for (args, keys) in [
        (&["-d"][..], [true, false, false]),
        (&["-c"], [false, true, false]),
        (&["-s"], [false, false, true]),
        (&["-d", "-s"], [true, false, true]),
        (&[], [true, true, true]),
    ] {
        let document = json(&mut rucx(&[&["info", "--json"], args].concat()), 0);
        let found = ["devices", "config", "system"].map(|key| document[key].is_array());
        assert_eq!(found, keys, "{args:?}");
    }
}

#[test]
fn every_variable_is_listed_with_its_origin() {
    let own = uct::transports::components().iter().flat_map(|component| component.vars());
    let all = ucp::config::VARS.iter().chain(uct::config::VARS).chain(own);
    let page = info(&["-c"]);
    let document = json(rucx(&["info", "-c", "--json"]).env("UCX_IMPORT_TIMEOUT", "7s"), 0);
    for var in all {
        assert!(page.contains(var.name()) && joined(&page).contains(&joined(var.doc())), "{var:?}: {page}");
        let variable = list(&document, "config").iter().find(|one| one["name"] == var.name()).unwrap();
        let origin = if var.name() == "UCX_IMPORT_TIMEOUT" { "environment" } else { "default" };
        assert_eq!((string(variable, "origin"), string(variable, "doc")), (origin, var.doc()));
    }
    let set = printed(rucx(&["info"]).env("UCX_IMPORT_TIMEOUT", "7s"), 0);
    assert!(set.contains("UCX_IMPORT_TIMEOUT=7s (environment)"), "{set}");
}

#[test]
fn a_transport_that_is_not_allowed_says_so() {
    let page = printed(rucx(&["info", "-d"]).env("UCX_TLS", "self"), 0);
    assert!(page.contains("-  shm    not in use: not allowed by UCX_TLS"), "{page}");
    assert!(page.contains("✓  self   in use"), "{page}");
    // What it could do is told all the same.
    assert!(page.contains("shm    yes  a sealed memfd per allocation"), "{page}");
}

#[test]
fn wrong_variables_are_told_with_the_remedy() {
    for args in [&["info"][..], &["info", "-d"], &["info", "-c"]] {
        let page = printed(rucx(args).env("UCX_TLS", "shn"), 1);
        for part in ["✗  no context can be made", "unknown in the list: shn", "did you mean shm?"] {
            assert!(page.contains(part), "{part}: {page}");
        }
    }
    let document = json(rucx(&["info", "--json"]).env("UCX_TLS", "shn"), 1);
    assert!(string(&document["error"], "remedy").contains("did you mean shm?"), "{document}");
    assert_eq!(document["error"]["status"], "InvalidParam");
    // The others are told all the same.
    let page = printed(rucx(&["info", "-c"]).env("UCX_MAX_IMPORTS", "many").env("UCX_TLS", "shm"), 1);
    assert!(page.contains("✗  UCX_MAX_IMPORTS") && page.contains("UCX_TLS=shm (environment)"), "{page}");
    let none = printed(rucx(&["info", "-d"]).env("UCX_TLS", ""), 1);
    assert!(none.contains("allow one of them in UCX_TLS"), "{none}");
    // The system is what it is.
    printed(rucx(&["info", "-s"]).env("UCX_TLS", "shn"), 0);
}

#[test]
fn variables_of_the_registration_cache_are_checked_one_by_one_and_together() {
    let both = |command: &mut Command| {
        command.env("UCX_RCACHE_ENABLE", "y").env("UCX_MEM_EVENTS", "n");
    };
    for args in [&["info"][..], &["info", "-c"]] {
        let mut command = rucx(args);
        both(&mut command);
        let page = joined(&printed(&mut command, 1));
        for part in [
            "✗ UCX_MEM_EVENTS=n (environment)",
            "UCX_RCACHE_ENABLE=y asks for a registration cache, and UCX_MEM_EVENTS=n turns it off",
            "remedy: set one of UCX_RCACHE_ENABLE and UCX_MEM_EVENTS only",
        ] {
            assert!(page.contains(&joined(part)), "{part}: {page}");
        }
    }
    let mut command = rucx(&["info", "-c", "--json"]);
    both(&mut command);
    let document = json(&mut command, 1);
    let wrong: Vec<_> = list(&document, "config").iter().filter(|one| !one["error"].is_null()).collect();
    assert_eq!((wrong.len(), string(wrong[0], "name")), (1, "UCX_MEM_EVENTS"), "{wrong:?}");
    assert_eq!(wrong[0]["error"]["status"], "InvalidParam");
    // Only the program can say that.
    let page = printed(rucx(&["info", "-c"]).env("UCX_RCACHE_MODE", "hooks"), 1);
    assert!(joined(&page).contains("remedy:setUCX_RCACHE_MODE=strict"), "{page}");
    // One that is no value at all keeps a context from being made.
    let page = printed(rucx(&["info", "-c"]).env("UCX_RCACHE_MAX_REGIONS", "inf"), 1);
    let told = joined(&page);
    for part in
        ["✗ no context can be made", "expected a whole number from 1 to 1048576", "UCX_RCACHE_MODE=auto"]
    {
        assert!(told.contains(&joined(part)), "{part}: {page}");
    }
}

#[test]
fn wrong_arguments_are_usage_errors() {
    for args in [&["info", "x"][..], &["info", "--jsn"], &["info-probe", "x"]] {
        assert_eq!(finish(&mut rucx(args)).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn help_has_examples_and_hides_the_probe() {
    let help = info(&["--help"]);
    assert!(help.contains("rucx info -s") && help.contains("exit status"), "{help}");
    assert!(!text(&finish(&mut rucx(&["--help"])).stdout).contains("probe"));
}

#[test]
fn low_limits_are_told() {
    let mut command = rucx(&["info", "-s", "--json"]);
    let low: Change = Arc::new(|| limit(Resource::Nofile, 64).and_then(|()| limit(Resource::Fsize, 8 << 20)));
    let document = json(changed(&mut command, &low), 0);
    for (key, value) in [("rlimit_nofile", "64"), ("rlimit_fsize", "8 MiB")] {
        let row = row(&document, key);
        assert!(row["state"] == "limited" && string(row, "value").starts_with(value), "{row}");
    }
}

#[test]
fn where_nothing_can_be_exported_no_transport_is_good() {
    let too_small: Change = Arc::new(|| limit(Resource::Fsize, (4 << 20) - 1));
    let no_memfd = denying(&[Deny::eperm(libc::SYS_memfd_create)]);
    for (cause, change) in [("RLIMIT_FSIZE", &too_small), ("memfd_create", &no_memfd)] {
        for args in [&["info"][..], &["info", "-d"]] {
            let page = printed(changed(&mut rucx(args), change), 1);
            let told = joined(&page);
            for name in ["shm", "cma"] {
                let line = format!("✗{name}inuse,butnothingcanbeexported:{cause}(seerucxinfo-s)");
                assert!(told.contains(&line) || told.contains(&format!("{name}notinuse")), "{page}");
            }
        }
        let document = json(changed(&mut rucx(&["info", "--json"]), change), 1);
        assert!(string(&list(&document, "devices")[0], "export_fault").contains(cause), "{document}");
        // Which is true.
        let handle = tempfile::tempdir().unwrap().path().join("handle");
        let mut command = rucx(&["export", "--heap", "--size", "4K", "--for", "10ms", "--out"]);
        printed(changed(command.arg(handle), change), 1);
    }
    let page = joined(&printed(changed(&mut rucx(&["info", "-s"]), &no_memfd), 1));
    assert!(page.contains("nottried:memfd_createisrefused"), "{page}");
}

#[test]
fn the_directory_of_service_sockets_is_judged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let page = printed(rucx(&["info"]).env("UCX_SERVICE_DIR", path), 0);
    assert!(joined(&page).contains(&joined(&format!("{path}: a directory in which"))), "{page}");
    let missing = format!("{path}/x");
    let page = printed(rucx(&["info"]).env("UCX_SERVICE_DIR", &missing), 1);
    for part in ["it is not there", "costs nothing can be exported", "make the directory"] {
        assert!(joined(&page).contains(&joined(part)), "{part}: {page}");
    }
    assert!(!joined(&page).contains("orsetUCX_SERVICE_DIR"), "{page}");
    let document = json(rucx(&["info", "-s", "--json"]).env("UCX_SERVICE_DIR", "/".repeat(61)), 1);
    assert_eq!(row(&document, "service_dir")["state"], "missing");
    assert_eq!(row(&json(&mut rucx(&["info", "-s", "--json"]), 0), "service_dir")["value"], "not set");
}

/// Whether userfaultfd works here; where not, what is said is the same.
fn has_userfaultfd() -> bool {
    let document = json(&mut rucx(&["info", "-s", "--json"]), 0);
    string(row(&document, "memory_monitor"), "value").starts_with("userfaultfd")
}

#[test]
fn what_watches_memory_is_told_and_why_nothing_does() {
    // USERFAULTFD_IOC_NEW, on /dev/userfaultfd: the other way.
    let new_by_device = |deny: Deny| Deny { call: libc::SYS_ioctl, argument: Some((1, 0xAA00)), ..deny };
    let denied = Deny::eperm(libc::SYS_userfaultfd);
    let denying_both = denying(&[denied, new_by_device(denied)]);
    let document = json(changed(&mut rucx(&["info", "-s", "--json"]), &denying_both), 0);
    let monitor = row(&document, "memory_monitor");
    assert_eq!(string(monitor, "value"), "none: userfaultfd is denied, probably by the seccomp filter");
    assert_eq!((string(monitor, "state"), string(monitor, "group")), ("note", "registrations"));
    assert!(string(monitor, "cost").starts_with("no registration is kept"), "{monitor}");
    assert!(string(monitor, "remedy").contains("allow userfaultfd in the seccomp profile"), "{monitor}");
    assert_eq!(string(row(&document, "rcache_mode"), "value"), "off: nothing tells of changes of memory");
    let page = joined(&printed(changed(&mut rucx(&["info", "-s"]), &denying_both), 0));
    assert!(page.contains("memorymonitornone:userfaultfdisdenied,probablybytheseccompfilter"), "{page}");
    // A filter that kills.
    let kills = denying(&[Deny { call: libc::SYS_userfaultfd, argument: None, errno: None }]);
    let document = json(changed(&mut rucx(&["info", "-s", "--json"]), &kills), 0);
    let monitor = row(&document, "memory_monitor");
    assert_eq!(string(monitor, "value"), "none: a seccomp filter kills whoever starts it");
    assert!(string(monitor, "remedy").ends_with("or set UCX_MEM_EVENTS=n"), "{monitor}");
    if !has_userfaultfd() {
        return;
    }
    let document = json(&mut rucx(&["info", "-s", "--json"]), 0);
    assert!(string(row(&document, "rcache_mode"), "value").starts_with("strict: "), "{document}");
    // In a child, too.
    let harmless = denying(&[Deny::eperm(libc::SYS_swapoff)]);
    let filtered = json(changed(&mut rucx(&["info", "-s", "--json"]), &harmless), 0);
    for key in ["memory_monitor", "rcache_mode", "procmap_query"] {
        assert_eq!(row(&filtered, key), row(&document, key));
    }
    for (variable, value) in [("UCX_MEM_EVENTS", "n"), ("UCX_RCACHE_ENABLE", "n"), ("UCX_RCACHE_MODE", "off")]
    {
        let document = json(rucx(&["info", "-s", "--json"]).env(variable, value), 0);
        assert_eq!(string(row(&document, "rcache_mode"), "value"), format!("off: {variable}={value}"));
        let watched = string(row(&document, "memory_monitor"), "value").starts_with("userfaultfd");
        assert_eq!(watched, variable != "UCX_MEM_EVENTS", "{variable}");
    }
}

#[test]
fn figures_are_told_after_an_exercise() {
    let figure = |document: &Value, group: &str, name: &str| {
        let figures = document["stats"]["figures"].as_array().expect("a list").clone();
        let found = figures.into_iter().find(|one| one["group"] == group && one["name"] == name);
        found.unwrap_or_else(|| panic!("{group}.{name}: {document}"))["value"].as_u64().expect("a number")
    };
    let ask = || rucx(&["info", "--stats", "--json"]);
    let off = json(ask().env("UCX_RCACHE_MODE", "off"), 0);
    assert_eq!((figure(&off, "rcache", "hits"), figure(&off, "rcache", "one_shots")), (0, 4000));
    assert_eq!((figure(&off, "monitor", "watches"), &off["system"]), (0, &Value::Null));
    let kills = denying(&[Deny { call: libc::SYS_userfaultfd, argument: None, errno: None }]);
    let killed = json(changed(&mut ask(), &kills), 1);
    assert!(string(&killed["stats"]["error"], "text").contains("kills whoever starts"), "{killed}");
    for (variable, value, remedy) in [
        ("UCX_RCACHE_MAX_REGIONS", "0", "rucx info -c"),
        ("UCX_RCACHE_MODE", "hooks", "UCX_RCACHE_MODE=strict"),
    ] {
        let wrong = json(ask().env(variable, value), 1);
        assert!(string(&wrong["stats"]["error"], "remedy").contains(remedy), "{wrong}");
        let page = printed(rucx(&["info", "--stats"]).env(variable, value), 1);
        assert!(page.contains("nothing was counted") && page.contains("remedy: "), "{page}");
    }
    let nothing_kept = json(ask().env("UCX_RCACHE_MAX_SIZE", "0"), 0);
    assert_eq!(figure(&nothing_kept, "rcache", "one_shots"), 4000);
    if !has_userfaultfd() {
        return;
    }
    let document = json(&mut ask(), 0);
    assert_eq!(figure(&document, "rcache", "gets"), 4000, "{document}");
    // What nobody can tell of changes is registered for one use: on a busy machine that is more often so.
    let (hits, one_shots) = (figure(&document, "rcache", "hits"), figure(&document, "rcache", "one_shots"));
    assert!(hits > 100 && hits + one_shots > 2000, "{document}");
    let (unmapped, watches) =
        (figure(&document, "monitor", "unmapped"), figure(&document, "monitor", "watches"));
    assert!(unmapped > 30 && unmapped > watches / 2, "{document}");
    let page = printed(&mut rucx(&["info", "--stats"]), 0);
    assert!(
        page.contains("Registration cache") && page.lines().all(|line| line.chars().count() <= 80),
        "{page}"
    );
}

#[test]
fn who_reads_no_further_is_no_failure() {
    for args in ["info --json", "info -dcs"] {
        let line = format!("set -o pipefail; {} {args} | head -1", env!("CARGO_BIN_EXE_rucx"));
        let output = finish(Command::new("bash").args(["-c", &line]).env_clear());
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()), "{args}");
    }
}

fn limit(resource: Resource, value: u64) -> io::Result<()> {
    Ok(setrlimit(resource, Rlimit { current: Some(value), maximum: Some(value) })?)
}

#[test]
fn a_filter_that_kills_is_survived_and_named() {
    let readv = Deny { call: libc::SYS_process_vm_readv, argument: None, errno: None };
    let filter = denying(&[readv, Deny::eperm(libc::SYS_userfaultfd)]);
    let document = json(changed(&mut rucx(&["info", "-s", "--json"]), &filter), 0);
    let seccomp = row(&document, "seccomp");
    assert!(string(seccomp, "value").contains("filter"), "{seccomp}");
    for call in ["process_vm_readv", "userfaultfd"] {
        assert!(string(seccomp, "cost").contains(call), "{seccomp}");
    }
    let readv = row(&document, "process_vm_readv");
    assert_eq!(
        (string(readv, "state"), string(readv, "value")),
        ("limited", "a seccomp filter kills whoever calls it")
    );
    let uffd = row(&document, "userfaultfd");
    assert!(
        string(uffd, "value").starts_with("fails: ") && string(uffd, "remedy").contains("seccomp"),
        "{uffd}"
    );
    assert_eq!(row(&document, "memfd_create")["state"], "good");
}
