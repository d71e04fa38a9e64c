//! Which code may do what: unsafe code, transports' names, decoders, output.

use super::lexer::{has_word, lines_with};
use super::tree::{File, Tree};
use super::{Check, Finding};

/// The crates whose insides have layers.
const LIBRARIES: [&str; 3] = ["crates/ucs/src", "crates/uct/src", "crates/ucp/src"];

/// Names that only `uct` may know.
const TRANSPORTS: [&str; 11] =
    ["self", "shm", "sm", "mm", "posix", "cma", "tcp", "verbs", "rc", "ud", "mlx5"];

/// Those of them that mean nothing else in an identifier.
const IDENTIFIERS: [&str; 5] = ["shm", "cma", "tcp", "verbs", "mlx5"];

/// Where output is the point.
const MAY_PRINT: [&str; 5] = ["crates/rucx-cli", "crates/testkit", "xtask", "examples", "benches"];

/// `unsafe` only in files that say so, each crate closed at its root, `ucp` for good. What tests do, the compiler watches.
pub(crate) fn unsafe_files(tree: &Tree) -> Vec<Finding> {
    const ALLOW: &str = "#![allow(unsafe_code)]";
    let mut findings = Vec::new();
    let opened: Vec<&str> = tree
        .sources()
        .filter(|(_, source)| source.product.contains(ALLOW))
        .map(|(file, _)| file.path.as_str())
        .collect();
    for (file, source) in tree.sources().filter(|(file, _)| !file.is_test()) {
        let allows = opened.contains(&file.path.as_str());
        let inherits = parents(&file.path).iter().any(|parent| opened.contains(&parent.as_str()));
        if !allows
            && !inherits
            && let Some(line) = lines_with(&source.product, "unsafe").first()
        {
            let message =
                "unsafe code outside a file with #![allow(unsafe_code)] (or a module of such a file)";
            findings.push(Finding::new(&file.path, *line, message));
        }
        if allows && !file.text.contains("# Safety") {
            findings.push(Finding::new(
                &file.path,
                1,
                "a file with unsafe code says in a # Safety section why it is sound",
            ));
        }
        for (line, number) in source.product.lines().zip(1..) {
            if line.contains("#[allow(unsafe_code)]") {
                let message = "unsafe code is allowed by file: #![allow(unsafe_code)] in a file of its own";
                findings.push(Finding::new(&file.path, number, message));
            }
        }
        let is_root = file.path.ends_with("src/lib.rs") || file.path.ends_with("src/main.rs");
        let closed = ["#![deny(unsafe_code)]", "#![forbid(unsafe_code)]"]
            .iter()
            .any(|attribute| source.code.contains(attribute));
        if is_root && !closed {
            findings.push(Finding::new(
                &file.path,
                1,
                "a crate's root has #![deny(unsafe_code)] or #![forbid(unsafe_code)]",
            ));
        }
        if file.path == "crates/ucp/src/lib.rs" && !source.code.contains("#![forbid(unsafe_code)]") {
            findings.push(Finding::new(&file.path, 1, "ucp has #![forbid(unsafe_code)]"));
        }
    }
    findings
}

/// The files of the modules this file's module lies in, short of the crate's root.
fn parents(path: &str) -> Vec<String> {
    let mut parents = Vec::new();
    let mut dir = path;
    while let Some((parent, name)) = dir.rsplit_once('/') {
        if parent == "src" || parent.ends_with("/src") {
            break;
        }
        if name != "mod.rs" {
            parents.push(format!("{parent}/mod.rs"));
        }
        parents.push(format!("{parent}.rs"));
        dir = parent;
    }
    parents
}

