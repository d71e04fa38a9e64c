//! What export is for: a DPU moves data between its host's memory and a third process, a peer, while the host sleeps.
//!
//! ```sh
//! cargo run --example dpu_offload
//! ```
//!
//! ```text
//! HOST: owns memory, sleeps ◀──import── DPU: drives ──endpoint, rkey──▶ PEER: owns memory, does nothing
//! ```

#![allow(clippy::print_stderr)] // a program, and this is what it has to say

use std::io::{Read, Write};
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::time::Duration;

use ucp::{Context, Error, Features, MemMap, read_handle};

const HALF: u64 = 8 << 20;
const LEN: usize = 16 << 20;
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let role = std::env::args().nth(1);
    let done = match role.as_deref() {
        Some("host") => host(),
        Some("peer") => peer(),
        _ => dpu(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dpu_offload: {error}\n             what to do: {}", error.remedy());
            ExitCode::FAILURE
        }
    }
}

/// Exports memory, and sleeps until the DPU is done.
fn host() -> Result<(), Error> {
    let ctx = Context::builder().features(Features::EXPORTED_MEMH).build()?;
    let mem = ctx.mem_map(MemMap::allocate(LEN).exported())?;
    mem.write(0, &[b'h'; LEN / 2])?; // the first half is to go to the peer
    let handle = mem.memh_pack()?;
    std::io::stdout().write_all(handle.as_bytes())?; // a secret: it goes by a pipe
    std::io::stdout().flush()?;

    std::io::stdin().read_to_end(&mut Vec::new())?; // asleep: the kernel wakes it when the DPU closes the pipe
    let last: u8 = mem.load(LEN as u64 - 1)?;
    eprintln!("host: slept, and its second half is {:?} now", char::from(last));
    Ok(())
}

/// Offers memory to whoever has the key, and does nothing either.
fn peer() -> Result<(), Error> {
    let ctx = Context::builder().features(Features::RMA).build()?;
    let worker = ctx.worker()?;
    let region = ctx.mem_map(MemMap::allocate(LEN))?;
    region.write(HALF, &[b'p'; LEN / 2])?; // the second half is to go to the host
    let (address, rkey) = (worker.address()?, region.rkey_pack()?);
    let mut stdout = std::io::stdout();
    for part in [address.as_bytes(), rkey.as_bytes()] {
        stdout.write_all(&(part.len() as u64).to_le_bytes())?;
        stdout.write_all(part)?;
    }
    stdout.flush()?;

    std::io::stdin().read_to_end(&mut Vec::new())?;
    let first: u8 = region.load(0)?;
    eprintln!("peer: its first half is {:?} now", char::from(first));
    Ok(())
}

/// Drives both.
fn dpu() -> Result<(), Error> {
    let (mut host, mut host_says) = start("host")?;
    let (mut peer, mut peer_says) = start("peer")?;
    let handle = read_handle(&mut host_says)?;
    let (address, rkey) = (read_part(&mut peer_says)?, read_part(&mut peer_says)?);

    let ctx = Context::builder().features(Features::RMA | Features::EXPORTED_MEMH).build()?;
    let memory = ctx.mem_import(&handle)?;
    let worker = ctx.worker()?;
    let ep = worker.connect(&address)?;
    let remote = ep.rkey_unpack(&rkey)?;

    // From the host's memory to the peer's, and back: no byte of it is the DPU's own.
    worker.wait(remote.put(0, memory.slice(..HALF)?), PATIENCE)?;
    worker.wait(remote.get(HALF, memory.slice(HALF..)?), PATIENCE)?;
    worker.wait(ep.flush(), PATIENCE)?;
    eprintln!(
        "dpu:  {} MiB host → peer, {0} MiB peer → host; host over {}, peer over {}",
        HALF >> 20,
        memory.transport(),
        remote.transport()
    );
    for child in [&mut host, &mut peer] {
        drop(child.stdin.take());
        child.wait()?;
    }
    Ok(())
}

fn start(role: &str) -> std::io::Result<(Child, ChildStdout)> {
    let mut child = Command::new(std::env::current_exe()?)
        .arg(role)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let says = child.stdout.take().ok_or_else(|| std::io::Error::other("no pipe"))?;
    Ok((child, says))
}

fn read_part(from: &mut impl Read) -> std::io::Result<Vec<u8>> {
    let mut len = [0; 8];
    from.read_exact(&mut len)?;
    let mut part = Vec::new();
    from.take(u64::from_le_bytes(len)).read_to_end(&mut part)?;
    Ok(part)
}
