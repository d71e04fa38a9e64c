//! `rucx export`: where the handle is, and how it ends.

use std::fs;
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::process::Signal;
use rustix::pty::OpenptFlags;

use crate::support::{Running, rucx};
use crate::terminals::{Export, Place, assert_fits, mode, piped, refused, words};

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
    let story = refused(&mut other, &["is not overwritten", "choose another name"]);
    assert!(!story.contains("rm /"), "{story}");
    export.import(&[], 0);
    let at = export.at.clone();
    assert!(export.end().contains("the handle was given away 10"));
    drop(silent);
    refused(&mut rucx(&["import", &at]), &["No such file", "rucx export in another terminal"]);
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

/// Whether this process ignores a signal, and so what it starts (`SigIgn` of `proc_pid_status(5)`).
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() >> (signal.as_raw() - 1) & 1 == 1
}

#[test]
fn signals_and_time_end_it_in_order() {
    let place = Place::new();
    for signal in [
        Signal::INT,
        Signal::TERM,
        Signal::HUP,
        Signal::QUIT,
        Signal::USR1,
        Signal::USR2,
        Signal::ALARM,
        Signal::VTALARM,
    ] {
        if is_ignored(signal) {
            continue; // as under nohup: then it is the export's, too, and does nothing
        }
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

/// An export that was told to end while an importer was stopped inside an access; with the importers.
fn caught_inside(place: &Place, patience: &str) -> (Export, Vec<Running>) {
    // Where an importer is when it is stopped cannot be told: inside, often enough.
    for round in 1..=40 {
        let mut command = rucx(&["export", "--out", &place.name("handle"), "--size", "16M"]);
        command.env("UCX_REVOKE_TIMEOUT", patience).stderr(fs::File::create(place.path("errors")).unwrap());
        let mut export = Export::of(&mut command, place.name("handle"));
        let importers: Vec<_> = (0..4)
            .map(|_| {
                let mut command = rucx(&["import", &export.at, "--watch", "--interval", "1ms"]);
                let mut importer = Running::of(&mut command);
                importer.wait_for("watching ");
                thread::sleep(Duration::from_micros(1700 * round));
                importer.signal(Signal::STOP);
                importer
            })
            .collect();
        export.process.signal(Signal::INT);
        if export.process.tells("waiting for accesses in flight, at most ") {
            assert!(fs::symlink_metadata(&export.at).is_err(), "the handle is removed in any case");
            return (export, importers);
        }
    }
    panic!("none of 160 importers was stopped inside an access");
}

#[test]
fn an_importer_stopped_inside_an_access_is_named() {
    let place = Place::new();
    let (export, importers) = caught_inside(&place, "1s");
    let begin = Instant::now();
    let (status, story) = export.process.finish();
    assert!(begin.elapsed() < Duration::from_millis(1500), "{:?}: it was waited for once", begin.elapsed());
    assert_eq!(status.code(), Some(1), "{story}");
    assert_fits(&story);
    let told = words(&story);
    assert!(story.ends_with("✗  revoked, but not drained\n"), "{story}");
    assert!(
        told.contains("at most 1s (UCX_REVOKE_TIMEOUT)") && told.contains("after 1 s an access of "),
        "{story}"
    );
    assert!(told.contains("given back with the end of this program"), "{story}");
    let pid = importers.iter().map(|one| one.pid().as_raw_nonzero().get());
    assert!(
        pid.into_iter().any(|pid| told.contains(&format!("an access of process {pid} ")))
            && told.contains("remedy: continue what was stopped (kill -CONT "),
        "{story}"
    );
    assert_eq!(fs::read_to_string(place.path("errors")).unwrap(), "", "all of it is told once");
    for importer in importers {
        importer.signal(Signal::CONT);
        let (status, story) = importer.finish();
        assert!(status.code() == Some(0) && story.contains("stale: "), "{story}");
    }
}

#[test]
fn another_signal_ends_the_wait_for_accesses() {
    let place = Place::new();
    let (export, importers) = caught_inside(&place, "50s");
    export.process.signal(Signal::TERM);
    let begin = Instant::now();
    let (status, story) = export.process.finish();
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    assert_eq!(status.code(), Some(1), "{story}");
    assert!(words(&story).contains("HOST ended at once, by another signal"), "{story}");
    drop(importers);
}

#[test]
fn no_remedy_removes_what_is_the_user_s() {
    let place = Place::new();
    fs::write(place.path("mine"), b"mine").unwrap();
    let dir = place.0.path().to_str().unwrap();
    for name in [&place.name("mine"), dir, "/dev/full"] {
        for to in ["--out", "--listen"] {
            let story = refused(&mut rucx(&["export", "--size", "4K", to, name]), &["choose another name"]);
            assert!(!words(&story).contains("rm "), "{story}");
        }
    }
    // What an export that was killed has left behind is another matter.
    let export = place.listen(&["--size", "4K"]);
    export.process.signal(Signal::KILL);
    export.process.finish();
    let mut again = rucx(&["export", "--size", "4K", "--listen", &export.at]);
    refused(&mut again, &["nobody listens any more", &format!("rm {}", export.at)]);
}

#[test]
fn a_handle_that_is_gone_already_is_no_other() {
    let place = Place::new();
    let export = place.export(&["--size", "4K"]);
    fs::remove_file(&export.at).unwrap();
    export.process.signal(Signal::TERM);
    let (status, story) = export.process.finish();
    assert_eq!(status.code(), Some(0), "{story}");
    assert!(words(&story).contains(&format!("{} was removed already", export.at)), "{story}");
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
