//! The exporting side. Prints a handle to its standard output, for `dpu` to read:
//!
//! ```sh
//! cargo run --example host | cargo run --example dpu
//! ```

#![allow(clippy::print_stderr)] // a program, and this is what it has to say

use std::io::{self, Write};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use ucp::{Context, Features, MemMap};

/// Where the DPU leaves its answer, and the word that says it is there.
const ANSWER: u64 = 4096;
const DONE: u64 = 8192;

fn main() -> ExitCode {
    match host() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("host: {error}\n      what to do: {}", error.remedy());
            ExitCode::FAILURE
        }
    }
}

fn host() -> Result<(), ucp::Error> {
    let ctx = Context::builder().features(Features::EXPORTED_MEMH).build()?;
    let mem = ctx.mem_map(MemMap::allocate(64 << 20).exported())?;
    mem.write(0, b"hello from the host")?;

    let handle = mem.memh_pack()?;
    io::stdout().write_all(handle.as_bytes())?; // a secret: who holds these bytes may read and write `mem`
    io::stdout().flush()?;

    let deadline = Instant::now() + Duration::from_secs(30);
    while mem.load::<u64>(DONE)? == 0 {
        if Instant::now() > deadline {
            return Err(io::Error::other("no DPU came within 30 s").into());
        }
        thread::sleep(Duration::from_millis(1));
    }
    let mut answer = [0; 18];
    mem.read(ANSWER, &mut answer)?;
    eprintln!("host: the DPU wrote {:?}", String::from_utf8_lossy(&answer));

    handle.revoke()?; // from here on the handle is stale, for ever
    Ok(())
}
