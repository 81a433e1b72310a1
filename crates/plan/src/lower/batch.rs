//! The stage that runs when all input has been read: `ORDER BY`, `LIMIT`, joins, and whatever else
//! does not stream.
//!
//! The streaming parts of a statement are gathered on worker 0, one [`Part`] each. When the last of
//! them has ended well, DataFusion runs the rest of the plan over their rows and its result goes
//! into the statement's own sink. That sink is opened with the first part, so that one that cannot
//! be written fails before anything is read; it is committed only after the whole result has been
//! written.
//!
//! Memory is one pool for the rows gathered and for DataFusion's operators. Sorts and aggregates
//! spill to disk when it is full; rows gathered do not.

mod sliding;
pub(crate) mod stoppable;
mod unnested;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;

use arrow::array::{Array, ArrayData, ArrayRef, RecordBatch, RecordBatchOptions, make_array};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow::datatypes::SchemaRef;
use dataflow::error::ConnectorError;
use dataflow::gauge::SinkGauge;
use dataflow::peers::PeerCheck;
use dataflow::sink::{ExclusiveTarget, Placement, Room, Sink, SinkWriter, WriterContext};
use datafusion::catalog::TableProvider;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::datasource::{MemTable, provider_as_source};
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryConsumer, MemoryReservation};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::{LogicalPlan, TableSource};
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::{ExecutionPlan, SendableRecordBatchStream, execute_stream};
use futures::StreamExt;

use self::stoppable::StoppablePool;
use crate::expr::checked;
use crate::expr::conform::same_type;
use crate::expr::equality::with_equal_keys;
use crate::expr::failure::{message_of, root};
use crate::logical::windows::expanded;
use crate::lower::step::located::{LocatedFailure, locating_failures};
use crate::text::wording::runtime_message;

/// The rest of a statement's plan.
pub(crate) struct BatchStage {
    plan: LogicalPlan,
    parts: usize,
    state: SessionState,
    sink: Arc<dyn Sink>,
    schema: SchemaRef,
    memory_bytes: usize,
    interrupt: Arc<AtomicBool>,
    run: Mutex<Option<Run>>,
}

/// One run of a stage.
struct Run {
    gathered: Vec<Vec<RecordBatch>>,
    running: usize,
    state: SessionState,
    reservation: MemoryReservation,
    writer: Box<dyn SinkWriter>,
    rest: Rest,
    /// Of the part that asked last: they are all of one worker.
    gauge: Option<Arc<SinkGauge>>,
}

/// How far the rest of the plan is.
enum Rest {
    /// Parts are still gathered.
    Waiting,
    /// It gives rows.
    Running(tokio::runtime::Runtime, SendableRecordBatchStream),
    /// It has given all rows.
    Over,
}

impl Run {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        match &self.gauge {
            Some(gauge) => gauge.write(self.writer.as_mut(), batch),
            None => self.writer.write(batch),
        }
    }

    fn drain(&mut self) -> Result<Room, ConnectorError> {
        match &self.gauge {
            Some(gauge) => gauge.drain(self.writer.as_mut()),
            None => self.writer.drain(),
        }
    }

    /// The next rows of the rest, once it runs.
    fn next(&mut self, interrupt: &AtomicBool) -> Result<Option<RecordBatch>, ConnectorError> {
        let Rest::Running(runtime, rows) = &mut self.rest else { return Ok(None) };
        // The operators yield now and then; each time this looks whether to go on.
        let next = std::future::poll_fn(|context| {
            if interrupt.load(Ordering::Relaxed) {
                Poll::Ready(Err(interrupted()))
            } else {
                rows.poll_next_unpin(context).map(Ok)
            }
        });
        let batch = runtime.block_on(next)?.transpose();
        let batch = batch.map_err(|error| failed_or_interrupted(&error, interrupt))?;
        if batch.is_none() {
            self.rest = Rest::Over;
        }
        Ok(batch)
    }

    fn commit(self) -> Result<(), ConnectorError> {
        match self.gauge {
            Some(gauge) => gauge.commit(self.writer),
            None => self.writer.commit(),
        }
    }
}

/// A leaf of the rest of a plan: the rows of a streaming part.
#[derive(Debug)]
pub(crate) struct GatheredRows {
    pub(crate) part: usize,
    pub(crate) schema: SchemaRef,
}

impl TableSource for GatheredRows {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}

