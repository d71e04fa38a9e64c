//! The project's own commands: `cargo xtask test | ci | tidy | rxe | codegen | picture`.
//!
//! | file | subject |
//! |---|---|
//! | `steps` | the table of what `test` does: add rows there |
//! | `test` | running the table, the summary |
//! | `command` | running one command: log, bound, children |
//! | `results` | reading what `cargo test` prints |
//! | `codegen` | the bindings of `rdma-core-sys`, from the headers of rdma-core |
//! | `picture` | the README's first picture, from a run of the demo |
//! | `rxe` | tests of RDMA in a virtual machine |
//! | `tidy` | rules no compiler checks: the table of checks is there |

#![forbid(unsafe_code)]
// Its output is for the person who runs it.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod codegen;
mod command;
mod picture;
mod results;
mod rxe;
mod steps;
mod test;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str =
    "usage: cargo xtask test [--list | --fast | --step NAME ...]   all checks; NAME: see --list
       cargo xtask ci                                        the same with CI=true: a skip is a failure
       cargo xtask tidy                                      only the rules no compiler checks
       cargo xtask rxe [OPTION ...]                          tests of RDMA, in a virtual machine
           --kernel new | 6.1         the newest kernel there is (without it, too), or Linux 6.1
           --filter STR               only tests whose names contain this
           --test NAME                only those of this test binary, such as workers
           --renew                    download the newest packages, whatever is there
           --two-hosts netns | vm     only tests between two hosts: network namespaces of one guest, or two guests
           --shell                    a shell in the guest, instead of the tests
       cargo xtask codegen [--check] [--headers DIR]         the bindings of rdma-core-sys, anew; --check: are they as committed
       cargo xtask picture                                   the README's first picture, anew";

/// The root of the workspace.
fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_path_buf()
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let in_ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
    match args.as_slice() {
        ["test", "--list"] => {
            steps::list();
            ExitCode::SUCCESS
        }
        ["test", options @ ..] => match test::Options::parse(options, in_ci) {
            Ok(options) => test::run(&root(), &options),
            Err(error) => usage(&error),
        },
        ["ci"] => test::run(&root(), &test::Options { in_ci: true, ..test::Options::default() }),
        ["tidy"] => tidy::main(&root()),
        ["rxe", options @ ..] => match rxe::Options::parse(options) {
            Ok(options) => rxe::main(&root(), &options),
            Err(error) => usage(&error),
        },
        ["codegen", options @ ..] => codegen::main(&root(), options),
        ["picture"] => picture::main(&root()),
        _ => usage("one of test, ci, tidy, rxe, codegen, picture"),
    }
}

fn usage(error: &str) -> ExitCode {
    eprintln!("{error}\n{USAGE}");
    ExitCode::from(2)
}
