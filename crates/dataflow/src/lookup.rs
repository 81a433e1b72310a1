//! The join of a stream with a small table that every worker has whole (A3).
//!
//! Each worker reads the table to its end and puts it into a hash table, and lets no row of the
//! stream through before. Then batches are probed where they are, on their way from one operator
//! to the next: no row travels, none waits, and times and watermarks go along unchanged.
//!
//! Bad rows of the table are reported by worker 0 alone, since all workers read the same.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use arrow::array::{Array, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;

use crate::bad::BadRows;
use crate::detach;
use crate::error::DataflowError;
use crate::job::{Input, Origin, Step};
use crate::ledger::Ledger;
use crate::metrics::Metrics;
use crate::operator::Routes;
use crate::pairing::{Hashed, JoinKind, Pairing, Terms, names};
use crate::reader::{Read, Reader, Rows};
use crate::scheduler::{Event, Timers, yield_now};
use crate::source::FlowContext;
use crate::time::ticks_of;
use crate::worker::Place;

/// A join with a table that every worker has whole. The left side is the stream, the right side
/// the table.
#[derive(Clone)]
pub struct Lookup {
    /// The table; its source ends.
    pub table: Input,
    /// What is done with each of the table's rows before it is kept.
    pub step: Option<Arc<dyn Step>>,
    /// Bytes of the table's rows at most, on each worker.
    pub bytes_max: usize,
    /// Of the stream and of what is kept of the table: the columns that must be equal. NULL is
    /// equal to nothing.
    pub keys: [Vec<usize>; 2],
    /// Which rows are given out: no right rows alone.
    pub kind: JoinKind,
    /// A filter over both sides' columns that a pair must pass, besides equal keys.
    pub on: Option<Arc<dyn Step>>,
    /// Both sides' columns, or the stream's where the kind gives out one side.
    pub schema: SchemaRef,
    /// The stream's columns and what is kept of the table's: what `on` is given.
    pub both: SchemaRef,
}

impl Lookup {
    /// For EXPLAIN.
    pub fn describe(&self) -> String {
        let [stream, table] = &self.keys;
        self.terms().describe("", [names(&self.both, stream), names(&self.kept(), table)])
    }

    /// What is kept of the table.
    fn kept(&self) -> SchemaRef {
        match &self.step {
            Some(step) => step.schema(),
            None => self.table.source.schema(),
        }
    }

    fn terms(&self) -> Terms<'_> {
        let Self { kind, on, schema, both, .. } = self;
        Terms { kind: *kind, on: on.as_ref(), schema, both }
    }
}

/// A lookup on one worker.
pub(crate) struct LookupRun {
    tag: u32,
    spec: Lookup,
    rows_max: usize,
    ledger: Rc<Ledger>,
    timers: Rc<Timers>,
    /// Until the table is read.
    reader: RefCell<Option<Reader>>,
    table: RefCell<Option<Rc<Hashed>>>,
    read: Event,
    pub(crate) routes: Routes,
}

impl LookupRun {
    /// # Errors
    /// When the table cannot be read.
    pub(crate) fn new(
        tag: u32,
        spec: &Lookup,
        place: &Place,
        context: &FlowContext,
        timers: Rc<Timers>,
        routes: Routes,
    ) -> Result<Self, DataflowError> {
        let rows_max = place.settings.batch_rows_max;
        let bad = match place.worker {
            0 => context.bad.clone(),
            _ => Arc::new(BadRows::default()),
        };
        let context = FlowContext { bad, ..context.clone() };
        // Counters speak of the stream: the table is read once per worker.
        let counters = Arc::new(Metrics::default());
        let reader = Reader::new(&spec.table, 0, 1, rows_max, context, counters)?;
        Ok(Self {
            tag,
            spec: spec.clone(),
            rows_max,
            ledger: place.ledger.clone(),
            timers,
            reader: RefCell::new(Some(reader)),
            table: RefCell::new(None),
            read: Event::default(),
            routes,
        })
    }

    /// Reads the table.
    ///
    /// # Errors
    /// When it cannot be read, or is larger than it may be.
    pub(crate) async fn load(&self) -> Result<(), DataflowError> {
        let Some(mut reader) = self.reader.take() else { return Ok(()) };
        let mut rows = vec![];
        let mut bytes = 0;
        loop {
            match reader.next()? {
                Read::Batch(flow, batch) => {
                    if let Some(Rows { batch, .. }) = reader.take(flow, batch)? {
                        let batch = match &self.spec.step {
                            Some(step) => step.apply(&batch)?.batch,
                            None => detach(&batch),
                        };
                        bytes += bytes_of(&batch)?;
                        self.account(bytes)?;
                        rows.push(batch);
                    }
                    yield_now().await;
                }
                Read::Wait(until_ns) => self.timers.sleep_until(until_ns).await,
                Read::End => break,
            }
        }
        let table = Hashed::new(concat_batches(&self.spec.kept(), &rows)?, &self.spec.keys[1])?;
        drop(rows);
        self.ledger.set(self.tag, table.bytes())?;
        *self.table.borrow_mut() = Some(Rc::new(table));
        self.read.notify();
        Ok(())
    }

    fn account(&self, bytes: usize) -> Result<(), DataflowError> {
        if bytes > self.spec.bytes_max {
            let table = self.spec.table.table.clone();
            return Err(DataflowError::Table { table, bytes_max: self.spec.bytes_max });
        }
        Ok(self.ledger.set(self.tag, bytes)?)
    }

    /// Joins rows of the stream and hands on what comes of them; waits until the table is read.
    ///
    /// # Errors
    /// When the condition fails on a row, and as [`Routes::push`].
    pub(crate) async fn push(&self, rows: Rows) -> Result<(), DataflowError> {
        let table = self.read.wait_for(|| self.table.borrow().clone()).await;
        let Rows { batch, met, .. } = rows;
        let mut pairing = Pairing::new(batch, &self.spec.keys[0], table, self.spec.kind)?;
        while let Some((batch, from)) = pairing.next(self.spec.terms(), self.rows_max)? {
            let met = met.as_ref().map(|met| ticks_of(met, &Origin::Taken(from))).transpose()?;
            let rows = Rows { batch, met, span: None };
            // Boxed, since the next operator may be a lookup too.
            Box::pin(self.routes.push(rows)).await?;
        }
        Ok(())
    }
}

/// Bytes of a batch's rows, wherever their arrays lie.
fn bytes_of(batch: &RecordBatch) -> Result<usize, DataflowError> {
    let sizes = batch.columns().iter().map(|column| column.to_data().get_slice_memory_size());
    Ok(sizes.sum::<Result<usize, _>>()?)
}
