//! What may stand on the command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use millstream::{ExplainFormat, FabricKind, NODES_MAX, WORKERS_MAX};
use tracing_subscriber::filter::Targets;

use crate::bench::{self, BenchArgs};

/// Streaming SQL over one-sided memory.
#[derive(Debug, Parser)]
#[command(name = "millstream", version, max_term_width = 100, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  millstream run examples/flights.sql
  millstream run examples/flights.sql --nodes 4 --workers 1 --fabric tcp
  millstream explain examples/flights.sql
  millstream sql
  echo \"SELECT 1 + 1 AS two\" | millstream run -";

const RUN_EXAMPLES: &str = "\
Examples:
  millstream run examples/flights.sql                        one process, all cores
  millstream run examples/flights.sql --nodes 4 --workers 1  four processes, the same rows
  millstream run query.sql --output rows.parquet             rows of SELECT into a file
  millstream run query.sql --chart                           a picture of the rows
  millstream run query.sql --metrics                         for Prometheus, on port 9464
  millstream run query.sql --set millstream.exchange=shuffle
  millstream run query.sql --dry-run                         what it would use; starts nothing
  millstream run - < query.sql                               SQL from standard input

Exit codes: 0 success, 1 failure while running, 2 wrong arguments or SQL, 130 ended by Ctrl-C.
Ctrl-C ends the input and publishes what is finished; a second one ends at once.";

const SQL_EXAMPLES: &str = "\
Examples:
  millstream sql                                        from the keyboard; .help lists commands
  millstream sql -c \"SELECT 1 + 1 AS two\"
  millstream sql -f tables.sql -f query.sql             one after the other, tables are kept
  millstream sql -f query.sql --output rows.parquet     rows of SELECT into a file
  millstream sql -f query.sql --chart                   a picture of the rows
  echo \"SELECT 1;\" | millstream sql

Nodes are threads of this process. Ctrl-C stops the query and not the shell, Ctrl-D leaves.
Exit codes: 0 success, 1 failure while running, 2 wrong arguments or SQL, 130 ended by Ctrl-C.";

const EXPLAIN_EXAMPLES: &str = "\
Examples:
  millstream explain examples/flights.sql
  millstream explain examples/flights.sql --nodes 4 --workers 1
  millstream explain query.sql --set millstream.exchange=shuffle";

const FABRIC_EXAMPLES: &str = "\
Examples:
  millstream fabric info
  MILLSTREAM_RDMA=device=mlx5_1,gid=3 millstream fabric info";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs the statements of a SQL file.
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunArgs),
    /// Reads statements from the keyboard and shows their rows.
    #[command(after_help = SQL_EXAMPLES)]
    Sql(SqlArgs),
    /// Shows how the statements of a SQL file would run: pipelines, exchanges and why, memory.
    #[command(after_help = EXPLAIN_EXAMPLES)]
    Explain(ExplainArgs),
    /// Shows what can carry rows between workers on this machine.
    #[command(after_help = FABRIC_EXAMPLES)]
    Fabric(FabricArgs),
    /// Measures a workload of the papers, or what this machine can do.
    #[command(after_help = bench::EXAMPLES)]
    Bench(BenchArgs),
}

#[derive(Debug, Args)]
pub(crate) struct FabricArgs {
    /// What to show.
    #[command(subcommand)]
    pub(crate) show: FabricCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FabricCommand {
    /// Lists the fabrics, and RDMA devices, ports, addresses and limits; says which device would be
    /// used and why.
    Info,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) job: JobArgs,

    /// Where node 0 listens for the other nodes: a loopback address; port 0 takes a free one
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0", value_parser = loopback)]
    pub(crate) listen: SocketAddr,

    /// Plans, shows the memory that would be used, and starts nothing
    #[arg(long)]
    pub(crate) dry_run: bool,

    #[command(flatten)]
    pub(crate) rows: RowsArgs,

    /// How progress is shown on standard error
    #[arg(long, value_enum, default_value_t = ProgressStyle::Auto)]
    pub(crate) progress: ProgressStyle,

    /// Shows neither progress nor a summary
    #[arg(long, short)]
    pub(crate) quiet: bool,

    #[command(flatten)]
    pub(crate) telemetry: TelemetryArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[derive(Debug, Args)]
pub(crate) struct SqlArgs {
    /// Runs this and leaves; may be repeated
    #[arg(short = 'c', long = "command", value_name = "SQL", conflicts_with = "file")]
    pub(crate) command: Vec<String>,

