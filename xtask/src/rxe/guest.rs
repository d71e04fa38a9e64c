//! The guest's first program, which sets up a device of rxe and runs the tests.

use super::Options;
use super::kernel::Choice;
use super::rows::{Built, Setting};

/// The guest's first program, up to what it is started for.
const SCRIPT: &str = r#"#!/bin/busybox sh
# The guest's first program, by cargo xtask rxe.
export PATH=/bin HOME=/tmp RUST_BACKTRACE=1
export RUCX_TEST_SCALE=10 # it is emulated
/bin/busybox --install -s /bin 2>/dev/null
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs shm /dev/shm
mount -t ramfs -o mode=1777 tmp /tmp # unlike shared memory, as files are elsewhere

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
echo 4 >/proc/sys/vm/nr_hugepages

# has_gid DEVICE: until its GID of IPv4 is there.
has_gid() {
    tries=0
    while [ "$(cat "/sys/class/infiniband/$1/ports/1/gids/1" 2>/dev/null | tr -d :0)" = "" ]; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || give_up "$1 has no GID of IPv4"
        sleep 0.1
    done
    read -r up rest </proc/uptime
    echo "rxe: $1 is there after $up s"
}
# By their paths: busybox has programs of these names, too.
/bin/ip link set lo up
"#;

/// One device, on one end of a cable whose other end nobody has.
const ONE_DEVICE: &str = r#"/bin/ip link add net0 type veth peer name net1 || give_up "no veth"
/bin/ip addr add 10.0.0.1/24 dev net0
/bin/ip link set net0 up
/bin/ip link set net1 up
/bin/rdma link add rxe0 type rxe netdev net0 || give_up "no device of rxe"
has_gid rxe0
"#;

/// One device, on the cable to another guest; this one is `{host}`, at `{address}`.
const DEVICE_OF_TWO: &str = r#"/bin/ip addr add {address}/24 dev eth0 || give_up "no eth0"
/bin/ip link set eth0 up
/bin/rdma link add rxe0 type rxe netdev eth0 || give_up "no device of rxe"
has_gid rxe0
export RUCX_TWO_HOSTS={host}
"#;

/// Two network namespaces, each with an end of a cable, and a device on it. The old device goes first: it has the same address.
const NAMESPACES: &str = r#"/bin/rdma link delete rxe0
/bin/ip link delete net0
mkdir -p /run/netns
/bin/ip netns add a && /bin/ip netns add b || give_up "no network namespaces"
/bin/ip link add net-a netns a type veth peer name net-b netns b || give_up "no veth between them"
address=10.0.0.1
for host in a b; do
    /bin/ip -n $host addr add $address/24 dev net-$host
    /bin/ip -n $host link set net-$host up
    /bin/ip -n $host link set lo up
    address=10.0.0.2
done
for host in a b; do
    /bin/ip netns exec $host /bin/rdma link add rxe-$host type rxe netdev net-$host || give_up "no device in $host"
    has_gid rxe-$host
done
export RUCX_TWO_HOSTS=netns
"#;

