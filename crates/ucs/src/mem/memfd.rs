//! Memory files without a name: created and sealed here, or received from another process and checked.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{self, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::error::{Limit, MemError};
use super::mapping::{Access, Mapping};

/// The seals every memfd of rucx carries: nobody can change its size, nobody can take the seals off.
///
/// Source: `fcntl(2)`, "File Sealing".
const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A memfd of this process: its size is sealed. It has no name in any file system and goes with its last user.
///
/// Source: `memfd_create(2)`.
#[derive(Debug)]
pub struct Memfd {
    fd: OwnedFd,
    len: usize,
}

impl Memfd {
    /// Creates a memfd of `len` bytes (> 0), maps it for reading and writing, and seals it.
    ///
    /// With `read_only`, F_SEAL_FUTURE_WRITE is among the seals: the mapping returned stays writable, and no other writable
    /// mapping, write or hole can ever be made through any descriptor of it. `name` shows in `/proc/PID/maps` only.
    ///
    /// # Errors
    /// [`MemError`], naming the limit where it was one.
    pub fn create(name: &str, len: usize, read_only: bool) -> Result<(Self, Mapping), MemError> {
        let wanted = len as u64;
        // ftruncate beyond RLIMIT_FSIZE raises SIGXFSZ, which kills the process: ask first.
        if getrlimit(Resource::Fsize).current.is_some_and(|limit| wanted > limit) {
            return Err(MemError::of("ftruncate", Errno::FBIG, len));
        }
        if len > isize::MAX as usize {
            return Err(MemError::TooLarge { wanted });
        }
        let fd = open(name).map_err(|errno| MemError::of("memfd_create", errno, len))?;
        fs::ftruncate(&fd, wanted).map_err(|errno| MemError::of("ftruncate", errno, len))?;
        if strict_overcommit() {
            // Pages are charged one by one as they are touched, and a refused one is a SIGBUS: charge them all now.
            fs::fallocate(&fd, fs::FallocateFlags::empty(), 0, wanted)
                .map_err(|errno| MemError::of("fallocate", errno, len))?;
        }
        let map = Mapping::of_file(fd.as_fd(), len, Access::ReadWrite)?;
        let seals = if read_only { SIZE_SEALS | SealFlags::FUTURE_WRITE } else { SIZE_SEALS };
        fs::fcntl_add_seals(&fd, seals)
            .map_err(|errno| MemError::Sys { call: "fcntl(F_ADD_SEALS)", errno })?;
        Ok((Self { fd, len }, map))
    }

    /// Its size in bytes, fixed by seals.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes (it never has none).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its inode number, by which a peer recognises it.
    ///
    /// # Errors
    /// `fstat(2)` failed.
    pub fn inode(&self) -> Result<u64, MemError> {
        fs::fstat(&self.fd).map(|stat| stat.st_ino).map_err(|errno| MemError::Sys { call: "fstat", errno })
    }

    /// Whether a descriptor, perhaps one opened by O_PATH, lies where memfds do: on a tmpfs.
    #[must_use]
    pub fn may_be(fd: BorrowedFd<'_>) -> bool {
        fs::fstatfs(fd).is_ok_and(|fs| fs.f_type == TMPFS_MAGIC)
    }

    /// Maps a memfd *received from another process*, after checking that it is one, that nobody can change its size any
    /// more (else a truncation would be a SIGBUS here), and that it holds exactly `len` bytes.
    ///
    /// # Errors
    /// [`ForeignFdError`] says which check failed.
    pub fn map_foreign(fd: BorrowedFd<'_>, len: usize, access: Access) -> Result<Mapping, ForeignFdError> {
        // Only memfds (and files of hugetlbfs) know seals: anything else answers EINVAL.
        let seals = fs::fcntl_get_seals(fd).map_err(|_| ForeignFdError::NotMemfd)?;
        if !Self::may_be(fd) {
            return Err(ForeignFdError::NotMemfd);
        }
        let needed = SealFlags::SHRINK | SealFlags::GROW;
        if !seals.contains(needed) {
            return Err(ForeignFdError::NotSealed { seals: seals.bits() });
        }
        let stat = fs::fstat(fd).map_err(|errno| MemError::Sys { call: "fstat", errno })?;
        let found = u64::try_from(stat.st_size).unwrap_or(0);
        if found != len as u64 {
            return Err(ForeignFdError::WrongSize { expected: len as u64, found });
        }
        Ok(Mapping::of_file(fd, len, access)?)
    }
}

