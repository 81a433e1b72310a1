//! Operators that keep rows by key, as data.

use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef};
use arrow::record_batch::RecordBatch;

use super::{
    Copies, Deployment, DescribeContext, Description, Exchange, InputBatches, OperatorSpec,
    RowOwner, SavedPart, SavedParts, SavedState, SpillSpec, StateEstimate, StateMemory, Statistics,
    Strategy,
};
use crate::checkpoint::SavedRows;
use crate::error::DataflowError;
use crate::job::worker_set::WorkerSet;
use crate::rows::size::row_bytes;
use crate::rows::time::ticks_text;

/// An operator that keeps rows by key: a join, a ranking, sessions.
#[derive(Clone)]
pub struct Keyed {
    /// The specification of each input.
    pub inputs: Vec<KeyedInput>,
    /// How rows of one key meet: [`Exchange::Shuffle`] or [`Exchange::UpPar`],
    /// [`Exchange::Merge`] where they may ([`Keyed::can_merge`]), or [`Exchange::Forward`] where
    /// they are together already (A5).
    pub exchange: Exchange,
    /// Ticks of event time between two looks at what has become complete, at least one: how
    /// often workers tell each other their watermarks.
    pub granularity: i64,
    /// The operator itself.
    pub operator: Arc<dyn KeyedOperator>,
}

/// An input of a keyed operator.
#[derive(Clone)]
pub struct KeyedInput {
    /// Its columns.
    pub schema: SchemaRef,
    /// The columns by which rows are led to a worker, of the same types on all inputs; without any
    /// all rows meet on worker 0.
    pub keys: Vec<usize>,
    /// Where its rows go, if not to the leader of their key.
    pub distribution: Distribution,
    /// A column of time by which rows are late, if they can be: those whose time, and
    /// [`grace`](Self::grace) ticks more, the watermark had reached before they came.
    pub time: Option<usize>,
    /// Zero for the end of a window, one for a time of the row itself.
    pub grace: i64,
}

/// Where the rows of an input go (W2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Distribution {
    /// To the leader of their key: by a hash of it, or by the operator's [`RowPartitioner`].
    /// Without keys all rows go to worker 0 (Whale's key and global grouping).
    #[default]
    Hash,
    /// To every worker (W1; Whale's all grouping). Such rows meet the rows of another input where
    /// those are.
    Broadcast,
    /// One to each worker in turn (Whale's shuffle grouping).
    RoundRobin,
    /// All rows of a worker that only reads to one stateful worker (S16).
    Partner,
    /// Nowhere: they stay on the worker that has them.
    Local,
}

/// Of an operator that [carries watermarks](KeyedOperator::carries_watermarks), the input of rows
/// with the watermark that each has met, in a column behind the others. No edge leads to it.
pub(crate) const LAGGING: usize = 1;

/// A keyed operator as data: makes the state of a worker.
pub trait KeyedOperator: Send + Sync {
    /// Columns that it gives out.
    fn schema(&self) -> SchemaRef;

    /// The state of one worker: of the keys that it leads.
    fn create(&self) -> Box<dyn KeyedState>;

    /// The parts of its state, as [`KeyedState::save`] gives them; `None` if it cannot be saved,
    /// for which a job with checkpoints is refused.
    fn saved(&self) -> Option<SavedParts>;

    /// Whether the order in which the saved rows of a part are loaded does not matter. Then batches
    /// that have not changed since an earlier checkpoint are not stored again, and come in front of
    /// the others.
    fn loads_in_any_order(&self) -> bool {
        false
    }

    /// The partitioner of an input, if its rows are not hashed by its keys (A4). That of an
    /// operator that brings rows together sends those of one key to one worker.
    fn partitioner(&self, input: usize) -> Option<Arc<dyn RowPartitioner>> {
        let _ = input;
        None
    }

    /// The partitioner of an input that sends each row to several workers. It is used in place of
    /// [`partitioner`](Self::partitioner).
    fn multi_partitioner(&self, input: usize) -> Option<Arc<dyn MultiPartitioner>> {
        let _ = input;
        None
    }

    /// Whether rows that other workers lead may be kept where they are read until an epoch ends
    /// (S7): what it emits waits for the watermark, or may come later than its rows.
    fn merges(&self) -> bool {
        false
    }

    /// Whether rows behind their watermark are neither late nor on time for it, and go on with the
    /// watermarks that they met ([`To::Partner`](crate::keyed::To::Partner)).
    fn carries_watermarks(&self) -> bool {
        false
    }

