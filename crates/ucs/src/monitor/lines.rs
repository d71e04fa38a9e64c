//! The lines of a text that the kernel makes while it is read: no more of it is made than is asked for.

use std::ffi::CStr;
use std::ops::ControlFlow;

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

/// Bytes of a line that are looked at, and the most that are asked for at once: the kernel gives a page of its own at most (`seq_read_iter`,
/// `fs/seq_file.c`).
const LONGEST: usize = 4096;
/// Bytes that are asked for first: some ten mappings, and what is looked for is often among them.
const FIRST: usize = 1024;

/// Gives the lines of a file to `each` until that breaks, and answers what it breaks with. Of a line longer than a page, the beginning.
pub(super) fn of_file<T>(path: &CStr, each: impl FnMut(&[u8]) -> ControlFlow<T>) -> Result<Option<T>, Errno> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    each_line(|into| retry_on_intr(|| rustix::io::read(&file, &mut *into)), each)
}

fn each_line<T>(
    mut read: impl FnMut(&mut [u8]) -> Result<usize, Errno>,
    mut each: impl FnMut(&[u8]) -> ControlFlow<T>,
) -> Result<Option<T>, Errno> {
    let mut buffer = [0; LONGEST];
    let mut kept = 0; // bytes of a line whose end has not been read
    let mut is_rest = false; // of a line that was given already
    let mut wanted = FIRST;
    loop {
        let until = LONGEST.min(kept + wanted);
        let end = kept + read(&mut buffer[kept..until])?;
        if end == kept {
            return Ok(None);
        }
        wanted = LONGEST;
        let mut start = 0;
        while let Some(len) = buffer[start..end].iter().position(|byte| *byte == b'\n') {
            let line = &buffer[start..start + len];
            if !std::mem::take(&mut is_rest)
                && let ControlFlow::Break(found) = each(line)
            {
                return Ok(Some(found));
            }
            start += len + 1;
        }
        if (start, end) == (0, LONGEST) {
            if !std::mem::replace(&mut is_rest, true)
                && let ControlFlow::Break(found) = each(&buffer)
            {
                return Ok(Some(found));
            }
            start = end;
        }
        buffer.copy_within(start..end, 0);
        kept = end - start;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All lines of a text that is read in pieces, up to one that is `last`; and how many bytes of it were read.
    fn lines(text: &[u8], piece: usize, last: &[u8]) -> (Vec<Vec<u8>>, usize) {
        let (mut left, mut lines) = (text, Vec::new());
        let read = |into: &mut [u8]| {
            let (now, later) = left.split_at(piece.min(into.len()).min(left.len()));
            into[..now.len()].copy_from_slice(now);
            left = later;
            Ok(now.len())
        };
        let each = |line: &[u8]| {
            lines.push(line.to_vec());
            if line == last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let broken = each_line(read, each).unwrap().is_some();
        assert_eq!(broken, lines.last().is_some_and(|line| line == last));
        (lines, text.len() - left.len())
    }

    #[test]
    fn lines_are_the_same_however_the_text_is_cut() {
        let all: Vec<Vec<u8>> =
            (0..200).map(|n| format!("line {n} {}", "x".repeat(n * 7 % 90)).into()).collect();
        let text = all.iter().flat_map(|line| [line, &b"\n"[..]].concat()).collect::<Vec<u8>>();
        for piece in [1, 7, 100, 1024, 4095, 4096, usize::MAX] {
            assert_eq!(lines(&text, piece, b"none").0, all, "{piece}");
            let (some, read) = lines(&text, piece, &all[5]);
            assert_eq!(some, all[..6], "{piece}");
            assert!(read <= FIRST, "{read} bytes are read, of {} in pieces of {piece}", text.len());
        }
        assert_eq!(lines(b"", 1, b"").0, [[]; 0]);
    }

    #[test]
    fn of_a_line_that_is_too_long_the_beginning_is_given() {
        for len in [LONGEST - 1, LONGEST, LONGEST + 1, 2 * LONGEST, 2 * LONGEST + 1, 50_000] {
            let long = vec![b'x'; len];
            let text = [b"a\n", &long[..], b"\n\nb\n"].concat();
            let expected: [&[u8]; 4] = [b"a", &long[..len.min(LONGEST)], b"", b"b"];
            for piece in [1000, 4096] {
                assert_eq!(lines(&text, piece, b"none").0, expected, "{len} in pieces of {piece}");
            }
            assert_eq!(lines(&text, 4096, expected[1]).0, expected[..2], "{len}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        let each = |_: &[u8]| ControlFlow::<()>::Continue(());
        assert_eq!(each_line(|_| Err(Errno::NOMEM), each), Err(Errno::NOMEM));
        assert_eq!(of_file(c"/proc/self/no such", each), Err(Errno::NOENT));
        assert_eq!(of_file(c"/proc/self/maps", each), Ok(None));
    }
}
