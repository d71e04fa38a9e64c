//! Writing past the library: what does the kernel say?
//!
//! Memory exported through a file can be found by who may look into the exporter's `/proc/PID/fd`. Rights that only the library
//! knew would end there; a seal of the file does not.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use rustix::fs::{SealFlags, fcntl_get_seals};
use rustix::param::page_size;
use ucp::{ImportedRegion, Rights};

use super::protocol::Report;

/// Opens the exporter's file behind `import` and writes its first byte, as it is, again.
pub(crate) fn write(import: &ImportedRegion, exporter: u32) -> Report {
    attempt(import, exporter).unwrap_or_else(|error| Report::NotTried { why: error.to_string() })
}

fn attempt(import: &ImportedRegion, exporter: u32) -> io::Result<Report> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let wanted = if import.rights().contains(Rights::WRITE) { "rw-s" } else { "r--s" };
    let len = import.len().next_multiple_of(page_size() as u64);
    let inode = maps
        .lines()
        .filter_map(Line::parse)
        .find(|line| line.rights == wanted && line.len == len)
        .map(|line| line.inode)
        .ok_or_else(|| io::Error::other("no file is mapped for this import"))?;
    let file = OpenOptions::new().read(true).write(true).open(opened(exporter, inode)?)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, 0)?;
    let seals = fcntl_get_seals(&file).unwrap_or(SealFlags::empty()).bits();
    let errno = match file.write_all_at(&byte, 0) {
        Ok(()) => 0,
        Err(error) => u32::try_from(error.raw_os_error().unwrap_or(-1)).unwrap_or(u32::MAX),
    };
    Ok(Report::WrotePast { seals, errno })
}

/// Whether these seals, of [`Report::WrotePast`], keep writers away.
pub(crate) fn keeps_writers_away(seals: u32) -> bool {
    SealFlags::from_bits_retain(seals).contains(SealFlags::FUTURE_WRITE)
}

/// The path by which `process` has the file `inode` open.
fn opened(process: u32, inode: u64) -> io::Result<PathBuf> {
    for entry in fs::read_dir(format!("/proc/{process}/fd"))?.flatten() {
        // Follows the link: this is the file, not the link to it.
        if fs::metadata(entry.path()).is_ok_and(|meta| meta.ino() == inode) {
            return Ok(entry.path());
        }
    }
    Err(io::Error::other("the exporter does not have it open"))
}

/// A line of `/proc/PID/maps` that maps exported memory, see `proc_pid_maps(5)`.
#[derive(Debug, PartialEq)]
struct Line<'a> {
    len: u64,
    rights: &'a str,
    inode: u64,
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (fields, path) = line.split_once(" /memfd:rucx")?;
        if !path.starts_with(" (deleted)") {
            return None; // other files of rucx
        }
        let mut fields = fields.split_ascii_whitespace();
        let (begin, end) = fields.next()?.split_once('-')?;
        let address = |text| u64::from_str_radix(text, 16).ok();
        let len = address(end)?.checked_sub(address(begin)?)?;
        let rights = fields.next()?;
        let inode = fields.nth(2)?.parse().ok()?;
        Some(Self { len, rights, inode })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps() {
        let line =
            "7f0000000000-7f0000003000 r--s 00000000 00:01 4711                       /memfd:rucx (deleted)";
        assert_eq!(Line::parse(line), Some(Line { len: 0x3000, rights: "r--s", inode: 4711 }));
        assert_eq!(Line::parse(&line.replace("rucx", "rucx-exports")), None);
        assert_eq!(Line::parse("7f00-7f01 r--p 0 00:00 0 [heap]"), None);
    }
}
