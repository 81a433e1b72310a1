//! `millstream bench tpch`, `ssb` and `tpcc`: analytical queries over tables that end.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bench::BenchError;
use bench::analytics::check::check;
use bench::analytics::run::{QueryOutcome, run};
use bench::analytics::{Suite, SuiteLayout, SuitePlan, SuiteReport};
use clap::{Args, ValueEnum};
use millstream::FabricKind;
use millstream::cluster::{ClusterError, Control, Invitation, Launched, LocalLaunch, launch_local};
use millstream::pool::PoolOptions;

use super::{TIMEOUT, failed};
use crate::args::{PoolArgs, nodes, setting, workers};
use crate::failure::Failure;
use crate::session::{job_number, pool_options, print};
use crate::signals;

/// Wrong results and refused queries that are shown one by one at most.
const FAULTS_SHOWN_MAX: usize = 10;

#[derive(Debug, Args)]
pub(crate) struct SuiteArgs {
    /// How large the tables are: 1 is a gigabyte of tpch, 600 MB of ssb, one warehouse of tpcc
    #[arg(
        long,
        value_name = "SF",
        default_value = "1",
        allow_negative_numbers = true,
        value_parser = bench::analytics::scale
    )]
    scale: f64,

    /// Where the tables lie
    #[arg(long, value_enum, default_value_t = From::Memory)]
    from: From,

    /// With --from file: the directory in which the files are written, unless they are there, and
    /// kept [default: one that is removed at the end]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,

    /// Queries by their names: q1,q5 [default: all]; ssb has the joins j1, j2 and j3 of I-Store's
    /// paper too
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    queries: Vec<String>,

    /// Processes that share the work
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = nodes)]
    nodes: u32,

    /// Threads of each process
    #[arg(long, value_name = "W", default_value_t = 1, value_parser = workers)]
    workers: u32,

    /// Processes and workers of each, in place of --nodes and --workers: 2x1,1x2; several are
    /// measured in turns
    #[arg(
        long,
        value_name = "NxW",
        value_delimiter = ',',
        value_parser = layout,
        conflicts_with_all = ["nodes", "workers"]
    )]
    layouts: Vec<SuiteLayout>,

    /// The transport between workers: shm or tcp; several are measured in turns
    #[arg(long, value_name = "FABRIC", value_delimiter = ',', default_value = "shm")]
    fabric: Vec<FabricKind>,

    /// How rows of two sides meet: auto, shuffle (both are led by their keys), broadcast (the
    /// smaller side goes to every worker) or, of j1 to j3 from a pool, pull (each process reads the
    /// smaller side itself); several are measured in turns
    #[arg(long, value_name = "EXCHANGE", value_delimiter = ',', default_value = "auto")]
    exchange: Vec<String>,

    /// How often each query is measured
    #[arg(
        long,
        alias = "runs",
        value_name = "N",
        default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..=1000)
    )]
    repeat: u32,

    /// Holds each result against the answer of another engine; a wrong one, and a query that is
    /// refused, makes the command fail
    #[arg(long)]
    check: bool,

    /// Sets an option, as SET in the SQL does; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = setting)]
    set: Vec<(String, String)>,

    /// Writes the tables as Parquet files into a directory of this one, for other programs, instead
    /// of measuring
    #[arg(long, value_name = "DIR", conflicts_with_all = ["check", "from", "directory"])]
    write: Option<PathBuf>,

    /// With --from pool: rows of a full strip of tables that are loaded
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(256..=8192))]
    strip_rows: Option<u32>,

    #[command(flatten)]
    pool: PoolArgs,

    /// Prints a JSON object a line instead of text
    #[arg(long)]
    json: bool,
}

