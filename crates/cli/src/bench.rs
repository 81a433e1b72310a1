//! `millstream bench`: the workloads of the papers, and the limits of the machine.

mod flags;
mod multicast;
mod paper;
mod predict;
mod recovery;
mod suite;
mod wires;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use bench::analytics::Suite;
use bench::report::{Bar, FigureReport};
use bench::sustain::SustainOutcome;
use bench::targets::{self, RunLimit};
use bench::workload::{PaperSize, WorkloadSize};
use bench::{BenchError, KeyDistribution, RunPlan, Summary, Timed, Workload, reference};
use clap::{Args, Subcommand, ValueEnum};
use millstream::FabricKind;
use millstream::cluster::{Control, Invitation, LocalLaunch, launch_local};

use self::flags::SetFlags;
use self::multicast::{MulticastArgs, multicast};
use self::paper::{PaperArgs, paper};
use self::predict::{PredictArgs, predict};
use self::recovery::{RecoveryArgs, recovery};
use self::suite::{SuiteArgs, suite};
use crate::args::{LogArgs, ProgressStyle, nodes, setting, workers};
use crate::failure::Failure;
use crate::screen::Screen;
use crate::session::print;
use crate::{log, signals};

/// How long other nodes may take to end by themselves.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Examples of the command.
pub(crate) const EXAMPLES: &str = "\
Examples:
  millstream bench limits                                  what this machine can do
  millstream bench wire --report wire.html                 what each transport carries, at what cost
  millstream bench shuffle --nodes 4                       rings against plain sockets
  millstream bench session                                 what a second statement costs
  millstream bench ysb                                     100 campaigns, one worker
  millstream bench ysb --keys 10000000                     10 million keys
  millstream bench ysb --nodes 2 --against-one             two processes, and one in turns
  millstream bench ro --nodes 2 --against-two              the share of two unrelated processes
  millstream bench ro --workers 2 --exchange merge,shuffle compares two exchanges in turns
  millstream bench multicast --report whale.html           rows for every instance, by each tree
  millstream bench nb8 --nodes 2 --exchange shuffle,uppar  a join of windows
  millstream bench ro --exponent 1.5                       keys by Zipf's law
  millstream bench ysb --workers 2 --sustainable           the highest rate without a backlog
  millstream bench cm --latency 1e6 --low-latency          latency at a million rows a second
  millstream bench paper slash --rows 0.1                  a paper's experiments, as a page
  millstream bench predict                                 what clusters would do
  millstream bench recovery                                checkpoints and failures, in small
  millstream bench tpch --scale 1 --check                  TPC-H's queries, held against answers
  millstream bench ssb --nodes 2 --exchange auto,shuffle   a star schema on two processes
  millstream bench tpcc --from file --queries q1,q3        the paper's queries over Parquet files
  millstream bench nb7 --json                              for programs
  millstream bench nb7 --write bids.parquet                the rows, for other engines

