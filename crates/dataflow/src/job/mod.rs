//! What a worker is told to do: a graph of operators as data, made by a planner or by hand.
//!
//! ```text
//! Source ─▶ Aggregate ─▶ Sink          ─▶ is an edge: rows go along it, through a step
//! Source ─▶ Keyed ─▶ Aggregate ─▶ Sink    (filter, project) that knows no state
//! Source ─▶
//! ```
//!
//! Every worker of every node runs the same job (A1): nobody hands out work while it runs.

mod aggregation;
mod casting;
mod description;
pub(crate) mod fault;
pub mod fragment;
mod fusion;
pub(crate) mod halves;
pub mod hash_join;
mod join_kind;
mod keyed;
mod limit;
mod local_plan;
pub mod lookup;
mod multicast;
mod probe_chain;
mod recovery;
mod saved;
mod scan;
mod shuffle_settings;
mod sink_spec;
mod sort;
mod spec;
mod spill_spec;
mod state_estimate;
mod statistics;
pub mod step;
pub mod wires;
pub mod worker_set;

use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;

use arrow::datatypes::TimeUnit;
use state::epoch::LengthBounds;

pub use self::aggregation::{Aggregation, EARLY, FINAL, TimeWindow, window_text};
pub use self::casting::{Casting, MulticastChoice, TreeChoice};
pub use self::description::{Cost, Description, InputLabels, Labels, Property, Reason, Strategy};
pub use self::fusion::{FusedColumns, FusedLookup, Fusion, NotFused};
pub use self::hash_join::{HashJoin, HashJoinSide, ProbedBuild};
pub(crate) use self::join_kind::list;
pub use self::join_kind::{FILTER, JoinKind, PROJECT};
pub(crate) use self::keyed::LAGGING;
pub use self::keyed::{
    Distribution, Keyed, KeyedInput, KeyedOperator, KeyedState, MultiPartitioner, Retention,
    RowPartitioner,
};
pub use self::limit::{Limit, RowRange};
pub use self::local_plan::{
    LocalInput, LocalMemory, LocalOperator, LocalPlan, LocalRun, StopCheck,
};
pub use self::lookup::Lookup;
pub use self::multicast::{BuildCells, BuildMulticast};
pub use self::probe_chain::{ChainColumn, ChainStage, NotChained, ProbeChain};
pub use self::recovery::{Guarantee, JobRecovery, OperatorRecovery, RecoveryRefusal};
pub use self::saved::{RowOwner, SavedPart, SavedParts, SavedState};
pub use self::scan::{GridAxis, OnBad, Scan, ScanPlacement, TimeColumn, Watermark};
pub use self::shuffle_settings::{FrequentKeys, ShuffleSettings};
pub use self::sink_spec::SinkSpec;
pub use self::sort::Sort;
pub use self::spec::{Deployment, DescribeContext, OperatorSpec, SideTable};
pub use self::spill_spec::{InputBatches, SpillSpec};
pub use self::state_estimate::{Copies, StateEstimate, StateMemory};
pub use self::statistics::Statistics;
pub(crate) use crate::job::step::RawColumns;
pub use crate::job::step::{RawBatch, Step, Stepped};
use crate::job::wires::Wires;
pub use crate::rows::origin::Origin;

/// Operators and how rows go from one to the next.
#[derive(Clone)]
pub struct JobGraph {
    /// The operators; the index is the operator's id on the wire. An edge leads from a lower index
    /// to a higher one.
    pub operators: Vec<Operator>,
    /// Sizes and limits.
    pub settings: Settings,
}

/// A place where rows come into being, meet, or leave.
#[derive(Clone)]
pub struct Operator {
    /// For messages and metrics.
    pub name: String,
    /// The inputs: none for a source, one for an aggregate, a lookup or a sink, two for a hash
    /// join, as many as it has for a keyed operator. All edges of one input bring rows of the same
    /// columns, in any order (a union).
    pub inputs: Vec<Vec<Edge>>,
    /// What it does.
    pub kind: OperatorKind,
    /// Of a scan: what one loop does with its rows, or why there is none
    /// ([`fuse`](crate::fusion::fuse)).
    pub fusion: Result<Fusion, NotFused>,
    /// Of a scan: the builds whose keys say which of its rows are needed
    /// ([`connect`](crate::probed_builds::connect)).
    pub builds: Vec<ProbedBuild>,
    /// Of a join: the chain that it is part of, or why it is in none
    /// ([`chain`](crate::probe_chains::chain)).
    pub chain: Result<Arc<ProbeChain>, NotChained>,
    /// How rows of its inputs are sent from worker to worker.
    pub shuffle: ShuffleSettings,
    /// Facts for EXPLAIN that its kind does not contain.
    pub labels: Labels,
}

