//! A plan of DataFusion on one worker: a coroutine of the worker polls it, and it reads the rows of
//! its inputs as they come.
//!
//! DataFusion has no threads here. Its operators are planned for one partition, and share a memory
//! pool whose size the worker sets. They spill to the worker's disk ([`OnDisk`]).

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use arrow::array::{RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::SchemaRef;
use dataflow::error::DataflowError;
use dataflow::job::{Description, LocalMemory, LocalPlan, LocalRun, Property, StopCheck};
use datafusion::catalog::TableProvider;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::common::resources_datafusion_err;
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool, MemoryReservation};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use futures::{StreamExt, stream};
use state::Spilled;

use super::partitions::some_at_a_time;
use super::spill::OnDisk;
use crate::expr::conform::same_type;
use crate::lower::batch;
use crate::lower::batch::stoppable::StoppablePool;
use crate::text::units::human;

/// Operators that can spill get one in this many parts of the memory. A sort needs the rest to
/// merge the rows in memory before it writes them, and to merge the files that it has written.
const SPILLABLE_PART: usize = 2;

/// Pairs of rows that a plan looks at between two polls, if it looks at all pairs of its inputs.
const PAIRS_MAX: usize = 16 << 20;

/// A plan whose leaves are [`GatheredRows`](batch::GatheredRows), as each worker runs it.
pub(super) struct WorkerPlan {
    /// For EXPLAIN and errors.
    pub(super) name: &'static str,
    pub(super) properties: Vec<Property>,
    plan: LogicalPlan,
    state: SessionState,
    schema: SchemaRef,
    spills: bool,
    /// By input and its columns: the column of the output that it is.
    passed: Vec<Vec<Option<usize>>>,
}

impl WorkerPlan {
    /// `plan`, which emits columns of `schema`.
    ///
    /// # Errors
    /// When DataFusion cannot run the plan, or would emit other types.
    pub(super) fn new(
        name: &'static str,
        plan: LogicalPlan,
        state: &SessionState,
        schema: SchemaRef,
        passed: Vec<Vec<Option<usize>>>,
    ) -> DfResult<Self> {
        let (plan, state) = (batch::prepared(plan)?, state.clone());
        let (properties, spills) = (vec![], false);
        let mut made = Self { name, properties, plan, state, schema, spills, passed };
        let (physical, _) = made.physical(&made.state)?;
        let runs = physical.schema();
        let mut columns = made.schema.fields().iter().zip(runs.fields());
        columns.try_for_each(|(column, runs)| same_type(column, runs.data_type()))?;
        let mut operators = vec![];
        operators_of(&physical, &mut operators);
        made.spills = operators.iter().any(|name| ["Sort", "Aggregate"].contains(&name.as_str()));
        made.properties.push(("runs", format!("{} of DataFusion", operators.join(", "))));
        Ok(made)
    }

    /// The plan over the rows of its inputs, and the queues of these rows.
    fn physical(&self, state: &SessionState) -> DfResult<(Arc<dyn ExecutionPlan>, Queues)> {
        let mut queues = BTreeMap::new();
        let filled = batch::filled(&self.plan, |leaf| {
            let queue = queues.entry(leaf.part);
            let queue = queue.or_insert_with(|| Arc::new(Queue::new(leaf.schema.clone())));
            let rows: Arc<dyn PartitionStream> = Arc::new(Rows(queue.clone()));
            let table = StreamingTable::try_new(leaf.schema.clone(), vec![rows])?;
            Ok(Arc::new(table) as Arc<dyn TableProvider>)
        })?;
        let plan = batch::runtime()?.block_on(batch::physical(&filled, state))?;
        let (mut operators, queues) = (vec![], queues.into_values().collect::<Queues>());
        operators_of(&plan, &mut operators);
        if operators.iter().any(|name| name == "NestedLoopJoin") {
            let all = Arc::<AtomicUsize>::default();
            queues.iter().for_each(|queue| queue.lock().pairs = Some(all.clone()));
        }
        Ok((some_at_a_time(plan)?, queues))
    }

