//! The arguments of each command, and what several commands share of them.

mod pool;
mod state;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{ArgMatches, Args, FromArgMatches, Subcommand, ValueEnum};
use millstream::{ExplainFormat, FabricKind, NODES_MAX, WORKERS_MAX};
use tracing_subscriber::filter::Targets;

pub(crate) use self::pool::{PoolCommand, PoolCommandArgs};
pub(crate) use self::state::{OnLoss, PinnedVersion, RescaleArgs, StateArgs, StopArgs};

/// Bytes of a memory server at least, and at most.
const MEMORY_BYTES_MIN: u64 = 1 << 20;
const MEMORY_BYTES_MAX: u64 = 1 << 50;
/// Memory servers of a job at most.
const MEMORY_SERVERS_MAX: u32 = 64;

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Where the job serves its metrics
    #[arg(value_name = "ADDR:PORT", default_value = "127.0.0.1:9464")]
    pub(crate) address: SocketAddr,

    /// From one look to the next, and what numbers are of: 500ms, 5s, 1min
    #[arg(
        long = "interval",
        value_name = "TIME",
        default_value = "1s",
        value_parser = interval_ms
    )]
    pub(crate) interval_ms: u64,

    /// Ends after this number of looks [default: when the job ends]
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,

    /// Writes each look as a JSON object in a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CertArgs {
    /// The certificates to make.
    #[command(subcommand)]
    pub(crate) make: CertCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CertCommand {
    /// Makes the authority of a new cluster: ca.pem and ca.key.
    Init {
        /// Where; it must not hold one already
        directory: PathBuf,
        /// Days for which it counts
        #[arg(long, value_name = "N", default_value_t = 3650, value_parser = days())]
        days: u32,
    },
    /// Issues the certificate of a node, or of all: node.pem, node.key and ca.pem.
    Issue {
        /// The directory of the authority
        authority: PathBuf,
        /// Where the certificate goes; it must not hold one already
        directory: PathBuf,
        /// Days for which it counts
        #[arg(long, value_name = "N", default_value_t = 365, value_parser = days())]
        days: u32,
        /// Of a client that reads tables of memory servers, and is no node
        #[arg(long)]
        reader: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct FabricArgs {
    /// The chart to show.
    #[command(subcommand)]
    pub(crate) show: FabricCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FabricCommand {
    /// Lists the fabrics, and RDMA devices, ports, addresses and limits; says which device would be
    /// used and why.
    Info,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) job: JobArgs,

    /// Where this node listens for others; port 0 takes a free one [default: 127.0.0.1:0; with
    /// nodes on other hosts, the address of this host's name]
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    pub(crate) listen: Option<SocketAddr>,

    /// Where nodes that mpirun or srun starts find each other: a directory that all of them see
    /// [default: the launcher itself by PMI, /tmp on one host, else where the job was submitted]
    #[arg(long, value_name = "DIR", env = "MILLSTREAM_RENDEZVOUS")]
    pub(crate) rendezvous: Option<PathBuf>,

    /// How long nodes that mpirun or srun starts wait for each other
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = seconds())]
    pub(crate) join_timeout: u32,

    /// The certificate of this node, which `millstream cert issue` has made: nodes on several
    /// machines prove to each other who they are, and encrypt all but the rows
    #[arg(long, value_name = "DIR", env = "MILLSTREAM_CERTS", conflicts_with = "insecure")]
    pub(crate) certs: Option<PathBuf>,

    /// Lets nodes listen beyond loopback, in the clear and without a proof of who they are: for
    /// networks that you trust
    #[arg(long)]
    pub(crate) insecure: bool,

    /// Memory servers of this job alone, which end with it: how many, and the bytes of each
    #[arg(long, value_name = "NxBYTES", value_parser = memory_servers)]
    pub(crate) memory_servers: Option<(u32, u64)>,

    #[command(flatten)]
    pub(crate) state: StateArgs,

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
    #[command(flatten)]
    pub(crate) sources: SqlSources,

    #[command(flatten)]
    pub(crate) layout: LayoutArgs,

    #[command(flatten)]
    pub(crate) rows: RowsArgs,

    /// Refused: SQL stands behind -c, and a file behind -f
    #[arg(value_name = "SQL", hide = true)]
    pub(crate) unmarked: Option<String>,

    /// Refused: statements of a shell have no name by which they could go on
    #[arg(long, value_name = "DIR|URL", hide = true)]
    pub(crate) state: Option<String>,

    #[command(flatten)]
    pub(crate) telemetry: TelemetryArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

/// What `-c` and `-f` name, in the order in which they stand on the command line.
#[derive(Debug)]
pub(crate) struct SqlSources(pub(crate) Vec<SqlSource>);

/// One `-c` or `-f`.
#[derive(Debug)]
pub(crate) enum SqlSource {
    Text(String),
    File(PathBuf),
}

/// The arguments that [`SqlSources`] puts in order.
#[derive(Debug, Args)]
struct SqlSourceArgs {
    /// Runs this and leaves; -c and -f may be repeated, and run in their order
    #[arg(short = 'c', long = "command", value_name = "SQL")]
    command: Vec<String>,

    /// Runs the statements and dot commands of a file and leaves
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    file: Vec<PathBuf>,
}

impl Args for SqlSources {
    fn augment_args(command: clap::Command) -> clap::Command {
        SqlSourceArgs::augment_args(command)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        SqlSourceArgs::augment_args_for_update(command)
    }
}

impl FromArgMatches for SqlSources {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let SqlSourceArgs { command, file } = SqlSourceArgs::from_arg_matches(matches)?;
        let places = |id: &str| matches.indices_of(id).into_iter().flatten();
        let texts = places("command").zip(command.into_iter().map(SqlSource::Text));
        let files = places("file").zip(file.into_iter().map(SqlSource::File));
        let mut all: Vec<(usize, SqlSource)> = texts.chain(files).collect();
        all.sort_by_key(|(place, _)| *place);
        Ok(Self(all.into_iter().map(|(_, source)| source).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Where rows of a bare `SELECT` go, and how they look.
#[derive(Debug, Clone, Args)]
pub(crate) struct RowsArgs {
    /// How rows of a bare SELECT are written [default: by the extension of --output, else table on
    /// a terminal and csv elsewhere]
    #[arg(long, value_enum)]
    pub(crate) format: Option<OutputFormat>,

    /// Writes the rows of a bare SELECT here instead of to standard output; the file appears when
    /// all is well
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// Draws the rows of a bare SELECT: time or the first column across, numbers up
    #[arg(long, conflicts_with_all = ["format", "output"])]
    pub(crate) chart: bool,
}

/// Observability: metrics, spans, logs.
#[derive(Debug, Clone, Args)]
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

    /// A name by which the metrics are asked for, beside addresses and localhost
    #[arg(long, value_name = "HOST", requires = "metrics")]
    pub(crate) metrics_name: Vec<String>,

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

/// The job and where it runs.
#[derive(Debug, Clone, Args)]
pub(crate) struct JobArgs {
    /// The SQL; `-` reads standard input
    pub(crate) file: PathBuf,

    #[command(flatten)]
    pub(crate) layout: LayoutArgs,
}

/// Where a job runs.
#[derive(Debug, Clone, Args)]
pub(crate) struct LayoutArgs {
    /// Processes that share the work [default: 1, or what mpirun or srun started]
    #[arg(long, value_name = "N", value_parser = nodes)]
    pub(crate) nodes: Option<u32>,

    /// Threads of each process [default: the cores of this machine, divided among the nodes]
    #[arg(long, value_name = "W", value_parser = workers)]
    pub(crate) workers: Option<u32>,

    /// The transport between workers: shm, tcp, verbs (RDMA), mpi, or auto: shm on a machine,
    /// verbs or tcp between machines
    #[arg(long, value_name = "FABRIC", default_value_t = FabricKind::Auto)]
    pub(crate) fabric: FabricKind,

    /// Sets an option, as SET in the SQL does; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = setting)]
    pub(crate) set: Vec<(String, String)>,

    #[command(flatten)]
    pub(crate) pool: PoolArgs,
}

/// A pool of memory servers.
#[derive(Debug, Clone, Args)]
pub(crate) struct PoolArgs {
    /// Memory servers, whose tables the connector `pool` reads and loads; several behind commas
    #[arg(
        long,
        value_name = "ADDR:PORT",
        env = "MILLSTREAM_POOL",
        value_delimiter = ',',
        hide_env_values = true,
        global = true
    )]
    pub(crate) pool: Vec<String>,

    /// How their memory is read: shm, tcp, verbs, or auto: shm on a machine, else verbs or tcp
    #[arg(
        long,
        value_name = "FABRIC",
        value_parser = pool_fabric,
        default_value_t = FabricKind::Auto,
        global = true
    )]
    pub(crate) pool_fabric: FabricKind,

    /// The certificate of this process, which `millstream cert issue` has made, for memory servers
    /// of other machines
    #[arg(long, value_name = "DIR", env = "MILLSTREAM_POOL_CERTS", global = true)]
    pub(crate) pool_certs: Option<PathBuf>,

    /// The token of readers that a memory server has left (memory --read-token-file): this process
    /// reads tables then, and does not load or drop them
    #[arg(long, value_name = "FILE", env = "MILLSTREAM_POOL_TOKEN_FILE", global = true)]
    pub(crate) pool_token_file: Option<PathBuf>,
}