    /// The column of an input with the end of a row's window, if it works window by window.
    fn window_end(&self, input: usize) -> Option<usize> {
        let _ = input;
        None
    }

    /// The rows of an input that it retains, for an estimate of its state; `None` where that is
    /// unknown.
    fn retention(&self, input: usize) -> Option<Retention> {
        let _ = input;
        None
    }

    /// Until when it does not need the rows of an input, if that is known of each row: until then
    /// they may wait on a disk.
    fn spill_spec(&self, input: usize) -> Option<SpillSpec> {
        let _ = input;
        None
    }

    /// The column of its output that is `column` of `input`, if there is one.
    fn passes_on(&self, input: usize, column: usize) -> Option<usize> {
        let _ = (input, column);
        None
    }

    /// Whether each row of its output contains a row of `input`. If not, the columns of that input
    /// are NULL, and the row contains a row of another input with the same key.
    fn always_has(&self, input: usize) -> bool {
        let _ = input;
        true
    }

    /// For EXPLAIN; `columns` are those of each input, as a user knows them.
    fn describe(&self, columns: &[Vec<String>]) -> Description;
}

/// The rows of an input that a keyed operator retains, besides those whose time has not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Retention {
    /// Only rows that are not passed on yet. All rows are passed on, in the order in which they
    /// came.
    Passing,
    /// Those whose time has not come.
    Waiting,
    /// So many of each key.
    PerKey(u64),
    /// Those within this number of ticks of event time before the watermark.
    Span(i64),
    /// Those of windows that have not ended.
    TimeWindow,
    /// Those of sessions that may go on.
    Session,
}

/// Leads rows to workers (A4): any function that is the same on all of them.
pub trait RowPartitioner: Send + Sync {
    /// Puts the worker of each row, below `workers`, into `to`, which is empty.
    ///
    /// # Errors
    /// [`DataflowError::Expression`] when a row cannot be led.
    fn partition(
        &self,
        batch: &RecordBatch,
        workers: u32,
        to: &mut Vec<u32>,
    ) -> Result<(), DataflowError>;
}

/// Leads rows to several workers each (W1): any function that is the same on all of them.
pub trait MultiPartitioner: Send + Sync {
    /// Puts the workers of each row, below `workers`, into `to`, which is empty. A row for nobody
    /// is gone.
    ///
    /// # Errors
    /// [`DataflowError::Expression`] when a row cannot be led.
    fn partition(
        &self,
        batch: &RecordBatch,
        workers: u32,
        to: &mut Vec<WorkerSet>,
    ) -> Result<(), DataflowError>;
}

/// The rows and groups that a keyed operator keeps on one worker.
pub trait KeyedState {
    /// Takes rows of an input. Their arrays are the state's to keep.
    ///
    /// # Errors
    /// [`DataflowError::Expression`] when a row cannot be taken.
    fn push(&mut self, input: usize, batch: RecordBatch) -> Result<(), DataflowError>;

    /// All rows before `watermark` have come: emits some of the results that are complete now, at
    /// most about `rows_max` rows; `None` when there are no more. `i64::MAX` at the end of complete
    /// inputs.
    ///
    /// # Errors
    /// [`DataflowError::Expression`] when a row cannot be made.
    fn advance(
        &mut self,
        watermark: i64,
        rows_max: usize,
    ) -> Result<Option<RecordBatch>, DataflowError>;

    /// Whether [`advance`](Self::advance) has something to give that does not wait for time.
    fn ready(&self) -> bool {
        false
    }

    /// Takes the rows out that wait for their time by [`KeyedOperator::spill_spec`], by input, as
    /// if they had not come.
    ///
    /// # Errors
    /// [`DataflowError::Expression`] when a row cannot be copied.
    fn drain(&mut self) -> Result<InputBatches, DataflowError> {
        Ok(vec![])
    }

    /// All of its state, which stays as it is, as rows of the parts of [`KeyedOperator::saved`].
    /// It is asked for at rest: [`advance`](Self::advance) has had nothing to give, and no row has
    /// come since but those that [`drain`](Self::drain) took out again.
    ///
    /// # Errors
    /// [`DataflowError::Expression`] when a row cannot be copied; [`DataflowError::Recovery`] when
    /// it is not at rest.
    fn save(&mut self) -> Result<Vec<SavedRows>, DataflowError>;

