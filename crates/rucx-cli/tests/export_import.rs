//! `rucx export` and `rucx import`, as users in two terminals start them.

#![allow(clippy::unwrap_used)] // what fails here is a failed test

#[allow(dead_code)] // what the tests of other commands need beside
mod support;

use std::fs::{self, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::process::Signal;
use rustix::pty::OpenptFlags;
use support::{Running, assert_no_secret, finish, rucx, text};
use tempfile::TempDir;

/// A directory for one test.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn name(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// An export whose handle is in the file `handle`.
    fn export(&self, args: &[&str]) -> Export {
        self.export_with(args, &[])
    }

    fn export_with(&self, args: &[&str], env: &[(&str, &str)]) -> Export {
        let handle = self.name("handle");
        let mut command = rucx(&[&["export", "--out", &handle], args].concat());
        Export::of(command.envs(env.iter().copied()), handle)
    }

    /// An export that listens at the socket `socket`.
    fn listen(&self, args: &[&str]) -> Export {
        let socket = self.name("socket");
        Export::of(&mut rucx(&[&["export", "--listen", &socket], args].concat()), socket)
    }
}

/// An export under way.
struct Export {
    process: Running,
    /// Where the handle is.
    at: String,
}

impl Export {
    fn of(command: &mut Command, at: String) -> Self {
        let mut process = Running::of(command);
        process.wait_for("To end it: ");
        Self { process, at }
    }

    /// What `rucx import` prints, which must end with `code`.
    fn import(&self, args: &[&str], code: i32) -> String {
        import(&mut rucx(&[&["import", self.at.as_str()], args].concat()), code)
    }

    /// Ends it by a signal; what it printed. The memory must be revoked, and the handle gone.
    fn end(self) -> String {
        self.process.signal(Signal::TERM);
        self.ended()
    }

    fn ended(self) -> String {
        let (status, story) = self.process.finish();
        assert_eq!(status.code(), Some(0), "{story}");
        assert!(fs::symlink_metadata(&self.at).is_err(), "{} is removed", self.at);
        assert!(story.contains(&format!("removed {}", self.at)) || self.at.len() > 40, "{story}");
        let last = story.lines().last().unwrap_or_default();
        assert_eq!(last, "✓  revoked: no access is under way, and none will begin", "{story}");
        assert_fits(&story);
        story
    }
}

fn import(command: &mut Command, code: i32) -> String {
    let output = finish(command);
    let (story, errors) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{story}{errors}");
    assert_eq!(errors, "");
    assert_fits(&story);
    story
}

/// As [`import`], of what fails with a reason and a remedy.
fn refused(command: &mut Command, parts: &[&str]) -> String {
    let story = import(command, 1);
    let joined = words(&story);
    for part in parts.iter().chain(&["remedy: "]) {
        assert!(joined.contains(part), "{part:?}: {story}");
    }
    assert!(story.lines().last().is_some_and(|line| line.starts_with("✗  cannot ")), "{story}");
    story
}

/// Without the line breaks that made it fit.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// All lines fit a terminal; there are no escape codes in a pipe, and no secrets.
fn assert_fits(story: &str) {
    assert!(!story.contains('\u{1b}'), "{story}");
    for line in story.lines() {
        assert!(line.chars().count() <= 80, "{line:?}");
    }
    // An error may say how handles begin.
    assert_no_secret(&story.replace("\"RXMH\"", ""));
}

fn mode(path: impl AsRef<Path>) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn the_handle_is_in_a_new_file_for_this_user_until_the_end() {
    let place = Place::new();
    let export = place.export(&["--size", "1M"]);
    assert_eq!(mode(&export.at), 0o600);
    let handle = fs::read(&export.at).unwrap();
    assert!(handle.starts_with(b"RXMH"));
    let story = export.import(&[], 0);
    for part in ["imported 1 MiB, read-write, over ", "; why ", "  ✓  ", "  –  self  offered for "] {
        assert!(story.contains(part), "{part}: {story}");
    }
    // Another export does not take the name, and this one is left as it is.
    let mut other = rucx(&["export", "--size", "4K", "--out", &export.at]);
    refused(&mut other, &["is not overwritten", "choose another name, or if no export uses it: rm /"]);
    assert_eq!(fs::read(&export.at).unwrap(), handle);
    assert_eq!(fs::read_dir(place.0.path()).unwrap().count(), 1, "nothing else is left behind");
    let story = export.end();
    for part in
        ["mapped 1 MiB at 0x", "✓  self  can be exported", "packed a handle of ", "mode 0600", " import /"]
    {
        assert!(story.contains(part), "{part}: {story}");
    }
}