impl BatchStage {
    /// A stage for `plan`, whose leaves are [`GatheredRows`] of `parts` parts, into a sink with
    /// columns of `schema`. Set to true, `interrupt` ends it while it runs.
    ///
    /// # Errors
    /// When DataFusion cannot run the plan.
    pub(crate) fn new(
        plan: LogicalPlan,
        parts: usize,
        state: &SessionState,
        sink: Arc<dyn Sink>,
        schema: SchemaRef,
        memory_bytes: usize,
        interrupt: Arc<AtomicBool>,
    ) -> DfResult<Arc<Self>> {
        let plan = prepared(plan)?;
        let (state, run) = (state.clone(), Mutex::new(None));
        let stage = Self { plan, parts, state, sink, schema, memory_bytes, interrupt, run };
        // Refuses what cannot be planned now, rather than when everything has been read.
        let empty = stage.filled(&vec![vec![]; parts])?;
        let runs = runtime()?.block_on(physical(&empty, &stage.state))?.schema();
        let mut columns = stage.schema.fields().iter().zip(runs.fields());
        columns.try_for_each(|(column, runs)| same_type(column, runs.data_type()))?;
        Ok(Arc::new(stage))
    }

    /// The sink of a part.
    pub(crate) fn part(self: &Arc<Self>, part: usize) -> Arc<dyn Sink> {
        Arc::new(Part { stage: self.clone(), part })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Run>> {
        self.run.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn open(&self, context: &WriterContext) -> Result<(), ConnectorError> {
        let mut run = self.lock();
        if run.is_none() {
            let pool = Arc::new(GreedyMemoryPool::new(self.memory_bytes));
            let interrupt = self.interrupt.clone();
            let is_stopped = Arc::new(move || interrupt.load(Ordering::Relaxed));
            let runtime = RuntimeEnvBuilder::new()
                .with_memory_pool(Arc::new(StoppablePool::new(pool, is_stopped)))
                .build_arc()
                .map_err(|e| failed(&e))?;
            let consumer = MemoryConsumer::new("gathered rows");
            *run = Some(Run {
                gathered: vec![vec![]; self.parts],
                running: self.parts,
                reservation: consumer.register(&runtime.memory_pool),
                state: SessionStateBuilder::new_from_existing(self.state.clone())
                    .with_runtime_env(runtime)
                    .build(),
                writer: self.sink.open(context)?,
                rest: Rest::Waiting,
                gauge: None,
            });
        }
        Ok(())
    }

    fn keep(&self, part: usize, batch: &RecordBatch) -> Result<(), ConnectorError> {
        let owned = own(batch).map_err(|e| failed(&e.into()))?;
        match &mut *self.lock() {
            Some(run) => {
                let grown = run.reservation.try_grow(owned.get_array_memory_size());
                grown.map_err(|error| failed_or_interrupted(&error, &self.interrupt))?;
                run.gathered[part].push(owned);
                Ok(())
            }
            None => Err(broken()),
        }
    }

    /// A part has all of its rows. Gives whether it is the last: then the rest begins to run.
    fn gathered(&self) -> Result<bool, ConnectorError> {
        let mut guard = self.lock();
        let Some(run) = &mut *guard else { return Err(broken()) };
        run.running -= 1;
        if run.running > 0 {
            return Ok(false);
        }
        let plan = self.filled(&run.gathered).map_err(|e| failed(&e))?;
        run.gathered.clear();
        let runtime = runtime().map_err(|e| failed(&e))?;
        let rows = runtime.block_on(async {
            let plan = physical(&plan, &run.state).await.and_then(yielding)?;
            execute_stream(plan, run.state.task_ctx())
        });
        run.rest = Rest::Running(runtime, rows.map_err(|e| failed(&e))?);
        Ok(true)
    }

    /// Runs the rest as far as the sink has room: [`Room::Ready`] when it has taken all rows.
    fn run_rest(&self) -> Result<Room, ConnectorError> {
        let mut guard = self.lock();
        let Some(run) = &mut *guard else { return Err(broken()) };
        while run.writer.room() == Room::Ready {
            let Some(batch) = run.next(&self.interrupt)? else { return run.drain() };
            run.write(&renamed(batch, &self.schema).map_err(|e| failed(&e))?)?;
        }
        Ok(Room::Full)
    }

    /// Publishes the rows of the rest.
    fn commit(&self) -> Result<(), ConnectorError> {
        self.lock().take().map_or_else(|| Err(broken()), Run::commit)
    }

    /// The plan over the rows gathered.
    fn filled(&self, gathered: &[Vec<RecordBatch>]) -> DfResult<LogicalPlan> {
        filled(&self.plan, |leaf| {
            // Streamed rows may be less nullable than in the plan, and have other names.
            let rows = gathered[leaf.part].iter().cloned();
            let rows = rows.map(|batch| renamed(batch, &leaf.schema));
            let rows = rows.collect::<DfResult<Vec<_>>>()?;
            Ok(Arc::new(MemTable::try_new(leaf.schema.clone(), vec![rows])?))
        })
    }
}

/// A plan as DataFusion runs it: its expressions are checked, and their errors have a place.
pub(crate) fn prepared(plan: LogicalPlan) -> DfResult<LogicalPlan> {
    checked::plan(locating_failures(expanded(plan)?)?)
}

/// The plan with a table in place of each [`GatheredRows`].
pub(crate) fn filled(
    plan: &LogicalPlan,
    mut table: impl FnMut(&GatheredRows) -> DfResult<Arc<dyn TableProvider>>,
) -> DfResult<LogicalPlan> {
    let filled = plan.clone().transform_up_with_subqueries(|node| match node {
        LogicalPlan::TableScan(mut scan) => {
            let Some(leaf) = scan.source.downcast_ref::<GatheredRows>() else {
                return Ok(Transformed::no(LogicalPlan::TableScan(scan)));
            };
            scan.source = provider_as_source(table(leaf)?);
            Ok(Transformed::yes(LogicalPlan::TableScan(scan)))
        }
        other => Ok(Transformed::no(other)),
    })?;
    Ok(filled.data)
}

/// Runs a plan without streaming parts to its end.
///
/// # Errors
/// DataFusion's.
pub(crate) fn collect(plan: &LogicalPlan, state: &SessionState) -> DfResult<Vec<RecordBatch>> {
    runtime()?.block_on(async {
        let plan = physical(&prepared(plan.clone())?, state).await?;
        let mut rows = execute_stream(plan, state.task_ctx())?;
        let mut all = vec![];
        while let Some(batch) = rows.next().await {
            all.push(batch?);
        }
        Ok(all)
    })
}

/// DataFusion's operators are futures that ask for tokio.
pub(crate) fn runtime() -> DfResult<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().build().map_err(DataFusionError::from)
}

/// The plan is optimized already; its keys are equal where those of streaming parts are.
pub(crate) async fn physical(
    plan: &LogicalPlan,
    state: &SessionState,
) -> DfResult<Arc<dyn ExecutionPlan>> {
    let plan = sliding::kept(with_equal_keys(plan.clone())?)?;
    unnested::bounded(state.query_planner().create_physical_plan(&plan, state).await?)
}

/// The same plan, whose operators all yield after a number of batches: by itself DataFusion asks
/// that of leaves alone, and a join may emit billions of rows for one batch of a leaf.
pub(crate) fn yielding(plan: Arc<dyn ExecutionPlan>) -> DfResult<Arc<dyn ExecutionPlan>> {
    let wrapped = |node| Ok(Transformed::yes(Arc::new(CooperativeExec::new(node)) as _));
    plan.transform_up(wrapped).map(|wrapped| wrapped.data)
}

/// The same columns under the names of `schema`.
pub(crate) fn renamed(batch: RecordBatch, schema: &SchemaRef) -> DfResult<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    let columns = batch.columns().to_vec();
    Ok(RecordBatch::try_new_with_options(schema.clone(), columns, &options)?)
}