impl Operator {
    /// An operator without labels.
    pub fn new(name: impl Into<String>, inputs: Vec<Vec<Edge>>, kind: OperatorKind) -> Self {
        let (fusion, chain) = (Err(NotFused::Unplanned), Err(NotChained::Alone));
        let (shuffle, labels) = (ShuffleSettings::default(), Labels::default());
        Self { name: name.into(), inputs, kind, fusion, builds: vec![], chain, shuffle, labels }
    }

    /// The same operator with labels.
    pub fn labelled(self, labels: Labels) -> Self {
        Self { labels, ..self }
    }

    /// Its specification.
    pub fn spec(&self) -> &dyn OperatorSpec {
        self.kind.spec()
    }
}

/// What an operator does.
#[derive(Clone)]
pub enum OperatorKind {
    /// Reads a table.
    Source(Scan),
    /// Brings rows together by late merge.
    Aggregate(Box<Aggregation>),
    /// Keeps rows by key until time has passed them.
    Keyed(Keyed),
    /// Runs a plan of another library over the rows of each worker.
    Local(LocalOperator),
    /// Joins rows with a table that every process has whole.
    Lookup(Box<Lookup>),
    /// Joins inputs that end.
    HashJoin(Box<HashJoin>),
    /// Sorts rows.
    Sort(Sort),
    /// Emits a range of rows, and ends the sources that it alone reads.
    Limit(Limit),
    /// Writes a table.
    Sink(SinkSpec),
}

impl OperatorKind {
    /// The operator's specification.
    pub fn spec(&self) -> &dyn OperatorSpec {
        match self {
            OperatorKind::Source(input) => input,
            OperatorKind::Aggregate(aggregation) => aggregation.as_ref(),
            OperatorKind::Keyed(keyed) => keyed,
            OperatorKind::Local(local) => local,
            OperatorKind::Lookup(lookup) => lookup.as_ref(),
            OperatorKind::HashJoin(join) => join.as_ref(),
            OperatorKind::Sort(sort) => sort,
            OperatorKind::Limit(limit) => limit,
            OperatorKind::Sink(sink) => sink,
        }
    }

    /// The same to be changed.
    pub fn spec_mut(&mut self) -> &mut dyn OperatorSpec {
        match self {
            OperatorKind::Source(input) => input,
            OperatorKind::Aggregate(aggregation) => aggregation.as_mut(),
            OperatorKind::Keyed(keyed) => keyed,
            OperatorKind::Local(local) => local,
            OperatorKind::Lookup(lookup) => lookup.as_mut(),
            OperatorKind::HashJoin(join) => join.as_mut(),
            OperatorKind::Sort(sort) => sort,
            OperatorKind::Limit(limit) => limit,
            OperatorKind::Sink(sink) => sink,
        }
    }
}

/// The way of rows from one operator to an input of another.
#[derive(Clone)]
pub struct Edge {
    /// The index of the operator that gives them out.
    pub from: usize,
    /// What is done with each row on its way.
    pub step: Option<Arc<dyn Step>>,
    /// Whether watermarks go along, because the operator reads the time that they speak of; else it
    /// learns of the end alone, and no row is late.
    pub timed: bool,
    /// Ticks by which watermarks are behind on this edge, so that what waits for them waits longer,
    /// and rows are late later. Not negative.
    pub lateness: i64,
}

impl JobGraph {
    /// The sources.
    pub fn inputs(&self) -> impl Iterator<Item = &Scan> {
        self.operators.iter().filter_map(|operator| operator.spec().source())
    }

    /// The unit of the watermarks of an operator, by its number: that of the source that they come
    /// from.
    pub fn time_unit(&self, operator: usize) -> TimeUnit {
        let of = &self.operators[operator];
        if let Some(unit) = of.spec().source().and_then(Scan::time_unit) {
            return unit;
        }
        let timed = of.inputs.iter().flatten().find(|edge| edge.timed);
        timed.map_or(TimeUnit::Millisecond, |edge| self.time_unit(edge.from))
    }

    /// A worker's number among the [`readers`], if it is one.
    pub(crate) fn reader(&self, worker: u32, workers: u32) -> Option<u32> {
        match self.settings.only_readers(workers) {
            0 if parts_workers(&self.operators) => halves::reader(worker, workers),
            0 => Some(worker),
            _ => worker.checked_sub(self.settings.stateful(workers)),
        }
    }
}

/// The number of workers that read the tables: all, but with [`Exchange::UpPar`], and where
/// `only` do nothing else ([`Settings::only_readers`]).
pub fn readers(operators: &[Operator], only: u32, workers: u32) -> u32 {
    match only {
        0 if parts_workers(operators) => halves::readers(workers),
        0 => workers,
        only => only,
    }
}

fn parts_workers(operators: &[Operator]) -> bool {
    operators.iter().any(|operator| operator.spec().exchange() == Some(Exchange::UpPar))
}

