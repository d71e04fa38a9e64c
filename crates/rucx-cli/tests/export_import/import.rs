//! `rucx import`: what it does with the memory, and what it refuses.

use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::process::Stdio;

use rustix::fs::{CWD, Mode};
use rustix::process::Signal;

use crate::support::{Running, finish, rucx, text};
use crate::terminals::{CMA, Place, assert_fits, piped, refused, words};

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
    let story = export.import(&["--write", "0x10=hex", "--read", "0x10..0x13"], 0);
    assert!(story.contains("|hex|"), "{story}");
    export.import(&["--fill", "zero"], 0);
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
    // An aligned word is seen as a whole.
    export.import(&["--write", "1M=8 bytes!"], 0);
    all.wait_for("changed: 8 bytes at 1048576 (0x100000)");
    all.wait_for("00100000  38 20 62 79 74 65 73 21  00 00 00 00 00 00 00 00  |8 bytes!........|");
    export.import(&["--write", "100=x"], 0);
    all.wait_for("changed: 1 byte at 100 (0x64)");
    export.end();
    for (process, times) in [(all, "2 times"), (part, "once")] {
        let (status, story) = process.finish();
        assert_eq!(status.code(), Some(0), "{story}");
        assert!(story.contains("stale: the export was revoked or dropped"), "{story}");
        assert!(story.ends_with(&format!("✓  revoked by its owner; it changed {times}\n")), "{story}");
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
    let mut newer = handle.clone();
    newer[4] += 1;
    refused(&mut rucx(&["import", &file("newer", &newer)]), &["the same version of rucx on both sides"]);
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
    drop(open);
    drop(listener);
    // A stopped exporter: the kernel lets who connects in, and nobody answers.
    let export = place.listen(&["--size", "4K"]);
    export.process.signal(Signal::STOP);
    let mut command = rucx(&["import", &export.at]);
    refused(command.env("UCX_IMPORT_TIMEOUT", "300ms"), &["see whether the exporter is stopped"]);
    export.process.signal(Signal::CONT);
    export.import(&[], 0);
    export.end();
}
