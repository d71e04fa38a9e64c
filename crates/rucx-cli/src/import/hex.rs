//! Bytes for people, as hexdump(1) has them.

/// Bytes of a row.
pub(super) const ROW: usize = 16;

/// Makes rows; each that is like the one before is left out, and a `*` stands for all of them.
#[derive(Debug, Default)]
pub(super) struct Dump {
    last: Vec<u8>,
    starred: bool,
    end: u64,
}

impl Dump {
    /// The rows of `bytes`, which follow those given before and begin at `offset`. Only the last ones may end within a row.
    pub(super) fn rows(&mut self, offset: u64, bytes: &[u8]) -> Vec<String> {
        let mut rows = Vec::new();
        let mut at = offset;
        for part in bytes.chunks(ROW) {
            if self.last == part {
                if !self.starred {
                    rows.push("*".to_owned());
                }
                self.starred = true;
            } else {
                rows.push(row(at, part));
                self.last = part.to_vec();
                self.starred = false;
            }
            at += part.len() as u64;
        }
        self.end = at;
        rows
    }

    /// Where it ends, if that is not plain.
    pub(super) fn end(&self) -> Option<String> {
        self.starred.then(|| format!("{:08x}", self.end))
    }
}

/// A row: 78 columns below 4 GiB, 80 below 1 TiB, and no more beyond that, where the frame around the text is left out.
pub(super) fn row(offset: u64, bytes: &[u8]) -> String {
    let half = |part: &[u8]| part.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
    let (left, right) = bytes.split_at(bytes.len().min(ROW / 2));
    let shown = |byte: &u8| if (b' '..=b'~').contains(byte) { char::from(*byte) } else { '.' };
    let text: String = bytes.iter().map(shown).collect();
    let frame = if offset >> 40 == 0 { "|" } else { "" };
    format!("{offset:08x}  {:<23}  {:<23}  {frame}{text}{frame}", half(left), half(right))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_those_of_hexdump() {
        let bytes: Vec<u8> = (0x30..0x44).collect();
        let expected = [
            "00000010  30 31 32 33 34 35 36 37  38 39 3a 3b 3c 3d 3e 3f  |0123456789:;<=>?|",
            "00000020  40 41 42 43                                       |@ABC|",
        ];
        assert_eq!(Dump::default().rows(16, &bytes), expected);
        assert_eq!(row(0, &[0, 0x7f, b'~', 0xff]).split_once('|').unwrap().1, "..~.|");
    }

    #[test]
    fn rows_fit() {
        for offset in [0, u64::from(u32::MAX), 1 << 32, (1 << 40) - 16, 1 << 40, (1 << 47) - 16] {
            assert!(row(offset, &[b'x'; ROW]).chars().count() <= 80, "{offset:x}");
        }
    }

    #[test]
    fn what_repeats_is_told_once_over_chunks_as_well() {
        let mut dump = Dump::default();
        assert_eq!(dump.rows(0, &[0; 64]).len(), 2);
        assert!(dump.rows(64, &[0; 64]).is_empty());
        assert_eq!(dump.end().unwrap(), "00000080");
        assert_eq!(dump.rows(128, &[1; 16]).len(), 1);
        assert_eq!(dump.end(), None);
    }
}
