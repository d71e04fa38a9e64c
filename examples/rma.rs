//! Remote memory: one process owns a region, another puts into it and gets from it, while the owner does nothing.
//!
//! ```sh
//! cargo run --example rma
//! ```

#![allow(clippy::print_stderr)] // a program, and this is what it has to say

use std::io::{Read, Write};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use ucp::{Context, Error, Features, MemMap};

const LEN: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let is_user = std::env::args().nth(1).as_deref() == Some("user");
    match if is_user { user() } else { owner() } {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rma: {error}\n     what to do: {}", error.remedy());
            ExitCode::FAILURE
        }
    }
}

/// Owns memory, and gives an address and a key away.
fn owner() -> Result<(), Error> {
    let ctx = Context::builder().features(Features::RMA).build()?;
    let worker = ctx.worker()?;
    let region = ctx.mem_map(MemMap::allocate(LEN))?;
    region.write(4096, b"what the owner wrote")?;

    // Both are secrets: they go by a pipe, each behind its length.
    let mut child = Command::new(std::env::current_exe()?).arg("user").stdin(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        let (address, rkey) = (worker.address()?, region.rkey_pack()?);
        for part in [address.as_bytes(), rkey.as_bytes()] {
            stdin.write_all(&(part.len() as u64).to_le_bytes())?;
            stdin.write_all(part)?;
        }
    }
    child.wait()?; // no progress is needed for what others do with the region
    let mut seen = [0; 19];
    region.read(0, &mut seen)?;
    eprintln!("owner: {:?} is in my memory", String::from_utf8_lossy(&seen));
    Ok(())
}

/// Uses another process's memory.
fn user() -> Result<(), Error> {
    let (address, rkey) = (read_part()?, read_part()?);
    let ctx = Context::builder().features(Features::RMA).build()?;
    let worker = ctx.worker()?;
    let ep = worker.connect(&address)?;
    let remote = ep.rkey_unpack(&rkey)?;
    eprintln!("user:  {} bytes of another process, over {}", remote.len(), remote.transport());

    // In the manner of futures …
    worker.block_on(async {
        let buf = remote.get(4096, vec![0; 20]).await?; // the vector comes back
        eprintln!("user:  got {:?}", String::from_utf8_lossy(&buf));
        remote.put(0, b"what the user wrote".to_vec()).await?;
        ep.flush().await?; // now it is there for all to see
        Ok::<_, Error>(())
    })??;

    // … or blocking, with a bound.
    let buf = worker.wait(remote.get(0, ctx.buf(4)?), PATIENCE)?;
    eprintln!("user:  and {:?} of it is back", String::from_utf8_lossy(&buf));

    match worker.wait(remote.put(LEN as u64 - 1, vec![1, 2]), PATIENCE) {
        Ok(_) => eprintln!("user:  wrote beyond the end"),
        Err(error) => eprintln!("user:  refused, as it must be: {error}"),
    }
    Ok(())
}

fn read_part() -> std::io::Result<Vec<u8>> {
    let mut len = [0; 8];
    std::io::stdin().read_exact(&mut len)?;
    let mut part = Vec::new();
    std::io::stdin().take(u64::from_le_bytes(len)).read_to_end(&mut part)?;
    Ok(part)
}
