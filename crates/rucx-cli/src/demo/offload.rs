//! `rucx demo offload`: a DPU moves bytes between two others, of which one sleeps, and is stopped at last.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::child::Failure;
use super::protocol::{Command, Descriptor};
use super::stage::{Stage, take_apart};
use super::steps::{MAIN, export, map};
use crate::frame::Secret;
use crate::memory::each_chunk;
use crate::pattern::Pattern;
use crate::ui::Who;
use crate::units;

/// What `rucx demo offload --help` says.
pub(crate) const ABOUT: &str = "\
Runs three processes which share nothing but pipes. The HOST exports memory,
hands the handle to the DPU, and sleeps. The DPU imports it, connects to the
PEER, pulls bytes from the PEER's memory into the HOST's and pushes others from
the HOST's to the PEER's. All bytes are compared on all sides, and the CPU time
is told that the HOST has taken meanwhile. Then the same once more while the
HOST is stopped (SIGSTOP).
The exit status is 0 only if all checks held.";

/// Below that.
pub(crate) const EXAMPLES: &str = "\
Examples:
  rucx demo offload                   64 MiB, all transports
  rucx demo offload --size 1G         1 GiB
  rucx demo offload --tls shm --quiet one line: did it work?
  UCX_VERBS_SHARE=y ip netns exec a rucx demo offload --tls verbs --peer-netns b
                                      by RDMA devices of two network namespaces";

/// For how long bytes are moved, the same ones again and again.
const MOVING: Duration = Duration::from_millis(300);
/// How much CPU time a HOST may take that does nothing: what it takes to be asked twice how much it was.
const IDLE: Duration = Duration::from_millis(2);
/// How long a process may need to stop.
const STOPS: Duration = Duration::from_secs(5);
/// The columns of the table at the end.
const HEAD: [&str; 2] = [
    "                   moved   pulled   pushed    HOST's CPU",
    "the HOST                     GB/s     GB/s          time",
];

/// Plays it. Whether all checks held.
///
/// # Errors
/// The story cannot go on.
pub(super) fn play(stage: &mut Stage, inherited: &[Descriptor]) -> Result<bool, Failure> {
    let host = greet(stage, inherited)?;
    let handle = export(stage)?;
    if connect(stage, handle)? {
        let sleeps = moved(stage, "The DPU moves bytes; the HOST sleeps", [1, 2], None)?;
        let stopped = moved(stage, "The same while the HOST is stopped", [3, 4], Some(host))?;
        stage.ui.section(5, "What it took")?;
        stage.ui.table(&HEAD, &[sleeps.cells("sleeps"), stopped.cells("stopped")])?;
        stage.ui.note(&format!(
            "The CPU time is that of all threads of the HOST ({}), from before the first byte to after the last.",
            "clock_gettime: CLOCK_PROCESS_CPUTIME_ID"
        ))?;
    }
    stage.close()
}

/// Starts the story; the HOST's process.
fn greet(stage: &mut Stage, inherited: &[Descriptor]) -> Result<u32, Failure> {
    stage.part("Three processes")?;
    let parent = std::process::id();
    let (mut pids, mut unasked) = (Vec::new(), Vec::new());
    for who in [Who::Host, Who::Dpu, Who::Peer] {
        let report = stage.roles.ask(who, &Command::Hello { parent })?;
        let super::protocol::Report::Ready { pid, environment, descriptors, arguments } = report else {
            return Err(stage.roles.unexpected(who, report));
        };
        unasked.extend(export::unasked(&environment, &descriptors, &arguments, inherited));
        pids.push(pid);
    }
    let [host, dpu, peer] = pids[..] else { return Ok(0) };
    stage.say(Who::Host, &format!("process {host}: has memory, and nothing else to do"))?;
    stage.say(Who::Dpu, &format!("process {dpu}: moves bytes"))?;
    stage.say(Who::Peer, &format!("process {peer}: has memory, too"))?;
    let text = match &unasked[..] {
        [] => "nothing in common: three pipes each, no variable but UCX_*".to_owned(),
        unasked => format!("nothing in common, but they were given: {}", unasked.join(", ")),
    };
    stage.check(unasked.is_empty() && host != dpu && dpu != peer && host != peer, &text)?;
    Ok(host)
}

