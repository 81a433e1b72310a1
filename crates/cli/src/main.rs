//! Layer 6: the command `millstream`.
//!
//! A thin face over the library: arguments, progress, diagnostics, exit codes. What it keeps:
//! standard output carries rows and nothing else; everything for the reader's eyes goes to standard
//! error; the exit code is 0 when the job ended well, 1 when it failed, 2 when the arguments or the
//! SQL are wrong, and 130 after Ctrl-C.
#![forbid(unsafe_code)]

mod args;
mod bench;
mod board;
mod cert;
mod chart;
mod explain;
mod fabric;
mod failure;
mod human;
mod launched;
mod log;
mod member;
mod output;
mod rows;
mod run;
mod screen;
mod script;
mod serve;
mod signals;
mod sql;
mod summary;
mod telemetry;
mod terminal;
mod top;
mod trace;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};

/// Arrays of a batch are allocated and freed again some thousand times a second.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Sql(args) => sql::sql(&args),
        Command::Explain(args) => explain::explain(&args),
        Command::Top(args) => top::top(&args),
        Command::Fabric(args) => fabric::fabric(&args),
        Command::Bench(args) => bench::bench(&args),
        Command::Cert(args) => cert::cert(&args),
    };
    match result {
        Ok(code) => code,
        Err(failure) => {
            failure.print();
            failure.code()
        }
    }
}