Input is made before the clock starts and lies in memory. Results are checked against a sequential
computation. Figures are medians, with the least and the greatest behind.";

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct BenchArgs {
    // First: each argument that is taken out of what was matched is not there any more.
    #[command(flatten)]
    set_flags: SetFlags,

    #[command(subcommand)]
    sweep: Option<Sweep>,

    /// The workload
    #[arg(value_enum, required = true)]
    workload: Option<Name>,

    /// Processes that share the work; with shuffle 2, 4 and 8, and with session 4, if it is not
    /// said how many
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = nodes)]
    nodes: u32,

    /// Threads of each process; with limits two, with session four
    #[arg(long, value_name = "W", default_value_t = 1, value_parser = workers)]
    workers: u32,

    /// The transport between workers: shm or tcp [default: shm; with wire, all that there are]
    #[arg(long, value_name = "FABRIC")]
    fabric: Option<FabricKind>,

    /// Rows of each worker [default: 128 million; fewer where rows are long; with shuffle, 5
    /// million]
    #[arg(long, value_name = "R", value_parser = |text: &str| number(text, 1 << 40))]
    rows: Option<u64>,

    /// Different keys; with ysb, counts them instead of campaigns
    #[arg(long, value_name = "K", value_parser = |text: &str| number(text, 1 << 32))]
    keys: Option<u64>,

    /// How often each key comes [default: as the paper has it]
    #[arg(long, value_enum)]
    distribution: Option<KeysBy>,

    /// Zipf's law with this exponent in place of 1; 0 for uniform keys
    #[arg(long, value_name = "Z", value_parser = exponent, conflicts_with = "distribution")]
    exponent: Option<f64>,

    /// Keeps rows as records of this number of bytes, as packed structures lie in memory, instead
    /// of in columns; those that are read are decoded while the clock runs
    #[arg(
        long,
        value_name = "BYTES",
        value_parser = clap::value_parser!(u64).range(1..=1 << 20)
    )]
    record_bytes: Option<u64>,

    /// Takes the size that the workload has in its paper: a gigabyte of records for each thread, of
    /// 16 bytes and 100 million keys for ro, of 64 for cm, of 32 for nb7, of 78 for ysb (with
    /// --keys 10000000) and ysb-star, of 136 for swa
    #[arg(long, conflicts_with = "record_bytes")]
    paper_size: bool,

    /// Bytes of a slot of the rings between workers
    #[arg(long, value_name = "BYTES")]
    slot_bytes: Option<String>,

    /// Slots of each ring: how many a worker may send before others are given back
    #[arg(long, value_name = "N")]
    credits: Option<u32>,

    /// Bytes of input of an epoch
    #[arg(long, value_name = "BYTES")]
    epoch: Option<String>,

    /// How workers meet: merge, shuffle, uppar or forward; several are measured in turns [default:
    /// auto]
    #[arg(long, value_name = "EXCHANGE", value_delimiter = ',')]
    exchange: Vec<String>,

    /// Measures one worker alone in turns with the others, and compares
    #[arg(long)]
    against_one: bool,

    /// Measures as many processes that have nothing to do with each other in turns with the others,
    /// two with --nodes 2, and tells the share of what they reach together
    #[arg(long)]
    against_two: bool,

    /// Measures a loop that does the same on one thread in turns with the others
    #[arg(long)]
    against_loop: bool,

    /// How often each thing is measured
    #[arg(
        long,
        value_name = "N",
        default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..=1000)
    )]
    runs: u32,

    /// Measures latency at this number of rows a second, of all workers together, which come by the
    /// clock
    #[arg(long, value_name = "RATE", value_parser = rate)]
    latency: Option<f64>,

    /// Searches the highest rate that can be sustained, and measures latency at half and at nine
    /// tenths of it
    #[arg(long, conflicts_with = "latency")]
    sustainable: bool,

    /// Seconds of each run by the clock
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = seconds)]
    seconds: f64,

    /// Milliseconds by the clock between the ends of two windows, in runs by the clock
    #[arg(long, value_name = "MS", default_value_t = 100.0, value_parser = seconds)]
    window_every: f64,

    /// Workers that never sleep, small slots and short epochs
    #[arg(long)]
    low_latency: bool,

    /// Fails where a target is missed or not measured: of wire, shuffle and session, and of two
    /// processes over shared memory, by --against-one of nb8 and nb11, by --against-two of ysb and
    /// ro
    #[arg(long)]
    check: bool,

    /// Sets an option, as SET in the SQL does; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = setting)]
    set: Vec<(String, String)>,

    /// Writes the rows that are read to a file, for other programs, instead of measuring
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,

    /// With wire, shuffle, session: writes the report as a page with plots, and as JSON beside it
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// Prints a JSON object a line instead of text
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    log: LogArgs,
}