fn export(stage: &mut Stage) -> Result<Secret, Failure> {
    stage.part("The HOST exports memory, and the PEER has a key to its own")?;
    let (len, _) = map(stage, MAIN, stage.size, false, false)?;
    stage.check(len == stage.size, &format!("{len} bytes, as asked for"))?;
    take_apart!(stage, Host: stage.host(&Command::Pack { slot: MAIN, region: MAIN })? => Packed { handle, nanos });
    let size = units::bytes(handle.0.len() as u64);
    stage.say(Who::Host, &format!("packed a handle of {size} in {}", units::nanos(nanos)))?;
    Ok(handle)
}

/// Whether the DPU reaches both others.
fn connect(stage: &mut Stage, handle: Secret) -> Result<bool, Failure> {
    let size = stage.size;
    take_apart!(stage, Peer: stage.peer(&Command::Meet { size })? => Met { address, rkey, nanos });
    let (of_address, of_rkey) = (units::bytes(address.0.len() as u64), units::bytes(rkey.0.len() as u64));
    stage.say(
        Who::Peer,
        &format!("a worker whose address is {of_address}, a key of {of_rkey}, in {}", units::nanos(nanos)),
    )?;
    let report = stage.dpu(&Command::Import { slot: MAIN, handle })?;
    if !reached(stage, &report, "import the HOST's memory")? {
        return Ok(false);
    }
    take_apart!(stage, Dpu: report => Imported { transport, len, nanos });
    stage
        .say(Who::Dpu, &format!("imported the HOST's memory over {transport} in {}", units::nanos(nanos)))?;
    stage.check(len == size, &format!("{} of the HOST's", units::bytes(len)))?;
    let report = stage.dpu(&Command::Connect { address, rkey })?;
    if !reached(stage, &report, "connect to the PEER")? {
        return Ok(false);
    }
    take_apart!(stage, Dpu: report => Connected { messages, memory, len, nanos });
    let by = if messages == memory { messages } else { format!("{messages}, its memory over {memory}") };
    stage.say(Who::Dpu, &format!("connected to the PEER over {by} in {}", units::nanos(nanos)))?;
    stage.check(len == size, &format!("{} of the PEER's", units::bytes(len)))?;
    Ok(true)
}

/// Tells what keeps the DPU from it, if something does.
fn reached(stage: &mut Stage, report: &super::protocol::Report, what: &str) -> Result<bool, Failure> {
    let super::protocol::Report::Failed { fault } = report else { return Ok(true) };
    stage.roles.all_alive()?;
    stage.fault(Who::Dpu, &format!("cannot {what}"), fault)?;
    stage.said(&fault.said)?;
    stage.check(false, &format!("the DPU can {what}: {}", fault.status))?;
    Ok(false)
}

/// What a round took.
struct Took {
    pulled: u64,
    pull_nanos: u64,
    pushed: u64,
    push_nanos: u64,
    cpu: u64,
}

impl Took {
    fn cells(&self, host: &str) -> Vec<String> {
        let rate = |bytes, nanos: u64| units::rate(bytes, nanos.saturating_mul(1000));
        vec![
            format!("{host:<8}"),
            String::new(),
            format!("{:>10}", units::bytes(self.pulled + self.pushed)),
            rate(self.pulled, self.pull_nanos),
            rate(self.pushed, self.push_nanos),
            format!("{:>14}", units::nanos(self.cpu)),
        ]
    }
}