#[test]
fn each_who_connects_to_the_socket_is_given_the_handle() {
    let place = Place::new();
    let export = place.listen(&["--size", "1M", "--fill", "count"]);
    assert_eq!(mode(&export.at), 0o600);
    assert!(fs::symlink_metadata(&export.at).unwrap().file_type().is_socket());
    // Neither who never reads, nor who goes at once, keeps others waiting.
    let silent: Vec<_> = (0..100).map(|_| UnixStream::connect(&export.at).unwrap()).collect();
    drop(UnixStream::connect(&export.at).unwrap());
    let begin = Instant::now();
    let importers: Vec<_> =
        (0..2).map(|_| Running::of(&mut rucx(&["import", &export.at, "--verify", "count"]))).collect();
    for importer in importers {
        let (status, story) = importer.finish();
        assert_eq!(status.code(), Some(0), "{story}");
        assert!(story.ends_with("✓  all of 1 MiB is as expected: count\n"), "{story}");
    }
    assert!(begin.elapsed() < Duration::from_secs(10));
    let mut other = rucx(&["export", "--size", "4K", "--listen", &export.at]);
    refused(&mut other, &["is not overwritten", "rm /"]);
    export.import(&[], 0);
    let at = export.at.clone();
    assert!(export.end().contains("the handle was given away 10"));
    drop(silent);
    refused(&mut rucx(&["import", &at]), &["No such file", "rucx export in another terminal"]);
}

#[test]
fn bytes_go_both_ways() {
    let place = Place::new();
    let export = place.export(&["--size", "3M", "--fill", "random:0x2a"]);
    let story = export.import(&["--verify", "random:42"], 0);
    assert!(story.ends_with("✓  all of 3 MiB is as expected: random:42\n"), "{story}");
    let story = export.import(&["--write", "4096=hello", "--write", "2M=more", "--read", "4K:20"], 0);
    assert!(
        story.contains("wrote 5 B at 4096 (0x1000)") && story.contains("20 B at 4096 (0x1000):"),
        "{story}"
    );
    let row = story.lines().find(|line| line.starts_with("00001000  68 65 6c 6c 6f ")).unwrap();
    assert!(row.contains("|hello"), "{row}");
    assert!(story.lines().any(|line| line.starts_with("00001010  ") && line.contains("  |")), "{story}");
    let story = export.import(&["--verify", "random:42"], 1);
    let last = story.lines().last().unwrap_or_default();
    assert!(last.starts_with("✗  ") && last.ends_with(", the first at 4096 (0x1000)"), "{story}");
    assert!(story.contains("bytes differ from random:42"), "{story}");
    // Filling comes first, then writing, then reading.
    let args = ["--read", "0..64", "--write", "8=X", "--fill", "text:ab", "--verify", "text:ab"];
    let story = export.import(&args, 1);
    assert!(story.contains("|ababababXbababab|"), "{story}");
    assert!(story.ends_with("✗  1 byte differs from text:ab, the first at 8 (0x8)\n"), "{story}");
    export.import(&["--fill", "zero", "--verify", "zero"], 0);
    // Of what repeats, there is one row.
    let story = export.import(&["--read", ".."], 0);
    assert!(story.contains("\n*\n00300000\n") && story.lines().count() < 20, "{story}");
    for (args, what) in [
        (["--read", "3M:1"], "reaches beyond the 3145728 bytes"),
        (["--write", "3145727=ab"], "OutOfRange"),
        (["--watch", "0..4M"], "reaches beyond the 3145728 bytes"),
    ] {
        refused(rucx(&["import", &export.at]).args(args), &[what]);
    }
    export.end();
}