    /// Runs the statements and dot commands of a file and leaves; may be repeated
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    pub(crate) file: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) layout: LayoutArgs,

    #[command(flatten)]
    pub(crate) rows: RowsArgs,

    #[command(flatten)]
    pub(crate) telemetry: TelemetryArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

/// Where rows of a bare `SELECT` go, and how they look.
#[derive(Debug, Args)]
pub(crate) struct RowsArgs {
    /// How rows of a bare SELECT are written [default: by the extension of --output, else table]
    #[arg(long, value_enum)]
    pub(crate) format: Option<Format>,

    /// Writes the rows of a bare SELECT here instead of to standard output; the file appears when
    /// all is well
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// Draws the rows of a bare SELECT: time or the first column across, numbers up
    #[arg(long, conflicts_with_all = ["format", "output"])]
    pub(crate) chart: bool,
}

/// What others may watch.
#[derive(Debug, Args)]
pub(crate) struct TelemetryArgs {
    /// Serves metrics for Prometheus at /metrics, and JSON at /status [default address:
    /// 127.0.0.1:9464]
    #[arg(
        long,
        value_name = "ADDR:PORT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "127.0.0.1:9464"
    )]
    pub(crate) metrics: Option<SocketAddr>,

    /// Sends spans of jobs, epochs and windows to an OpenTelemetry collector, by gRPC
    #[arg(long, value_name = "URL")]
    pub(crate) otlp: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    pub(crate) job: JobArgs,

    /// How the plan is shown: text, json or dot (for Graphviz)
    #[arg(long, default_value = "text", value_parser = explain_format)]
    pub(crate) format: ExplainFormat,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

/// What a job is and where it runs.
#[derive(Debug, Args)]
pub(crate) struct JobArgs {
    /// The SQL; `-` reads standard input
    pub(crate) file: PathBuf,

    #[command(flatten)]
    pub(crate) layout: LayoutArgs,
}

/// Where a job runs.
#[derive(Debug, Args)]
pub(crate) struct LayoutArgs {
    /// Processes that share the work
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = nodes)]
    pub(crate) nodes: u32,

    /// Threads of each process [default: the cores of this machine, divided among the nodes]
    #[arg(long, value_name = "W", value_parser = workers)]
    pub(crate) workers: Option<u32>,

    /// What carries rows between workers: shm, tcp or verbs (RDMA)
    #[arg(long, value_name = "FABRIC", default_value_t = FabricKind::Shm)]
    pub(crate) fabric: FabricKind,

    /// Sets an option, as SET in the SQL does; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = setting)]
    pub(crate) set: Vec<(String, String)>,
}

#[derive(Debug, Args)]
pub(crate) struct LogArgs {
    /// What is logged on standard error: off, error, warn, info, debug or trace, also per crate
    /// (`info,channel=debug`)
    #[arg(long, value_name = "LEVEL", env = "MILLSTREAM_LOG", default_value = "warn")]
    pub(crate) log: Targets,
}

/// How rows of a bare `SELECT` are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A table, drawn when the query has ended.
    Table,
    /// Comma-separated values with a header, as they come.
    Csv,
    /// One JSON object per line, as they come.
    Json,
    /// A Parquet file; needs --output.
    Parquet,
    /// An Arrow IPC file; needs --output.
    Arrow,
}

impl Format {
    /// As the connector `file` names it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Format::Table => "table",
            Format::Csv => "csv",
            Format::Json => "json",
            Format::Parquet => "parquet",
            Format::Arrow => "arrow",
        }
    }
}

/// How progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProgressStyle {
    /// A bar on a terminal, plain lines elsewhere.
    Auto,
    /// A line that is drawn over and over.
    Bar,
    /// A line every few seconds.
    Plain,
    /// Nothing.
    None,
}

impl LayoutArgs {
    /// Threads of each process.
    pub(crate) fn workers(&self) -> u32 {
        let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
        self.workers.unwrap_or_else(|| (cores() / self.nodes).clamp(1, WORKERS_MAX))
    }
}

fn explain_format(text: &str) -> Result<ExplainFormat, String> {
    ExplainFormat::of(text).ok_or_else(|| format!("there are {}", ExplainFormat::NAMES.join(", ")))
}

pub(crate) fn nodes(text: &str) -> Result<u32, String> {
    bounded(text, NODES_MAX)
        .ok_or(format!("a job has 1 to {NODES_MAX} nodes; leave --nodes out for a single process"))
}

