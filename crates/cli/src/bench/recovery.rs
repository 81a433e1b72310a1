//! `millstream bench recovery`: the cost of checkpoints, and the time until jobs go on after
//! failures.

mod failure;
mod flink;
mod process;

use std::path::PathBuf;
use std::process::ExitCode;

use bench::recovery::{RecoveryPart, RecoveryPlan, measure};
use bench::report::{FigureReport, ReportSection};
use clap::{Args, ValueEnum};

use self::failure::FailurePlan;
use self::flink::FlinkPlan;
use super::{failed, number_within, writable, write_report};
use crate::args::workers;
use crate::failure::Failure;

/// The least and the greatest scale.
const SCALES: [f64; 2] = [1e-4, 10.0];
/// The shortest and the longest run, in seconds.
const SECONDS: [f64; 2] = [0.001, 3600.0];
/// The most failures of a kind.
const TIMES_MAX: u32 = 10_000;

#[derive(Debug, Args)]
pub(crate) struct RecoveryArgs {
    /// The parts that are measured [default: all]
    #[arg(long, value_enum, value_name = "PARTS", value_delimiter = ',')]
    only: Vec<Part>,

    /// Groups and bytes of state, in parts of those that the targets are for
    #[arg(long, value_name = "FACTOR", default_value_t = 0.01, value_parser = scale)]
    scale: f64,

    /// Seconds of processor time of each run with and without checkpoints
    #[arg(long, value_name = "S", default_value_t = 0.2, value_parser = seconds)]
    seconds: f64,

    /// Pairs of runs with and without checkpoints, in turns
    #[arg(
        long,
        value_name = "N",
        default_value_t = 11,
        value_parser = clap::value_parser!(u32).range(1..=1000)
    )]
    pairs: u32,

    /// Checkpoints of each run that stalls and times are taken from
    #[arg(
        long,
        value_name = "N",
        default_value_t = 20,
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    checkpoints: u32,

    /// Seconds between those checkpoints
    #[arg(long, value_name = "S", default_value_t = 0.05, value_parser = seconds)]
    every: f64,

    /// Loads of a checkpoint
    #[arg(
        long,
        value_name = "N",
        default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..=1000)
    )]
    loads: u32,

    /// Nodes that are killed, in turns
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = times)]
    kills: u32,

    /// Nodes that fall silent, in turns
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = times)]
    silences: u32,

    /// Jobs that are taken from two nodes to three
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = times)]
    rescales: u32,

    /// The command that starts Java with Flink and its program, for a comparison: words with spaces
    /// between them
    #[arg(long, value_name = "COMMAND")]
    flink: Option<String>,

    /// Threads of a job in this process
    #[arg(long, value_name = "W", default_value_t = 1, value_parser = workers)]
    workers: u32,

    /// Where checkpoints lie meanwhile: on the disk that is measured [default: the directory of
    /// temporary files]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,

    /// Fails where a target is not met
    #[arg(long)]
    check: bool,

    /// Writes a page, and JSON beside it
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// Prints the report as one JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Processor time with and without checkpoints
    Cost,
    /// Stalls of workers, and the time until a checkpoint is stored
    Stall,
    /// The load of a checkpoint
    Load,
    /// Nodes that are killed or fall silent, and other numbers of nodes
    Failure,
    /// Flink on a job like YSB
    Flink,
}

/// Runs the command.
pub(crate) fn recovery(args: &RecoveryArgs) -> Result<ExitCode, Failure> {
    writable(args.report.as_deref())?;
    let parts = if args.only.is_empty() { Part::value_variants() } else { &args.only };
    let sections = parts.iter().map(|part| args.section(*part));
    let sections: Vec<ReportSection> = sections.collect::<Result<_, _>>()?;
    let report = FigureReport { title: "Recovery".into(), about: args.about(), sections };
    write_report(&report, args.json, args.report.as_deref(), args.check)
}

impl RecoveryArgs {
    fn section(&self, part: Part) -> Result<ReportSection, Failure> {
        let plan = self.plan();
        let part = match part {
            Part::Cost => RecoveryPart::Cost,
            Part::Stall => RecoveryPart::Stall,
            Part::Load => RecoveryPart::Load,
            Part::Failure => return self.failures(),
            Part::Flink => return Ok(self.flink()),
        };
        measure(&plan, part).map_err(|error| failed(&error))
    }

    fn failures(&self) -> Result<ReportSection, Failure> {
        let plan = FailurePlan {
            kills: self.kills,
            silences: self.silences,
            rescales: self.rescales,
            scale: self.scale,
            directory: &self.directory(),
        };
        failure::measure(&plan).map_err(|why| Failure::runtime(&why, None))
    }

    fn flink(&self) -> ReportSection {
        flink::measure(&FlinkPlan {
            command: self.flink.as_deref(),
            seconds: self.seconds,
            pairs: self.pairs,
            threads: self.workers,
            directory: &self.directory(),
        })
    }

    fn plan(&self) -> RecoveryPlan {
        RecoveryPlan {
            scale: self.scale,
            seconds: self.seconds,
            pairs: self.pairs,
            stall_seconds: self.every,
            checkpoints: self.checkpoints,
            loads: self.loads,
            workers: self.workers,
            directory: self.directory(),
        }
    }

    fn directory(&self) -> PathBuf {
        self.directory.clone().unwrap_or_else(std::env::temp_dir)
    }

    /// The conditions of the figures.
    fn about(&self) -> Vec<String> {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split(' ').next().unwrap_or_default();
        let mut about = vec![format!(
            "scale {}, {} worker(s), {processors} processors, load {load}, state in {}",
            self.scale,
            self.workers,
            self.directory().display()
        )];
        if self.scale < 1.0 {
            about
                .push("The targets are for scale 1: what is met here may not be met there.".into());
        }
        about
    }
}

fn scale(text: &str) -> Result<f64, String> {
    number_within(text, SCALES)
}

fn seconds(text: &str) -> Result<f64, String> {
    number_within(text, SECONDS)
}

fn times(text: &str) -> Result<u32, String> {
    let times = text.parse().ok().filter(|times| *times <= TIMES_MAX);
    times.ok_or_else(|| format!("write a number from 0 to {TIMES_MAX}"))
}
