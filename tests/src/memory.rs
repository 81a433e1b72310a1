//! The connector `memory`: tables whose flows a test writes down, and sinks that it reads back.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use arrow::array::Array;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use dataflow::connector::{Connector, OptionSpec, Options, TableDef};
use dataflow::error::ConnectorError;
use dataflow::sink::{
    Placement, Publishing, Sink, SinkVisibility, SinkWriter, StagedOutput, WriterContext,
};
use dataflow::source::{Next, Position, ReaderContext, Source, Split, SplitReader};

/// What a flow does, in order.
#[derive(Debug, Clone)]
pub enum Event {
    /// It gives rows.
    Rows(RecordBatch),
    /// It is silent for so many nanoseconds.
    Silence(u64),
}

/// A table of a test.
#[derive(Debug, Clone)]
pub struct Table {
    /// Its columns.
    pub schema: SchemaRef,
    /// Whether its flows end; they do so in any case, but an unbounded source opens all of them at
    /// once.
    pub bounded: bool,
    /// Its flows.
    pub flows: Vec<Vec<Event>>,
}

/// The connector: tables by name, and what was committed to sinks.
#[derive(Clone, Default)]
pub struct Memory {
    tables: Arc<Mutex<BTreeMap<String, Arc<Table>>>>,
    committed: Arc<Mutex<BTreeMap<String, Vec<RecordBatch>>>>,
    /// The batches that writers have staged, by the number that they gave for them.
    staged: Arc<Mutex<BTreeMap<u64, Vec<RecordBatch>>>>,
    opened: Arc<Mutex<BTreeMap<String, Arc<AtomicUsize>>>>,
    placement: Option<Placement>,
}

impl Memory {
    /// No tables. Sinks gather unless `placement` says otherwise.
    pub fn new(placement: Option<Placement>) -> Self {
        Self { placement, ..Self::default() }
    }

    /// Adds a table that SQL names by `'connector' = 'memory'`.
    pub fn add(&self, name: &str, table: Table) {
        self.tables.lock().expect("not poisoned").insert(name.into(), Arc::new(table));
    }

    /// How often flows of a table were opened.
    pub fn opened(&self, name: &str) -> usize {
        self.counter(name).load(Ordering::Relaxed)
    }

    fn counter(&self, name: &str) -> Arc<AtomicUsize> {
        self.opened.lock().expect("not poisoned").entry(name.into()).or_default().clone()
    }

    /// What the writers of a sink have committed, in order; `None` if none has.
    pub fn committed(&self, name: &str) -> Option<Vec<RecordBatch>> {
        self.committed.lock().expect("not poisoned").get(name).cloned()
    }

    /// What was committed to all sinks.
    pub fn all_committed(&self) -> Vec<RecordBatch> {
        self.committed.lock().expect("not poisoned").values().flatten().cloned().collect()
    }

    /// Forgets what was committed.
    pub fn clear(&self) {
        self.committed.lock().expect("not poisoned").clear();
    }
}

impl Connector for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn options(&self) -> &'static [OptionSpec] {
        &[]
    }

    fn infer(&self, _: &Options) -> Result<Option<SchemaRef>, ConnectorError> {
        Ok(None)
    }

    fn source(
        &self,
        table: &TableDef,
        projection: &[usize],
    ) -> Result<Arc<dyn Source>, ConnectorError> {
        let tables = self.tables.lock().expect("not poisoned");
        let found = tables.get(&table.name).cloned().ok_or_else(|| ConnectorError::Io {
            place: table.name.clone(),
            message: "the test has no such table".into(),
            hint: None,
        })?;
        let schema = Arc::new(found.schema.project(projection).expect("a projection of the table"));
        let (opened, projection) = (self.counter(&table.name), projection.to_vec());
        Ok(Arc::new(MemorySource { table: found, schema, projection, opened }))
    }

    fn sink(&self, table: &TableDef) -> Result<Arc<dyn Sink>, ConnectorError> {
        Ok(Arc::new(MemorySink { name: table.name.clone(), memory: self.clone() }))
    }
}

struct MemorySource {
    table: Arc<Table>,
    schema: SchemaRef,
    projection: Vec<usize>,
    opened: Arc<AtomicUsize>,
}

impl Source for MemorySource {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn bounded(&self) -> bool {
        self.table.bounded
    }

    fn splits(&self, _: u32, time: Option<usize>) -> Result<Vec<Split>, ConnectorError> {
        let time = time.map(|column| self.projection[column]);
        let info = |(i, events): (usize, &Vec<Event>)| Split {
            name: format!("flow {i}"),
            // Every second flow says where it begins, so that both ways are used.
            event_time_min: time.filter(|_| i % 2 == 0).and_then(|column| earliest(events, column)),
            rows: Some(rows_of(events)),
            ..Split::default()
        };
        Ok(self.table.flows.iter().enumerate().map(info).collect())
    }