/// Processes and workers as `2x4`.
fn layout(text: &str) -> Result<SuiteLayout, String> {
    let hint = || "write processes and workers of each, such as 2x4".to_owned();
    let (of_nodes, of_workers) = text.split_once(['x', 'X']).ok_or_else(hint)?;
    Ok(SuiteLayout { nodes: nodes(of_nodes)?, workers: workers(of_workers)? })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum From {
    /// In memory: made before the clock starts
    Memory,
    /// Parquet files
    File,
    /// The memory servers of --pool, into which they are loaded unless they are there
    Pool,
}

/// A directory that is removed at the end, unless the user named it.
struct Files {
    directory: PathBuf,
    temporary: Option<PathBuf>,
}

impl Drop for Files {
    fn drop(&mut self) {
        if let Some(directory) = &self.temporary {
            // If that fails, the files stay in the directory for temporary files.
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}

/// Runs the command.
pub(crate) fn suite(suite: Suite, args: &SuiteArgs) -> Result<ExitCode, Failure> {
    let mut plan = args.plan(suite)?;
    if let Some(within) = &args.write {
        let directory = suite.directory(within, args.scale);
        suite.write(&directory, args.scale).map_err(|error| failed(&error))?;
        print(&format!("the tables of {suite} are in {}\n", directory.display()));
        return Ok(ExitCode::SUCCESS);
    }
    let cluster = |error: ClusterError| failed(&error.into());
    if let Some(invitation) = Invitation::from_env().map_err(cluster)? {
        signals::ignore_interrupts()?;
        let control = invitation.join().map_err(cluster)?;
        // Node 0 prints the error.
        let measured = measured(&mut plan, &[&control], None);
        return measured.map(|_| ExitCode::SUCCESS).map_err(|_| Failure::silent());
    }
    let files = args.files(suite)?;
    let launch = |nodes: u32| launch_local(LocalLaunch::new(nodes)?);
    let sets: Vec<Launched> =
        plan.node_counts().into_iter().map(launch).collect::<Result<_, _>>().map_err(cluster)?;
    let directory = files.as_ref().map(|files| files.directory.as_path());
    let controls: Vec<&Control> = sets.iter().map(|set| &set.control).collect();
    let outcomes = measured(&mut plan, &controls, directory);
    for Launched { control, children } in sets {
        drop(control);
        children.wait(TIMEOUT);
    }
    let outcomes = outcomes.map_err(|error| failed(&error))?;
    drop(files);
    reported(args, plan, outcomes)
}

/// Prints the figures; fails where results are wrong or missing.
fn reported(
    args: &SuiteArgs,
    plan: SuitePlan,
    outcomes: Vec<QueryOutcome>,
) -> Result<ExitCode, Failure> {
    let checked = args.check.then(|| check(&plan, &outcomes)).transpose();
    let checked = checked.map_err(|error| failed(&error))?;
    let report = SuiteReport { plan, outcomes, checked };
    print(&if args.json { report.json() } else { report.to_string() });
    let faults = report.faults();
    if faults.is_empty() || !args.check {
        return Ok(ExitCode::SUCCESS);
    }
    let first: Vec<&str> = faults.iter().take(FAULTS_SHOWN_MAX).map(String::as_str).collect();
    let more = faults.len() - first.len();
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    let message =
        format!("{} results are wrong or missing: {}{more}", faults.len(), first.join("; "));
    Err(Failure::runtime(&message, None))
}

/// This process's part of the measurement; the first process knows the directory of the files.
fn measured(
    plan: &mut SuitePlan,
    controls: &[&Control],
    directory: Option<&Path>,
) -> Result<Vec<QueryOutcome>, BenchError> {
    let shared = controls.iter().try_for_each(|control| shared(plan, control, directory));
    let result = shared.and_then(|()| run(plan, controls));
    for control in controls {
        match &result {
            Ok(_) => control.close(),
            Err(error) => control.fail(&error.to_string()),
        }
    }
    result
}

/// Sends the directory of the files, and the number of the job in the pool, to all nodes.
fn shared(
    plan: &mut SuitePlan,
    control: &Control,
    directory: Option<&Path>,
) -> Result<(), BenchError> {
    let own = directory.map_or_else(Vec::new, |path| path.as_os_str().as_encoded_bytes().to_vec());
    let all = control.all_gather("directory", own)?;
    let first = all.first().filter(|path| !path.is_empty());
    plan.files = first.map(|path| PathBuf::from(String::from_utf8_lossy(path).into_owned()));
    if let Some(pool) = &mut plan.pool {
        let own = pool.job.unwrap_or_default().to_le_bytes().to_vec();
        let all = control.all_gather("job", own)?;
        let first = all.first().and_then(|job| job.as_slice().try_into().ok());
        pool.job = first.map(u128::from_le_bytes);
    }
    Ok(())
}

impl SuiteArgs {
    fn plan(&self, suite: Suite) -> Result<SuitePlan, Failure> {
        if self.directory.is_some() && self.from != From::File {
            let why = "--directory is of files, and the tables are in memory";
            return Err(Failure::usage(why, Some("add --from file")));
        }
        let all = suite.queries();
        let joins = suite.joins();
        let query = |name: &String| {
            let found =
                all.iter().chain(&joins).find(|query| query.name.eq_ignore_ascii_case(name.trim()));
            found.copied().ok_or_else(|| {
                let names: Vec<_> = all.iter().map(|query| query.name).collect();
                let hint = format!("its queries are {}", names.join(", "));
                Failure::usage(&format!("{suite} has no query '{name}'"), Some(&hint))
            })
        };
        let queries = self.queries.iter().map(query).collect::<Result<Vec<_>, _>>()?;
        if self.set.iter().any(|(key, _)| key.eq_ignore_ascii_case("millstream.exchange")) {
            let why = "bench sets millstream.exchange itself";
            return Err(Failure::usage(why, Some("use --exchange")));
        }
        let pool = match (self.from, pool_options(&self.pool)) {
            (From::Pool, None) => {
                let hint = "millstream memory --bytes 8GiB starts a server; --pool names it";
                return Err(Failure::usage("--from pool, and no pool is named", Some(hint)));
            }
            (From::Pool, pool) => pool,
            (From::Memory | From::File, _) => None,
        };
        let layouts = match self.layouts.as_slice() {
            [] => vec![SuiteLayout { nodes: self.nodes, workers: self.workers }],
            layouts => layouts.to_vec(),
        };
        let job = Some(job_number());
        Ok(SuitePlan {
            pool: pool.map(|pool| PoolOptions { job, ..pool }),
            suite,
            scale: self.scale,
            files: None,
            strip_rows: self.strip_rows,
            queries: if queries.is_empty() { all } else { queries },
            layouts,
            fabrics: self.fabric.clone(),
            exchanges: self.exchange.clone(),
            runs: self.repeat,
            settings: self.set.clone(),
        })
    }

    /// Writes the files, if tables are read from files.
    fn files(&self, suite: Suite) -> Result<Option<Files>, Failure> {
        if self.from != From::File {
            return Ok(None);
        }
        let (within, temporary) = match &self.directory {
            Some(directory) => (directory.clone(), None),
            None => {
                let name = format!("millstream-bench-{}", std::process::id());
                let directory = std::env::temp_dir().join(name);
                (directory.clone(), Some(directory))
            }
        };
        let files = Files { directory: suite.directory(&within, self.scale), temporary };
        suite.write(&files.directory, self.scale).map_err(|error| failed(&error))?;
        Ok(Some(files))
    }
}
