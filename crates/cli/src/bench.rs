//! `millstream bench`: the workloads of the papers, and the limits of the machine.

use std::process::ExitCode;
use std::time::Duration;

use bench::summary::speedups;
use bench::workload::Size;
use bench::{BenchError, Distribution, Plan, Summary, Workload};
use clap::{Args, ValueEnum};
use millstream::FabricKind;
use millstream::cluster::{Control, Invitation, LocalLaunch, launch_local};

use crate::args::{LogArgs, ProgressStyle, nodes, setting, workers};
use crate::failure::Failure;
use crate::run::print;
use crate::screen::Screen;
use crate::{log, signals};

/// How long other nodes may take to end by themselves.
const PATIENCE: Duration = Duration::from_secs(5);

/// Examples of the command.
pub(crate) const EXAMPLES: &str = "\
Examples:
  millstream bench limits                                  what this machine can do
  millstream bench ysb                                     100 campaigns, one worker
  millstream bench ysb --keys 10000000                     10 million keys
  millstream bench ysb --nodes 2 --against-one             two processes, and one in turns
  millstream bench ro --workers 2 --exchange merge,shuffle compares two exchanges in turns
  millstream bench nb7 --json                              for programs

Input is made before the clock starts and lies in memory. Results are checked against a sequential
computation. Figures are medians, with the least and the greatest behind.";

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// What is measured
    #[arg(value_enum)]
    workload: Name,

    /// Processes that share the work
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = nodes)]
    nodes: u32,

    /// Threads of each process
    #[arg(long, value_name = "W", default_value_t = 1, value_parser = workers)]
    workers: u32,

    /// What carries rows between workers: shm or tcp
    #[arg(long, value_name = "FABRIC", default_value_t = FabricKind::Shm)]
    fabric: FabricKind,

    /// Rows of each worker [default: 32 or 128 million]
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    rows: Option<u64>,

    /// Different keys; with ysb, counts them instead of campaigns
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    keys: Option<u64>,

    /// How often each key comes [default: as the paper has it]
    #[arg(long, value_enum)]
    distribution: Option<KeysBy>,

    /// How workers meet: merge, shuffle or forward; several are measured in turns [default: auto]
    #[arg(long, value_name = "EXCHANGE", value_delimiter = ',')]
    exchange: Vec<String>,

    /// Measures one worker alone in turns with the others, and compares
    #[arg(long)]
    against_one: bool,

    /// How often each thing is measured
    #[arg(
        long,
        value_name = "N",
        default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..=1000)
    )]
    runs: u32,

    /// Sets an option, as SET in the SQL does; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = setting)]
    set: Vec<(String, String)>,

    /// Prints a JSON object a line instead of text
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    log: LogArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Name {
    /// Views of 100 campaigns, every 10 seconds; with --keys, rows of each key, every 10 minutes
    Ysb,
    /// Rows of each key, over everything
    Ro,
    /// Mean per job, every 2 seconds
    Cm,
    /// Highest bid of each auction, every minute
    Nb7,
    /// Memory and links of this machine
    Limits,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum KeysBy {
    /// All as often
    Uniform,
    /// Zipf's law
    Zipf,
    /// Pareto's law
    Pareto,
}

/// Runs the command.
pub(crate) fn bench(args: &BenchArgs) -> Result<ExitCode, Failure> {
    log::start(&args.log.log, &Screen::new(ProgressStyle::None), None);
    let Some(plan) = args.plan() else {
        let limits = bench::limits::limits(args.workers.max(2), args.runs as usize);
        let limits = limits.map_err(|error| failed(&error))?;
        print(&if args.json { limits.json() + "\n" } else { limits.to_string() });
        return Ok(ExitCode::SUCCESS);
    };
    let cluster = |error: millstream::cluster::ClusterError| failed(&error.into());
    let invitation = Invitation::from_env().map_err(cluster)?;
    if let Some(invitation) = invitation {
        signals::ignore_interrupts()?;
        let control = invitation.join().map_err(cluster)?;
        return match measured(&plan, &control) {
            Ok(_) => Ok(ExitCode::SUCCESS),
            // Node 0 tells.
            Err(_) => Err(Failure::silent()),
        };
    }
    let launch = LocalLaunch::new(args.nodes).map_err(cluster)?;
    let launched = launch_local(launch).map_err(cluster)?;
    let result = measured(&plan, &launched.control);
    drop(launched.control);
    launched.children.wait(PATIENCE);
    let summaries = result.map_err(|error| failed(&error))?;
    print(&if args.json { lines(&summaries) } else { text(&summaries) });
    Ok(ExitCode::SUCCESS)
}

impl BenchArgs {
    /// What is measured; `None` for the limits.
    fn plan(&self) -> Option<Plan> {
        let workload = match self.workload {
            Name::Ysb if self.keys.is_some() || self.distribution.is_some() => Workload::YsbKeys,
            Name::Ysb => Workload::Ysb,
            Name::Ro => Workload::Ro,
            Name::Cm => Workload::Cm,
            Name::Nb7 => Workload::Nb7,
            Name::Limits => return None,
        };
        let distribution = self.distribution.map(|keys_by| match keys_by {
            KeysBy::Uniform => Distribution::Uniform,
            KeysBy::Zipf => Distribution::Zipf,
            KeysBy::Pareto => Distribution::Pareto,
        });
        let size = Size {
            rows_per_worker: self.rows.unwrap_or(workload.rows_per_worker()),
            workers: u64::from(self.nodes) * u64::from(self.workers),
            keys: self.keys.unwrap_or(workload.keys()),
            distribution: distribution.unwrap_or(workload.distribution()),
        };
        Some(Plan {
            workload,
            size,
            nodes: self.nodes,
            workers: self.workers,
            fabric: self.fabric,
            exchanges: self.exchange.clone(),
            against_one: self.against_one,
            runs: self.runs,
            settings: self.set.clone(),
        })
    }
}

/// Measures, and tells the other nodes how it ended.
fn measured(plan: &Plan, control: &Control) -> Result<Vec<Summary>, BenchError> {
    let result = bench::run(plan, control);
    match &result {
        Ok(_) => control.close(),
        Err(error) => control.fail(&error.to_string()),
    }
    result
}

fn text(summaries: &[Summary]) -> String {
    let mut text: Vec<String> = summaries.iter().map(Summary::to_string).collect();
    text.extend(
        speedups(summaries).iter().map(|(name, by)| format!("{name}: {by:.2} times one worker\n")),
    );
    text.join("\n")
}

fn lines(summaries: &[Summary]) -> String {
    summaries.iter().map(|summary| summary.json() + "\n").collect()
}

fn failed(error: &BenchError) -> Failure {
    match error {
        BenchError::Engine(error) => Failure::of(error, "bench", ""),
        error => Failure::runtime(&error.to_string(), None),
    }
}
