//! `millstream bench paper`: the experiments of a paper, as a page with plots and as JSON.

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use bench::paper::{self, PaperScale, Runner};
use bench::report::FigureReport;
use clap::{Args, ValueEnum};
use serde_json::Value;

use super::multicast::{MulticastArgs, multicast};
use super::{held, number_within, writable, write};
use crate::args::nodes;
use crate::failure::Failure;
use crate::memory;
use crate::session::print;

#[derive(Debug, Args)]
pub(crate) struct PaperArgs {
    /// Whose experiments
    #[arg(value_enum)]
    paper: Paper,

    /// Where the page is written, with JSON beside it [default: paper-slash.html and so on]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Processes at most [default: 4, for whale and shuffle 8]
    #[arg(long, value_name = "N", value_parser = nodes)]
    nodes: Option<u32>,

    /// Rows of each worker, against those of an ordinary sweep: 0.1 for a first look
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = factor)]
    rows: f64,

    /// Runs of each point
    #[arg(
        long,
        value_name = "N",
        default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..=100)
    )]
    runs: u32,

    /// Fails if a target is not met, or could not be measured; the page is written all the same
    #[arg(long)]
    check: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Paper {
    /// Late merge against re-partitioning: scaling, buffers, credits, threads, skew, sizes, two
    /// unrelated processes, COST
    Slash,
    /// Sustainable throughput and latency; processes by workers, with pipelining and without
    Air,
    /// Whole queries over sockets and over rings, with one to eight workers of a process
    Shuffle,
    /// One row to many: what 'bench multicast' measures
    Whale,
    /// Tables in memory servers, which are started for it: pulls against shuffles, reads ahead,
    /// multicast, tables that grow, skew, streams
    Istore,
}

/// Runs the command.
pub(crate) fn paper(args: &PaperArgs) -> Result<ExitCode, Failure> {
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let nodes = args.nodes.unwrap_or(if args.paper == Paper::Shuffle { 8 } else { 4 });
    let scale = PaperScale { rows: args.rows, runs: args.runs, nodes, processors };
    type Make = Box<dyn Fn(&mut dyn Runner) -> Result<FigureReport, Failure>>;
    let (sweep, name): (Make, _) = match args.paper {
        Paper::Slash => (Box::new(move |by| Ok(paper::slash(by, scale))), "paper-slash.html"),
        Paper::Air => (Box::new(move |by| Ok(paper::air(by, scale))), "paper-air.html"),
        Paper::Shuffle => (Box::new(move |by| Ok(paper::shuffle(by, scale))), "paper-shuffle.html"),
        Paper::Istore => (Box::new(move |by| istore(by, scale)), "paper-istore.html"),
        // Its processes are started once, and each of them comes here.
        Paper::Whale => {
            let out = args.out.clone().unwrap_or_else(|| "paper-whale.html".into());
            return multicast(&MulticastArgs::of_paper(args.nodes, args.rows, out, args.check));
        }
    };
    let path = args.out.clone().unwrap_or_else(|| name.into());
    writable(Some(&path))?;
    let report = sweep(&mut Processes)?;
    let written = write(&report, &path)?;
    let mut text = match args.paper {
        Paper::Istore => paper::tables_text(&report) + "\n",
        _ => String::new(),
    };
    for bar in report.bars() {
        let met = match bar.met {
            Some(true) => "met",
            Some(false) => "not met",
            None => "not measured",
        };
        text += &format!("{}: {}, asked {}: {met}\n", bar.what, bar.got, bar.needed);
    }
    for path in written {
        text += &format!("written: {}\n", path.display());
    }
    print(&text);
    if args.check { held(report.bars()) } else { Ok(ExitCode::SUCCESS) }
}

/// The experiments over tables in two memory servers of this process.
fn istore(bench: &mut dyn Runner, scale: PaperScale) -> Result<FigureReport, Failure> {
    let bytes = (paper::SERVER_BYTES as f64 * scale.rows.max(0.25)) as u64;
    let (servers, addresses) = memory::of_job((2, bytes))?;
    let report = paper::istore(bench, scale, &addresses.join(","));
    drop(servers);
    Ok(report)
}

/// Runs `millstream bench` as processes of its own, so that no point has what another has left.
pub(super) struct Processes;

impl Runner for Processes {
    fn run(&mut self, arguments: &[String]) -> Result<Vec<Value>, String> {
        eprintln!("bench {}", arguments.join(" "));
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        let command = command.arg("bench").args(arguments).stdin(Stdio::null());
        let output = command.output().map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let objects = text.lines().filter(|line| !line.is_empty()).map(serde_json::from_str);
        objects.collect::<Result<_, _>>().map_err(|error| error.to_string())
    }
}

/// The factor for rows.
fn factor(text: &str) -> Result<f64, String> {
    number_within(text, [1e-3, 1e3])
}
