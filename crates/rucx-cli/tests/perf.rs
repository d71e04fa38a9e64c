//! `rucx perf` as a user starts it.

#[allow(dead_code)] // what the tests of other commands need beside
mod support;

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use serde_json::Value;
use support::{Running, assert_no_secret, finish, rucx, text};

/// Enough to see that it works.
const SHORT: [&str; 6] = ["--iters", "300", "--warmup", "10", "--seconds", "300ms"];

#[allow(clippy::unwrap_used)] // what fails here is a failed test
fn document(args: &[&str]) -> Value {
    let output = finish(&mut rucx(&[&short(args)[..], &["--json"]].concat()));
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn short<'a>(args: &[&'a str]) -> Vec<&'a str> {
    ["perf"].iter().chain(args).chain(&SHORT).copied().collect()
}

fn positive(row: &Value, keys: &[&str]) {
    for key in keys {
        assert!(row[key].as_f64().is_some_and(|figure| figure > 0.0 && figure < 1e13), "{key}: {row}");
    }
}

#[test]
fn without_arguments_all_latencies_are_told_in_a_table() {
    let output = finish(&mut rucx(&short(&[])));
    let story = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{story}{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "");
    assert!(story.lines().all(|line| line.chars().count() <= 80 && line.trim_end() == line), "{story}");
    for test in ["put", "get", "am"] {
        let rows = story.lines().filter(|line| line.split(' ').next() == Some(test)).count();
        assert_eq!(rows, 4, "{story}");
    }
    assert_eq!(story.lines().filter(|line| line.starts_with("fadd")).count(), 1, "{story}");
    assert!(story.contains("messages by shm, memory by shm") && story.contains("CPU "), "{story}");
    assert!(story.lines().last().is_some_and(|line| line.starts_with("✓  measured")), "{story}");
    assert_no_secret(&story);
}