/// How rows of different workers meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Exchange {
    /// They meet on their own worker: one worker in all, or a partitioning that fits (A5).
    Forward,
    /// Each worker keeps partial state, or rows until their window ends (S7), and ships deltas per
    /// epoch to the leaders of the keys (S3, S9).
    Merge,
    /// Each row goes to the leader of its key (Q).
    Shuffle,
    /// As [`Exchange::Shuffle`], with workers of two kinds: half of them read tables and send each
    /// row to the leader of its key, the others lead (S13). For comparisons.
    UpPar,
}

impl fmt::Display for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Exchange::Forward => "forward",
            Exchange::Merge => "merge",
            Exchange::Shuffle => "shuffle",
            Exchange::UpPar => "uppar",
        })
    }
}

/// Sizes and limits of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Rows of a batch at most.
    pub batch_rows_max: usize,
    /// How many pieces of input a reader that waits for each asks for ahead of the one that it
    /// gives; `None` where their bytes decide.
    pub prefetch: Option<usize>,
    /// After how much input an epoch ends (S9), and how far that may move.
    pub epoch: LengthBounds,
    /// Epochs that a helper may close before the oldest was acknowledged.
    pub epochs_kept_max: usize,
    /// Bytes of state per worker.
    pub state_bytes_max: usize,
    /// Where groups go that do not fit, by a name that whoever starts the workers makes a
    /// [`Disk`](state::Disk) of; if there is none, the job fails.
    pub spill: Option<String>,
    /// How often the job is saved, where it has a place for that; `None` for never.
    pub checkpoint: Option<CheckpointInterval>,
    /// The guarantee that it has to keep then; `None` where each table may be as exact as it can.
    pub guarantee: Option<Guarantee>,
    /// The receive window: bytes of the rows of an input that a worker may have sent another worker
    /// which has not processed them, for inputs whose rows may have to wait before they are
    /// processed.
    pub receive_bytes: u64,
    /// Workers that read tables and keep nothing, the last ones: they feed the others, which read
    /// none (S16). With 0 all workers do both, and one always
    /// keeps.
    pub readers: u32,
    /// Rings between workers of different processes (S1); queues between those of one hold as much.
    pub ring: channel::RingConfig,
    /// What an idle worker does.
    pub idle: Idle,
    /// How processes are connected.
    pub wires: Wires,
    /// How long a connection between two processes that broke may take to be made anew, in
    /// nanoseconds; with 0 it is not, and the job fails.
    pub reconnect_ns: u64,
    /// How rows for every worker travel.
    pub casting: Casting,
    /// Whether who runs a worker asks what its processor counts.
    pub hardware_counters: bool,
    /// Whether each worker has a processor of its own.
    pub pins_workers: bool,
    /// The functions of the program that the job calls, by name.
    pub functions: Vec<JobFunction>,
}

impl Settings {
    /// The number of workers that only read, of all of them.
    #[must_use]
    pub fn only_readers(&self, workers: u32) -> u32 {
        self.readers.min(workers.saturating_sub(1))
    }

    /// Slots of the region of a worker, where rings have one ([`channel::SharedRegion`]): for the
    /// frames of a full queue of a broadcast, and for those of a ring that are being read.
    #[must_use]
    pub fn region_slots(&self) -> u32 {
        let slots = self.casting.queue_frames.saturating_add(self.ring.slots);
        slots.min(channel::protocol::SLOTS_MAX)
    }

    /// The number of workers that keep state and lead keys, of all of them: the first ones.
    pub(crate) fn stateful(&self, workers: u32) -> u32 {
        workers - self.only_readers(workers)
    }
}

/// A function of the program that a job calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobFunction {
    /// Its name in SQL.
    pub name: String,
    /// A number that changes when the function changes; 0 if it is unknown.
    pub fingerprint: u64,
    /// Whether it may give another result for the same arguments.
    pub volatile: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            batch_rows_max: 16_384,
            prefetch: None,
            epoch: LengthBounds { bytes: 64 << 20, stretch: 16, latency_ns: 1_000_000_000 },
            epochs_kept_max: 4,
            state_bytes_max: 4 << 30,
            spill: None,
            checkpoint: Some(CheckpointInterval::Auto),
            guarantee: None,
            receive_bytes: 256 << 10,
            readers: 0,
            ring: channel::RingConfig::default(),
            idle: Idle::Block,
            wires: Wires::default(),
            reconnect_ns: 30_000_000_000,
            casting: Casting::default(),
            hardware_counters: false,
            pins_workers: false,
            functions: Vec::new(),
        }
    }
}

/// How often a job is saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CheckpointInterval {
    /// As often as costs little, by how long checkpoints take.
    Auto,
    /// The interval in nanoseconds.
    Every(NonZeroU64),
}

/// What a worker does when nothing is ready (S4, Q4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Idle {
    /// Polls on: lowest latency, one core busy.
    Spin,
    /// Polls a little, then sleeps until a link or a timer wakes it.
    Block,
}
