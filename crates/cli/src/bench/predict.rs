//! `millstream bench predict`: predicts clusters by a model that is checked by runs here.

use std::path::PathBuf;
use std::process::ExitCode;

use bench::predict::{self, Constants, Question};
use clap::Args;

use super::paper::Processes;
use super::{number_within, writable, write_report};
use crate::args::workers;
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct PredictArgs {
    /// Different keys: each number is foretold
    #[arg(
        long,
        value_name = "K",
        value_delimiter = ',',
        default_values_t = [10_000, 100_000_000],
        value_parser = clap::value_parser!(u64).range(1..=1 << 32)
    )]
    keys: Vec<u64>,

    /// Links in gigabits a second: each is foretold
    #[arg(
        long,
        value_name = "GB",
        value_delimiter = ',',
        default_values_t = [100.0, 200.0, 400.0],
        value_parser = positive
    )]
    gigabits: Vec<f64>,

    /// Microseconds of one way over a link
    #[arg(long, value_name = "US", default_value_t = 2.0, value_parser = positive)]
    latency: f64,

    /// Workers of each node, each on a processor of its own
    #[arg(long, value_name = "W", default_value_t = 10, value_parser = workers)]
    workers: u32,

    /// Processes of the greatest run that the model is held to, 2 to 16; 0 for no runs
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = processes)]
    nodes: u32,

    /// Rows of each worker in these runs
    #[arg(
        long,
        value_name = "R",
        default_value_t = 8_000_000,
        value_parser = clap::value_parser!(u64).range(1_000_000..=1 << 32)
    )]
    rows: u64,

    /// How often each is made
    #[arg(
        long,
        value_name = "N",
        default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..=100)
    )]
    runs: u32,

    /// A constant that is given in place of the measured one, such as group=80; may be repeated
    #[arg(long, value_name = "NAME=CYCLES", value_parser = constant)]
    cycles: Vec<(String, f64)>,

    /// Writes a page, and JSON beside it
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// Fails where a target is missed or not measured
    #[arg(long)]
    check: bool,

    /// Prints the report as one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn predict(args: &PredictArgs) -> Result<ExitCode, Failure> {
    writable(args.report.as_deref())?;
    let asked = Question {
        keys: args.keys.clone(),
        gigabits: args.gigabits.clone(),
        latency_us: args.latency,
        workers: args.workers,
        nodes: args.nodes,
        rows: args.rows,
        runs: args.runs,
        overrides: args.cycles.clone(),
    };
    let report = predict::predict(&mut Processes, &asked);
    write_report(&report, args.json, args.report.as_deref(), args.check)
}

fn positive(text: &str) -> Result<f64, String> {
    number_within(text, [1e-3, 1e6])
}

fn processes(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| matches!(number, 0 | 2..=16));
    number.ok_or_else(|| "write 2 to 16, or 0 for no runs".into())
}

fn constant(text: &str) -> Result<(String, f64), String> {
    let (name, value) = text.split_once('=').unwrap_or((text, ""));
    if name == "cast" {
        return Err("the constant is called 'broadcast' now".into());
    }
    match value.parse::<f64>() {
        Ok(value) if Constants::NAMES.contains(&name) && (0.0..1e9).contains(&value) => {
            Ok((name.to_owned(), value))
        }
        _ => Err(format!("write NAME=NUMBER; the names are {}", Constants::NAMES.join(", "))),
    }
}
