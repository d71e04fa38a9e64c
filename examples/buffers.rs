//! Buffers of your own as operands: they are given to an operation by value, and come back, also when it fails.
//!
//! ```sh
//! cargo run --example buffers
//! ```

#![allow(clippy::print_stderr)] // a program, and this is what it has to say

use std::process::ExitCode;

use ucp::{Context, Features, MemMap};

const LEN: usize = 1 << 20;

fn main() -> ExitCode {
    match buffers() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("buffers: {error}\n         what to do: {}", error.remedy());
            ExitCode::FAILURE
        }
    }
}

fn buffers() -> Result<(), ucp::Error> {
    // What another process exports, usually: see `host`.
    let owner = Context::builder().features(Features::EXPORTED_MEMH).build()?;
    let region = owner.mem_map(MemMap::allocate(LEN).exported())?;
    let handle = region.memh_pack()?;

    let ctx = Context::builder().features(Features::EXPORTED_MEMH).build()?;
    let host = ctx.mem_import(handle.as_bytes())?;

    let ones = host.put(0, vec![1; LEN])?; // the vector comes back: use it again, or drop it
    let mut seen = host.get(0, ones)?;
    seen.truncate(4); // as many bytes are read as the vector has
    seen = host.get(LEN as u64 - 4, seen)?;
    eprintln!("buffers: {seen:?} over {}", host.transport());

    host.put(4096, &b"static bytes"[..])?;
    let mut private = host.get(4096, ctx.buf(12)?)?; // memory of the context's
    private[0] = b'S';
    eprintln!("buffers: {:?}", String::from_utf8_lossy(&private));

    handle.revoke()?;
    match host.put(0, seen) {
        Ok(_) => eprintln!("buffers: what is revoked was written to"),
        Err(failed) => eprintln!("buffers: {failed}; {:?} is back", failed.operand),
    }
    let looked_up = ctx.rcache_stats().gets; // a transport that needs no registration asks for none
    eprintln!("buffers: {looked_up} operands were looked up in the registration cache");

    Ok(())
}
