//! What is mapped at an address of this process: by `PROCMAP_QUERY` (Linux 6.11), else by the text of `/proc/self/maps`
//! (`proc_pid_maps(5)`).
//!
//! # Safety
//! The one ioctl here is given a structure of the size that its number says and a buffer of the length that the structure says, both
//! borrowed exclusively for the call.

#![allow(unsafe_code)]

use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

use super::lines;
use crate::mem::page::page_size;

/// `struct procmap_query` (`include/uapi/linux/fs.h`).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Query {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

const _: () = assert!(size_of::<Query>() == 104);

/// `PROCMAP_QUERY`: `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: Opcode = opcode::read_write::<Query>(b'f', 17);
/// `PROCMAP_QUERY_VMA_SHARED`.
const VMA_SHARED: u64 = 0x08;
/// Longer than the name of any memory that is no file: `/memfd:`, 249 bytes (`memfd_create(2)`), ` (deleted)`.
const NAME_LEN: usize = 320;

/// What a mapping maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Private memory without a file.
    Anonymous,
    /// The same of huge pages of hugetlbfs, if it is private: of a file that nobody else has (`HUGETLB_ANON_FILE`, `mm/hugetlb.c`).
    AnonymousHuge,
    /// Shared memory of a memfd, or without a name.
    Memory,
    /// A System V segment.
    SysV,
    /// Pages of the kernel's, such as the vDSO.
    Special,
    /// A file.
    File,
    /// That was not asked.
    Unasked,
}

/// A mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Vma {
    pub(super) start: usize,
    pub(super) end: usize,
    /// More than the system's for huge pages of hugetlbfs; unknown, and the system's, in the text.
    pub(super) page_size: usize,
    pub(super) shared: bool,
    pub(super) source: Source,
}

/// The mappings of the process that opened this.
#[derive(Debug)]
pub(super) struct Maps {
    /// `/proc/self/maps`, where it answers queries.
    queries: Option<OwnedFd>,
}

impl Maps {
    /// Opens it; by text only if `queries` is false or the kernel does not answer them.
    pub(super) fn open(queries: bool) -> Self {
        let open = || {
            let fd =
                rustix::fs::open(c"/proc/self/maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
            match query(fd.as_fd(), page_size(), None) {
                Ok(_) | Err(Errno::NOENT) => Some(fd),
                Err(_) => None,
            }
        };
        Self { queries: if queries { open() } else { None } }
    }

    /// The descriptor, where there is one.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.queries.as_ref().map(AsFd::as_fd)
    }

    /// The mapping at `address`, and what it maps.
    pub(super) fn at(&self, address: usize) -> Result<Option<Vma>, Errno> {
        match self.fd() {
            Some(fd) => {
                let mut name = [0; NAME_LEN];
                match query(fd, address, Some(&mut name)) {
                    Ok(query) => Ok(query.vma(Some(trimmed(&name)))),
                    Err(Errno::NOENT) => Ok(None),
                    // The name of a file only can be that long.
                    Err(Errno::NAMETOOLONG) => {
                        let vma = self.extent(address)?;
                        Ok(vma.map(|vma| Vma { source: Source::File, ..vma }))
                    }
                    Err(errno) => Err(errno),
                }
            }
            None => by_text(address),
        }
    }

    /// The mapping at `address`; what it maps only if that is known anyway.
    pub(super) fn extent(&self, address: usize) -> Result<Option<Vma>, Errno> {
        match self.fd() {
            Some(fd) => match query(fd, address, None) {
                Ok(query) => Ok(query.vma(None)),
                Err(Errno::NOENT) => Ok(None),
                Err(errno) => Err(errno),
            },
            None => by_text(address),
        }
    }
}

impl Query {
    fn vma(&self, name: Option<&[u8]>) -> Option<Vma> {
        let source = match name {
            Some(name) => source(name, self.inode, (self.dev_major, self.dev_minor)),
            None => Source::Unasked,
        };
        Some(Vma {
            start: usize::try_from(self.vma_start).ok()?,
            end: usize::try_from(self.vma_end).ok()?,
            page_size: usize::try_from(self.vma_page_size).ok()?,
            shared: self.vma_flags & VMA_SHARED != 0,
            source,
        })
    }
}