/// `ucp` never names a transport: not in a string, not as a module of `uct::transports`, not in an identifier. (What
/// `uct::transports` offers of all of them alike is fine.)
pub(crate) fn ucp_names_no_transport(tree: &Tree) -> Vec<Finding> {
    let in_identifier = |word: &str| {
        let mut parts = word.split('_').map(str::to_lowercase);
        parts.any(|part| IDENTIFIERS.contains(&part.as_str()))
    };
    let mut findings = Vec::new();
    for (file, source) in tree.sources().filter(|(file, _)| file.is_in("crates/ucp/src") && !file.is_test()) {
        for ((code, text), number) in source.product.lines().zip(source.product_strings.lines()).zip(1..) {
            let quoted = TRANSPORTS.iter().any(|name| text.contains(&format!("\"{name}\"")));
            let named = code.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(in_identifier);
            if quoted || named || code.contains("transports::self_") {
                findings.push(Finding::new(
                    &file.path,
                    number,
                    "ucp names a transport: ask for the capability instead",
                ));
            }
        }
    }
    findings
}

fn is_wire(file: &File) -> bool {
    file.name() == "mkey.rs" || file.path.split('/').any(|part| part.starts_with("wire"))
}

/// Bytes from a peer are parsed in `wire` modules and in `mkey.rs`.
pub(crate) fn decoders(tree: &Tree) -> Vec<Finding> {
    // Traits of zerocopy may bound a generic function; what makes a value of bytes, or says that a type can be made so, is here.
    const WORDS: [&str; 9] = [
        "from_le_bytes",
        "from_be_bytes",
        "read_from_bytes",
        "read_from_prefix",
        "read_from_suffix",
        "ref_from_bytes",
        "ref_from_prefix",
        "try_read_from_bytes",
        "try_ref_from_bytes",
    ];
    let mut findings = Vec::new();
    for (file, source) in tree.sources().filter(|(file, _)| LIBRARIES.iter().any(|dir| file.is_in(dir))) {
        if is_wire(file) || file.is_test() {
            continue;
        }
        for (line, number) in source.product.lines().zip(1..) {
            let derives = line.contains("derive(") && has_word(line, "FromBytes");
            let word = WORDS.iter().find(|word| has_word(line, word)).copied();
            if let Some(word) = word.or(derives.then_some("derive(FromBytes)")) {
                let message = format!("{word}: bytes are parsed in wire modules and mkey.rs files only");
                findings.push(Finding::new(&file.path, number, message));
            }
        }
    }
    findings
}

/// A library prints nothing.
pub(crate) fn prints(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, source) in
        tree.sources().filter(|(file, _)| !file.is_test() && !MAY_PRINT.iter().any(|dir| file.is_in(dir)))
    {
        for (line, number) in source.product.lines().zip(1..) {
            if ["println!", "eprintln!", "print!", "eprint!", "dbg!"].iter().any(|print| line.contains(print))
            {
                findings.push(Finding::new(
                    &file.path,
                    number,
                    "a library prints nothing: return it, or make it a trace event",
                ));
            }
        }
    }
    findings
}

/// The marker of a reason, in a file that takes its atomics from the standard library.
const ATOMICS: &str = "// std's atomics: ";

/// Atomics come from `ucs::sync`, which swaps in loom's for models; a file that cannot be modelled says why.
pub(crate) fn atomics(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, source) in tree.sources().filter(|(file, _)| LIBRARIES.iter().any(|dir| file.is_in(dir))) {
        if file.is_test() || file.path == "crates/ucs/src/sync.rs" || file.text.contains(ATOMICS) {
            continue;
        }
        for (line, number) in source.product.lines().zip(1..) {
            if ["std::sync::atomic", "core::sync::atomic"].iter().any(|path| line.contains(path)) {
                let message = format!("take atomics from ucs::sync, or say why not: {ATOMICS}…");
                findings.push(Finding::new(&file.path, number, message));
            }
        }
    }
    findings
}

const _: [Check; 5] = [unsafe_files, ucp_names_no_transport, decoders, prints, atomics];

#[cfg(test)]
mod tests {
    use super::super::testing::found;
    use super::*;

