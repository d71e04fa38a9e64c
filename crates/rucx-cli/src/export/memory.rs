//! What is exported: memory of the library's, a buffer of this process's heap, or a file.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use ucp::{Context, MemMap, Region};

use super::{Args, sys};
use crate::memory::{Memory, each_chunk};
use crate::pattern::Pattern;
use crate::shell;
use crate::trouble::{Failure, Trouble};

/// A region, and what it is made of.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) region: Region,
    /// Dropped after the region.
    _file: Option<sys::File>,
    /// What it is made of, in words.
    pub(super) kind: String,
    /// What else there is to know.
    pub(super) note: Option<String>,
}

impl Source {
    /// Maps what the arguments say.
    ///
    /// # Errors
    /// There is no such file, not as much memory, or the library refuses it.
    pub(super) fn map(ctx: &Context, args: &Args) -> Result<Self, Failure> {
        let (map, file, kind, note) = match &args.file {
            Some(path) => {
                let (file, note) = file(path, args.read_only)?;
                let map = MemMap::raw(file.0.raw());
                let map = if file.1 { map } else { map.read_only() };
                (map, Some(file.0), format!("the file {}, shared", path.display()), note)
            }
            None if args.heap => {
                let buffer = heap(args.size.to_usize(), args.fill.as_ref())?;
                let map =
                    if args.read_only { MemMap::read_only_buffer(buffer) } else { MemMap::buffer(buffer) };
                (map, None, "a Vec of this process's heap".to_owned(), None)
            }
            None => {
                let map = MemMap::allocate(args.size.to_usize());
                let map = if args.read_only { map.read_only() } else { map };
                (map, None, "fresh memory".to_owned(), None)
            }
        };
        let region = ctx.mem_map(map.exported()).map_err(|error| Trouble::of("map it", error))?;
        Ok(Self { region, _file: file, kind, note })
    }

    /// Fills it, if the arguments say so.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn fill(&self, args: &Args) -> Result<(), Failure> {
        match &args.fill {
            // A buffer was filled before it was given away.
            Some(pattern) if !args.heap => {
                fill(&self.region, pattern).map_err(|error| Trouble::of("fill it", error))
            }
            _ => Ok(()),
        }
    }
}

/// Writes a pattern to all of `mem`.
///
/// # Errors
/// What the library answered.
pub(crate) fn fill(mem: &impl Memory, pattern: &Pattern) -> Result<(), ucp::AccessError> {
    each_chunk(0, mem.size(), |offset, chunk| {
        pattern.fill(offset, chunk);
        mem.put(offset, chunk)
    })
}

fn heap(size: usize, pattern: Option<&Pattern>) -> Result<Vec<u8>, Failure> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(size).map_err(|error| {
        Trouble::own(
            format!("cannot allocate {size} bytes of heap"),
            error.to_string(),
            "ask for less: --size",
        )
    })?;
    buffer.resize(size, 0);
    if let Some(pattern) = pattern {
        pattern.fill(0, &mut buffer);
    }
    Ok(buffer)
}

/// Maps a file; whether it may be written, and if not though it was meant to be, a note why.
fn file(path: &Path, read_only: bool) -> Result<((sys::File, bool), Option<String>), Failure> {
    let what = || format!("cannot map the file {}", path.display());
    let failed = |error: io::Error, remedy: &str| Trouble::own(what(), error.to_string(), remedy);
    let found = fs::metadata(path).map_err(|error| failed(error, "name a file that is there: --file"))?;
    if !found.is_file() {
        let reason = "it is a directory, a device, a socket or a pipe";
        return Err(Trouble::own(what(), reason, "name a regular file: --file"));
    }
    let (file, note) = open(path, read_only)
        .map_err(|error| failed(error, &format!("see who may read it: ls -l {}", shell::path(path))))?;
    let len = file.metadata().map_err(|error| failed(error, "see the error of the system"))?.len();
    if len == 0 {
        let remedy = format!("give it a size: truncate -s 64M {}", shell::path(path));
        return Err(Trouble::own(what(), "it is empty", remedy));
    }
    let writable = !read_only && note.is_none();
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    let mapped = sys::File::map(file.as_fd(), len, writable)
        .map_err(|error| Trouble::own(what(), error.to_string(), error.remedy()))?;
    Ok(((mapped, writable), note))
}

/// Opens a file for writing, or if that is not allowed, for reading, with a note that says so.
fn open(path: &Path, read_only: bool) -> io::Result<(File, Option<String>)> {
    if read_only {
        return Ok((File::open(path)?, None));
    }
    match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => Ok((file, None)),
        Err(error) => {
            let file = File::open(path)?;
            Ok((file, Some(format!("read-only, because the file cannot be opened for writing: {error}"))))
        }
    }
}
