//! Loads: every worker cuts its rows into partitions and these into strips.
//!
//! ```text
//! batch ─▶ partition ─▶ rows that wait ─▶ full strip ─▶ blocks ─▶ strips that wait ─▶ pool
//!                       'load.bytes'                             while it has no room
//! ```
//!
//! A load publishes a version when it ends, or each 'commit.interval' ([`super::growing`]), or with
//! each checkpoint of its job ([`super::staged`]), or when the end of that is recorded
//! ([`super::recorded`]).

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{ArrayRef, UInt32Array};
use arrow::compute::{cast, concat_batches, take_record_batch};
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use dataflow::connector::WriteMode;
use dataflow::detach;
use dataflow::error::ConnectorError;
use dataflow::peers::PeerCheck;
use dataflow::sink::{
    ExclusiveTarget, Placement, Publishing, Room, Sink, SinkVisibility, SinkWriter, WriterContext,
};
use pool::PoolError;
use pool::access::{EncodedStrip, LoadMode, Loading, PoolAccess, StripWriter, TableLoad};
use pool::manifest::{CachedOrigin, Definition, Strip};

use super::PoolOptions;
use super::columns::StoredColumns;
use super::commit_clock::{CommitClock, CommitEvery};
use super::encode;
use super::errors::{damaged, refused};
use super::growing::Growth;
use super::lists::ListLoading;
use super::partition::Partitions;
use super::recorded::{LastWriter, RecordedWriter};
use super::staged::{StagedRows, StagingWriter, patiently};

/// A load of a table.
pub(super) struct PoolSink {
    access: Arc<dyn PoolAccess>,
    load: TableLoad,
    /// The columns and buckets of its rows.
    definition: Definition,
    columns: StoredColumns,
    load_bytes: usize,
    /// How often a version appears; `None`: at the end.
    every: Option<CommitEvery>,
    /// The load of this process, once its first worker has opened it.
    loading: Mutex<Option<Begun>>,
    /// The writer with whose commit the version of a job that keeps checkpoints appears.
    last_writer: LastWriter,
}

/// A load that has begun.
#[derive(Clone)]
struct Begun {
    loading: Arc<dyn Loading>,
    /// Of a table that grows.
    clock: Option<Arc<CommitClock>>,
}

impl PoolSink {
    pub(super) fn new(
        access: &Arc<dyn PoolAccess>,
        options: &PoolOptions,
        definition: Definition,
        mode: WriteMode,
    ) -> Result<Self, ConnectorError> {
        let rows = definition.of_rows().map_err(refused)?;
        let columns = StoredColumns::of(&rows, &options.table)?;
        let mode = match mode {
            WriteMode::Create => LoadMode::Create,
            WriteMode::Insert => LoadMode::Append,
            WriteMode::Overwrite => LoadMode::Overwrite,
        };
        Ok(Self {
            access: Arc::clone(access),
            load: TableLoad { table: options.table.clone(), definition, mode, origin: None },
            definition: rows,
            columns,
            load_bytes: options.load_bytes,
            every: options.every,
            loading: Mutex::default(),
            last_writer: LastWriter::default(),
        })
    }

    /// The load of a cache: it makes the table, or replaces its rows.
    pub(super) fn of_cache(
        access: &Arc<dyn PoolAccess>,
        options: &PoolOptions,
        definition: Definition,
        origin: CachedOrigin,
    ) -> Result<Self, ConnectorError> {
        let sink = Self::new(access, options, definition, WriteMode::Overwrite)?;
        Ok(Self { load: TableLoad { origin: Some(origin), ..sink.load }, ..sink })
    }

    pub(super) fn load(&self) -> &TableLoad {
        &self.load
    }

    /// Begins a load. A table that is declared and not there is made by the first statement that
    /// writes it.
    pub(super) fn begun(
        &self,
        begin: impl Fn(&TableLoad) -> Result<Arc<dyn Loading>, PoolError>,
    ) -> Result<Arc<dyn Loading>, ConnectorError> {
        let begun = match begin(&self.load) {
            Err(PoolError::NoTable { .. }) if self.load.mode != LoadMode::Create => {
                begin(&TableLoad { mode: LoadMode::Create, ..self.load.clone() })
            }
            begun => begun,
        };
        let loading = begun.map_err(refused)?;
        if self.load.definition.is_listed() {
            return Ok(Arc::new(ListLoading::new(loading)));
        }
        Ok(loading)
    }