/// Runs one test binary: its seconds, how many packets the devices have to send meanwhile at least, who runs it, its path and arguments. The
/// status of the last that failed is kept.
const RUN_TESTS: &str = r#"
uptime() {
    read -r up rest </proc/uptime
    echo "$up"
}
# sent: packets, of all devices; what was read within the last moments is answered again.
sent() {
    sleep 0.02
    cat /sys/class/infiniband/*/ports/1/hw_counters/sent_pkts 2>/dev/null | awk '{ sum += $1 } END { print sum + 0 }'
}
run() {
    secs=$1 least=$2 user=$3 test=$4
    shift 4
    echo "rxe: running ${test#/tests/} $*"
    rc=0
    before=$(sent) began=$(uptime)
    case $user in
    root) timeout "$secs" "$test" "$@" || rc=$? ;;
    *) timeout "$secs" su -p -s /bin/sh "$user" -c "exec $test $*" || rc=$? ;;
    esac
    packets=$(($(sent) - before))
    [ $packets -ge 0 ] || packets=0 # a device was taken away, with what it had counted
    echo "$began $(uptime) $packets" | awk '{ printf "\nrxe: after %.1f s and %d packets\n", $2 - $1, $3 }'
    if [ $packets -lt "$least" ]; then
        status=97
        echo "rxe: its bytes have not gone by a device"
    fi
    if [ $rc != 0 ]; then
        status=$rc
        echo "rxe: its status is $rc (143: killed after $secs s)"
    fi
}
# left_out TEST REASON: as a test binary says it.
left_out() {
    echo "test result: ok. 0 passed; 0 failed; 1 ignored"
    echo "SKIP $1: $2"
}
status=0
"#;

/// Leaves with the tests' status, which has to fit.
const LEAVE: &str = r#"[ $status = 0 ] || dmesg | tail -n 30
leave $((status > 98 ? 98 : status))
"#;

/// Makes the cable one for packets of 4096 bytes and their headers (`rxe_set_mtu`, `drivers/infiniband/sw/rxe/rxe.c`).
const LONG_PACKETS: &str = r#"for end in net0 net1; do
    /bin/ip link set $end mtu 4200 || give_up "no packets of 4200 bytes"
done
echo "rxe: packets have up to 4096 bytes"
export RUCX_LONG_PACKETS=y
"#;

/// Has Yama restrict what processes may do with each other (`Documentation/admin-guide/LSM/Yama.rst`).
const YAMA: &str = r#"scope=/proc/sys/kernel/yama/ptrace_scope
echo 1 >$scope && [ "$(cat $scope)" = 1 ] || give_up "its kernel has no Yama"
echo "rxe: kernel.yama.ptrace_scope is 1"
"#;

const RUN_SHELL: &str = "echo 'rxe: a shell; it ends with exit'\nsetsid cttyhack sh\nleave 0\n";

/// What this guest is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The only one; its kernel's rxe works in network namespaces, or does not.
    Alone { namespaces: bool },
    /// One of two: by name and address.
    OneOfTwo(&'static str, &'static str),
}

/// Two guests.
pub(crate) const TWO: [Role; 2] = [Role::OneOfTwo("a", "10.0.0.1"), Role::OneOfTwo("b", "10.0.0.2")];

/// The guest's first program, which runs these tests, or a shell.
pub(crate) fn init(options: &Options, role: Role, tests: &[Built]) -> String {
    let device = match role {
        Role::Alone { .. } => ONE_DEVICE.to_owned(),
        Role::OneOfTwo(host, address) => DEVICE_OF_TWO.replace("{host}", host).replace("{address}", address),
    };
    if options.shell {
        return SCRIPT.to_owned() + &device + RUN_SHELL;
    }
    let mut script = SCRIPT.to_owned() + &device + RUN_TESTS;
    let mut setting = Setting::Plain;
    for Built { row, binary, .. } in tests {
        let becomes = |other| setting < other && row.setting >= other;
        if becomes(Setting::LongPackets) && row.setting == Setting::LongPackets {
            script += LONG_PACKETS;
        }
        if becomes(Setting::Yama) && row.setting < Setting::TwoHosts {
            script += YAMA;
        }
        if becomes(Setting::TwoHosts) && role == (Role::Alone { namespaces: true }) {
            script += NAMESPACES;
        }
        setting = row.setting;
        let user = if setting == Setting::YamaAsNobody { "nobody" } else { "root" };
        let name = binary.file_name().unwrap_or_default().to_string_lossy();
        let args = row.args(options.filter.as_deref()).join(" ");
        let old = matches!(options.kernel, Choice::Old);
        if let Some(why) = row.not_on_old.filter(|_| old) {
            script += &format!("left_out '{}*' '{why}'\n", row.only.join("*, "));
            continue;
        }
        // There the tests that need two hosts have none, and say so.
        let has_hosts = !old || setting < Setting::TwoHosts;
        let least = u8::from(row.sends && has_hosts && options.filter.is_none());
        script += &format!("run {} {least} {user} /tests/{name} {args}\n", row.secs);
    }
    script + LEAVE
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::rows::{ROWS, Row};
    use super::*;

    fn built() -> Vec<Built> {
        ROWS.iter()
            .map(|row| Built { row, binary: PathBuf::from("/t/deps/a-1"), programs: Vec::new() })
            .collect()
    }

    #[test]
    fn scripts_are_what_a_shell_reads() {
        let filter = Options { filter: Some("gid".to_owned()), ..Options::default() };
        let shell = Options { shell: true, ..Options::default() };
        for options in [Options::default(), filter, shell] {
            for role in [Role::Alone { namespaces: true }, TWO[0]] {
                let script = init(&options, role, &built());
                let checked = std::process::Command::new("/bin/sh").args(["-n", "-c", &script]).status();
                assert!(checked.unwrap().success(), "{options:?}");
            }
        }
    }

    #[test]
    fn each_row_is_run_and_settings_are_made_once() {
        for namespaces in [true, false] {
            let script = init(&Options::default(), Role::Alone { namespaces }, &built());
            assert_eq!(script.matches("\nrun ").count(), ROWS.len());
            assert_eq!(script.matches(LONG_PACKETS).count(), 1);
            assert_eq!(script.matches(YAMA).count(), 1);
            assert_eq!(script.matches(NAMESPACES).count(), usize::from(namespaces));
        }
    }

    #[test]
    fn what_a_kernel_cannot_run_is_told() {
        let options = Options { kernel: Choice::Old, ..Options::default() };
        let script = init(&options, Role::Alone { namespaces: false }, &built());
        let has_to_send = script.lines().filter(|line| line.starts_with("run ") && line.contains(" 1 root "));
        let sends = |row: &&Row| row.sends && row.not_on_old.is_none() && row.setting < Setting::TwoHosts;
        assert_eq!(has_to_send.count(), ROWS.iter().filter(sends).count());
        let left_out = ROWS.iter().filter(|row| row.not_on_old.is_some()).count();
        assert_eq!(script.matches("\nleft_out ").count(), left_out);
        assert_eq!(script.matches("\nrun ").count(), ROWS.len() - left_out);
        let checked = std::process::Command::new("/bin/sh").args(["-n", "-c", &script]).status();
        assert!(checked.unwrap().success());
    }

    #[test]
    fn one_of_two_has_its_own_name_and_address() {
        let [a, b] = TWO.map(|role| init(&Options::default(), role, &[]));
        assert!(a.contains("10.0.0.1/24") && a.contains("RUCX_TWO_HOSTS=a\n"));
        assert!(b.contains("10.0.0.2/24") && b.contains("RUCX_TWO_HOSTS=b\n"));
    }
}
