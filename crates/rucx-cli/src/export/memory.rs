//! What is exported: memory of the library's, a buffer of this process's heap, or a file.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::FsWord;
use ucp::{Context, MemMap, Region};

use super::{Args, sys};
use crate::memory::{Memory, each_chunk, of_longer};
use crate::pattern::Pattern;
use crate::trouble::{By, Failure, Trouble, refused, writable};
use crate::{shell, units};

/// A region, and what it is made of.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) region: Region,
    /// Dropped after the region.
    _file: Option<sys::File>,
    /// What it is made of, in words.
    pub(super) kind: String,
    /// Why peers may only read, though they were meant to write as well.
    pub(super) unwritable: Option<Unwritable>,
}

/// A file that cannot be opened for writing.
#[derive(Debug)]
pub(super) struct Unwritable {
    /// Why not.
    pub(super) reason: String,
    /// What to do about it.
    pub(super) remedy: String,
}

impl Source {
    /// Maps what the arguments say.
    ///
    /// # Errors
    /// There is no such file, not as much memory, or the library refuses it.
    pub(super) fn map(ctx: &Context, args: &Args) -> Result<Self, Failure> {
        let (map, file, kind, unwritable) = match &args.file {
            Some(path) => {
                let (file, unwritable) = file(path, args.read_only)?;
                let map = MemMap::raw(file.raw());
                let map = if args.read_only || unwritable.is_some() { map.read_only() } else { map };
                (map, Some(file), format!("the file {}, shared", path.display()), unwritable)
            }
            None if args.heap => {
                let buffer = heap(args.size, args.fill.as_ref())?;
                let map =
                    if args.read_only { MemMap::read_only_buffer(buffer) } else { MemMap::buffer(buffer) };
                (map, None, "a Vec of this process's heap".to_owned(), None)
            }
            None => {
                let map = MemMap::allocate(usize::try_from(args.size).unwrap_or(usize::MAX));
                let map = if args.read_only { map.read_only() } else { map };
                (map, None, "fresh memory".to_owned(), None)
            }
        };
        let region = ctx.mem_map(map.exported()).map_err(|error| Trouble::of("map it", error))?;
        Ok(Self { region, _file: file, kind, unwritable })
    }

    /// Fills it, if the arguments say so.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn fill(&self, args: &Args) -> Result<(), Failure> {
        let pattern = match &args.fill {
            // A buffer was filled before it was given away.
            Some(pattern) if !args.heap => pattern,
            _ => return Ok(()),
        };
        if let Some(Unwritable { reason, remedy }) = &self.unwritable {
            return Err(Trouble::own("cannot fill it: AccessDenied", reason, remedy));
        }
        let by = By::Exporter(args.file.as_deref());
        fill(&self.region, pattern).map_err(|error| refused("fill it", error, by))
    }
}

/// Writes a pattern to all of `mem`.
///
/// # Errors
/// What the library answered.
pub(crate) fn fill(mem: &impl Memory, pattern: &Pattern) -> Result<(), ucp::AccessError> {
    each_chunk(0, mem.size(), |offset, chunk| {
        pattern.fill(offset, chunk);
        mem.put(offset, chunk).map_err(|error| of_longer(error, offset))
    })
}

fn heap(size: u64, pattern: Option<&Pattern>) -> Result<Vec<u8>, Failure> {
    let mut buffer = Vec::new();
    let len = usize::try_from(size).unwrap_or(usize::MAX);
    buffer.try_reserve_exact(len).map_err(|error| {
        Trouble::own(
            format!("cannot allocate {} of heap", units::count(size)),
            error.to_string(),
            "ask for less: --size",
        )
    })?;
    buffer.resize(len, 0);
    if let Some(pattern) = pattern {
        pattern.fill(0, &mut buffer);
    }
    Ok(buffer)
}

/// Maps a file; if it may not be written though it was meant to be, with the reason.
fn file(path: &Path, read_only: bool) -> Result<(sys::File, Option<Unwritable>), Failure> {
    let what = || format!("cannot map the file {}", path.display());
    let failed = |error: io::Error, remedy: &str| Trouble::own(what(), error.to_string(), remedy);
    let found = fs::metadata(path).map_err(|error| failed(error, "name a file that is there: --file"))?;
    if !found.is_file() {
        let reason = "it is a directory, a device, a socket or a pipe";
        return Err(Trouble::own(what(), reason, "name a regular file: --file"));
    }
    let (file, unwritable) = open(path, read_only)
        .map_err(|error| failed(error, &format!("see who may read it: ls -l {}", shell::path(path))))?;
    let len = file.metadata().map_err(|error| failed(error, "see the error of the system"))?.len();
    if is_made_up(&file) {
        let reason = "the kernel makes up what is in it when it is read";
        return Err(Trouble::own(what(), reason, "export a copy of it"));
    }
    if len == 0 {
        let remedy = if unwritable.is_some() {
            "name a file that is not: --file".to_owned()
        } else {
            format!("give it a size: truncate -s 64M {}", shell::path(path))
        };
        return Err(Trouble::own(what(), "it is empty", remedy));
    }
    let writable = !read_only && unwritable.is_none();
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    let mapped = sys::File::map(file.as_fd(), len, writable)
        .map_err(|error| Trouble::own(what(), error.to_string(), error.remedy()))?;
    Ok((mapped, unwritable))
}

/// Whether a file is none of a disk or of memory: it has no bytes that could be mapped, whatever its size is said to be.
fn is_made_up(file: &File) -> bool {
    /// `f_type` of proc, sysfs, cgroup, cgroup2, debugfs, tracefs and securityfs: `linux/magic.h`.
    const MADE_UP: [FsWord; 7] =
        [0x9fa0, 0x6265_6572, 0x0027_e0eb, 0x6367_7270, 0x6462_6720, 0x7472_6163, 0x7363_6673];
    rustix::fs::fstatfs(file).is_ok_and(|found| MADE_UP.contains(&found.f_type))
}

/// Opens a file for writing, or if that is not allowed, for reading, with the reason.
fn open(path: &Path, read_only: bool) -> io::Result<(File, Option<Unwritable>)> {
    if read_only {
        return Ok((File::open(path)?, None));
    }
    match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => Ok((file, None)),
        Err(error) => {
            let file = File::open(path)?;
            let reason = format!("read-only, because the file cannot be opened for writing: {error}");
            let remedy = match error.kind() {
                io::ErrorKind::PermissionDenied => writable(path),
                _ => "export a copy of it".to_owned(),
            };
            Ok((file, Some(Unwritable { reason, remedy })))
        }
    }
}