    /// The load, which the first worker of a process begins. One that is `recorded` does not grow,
    /// and waits until the load of a run before is over.
    fn loading(&self, recorded: bool) -> Result<Begun, ConnectorError> {
        let mut begun = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(begun) = &*begun {
            return Ok(begun.clone());
        }
        let loading = self.begun(|load| patiently(recorded, || self.access.begin(load)))?;
        let every = self.every.filter(|_| !recorded);
        let clock = every.map(|every| self.clock(every)).transpose()?;
        Ok(begun.insert(Begun { loading, clock }).clone())
    }

    /// The clock of a table that grows.
    fn clock(&self, every: CommitEvery) -> Result<Arc<CommitClock>, ConnectorError> {
        let table = &self.load.table;
        let clock = CommitClock::start(every).map_err(|error| ConnectorError::Io {
            place: format!("pool table '{table}'"),
            message: format!("the system gives no thread: {error}"),
            hint: None,
        })?;
        Ok(Arc::new(clock))
    }
}

impl Sink for PoolSink {
    fn placement(&self) -> Placement {
        Placement::Everywhere
    }

    fn replaces(&self) -> Option<ExclusiveTarget> {
        Some(ExclusiveTarget::whole(format!("pool table '{}'", self.load.table)))
    }

    /// A table that grows does so with each checkpoint. Any other load is one version, at the end.
    fn staging(&self) -> SinkVisibility {
        if self.grows() { SinkVisibility::ByCheckpoint } else { SinkVisibility::AtEnd }
    }

    fn mark(&self) -> Result<Option<[u64; 2]>, ConnectorError> {
        self.version_and_rows().map(Some)
    }

    fn publishes_end(&self) -> bool {
        !self.grows()
    }

    fn has_lost(&self, staged: &[Vec<u8>], mark: Option<[u64; 2]>) -> Result<bool, ConnectorError> {
        if self.grows() { Ok(false) } else { self.has_lost_load(staged, mark) }
    }

    fn stages_rows(&self) -> bool {
        self.grows()
    }

    fn publish(&self, staged: &[Vec<u8>], how: Publishing) -> Result<(), ConnectorError> {
        if !self.grows() {
            return self.last_writer.commit();
        }
        let staged = staged.iter().map(|staged| StagedRows::of(&self.load.table, staged));
        self.publish_rows(staged.collect::<Result<_, _>>()?, how)
    }

    fn open(&self, context: &WriterContext) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        if context.staging.is_some() && self.grows() {
            let (table, columns) = (self.load.table.clone(), self.columns.clone());
            return Ok(Box::new(StagingWriter::new(table, columns)));
        }
        if context.staging.is_some() {
            let Begun { loading, .. } = self.loading(true)?;
            let writer = self.writer(&loading, context, None)?;
            return Ok(Box::new(RecordedWriter::new(writer, context.worker, &self.last_writer)));
        }
        let Begun { loading, clock } = self.loading(false)?;
        // One worker of the job says what is promised.
        if let Some(every) = self.every.filter(|_| context.worker == 0) {
            tracing::warn!(
                "pool table '{}' grows by a version each {:?}, at least once: what a job that \
                 fails has committed stays, and is there twice when it is run again",
                self.load.table,
                every.interval
            );
        }
        let growth = clock.map(|clock| Growth::new(&clock, context));
        Ok(Box::new(self.writer(&loading, context, growth)?))
    }
}

impl PoolSink {
    /// Whether a version appears before the end.
    pub(super) fn grows(&self) -> bool {
        self.every.is_some() && self.load.mode == LoadMode::Append
    }

    pub(super) fn access(&self) -> &dyn PoolAccess {
        &*self.access
    }

    /// The writer of a worker.
    pub(super) fn writer(
        &self,
        loading: &Arc<dyn Loading>,
        context: &WriterContext,
        growth: Option<Growth>,
    ) -> Result<PoolWriter, ConnectorError> {
        let writer = loading.writer(context.worker, context.waker.clone()).map_err(refused)?;
        Ok(PoolWriter {
            table: self.load.table.clone(),
            columns: self.columns.clone(),
            strip_rows: self.definition.strip_rows.max(1) as usize,
            load_bytes: self.load_bytes,
            partitions: Partitions::of(&self.definition),
            waiting: BTreeMap::new(),
            waiting_bytes: 0,
            strips: VecDeque::new(),
            written: 0,
            replaced: vec![],
            growth,
            failed: None,
            writer,
            loading: Arc::clone(loading),
        })
    }
}