#[test]
fn bytes_themselves_go_to_a_pipe() {
    let place = Place::new();
    let export = place.export(&["--size", "2M", "--fill", "text:bytes"]);
    let output = finish(&mut rucx(&["import", &export.at, "--read", "5..1500000", "--raw"]));
    assert_eq!(output.status.code(), Some(0));
    let expected: Vec<u8> = b"bytes".iter().copied().cycle().take(1_500_000 - 5).collect();
    assert!(output.stdout == expected, "{} bytes", output.stdout.len());
    let story = text(&output.stderr);
    assert!(story.contains("imported 2 MiB"), "{story}");
    assert_fits(&story);
    // Standard input will do as well: the stream may go on after the handle.
    let mut bytes = fs::read(&export.at).unwrap();
    bytes.extend([0; 100]);
    let story = piped(&bytes, &["--read", "0:5"], 0);
    assert!(story.contains("|bytes|"), "{story}");
    export.end();
}

/// What `rucx import -` prints when it is given these bytes.
fn piped(bytes: &[u8], args: &[&str], code: i32) -> String {
    let mut command = rucx(&[&["import", "-"], args].concat());
    let mut child = Running::of(command.stdin(Stdio::piped()));
    child.input().write_all(bytes).unwrap();
    let (status, story) = child.finish();
    assert_eq!(status.code(), Some(code), "{story}");
    assert_fits(&story);
    story
}

#[test]
fn watching_tells_what_changes_and_ends_with_the_export() {
    let place = Place::new();
    let export = place.export(&["--size", "2M"]);
    let watch = |args: &[&str]| {
        let mut watch = Running::of(rucx(&["import", &export.at, "--interval", "10ms"]).args(args));
        watch.wait_for("watching ");
        watch
    };
    let (mut all, part) = (watch(&["--watch"]), watch(&["--watch", "0:4K"]));
    export.import(&["--write", "1048570=across two chunks"], 0);
    all.wait_for("changed: 17 bytes at 1048570 (0xffffa)");
    all.wait_for("000ffff0  00 00 00 00 00 00 00 00  00 00 61 63 72 6f 73 73  |..........across|");
    all.wait_for("00100000  20 74 77 6f ");
    export.import(&["--write", "100=x"], 0);
    all.wait_for("changed: 1 byte at 100 (0x64)");
    export.end();
    for (process, times) in [(all, 2), (part, 1)] {
        let (status, story) = process.finish();
        assert_eq!(status.code(), Some(0), "{story}");
        assert!(story.contains("stale: the export was revoked or dropped"), "{story}");
        assert!(story.ends_with(&format!("✓  revoked by its owner; it changed {times} times\n")), "{story}");
        assert_fits(&story);
    }
}

#[test]
fn watching_ends_by_a_signal_and_with_the_exporter_s_death() {
    let place = Place::new();
    let export = place.export(&["--size", "64K"]);
    let watch = || {
        let mut watch = Running::of(&mut rucx(&["import", &export.at, "--watch", "--interval", "20ms"]));
        watch.wait_for("watching all of it, 64 KiB at 0");
        watch
    };
    let (first, second) = (watch(), watch());
    first.signal(Signal::INT);
    let (status, story) = first.finish();
    assert_eq!(status.code(), Some(0), "{story}");
    assert!(story.ends_with("✓  ended by a signal; it changed 0 times\n"), "{story}");
    export.process.signal(Signal::KILL);
    let (status, story) = second.finish();
    assert_eq!(status.code(), Some(1), "{story}");
    assert!(story.contains("the exporting process is gone") && story.contains("remedy: "), "{story}");
}

#[test]
fn read_only_is_read_only() {
    let place = Place::new();
    for args in [
        &["--size", "64K", "--fill", "count", "--read-only"][..],
        &["--heap", "--size", "64K", "--fill", "count", "--read-only"],
    ] {
        let export = place.export_with(args, CMA);
        let story = export.import(&["--verify", "count"], 0);
        assert!(story.contains("imported 64 KiB, read-only, over "), "{story}");
        for args in [["--write", "0=x"], ["--fill", "zero"]] {
            let story = refused(
                rucx(&["import", &export.at]).args(args),
                &["AccessDenied", "begin rucx export without --read-only"],
            );
            assert!(!story.contains("wrote"), "{story}");
        }
        export.import(&["--verify", "count"], 0);
        let story = export.end();
        assert!(story.contains(", read-only: "), "{story}");
    }
}