impl PoolArgs {
    /// Whether the command line names memory servers, and not the environment alone.
    pub(crate) fn is_named(&self) -> bool {
        let by_environment = std::env::var("MILLSTREAM_POOL").unwrap_or_default();
        !self.pool.is_empty() && !by_environment.split(',').eq(&self.pool)
    }
}

#[derive(Debug, Args)]
pub(crate) struct MemoryArgs {
    /// Bytes that it may hold, as 8GiB
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) bytes: u64,

    /// Its name, which no other server of its pool has
    #[arg(long, value_name = "NAME", default_value = "m0")]
    pub(crate) name: String,

    /// Where it listens; port 0 takes a free one
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7740", value_parser = address)]
    pub(crate) listen: SocketAddr,

    /// How its memory is read: shm, tcp, verbs, or auto: shm on its machine, else tcp
    #[arg(long, value_name = "FABRIC", default_value_t = FabricKind::Auto)]
    pub(crate) fabric: FabricKind,

    /// Its certificate, which `millstream cert issue` has made; without one it listens on loopback
    /// alone, for processes of its user
    #[arg(long, value_name = "DIR", env = "MILLSTREAM_CERTS")]
    pub(crate) certs: Option<PathBuf>,

    /// Leaves a token for readers in this file, which its group may read; it must not be there
    #[arg(long, value_name = "FILE", conflicts_with = "certs")]
    pub(crate) read_token_file: Option<PathBuf>,

    /// Where it keeps its tables, so that they are there after a restart; a directory that it alone
    /// uses
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,

    /// Serves metrics for Prometheus at /metrics [default address: 127.0.0.1:9464]
    #[arg(
        long,
        value_name = "ADDR:PORT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "127.0.0.1:9464"
    )]
    pub(crate) metrics: Option<SocketAddr>,

    /// A name by which the metrics are asked for, beside addresses and localhost
    #[arg(long, value_name = "HOST", requires = "metrics")]
    pub(crate) metrics_name: Vec<String>,

    /// Threads that serve reads over tcp
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = threads())]
    pub(crate) threads: u32,

    /// A client that says nothing for so long has ended: 500ms, 10s, 1min
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = interval_ms)]
    pub(crate) lease: u64,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct LogArgs {
    /// The log level on standard error: off, error, warn, info, debug or trace, also per crate
    /// (`info,channel=debug`)
    #[arg(long, value_name = "LEVEL", env = "MILLSTREAM_LOG", default_value = "warn")]
    pub(crate) log: Targets,
}