#[derive(Debug, Subcommand)]
enum Sweep {
    /// One row to many instances: Whale's measures, with each tree and with a copy for each
    Multicast(MulticastArgs),
    /// The experiments of a paper, in sizes that fit this machine: a page with plots, and JSON
    Paper(PaperArgs),
    /// Predicts 2 to 256 nodes with merge, shuffle and broadcast: a model, checked by runs here
    Predict(PredictArgs),
    /// Checkpoints: what they cost, how long workers stall, and how fast a job goes on
    Recovery(RecoveryArgs),
    /// The 22 queries of TPC-H over tables that end
    Tpch(SuiteArgs),
    /// The 13 queries of the Star Schema Benchmark
    Ssb(SuiteArgs),
    /// The three analytical queries over TPC-C of the paper of the asynchronous shuffle
    Tpcc(SuiteArgs),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Name {
    /// Views of 100 campaigns, every 10 seconds; with --keys, of each key, every 10 minutes
    Ysb,
    /// Clicks for each view of 100 campaigns, every 10 seconds
    YsbStar,
    /// Rows of each key, over everything
    Ro,
    /// Mean per job, every 2 seconds
    Cm,
    /// Highest bid of each auction, every minute
    Nb7,
    /// Auctions with their sellers, of 12 hours
    Nb8,
    /// Bids with their bidders, of a session
    Nb11,
    /// Events of each advertisement in 10 seconds, every 2 seconds
    Swa,
    /// Memory and links of this machine
    Limits,
    /// Each transport: streams and single messages by size, credits, batches and publish modes
    Wire,
    /// Integers through two shuffles: rings against sockets, by threshold; 2, 4 and 8 processes
    Shuffle,
    /// Statements of a session: the first one, which makes connections, and those behind it
    Session,
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
    match &args.sweep {
        Some(Sweep::Multicast(args)) => return multicast(args),
        Some(Sweep::Paper(args)) => return paper(args),
        Some(Sweep::Predict(args)) => return predict(args),
        Some(Sweep::Recovery(args)) => return recovery(args),
        Some(Sweep::Tpch(args)) => return suite(Suite::Tpch, args),
        Some(Sweep::Ssb(args)) => return suite(Suite::Ssb, args),
        Some(Sweep::Tpcc(args)) => return suite(Suite::Tpcc, args),
        None => {}
    }
    args.check()?;
    let Some(plan) = args.plan()? else {
        match args.workload {
            Some(Name::Wire) => return wires::wire(args),
            Some(Name::Shuffle) => return wires::shuffle(args),
            Some(Name::Session) => return wires::session(args),
            _ => {}
        }
        let limits = bench::limits::limits(args.workers.max(2), args.runs as usize);
        let limits = limits.map_err(|error| failed(&error))?;
        print(&if args.json { limits.json() + "\n" } else { limits.to_string() });
        return Ok(ExitCode::SUCCESS);
    };
    if let Some(path) = &args.write {
        let written = bench::write(plan.workload, &plan.size, path).map_err(|e| failed(&e))?;
        print(&if args.json { written.json() } else { written.to_string() });
        return Ok(ExitCode::SUCCESS);
    }
    if args.check {
        something_is_asked(&plan)?;
    }
    let cluster = |error: millstream::cluster::ClusterError| failed(&error.into());
    let invitation = Invitation::from_env().map_err(cluster)?;
    if let Some(invitation) = invitation {
        signals::ignore_interrupts()?;
        let control = invitation.join().map_err(cluster)?;
        return match args.measured(&plan, &control) {
            Ok(_) => Ok(ExitCode::SUCCESS),
            // Node 0 tells.
            Err(_) => Err(Failure::silent()),
        };
    }
    let launch = LocalLaunch::new(args.nodes).map_err(cluster)?;
    let launched = launch_local(launch).map_err(cluster)?;
    let result = args.measured(&plan, &launched.control);
    drop(launched.control);
    launched.children.wait(TIMEOUT);
    let measured = result.map_err(|error| failed(&error))?;
    print(&measured.text);
    if args.check { held(&measured.bars) } else { Ok(ExitCode::SUCCESS) }
}

/// The measurements of node 0.
struct Measured {
    text: String,
    /// Its target.
    bars: Vec<Bar>,
}

/// Fails where a target is missed, or could not be measured.
fn held<'a>(bars: impl IntoIterator<Item = &'a Bar>) -> Result<ExitCode, Failure> {
    let missed = bars.into_iter().filter(|bar| bar.met != Some(true));
    let missed: Vec<&str> = missed.map(|bar| &*bar.what).collect();
    if missed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let message = format!("{} targets are not met: {}", missed.len(), missed.join("; "));
    Err(Failure::runtime(&message, None))
}

/// An error where `--check` has nothing to look at.
fn something_is_asked(plan: &RunPlan) -> Result<(), Failure> {
    let limits =
        [(plan.against_one, RunLimit::OneWorker), (plan.against_unrelated, RunLimit::Unrelated)];
    let limits: Vec<RunLimit> = limits.into_iter().filter(|of| of.0).map(|of| of.1).collect();
    let layout = (plan.nodes, plan.workers);
    if targets::is_asked(plan.workload, &plan.size, layout, plan.fabric, &limits) {
        return Ok(());
    }
    let hint = "use --nodes 2 over shared memory, with --against-one for nb8 and nb11, with \
                --against-two for ysb and ro with their own keys";
    Err(Failure::usage("--check: nothing is asked of this run", Some(hint)))
}