#[test]
fn what_is_no_handle_is_told_with_the_remedy() {
    let place = Place::new();
    let export = place.export(&["--size", "4K"]);
    let handle = fs::read(&export.at).unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = place.path(name);
        let mut file = OpenOptions::new().write(true).create_new(true).open(&path).unwrap();
        file.set_permissions(Permissions::from_mode(0o600)).unwrap();
        file.write_all(bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    for (name, bytes) in [
        ("empty", &[][..]),
        ("garbage", b"this is no handle, but a text which is long enough to be one, as far as its size goes"),
        ("truncated", &handle[..handle.len() / 2]),
        ("trailing", &[&handle[..], b"x"].concat()),
        ("large", &vec![0; 1 << 20]),
        ("changed", &{
            let mut changed = handle.clone();
            let last = changed.len() - 1;
            changed[last] ^= 1;
            changed
        }),
    ] {
        refused(&mut rucx(&["import", &file(name, bytes)]), &["pass on exactly the bytes"]);
    }
    for (at, reason) in [
        (place.name("missing"), "No such file"),
        (place.0.path().to_str().unwrap().to_owned(), "it is a directory"),
        (export.at.clone() + "/x", "Not a directory"),
        ("-".to_owned(), "the stream ended before the handle did"),
    ] {
        refused(&mut rucx(&["import", &at]), &["cannot read a handle from", reason]);
    }
    let story = piped(&handle[..handle.len() - 1], &[], 1);
    assert!(story.contains("the stream ended before the handle did"), "{story}");
    // Who can read the handle has the memory.
    fs::set_permissions(&export.at, Permissions::from_mode(0o644)).unwrap();
    let story = export.import(&[], 0);
    assert!(words(&story).contains("warning: other users can read "), "{story}");
    assert!(
        words(&story).contains("mode 0644, and with it the memory. A handle is a secret: chmod 600 "),
        "{story}"
    );
    export.end();
}

#[test]
fn nothing_is_waited_for_without_end() {
    let place = Place::new();
    let listener = UnixListener::bind(place.path("silent")).unwrap();
    rustix::fs::mknodat(CWD, place.path("fifo"), rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o600), 0)
        .unwrap();
    for name in ["silent", "fifo"] {
        let mut command = rucx(&["import", &place.name(name)]);
        refused(
            command.env("UCX_IMPORT_TIMEOUT", "300ms"),
            &["has not come within 0.3 s", "UCX_IMPORT_TIMEOUT"],
        );
    }
    let mut command = rucx(&["import", "-"]);
    let mut child = Running::of(command.env("UCX_IMPORT_TIMEOUT", "300ms").stdin(Stdio::piped()));
    let open = child.input();
    let (status, story) = child.finish();
    assert_eq!(status.code(), Some(1), "{story}");
    assert!(story.contains("has not come within"), "{story}");
    drop((open, listener));
    let dead = place.name("silent");
    refused(&mut rucx(&["import", &dead]), &["nobody listens there any more", "rm /"]);
    // A stopped exporter: the kernel lets who connects in, and nobody answers.
    let export = place.listen(&["--size", "4K"]);
    export.process.signal(Signal::STOP);
    let mut command = rucx(&["import", &export.at]);
    refused(command.env("UCX_IMPORT_TIMEOUT", "300ms"), &["see whether the exporter is stopped"]);
    export.process.signal(Signal::CONT);
    export.import(&[], 0);
    export.end();
}

#[test]
fn signals_and_time_end_it_in_order() {
    let place = Place::new();
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let export = place.listen(&["--size", "64K"]);
        let mut watch = Running::of(&mut rucx(&["import", &export.at, "--watch", "--interval", "5ms"]));
        watch.wait_for("watching ");
        export.process.signal(signal);
        assert!(export.ended().contains("HOST  ended by a signal"));
        let (status, story) = watch.finish();
        assert_eq!(status.code(), Some(0), "{story}");
        assert!(story.contains("stale: "), "{story}");
    }
    let begin = Instant::now();
    let export = place.export(&["--size", "4K", "--for", "300ms"]);
    export.import(&[], 0);
    let story = export.ended();
    assert!(begin.elapsed() >= Duration::from_millis(300));
    assert!(
        story.contains("; after 300ms it ends by itself") && story.contains("HOST  the time is over"),
        "{story}"
    );
}