/// How rows of a bare `SELECT` are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
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

impl OutputFormat {
    /// As the connector `file` names it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            OutputFormat::Table => "table",
            OutputFormat::Csv => "csv",
            OutputFormat::Json => "json",
            OutputFormat::Parquet => "parquet",
            OutputFormat::Arrow => "arrow",
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
    /// Processes that share the work.
    pub(crate) fn nodes(&self) -> u32 {
        self.nodes.unwrap_or(1)
    }

    /// Threads of each process.
    pub(crate) fn workers(&self) -> u32 {
        let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
        self.workers.unwrap_or_else(|| (cores() / self.nodes()).clamp(1, WORKERS_MAX))
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

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "write an address and a port, such as 127.0.0.1:0".to_owned())
}

/// A memory server is outside of a world that mpirun starts.
fn pool_fabric(text: &str) -> Result<FabricKind, String> {
    match text.parse()? {
        FabricKind::Mpi => Err("memory servers are not read by mpi, also by jobs whose workers \
                                are joined by it; there are auto, shm, tcp, verbs"
            .to_owned()),
        kind => Ok(kind),
    }
}

/// `8GiB`, `512 MiB`, `1000000`.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let shift = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => Some(0),
        "k" | "kb" | "kib" => Some(10),
        "m" | "mb" | "mib" => Some(20),
        "g" | "gb" | "gib" => Some(30),
        "t" | "tb" | "tib" => Some(40),
        _ => None,
    };
    let number: Option<u64> = text[..digits].parse().ok();
    let bytes = number.zip(shift).and_then(|(number, shift)| number.checked_mul(1 << shift));
    bytes.filter(|bytes| (MEMORY_BYTES_MIN..=MEMORY_BYTES_MAX).contains(bytes)).ok_or_else(|| {
        "write a number with MiB or GiB, of 1MiB to 1024TiB, such as 8GiB".to_owned()
    })
}

