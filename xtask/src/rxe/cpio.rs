//! An archive as the kernel unpacks it (`Documentation/driver-api/early-userspace/buffer-format.rst`, "newc"). Written here, so that
//! the console's device needs no root.

use std::collections::BTreeSet;
use std::io::{self, Write};

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const CHARACTERS: u32 = 0o020_600;

/// An archive being written. Directories above a file come by themselves.
#[derive(Debug)]
pub(crate) struct Archive<W> {
    to: W,
    entries: u32,
    dirs: BTreeSet<String>,
    files: BTreeSet<String>,
}

impl<W: Write> Archive<W> {
    pub(crate) fn new(to: W) -> Self {
        Self { to, entries: 0, dirs: BTreeSet::new(), files: BTreeSet::new() }
    }

    /// Adds a directory, if it is not there yet. Paths are without a slash in front.
    pub(crate) fn dir(&mut self, path: &str) -> io::Result<()> {
        self.dirs_above(path)?;
        if self.dirs.insert(path.to_owned()) {
            self.entry(path, DIRECTORY, (0, 0), b"")?;
        }
        Ok(())
    }

    /// Adds a file anyone may run; the first of a name stays.
    pub(crate) fn file(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        self.dirs_above(path)?;
        if self.files.insert(path.to_owned()) {
            self.entry(path, PROGRAM, (0, 0), content)?;
        }
        Ok(())
    }

    /// Adds a character device.
    pub(crate) fn device(&mut self, path: &str, number: (u32, u32)) -> io::Result<()> {
        self.dirs_above(path)?;
        self.entry(path, CHARACTERS, number, b"")
    }

    /// Ends the archive.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", 0, (0, 0), b"")?;
        self.to.flush()?;
        Ok(self.to)
    }

    fn dirs_above(&mut self, path: &str) -> io::Result<()> {
        match path.rsplit_once('/') {
            Some((dir, _)) => self.dir(dir),
            None => Ok(()),
        }
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), content: &[u8]) -> io::Result<()> {
        self.entries += 1;
        let size = u32::try_from(content.len()).map_err(io::Error::other)?;
        let name = u32::try_from(path.len() + 1).map_err(io::Error::other)?;
        // ino, mode, uid, gid, nlink, mtime, size, the device it is on, the device it is, length of its name, no sum
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, device.0, device.1, name, 0];
        let mut header = b"070701".to_vec();
        fields.iter().for_each(|field| header.extend(format!("{field:08x}").bytes()));
        header.extend(path.bytes());
        header.push(0);
        header.resize(header.len().next_multiple_of(4), 0);
        self.to.write_all(&header)?;
        self.to.write_all(content)?;
        self.to.write_all(&[0; 3][..content.len().next_multiple_of(4) - content.len()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names, modes and contents of an archive.
    fn read(mut bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut entries = Vec::new();
        while let Some(header) = bytes.strip_prefix(b"070701") {
            let text = std::str::from_utf8(&header[..104]).unwrap();
            let field = |at: usize| u32::from_str_radix(&text[8 * at..8 * at + 8], 16).unwrap();
            let (size, name) = (field(6) as usize, field(11) as usize);
            let path = String::from_utf8(header[104..104 + name - 1].to_vec()).unwrap();
            let start = (110 + name).next_multiple_of(4);
            entries.push((path, field(1), bytes[start..start + size].to_vec()));
            bytes = &bytes[(start + size).next_multiple_of(4)..];
        }
        assert!(bytes.is_empty());
        entries
    }

    #[test]
    fn entries_are_aligned_and_end() {
        let mut archive = Archive::new(Vec::new());
        archive.file("a/b/c", b"12345").unwrap();
        archive.file("a/b/c", b"another").unwrap();
        archive.file("a/d", b"").unwrap();
        archive.device("dev/console", (5, 1)).unwrap();
        let bytes = archive.finish().unwrap();
        let entries = read(&bytes);
        let names: Vec<&str> = entries.iter().map(|entry| entry.0.as_str()).collect();
        assert_eq!(names, ["a", "a/b", "a/b/c", "a/d", "dev", "dev/console", "TRAILER!!!"]);
        assert_eq!((entries[0].1, entries[2].1, entries[5].1), (DIRECTORY, PROGRAM, CHARACTERS));
        assert_eq!(entries[2].2, b"12345");
    }

    #[test]
    fn a_header_is_as_the_kernel_reads_it() {
        let mut archive = Archive::new(Vec::new());
        archive.device("c", (5, 1)).unwrap();
        let bytes = archive.finish().unwrap();
        let expected = "070701\
            00000001\
            00002180\
            00000000\
            00000000\
            00000001\
            00000000\
            00000000\
            00000000\
            00000000\
            00000005\
            00000001\
            00000002\
            00000000c\0";
        assert!(bytes.starts_with(expected.as_bytes()), "{:?}", String::from_utf8_lossy(&bytes));
    }
}
