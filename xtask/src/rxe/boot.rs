//! Running the guest, and what its end means. The tests' status travels twice: as a line, and as qemu's own status by the device
//! `isa-debug-exit`, in a range no failure of qemu is in. Both must be there and agree.

use std::fs::File;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::tools::Tools;
use super::{Trouble, within};
use crate::command::{self, Ended};

/// Seconds until the tests begin, and from their end on: ten times of what it takes under an emulator.
const BOUND: u64 = 90;
/// Lines of the guest's to show when it fails.
const TAIL: usize = 60;
/// What a kernel says when it cannot go on.
const PANIC: &str = "Kernel panic";
/// What the guest adds to its status.
const OFFSET: i32 = 16;

/// What qemu is given.
#[derive(Debug)]
pub(crate) struct Machine<'a> {
    pub(crate) tools: &'a Tools,
    pub(crate) kernel: &'a Path,
    pub(crate) initramfs: &'a Path,
    pub(crate) cable: Option<Cable>,
}

/// One end of a cable between two guests: a socket of this machine's, which one of them makes.
#[derive(Clone, Debug)]
pub(crate) struct Cable {
    pub(crate) socket: PathBuf,
    pub(crate) makes_it: bool,
}

impl Cable {
    /// qemu's arguments: a network interface on it, without a program for booting by it.
    fn args(&self) -> [String; 4] {
        let (end, mac) =
            if self.makes_it { ("server=on", "01") } else { ("server=off,reconnect-ms=200", "02") };
        let socket = self.socket.display();
        [
            "-netdev".to_owned(),
            format!("stream,id=cable,{end},addr.type=unix,addr.path={socket}"),
            "-device".to_owned(),
            format!("virtio-net-pci,netdev=cable,mac=52:54:00:00:00:{mac},romfile="),
        ]
    }
}

impl Machine<'_> {
    fn command(&self) -> Result<Command, Trouble> {
        let mut command = self.tools.command("qemu-system-x86_64")?;
        for dir in self.tools.firmware() {
            command.arg("-L").arg(dir);
        }
        let accelerator = if has_kvm() { "kvm" } else { "tcg,thread=multi,tb-size=256" };
        println!("rxe: qemu with {accelerator}");
        command.args(["-machine", "q35", "-accel", accelerator, "-cpu", "max", "-smp", "2", "-m", "1024"]);
        command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
        command.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=0x04"]);
        command.arg("-kernel").arg(self.kernel).arg("-initrd").arg(self.initramfs);
        let line = "console=ttyS0 panic=-1 oops=panic quiet loglevel=3 mitigations=off nokaslr no_timer_check \
                    tsc=reliable random.trust_cpu=on";
        command.args(["-append", line]);
        command.args(self.cable.iter().flat_map(Cable::args));
        Ok(command)
    }
}

/// Whether the processor says it can, and the kernel lets us.
fn has_kvm() -> bool {
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    can_virtualise(&processor) && File::options().read(true).write(true).open("/dev/kvm").is_ok()
}

fn can_virtualise(cpuinfo: &str) -> bool {
    cpuinfo.lines().any(|line| {
        line.starts_with("flags") && line.split_whitespace().any(|flag| flag == "vmx" || flag == "svm")
    })
}

/// Runs the guest, whose tests may take so many seconds, and prints what it says of them.
pub(crate) fn run(machine: &Machine<'_>, secs: u64, log: &Path) -> Result<Ended, Trouble> {
    let mut command = machine.command()?;
    command.args(["-serial", "stdio"]);
    let mut file = File::create(log).map_err(|error| Trouble::file(log, error))?;
    let mut ended = command::run(&mut command, &mut file, within(BOUND + secs), &mut |line| {
        if is_worth_showing(line.trim_end()) {
            println!("{}", line.trim_end());
        }
    });
    // A serial line's ends.
    ended.output = ended.output.replace('\r', "");
    Ok(ended)
}

/// The tests' lines, and those of the guest's first program.
fn is_worth_showing(line: &str) -> bool {
    ["test ", "SKIP ", "rxe: "].iter().any(|start| line.starts_with(start))
        || line.ends_with(" rounds")
        || line.contains(PANIC)
}