/// Both fill their memory, each with a pattern of its own; the DPU moves one half there and the other half back: then both have the same.
/// `stop`: the HOST's process, which is stopped meanwhile.
fn moved(stage: &mut Stage, title: &str, seeds: [u64; 2], stop: Option<u32>) -> Result<Took, Failure> {
    stage.part(title)?;
    let [of_host, of_peer] = seeds;
    take_apart!(stage, Host: stage.host(&Command::Fill { slot: MAIN, seed: of_host })? => Moved { crc });
    let before = crc;
    take_apart!(stage, Peer: stage.peer(&Command::Fill { slot: MAIN, seed: of_peer })? => Moved { crc });
    stage.say(Who::Host, &format!("filled its memory, crc32c {before:08x}; sleeps from here on"))?;
    stage.say(Who::Peer, &format!("filled its memory with other bytes, crc32c {crc:08x}"))?;
    take_apart!(stage, Host: stage.host(&Command::Usage {})? => Used { nanos });
    let begin = nanos;
    if let Some(pid) = stop {
        stage.roles.signal(Who::Host, Signal::STOP)?;
        let stopped = stops(pid);
        stage.check(stopped, &format!("the HOST, process {pid}, is stopped"))?;
    }
    let millis = units::in_nanos(MOVING) / 1_000_000;
    take_apart!(stage, Dpu: stage.dpu(&Command::Offload { slot: MAIN, millis })?
        => Offloaded { pulled, pull_nanos, pushed, push_nanos });
    stage
        .say(Who::Dpu, &format!("pulled {} from the PEER's memory into the HOST's", units::bytes(pulled)))?;
    stage.say(Who::Dpu, &format!("pushed {} from the HOST's memory to the PEER's", units::bytes(pushed)))?;
    let expected = expected(stage.size, of_peer, of_host);
    let part = format!("half of the PEER's, half of the HOST's, crc32c {expected:08x}");
    take_apart!(stage, Dpu: stage.dpu(&Command::Sum { slot: MAIN })? => Moved { crc });
    stage.check(crc == expected, &format!("the DPU sees what it should in the HOST's memory: {part}"))?;
    take_apart!(stage, Peer: stage.peer(&Command::Sum { slot: MAIN })? => Moved { crc });
    stage.check(crc == expected, "the PEER has the same")?;
    if let Some(pid) = stop {
        stage.check(state(pid) == Some('T'), "the HOST was stopped all the time, and is still")?;
        stage.roles.signal(Who::Host, Signal::CONT)?;
    }
    take_apart!(stage, Host: stage.host(&Command::Usage {})? => Used { nanos });
    let cpu = nanos.saturating_sub(begin);
    take_apart!(stage, Host: stage.host(&Command::Sum { slot: MAIN })? => Moved { crc });
    let awake = if stop.is_some() { "the HOST goes on, and has the same" } else { "the HOST has the same" };
    stage.check(crc == expected, awake)?;
    let moving = units::nanos(pull_nanos + push_nanos);
    let text = format!("the HOST took {} of CPU time, in {moving} of moving bytes", units::nanos(cpu));
    stage.check(cpu <= units::in_nanos(IDLE), &text)?;
    Ok(Took { pulled, pull_nanos, pushed, push_nanos, cpu })
}

/// The checksum of memory whose first half has the one pattern, and the second the other one.
fn expected(size: u64, first: u64, second: u64) -> u32 {
    let mut crc = 0;
    for (offset, len, seed) in [(0, size / 2, first), (size / 2, size - size / 2, second)] {
        let pattern = Pattern::Random(seed);
        let summed: Result<(), std::convert::Infallible> = each_chunk(offset, len, |offset, chunk| {
            pattern.fill(offset, chunk);
            crc = crc32c::crc32c_append(crc, chunk);
            Ok(())
        });
        match summed {
            Ok(()) => {}
        }
    }
    crc
}

/// Whether it stops, within bounds.
fn stops(pid: u32) -> bool {
    let end = Instant::now() + STOPS;
    while state(pid) != Some('T') {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// A process's state, as `proc_pid_stat(5)` has it.
fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_both_halves() {
        let size = 4097;
        let mut bytes = vec![0; 4097];
        Pattern::Random(1).fill(0, &mut bytes[..2048]);
        Pattern::Random(2).fill(2048, &mut bytes[2048..]);
        assert_eq!(expected(size, 1, 2), crc32c::crc32c(&bytes));
        assert_ne!(expected(size, 1, 2), expected(size, 2, 1));
    }

    #[test]
    fn processes_have_states() {
        assert!(matches!(state(std::process::id()), Some('R' | 'S')));
        assert_eq!(state(u32::MAX), None);
    }
}
