//! The `rucx` command.

#![forbid(unsafe_code)]

mod demo;
mod log;
mod ui;
mod units;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

const EXAMPLES: &str = "\
Examples:
  rucx demo                    export memory, use it from afar, revoke it
  rucx demo --size 1G          with 1 GiB
  rucx demo --tls shm --quiet  one line: did it work?

UCX_* variables configure the transports. UCX_LOG_LEVEL (fatal, error, warn,
info, debug, trace; default warn) says how much is logged to standard error.";

/// See exported memory at work: a HOST process exports memory, a DPU process imports it.
#[derive(Debug, Parser)]
#[command(
    name = "rucx",
    version,
    after_help = EXAMPLES,
    max_term_width = 80,
    arg_required_else_help = true,
    disable_help_subcommand = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Two processes share memory by a handle: shown, checked and measured
    #[command(long_about = demo::ABOUT, after_help = demo::EXAMPLES)]
    Demo(demo::Args),
    /// The exporting side; `rucx demo` starts it
    #[command(hide = true)]
    DemoHost,
    /// The importing side; `rucx demo` starts it
    #[command(hide = true)]
    DemoDpu,
}

fn main() -> ExitCode {
    // Before anything is opened: what is open now came from whoever started this program.
    let inherited = demo::isolation::descriptors();
    let cli = Cli::parse();
    if let Err(error) = log::init() {
        return ui::usage_error(&error);
    }
    match cli.command {
        Command::Demo(args) => demo::run(&args, &inherited),
        Command::DemoHost => demo::host::main(inherited),
        Command::DemoDpu => demo::dpu::main(inherited),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_fits_a_terminal() {
        let mut command = Cli::command();
        let demo = command.find_subcommand_mut("demo").unwrap().render_long_help().to_string();
        for text in [command.render_long_help().to_string(), demo] {
            assert!(text.lines().all(|line| line.chars().count() <= ui::WIDTH), "{text}");
        }
    }
}