    fn open(
        &self,
        split: &Split,
        from: Option<&Position>,
        context: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        let mut flow = MemoryFlow {
            name: split.name.clone(),
            events: self.table.flows[split.number].clone().into(),
            projection: self.projection.clone(),
            context: context.clone(),
            silent_until_ns: 0,
            done: 0,
            rows: 0,
        };
        if let Some(from) = from {
            let [done, rows] = from.numbers(FORMAT, 1, &split.name)?;
            flow.events.drain(..done as usize);
            flow.skip(rows as usize);
            flow.done = done;
        }
        Ok(Box::new(flow))
    }
}

fn rows_of(events: &[Event]) -> u64 {
    let rows = events.iter().map(|event| match event {
        Event::Rows(batch) => batch.num_rows() as u64,
        Event::Silence(_) => 0,
    });
    rows.sum()
}

fn earliest(events: &[Event], column: usize) -> Option<i64> {
    let batches = events.iter().filter_map(|event| match event {
        Event::Rows(batch) => Some(batch),
        Event::Silence(_) => None,
    });
    let times = batches.flat_map(|batch| {
        let column = batch.column(column);
        let ticks = dataflow::time::ticks(column).expect("a time column");
        (0..column.len()).filter(|&i| column.is_valid(i)).map(|i| ticks[i]).collect::<Vec<_>>()
    });
    times.min()
}

/// The format of positions: events that are over, and rows of the next one.
const FORMAT: &str = "memory";

struct MemoryFlow {
    name: String,
    done: u64,
    rows: u64,
    events: VecDeque<Event>,
    projection: Vec<usize>,
    context: ReaderContext,
    silent_until_ns: u64,
}

impl MemoryFlow {
    /// Leaves out rows of the next event, which are fewer than it has.
    fn skip(&mut self, rows: usize) {
        if let Some(Event::Rows(batch)) = self.events.front_mut() {
            *batch = batch.slice(rows, batch.num_rows() - rows);
            self.rows += rows as u64;
        }
    }

    fn next_event(&mut self) -> Option<Event> {
        (self.done, self.rows) = (self.done + 1, 0);
        self.events.pop_front()
    }
}

impl SplitReader for MemoryFlow {
    fn next(&mut self, rows_max: usize) -> Result<Next, ConnectorError> {
        if self.context.clock.now_ns() < self.silent_until_ns {
            return Ok(Next::Wait { until_ns: self.silent_until_ns });
        }
        match self.events.front().cloned() {
            None => Ok(Next::End),
            Some(Event::Silence(ns)) => {
                self.next_event();
                self.silent_until_ns = self.context.clock.now_ns() + ns;
                Ok(Next::Wait { until_ns: self.silent_until_ns })
            }
            Some(Event::Rows(batch)) => {
                let rows = batch.num_rows().min(rows_max);
                if rows < batch.num_rows() {
                    self.skip(rows);
                } else {
                    self.next_event();
                }
                let batch = batch.slice(0, rows).project(&self.projection).expect("a projection");
                Ok(Next::Batch(batch))
            }
        }
    }

    fn position(&self) -> Position {
        Position::new(FORMAT, 1, &self.name, &[self.done, self.rows])
    }
}

struct MemorySink {
    name: String,
    memory: Memory,
}

impl Sink for MemorySink {
    fn placement(&self) -> Placement {
        self.memory.placement.unwrap_or(Placement::Gather)
    }

    fn staging(&self) -> SinkVisibility {
        SinkVisibility::ByCheckpoint
    }

    /// Batches that are published are staged no more, so that none is seen twice.
    fn publish(&self, staged: &[Vec<u8>], _: Publishing) -> Result<(), ConnectorError> {
        let mut all = self.memory.staged.lock().expect("not poisoned");
        let mut committed = self.memory.committed.lock().expect("not poisoned");
        for number in staged {
            let number = number.as_slice().try_into().map(u64::from_le_bytes);
            let batches = all.remove(&number.expect("a number")).expect("it was staged");
            committed.entry(self.name.clone()).or_default().extend(batches);
        }
        Ok(())
    }

    fn open(&self, _: &WriterContext) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        let (name, memory) = (self.name.clone(), self.memory.clone());
        Ok(Box::new(MemoryWriter { name, memory, batches: Vec::new() }))
    }
}

struct MemoryWriter {
    name: String,
    memory: Memory,
    batches: Vec<RecordBatch>,
}

impl SinkWriter for MemoryWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        self.batches.push(dataflow::detach(batch));
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn stage(&mut self, _: u64, _: bool) -> Result<StagedOutput, ConnectorError> {
        let mut staged = self.memory.staged.lock().expect("not poisoned");
        // Numbers of what was published may come again.
        let number = staged.last_key_value().map_or(0, |(last, _)| last + 1);
        staged.insert(number, std::mem::take(&mut self.batches));
        Ok(number.to_le_bytes().to_vec().into())
    }

    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        let mut committed = self.memory.committed.lock().expect("not poisoned");
        committed.entry(self.name).or_default().extend(self.batches);
        Ok(())
    }
}