impl BenchArgs {
    /// Whether rows come when they are due.
    fn by_clock(&self) -> bool {
        self.latency.is_some() || self.sustainable
    }

    /// The workload; `None` for the limits.
    fn plan(&self) -> Result<Option<RunPlan>, Failure> {
        let skewed = self.exponent.is_some() || self.distribution.is_some();
        let Some(workload) = self.workload else { return Ok(None) };
        let workload = match workload {
            Name::Ysb if self.keys.is_some() || skewed => Workload::YsbKeys,
            Name::Ysb => Workload::Ysb,
            Name::YsbStar => Workload::YsbStar,
            Name::Ro => Workload::Ro,
            Name::Cm => Workload::Cm,
            Name::Nb7 => Workload::Nb7,
            Name::Nb8 => Workload::Nb8,
            Name::Nb11 => Workload::Nb11,
            Name::Swa => Workload::Swa,
            Name::Limits | Name::Wire | Name::Shuffle | Name::Session => return Ok(None),
        };
        if !workload.has_keys() && (self.keys.is_some() || skewed) {
            let hint = "leave out --keys, --distribution and --exponent";
            return Err(Failure::usage(&format!("the keys of {workload} are given"), Some(hint)));
        }
        let distribution = match (self.exponent, self.distribution) {
            (Some(0.0), _) | (_, Some(KeysBy::Uniform)) => KeyDistribution::Uniform,
            (Some(exponent), _) => KeyDistribution::Zipf(exponent),
            (_, Some(KeysBy::Zipf)) => KeyDistribution::Zipf(1.0),
            (_, Some(KeysBy::Pareto)) => KeyDistribution::Pareto,
            (None, None) => workload.distribution(),
        };
        let size = self.size(workload, distribution)?;
        if let Some([needed, free]) = reference::beyond_memory(workload, &size) {
            let [needed, free] = [needed, free].map(|bytes| bytes >> 20);
            let why = format!("to check {workload} takes {needed} MiB, and {free} MiB are free");
            return Err(Failure::usage(&why, Some("use fewer --keys")));
        }
        let profile: &[(&str, &str)] = if self.low_latency { &LOW_LATENCY } else { &[] };
        let profile = profile.iter().map(|(key, value)| (key.to_string(), value.to_string()));
        let rings = [
            ("millstream.slot_bytes", self.slot_bytes.clone()),
            ("millstream.slots", self.credits.map(|slots| slots.to_string())),
            ("millstream.epoch_bytes", self.epoch.clone()),
        ];
        let rings = rings.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
        Ok(Some(RunPlan {
            workload,
            size,
            nodes: self.nodes,
            workers: self.workers,
            fabric: self.fabric.unwrap_or_default(),
            exchanges: self.exchange.clone(),
            against_one: self.against_one,
            against_unrelated: self.against_two,
            against_loop: self.against_loop,
            runs: self.runs,
            settings: profile.into_iter().chain(rings).chain(self.set.iter().cloned()).collect(),
        }))
    }

    /// How large the workload is.
    fn size(
        &self,
        workload: Workload,
        distribution: KeyDistribution,
    ) -> Result<WorkloadSize, Failure> {
        let paper = workload.paper_size().filter(|_| self.paper_size);
        let given =
            [(self.paper_size, "--paper-size"), (self.record_bytes.is_some(), "--record-bytes")];
        if let Some((_, flag)) = given.iter().find(|given| given.0 && !workload.is_fixed()) {
            let why = format!("texts of {workload} have no fixed length");
            return Err(Failure::usage(&why, Some(&format!("leave out {flag}"))));
        }
        let record_bytes = paper.map(|paper| paper.record_bytes).or(self.record_bytes);
        // Records of many bytes are fewer, so that as many bytes are kept as of columns.
        let shorter = record_bytes.map_or(1, |bytes| bytes.div_ceil(24));
        let rows = workload.rows_per_worker() / shorter;
        let rows = paper.map_or(rows, PaperSize::rows_per_worker);
        let keys = paper.map_or(workload.keys(), |paper| paper.keys);
        Ok(WorkloadSize {
            rows_per_worker: self.rows.unwrap_or(rows),
            workers: u64::from(self.nodes) * u64::from(self.workers),
            keys: self.keys.unwrap_or(keys),
            distribution,
            interval_ns: None,
            record_bytes,
        })
    }