#[test]
fn enter_ends_it() {
    let place = Place::new();
    for typed in ["\n", "yes\n", "\u{4}"] {
        let terminal = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        rustix::pty::grantpt(&terminal).unwrap();
        rustix::pty::unlockpt(&terminal).unwrap();
        let name = rustix::pty::ptsname(&terminal, Vec::new()).unwrap();
        let flags = i32::try_from(OFlags::NOCTTY.bits()).unwrap();
        let stdin =
            OpenOptions::new().read(true).write(true).custom_flags(flags).open(name.to_str().unwrap());
        let handle = place.name("handle");
        let mut command = rucx(&["export", "--size", "4K", "--out", &handle]);
        let export = Export::of(command.stdin(stdin.unwrap()), handle);
        fs::File::from(terminal.try_clone().unwrap()).write_all(typed.as_bytes()).unwrap();
        let story = export.ended();
        assert!(story.contains("To end it: Enter or Ctrl-C here."), "{story}");
        assert!(story.contains("HOST  ended at the terminal"), "{story}");
    }
}

#[test]
fn after_a_kill_the_handle_is_stale() {
    let place = Place::new();
    for export in [place.export(&["--size", "4K"]), place.listen(&["--size", "4K"])] {
        let handle = place.path("handle");
        let is_file = export.at == handle.to_str().unwrap();
        export.process.signal(Signal::KILL);
        let (status, _) = export.process.finish();
        assert_eq!(status.code(), None);
        if is_file {
            let parts = ["cannot import the handle: Stale", "stale:", "–", "ask the owner for a new handle"];
            refused(&mut rucx(&["import", &export.at]), &parts);
        } else {
            refused(&mut rucx(&["import", &export.at]), &["nobody listens there any more"]);
        }
    }
}

#[test]
fn an_importer_stopped_inside_an_access_is_named() {
    let place = Place::new();
    // Where it is when it is stopped cannot be told; inside, more often than not.
    for _ in 0..30 {
        let export = place.export_with(&["--size", "64M"], &[("UCX_REVOKE_TIMEOUT", "100ms")]);
        let importers: Vec<_> = (0..4)
            .map(|_| {
                let mut command = rucx(&["import", &export.at, "--watch", "--interval", "1us"]);
                let mut importer = Running::of(&mut command);
                importer.wait_for("watching ");
                importer.signal(Signal::STOP);
                importer
            })
            .collect();
        export.process.signal(Signal::INT);
        let (status, story) = export.process.finish();
        assert!(fs::symlink_metadata(&export.at).is_err(), "the handle is removed in any case");
        if status.code() == Some(0) {
            continue;
        }
        assert_eq!(status.code(), Some(1), "{story}");
        assert_fits(&story);
        let told = words(&story);
        assert!(story.ends_with("✗  revoked, but not drained\n"), "{story}");
        let pid = importers.iter().map(|one| one.pid().as_raw_nonzero().get());
        assert!(
            pid.into_iter().any(|pid| told.contains(&format!("an access of process {pid} ")))
                && told.contains("remedy: continue what was stopped (kill -CONT "),
            "{story}"
        );
        return;
    }
    panic!("none of 120 importers was stopped inside an access");
}

/// Where Yama restricts what one process may do with another, exporters of this test allow it.
const CMA: &[(&str, &str)] = &[("UCX_CMA_PTRACER_ANY", "y")];

#[test]
fn a_file_is_shared_by_all_who_have_it() {
    let place = Place::new();
    let path = place.name("data");
    fs::write(&path, vec![0; 10_000]).unwrap();
    let export = place.export_with(&["--file", &path, "--fill", "count"], CMA);
    let story = export.import(&["--verify", "count", "--write", "5000=from afar"], 1);
    assert!(story.contains("imported 9.7 KiB, read-write, over cma"), "{story}");
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let mut bytes = [0; 9];
    file.read_exact_at(&mut bytes, 5000).unwrap();
    assert_eq!(&bytes, b"from afar");
    file.write_all_at(b"from here", 9_991).unwrap();
    let story = export.import(&["--read", "9991.."], 0);
    assert!(story.contains("|from here|"), "{story}");
    let story = export.end();
    assert!(words(&story).contains(&format!("read-write: the file {path}, shared")), "{story}");
    assert_eq!(fs::metadata(&path).unwrap().len(), 10_000);
    // What is to be read only cannot be written, by whatever way.
    let export = place.export_with(&["--file", &path, "--read-only"], CMA);
    refused(&mut rucx(&["import", &export.at, "--write", "0=x"]), &["AccessDenied"]);
    assert!(export.import(&["--read", "5000:9"], 0).contains("|from afar|"));
    export.end();
}

