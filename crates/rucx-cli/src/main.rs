//! The `rucx` command.

#![deny(unsafe_code)]

mod args;
mod demo;
mod export;
mod frame;
mod import;
mod info;
mod leftover;
mod log;
mod memory;
mod parent;
mod pattern;
mod perf;
mod settings;
mod shell;
mod signals;
mod torture;
mod trouble;
mod ui;
mod units;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

const EXAMPLES: &str = "\
Examples:
  rucx demo                    export memory, use it from afar, revoke it
  rucx demo --size 1G          with 1 GiB
  rucx demo --tls shm --quiet  one line: did it work?
  rucx demo offload            a DPU moves bytes for a HOST that does nothing
  rucx info                    what works here, what does not, and what to do
  rucx export --out handle     export memory from one terminal,
  rucx import handle --watch   and use it in another
  rucx perf                    how fast are put, get and messages here?
  rucx rcache-torture          is the registration cache ever wrong?

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
    /// What works here, what does not, and what to do about it
    #[command(long_about = info::ABOUT, after_help = info::EXAMPLES)]
    Info(info::Args),
    /// Export memory: what another terminal imports, until it is revoked
    #[command(long_about = export::ABOUT, after_help = export::EXAMPLES)]
    Export(export::Args),
    /// Import memory: read, write, fill, verify and watch it
    #[command(long_about = import::ABOUT, after_help = import::EXAMPLES)]
    Import(import::Args),
    /// How fast two processes reach each other: latency, bandwidth, rate
    #[command(long_about = perf::ABOUT, after_help = perf::EXAMPLES)]
    Perf(perf::Args),
    /// Is the registration cache ever wrong? Memory changes under operations
    #[command(long_about = torture::ABOUT, after_help = torture::EXAMPLES)]
    RcacheTorture(torture::Args),
    /// The exporting side; `rucx demo` starts it
    #[command(hide = true)]
    DemoHost,
    /// The importing side; `rucx demo` starts it
    #[command(hide = true)]
    DemoDpu,
    /// The one that the importing side reaches by an endpoint; `rucx demo` starts it
    #[command(hide = true)]
    DemoPeer,
    /// What is measured against; `rucx perf` starts it
    #[command(hide = true)]
    PerfPeer,
    /// Tries one system call; `rucx info` starts it
    #[command(hide = true)]
    InfoProbe { call: info::system::probe::Call },
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
        Command::Export(args) => export::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Info(args) => info::run(&args),
        Command::Perf(args) => perf::run(&args),
        Command::PerfPeer => perf::peer::main(),
        Command::RcacheTorture(args) => torture::run(&args),
        Command::InfoProbe { call } => info::system::probe::main(call),
        Command::DemoHost => demo::host::main(inherited),
        Command::DemoDpu => demo::dpu::main(inherited),
        Command::DemoPeer => demo::peer::main(inherited),
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
        let demo = command.find_subcommand_mut("demo").unwrap();
        let offload = demo.find_subcommand_mut("offload").unwrap().render_long_help().to_string();
        let mut of = |name: &str| command.find_subcommand_mut(name).unwrap().render_long_help().to_string();
        let subcommands =
            [offload, of("demo"), of("info"), of("export"), of("import"), of("perf"), of("rcache-torture")];
        for text in subcommands.into_iter().chain([command.render_long_help().to_string()]) {
            assert!(text.lines().all(|line| line.chars().count() <= ui::WIDTH), "{text}");
        }
    }
}
