//! What runs in the guest: the test binaries, and the first program, which sets up a device of rxe for them.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::{Options, Trouble, within};
use crate::command::{self, Env};

/// The tests, each row the arguments of a `cargo test`. Another row, other binaries in the same guest, one after another.
const TESTS: &[&[&str]] = &[
    &["-p", "rxe-tests", "--features", "guest", "--test", "device"],
    &["-p", "rdma-core-sys", "--features", "rxe-tests", "--test", "rxe"],
];

/// Seconds for building them.
const BUILD_BOUND: u64 = 15 * 60;
/// Seconds for each binary.
pub(crate) const TEST_BOUND: u64 = 120;

/// Builds the tests; their binaries.
pub(crate) fn build_tests(env: &Env, work: &Path) -> Result<Vec<PathBuf>, Trouble> {
    let path = work.join("build.log");
    let mut log = File::create(&path).map_err(|error| Trouble::file(&path, error))?;
    let mut binaries = Vec::new();
    for row in TESTS {
        let argv = ["cargo", "test", "--locked", "--no-run", "--message-format", "json-render-diagnostics"];
        let argv: Vec<String> = argv.iter().chain(*row).map(|arg| (*arg).to_owned()).collect();
        let ended = command::run(&mut env.command(&argv), &mut log, within(BUILD_BOUND), &mut |_| {});
        if !ended.ok {
            ended.output.lines().filter(|line| !line.starts_with('{')).for_each(|line| println!("{line}"));
            return Err(Trouble::Failed(format!("building the tests: {}", ended.how)));
        }
        let built = executables(&ended.output);
        if built.is_empty() {
            return Err(Trouble::Failed(format!("{row:?} has built no test")));
        }
        binaries.extend(built);
    }
    Ok(binaries)
}

/// The paths of the tests that cargo has built; not of programs they start.
fn executables(output: &str) -> Vec<PathBuf> {
    let messages = output.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let tests = messages.filter(|message| message["profile"]["test"] == true);
    tests.filter_map(|message| message["executable"].as_str().map(PathBuf::from)).collect()
}

/// The guest's first program, up to what it is started for.
const SCRIPT: &str = r#"#!/bin/busybox sh
# The guest's first program, by cargo xtask rxe.
export PATH=/bin HOME=/tmp RUST_BACKTRACE=1
/bin/busybox --install -s /bin 2>/dev/null
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs shm /dev/shm
mount -t tmpfs tmp /tmp

leave() {
    echo # what has been killed has not ended its line
    echo "rxe: exit $1"
    stty -F /dev/console sane 2>/dev/null # waits until the console has said all
    printf "\\$(printf %o $(($1 + 16)))" | dd of=/dev/port bs=1 seek=244 count=1 2>/dev/null
    poweroff -f
}
give_up() {
    echo "rxe: $1"
    dmesg | tail -n 30
    leave 99
}

read -r up rest </proc/uptime
echo "rxe: Linux $(uname -r) is up after $up s"
for module in $(cat /modules/order); do
    insmod "/modules/$module" || give_up "no module $module"
done
ulimit -l unlimited
# By their paths: busybox has programs of these names, too.
/bin/ip link set lo up
/bin/ip link add net0 type veth peer name net1 || give_up "no veth"
/bin/ip addr add 10.0.0.1/24 dev net0
/bin/ip link set net0 up
/bin/ip link set net1 up
/bin/rdma link add rxe0 type rxe netdev net0 || give_up "no device of rxe"
gid=/sys/class/infiniband/rxe0/ports/1/gids/1
tries=0
while [ "$(cat $gid 2>/dev/null | tr -d :0)" = "" ]; do
    tries=$((tries + 1))
    [ $tries -lt 300 ] || give_up "rxe0 has no GID of IPv4"
    sleep 0.1
done
read -r up rest </proc/uptime
echo "rxe: rxe0 is there after $up s"
"#;

/// Runs each test binary, and leaves with the status of the last that failed, which has to fit.
const RUN_TESTS: &str = r#"status=0
for test in /tests/*; do
    echo "rxe: running ${test#/tests/}"
    rc=0
    timeout BOUND "$test" --test-threads 1 FILTER || rc=$?
    if [ $rc != 0 ]; then
        status=$rc
        echo
        echo "rxe: its status is $rc (143: killed after BOUND s)"
    fi
done
[ $status = 0 ] || dmesg | tail -n 30
leave $((status > 98 ? 98 : status))
"#;

const RUN_SHELL: &str = "echo 'rxe: a shell; it ends with exit'\nsetsid cttyhack sh\nleave 0\n";

/// The guest's first program.
pub(crate) fn init(options: &Options) -> String {
    let filter = options.filter.as_deref().unwrap_or_default();
    let rest = if options.shell {
        RUN_SHELL.to_owned()
    } else {
        RUN_TESTS.replace("BOUND", &TEST_BOUND.to_string()).replace("FILTER", filter)
    };
    SCRIPT.to_owned() + &rest
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
        assert_eq!(executables(output), [PathBuf::from("/t/debug/deps/a-1")]);
    }

    #[test]
    fn scripts_are_what_a_shell_reads() {
        let filter = Options { filter: Some("gid".to_owned()), ..Options::default() };
        let shell = Options { shell: true, ..Options::default() };
        for options in [Options::default(), filter, shell] {
            let checked = std::process::Command::new("/bin/sh").args(["-n", "-c", &init(&options)]).status();
            assert!(checked.unwrap().success(), "{options:?}");
        }
    }
}
