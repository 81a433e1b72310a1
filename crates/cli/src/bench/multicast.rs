//! `millstream bench multicast`: rows for every instance, with each tree and with none.

use std::path::PathBuf;
use std::process::ExitCode;

use bench::multicast::{self, Arrivals, MulticastPlan};
use clap::{Args, Command, FromArgMatches};
use millstream::FabricKind;
use millstream::cluster::{Invitation, LocalLaunch, launch_local};

use super::{TIMEOUT, failed, number_within, reported, writable, write_report};
use crate::args::{nodes, workers};
use crate::failure::Failure;
use crate::signals;

/// How short and how long a run may be.
const SECONDS_MIN: f64 = 0.05;
const SECONDS_MAX: f64 = 600.0;

/// Bounds of the factor for rows of the whole applications.
const FACTOR_MIN: f64 = 0.01;
const FACTOR_MAX: f64 = 1e3;

#[derive(Debug, Args)]
pub(crate) struct MulticastArgs {
    /// Processes
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = nodes)]
    nodes: u32,

    /// Threads of each process
    #[arg(long, value_name = "W", default_value_t = 1, value_parser = workers)]
    workers: u32,

    /// The transport between workers: shm or tcp
    #[arg(long, value_name = "FABRIC", default_value_t = FabricKind::Shm)]
    fabric: FabricKind,

    /// Instances of each worker: each number is measured
    #[arg(
        long,
        value_name = "I",
        value_delimiter = ',',
        default_values_t = [1, 4, 15, 30, 60],
        value_parser = clap::value_parser!(u32).range(1..=1000)
    )]
    instances: Vec<u32>,

    /// Drivers that each instance matches a request with
    #[arg(
        long,
        value_name = "D",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=1 << 20)
    )]
    drivers: u32,

    /// Seconds of each run
    #[arg(long, value_name = "S", default_value_t = 0.5, value_parser = seconds)]
    seconds: f64,

    /// Seconds of each rate where the rate changes
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = seconds)]
    rate_seconds: f64,

    /// How requests that come at a rate follow each other: even, poisson or poisson:SEED
    #[arg(long, value_name = "ARRIVALS", default_value_t = Arrivals::Poisson { seed: 1 })]
    arrivals: Arrivals,

    /// Rows of the whole applications, against the usual 200,000
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = factor)]
    app_scale: f64,

    /// Changes of trees in the model
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1_000,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000)
    )]
    changes: u64,

    /// Writes a page with plots, and JSON beside it
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// Fails where a target is missed or not measured
    #[arg(long)]
    check: bool,

    /// Prints the report as one JSON object instead of text
    #[arg(long)]
    json: bool,
}

impl MulticastArgs {
    /// The sweep of the paper: the command without options, whose runs last `factor` times as long.
    pub(crate) fn of_paper(nodes: Option<u32>, factor: f64, report: PathBuf, check: bool) -> Self {
        let none = Self::augment_args(Command::new("multicast")).get_matches_from(["multicast"]);
        let usual = Self::from_arg_matches(&none).unwrap_or_else(|error| error.exit());
        let last = |seconds: f64| (seconds * factor).clamp(SECONDS_MIN, SECONDS_MAX);
        Self {
            nodes: nodes.unwrap_or(usual.nodes),
            seconds: last(usual.seconds),
            rate_seconds: last(usual.rate_seconds),
            app_scale: (usual.app_scale * factor).clamp(FACTOR_MIN, FACTOR_MAX),
            report: Some(report),
            check,
            ..usual
        }
    }
}

/// Runs the command.
pub(crate) fn multicast(args: &MulticastArgs) -> Result<ExitCode, Failure> {
    let plan = MulticastPlan {
        nodes: args.nodes,
        workers: args.workers,
        instances: args.instances.clone(),
        drivers: args.drivers,
        seconds: args.seconds,
        fabric: args.fabric,
        rates: multicast::model::RATES.to_vec(),
        rate_seconds: args.rate_seconds,
        arrivals: args.arrivals,
        app_scale: args.app_scale,
        settings: vec![],
    };
    let cluster = |error: millstream::cluster::ClusterError| failed(&error.into());
    if let Some(invitation) = Invitation::from_env().map_err(cluster)? {
        signals::ignore_interrupts()?;
        let control = invitation.join().map_err(cluster)?;
        return match reported(multicast::run(&plan, &control), &control) {
            Ok(_) => Ok(ExitCode::SUCCESS),
            // Node 0 tells.
            Err(_) => Err(Failure::silent()),
        };
    }
    writable(args.report.as_deref())?;
    let launched = launch_local(LocalLaunch::new(args.nodes).map_err(cluster)?).map_err(cluster)?;
    let result = reported(multicast::run(&plan, &launched.control), &launched.control);
    drop(launched.control);
    launched.children.wait(TIMEOUT);
    let Some(measured) = result.map_err(|error| failed(&error))? else {
        return Ok(ExitCode::SUCCESS);
    };
    let report =
        multicast::report(&plan, &measured, args.changes).map_err(|error| failed(&error))?;
    write_report(&report, args.json, args.report.as_deref(), args.check)
}

fn factor(text: &str) -> Result<f64, String> {
    number_within(text, [FACTOR_MIN, FACTOR_MAX])
}

fn seconds(text: &str) -> Result<f64, String> {
    number_within(text, [SECONDS_MIN, SECONDS_MAX])
}