fn failed(error: &DataFusionError) -> ConnectorError {
    failure(error, "the batch stage", "SET millstream.batch_bytes = '…' allows it more memory")
}

/// An error of DataFusion as it runs at a `place`; `more` is the hint if memory is exhausted.
pub(crate) fn failure(error: &DataFusionError, place: &str, more: &str) -> ConnectorError {
    if let DataFusionError::External(inner) = root(error)
        && let Some(LocatedFailure { message, expression, row }) = inner.downcast_ref()
    {
        let (message, expression) = (message.clone(), expression.clone());
        return ConnectorError::Expression { message, expression, row: row.clone() };
    }
    let full = matches!(error.find_root(), DataFusionError::ResourcesExhausted(_));
    ConnectorError::Io {
        place: place.into(),
        message: runtime_message(&message_of(error)),
        hint: full.then(|| more.into()),
    }
}

/// A query that is interrupted gets no memory, so that it may fail by that.
fn failed_or_interrupted(error: &DataFusionError, interrupt: &AtomicBool) -> ConnectorError {
    if interrupt.load(Ordering::Relaxed) { interrupted() } else { failed(error) }
}

fn interrupted() -> ConnectorError {
    ConnectorError::Io {
        place: "the batch stage".into(),
        message: "interrupted".into(),
        hint: None,
    }
}