    /// Begins a run within `memory`.
    fn opened(&self, memory: LocalMemory, is_stopped: StopCheck) -> DfResult<Run> {
        let LocalMemory { bytes_max, disk } = memory;
        let failures = Failures { name: self.name, hint: self.hint(disk.is_some()) };
        let pool = Arc::new(Pool::new(bytes_max));
        let spilled = Arc::default();
        let mode = match disk {
            Some(disk) => {
                DiskManagerMode::Custom(Arc::new(OnDisk::new(disk, Arc::clone(&spilled))))
            }
            None => DiskManagerMode::Disabled,
        };
        let environment = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::new(StoppablePool::new(pool.clone(), is_stopped)))
            .with_disk_manager_builder(DiskManagerBuilder::default().with_mode(mode))
            .build_arc()?;
        let mut state = SessionStateBuilder::new_from_existing(self.state.clone())
            .with_runtime_env(environment)
            .build();
        // The pool reserves memory for the merge itself.
        state.config_mut().options_mut().execution.sort_spill_reservation_bytes = 0;
        let (plan, queues) = self.physical(&state)?;
        let plan = batch::yielding(plan)?;
        let runtime = batch::runtime()?;
        let rows = runtime.block_on(async { execute_stream(plan, state.task_ctx()) })?;
        let schema = self.schema.clone();
        Ok(Run { failures, queues, pool, runtime, rows: Some(rows), schema, spilled })
    }

    /// The hint of an error about memory.
    fn hint(&self, has_disk: bool) -> &'static str {
        if has_disk || !self.spills {
            "SET millstream.state_bytes = '…' allows it more memory"
        } else {
            "SET millstream.spill_dir = '…' lets it write to a disk; SET millstream.state_bytes = \
             '…' allows it more memory"
        }
    }
}

impl LocalPlan for WorkerPlan {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn open(
        &self,
        memory: LocalMemory,
        is_stopped: StopCheck,
    ) -> Result<Box<dyn LocalRun>, DataflowError> {
        let failures = Failures { name: self.name, hint: self.hint(memory.disk.is_some()) };
        let run = self.opened(memory, is_stopped).map_err(|error| failures.of(&error))?;
        Ok(Box::new(run))
    }

    fn spills(&self) -> bool {
        self.spills
    }

    fn passes_on(&self, input: usize, column: usize) -> Option<usize> {
        *self.passed.get(input)?.get(column)?
    }

    fn describe(&self, _: &[Vec<String>]) -> Description {
        Description { name: self.name, properties: self.properties.clone() }
    }
}

/// The names of the operators of a plan, from its leaves on, each once.
fn operators_of(plan: &Arc<dyn ExecutionPlan>, to: &mut Vec<String>) {
    plan.children().into_iter().for_each(|input| operators_of(input, to));
    let name = plan.name().trim_end_matches("Exec");
    let is_new = !to.iter().any(|known| known == name);
    if is_new && !["StreamingTable", "Cooperative", "Projection", "Apart"].contains(&name) {
        to.push(name.to_owned());
    }
}

/// The name and the hint for errors of a run.
struct Failures {
    name: &'static str,
    hint: &'static str,
}

impl Failures {
    fn of(&self, error: &DataFusionError) -> DataflowError {
        batch::failure(error, self.name, self.hint).into()
    }
}

/// A run of a [`WorkerPlan`] on one worker.
struct Run {
    failures: Failures,
    queues: Queues,
    pool: Arc<Pool>,
    runtime: tokio::runtime::Runtime,
    /// `None` once it has emitted all rows, or failed.
    rows: Option<SendableRecordBatchStream>,
    schema: SchemaRef,
    spilled: Arc<Mutex<Spilled>>,
}

impl Run {
    /// Bytes of rows that the plan has not read yet.
    fn waiting(&self) -> usize {
        self.queues.iter().map(|queue| queue.lock().bytes).sum()
    }
}

impl LocalRun for Run {
    fn push(&mut self, input: usize, rows: RecordBatch) {
        if self.rows.is_some() {
            self.queues[input].push(rows);
        }
    }

    fn end(&mut self, input: usize) {
        self.queues[input].end();
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        bytes_max: usize,
    ) -> Poll<Option<Result<RecordBatch, DataflowError>>> {
        self.pool.bytes_max.store(bytes_max.saturating_sub(self.waiting()), Ordering::Relaxed);
        let Some(rows) = &mut self.rows else { return Poll::Ready(None) };
        // Tokio's budget limits how long DataFusion's operators run. An operator that used it up is
        // woken only when the runtime continues.
        let polled = self.runtime.block_on(async {
            let polled = poll_fn(|_| Poll::Ready(rows.poll_next_unpin(cx))).await;
            if polled.is_pending() {
                tokio::task::yield_now().await;
            }
            polled
        });
        let Poll::Ready(next) = polled else { return Poll::Pending };
        let next = next.map(|rows| rows.and_then(|rows| batch::renamed(rows, &self.schema)));
        if !matches!(next, Some(Ok(_))) {
            self.rows = None;
            self.queues.iter().for_each(|queue| queue.clear());
        }
        Poll::Ready(next.map(|rows| rows.map_err(|error| self.failures.of(&error))))
    }