/// `2x1GiB`.
fn memory_servers(text: &str) -> Result<(u32, u64), String> {
    let wrong = || "write how many, x, and the bytes of each, such as 2x1GiB".to_owned();
    let (count, each) = text.split_once('x').ok_or_else(wrong)?;
    let count = bounded(count, MEMORY_SERVERS_MAX).ok_or_else(wrong)?;
    Ok((count, bytes(each)?))
}

fn days() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=36_500)
}

fn threads() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=64)
}

pub(crate) fn seconds() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=86_400)
}

/// `500ms`, `5s`, `1min`, in milliseconds; at least 50.
fn interval_ms(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit = match text[digits..].trim() {
        "ms" => Some(1),
        "s" => Some(1_000),
        "min" => Some(60_000),
        _ => None,
    };
    let number: Option<u64> = text[..digits].parse().ok();
    let ms = number.zip(unit).and_then(|(number, unit)| number.checked_mul(unit));
    ms.filter(|ms| (50..=86_400_000).contains(ms))
        .ok_or_else(|| "write a number with ms, s or min, of 50ms to a day".to_owned())
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

    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::command::{Cli, Command};

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
            (["--fabric", "infiniband"], "there are auto, shm, tcp, verbs, mpi"),
            (["--join-timeout", "0"], "1..=86400"),
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
    fn intervals_have_a_unit() {
        let ms = ["50ms", "5s", "2 min"].map(|text| interval_ms(text).unwrap());
        assert_eq!(ms, [50, 5_000, 120_000]);
        for text in ["5", "49ms", "s", "", "-1s", "99999999999999999999s", "2min3"] {
            assert!(interval_ms(text).is_err(), "{text}");
        }
    }

    #[test]
    fn bytes_have_a_unit_and_bounds() {
        let some = ["8GiB", "1 MiB", "1048576", "2g"].map(|text| bytes(text).unwrap());
        assert_eq!(some, [8 << 30, 1 << 20, 1 << 20, 2 << 30]);
        for text in ["", "GiB", "8 apples", "1KiB", "0", "2000TiB", "99999999999999999999", "-1GiB"]
        {
            assert!(bytes(text).is_err(), "{text}");
        }
        assert_eq!(memory_servers("2x1GiB"), Ok((2, 1 << 30)));
        for text in ["2", "x1GiB", "0x1GiB", "65x1GiB", "2x", "2x1"] {
            assert!(memory_servers(text).is_err(), "{text}");
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
            let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
            let known: BTreeSet<&str> = shown.filter_map(clap::Arg::get_long).collect();
            assert_eq!(named, known, "options of 'millstream {name}'");
        }
    }
}