impl AsFd for Memfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// `f_type` of tmpfs, on whose kernel-internal mount memfds live (`statfs(2)`).
const TMPFS_MAGIC: fs::FsWord = 0x0102_1994;

fn open(name: &str) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // MFD_NOEXEC_SEAL is Linux 6.3; older kernels answer EINVAL to it.
    match fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => fs::memfd_create(name, flags),
        answer => answer,
    }
}

/// Whether the kernel charges every page strictly (`vm.overcommit_memory` = 2, `proc_sys_vm(5)`), asked once.
fn strict_overcommit() -> bool {
    static STRICT: OnceLock<bool> = OnceLock::new();
    *STRICT.get_or_init(|| {
        std::fs::read("/proc/sys/vm/overcommit_memory").is_ok_and(|text| text.first() == Some(&b'2'))
    })
}

/// A descriptor from another process is not memory that can be mapped safely.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ForeignFdError {
    /// It is no memfd.
    #[error("the descriptor received is no memfd")]
    NotMemfd,
    /// It could be truncated under the mapping.
    #[error("the memfd received is not sealed against changes of its size (seals: {seals:#x})")]
    NotSealed {
        /// Its seals, as in `fcntl(2)`.
        seals: u32,
    },
    /// Its size is not the one announced.
    #[error("the memfd received has {found} bytes where {expected} were announced")]
    WrongSize {
        /// Bytes announced.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// It could not be mapped.
    #[error(transparent)]
    Mem(#[from] MemError),
}

impl ForeignFdError {
    /// The limit it ran into, if it was one.
    #[must_use]
    pub fn limit(&self) -> Option<Limit> {
        match self {
            Self::Mem(MemError::Limit { limit, .. }) => Some(*limit),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_is_sealed_and_read_only_means_it() {
        let (fd, map) = Memfd::create("test", 8192, true).unwrap();
        assert_eq!(map.bytes().len(), 8192);
        assert_eq!(fs::ftruncate(&fd, 4096), Err(Errno::PERM));
        assert_eq!(fs::ftruncate(&fd, 16384), Err(Errno::PERM));
        assert_eq!(rustix::io::pwrite(&fd, b"x", 0), Err(Errno::PERM));
        assert!(Mapping::of_file(fd.as_fd(), 8192, Access::ReadWrite).is_err());
        map.bytes().write(0, b"the creator still writes").unwrap();
        let view = Memfd::map_foreign(fd.as_fd(), 8192, Access::Read).unwrap();
        let mut seen = [0; 11];
        view.bytes().read(0, &mut seen).unwrap();
        assert_eq!(&seen, b"the creator");
        // /proc/self/fd re-opens a descriptor with any access mode: the seal is what protects.
        let reopened = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd.as_fd())))
            .unwrap();
        assert!(Mapping::of_file(reopened.as_fd(), 8192, Access::ReadWrite).is_err());
    }

    #[test]
    fn foreign_descriptors_are_checked() {
        let unsealed = fs::memfd_create("unsealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        fs::ftruncate(&unsealed, 4096).unwrap();
        let error = |fd: BorrowedFd<'_>, len| Memfd::map_foreign(fd, len, Access::Read).unwrap_err();
        assert_eq!(error(unsealed.as_fd(), 4096), ForeignFdError::NotSealed { seals: 0 });
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert_eq!(error(file.as_fd(), 4096), ForeignFdError::NotMemfd);
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(error(null.as_fd(), 4096), ForeignFdError::NotMemfd);
        let (fd, _map) = Memfd::create("sized", 8192, false).unwrap();
        assert_eq!(error(fd.as_fd(), 4096), ForeignFdError::WrongSize { expected: 4096, found: 8192 });
    }
}
