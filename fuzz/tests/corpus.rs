//! Replays the committed corpora.

use std::path::Path;

use rucx_fuzz::TARGETS;

/// Bytes of the files in the corpus of a target, with their names.
fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let files = std::fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let paths = files.map(|file| file.expect("a file").path());
    let read = |path: std::path::PathBuf| {
        let name = format!("{target}/{}", path.file_name().unwrap_or_default().to_string_lossy());
        (name, std::fs::read(&path).expect("it can be read"))
    };
    paths.map(read).collect()
}

fn replay(target: &str) {
    let (_, run) = TARGETS.iter().find(|(name, _)| *name == target).expect("a target of that name");
    let files = corpus(target);
    let mut accepted = 0;
    for (name, bytes) in &files {
        let outcome = std::panic::catch_unwind(|| run(bytes));
        assert!(outcome.is_ok(), "{name} breaks a promise: see the panic above");
        accepted += usize::from(outcome.unwrap_or_default());
    }
    assert!(accepted > 0 && accepted < files.len(), "{accepted} of {} inputs are accepted", files.len());
}

#[test]
fn address_self() {
    replay("address_self");
}

#[test]
fn address_shm() {
    replay("address_shm");
}

#[test]
fn address_verbs() {
    replay("address_verbs");
}

#[test]
fn am_message() {
    replay("am_message");
}

#[test]
fn handle_decode() {
    replay("handle_decode");
}

#[test]
fn handle_import() {
    replay("handle_import");
}

#[test]
fn mkey_cma() {
    replay("mkey_cma");
}

#[test]
fn mkey_self() {
    replay("mkey_self");
}

#[test]
fn mkey_shm() {
    replay("mkey_shm");
}

#[test]
fn mkey_verbs() {
    replay("mkey_verbs");
}

#[test]
fn net_call() {
    replay("net_call");
}

#[test]
fn net_hello() {
    replay("net_hello");
}

#[test]
fn net_reply() {
    replay("net_reply");
}

#[test]
fn ring() {
    replay("ring");
}

#[test]
fn rkey() {
    replay("rkey");
}

#[test]
fn service_reply() {
    replay("service_reply");
}

#[test]
fn service_request() {
    replay("service_request");
}

#[test]
fn verbs_call() {
    replay("verbs_call");
}

#[test]
fn verbs_header() {
    replay("verbs_header");
}

#[test]
fn verbs_reply() {
    replay("verbs_reply");
}

#[test]
fn verbs_queue_pair() {
    replay("verbs_queue_pair");
}

#[test]
fn verbs_remote() {
    replay("verbs_remote");
}

#[test]
fn worker_address() {
    replay("worker_address");
}

#[test]
fn corpora_are_small_and_each_has_its_target() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut dirs: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    dirs.sort();
    assert_eq!(dirs, TARGETS.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    for (name, _) in TARGETS {
        let files = corpus(name);
        assert!(files.len() < 100, "{} files of {name}: minimise them, see README.md", files.len());
        assert!(files.iter().all(|(_, bytes)| bytes.len() <= 4096), "an input of {name} of more than 4 KiB");
    }
}
