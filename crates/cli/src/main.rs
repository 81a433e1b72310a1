//! Layer 6: the command `millstream`.
//!
//! A thin face over the library: arguments, progress, diagnostics, exit codes. What it keeps:
//! standard output carries rows and nothing else; everything for the reader's eyes goes to standard
//! error; the exit code is 0 when the job ended well, 1 when it failed, 2 when the arguments or the
//! SQL are wrong, 70 after a bug, and 130 after Ctrl-C.
#![deny(unsafe_code)]

mod allocator;
mod args;
mod bench;
mod cert;
mod chart;
mod command;
mod dashboard;
mod explain;
mod fabric;
mod failure;
mod human;
mod launched;
mod log;
mod member;
mod memory;
mod output;
mod pipe;
mod pool;
mod recover;
mod rows;
mod run;
mod screen;
mod script;
mod serve;
mod session;
mod signals;
mod sql;
mod state;
mod summary;
mod supervise;
mod supervised;
mod table;
mod telemetry;
mod terminal;
mod top;
mod trace;

use std::process::ExitCode;

use clap::Parser;
use millstream::panics;

use crate::command::{Cli, Command};
use crate::failure::Failure;

fn main() -> ExitCode {
    allocator::keep_freed();
    // A panic becomes an error where it can be told what was done; one of a thread beside is told
    // at once.
    panics::keep(|panicked| Failure::bug(panicked).print());
    let cli = Cli::parse();
    let result = panics::caught(|| command(cli.command));
    match result.unwrap_or_else(|panicked| Err(Failure::bug(panicked))) {
        Ok(code) => code,
        Err(failure) => {
            failure.print();
            failure.code()
        }
    }
}

fn command(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Run(args) => run::run(&args),
        Command::Stop(args) => recover::stop(&args),
        Command::Rescale(args) => recover::rescale(&args),
        Command::Sql(args) => sql::sql(&args),
        Command::Explain(args) => explain::explain(&args),
        Command::Top(args) => top::top(&args),
        Command::Fabric(args) => fabric::fabric(&args),
        Command::Bench(args) => bench::bench(&args),
        Command::Memory(args) => memory::memory(&args),
        Command::Pool(args) => pool::pool(&args),
        Command::State(args) => state::state(&args),
        Command::Cert(args) => cert::cert(&args),
    }
}
