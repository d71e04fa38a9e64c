//! Enough of Rust's lexical rules to tell code, strings and comments apart.

/// A Rust file in three views, each as long as the file: what is left out is blank, lines stay lines.
#[derive(Debug)]
pub(crate) struct Source {
    /// Without comments and without the insides of strings and characters.
    pub(crate) code: String,
    /// `code` without items under `#[cfg(test)]`.
    pub(crate) product: String,
    /// The same with the insides of strings and characters.
    pub(crate) product_strings: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

impl Source {
    pub(crate) fn new(text: &str) -> Self {
        let kinds = kinds(text.as_bytes());
        let keep = |wanted: fn(Kind) -> bool| {
            let bytes = text
                .bytes()
                .zip(&kinds)
                .map(|(byte, &kind)| if wanted(kind) || byte == b'\n' { byte } else { b' ' });
            String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
        };
        let code = keep(|kind| kind == Kind::Code);
        let uncommented = keep(|kind| kind != Kind::Comment);
        let tests = test_items(&code);
        let product = blank(&code, &tests);
        let product_strings = blank(&uncommented, &tests);
        Self { code, product, product_strings }
    }
}

/// What each byte belongs to. Quotes count as code.
fn kinds(text: &[u8]) -> Vec<Kind> {
    let mut kinds = vec![Kind::Code; text.len()];
    let mut at = 0;
    let mut mark = |from: usize, to: usize, kind: Kind| kinds[from..to.min(text.len())].fill(kind);
    while at < text.len() {
        let rest = &text[at..];
        let after_word = at > 0 && is_word(text[at - 1]);
        let end = if rest.starts_with(b"//") {
            let end = find(text, at, b"\n").unwrap_or(text.len());
            mark(at, end, Kind::Comment);
            end
        } else if rest.starts_with(b"/*") {
            let end = block_comment_end(text, at);
            mark(at, end, Kind::Comment);
            end
        } else if let Some(hashes) = raw_string(rest).filter(|_| !after_word) {
            let open = find(text, at, b"\"").unwrap_or(text.len()) + 1;
            let close = [b"\"".as_slice(), &b"#".repeat(hashes)].concat();
            let end = find(text, open, &close).unwrap_or(text.len());
            mark(open, end, Kind::Literal);
            end + close.len()
        } else if rest[0] == b'"' {
            let end = quoted_end(text, at + 1, b'"');
            mark(at + 1, end, Kind::Literal);
            end + 1
        } else if rest[0] == b'\'' && is_char(rest) {
            let end = quoted_end(text, at + 1, b'\'');
            mark(at + 1, end, Kind::Literal);
            end + 1
        } else {
            at + 1
        };
        at = end.max(at + 1);
    }
    kinds
}

fn is_word(byte: u8) -> bool {
    byte == b'_' || byte.is_ascii_alphanumeric() || !byte.is_ascii()
}

fn find(text: &[u8], from: usize, wanted: &[u8]) -> Option<usize> {
    let from = from.min(text.len());
    text[from..].windows(wanted.len()).position(|window| window == wanted).map(|at| from + at)
}

fn block_comment_end(text: &[u8], start: usize) -> usize {
    let (mut depth, mut at) = (0usize, start);
    while at < text.len() {
        if text[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

/// The number of `#` of a raw string that starts here.
fn raw_string(rest: &[u8]) -> Option<usize> {
    let rest = rest.strip_prefix(b"b").or_else(|| rest.strip_prefix(b"c")).unwrap_or(rest);
    let rest = rest.strip_prefix(b"r")?;
    let hashes = rest.iter().take_while(|byte| **byte == b'#').count();
    (rest.get(hashes) == Some(&b'"')).then_some(hashes)
}

/// Whether a quote opens a character rather than a lifetime.
fn is_char(rest: &[u8]) -> bool {
    match rest.get(1) {
        Some(b'\\') => true,
        Some(byte) if byte.is_ascii() => rest.get(2) == Some(&b'\''),
        // One character of several bytes.
        Some(_) => rest.iter().skip(2).take(4).any(|byte| *byte == b'\''),
        None => false,
    }
}

fn quoted_end(text: &[u8], from: usize, quote: u8) -> usize {
    let mut at = from;
    while at < text.len() && text[at] != quote {
        at += if text[at] == b'\\' { 2 } else { 1 };
    }
    at.min(text.len())
}

/// The ranges of items under a `cfg` that asks for `test`.
fn test_items(code: &str) -> Vec<std::ops::Range<usize>> {
    let bytes = code.as_bytes();
    let mut items: Vec<std::ops::Range<usize>> = Vec::new();
    for (start, _) in code.match_indices("#[cfg(") {
        let Some(close) = find(bytes, start, b")]") else { continue };
        let condition = &code[start + 6..close];
        let asks = condition == "test" || (condition.starts_with("all(") && has_word(condition, "test"));
        if !asks || condition.contains("not(test") || items.last().is_some_and(|last| last.contains(&start)) {
            continue;
        }
        let mut depth = 0usize;
        let mut at = close + 2;
        while at < bytes.len() {
            match bytes[at] {
                b'{' => depth += 1,
                b'}' if depth <= 1 => break,
                b'}' => depth -= 1,
                b';' if depth == 0 => break,
                _ => {}
            }
            at += 1;
        }
        items.push(start..(at + 1).min(bytes.len()));
    }
    items
}

fn blank(text: &str, ranges: &[std::ops::Range<usize>]) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for byte in ranges.iter().flat_map(|range| range.clone()) {
        if bytes[byte] != b'\n' {
            bytes[byte] = b' ';
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether `word` stands in the text, not as a part of a longer word.
pub(crate) fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let before = at.checked_sub(1).is_some_and(|at| is_word(text.as_bytes()[at]));
        let after = text.as_bytes().get(at + word.len()).is_some_and(|byte| is_word(*byte));
        !before && !after
    })
}

/// Lines, from 1, in which `word` stands.
pub(crate) fn lines_with(text: &str, word: &str) -> Vec<usize> {
    let numbered = text.lines().zip(1..);
    numbered.filter(|(line, _)| has_word(line, word)).map(|(_, number)| number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_strings_and_comments_are_told_apart() {
        let text = "let a = \"unsafe \\\" // no\"; // unsafe\n/* unsafe /* nested */ unsafe */ let c = '\"'; let l: &'a str;\n\
                    let r = r#\"unsafe \" x\"#; let b = b\"unsafe\"; let q = '\\''; let u = 'ü'; let e = unsafe {};";
        let source = Source::new(text);
        assert_eq!(source.code.len(), text.len());
        assert_eq!(source.code.matches("unsafe").count(), 1);
        assert!(source.code.contains("&'a str"));
        assert_eq!(source.product_strings.matches("unsafe").count(), 4);
        assert_eq!(source.code.lines().count(), 3);
    }

    #[test]
    fn items_of_tests_are_no_product() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n fn b() { if x { y } }\n}\nfn c() {}\n#[cfg(all(test, not(loom)))]\nmod d;\n\
                    #[cfg(not(test))]\nfn e() {}\n";
        let source = Source::new(text);
        assert!(!source.product.contains("fn b"));
        assert!(!source.product.contains("mod d"));
        for kept in ["fn a", "fn c", "fn e"] {
            assert!(source.product.contains(kept), "{kept}");
        }
        assert_eq!(source.product.lines().count(), text.lines().count());
    }

    #[test]
    fn words_are_whole() {
        assert!(has_word("x = unsafe{", "unsafe"));
        assert!(!has_word("allow(unsafe_code)", "unsafe"));
        assert_eq!(lines_with("a\nb a\nab", "a"), [1, 2]);
    }
}