    /// Adds saved rows to the state: some of those of a part, each of which belongs to this worker
    /// and comes once, those that were saved by one worker in their order.
    ///
    /// # Errors
    /// As [`push`](Self::push); [`DataflowError::Recovery`] when there is no such part.
    fn load(&mut self, saved: SavedRows) -> Result<(), DataflowError>;

    /// How many windows were emitted whole since the last call, if it works window by window.
    fn windows_over(&mut self) -> usize {
        0
    }

    /// Up to where results are complete when [`advance`](Self::advance) has nothing more to give at
    /// `watermark`: the watermark of what it gives out.
    fn complete(&self, watermark: i64) -> i64 {
        watermark
    }

    /// Bytes held.
    fn bytes(&self) -> usize;
}

impl Keyed {
    /// Whether its rows may meet by [`Exchange::Merge`]: its operator waits for the watermark, and
    /// all rows are led by keys or by a function, each to one worker.
    #[must_use]
    pub fn can_merge(&self) -> bool {
        let is_led = |(number, input): (usize, &KeyedInput)| {
            let by_function = self.operator.partitioner(number).is_some();
            input.distribution == Distribution::Hash
                && (by_function || !input.keys.is_empty())
                && self.operator.multi_partitioner(number).is_none()
                && !self.waits(number)
        };
        self.operator.merges() && self.inputs.iter().enumerate().all(is_led)
    }

    /// How its rows travel: they are shuffled where they are to be merged and cannot be.
    pub(crate) fn exchange_of_rows(&self) -> Exchange {
        match self.exchange {
            Exchange::Merge if !self.can_merge() => Exchange::Shuffle,
            exchange => exchange,
        }
    }

    /// Whether rows of an input may have to wait on the worker to which they travel until earlier
    /// rows are passed on. Rows that are kept until a time are state, and need no window.
    pub(crate) fn waits(&self, input: usize) -> bool {
        self.operator.retention(input) == Some(Retention::Passing)
            && self.operator.multi_partitioner(input).is_none()
            && self.inputs[input].distribution != Distribution::Broadcast
    }

    /// The type of an input's time.
    fn time_type_of(&self, input: &KeyedInput) -> DataType {
        let schema = &input.schema;
        let is_time = |of: &&DataType| matches!(of, DataType::Timestamp(..));
        let known = input.time.map(|time| schema.field(time).data_type());
        let any = || schema.fields().iter().map(|field| field.data_type()).find(is_time);
        known.or_else(any).cloned().unwrap_or(DataType::Null)
    }

    /// The rows of an input that it holds.
    fn held(&self, at: usize, rows: &Statistics, workers: u32) -> Option<StateEstimate> {
        let input = &self.inputs[at];
        let of_keys = |count: u64| {
            let most = rows.values_max(&input.keys).map(|keys| keys.saturating_mul(count));
            most.into_iter().chain(rows.rows_max).min()
        };
        let (which, count_max) = match self.operator.retention(at) {
            Some(Retention::Passing) => return None,
            None => (String::new(), rows.rows_max),
            Some(Retention::Waiting) => (" not yet due".into(), rows.rows_max),
            Some(Retention::PerKey(1)) => (", the newest of each key".into(), of_keys(1)),
            Some(Retention::PerKey(count)) => {
                (format!(", the newest {count} of each key"), of_keys(count))
            }
            Some(Retention::Span(ticks)) => {
                let span = ticks_text(ticks, &self.time_type_of(input));
                (format!(" within {span}"), rows.rows_max)
            }
            Some(Retention::TimeWindow) => (" of open windows".into(), rows.rows_max),
            Some(Retention::Session) => (" of open sessions".into(), rows.rows_max),
        };
        let of_input = match self.inputs.len() {
            1 => String::new(),
            _ => format!(" of input {at}"),
        };
        let copies = match input.distribution {
            Distribution::Broadcast => Copies { count: workers.into(), by: "workers" },
            _ => Copies::ONE,
        };
        Some(StateEstimate {
            unit: "row",
            which: format!("{of_input}{which}"),
            each_bytes: row_bytes(&input.schema),
            count_max,
            copies,
        })
    }
}

impl OperatorSpec for Keyed {
    fn input_schema(&self, input: usize) -> Option<SchemaRef> {
        self.inputs.get(input).map(|input| input.schema.clone())
    }

    fn schema(&self) -> Option<SchemaRef> {
        Some(self.operator.schema())
    }

