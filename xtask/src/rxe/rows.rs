//! The tests that run in the guest, and how each is run.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::{Trouble, within};
use crate::command::{self, Env};

/// One `cargo test`. Another row, other binaries in the same guest, one after another.
#[derive(Debug)]
pub(crate) struct Row {
    /// Its arguments.
    pub(crate) build: &'static [&'static str],
    /// Of the binary: parts of the names of tests, and what else it takes. `--filter` stands for the parts, if it is given.
    pub(crate) only: &'static [&'static str],
    /// Parts of the names of tests to leave out.
    pub(crate) skip: &'static [&'static str],
    /// Seconds for the binary.
    pub(crate) secs: u64,
    pub(crate) setting: Setting,
    /// Whether its bytes have to go by a device, whose packets are counted: no transport beside it passes its tests.
    pub(crate) sends: bool,
    /// Why it is left out on Linux 6.1, as a skip, and the remedy.
    pub(crate) not_on_old: Option<&'static str>,
}

/// How the guest is set up for a row. It goes from one to the next, and never back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Setting {
    /// One device of rxe; processes reach into each other as their users allow.
    Plain,
    /// The same, with packets of as many bytes as a page has.
    LongPackets,
    /// `kernel.yama.ptrace_scope` is 1.
    Yama,
    /// The same, and the tests are run by a user with no rights.
    YamaAsNobody,
    /// Two hosts with a device each, where there can be. Yama is as it was left.
    TwoHosts,
    /// The same, as network namespaces only.
    TwoNamespaces,
}

/// What most rows are.
const ROW: Row = Row {
    build: &[],
    only: &[],
    skip: &[],
    secs: 120,
    setting: Setting::Plain,
    sends: false,
    not_on_old: None,
};

/// Of the suites of transports.
const SUITE_SKIPS: &[&str] = &[
    "iface::",
    "concurrent::",
    "atomics::",
    "many::",
    "imported::",
    "given_back",
    "dropped_in_any_order",
    "every_byte_changed",
    "accesses_in_flight",
];

/// Of the suite of `verbs`: what takes minutes under an emulator.
const SLOW: &[&str] = &[
    "same_context::imported::every_pair",
    "two_processes::imported::every_pair",
    "many::a_thousand_regions",
];

/// The same of `verbs` as between machines; its interface is that of the other row.
const SLOW_REMOTE: &[&str] = &[
    "same_context::imported::every_pair",
    "two_processes::imported::every_pair",
    "many::a_thousand_regions",
    "iface::",
];

/// Of ucp's `processes`, by a device: what is left out.
const NOT_BY_DEVICE: &[&str] = &[
    // What belongs to other transports.
    "cma::",
    "hostile::",
    "ways::",
    "other_boot", // its handle means something wherever there is a network
    "wrong_token_in_one_of_two",
    "is_still_imported_from",
    "is_imported_from_again",
    "own_memory_without_cma",
    "raw_memory_unmapped", // pages that are registered stay
    "raw_memory_beyond_the_end",
    "view_outlives",
    "guard_without_drain", // what is no longer registered is not written
    // What none has a part in.
    "truncated_at",
    "trailing_bytes",
    "not_a_handle",
    "revoked_twice",
    "no_exporting_transport",
    "feature_missing",
    "configuration",
    "debug_shows",
    "exporter_runs_into",
    "map_count",
    "region::accessors",
    "region::streams",
    "region::private",
    "user_code",
    "a_buffer_may_hold",
    "raw_ranges",
    "within_one_context",
    // More than the guest has memory or time for, or in a network without a device.
    "beyond_four_gib",
    "regions_until",
    "nothing_is_left",
];

