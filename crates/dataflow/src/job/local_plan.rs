//! An operator that runs a plan of another library, as data.
//!
//! Each worker runs the same plan over its rows: the rows of its partition, or all rows if they are
//! replicated. This crate knows neither the plan nor the library.

use std::sync::Arc;
use std::task::{Context, Poll};

use arrow::datatypes::{DataType, SchemaRef};
use arrow::record_batch::RecordBatch;
use state::{Disk, Spilled};

use super::{
    Copies, Deployment, DescribeContext, Description, Distribution, Exchange, OperatorSpec,
    SavedState, StateEstimate, StateMemory, Statistics, Strategy,
};
use crate::error::DataflowError;
use crate::rows::size::row_bytes;

/// A plan that each worker runs over its rows.
#[derive(Clone)]
pub struct LocalOperator {
    /// The specification of each input.
    pub inputs: Vec<LocalInput>,
    /// The exchange that brings rows of one key together: [`Exchange::Shuffle`] or
    /// [`Exchange::UpPar`], or [`Exchange::Forward`] if they are together already (A5).
    pub exchange: Exchange,
    /// The plan itself.
    pub plan: Arc<dyn LocalPlan>,
}

/// An input of a [`LocalOperator`].
#[derive(Clone)]
pub struct LocalInput {
    /// Its columns.
    pub schema: SchemaRef,
    /// The columns by which rows are partitioned, of the same types on all inputs that are hashed;
    /// if there are none, all rows go to worker 0.
    pub keys: Vec<usize>,
    /// The distribution of its rows.
    pub distribution: Distribution,
}

/// The memory of a run as it begins.
pub struct LocalMemory {
    /// Bytes that it may hold; this decreases when other operators hold more.
    pub bytes_max: usize,
    /// The disk for rows that do not fit memory.
    pub disk: Option<Arc<dyn Disk>>,
}

/// Whether the query is stopped: nobody wants the rows of a run any more.
pub type StopCheck = Arc<dyn Fn() -> bool + Send + Sync>;

/// A plan as data: runs on each worker.
pub trait LocalPlan: Send + Sync {
    /// Columns that it emits.
    fn schema(&self) -> SchemaRef;

    /// Begins a run on one worker. Once the query is stopped, a poll may fail: the run is dropped
    /// then, with its error.
    ///
    /// # Errors
    /// When it cannot run.
    fn open(
        &self,
        memory: LocalMemory,
        is_stopped: StopCheck,
    ) -> Result<Box<dyn LocalRun>, DataflowError>;

    /// Whether it writes rows that do not fit its memory to a disk.
    fn spills(&self) -> bool {
        false
    }

    /// The column that it emits which is `column` of `input`, if there is one.
    fn passes_on(&self, input: usize, column: usize) -> Option<usize> {
        let _ = (input, column);
        None
    }

    /// Whether each row that it emits contains a row of `input`. If not, the columns of that input
    /// are NULL, and the row contains a row of another input with the same key.
    fn always_has(&self, input: usize) -> bool {
        let _ = input;
        true
    }

    /// For EXPLAIN; `columns` are those of each input, as a user knows them.
    fn describe(&self, columns: &[Vec<String>]) -> Description;
}

/// A run of a [`LocalPlan`] on one worker.
pub trait LocalRun {
    /// Takes rows of an input. Their arrays are the run's to keep.
    fn push(&mut self, input: usize, rows: RecordBatch);

    /// An input has no more rows.
    fn end(&mut self, input: usize);

    /// The next rows that it emits, or nothing when it has emitted all. It returns soon: if there
    /// is more work to do, it wakes its caller and is pending. It may hold `bytes_max` bytes, with
    /// the rows that wait in it.
    ///
    /// # Errors
    /// When a row cannot be made, or there is not enough memory.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        bytes_max: usize,
    ) -> Poll<Option<Result<RecordBatch, DataflowError>>>;

    /// Bytes held.
    fn bytes(&self) -> usize;

    /// Those of them that are rows of an input which the plan has not read yet.
    fn unread_bytes(&self, input: usize) -> usize;

    /// Bytes written to a disk.
    fn spilled(&self) -> Spilled {
        Spilled::default()
    }
}

impl LocalOperator {
    /// Whether all rows go to one worker, which alone runs the plan.
    pub(crate) fn gathers(&self) -> bool {
        let gathers =
            |input: &LocalInput| input.distribution == Distribution::Hash && input.keys.is_empty();
        self.inputs.iter().any(gathers)
    }