    #[test]
    fn unsafe_code_in_the_open() {
        let files = [
            ("crates/ucs/src/lib.rs", "#![deny(unsafe_code)]\nmod sys;\n"),
            ("crates/ucs/src/sys.rs", "//! # Safety\n#![allow(unsafe_code)]\nfn f() { unsafe {} }\n"),
            ("crates/ucs/src/bad.rs", "// unsafe\nlet s = \"unsafe\";\nunsafe fn f() {}\n"),
            ("crates/ucs/src/copy/mod.rs", "//! # Safety\n#![allow(unsafe_code)]\n"),
            ("crates/ucs/src/copy/kernel.rs", "unsafe fn f() {}\n"),
            (
                "crates/ucs/src/tested.rs",
                "#[cfg(test)]\nmod tests {\n#![allow(unsafe_code)]\nunsafe fn f() {}\n}\n",
            ),
            ("crates/ucs/src/silent.rs", "#![allow(unsafe_code)]\n"),
            ("crates/ucs/src/outer.rs", "\n#[allow(unsafe_code)]\nmod x {}\n"),
            ("crates/uct/src/lib.rs", "mod x;\n"),
            ("crates/ucp/src/lib.rs", "#![deny(unsafe_code)]\n"),
        ];
        let expected = [
            "crates/ucp/src/lib.rs:1",
            "crates/ucs/src/bad.rs:3",
            "crates/ucs/src/outer.rs:2",
            "crates/ucs/src/silent.rs:1",
            "crates/uct/src/lib.rs:1",
        ];
        assert_eq!(found(unsafe_files, &files), expected);
    }

    #[test]
    fn a_transport_named_in_ucp() {
        let text = "//! over \"shm\"\nlet t = \"shm\";\nuse uct::transports::shm;\nlet u = \"shmem\"; all(uct::transports::components());\n\
                    uct::config::SHM_ATTACH;\n\
                    #[cfg(test)]\nmod tests { const T: &str = \"shm\"; }\n";
        let files =
            [("crates/ucp/src/a.rs", text), ("crates/uct/src/a.rs", text), ("crates/ucp/tests/a.rs", text)];
        let expected = ["crates/ucp/src/a.rs:2", "crates/ucp/src/a.rs:3", "crates/ucp/src/a.rs:5"];
        assert_eq!(found(ucp_names_no_transport, &files), expected);
    }

    #[test]
    fn a_decoder_outside_wire() {
        let text = "let n = u32::from_le_bytes(b);\n";
        let files = [
            ("crates/uct/src/export/table.rs", text),
            ("crates/uct/src/wire/tlv.rs", text),
            ("crates/uct/src/service/wire.rs", text),
            ("crates/uct/src/transports/shm/mkey.rs", text),
            ("crates/ucp/src/mem.rs", "use zerocopy::FromBytes;\n#[derive(Clone, FromBytes)]\nstruct S;\n"),
            ("crates/rucx-cli/src/main.rs", text),
        ];
        assert_eq!(found(decoders, &files), ["crates/ucp/src/mem.rs:2", "crates/uct/src/export/table.rs:1"]);
    }

    #[test]
    fn atomics_past_the_swap() {
        let text = "use std::sync::atomic::AtomicU8;\n";
        let files = [
            ("crates/uct/src/a.rs", text),
            ("crates/ucs/src/sync.rs", text),
            ("crates/ucs/src/b.rs", "// std's atomics: statics\nuse std::sync::atomic::AtomicU8;\n"),
            ("crates/ucs/src/c.rs", "// std::sync::atomic\n"),
            ("crates/testkit/src/d.rs", text),
        ];
        assert_eq!(found(atomics, &files), ["crates/uct/src/a.rs:1"]);
    }

    #[test]
    fn a_library_that_prints() {
        let text = "// println!\nfn f() { eprintln!(\"x\") }\n";
        let files = [
            ("crates/ucs/src/a.rs", text),
            ("crates/rucx-cli/src/a.rs", text),
            ("crates/ucs/tests/a.rs", text),
        ];
        assert_eq!(found(prints, &files), ["crates/ucs/src/a.rs:2"]);
    }
}
