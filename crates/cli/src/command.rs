//! The commands of the command line.

use clap::{Parser, Subcommand};

use crate::args::{
    CertArgs, ExplainArgs, FabricArgs, MemoryArgs, PoolCommandArgs, RescaleArgs, RunArgs, SqlArgs,
    StopArgs, TopArgs,
};
use crate::bench::{self, BenchArgs};
use crate::state::StateCommandArgs;

/// Streaming SQL over one-sided memory.
#[derive(Debug, Parser)]
#[command(name = "millstream", version, max_term_width = 100, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// The subcommand.
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
  mpirun -n 4 millstream run query.sql                       nodes that a launcher starts; or srun
  millstream run - < query.sql                               SQL from standard input

Exit codes: 0 success, 1 failure while running, 2 wrong arguments or SQL, 75 a node was lost and did
not come back (--state: run it again), 130 ended by Ctrl-C.
Ctrl-C ends the input and publishes what is finished; a second one ends at once.";

const SQL_EXAMPLES: &str = "\
Examples:
  millstream sql                                        from the keyboard; .help lists commands
  millstream sql -c \"SELECT 1 + 1 AS two\"
  millstream sql -f tables.sql -c \"SELECT count(*) FROM t\"
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

const TOP_EXAMPLES: &str = "\
Examples:
  millstream run query.sql --metrics            in one terminal
  millstream top                                in another; Ctrl-C ends it, not the job
  millstream top 127.0.0.1:9000 --interval 5s   another address, every five seconds
  millstream top --count 1 --json               once, for another program";

const FABRIC_EXAMPLES: &str = "\
Examples:
  millstream fabric info
  MILLSTREAM_RDMA=device=mlx5_1,gid=3 millstream fabric info";

const CERT_EXAMPLES: &str = "\
Examples:
  millstream cert init ~/cluster/ca                  once; ca.key signs, and stays where it is
  millstream cert issue ~/cluster/ca ~/cluster/node  then srun … millstream run … --certs DIR";

const MEMORY_EXAMPLES: &str = "\
Examples:
  millstream memory --bytes 8GiB                       for processes of this user on this machine
  millstream memory --bytes 1GiB --name m1 --listen 127.0.0.1:7741
  millstream memory --bytes 64GiB --listen 10.0.0.7:7740 --certs ~/cluster/node

Its tables live as long as it does. Ctrl-C or SIGTERM ends it.";

const POOL_EXAMPLES: &str = "\
Examples:
  millstream pool ls --pool 127.0.0.1:7740
  millstream pool stat lineorder --pool 127.0.0.1:7740
  MILLSTREAM_POOL=127.0.0.1:7740 millstream pool verify lineorder";

const STATE_EXAMPLES: &str = "\
Examples:
  millstream state list --state /var/lib/millstream
  millstream state show clicks --state s3://bucket/jobs
  millstream state keep clicks before-upgrade --state s3://bucket/jobs
  millstream state verify --state /var/lib/millstream";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs the statements of a SQL file.
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunArgs),
    /// Stops a job that keeps checkpoints: it keeps what it has, and goes on when it is run again.
    Stop(StopArgs),
    /// Has a job that keeps checkpoints go on with another number of nodes, while it runs.
    Rescale(RescaleArgs),
    /// Reads statements from the keyboard and shows their rows.
    #[command(after_help = SQL_EXAMPLES)]
    Sql(SqlArgs),
    /// Shows how the statements of a SQL file would run: pipelines, exchanges and why, memory.
    #[command(after_help = EXPLAIN_EXAMPLES)]
    Explain(ExplainArgs),
    /// Shows what a running job is doing: time, rows, watermark, state and skew of each operator
    /// and worker.
    #[command(after_help = TOP_EXAMPLES)]
    Top(TopArgs),
    /// Shows what can carry rows between workers on this machine.
    #[command(after_help = FABRIC_EXAMPLES)]
    Fabric(FabricArgs),
    /// Serves memory for tables that several processes read: a memory server.
    #[command(after_help = MEMORY_EXAMPLES)]
    Memory(MemoryArgs),
    /// Shows, checks and drops the tables of memory servers.
    #[command(after_help = POOL_EXAMPLES)]
    Pool(PoolCommandArgs),
    /// Shows, checks, keeps and drops the checkpoints of jobs.
    #[command(after_help = STATE_EXAMPLES)]
    State(StateCommandArgs),
    /// Makes certificates by which nodes on several machines know each other.
    #[command(after_help = CERT_EXAMPLES)]
    Cert(CertArgs),
    /// Measures a workload of the papers, or what this machine can do.
    #[command(after_help = bench::EXAMPLES)]
    Bench(BenchArgs),
}
