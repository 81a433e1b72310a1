//! The hash join of inputs that end, as data.

use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef};
use state::NullKeys;

use super::{
    BuildMulticast, Copies, Deployment, DescribeContext, Description, Distribution, Exchange,
    JoinKind, OperatorSpec, SavedState, StateEstimate, StateMemory, Statistics, Strategy,
};
use crate::job::step::Step;
use crate::rows::size::{INDEX_BYTES, row_bytes};

/// The input whose rows look up those of the build, as they come.
pub const PROBE: usize = 0;

/// The input whose rows are in a hash table, which is complete before any row looks it up.
pub const BUILD: usize = 1;

/// Why no row of a table travels that is pulled.
pub(crate) const PULLED: &str = "each process reads the whole table itself, and no row travels";

/// How the rows of a table travel that is multicast.
const MULTICAST: &str = "one process reads each strip, and passes its rows on to the others";

/// A join of two inputs that end, by equal keys: rows of the *probe* side, which is input 0, look
/// up rows of the *build* side, which is input 1.
///
/// Either the build is *replicated*, one hash table in each process, and the rows of the probe side
/// stay on their worker; or the rows of both sides are partitioned *by key*. A replicated build is
/// broadcast, or *pulled*: each process reads all of it from memory that the processes share (I7),
/// or *multicast*: it lies there, too, and one process reads a strip for all (I6).
#[derive(Clone)]
pub struct HashJoin {
    /// Probe and build.
    pub sides: [HashJoinSide; 2],
    /// Whether a replicated build is pulled: its input is a scan that [is pulled], and its rows
    /// stay in their process.
    ///
    /// [is pulled]: super::Scan::is_pulled
    pub is_pulled: bool,
    /// Whether the rows of a broadcast build are multicast (I6), and to whom: its input is a scan
    /// of memory that the processes share, of which each strip is read once.
    pub multicast: Option<BuildMulticast>,
    /// The exchange that brings rows of equal keys together, unless the build is replicated.
    pub exchange: Exchange,
    /// Whether NULL in a key is equal to NULL.
    pub nulls: NullKeys,
    /// The kind of the join; the probe side is the left one. If the build is replicated to several
    /// workers, it is not a kind that emits rows of the build without a partner.
    pub kind: JoinKind,
    /// The variant of a semi- or anti-join of the probe side.
    pub variant: Variant,
    /// A filter over both sides' columns that a pair must pass, besides equal keys.
    pub on: Option<Arc<dyn Step>>,
    /// The columns that are emitted.
    pub schema: SchemaRef,
    /// The columns of the probe side and of the build side: the input of `on`.
    pub both: SchemaRef,
}

/// A side of a join.
#[derive(Clone)]
pub struct HashJoinSide {
    /// Its name in the query.
    pub name: String,
    /// Its columns.
    pub schema: SchemaRef,
    /// The columns that must be equal to those of the other side.
    pub keys: Vec<usize>,
    /// The distribution of its rows.
    pub distribution: Distribution,
}

/// A variant of a semi- or anti-join.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Variant {
    /// An ordinary join.
    #[default]
    Plain,
    /// A semi-join that emits each row of the probe side, and behind its columns whether it has a
    /// partner.
    Mark,
    /// An anti-join with the semantics of `NOT IN`: no row is emitted if a key of the build side is
    /// NULL, and no row whose own key is NULL, unless the build side has no rows.
    NullAware,
}

/// A build in which the rows of a scan are looked up. The scan may leave out rows that have no
/// partner there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbedBuild {
    /// The hash join or the lookup, by its number in the job.
    pub join: usize,
    /// The number of the key among the keys of the join.
    pub key: usize,
    /// The column of the scan that is looked up as this key.
    pub column: usize,
}

impl HashJoin {
    /// Whether every process has the complete build.
    pub fn is_replicated(&self) -> bool {
        self.sides[BUILD].distribution == Distribution::Broadcast
    }

    /// Whether a row of the probe side makes no difference if its key is not in the build.
    pub(crate) fn drops_unmatched_probe(&self) -> bool {
        let is_plain = self.variant == Variant::Plain && self.nulls == NullKeys::Nothing;
        is_plain && self.kind.alone(PROBE) != Some(false)
    }

    /// The column of the probe side that is `column` of the result, if each row of the result
    /// depends on one row of the probe side alone.
    pub(crate) fn probe_column(&self, column: usize) -> Option<usize> {
        let is_independent = self.kind.alone(BUILD).is_none();
        let is_own = column < self.sides[PROBE].schema.fields().len();
        (is_independent && is_own).then_some(column)
    }
}

impl OperatorSpec for HashJoin {
    fn input_schema(&self, input: usize) -> Option<SchemaRef> {
        self.sides.get(input).map(|side| side.schema.clone())
    }