    fn describe(&self, context: &DescribeContext<'_>) -> Description {
        self.operator.describe(context.columns)
    }

    fn statistics(&self, inputs: &[Statistics], _: u32) -> Statistics {
        Statistics::of_unknown(inputs.iter().all(|rows| rows.ends))
    }

    fn state(&self, inputs: &[Statistics], deployment: Deployment) -> Vec<StateEstimate> {
        let inputs = inputs.iter().take(self.inputs.len()).enumerate();
        inputs.filter_map(|(at, rows)| self.held(at, rows, deployment.workers)).collect()
    }

    fn memory(&self) -> StateMemory {
        match self.spill_specs() {
            Some(_) => StateMemory::Spillable,
            None => StateMemory::Resident,
        }
    }

    /// Rows of each input that wait on a disk or for it, and then the parts of the operator.
    fn saved_state(&self) -> SavedState {
        let Some(SavedParts { version, parts }) = self.operator.saved() else {
            return SavedState::Unknown;
        };
        let waiting = self.inputs.iter().enumerate().map(|(number, input)| SavedPart {
            schema: input.schema.clone(),
            owner: RowOwner::Input(number),
        });
        SavedState::Parts(SavedParts { version, parts: waiting.chain(parts).collect() })
    }

    /// One that passes rows on keeps none.
    fn remembers(&self) -> bool {
        self.operator.saved().is_none_or(|saved| !saved.parts.is_empty())
    }

    fn waits_for_rows(&self) -> bool {
        true
    }

    fn exchange(&self) -> Option<Exchange> {
        Some(self.exchange)
    }

    fn merges(&self) -> bool {
        self.can_merge()
    }

    /// Rows that are merged go to the worker that a shuffle would lead them to.
    fn led_by(&self) -> Option<Exchange> {
        Some(match self.exchange {
            Exchange::Merge => Exchange::Shuffle,
            exchange => exchange,
        })
    }

    fn exchange_mut(&mut self) -> Option<&mut Exchange> {
        Some(&mut self.exchange)
    }

    fn keys(&self, input: usize) -> &[usize] {
        self.inputs.get(input).map_or(&[], |input| &input.keys)
    }

    fn key_types(&self) -> Option<Vec<DataType>> {
        let mut types = self.inputs.iter().map(|input| {
            let of = |&key: &usize| input.schema.field(key).data_type().clone();
            input.keys.iter().map(of).collect::<Vec<_>>()
        });
        let first = types.next()?;
        types.all(|other| other == first).then_some(first)
    }

    fn distribution(&self, input: usize) -> Option<Distribution> {
        let by_function = self.operator.partitioner(input).is_some()
            || self.operator.multi_partitioner(input).is_some();
        self.inputs.get(input).filter(|_| !by_function).map(|input| input.distribution)
    }

    fn strategy(&self, input: usize, workers: u32) -> Strategy {
        let Some(of) = self.inputs.get(input) else { return Strategy::Forward };
        match of.distribution {
            Distribution::Broadcast => Strategy::Broadcast.on(workers),
            Distribution::RoundRobin | Distribution::Partner => Strategy::Rebalance.on(workers),
            Distribution::Local => Strategy::Forward,
            Distribution::Hash
                if of.keys.is_empty() && self.operator.partitioner(input).is_none() =>
            {
                Strategy::Gather.on(workers)
            }
            Distribution::Hash => self.exchange_of_rows().into(),
        }
    }

    fn receive_windows(&self, workers: u32) -> u64 {
        let travels = |of: &KeyedInput| of.distribution != Distribution::Local;
        let waits = |(at, of): (usize, &KeyedInput)| self.waits(at) && travels(of);
        let inputs = match self.exchange {
            _ if workers == 1 => 0,
            Exchange::Forward => 0,
            _ => (0..).zip(&self.inputs).filter(|&of| waits(of)).count(),
        };
        inputs as u64 * u64::from(workers)
    }

    fn broadcasts(&self) -> bool {
        self.inputs.iter().any(|input| input.distribution == Distribution::Broadcast)
    }

    fn passes_on(&self, input: usize, column: usize) -> Option<usize> {
        self.operator.passes_on(input, column)
    }

    fn always_has(&self, input: usize) -> bool {
        self.operator.always_has(input)
    }

    fn time_type(&self, input: usize) -> Option<DataType> {
        let input = self.inputs.get(input)?;
        input.time.map(|time| input.schema.field(time).data_type().clone())
    }
}
