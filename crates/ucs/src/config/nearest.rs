//! Nearest names, to tell misspellings.

/// Edits up to which a name is taken for a misspelling of another.
const MAX_EDITS: usize = 2;

/// The candidate nearest to `name`, if at most [`MAX_EDITS`] away.
pub(super) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .filter(|c| c.len().abs_diff(name.len()) <= MAX_EDITS)
        .map(|c| (distance(name.as_bytes(), c.as_bytes()), c))
        .filter(|&(edits, _)| edits <= MAX_EDITS)
        .min()
        .map(|(_, c)| c)
}

/// Bytes to insert, remove, replace or swap with a neighbour, to make `b` of `a` (optimal string alignment).
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut before = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (a, b, edits) in [
            ("", "", 0),
            ("", "ab", 2),
            ("UCX_TLS", "UCX_TLS", 0),
            ("UCX_TSL", "UCX_TLS", 1),
            ("UCX_TL", "UCX_TLS", 1),
            ("UCX_TTLS", "UCX_TLS", 1),
            ("UCX_XLS", "UCX_TLS", 1),
            ("UCX_LOG_LVEL", "UCX_LOG_LEVEL", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(a.as_bytes(), b.as_bytes()), edits, "{a} {b}");
            assert_eq!(distance(b.as_bytes(), a.as_bytes()), edits, "{b} {a}");
        }
    }

    #[test]
    fn the_nearest_is_found_or_none() {
        let names = ["UCX_TLS", "UCX_IMPORT_TIMEOUT", "UCX_NET_DEVICES"];
        assert_eq!(nearest("UCX_TSL", names), Some("UCX_TLS"));
        assert_eq!(nearest("UCX_INPORT_TIMEOUT", names), Some("UCX_IMPORT_TIMEOUT"));
        assert_eq!(nearest("UCX_NET_DEVICE", names), Some("UCX_NET_DEVICES"));
        assert_eq!(nearest("UCX_TIMEOUT", names), None);
        assert_eq!(nearest("", names), None);
    }
}