    fn bytes(&self) -> usize {
        self.waiting() + self.pool.reserved()
    }

    fn unread_bytes(&self, input: usize) -> usize {
        self.queues[input].lock().bytes
    }

    fn spilled(&self) -> Spilled {
        *self.spilled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// By input.
type Queues = Vec<Arc<Queue>>;

/// The rows of an input that the plan has not read yet.
struct Queue {
    schema: SchemaRef,
    state: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    rows: VecDeque<(RecordBatch, usize)>,
    bytes: usize,
    ended: bool,
    /// The waker of the plan, if it has found no rows.
    asks: Option<Waker>,
    /// If the plan looks at all pairs of rows of its inputs: the rows that it has read of all, and
    /// of this one.
    pairs: Option<Arc<AtomicUsize>>,
    read: usize,
    /// Whether the plan is to be polled anew for the next rows.
    rests: bool,
}

impl Waiting {
    /// The next rows. Rows that meet all rows of other inputs come in slices of [`PAIRS_MAX`]
    /// pairs: DataFusion looks at all of them before it returns.
    fn next(&mut self) -> DfResult<Option<RecordBatch>> {
        let Some((rows, bytes)) = self.rows.pop_front() else { return Ok(None) };
        let Some(pairs) = &self.pairs else {
            self.bytes -= bytes;
            return Ok(Some(rows));
        };
        self.rests = true;
        let others = pairs.load(Ordering::Relaxed) - self.read;
        let rows_max = (PAIRS_MAX / others.max(1)).max(1);
        let count = rows.num_rows().min(rows_max);
        self.read += count;
        pairs.fetch_add(count, Ordering::Relaxed);
        if count == rows.num_rows() {
            self.bytes -= bytes;
            return Ok(Some(rows));
        }
        self.rows.push_front((rows.slice(count, rows.num_rows() - count), bytes));
        // A slice would be counted with the memory of all rows where it is kept.
        let first = UInt32Array::from_iter_values(0..count as u32);
        Ok(Some(take_record_batch(&rows, &first)?))
    }
}

impl Queue {
    fn new(schema: SchemaRef) -> Self {
        Self { schema, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, rows: RecordBatch) {
        let mut waiting = self.lock();
        let bytes = rows.get_array_memory_size();
        waiting.bytes += bytes;
        waiting.rows.push_back((rows, bytes));
        waiting.asks.take().into_iter().for_each(Waker::wake);
    }

    fn end(&self) {
        let mut waiting = self.lock();
        waiting.ended = true;
        waiting.asks.take().into_iter().for_each(Waker::wake);
    }

    fn clear(&self) {
        let mut waiting = self.lock();
        (waiting.rows, waiting.bytes) = (VecDeque::new(), 0);
    }

    fn poll(&self, cx: &Context<'_>) -> Poll<Option<DfResult<RecordBatch>>> {
        let mut waiting = self.lock();
        if std::mem::take(&mut waiting.rests) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        match waiting.next()? {
            Some(rows) => Poll::Ready(Some(self.as_leaf(&rows))),
            None if waiting.ended => Poll::Ready(None),
            None => {
                waiting.asks = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// The columns of the leaf, without the keys of the exchange behind them.
    fn as_leaf(&self, rows: &RecordBatch) -> DfResult<RecordBatch> {
        let columns = rows.columns()[..self.schema.fields().len()].to_vec();
        let options = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
        Ok(RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)?)
    }
}

/// The rows of an input as DataFusion reads them.
struct Rows(Arc<Queue>);

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("rows of an input")
    }
}

impl PartitionStream for Rows {
    fn schema(&self) -> &SchemaRef {
        &self.0.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let queue = self.0.clone();
        let rows = stream::poll_fn(move |cx| queue.poll(cx));
        Box::pin(RecordBatchStreamAdapter::new(self.0.schema.clone(), rows))
    }
}

/// The memory of DataFusion's operators: as much as the worker currently allows.
#[derive(Debug)]
struct Pool {
    bytes_max: AtomicUsize,
    /// Bytes of operators that can spill, and of operators that cannot.
    spillable: AtomicUsize,
    others: AtomicUsize,
}

impl Pool {
    fn new(bytes_max: usize) -> Self {
        let (spillable, others) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { bytes_max: AtomicUsize::new(bytes_max), spillable, others }
    }

    fn held(&self, of: &MemoryReservation) -> &AtomicUsize {
        if of.consumer().can_spill() { &self.spillable } else { &self.others }
    }
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl MemoryPool for Pool {
    fn name(&self) -> &str {
        "state of a worker"
    }

    fn grow(&self, of: &MemoryReservation, additional: usize) {
        self.held(of).fetch_add(additional, Ordering::Relaxed);
    }

    fn shrink(&self, of: &MemoryReservation, shrink: usize) {
        self.held(of).fetch_sub(shrink, Ordering::Relaxed);
    }

    fn try_grow(&self, of: &MemoryReservation, additional: usize) -> DfResult<()> {
        let bytes_max = self.bytes_max.load(Ordering::Relaxed);
        let reserved = self.reserved();
        let spillable = self.spillable.load(Ordering::Relaxed).saturating_add(additional);
        let fits = reserved.saturating_add(additional) <= bytes_max
            && (!of.consumer().can_spill() || spillable <= bytes_max / SPILLABLE_PART);
        if fits {
            self.grow(of, additional);
            return Ok(());
        }
        let (most, has) = (human(bytes_max as u64), human(reserved as u64));
        Err(resources_datafusion_err!(
            "its rows do not fit millstream.state_bytes: this worker has {most} for it, of which \
             {has} are taken"
        ))
    }

    fn reserved(&self) -> usize {
        self.spillable.load(Ordering::Relaxed) + self.others.load(Ordering::Relaxed)
    }

    fn memory_limit(&self) -> MemoryLimit {
        MemoryLimit::Finite(self.bytes_max.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, Int64Array};
    use arrow::datatypes::{DataType, Field, Int64Type, Schema};

    use super::*;

    fn batch(values: std::ops::Range<i64>) -> RecordBatch {
        let column = Arc::new(Int64Array::from_iter_values(values)) as _;
        RecordBatch::try_from_iter([("v", column)]).expect("a batch")
    }

    /// The rows of the batches that are read until the queue ends, and how often it was pending.
    fn read(queue: &Queue) -> (Vec<Vec<i64>>, usize) {
        let (mut batches, mut pending) = (vec![], 0);
        loop {
            match queue.poll(&Context::from_waker(Waker::noop())) {
                Poll::Ready(Some(rows)) => {
                    let rows = rows.expect("rows");
                    batches.push(rows.column(0).as_primitive::<Int64Type>().values().to_vec());
                }
                Poll::Ready(None) => return (batches, pending),
                Poll::Pending => pending += 1,
            }
        }
    }

    #[test]
    fn rows_that_meet_all_rows_of_another_input_are_read_in_slices() {
        let schema = Arc::new(Schema::new(vec![Field::new("v", DataType::Int64, true)]));
        let queues = [Queue::new(schema.clone()), Queue::new(schema)];
        let all = Arc::<AtomicUsize>::default();
        for (queue, rows) in queues.iter().zip([100_000, 8_192]) {
            queue.lock().pairs = Some(all.clone());
            queue.push(batch(0..rows));
            queue.push(batch(rows..rows + 1));
            queue.end();
        }
        // Nothing has been read of the other input.
        let (build, pending) = read(&queues[0]);
        assert_eq!((build.len(), pending), (2, 2));
        let (probe, pending) = read(&queues[1]);
        let rows_max = PAIRS_MAX / 100_001;
        assert!(probe.iter().all(|rows| rows.len() <= rows_max));
        assert_eq!(probe.len(), 8_192_usize.div_ceil(rows_max) + 1);
        assert_eq!(pending, probe.len());
        assert_eq!(probe.concat(), (0..8_193).collect::<Vec<i64>>());
        assert!(queues.iter().all(|queue| queue.lock().bytes == 0));

        // A plan that does not look at pairs reads what came.
        let queue = Queue::new(queues[0].schema.clone());
        queue.push(batch(0..8_192));
        queue.end();
        let (rows, pending) = read(&queue);
        assert_eq!((rows.len(), pending), (1, 0));
    }
}