#[test]
fn a_file_that_cannot_be_written_is_exported_read_only() {
    let place = Place::new();
    let path = place.name("sleep");
    fs::copy("/bin/sleep", &path).unwrap();
    // A program that runs cannot be opened for writing, not even by root.
    let mut busy = Busy(Command::new(&path).arg("60").spawn().unwrap());
    let export = place.export_with(&["--file", &path], CMA);
    let story = export.import(&["--read", "1:3"], 0);
    assert!(story.contains(", read-only, over cma") && story.contains("|ELF|"), "{story}");
    let story = export.end();
    assert!(words(&story).contains("read-only, because the file cannot be opened for writing: "), "{story}");
    let mut filled = rucx(&["export", "--file", &path, "--out", &place.name("handle"), "--fill", "zero"]);
    refused(&mut filled, &["cannot fill it: AccessDenied"]);
    busy.0.kill().unwrap();
    for (name, reason) in [("missing", "No such file"), ("", "it is a directory"), ("empty", "it is empty")] {
        fs::write(place.path("empty"), b"").unwrap();
        let mut command = rucx(&["export", "--file", &place.name(name), "--out", &place.name("handle")]);
        refused(&mut command, &["cannot map the file", reason]);
        assert!(!place.path("handle").exists());
    }
}

/// A process, ended with the value.
struct Busy(Child);

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_heap_buffer_is_reached_by_its_address() {
    let place = Place::new();
    let export = place.export_with(&["--heap", "--size", "300K", "--fill", "random:9"], CMA);
    let story = export.import(&["--verify", "random:9", "--write", "4096=to the heap", "--read", "4K:11"], 1);
    assert!(story.contains("read-write, over cma") && story.contains("|to the heap|"), "{story}");
    let story = export.end();
    assert!(words(&story).contains("a Vec of this process's heap"), "{story}");
    // Only what the transports reach: shm cannot.
    let export = place.export_with(&["--heap", "--size", "4K"], CMA);
    let mut command = rucx(&["import", &export.at]);
    refused(
        command.env("UCX_TLS", "self"),
        &["cannot import the handle: Unreachable", "not allowed by UCX_TLS"],
    );
    export.end();
    // Without a transport that reaches another process, the exporter says so at once.
    let export = place.export_with(&["--size", "4K"], &[("UCX_TLS", "self")]);
    refused(&mut rucx(&["import", &export.at]), &["cannot import the handle: Unreachable"]);
    assert!(words(&export.end()).contains("warning: no other process can import it"));
}

#[test]
fn the_line_to_type_works_however_long_it_is() {
    let place = Place::new();
    let dir = place.path(&format!("it's a $long name {}", "x y ".repeat(40)));
    fs::create_dir(&dir).unwrap();
    let handle = dir.join("handle").to_str().unwrap().to_owned();
    let export = Export::of(&mut rucx(&["export", "--size", "4K", "--out", &handle]), handle.clone());
    let socket = rucx(&["export", "--size", "4K", "--listen", &handle]).output().unwrap();
    assert!(words(&text(&socket.stdout)).contains("choose a shorter path"), "{}", text(&socket.stdout));
    let story = export.end();
    let typed: Vec<_> =
        story.lines().filter(|line| line.starts_with('/') || !line.starts_with(' ')).collect();
    let first = typed.iter().position(|line| line.contains("/rucx import ")).unwrap();
    let last = typed[first..].iter().position(|line| !line.ends_with('\\')).unwrap();
    let line = typed[first..=first + last].join("\n");
    let export = Export::of(&mut rucx(&["export", "--size", "4K", "--out", &handle]), handle);
    let output = Command::new("sh").arg("-c").arg(&line).env("LC_ALL", "C.UTF-8").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{line}: {}", text(&output.stdout));
    export.end();
}