/// A shell in the guest, on this terminal.
pub(crate) fn interactive(machine: &Machine<'_>) -> Result<bool, Trouble> {
    if !std::io::stdin().is_terminal() {
        return Err(Trouble::Failed("--shell wants a terminal".to_owned()));
    }
    println!("rxe: Ctrl-A X ends qemu");
    let mut command = machine.command()?;
    command.args(["-serial", "mon:stdio"]).stdin(Stdio::inherit());
    let status = command.status().map_err(|error| Trouble::Failed(format!("qemu: {error}")))?;
    Ok(status.success() || status.code().and_then(of_guest) == Some(0))
}

/// The guest's status, from qemu's: the device makes 2n + 1 of n.
fn of_guest(code: i32) -> Option<i32> {
    let status = (code - 1) / 2 - OFFSET;
    (code % 2 == 1 && (0..=100).contains(&status)).then_some(status)
}

/// Whether the guest has run so many test binaries to its end and says that all is well; what not, in words. `all`: no filter has left one without
/// tests.
pub(crate) fn verdict(code: Option<i32>, output: &str, binaries: usize, all: bool) -> Result<(), String> {
    if output.contains(PANIC) {
        return Err("the guest's kernel has panicked".to_owned());
    }
    let said = output.lines().rev().find_map(|line| line.strip_prefix("rxe: exit ")?.parse::<i32>().ok());
    let Some(said) = said else { return Err("the guest has not come to its end".to_owned()) };
    let ended = output.lines().filter(|line| line.starts_with("test result: ")).count();
    let is_empty = |line: &str| line.starts_with("test result: ok. 0 passed; 0 failed; 0 ignored;");
    if all && output.lines().any(is_empty) {
        return Err("one of its rows has run no test: see what the row names".to_owned());
    }
    match code.and_then(of_guest) {
        Some(0) if said == 0 && ended == binaries => Ok(()),
        Some(0) if said == 0 => Err(format!("{ended} of {binaries} test binaries have said their results")),
        Some(status) if status == said => Err(format!("the guest's status is {status}")),
        _ => Err(format!("the guest says {said}, but qemu's status is {code:?}")),
    }
}

/// The end of what the guest has said, marked so that nobody counts its tests again.
pub(crate) fn print_tail(output: &str) {
    let lines: Vec<&str> = output.lines().collect();
    println!("rxe: the guest's last lines:");
    lines[lines.len().saturating_sub(TAIL)..].iter().for_each(|line| println!("  | {line}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_of_the_guest() {
        assert_eq!(of_guest(33), Some(0));
        assert_eq!(of_guest(233), Some(100));
        // qemu's own, those of signals, and beyond.
        for code in [-1, 0, 1, 2, 3, 31, 32, 34, 235, 255] {
            assert_eq!(of_guest(code), None, "{code}");
        }
    }

    #[test]
    fn a_guest_that_says_nothing_has_failed() {
        let fine = "test a ... ok\ntest result: ok. 1 passed\nrxe: exit 0\n";
        assert_eq!(verdict(Some(33), fine, 1, true), Ok(()));
        for code in [None, Some(0), Some(35)] {
            assert!(verdict(code, fine, 1, true).is_err(), "{code:?}");
        }
        assert!(verdict(Some(33), "test a ... ok\ntest result: ok. 1 passed\n", 1, true).is_err());
        assert!(verdict(Some(33), &format!("{PANIC} - not syncing\n{fine}"), 1, true).is_err());
        assert_eq!(
            verdict(Some(233), "rxe: exit 100\n", 1, true),
            Err("the guest's status is 100".to_owned())
        );
    }

    #[test]
    fn a_binary_without_results_has_failed() {
        let fine = "test result: ok. 1 passed\nrxe: exit 0\n";
        assert!(verdict(Some(33), fine, 2, true).is_err());
        assert!(verdict(Some(33), fine, 0, true).is_err());
        let empty =
            "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out\nrxe: exit 0\n";
        assert!(verdict(Some(33), empty, 1, true).unwrap_err().contains("no test"));
        assert_eq!(verdict(Some(33), empty, 1, false), Ok(()), "a filter is of one row's tests");
    }

    #[test]
    fn processors() {
        assert!(can_virtualise("model name\t: x\nflags\t\t: fpu svm sse\n"));
        assert!(!can_virtualise("flags\t\t: fpu sse\nvmx flags\t: vnmi\nbugs\t: vmx\n"));
    }
}