/// The table, in the order of [`Setting`].
pub(crate) const ROWS: &[Row] = &[
    Row { build: &["-p", "rxe-tests", "--features", "guest", "--test", "device"], ..ROW },
    Row { build: &["-p", "rdma-core-sys", "--features", "rxe-tests", "--test", "rxe"], sends: true, ..ROW },
    Row {
        build: &["-p", "uct-conformance", "--features", "rxe-tests", "--test", "verbs"],
        skip: SLOW,
        secs: 600,
        sends: true,
        ..ROW
    },
    Row {
        build: &["-p", "uct-conformance", "--features", "rxe-tests", "--test", "verbs_remote"],
        skip: SLOW_REMOTE,
        secs: 600,
        sends: true,
        ..ROW
    },
    // Within one process, by its device.
    Row {
        build: &["-p", "ucp", "--features", "rxe-tests", "--test", "workers"],
        // A peer that takes no answer gets no room for more, by a device; peers that speak by `shm`.
        skip: &["takes_no_answer", "raw::"],
        secs: 300,
        sends: true,
        ..ROW
    },
    // Processes, by the same device.
    Row {
        build: &["-p", "ucp", "--features", "rxe-tests", "--test", "peers"],
        skip: &["a_fork_s"], // a child has its parent's queue pairs: see docs/guide/rdma.md
        secs: 600,
        sends: true,
        ..ROW
    },
    // Imports: in the importer's domain, and as between machines.
    Row { build: &["-p", "ucp", "--features", "rxe-tests", "--test", "operands"], sends: true, ..ROW },
    Row {
        build: &["-p", "ucp", "--features", "rxe-tests", "--test", "imported_operands"],
        sends: true,
        ..ROW
    },
    Row {
        build: &["-p", "ucp", "--features", "rxe-tests", "--test", "atomics"],
        // A device's are not atomic towards its owner's processors; what has none by `cma` and `shm`.
        skip: &["both_sides", "where_there_are_none"],
        sends: true,
        ..ROW
    },
    Row {
        build: &["-p", "ucp", "--features", "rxe-tests", "--test", "fast_path"],
        // What makes no system call by processors makes one by rxe.
        only: &["device::", "endpoints_do_not_allocate"],
        sends: true,
        ..ROW
    },
    Row {
        build: &["-p", "ucp", "--features", "rxe-tests", "--test", "processes"],
        skip: NOT_BY_DEVICE,
        secs: 300,
        sends: true,
        ..ROW
    },
    Row {
        build: &["-p", "ucp", "--features", "rxe-tests", "--test", "processes"],
        only: &["hostile::answers"],
        ..ROW
    },
    // What monitors, registration caches and imports ask the kernel for, some have not: there they must do without. What asks the kernel for
    // nothing, or takes long under an emulator and no other way than elsewhere, is left out.
    Row {
        build: &["-p", "ucs", "--lib"],
        only: &["rcache::tests", "monitor::"],
        skip: &["merging::very_many", "lives::", "takes_long", "not_over_before"],
        ..ROW
    },
    // All of it: what a kernel has not, its tests say. They make fewer rounds than elsewhere.
    Row { build: &["-p", "uct-conformance", "--test", "rcache"], secs: 600, ..ROW },
    Row {
        build: &["-p", "uct", "--features", "rxe-tests", "--lib"],
        skip: &[
            "ring::",
            "service::net::",
            "revocations_and_accesses",
            "a_slot_is_taken_over",
            "device::what_is",
        ],
        secs: 300,
        ..ROW
    },
    Row { build: &["-p", "uct-conformance", "--test", "shm"], skip: SUITE_SKIPS, ..ROW },
    Row { build: &["-p", "uct-conformance", "--test", "cma"], skip: SUITE_SKIPS, ..ROW },
    Row { build: &["-p", "rucx-cli", "--test", "info"], only: &["what_this_kernel_has_not"], ..ROW },
    Row { build: &["-p", "ucp", "--test", "processes"], only: &["cma::access"], ..ROW },
    Row {
        build: &["-p", "ucp", "--test", "processes"],
        only: &["ways::"],
        skip: &["other_pid_namespace"],
        ..ROW
    },
    Row {
        build: &["-p", "ucp", "--test", "processes"],
        only: &["ways::other_pid_namespace"],
        not_on_old: Some(
            "before Linux 6.5 an exporter whose pid is not visible is taken for one that is gone — --kernel new",
        ),
        ..ROW
    },
    // What depends on packets' beginnings.
    Row {
        build: &["-p", "rdma-core-sys", "--features", "rxe-tests", "--test", "rxe"],
        only: &["on_demand::"],
        setting: Setting::LongPackets,
        not_on_old: Some("rxe has no on-demand paging there — --kernel new"),
        ..ROW
    },
    Row {
        build: &["-p", "uct", "--features", "rxe-tests", "--lib"],
        only: &["odp::tests::device::what_is"],
        setting: Setting::LongPackets,
        not_on_old: Some("rxe has no on-demand paging there — --kernel new"),
        ..ROW
    },
    Row { build: &["-p", "ucp", "--test", "processes"], only: &["cma::yama"], setting: Setting::Yama, ..ROW },
    Row {
        build: &["-p", "uct-conformance", "--test", "cma"],
        only: &["two_processes::access"],
        skip: SUITE_SKIPS,
        setting: Setting::YamaAsNobody,
        ..ROW
    },
    Row {
        build: &["-p", "rxe-tests", "--features", "guest", "--test", "two_hosts"],
        secs: 180,
        setting: Setting::TwoHosts,
        sends: true,
        ..ROW
    },
    Row {
        build: &["-p", "rucx-cli", "--features", "rxe-tests", "--test", "rdma"],
        setting: Setting::TwoNamespaces,
        not_on_old: Some("rxe has no devices of two network namespaces there — --kernel new"),
        sends: true,
        ..ROW
    },
    // The last: one of the devices is taken away in it.
    Row {
        build: &["-p", "rxe-tests", "--features", "guest", "--test", "memory"],
        secs: 600,
        setting: Setting::TwoNamespaces,
        ..ROW
    },
];

