//! Whether a text shows a secret.

/// Bytes in a row that would give something away.
const WINDOW: usize = 8;

/// Whether `text` contains a piece of `secret`, in hexadecimal or as a list of numbers.
pub(crate) fn shows(text: &str, secret: &[u8]) -> bool {
    let text = text.to_ascii_lowercase();
    secret.windows(WINDOW).filter(|piece| is_telling(piece)).any(|piece| {
        let spelled = |separator: &str, hex: bool| {
            let bytes = piece.iter().map(|byte| if hex { format!("{byte:02x}") } else { byte.to_string() });
            bytes.collect::<Vec<_>>().join(separator)
        };
        [spelled("", true), spelled(" ", true), spelled(", ", false)].iter().any(|form| text.contains(form))
    })
}

/// Zeros and the like are in every text.
fn is_telling(piece: &[u8]) -> bool {
    let mut bytes = piece.to_vec();
    bytes.sort_unstable();
    bytes.dedup();
    bytes.len() > WINDOW / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_secret_are_found_in_any_spelling() {
        let secret: Vec<u8> = (0x40..0x80).collect();
        for text in
            [format!("{secret:?}"), format!("{secret:02x?}").replace(", ", " "), "x4B4C4D4E4F505152y".into()]
        {
            assert!(shows(&text, &secret), "{text}");
        }
        assert!(!shows("PackedMemh { export: 1, bytes: <64 secret bytes> }", &secret));
        assert!(!shows("0000000000000000", &[0; 64]));
    }
}
