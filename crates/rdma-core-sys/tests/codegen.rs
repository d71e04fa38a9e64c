//! The committed bindings against the headers they come from.

use std::process::Command;

use testkit::skip;

/// `cargo xtask codegen --check`, which says by 77 what it would take (`xtask/src/codegen.rs`).
fn bindings_are_what_would_be_generated() {
    let mut check = Command::new(env!("CARGO"));
    check.args(["xtask", "codegen", "--check"]).current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let ended = check.output().expect("cargo runs");
    let said = [ended.stdout, ended.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    match ended.status.code() {
        Some(0) => {}
        Some(77) => {
            let why = said.lines().rev().find_map(|line| line.strip_prefix("codegen: "));
            skip(why.unwrap_or("it has not said why"), "see the heading of xtask/src/codegen.rs");
        }
        _ => panic!("{said}"),
    }
}

fn main() -> std::process::ExitCode {
    testkit::main! { roles: [], tests: [ bindings_are_what_would_be_generated => .secs(300) ] }
}
