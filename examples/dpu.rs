//! The importing side. Reads a handle from its standard input: see `host`.

#![allow(clippy::print_stderr)] // a program, and this is what it has to say

use std::io;
use std::process::ExitCode;

use ucp::{Context, Features, read_handle};

const ANSWER: u64 = 4096;
const DONE: u64 = 8192;

fn main() -> ExitCode {
    match dpu() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dpu: {error}\n     what to do: {}", error.remedy());
            ExitCode::FAILURE
        }
    }
}

fn dpu() -> Result<(), ucp::Error> {
    let bytes = read_handle(&mut io::stdin().lock())?;

    let ctx = Context::builder().features(Features::EXPORTED_MEMH).build()?;
    let host = ctx.mem_import(&bytes)?;

    let mut greeting = [0; 19];
    host.read(0, &mut greeting)?;
    let text = String::from_utf8_lossy(&greeting);
    eprintln!("dpu: {} MiB over {}: {text:?}", host.len() >> 20, host.transport());

    host.write(ANSWER, b"hello from the DPU")?;
    host.store(DONE, 1u64)?;
    Ok(())
}