#[test]
fn figures_of_a_document_are_plausible() {
    let document = document(&["put", "get", "am", "--size", "8,1M,13"]);
    assert_eq!(document["error"], Value::Null);
    assert_eq!((&document["messages_by"], &document["memory_by"]), (&"shm".into(), &"shm".into()));
    assert_eq!(document["data_by"], "cma");
    positive(&document, &["clock_us", "seconds"]);
    let rows = document["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 9);
    for row in rows {
        let keys = ["iterations", "mean_us", "p50_us", "p90_us", "p99_us", "p999_us"];
        positive(row, &keys);
        positive(row, &["bytes_per_second", "messages_per_second", "seconds"]);
        let time = |key: &str| row[key].as_f64().unwrap();
        assert!(time("p50_us") <= time("p90_us") && time("p99_us") <= time("p999_us"), "{row}");
        assert_eq!(row["transport"], "shm");
    }
    let sizes: Vec<_> = rows.iter().take(3).map(|row| row["size"].as_u64().unwrap()).collect();
    assert_eq!(sizes, [8, 13, 1 << 20]);
}

#[test]
fn bandwidth_and_rate_have_no_latencies() {
    let of = document(&["--mode", "bw", "--size", "100,4K,256K"]);
    let rows = of["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 9);
    for row in rows {
        assert_eq!((&row["mode"], &row["p50_us"]), (&"bw".into(), &Value::Null));
        positive(row, &["iterations", "bytes_per_second", "messages_per_second", "mean_us"]);
    }
    let of = document(&["am", "put", "--mode", "rate"]);
    let rows = of["rows"].as_array().unwrap();
    let tests: Vec<_> = rows.iter().map(|row| (row["test"].as_str(), row["size"].as_u64())).collect();
    assert_eq!(tests, [(Some("am"), Some(8)), (Some("put"), Some(8))]);
}

#[test]
fn operands_may_be_imported_memory() {
    for mode in ["lat", "bw"] {
        let of = document(&["--imported", "--mode", mode, "--size", "4,1000,100K"]);
        assert_eq!(of["operands_by"], "shm");
        let rows = of["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 10, "{of}");
        for row in rows {
            positive(row, &["iterations", "bytes_per_second", "messages_per_second", "mean_us"]);
        }
    }
}

#[test]
fn atomics_are_of_words() {
    let of = document(&["fadd", "--size", "4,8,100"]);
    let rows = of["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2, "{of}");
    rows.iter().for_each(|row| positive(row, &["iterations", "p50_us", "messages_per_second"]));
    assert_eq!(of["operands_by"], Value::Null);
    let output = finish(&mut rucx(&short(&["fadd", "--size", "100"])));
    let story = text(&output.stdout);
    assert!(output.status.code() == Some(1) && story.contains("remedy: add a size of these"), "{story}");
}

#[test]
fn no_more_operations_are_made_than_were_asked_for() {
    let of = document(&["get", "am", "--size", "8"]);
    for row in of["rows"].as_array().unwrap() {
        assert!(row["iterations"].as_u64().is_some_and(|count| count <= 300), "{row}");
    }
}

#[test]
fn a_row_ends_in_time() {
    let begin = Instant::now();
    let args = ["perf", "get", "--size", "8", "--iters", "10000000", "--seconds", "50ms", "--json"];
    let output = finish(&mut rucx(&args));
    let of: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(of["rows"][0]["seconds"].as_f64().is_some_and(|seconds| seconds < 5.0), "{of}");
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
}

#[test]
fn without_a_transport_between_the_two_the_remedy_is_told() {
    let output = finish(&mut rucx(&short(&["--tls", "self"])));
    let story = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{story}");
    assert!(story.contains("remedy: allow shm in UCX_TLS"), "{story}");
    assert!(story.lines().last().is_some_and(|line| line.starts_with("✗  the peer process: ")), "{story}");

    let output = finish(&mut rucx(&short(&["--tls", "shn", "--json"])));
    assert_eq!(output.status.code(), Some(1));
    let of: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(of["error"]["remedy"].as_str().is_some_and(|text| text.contains("did you mean shm?")), "{of}");
    assert!(text(&output.stderr).contains("remedy: "), "{}", text(&output.stderr));
}

#[test]
fn wrong_arguments_are_usage_errors() {
    for args in [
        &["perf", "--size", "0"][..],
        &["perf", "--size", "8,x"],
        &["perf", "--size", "2G"],
        &["perf", "tag"],
        &["perf", "--mode", "latency"],
        &["perf", "--iters", "0"],
        &["perf", "--seconds", "0"],
    ] {
        let output = finish(&mut rucx(args));
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert_eq!(text(&output.stdout), "");
    }
}

#[test]
fn a_peer_that_dies_ends_it_and_is_named() {
    for test in ["put", "get", "am"] {
        let mut perf =
            Running::start(&["perf", test, "--size", "8", "--iters", "10000000", "--seconds", "30"]);
        perf.wait_for("p99.9 us");
        let begin = Instant::now();
        kill_process(perf.role("perf-peer"), Signal::KILL).unwrap();
        // get goes on by itself as long as the memory is there: its end may be told by the memory as well.
        let (status, story) = perf.finish();
        assert!(begin.elapsed() < Duration::from_secs(15), "{test}: {:?}", begin.elapsed());
        assert_eq!(status.code(), Some(1), "{test}: {story}");
        assert!(story.contains("remedy: "), "{test}: {story}");
    }
}

#[test]
fn when_it_is_killed_its_peer_dies() {
    let mut perf = Running::start(&["perf", "am", "--size", "8", "--iters", "10000000", "--seconds", "30"]);
    perf.wait_for("p99.9 us");
    let peer = perf.role("perf-peer");
    kill_process(perf.pid(), Signal::KILL).unwrap();
    assert_eq!(perf.finish().0.code(), None);
    let deadline = Instant::now() + Duration::from_secs(5);
    let path = format!("/proc/{}/cmdline", peer.as_raw_nonzero());
    while fs::read(&path).is_ok_and(|line| line.windows(4).any(|part| part == b"perf")) {
        assert!(Instant::now() < deadline, "{peer:?} lives on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_peer_started_by_hand_says_what_it_is() {
    let output = finish(&mut rucx(&["perf-peer"]));
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("talking to rucx perf"), "{}", text(&output.stderr));
    let help = text(&finish(&mut rucx(&["perf", "--help"])).stdout);
    assert!(help.contains("ucx_perftest -t ucp_put_lat") && !help.contains("perf-peer"), "{help}");
}
