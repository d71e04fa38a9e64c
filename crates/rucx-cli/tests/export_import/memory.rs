//! What else can be exported: files, and buffers of the heap.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command};

use crate::support::rucx;
use crate::terminals::{CMA, Place, refused, words};

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
    assert!(words(&story).contains(&format!("filled it: count; {path} is overwritten")), "{story}");
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
    // By another process: this one's descriptor for writing would be in every child started meanwhile, and keep it from running.
    assert!(Command::new("cp").args(["/bin/sleep", &path]).status().unwrap().success());
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
    // Some files have no bytes of their own.
    let mut command = rucx(&["export", "--file", "/proc/self/maps", "--out", &place.name("handle")]);
    let story = refused(&mut command, &["cannot map the file", "export a copy of it"]);
    assert!(!story.contains("truncate"), "{story}");
}

#[test]
fn remedies_follow_the_cause() {
    let place = Place::new();
    let path = place.name("data");
    fs::write(&path, vec![1; 3 << 20]).unwrap();
    let export = place.export_with(&["--file", &path, "--read-only"], CMA);
    refused(&mut rucx(&["import", &export.at, "--write", "0=x"]), &["without --read-only", "chmod"]);
    export.end();
    // What is behind the pages goes away: told with all that was read before.
    let export = place.export_with(&["--file", &path], CMA);
    OpenOptions::new().write(true).open(&path).unwrap().set_len((2 << 20) + 4096).unwrap();
    for args in [["--read", ".."], ["--verify", "zero"], ["--fill", "zero"]] {
        let story = refused(
            rucx(&["import", &export.at]).args(args),
            &["AccessDenied", "denied after 2101248 bytes", "shorter than it was, or the disk is full"],
        );
        assert!(!story.contains("--read-only"), "{story}");
    }
    // Nothing was read, and there is no head above nothing.
    let story = refused(&mut rucx(&["import", &export.at, "--read", "2200000:4"]), &["cannot read it"]);
    assert!(!story.contains("4 B at 2200000"), "{story}");
    export.end();
}

#[test]
fn a_heap_buffer_is_reached_by_its_address() {
    let place = Place::new();
    let export = place.export_with(&["--heap", "--size", "300K", "--fill", "random:9"], CMA);
    let story = export.import(&["--verify", "random:9", "--write", "4096=to the heap", "--read", "4K:11"], 1);
    assert!(story.contains("read-write, over cma") && story.contains("|to the heap|"), "{story}");
    let story = export.end();
    assert!(words(&story).contains("a Vec of this process's heap"), "{story}");
    assert!(
        words(&story).contains("MemMap::allocate (that is rucx export without --heap and --file)"),
        "{story}"
    );
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

/// A process, ended with the value.
struct Busy(Child);

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