    fn schema(&self) -> Option<SchemaRef> {
        Some(self.schema.clone())
    }

    /// Its inputs end, and all of their rows are needed for its first result.
    fn saved_state(&self) -> SavedState {
        SavedState::Rebuilt
    }

    fn describe(&self, context: &DescribeContext<'_>) -> Description {
        let keys = self.sides.each_ref().map(|side| side.keys.as_slice());
        let mut properties = self.kind.properties(context.columns, keys, self.on.as_ref());
        match self.variant {
            Variant::Plain => {}
            Variant::Mark => properties[0].1 = "LEFT MARK".into(),
            Variant::NullAware => properties[0].1.push_str(", NULL-aware"),
        }
        if self.nulls == NullKeys::Equal {
            properties.push(("NULL keys", "equal to each other".into()));
        }
        let [probe, build] = &self.sides;
        properties.push(("probe", probe.name.clone()));
        properties.push(("build", build.name.clone()));
        if let Some(cells) = self.multicast.as_ref().and_then(|of| of.cells.as_ref()) {
            let by = build.schema.field(cells.key).name();
            let of = format!("1 of {} parts by {by} to each process", cells.axis.parts);
            properties.push(("multicast", of));
        }
        Description { name: "HashJoin", properties }
    }

    fn statistics(&self, inputs: &[Statistics], _: u32) -> Statistics {
        let of = |input: usize| inputs.get(input).cloned().unwrap_or_default();
        of(PROBE).met(of(BUILD), self.kind)
    }

    fn state(&self, inputs: &[Statistics], deployment: Deployment) -> Vec<StateEstimate> {
        let copies = if self.is_replicated() {
            Copies { count: deployment.processes.into(), by: "nodes" }
        } else {
            Copies::ONE
        };
        vec![StateEstimate {
            unit: "row",
            which: format!(" of {}", self.sides[BUILD].name),
            each_bytes: row_bytes(&self.sides[BUILD].schema) + INDEX_BYTES,
            count_max: inputs.get(BUILD).and_then(|rows| rows.rows_max),
            copies,
        }]
    }

    fn memory(&self) -> StateMemory {
        StateMemory::Spillable
    }

    fn exchange(&self) -> Option<Exchange> {
        (!self.is_replicated()).then_some(self.exchange)
    }

    fn exchange_mut(&mut self) -> Option<&mut Exchange> {
        if self.is_replicated() { None } else { Some(&mut self.exchange) }
    }

    fn keys(&self, input: usize) -> &[usize] {
        self.sides.get(input).map_or(&[], |side| &side.keys)
    }

    fn key_types(&self) -> Option<Vec<DataType>> {
        let [probe, build] = self.sides.each_ref().map(|side| {
            let of = |&key: &usize| side.schema.field(key).data_type().clone();
            side.keys.iter().map(of).collect::<Vec<_>>()
        });
        (probe == build).then_some(probe)
    }

    fn distribution(&self, input: usize) -> Option<Distribution> {
        self.sides.get(input).map(|side| side.distribution)
    }

    fn strategy(&self, input: usize, workers: u32) -> Strategy {
        match self.sides.get(input).map(|side| side.distribution) {
            Some(Distribution::Broadcast) if self.is_pulled => Strategy::Pull.on(workers),
            Some(Distribution::Broadcast) if self.multicast.is_some() => {
                Strategy::Multicast.on(workers)
            }
            Some(Distribution::Broadcast) => Strategy::Broadcast.on(workers),
            Some(Distribution::RoundRobin | Distribution::Partner) => {
                Strategy::Rebalance.on(workers)
            }
            Some(Distribution::Hash) => Strategy::from(self.exchange).on(workers),
            Some(Distribution::Local) | None => Strategy::Forward,
        }
    }

    fn reason(&self, strategy: Strategy) -> Option<&'static str> {
        match strategy {
            Strategy::Shuffle | Strategy::UpPar => Some("rows of equal keys meet on one worker"),
            Strategy::Forward if self.is_replicated() => Some("every worker has the build"),
            Strategy::Pull => Some(PULLED),
            Strategy::Multicast => Some(MULTICAST),
            _ => None,
        }
    }

    /// The windows of the probe side.
    fn receive_windows(&self, workers: u32) -> u64 {
        let stays = self.is_replicated() || self.exchange == Exchange::Forward;
        if stays || workers == 1 { 0 } else { workers.into() }
    }

    fn broadcasts(&self) -> bool {
        self.is_replicated() && !self.is_pulled
    }

    fn passes_on(&self, input: usize, column: usize) -> Option<usize> {
        let probe = self.sides[PROBE].schema.fields().len();
        self.kind.passes_on(input, column, probe)
    }

    fn always_has(&self, input: usize) -> bool {
        self.kind.always_has(input)
    }
}