/// Seconds for building a row.
const BUILD_BOUND: u64 = 15 * 60;

/// A row whose binary is there.
#[derive(Debug)]
pub(crate) struct Built {
    pub(crate) row: &'static Row,
    pub(crate) binary: PathBuf,
    /// Programs that it starts: in the guest they are in /bin.
    pub(crate) programs: Vec<PathBuf>,
}

/// Builds the tests of these rows.
pub(crate) fn build(
    env: &Env,
    work: &Path,
    rows: impl Iterator<Item = &'static Row>,
) -> Result<Vec<Built>, Trouble> {
    let path = work.join("build.log");
    let mut log = File::create(&path).map_err(|error| Trouble::file(&path, error))?;
    let mut all: Vec<Built> = Vec::new();
    for row in rows {
        let known = all.iter().filter(|other| other.row.build == row.build);
        let mut binaries: Vec<PathBuf> = known.map(|other| other.binary.clone()).collect();
        binaries.dedup();
        let mut programs = Vec::new(); // once in the guest they are there for all
        if binaries.is_empty() {
            let output = cargo(env, &mut log, row.build)?;
            binaries = executables(&output, true);
            programs = executables(&output, false);
        }
        if binaries.is_empty() {
            return Err(Trouble::Failed(format!("{:?} has built no test", row.build)));
        }
        all.extend(binaries.into_iter().map(|binary| Built {
            row,
            binary,
            programs: std::mem::take(&mut programs),
        }));
    }
    Ok(all)
}

/// Builds the tests of one `cargo test`; what cargo says.
fn cargo(env: &Env, log: &mut File, args: &[&str]) -> Result<String, Trouble> {
    let argv = ["cargo", "test", "--locked", "--no-run", "--message-format", "json-render-diagnostics"];
    let argv: Vec<String> = argv.iter().chain(args).map(|arg| (*arg).to_owned()).collect();
    let mut command = env.command(&argv);
    // An emulated processor takes ten times as long.
    command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "1");
    let ended = command::run(&mut command, log, within(BUILD_BOUND), &mut |_| {});
    if !ended.ok {
        ended.output.lines().filter(|line| !line.starts_with('{')).for_each(|line| println!("{line}"));
        return Err(Trouble::Failed(format!("building the tests: {}", ended.how)));
    }
    Ok(ended.output)
}

/// The paths of the tests that cargo has built; or of the programs that these start.
fn executables(output: &str, tests: bool) -> Vec<PathBuf> {
    let messages = output.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let wanted = messages.filter(|message| message["profile"]["test"] == tests);
    wanted.filter_map(|message| message["executable"].as_str().map(PathBuf::from)).collect()
}

impl Row {
    /// The name of its binary for cargo; that of the package, of a library's.
    pub(crate) fn test(&self) -> &'static str {
        let after = |flag| self.build.iter().skip_while(|arg| **arg != flag).nth(1).copied();
        after("--test").or_else(|| after("-p")).unwrap_or_default()
    }

    /// The arguments its binary is run with.
    pub(crate) fn args<'a>(&self, filter: Option<&'a str>) -> Vec<&'a str> {
        let only = filter.map_or_else(|| self.only.to_vec(), |filter| vec![filter]);
        let skips = self.skip.iter().flat_map(|skip| ["--skip", *skip]);
        ["--test-threads", "1", "--color", "never"].into_iter().chain(only).chain(skips).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cargo_says_it_has_built() {
        let output = r#"   Compiling x
{"reason":"compiler-artifact","profile":{"test":false},"executable":null}
{"reason":"compiler-artifact","profile":{"test":false},"executable":"/t/debug/program"}
{"reason":"compiler-artifact","profile":{"test":true},"executable":"/t/debug/deps/a-1"}
{"reason":"build-finished","success":true}
"#;
        assert_eq!(executables(output, true), [PathBuf::from("/t/debug/deps/a-1")]);
        assert_eq!(executables(output, false), [PathBuf::from("/t/debug/program")]);
    }

    #[test]
    fn settings_never_go_back() {
        assert!(ROWS.is_sorted_by_key(|row| row.setting));
    }

    #[test]
    fn a_filter_stands_for_a_row_s_own() {
        let row = Row { only: &["a::", "b::"], skip: &["slow"], ..ROW };
        assert_eq!(
            row.args(None),
            ["--test-threads", "1", "--color", "never", "a::", "b::", "--skip", "slow"]
        );
        assert_eq!(
            row.args(Some("gid")),
            ["--test-threads", "1", "--color", "never", "gid", "--skip", "slow"]
        );
    }
}