/// Rows of a partition that do not fill a strip.
#[derive(Default)]
pub(super) struct Waiting {
    batches: Vec<RecordBatch>,
    rows: usize,
    bytes: usize,
    /// How many of the rows were handed in as a short strip …
    submitted: usize,
    /// … which lies here, once it is known.
    pub(super) short: Option<Strip>,
}

impl Waiting {
    /// All rows, if some of them were not handed in; they are then.
    pub(super) fn new_rows(
        &mut self,
        schema: &SchemaRef,
        table: &str,
    ) -> Result<Option<RecordBatch>, ConnectorError> {
        if self.rows == self.submitted {
            return Ok(None);
        }
        let rows = concat_batches(schema, &self.batches);
        let rows = rows.map_err(|error| damaged(table, error.to_string()))?;
        self.batches = vec![rows.clone()];
        self.submitted = self.rows;
        Ok(Some(rows))
    }
}

/// The writer of a worker.
pub(super) struct PoolWriter {
    pub(super) table: String,
    pub(super) columns: StoredColumns,
    strip_rows: usize,
    load_bytes: usize,
    partitions: Partitions,
    /// By partition.
    pub(super) waiting: BTreeMap<u32, Waiting>,
    waiting_bytes: usize,
    /// Strips for which the pool had no room.
    pub(super) strips: VecDeque<(u32, EncodedStrip)>,
    /// How many strips were written since the last were handed in.
    pub(super) written: usize,
    /// Short strips that those which are written take the place of.
    pub(super) replaced: Vec<(u32, Strip)>,
    /// Of a table that grows.
    pub(super) growth: Option<Growth>,
    /// Why it has failed, to be told by the next call that can.
    pub(super) failed: Option<ConnectorError>,
    pub(super) writer: Box<dyn StripWriter>,
    /// The load that the writer is part of.
    pub(super) loading: Arc<dyn Loading>,
}

/// The servers that a load goes to.
struct LoadedServers(Arc<dyn Loading>);

impl PeerCheck for LoadedServers {
    fn check(&self) -> Result<(), ConnectorError> {
        self.0.check().map_err(refused)
    }

    fn failed(&self, reason: &str) {
        self.0.failed(reason);
    }
}

impl PoolWriter {
    /// Keeps rows of a partition, and writes the strips that they fill.
    fn put(&mut self, partition: u32, batch: RecordBatch) -> Result<(), ConnectorError> {
        let bytes = batch.get_array_memory_size();
        let waiting = self.waiting.entry(partition).or_default();
        waiting.rows += batch.num_rows();
        waiting.bytes += bytes;
        waiting.batches.push(batch);
        self.waiting_bytes += bytes;
        if waiting.rows >= self.strip_rows {
            self.cut(partition, false)?;
        }
        while self.waiting_bytes > self.load_bytes {
            let largest = self.waiting.iter().max_by_key(|(_, waiting)| waiting.bytes);
            let Some((&largest, _)) = largest else { break };
            self.cut(largest, true)?;
        }
        Ok(())
    }

    /// Cuts full strips from the rows of a partition; the rest is a short one, or waits.
    fn cut(&mut self, partition: u32, whole: bool) -> Result<(), ConnectorError> {
        let Some(waiting) = self.waiting.remove(&partition) else { return Ok(()) };
        self.waiting_bytes -= waiting.bytes;
        if whole && waiting.rows == waiting.submitted {
            return Ok(());
        }
        self.replaced.extend(waiting.short.map(|strip| (partition, strip)));
        let rows = concat_batches(&self.columns.schema, &waiting.batches);
        let rows = rows.map_err(|error| damaged(&self.table, error.to_string()))?;
        let mut from = 0;
        while rows.num_rows() - from >= self.strip_rows {
            self.write_strip(partition, &rows.slice(from, self.strip_rows));
            from += self.strip_rows;
        }
        let rest = rows.slice(from, rows.num_rows() - from);
        if rest.num_rows() > 0 && whole {
            self.write_strip(partition, &rest);
        } else if rest.num_rows() > 0 {
            let rest = detach(&rest);
            let bytes = rest.get_array_memory_size();
            let rows = rest.num_rows();
            let waiting = Waiting { rows, bytes, batches: vec![rest], ..Waiting::default() };
            self.waiting_bytes += bytes;
            self.waiting.insert(partition, waiting);
        }
        Ok(())
    }