fn query(fd: BorrowedFd<'_>, address: usize, name: Option<&mut [u8; NAME_LEN]>) -> Result<Query, Errno> {
    let mut query = Query { size: size_of::<Query>() as u64, query_addr: address as u64, ..Query::default() };
    if let Some(name) = name {
        query.vma_name_size = u32::try_from(NAME_LEN).unwrap_or(0);
        query.vma_name_addr = name.as_mut_ptr().expose_provenance() as u64;
    }
    // SAFETY: the number is that of a structure of this layout.
    let request = unsafe { Updater::<'_, PROCMAP_QUERY, Query>::new(&mut query) };
    // SAFETY: the kernel writes to the structure and, as many bytes as it says, to the name.
    unsafe { ioctl(fd, request) }?;
    Ok(query)
}

/// The bytes before the first zero.
fn trimmed(name: &[u8]) -> &[u8] {
    name.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// What a mapping of that name, inode and device maps.
fn source(name: &[u8], inode: u64, device: (u32, u32)) -> Source {
    // File systems without a block device have major number 0: among them those behind memfds and System V segments.
    let without_device = device.0 == 0;
    match name {
        b"" | b"[heap]" if inode == 0 => Source::Anonymous,
        _ if inode == 0 && (name.starts_with(b"[anon:") || name.starts_with(b"[stack")) => Source::Anonymous,
        b"/anon_hugepage (deleted)" if without_device => Source::AnonymousHuge,
        _ if name.starts_with(b"[anon_shmem:") || name == b"/dev/zero (deleted)" => Source::Memory,
        _ if name.starts_with(b"[") => Source::Special,
        _ if without_device && name.starts_with(b"/SYSV") => Source::SysV,
        _ if without_device && name.starts_with(b"/memfd:") => Source::Memory,
        _ => Source::File,
    }
}

/// The mapping at `address`, by the text, which is read up to there: its lines are in the order of their addresses. What is mapped elsewhere
/// meanwhile may be told as it was or as it is; what is mapped at `address` all the while is found (`Documentation/filesystems/proc.rst`, 3.2).
fn by_text(address: usize) -> Result<Option<Vma>, Errno> {
    let found = lines::of_file(c"/proc/self/maps", |line| match bounds(line) {
        Some((start, end)) if address < end => {
            ControlFlow::Break(if start <= address { parse(line) } else { None })
        }
        _ => ControlFlow::Continue(()),
    })?;
    Ok(found.flatten())
}

/// The addresses that a line of the text begins with.
fn bounds(line: &[u8]) -> Option<(usize, usize)> {
    let mut numbers = line.split(|byte| *byte == b' ').next()?.split(|byte| *byte == b'-');
    let mut number = || usize::from_str_radix(std::str::from_utf8(numbers.next()?).ok()?, 16).ok();
    Some((number()?, number()?))
}

/// A line: `start-end perms offset major:minor inode   name`.
fn parse(line: &[u8]) -> Option<Vma> {
    let mut words = line.splitn(6, |byte| *byte == b' ');
    let mut word = || std::str::from_utf8(words.next()?).ok();
    let (start, end) = bounds(line)?;
    let _bounds = word()?;
    let perms = word()?;
    let _offset = word()?;
    let (major, minor) = word()?.split_once(':')?;
    let inode = word()?.parse().ok()?;
    let name = words.next().unwrap_or_default().trim_ascii_start();
    let device = (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
    Some(Vma {
        start,
        end,
        page_size: page_size(),
        shared: perms.ends_with('s'),
        source: source(name, inode, device),
    })
}

/// The size of the pages that are mapped at `address`, by the text of `/proc/self/smaps`, which is slow to make.
pub(super) fn page_size_by_text(address: usize) -> Option<usize> {
    let mut is_there = false; // what follows is of that mapping
    let found = lines::of_file(c"/proc/self/smaps", |line| {
        if let Some(size) = line.strip_prefix(b"KernelPageSize:").filter(|_| is_there) {
            return ControlFlow::Break(kib(size));
        }
        match parse(line) {
            Some(vma) if is_there || address < vma.start => ControlFlow::Break(None),
            Some(vma) => {
                is_there = address < vma.end;
                ControlFlow::Continue(())
            }
            None => ControlFlow::Continue(()),
        }
    });
    found.ok()??
}

/// The bytes of a number of `kB`.
fn kib(text: &[u8]) -> Option<usize> {
    let kib: usize = std::str::from_utf8(text).ok()?.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::mem::{Access, Mapping, Memfd};

    fn start(map: &Mapping) -> usize {
        map.bytes().as_ptr().addr()
    }

    #[test]
    fn both_ways_say_the_same() {
        let len = 4 * page_size();
        let anonymous = Mapping::anonymous(len).unwrap();
        let (memfd, memory) = Memfd::create("test", len, false).unwrap();
        let read_only = Mapping::of_file(memfd.as_fd(), len, Access::Read).unwrap();
        let exe = std::fs::File::open("/proc/self/exe").unwrap();
        let file = Mapping::of_file(exe.as_fd(), len, Access::Read).unwrap();
        let ways = [Maps::open(true), Maps::open(false)];
        assert!(ways[1].fd().is_none());
        for maps in &ways {
            let at = |map| maps.at(start(map)).unwrap().unwrap();
            assert_eq!((at(&anonymous).source, at(&anonymous).shared), (Source::Anonymous, false));
            assert_eq!((at(&memory).source, at(&memory).shared), (Source::Memory, true));
            assert_eq!(at(&read_only).source, Source::Memory);
            assert_eq!(at(&file).source, Source::File);
            assert!(at(&memory).start <= start(&memory) && start(&memory) + len <= at(&memory).end);
            assert_eq!(at(&memory).page_size, page_size());
            assert_eq!(maps.at(page_size()).unwrap(), None);
            assert_eq!(maps.extent(page_size()).unwrap(), None);
            let extent = maps.extent(start(&memory)).unwrap().unwrap();
            assert_eq!((extent.start, extent.end), (at(&memory).start, at(&memory).end));
            // The last byte of it, and the first behind it.
            assert_eq!(maps.at(extent.end - 1).unwrap(), Some(at(&memory)));
            assert_ne!(maps.at(extent.end).unwrap(), Some(at(&memory)));
        }
        assert_eq!(page_size_by_text(start(&memory)), Some(page_size()));
        assert_eq!(page_size_by_text(page_size()), None);
        assert_eq!(page_size_by_text(usize::MAX), None);
        assert_eq!(ways[1].at(usize::MAX).unwrap(), None);
    }

    #[test]
    fn lines() {
        let of = |line: &str| parse(line.as_bytes()).map(|vma| (vma.start, vma.end, vma.shared, vma.source));
        let cases = [
            ("7f00-8f00 rw-p 00000000 00:00 0 ", false, Source::Anonymous),
            ("7f00-8f00 rw-p 00000000 00:00 0                          [heap]", false, Source::Anonymous),
            ("7f00-8f00 rw-p 00000000 00:00 0                          [stack]", false, Source::Anonymous),
            ("7f00-8f00 rw-p 00000000 00:00 0          [anon:glibc: malloc arena]", false, Source::Anonymous),
            ("7f00-8f00 r-xp 00000000 00:00 0                          [vdso]", false, Source::Special),
            ("7f00-8f00 r--p 00000000 00:00 0                          [vvar]", false, Source::Special),
            ("7f00-8f00 rw-s 00000000 00:01 12     /dev/zero (deleted)", true, Source::Memory),
            ("7f00-8f00 rw-p 00000000 00:0f 12     /anon_hugepage (deleted)", false, Source::AnonymousHuge),
            ("7f00-8f00 rw-p 00000000 08:01 12     /anon_hugepage (deleted)", false, Source::File),
            ("7f00-8f00 rw-s 00000000 00:01 12     /memfd:a b (deleted)", true, Source::Memory),
            ("7f00-8f00 rw-s 00000000 00:01 12     /SYSV00000000 (deleted)", true, Source::SysV),
            ("7f00-8f00 rw-s 00000000 08:01 12     /SYSV00000000", true, Source::File),
            ("7f00-8f00 rw-p 00000000 08:01 12     /memfd:no", false, Source::File),
        ];
        for (line, shared, source) in cases {
            assert_eq!(of(line), Some((0x7f00, 0x8f00, shared, source)), "{line}");
        }
        for line in ["", "x", "7f00-8f00", "7f00 rw-p 0 00:00 0", "7f00-8f00 rw-p 0 0000 0", "Size: 4 kB"] {
            assert_eq!(of(line), None, "{line}");
        }
    }
}