fn broken() -> ConnectorError {
    ConnectorError::Io {
        place: "the batch stage".into(),
        message: "another part of the query failed".into(),
        hint: None,
    }
}

/// The sink of one streaming part.
struct Part {
    stage: Arc<BatchStage>,
    part: usize,
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "part {} of a batch stage", self.part)
    }
}

impl Sink for Part {
    fn placement(&self) -> Placement {
        Placement::Gather
    }

    fn replaces(&self) -> Option<ExclusiveTarget> {
        self.stage.sink.replaces()
    }

    fn check_new(&self) -> Result<(), ConnectorError> {
        self.stage.sink.check_new()
    }

    fn open(&self, context: &WriterContext) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        self.stage.open(context)?;
        let (stage, part) = (self.stage.clone(), self.part);
        Ok(Box::new(PartWriter { stage, part, role: None, ended: false }))
    }
}

struct PartWriter {
    stage: Arc<BatchStage>,
    part: usize,
    /// Once it has all of its rows.
    role: Option<Role>,
    ended: bool,
}

/// The role of a part that has all of its rows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Nothing: others are still gathered.
    Gathered,
    /// It was the last, and runs the rest.
    Runs,
}

impl SinkWriter for PartWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        self.stage.keep(self.part, batch)
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn hands_on(&mut self, gauge: &Arc<SinkGauge>) -> bool {
        if let Some(run) = &mut *self.stage.lock() {
            run.gauge = Some(Arc::clone(gauge));
        }
        true
    }

    fn peer_check(&self) -> Option<Arc<dyn PeerCheck>> {
        self.stage.lock().as_ref().and_then(|run| run.writer.peer_check())
    }

    fn drain(&mut self) -> Result<Room, ConnectorError> {
        let role = match self.role {
            Some(role) => role,
            None => {
                if self.stage.gathered()? {
                    Role::Runs
                } else {
                    Role::Gathered
                }
            }
        };
        self.role = Some(role);
        match role {
            Role::Gathered => Ok(Room::Ready),
            Role::Runs => self.stage.run_rest(),
        }
    }

    fn commit(mut self: Box<Self>) -> Result<(), ConnectorError> {
        self.ended = true;
        match self.role {
            Some(Role::Runs) => self.stage.commit(),
            Some(Role::Gathered) => Ok(()),
            None => Err(broken()),
        }
    }
}

impl Drop for PartWriter {
    /// A part that did not end well takes the run, and the sink's uncommitted writer, with it.
    fn drop(&mut self) {
        if !self.ended {
            *self.stage.lock() = None;
        }
    }
}

/// A copy that shares no memory with the original, which may lie in a ring's slot.
fn own(batch: &RecordBatch) -> Result<RecordBatch, arrow::error::ArrowError> {
    let columns: Vec<ArrayRef> = batch
        .columns()
        .iter()
        .map(|c| Ok(make_array(own_data(&c.to_data())?)))
        .collect::<Result<_, arrow::error::ArrowError>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(batch.schema(), columns, &options)
}

fn own_data(data: &ArrayData) -> Result<ArrayData, arrow::error::ArrowError> {
    let nulls = data.nulls().map(|nulls| {
        let bits = Buffer::from(nulls.buffer().as_slice());
        NullBuffer::new(BooleanBuffer::new(bits, nulls.offset(), nulls.len()))
    });
    let children = data.child_data().iter().map(own_data).collect::<Result<Vec<_>, _>>()?;
    ArrayData::builder(data.data_type().clone())
        .len(data.len())
        .offset(data.offset())
        .buffers(data.buffers().iter().map(|b| Buffer::from(b.as_slice())).collect())
        .child_data(children)
        .nulls(nulls)
        .align_buffers(true)
        .build()
}

#[cfg(test)]
mod tests;
