//! Golden vectors: bytes of a format beside what they mean, in `tests/golden` of the workspace.

use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Name, bytes and expected text of each vector of a format, such as `handle/v1`: a `.hex` file beside a `.txt`.
///
/// # Panics
/// The directory is not there, or holds anything else.
#[must_use]
pub fn vectors(format: &str) -> Vec<(String, Vec<u8>, String)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(format);
    let files = std::fs::read_dir(&dir).expect("the directory of vectors");
    let mut paths: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    paths.sort();
    let read = |path: &Path| std::fs::read_to_string(path).expect("a vector's two files");
    let byte = |text: &str| u8::from_str_radix(text, 16).expect("two hexadecimal digits");
    let vector = |path: &PathBuf| {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        (name, read(path).split_whitespace().map(byte).collect(), read(&path.with_extension("txt")))
    };
    let hex = paths.iter().filter(|path| path.extension().is_some_and(|kind| kind == "hex"));
    let vectors: Vec<_> = hex.map(vector).collect();
    assert_eq!(
        vectors.len() * 2,
        paths.len(),
        "each .hex in {} has its .txt, and nothing else is there",
        dir.display()
    );
    vectors
}

/// Bytes as the vectors' texts write them: two digits each, nothing between.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
