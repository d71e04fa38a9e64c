//! How both look: lines that fit, in any locale, without secrets; arguments.

use std::fs;
use std::process::Command;

use rustix::process::Signal;

use crate::support::{assert_no_secret, finish, rucx, text};
use crate::terminals::{Export, Place, assert_fits, import, words};

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
fn wrong_arguments_are_usage_errors() {
    let place = Place::new();
    let handle = place.name("handle");
    for args in [
        &["export"][..],
        &["export", "--out", &handle, "--listen", &handle],
        &["export", "--out", &handle, "--size", "0"],
        &["export", "--out", &handle, "--size", "lots"],
        &["export", "--out", &handle, "--size", "0x"],
        &["export", "--out", "-"],
        &["export", "--listen", "-"],
        &["export", "--out", &handle, "--fill", "ones"],
        &["export", "--out", &handle, "--for", "ever"],
        &["export", "--out", &handle, "--file", &handle, "--heap"],
        &["export", "--out", &handle, "--file", &handle, "--size", "4K"],
        &["export", "--out", &handle, "--file", &handle, "--read-only", "--fill", "zero"],
        &["import"],
        &["import", &handle, "--read", "5"],
        &["import", &handle, "--raw"],
        &["import", &handle, "--watch", "--interval", "1us"],
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