#[test]
fn in_another_locale_it_is_ascii() {
    let place = Place::new();
    let export = place.export_with(&["--size", "64K"], &[("LC_ALL", "C")]);
    let story =
        import(rucx(&["import", &export.at, "--verify", "zero", "--read", "0:32"]).env("LC_ALL", "C"), 0);
    assert!(story.is_ascii() && story.contains("ok all of 64 KiB is as expected"), "{story}");
    export.process.signal(Signal::TERM);
    let (status, story) = export.process.finish();
    assert_eq!(status.code(), Some(0), "{story}");
    assert!(story.is_ascii() && story.contains("ok revoked"), "{story}");
}

#[test]
fn no_level_of_events_shows_a_secret_and_no_variable_is_too_long() {
    let place = Place::new();
    let handle = place.name("handle");
    let level = ("UCX_LOG_LEVEL", "trace");
    let errors = place.path("errors");
    let mut command = rucx(&["export", "--size", "64K", "--out", &handle]);
    command.envs([level, ("UCX_TLS", "self,shm,cma,tcp,rc,ud,dc,cuda,rocm,ugni,gga,knem,xpmem,sysv")]);
    let export = Export::of(command.stderr(fs::File::create(&errors).unwrap()), handle.clone());
    let output = finish(rucx(&["import", &handle, "--verify", "zero"]).envs([level]));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    assert_fits(&text(&output.stdout));
    assert_no_secret(&text(&output.stderr));
    export.end();
    assert_no_secret(&fs::read_to_string(&errors).unwrap());
}

#[test]
fn who_stops_reading_leaves_nothing_behind() {
    let place = Place::new();
    let mut command = rucx(&["export", "--size", "64K", "--out", &place.name("handle"), "--for", "30s"]);
    let mut export = Running::of(&mut command);
    export.close_output();
    let begin = Instant::now();
    let (status, _) = export.finish();
    assert_eq!(status.code(), Some(1));
    assert!(begin.elapsed() < Duration::from_secs(20));
    assert_eq!(fs::read_dir(place.0.path()).unwrap().count(), 0);
}

#[test]
fn wrong_arguments_are_usage_errors() {
    let place = Place::new();
    let handle = place.name("handle");
    for args in [
        &["export"][..],
        &["export", "--out", &handle, "--listen", &handle],
        &["export", "--out", &handle, "--size", "0"],
        &["export", "--out", &handle, "--size", "lots"],
        &["export", "--out", &handle, "--fill", "ones"],
        &["export", "--out", &handle, "--for", "ever"],
        &["export", "--out", &handle, "--file", &handle, "--heap"],
        &["export", "--out", &handle, "--file", &handle, "--size", "4K"],
        &["export", "--out", &handle, "--file", &handle, "--read-only", "--fill", "zero"],
        &["import"],
        &["import", &handle, "--read", "5"],
        &["import", &handle, "--raw"],
        &["import", &handle, "--write", "hello"],
        &["import", "--watch", &handle],
    ] {
        let output = finish(&mut rucx(args));
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert_eq!(text(&output.stdout), "");
        assert!(!output.stderr.is_empty() && !place.path("handle").exists(), "{args:?}");
    }
    for (command, example) in
        [("export", "rucx export --out /tmp/handle"), ("import", "rucx import /tmp/handle --watch")]
    {
        let help = text(&finish(&mut rucx(&[command, "--help"])).stdout);
        assert!(help.contains(example) && help.contains("exit status"), "{help}");
        assert_fits(&help);
    }
}

#[test]
fn a_stranger_who_reads_the_socket_gets_the_handle_and_nothing_else() {
    let place = Place::new();
    let export = place.listen(&["--size", "4K"]);
    let readers: Vec<_> = (0..8)
        .map(|_| {
            let at = export.at.clone();
            thread::spawn(move || {
                let mut bytes = Vec::new();
                UnixStream::connect(at).unwrap().read_to_end(&mut bytes).unwrap();
                bytes
            })
        })
        .collect();
    let handles: Vec<_> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
    assert!(handles.iter().all(|handle| handle.starts_with(b"RXMH") && *handle == handles[0]));
    assert!(piped(&handles[0], &["--verify", "zero"], 0).contains("all of 4 KiB"));
    assert!(export.end().contains("given away 8 times"));
}