    pub(super) fn write_strip(&mut self, partition: u32, rows: &RecordBatch) {
        self.written += 1;
        let strip = encode::strip(rows.columns(), &self.columns.layouts, rows.num_rows());
        self.strips.push_back((partition, strip));
        self.hand_on();
    }

    /// Gives the pool the strips for which it has room.
    pub(super) fn hand_on(&mut self) {
        while self.failed.is_none() && !self.strips.is_empty() {
            let written = match self.writer.has_room() {
                Ok(false) => return,
                Ok(true) => match self.strips.pop_front() {
                    Some((partition, strip)) => self.writer.write(partition, strip),
                    None => return,
                },
                Err(error) => Err(error),
            };
            self.failed = written.err().map(refused);
        }
    }

    fn check(&mut self) -> Result<(), ConnectorError> {
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Goes on as far as it goes without waiting.
    fn go_on(&mut self) {
        self.hand_on();
        if self.failed.is_none()
            && let Err(error) = self.grow()
        {
            self.failed = Some(error);
        }
    }

    /// Divides rows among partitions.
    pub(super) fn divide(&mut self, batch: RecordBatch) -> Result<(), ConnectorError> {
        if self.partitions.is_one() {
            return self.put(0, batch);
        }
        let partitions = self.partitions.of_rows(batch.columns(), batch.num_rows());
        let partitions = partitions.map_err(|message| damaged(&self.table, message))?;
        let mut rows: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (row, partition) in (0..).zip(partitions) {
            rows.entry(partition).or_default().push(row);
        }
        for (partition, rows) in rows {
            let own = take_record_batch(&batch, &UInt32Array::from(rows));
            let own = own.map_err(|error| damaged(&self.table, error.to_string()))?;
            self.put(partition, own)?;
        }
        Ok(())
    }

    /// Whether all strips lie in sealed extents; no row follows.
    fn is_sealed(&mut self) -> Result<bool, ConnectorError> {
        self.hand_on();
        self.check()?;
        self.writer.replace(std::mem::take(&mut self.replaced));
        Ok(self.strips.is_empty() && self.writer.is_sealed().map_err(refused)?)
    }
}

/// The columns of a table as they are stored, in memory of their own.
pub(super) fn stored(
    batch: &RecordBatch,
    schema: &SchemaRef,
    table: &str,
) -> Result<RecordBatch, ConnectorError> {
    let columns: Result<Vec<ArrayRef>, _> = batch
        .columns()
        .iter()
        .zip(schema.fields())
        .map(|(column, field)| {
            if column.data_type() == field.data_type() {
                return Ok(Arc::clone(column));
            }
            cast(column, field.data_type())
        })
        .collect();
    columns.and_then(|columns| RecordBatch::try_new(Arc::clone(schema), columns)).map_err(|error| {
        ConnectorError::Io {
            place: format!("pool table '{table}'"),
            message: format!("rows cannot be stored: {error}"),
            hint: None,
        }
    })
}

impl SinkWriter for PoolWriter {
    fn room(&mut self) -> Room {
        self.go_on();
        let is_handing_in = self.growth.as_ref().is_some_and(Growth::is_handing_in);
        let is_ready = self.strips.is_empty() && !is_handing_in;
        if is_ready || self.failed.is_some() { Room::Ready } else { Room::Full }
    }

    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        self.check()?;
        let mut batch = stored(batch, &self.columns.schema, &self.table)?;
        // Rows of several partitions are copied when they are divided.
        if self.partitions.is_one() || self.growth.is_some() {
            batch = detach(&batch);
        }
        let batch = match &mut self.growth {
            Some(growth) => growth.keep(batch),
            None => Some(batch),
        };
        if let Some(batch) = batch {
            self.divide(batch)?;
        }
        self.check()
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        self.go_on();
        self.check()
    }

    fn peer_check(&self) -> Option<Arc<dyn PeerCheck>> {
        Some(Arc::new(LoadedServers(Arc::clone(&self.loading))))
    }

    fn drain(&mut self) -> Result<Room, ConnectorError> {
        if self.growth.as_ref().is_some_and(Growth::is_handing_in) {
            self.go_on();
            self.check()?;
            if self.growth.as_ref().is_some_and(Growth::is_handing_in) {
                return Ok(Room::Full);
            }
        }
        if let Some(growth) = &mut self.growth {
            growth.end();
        }
        while let Some((&partition, _)) = self.waiting.first_key_value() {
            self.cut(partition, true)?;
        }
        Ok(if self.is_sealed()? { Room::Ready } else { Room::Full })
    }

    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        self.writer.commit().map_err(refused)
    }
}