pub(crate) fn workers(text: &str) -> Result<u32, String> {
    bounded(text, WORKERS_MAX)
        .ok_or(format!("a node has 1 to {WORKERS_MAX} workers; leave --workers out for all cores"))
}

fn bounded(text: &str, max: u32) -> Option<u32> {
    text.parse().ok().filter(|number| (1..=max).contains(number))
}

fn loopback(text: &str) -> Result<SocketAddr, String> {
    let addr: SocketAddr =
        text.parse().map_err(|_| "write an address and a port, such as 127.0.0.1:0".to_owned())?;
    if addr.ip().is_loopback() {
        Ok(addr)
    } else {
        Err("nodes of other machines cannot join yet: use a loopback address".into())
    }
}

pub(crate) fn setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => {
            Ok((key.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err("write KEY=VALUE, such as millstream.exchange=shuffle".into()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory;

    use super::*;

    fn parse(args: &[&str]) -> Result<RunArgs, String> {
        let cli = Cli::try_parse_from([&["millstream", "run"], args].concat())
            .map_err(|error| error.to_string())?;
        match cli.command {
            Command::Run(args) => Ok(args),
            _ => Err("another command".into()),
        }
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_workers_of_all_nodes_share_the_cores() {
        let cores = std::thread::available_parallelism().unwrap().get() as u32;
        assert_eq!(parse(&["q.sql"]).unwrap().job.layout.workers(), cores);
        assert_eq!(
            parse(&["q.sql", "--nodes", "256"]).unwrap().job.layout.workers(),
            (cores / 256).max(1)
        );
        assert_eq!(parse(&["q.sql", "--workers", "3"]).unwrap().job.layout.workers(), 3);
    }

    #[test]
    fn what_is_out_of_bounds_is_refused_with_a_way_out() {
        for (args, hint) in [
            (["--nodes", "0"], "leave --nodes out"),
            (["--nodes", "257"], "leave --nodes out"),
            (["--workers", "0"], "leave --workers out"),
            (["--fabric", "infiniband"], "there are shm, tcp, verbs"),
            (["--listen", "0.0.0.0:1"], "use a loopback address"),
            (["--listen", "here"], "such as 127.0.0.1:0"),
            (["--set", "shuffle"], "write KEY=VALUE"),
            (["--set", "=shuffle"], "write KEY=VALUE"),
            (["--format", "xml"], "csv, json, parquet, arrow"),
        ] {
            let error = parse(&[&["q.sql"][..], &args[..]].concat()).unwrap_err();
            assert!(error.contains(hint), "{args:?}: {error}");
        }
    }

    #[test]
    fn settings_keep_what_follows_the_first_equals_sign() {
        let args = parse(&["q.sql", "--set", "a.b = c=d", "--set", "e="]).unwrap();
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(args.job.layout.set, [pair("a.b", "c=d"), pair("e", "")]);
    }

    #[test]
    fn metrics_are_on_loopback_unless_told_otherwise() {
        let at = |args: &[&str]| parse(args).unwrap().telemetry.metrics.map(|a| a.to_string());
        assert_eq!(at(&["q.sql"]), None);
        assert_eq!(at(&["--metrics", "q.sql"]).as_deref(), Some("127.0.0.1:9464"));
        assert_eq!(at(&["--metrics=127.0.0.1:0", "q.sql"]).as_deref(), Some("127.0.0.1:0"));
    }

    /// The reference page names every option of every command, and no other.
    #[test]
    fn the_reference_page_is_complete() {
        let page = include_str!("../../../docs/cli.md");
        for command in Cli::command().get_subcommands() {
            let name = command.get_name();
            let section = page
                .split("\n## ")
                .find(|section| section.split_whitespace().take(2).eq(["millstream", name]))
                .unwrap_or_else(|| panic!("docs/cli.md has no section 'millstream {name}'"));
            let table = section.split("\n### ").next().unwrap_or(section);
            let named: BTreeSet<&str> = table
                .lines()
                .filter_map(|line| line.strip_prefix("| `--"))
                .filter_map(|line| line.split([' ', '`']).next())
                .collect();
            let known: BTreeSet<&str> =
                command.get_arguments().filter_map(|arg| arg.get_long()).collect();
            assert_eq!(named, known, "options of 'millstream {name}'");
        }
    }
}