    /// Measures, and tells the other nodes how it ended.
    fn measured(&self, plan: &RunPlan, control: &Control) -> Result<Measured, BenchError> {
        let result = if self.by_clock() {
            let timed = Timed {
                plan: plan.clone(),
                rate: self.latency,
                seconds: self.seconds,
                every_s: self.window_every / 1e3,
            };
            bench::sustain::run(&timed, control).map(|outcomes| {
                let text = if self.json {
                    outcomes.iter().map(|outcome| outcome.json() + "\n").collect()
                } else {
                    outcomes.iter().map(SustainOutcome::to_string).collect::<Vec<_>>().join("\n")
                };
                Measured { text, bars: Vec::new() }
            })
        } else {
            bench::run(plan, control).map(|summaries| {
                let text = if self.json { lines(&summaries) } else { text(&summaries) };
                let bars = summaries.into_iter().flat_map(|summary| summary.against.bars);
                Measured { text, bars: bars.collect() }
            })
        };
        reported(result, control)
    }
}

/// Tells the other nodes how it ended.
fn reported<T>(result: Result<T, BenchError>, control: &Control) -> Result<T, BenchError> {
    match &result {
        Ok(_) => control.close(),
        Err(error) => control.fail(&error.to_string()),
    }
    result
}

/// Prints a report, and writes it where that was asked for; fails where a target is missed and that
/// is to be checked.
fn write_report(
    report: &FigureReport,
    json: bool,
    path: Option<&Path>,
    check: bool,
) -> Result<ExitCode, Failure> {
    let mut text = if json { format!("{}\n", report.json()) } else { report.to_string() };
    if let Some(path) = path {
        let [page, data] = write(report, path)?;
        if !json {
            text += &format!("\nwritten: {}, {}\n", page.display(), data.display());
        }
    }
    print(&text);
    if check { held(report.bars()) } else { Ok(ExitCode::SUCCESS) }
}

/// Sees to it that a report can be written when all has been measured, which takes long.
fn writable(path: Option<&Path>) -> Result<(), Failure> {
    path.map_or(Ok(()), |path| FigureReport::ready(path).map_err(|error| unwritten(path, &error)))
}

fn unwritten(path: &Path, error: &std::io::Error) -> Failure {
    Failure::runtime(&format!("{} cannot be written: {error}", path.display()), None)
}

/// Writes a report as a page, with JSON beside it; gives both names.
fn write(report: &FigureReport, path: &Path) -> Result<[PathBuf; 2], Failure> {
    report.write(path).map_err(|error| unwritten(path, &error))
}

/// Settings for low latency: workers that poll on, slots that are soon full, and epochs so short
/// that little is left to be sent when a window is over, by code that was run just before.
const LOW_LATENCY: [(&str, &str); 6] = [
    ("millstream.idle", "spin"),
    ("millstream.slot_bytes", "4 KiB"),
    ("millstream.slots", "32"),
    ("millstream.epoch_bytes", "2 KiB"),
    ("millstream.epoch_stretch", "1"),
    ("millstream.shuffle_wait", "0 s"),
];

/// A whole number from one on, also with an exponent: `1e6`.
fn number(text: &str, most: u64) -> Result<u64, String> {
    let whole = |number: &f64| number.fract() == 0.0 && *number < 2f64.powi(53);
    let number = text.parse().ok();
    let number = number.or_else(|| text.parse().ok().filter(whole).map(|number| number as u64));
    let number = number.filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| format!("write a number from 1 to {most}, such as 1000000 or 1e6"))
}

/// A number within bounds, both among them.
fn number_within(text: &str, [least, most]: [f64; 2]) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("write a number from {least} to {most}"))
}

/// Rows a second.
fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse::<f64>().ok().filter(|rate| (1.0..=1e12).contains(rate));
    rate.ok_or_else(|| "write rows a second, such as 1e6".into())
}

/// A time that a run may take.
fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|time| (0.1..=1e6).contains(time));
    seconds.ok_or_else(|| "write a number from 0.1 on, such as 5".into())
}

/// An exponent of Zipf's law that the generator takes, or zero.
fn exponent(text: &str) -> Result<f64, String> {
    let exponent = text.parse::<f64>().ok().filter(|exponent| (0.0..=20.0).contains(exponent));
    exponent.ok_or_else(|| "write a number of 0 to 20, such as 1.5".into())
}

fn text(summaries: &[Summary]) -> String {
    summaries.iter().map(Summary::to_string).collect::<Vec<_>>().join("\n")
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