    /// Whether the plan reads the rows of an input as they come, after it has read those that are
    /// replicated. Its rows are not taken before these are complete.
    pub(crate) fn streams(&self, input: usize) -> bool {
        let is = |input: &LocalInput, other| input.distribution == other;
        self.inputs.get(input).is_some_and(|input| is(input, Distribution::Local))
            && self.inputs.iter().any(|input| is(input, Distribution::Broadcast))
    }

    /// The inputs that are partitioned by a hash of their keys, if they travel.
    fn hashed(&self) -> impl Iterator<Item = &LocalInput> {
        self.inputs.iter().filter(|input| !input.keys.is_empty())
    }
}

impl OperatorSpec for LocalOperator {
    fn input_schema(&self, input: usize) -> Option<SchemaRef> {
        self.inputs.get(input).map(|input| input.schema.clone())
    }

    fn schema(&self) -> Option<SchemaRef> {
        Some(self.plan.schema())
    }

    /// Its inputs end, and all of their rows are needed for its first result.
    fn saved_state(&self) -> SavedState {
        SavedState::Rebuilt
    }

    fn describe(&self, context: &DescribeContext<'_>) -> Description {
        self.plan.describe(context.columns)
    }

    fn statistics(&self, inputs: &[Statistics], _: u32) -> Statistics {
        Statistics::of_unknown(inputs.iter().all(|rows| rows.ends))
    }

    fn state(&self, inputs: &[Statistics], deployment: Deployment) -> Vec<StateEstimate> {
        let held = |(at, (input, rows)): (usize, (&LocalInput, &Statistics))| StateEstimate {
            unit: "row",
            which: if self.inputs.len() == 1 { String::new() } else { format!(" of input {at}") },
            each_bytes: row_bytes(&input.schema),
            count_max: rows.rows_max,
            copies: match input.distribution {
                Distribution::Broadcast => {
                    Copies { count: deployment.workers.into(), by: "workers" }
                }
                _ => Copies::ONE,
            },
        };
        let inputs = self.inputs.iter().zip(inputs).enumerate();
        inputs.filter(|(at, _)| !self.streams(*at)).map(held).collect()
    }

    fn memory(&self) -> StateMemory {
        if self.plan.spills() { StateMemory::Spillable } else { StateMemory::Resident }
    }

    fn waits_for_rows(&self) -> bool {
        true
    }

    fn exchange(&self) -> Option<Exchange> {
        let meets = |input: &LocalInput| input.distribution != Distribution::Local;
        self.inputs.iter().any(meets).then_some(self.exchange)
    }

    fn exchange_mut(&mut self) -> Option<&mut Exchange> {
        Some(&mut self.exchange)
    }

    fn keys(&self, input: usize) -> &[usize] {
        self.inputs.get(input).map_or(&[], |input| &input.keys)
    }

    fn key_types(&self) -> Option<Vec<DataType>> {
        let mut types = self.hashed().map(|input| {
            let of = |&key: &usize| input.schema.field(key).data_type().clone();
            input.keys.iter().map(of).collect::<Vec<_>>()
        });
        let first = types.next().unwrap_or_default();
        types.all(|other| other == first).then_some(first)
    }

    fn distribution(&self, input: usize) -> Option<Distribution> {
        self.inputs.get(input).map(|input| input.distribution)
    }

    fn strategy(&self, input: usize, workers: u32) -> Strategy {
        let Some(of) = self.inputs.get(input) else { return Strategy::Forward };
        match of.distribution {
            Distribution::Broadcast => Strategy::Broadcast.on(workers),
            Distribution::RoundRobin | Distribution::Partner => Strategy::Rebalance.on(workers),
            Distribution::Local => Strategy::Forward,
            Distribution::Hash if of.keys.is_empty() => Strategy::Gather.on(workers),
            Distribution::Hash => self.exchange.into(),
        }
    }

    fn broadcasts(&self) -> bool {
        self.inputs.iter().any(|input| input.distribution == Distribution::Broadcast)
    }

    fn passes_on(&self, input: usize, column: usize) -> Option<usize> {
        self.plan.passes_on(input, column)
    }

    fn always_has(&self, input: usize) -> bool {
        self.plan.always_has(input)
    }
}
