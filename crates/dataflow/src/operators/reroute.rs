//! Rows that go to another worker and on from there, as they are (A4, W2).

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;

use crate::checkpoint::SavedRows;
use crate::error::DataflowError;
use crate::job::{
    Description, Distribution, Exchange, Keyed, KeyedInput, KeyedOperator, KeyedState,
    MultiPartitioner, Retention, RowPartitioner, SavedParts,
};
use crate::operators::keyed::{at_rest, no_part};

/// Sends rows to other workers, and keeps none.
#[derive(Clone)]
pub struct Reroute {
    /// Their columns.
    pub schema: SchemaRef,
    /// Where they go.
    pub to: To,
}

/// Where rows go.
#[derive(Clone)]
pub enum To {
    /// Where the operator's input says: see [`Distribution`](crate::job::Distribution).
    Input,
    /// Each to one worker, by a function.
    One(Arc<dyn RowPartitioner>),
    /// Each to several workers or none, by a function.
    Several(Arc<dyn MultiPartitioner>),
    /// From a worker that only reads to a stateful one, whoever led keys before (S16).
    /// Whether a row is late is decided behind it, by the watermark that it met where it was read:
    /// rows that lag bring these, on an input of their own.
    Partner,
}

/// Brings rows of workers that only read to stateful workers. Its second input is that of
/// [`To::Partner`], to which no edge leads.
pub fn to_partner(schema: SchemaRef) -> Keyed {
    let watermark = Arc::new(Field::new("watermark", DataType::Int64, false));
    let fields = schema.fields().iter().cloned().chain([watermark]);
    let lagging: SchemaRef = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let input = |schema| KeyedInput {
        schema,
        keys: vec![],
        distribution: Distribution::Partner,
        time: None,
        grace: 0,
    };
    let inputs = vec![input(schema.clone()), input(lagging)];
    let operator = Arc::new(Reroute { schema, to: To::Partner });
    Keyed { inputs, exchange: Exchange::Shuffle, granularity: 1, operator }
}

impl KeyedOperator for Reroute {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn create(&self) -> Box<dyn KeyedState> {
        Box::new(Passing::default())
    }

    fn saved(&self) -> Option<SavedParts> {
        Some(SavedParts { version: 1, parts: vec![] })
    }

    fn partitioner(&self, _: usize) -> Option<Arc<dyn RowPartitioner>> {
        match &self.to {
            To::One(route) => Some(route.clone()),
            To::Input | To::Several(_) | To::Partner => None,
        }
    }

    fn multi_partitioner(&self, _: usize) -> Option<Arc<dyn MultiPartitioner>> {
        match &self.to {
            To::Input | To::One(_) | To::Partner => None,
            To::Several(spread) => Some(spread.clone()),
        }
    }

    fn carries_watermarks(&self) -> bool {
        matches!(self.to, To::Partner)
    }

    fn retention(&self, _: usize) -> Option<Retention> {
        Some(Retention::Passing)
    }

    fn describe(&self, _: &[Vec<String>]) -> Description {
        Description { name: "Exchange", properties: vec![] }
    }
}

/// Rows that have come and not gone on yet.
#[derive(Default)]
struct Passing {
    waiting: VecDeque<RecordBatch>,
    held: usize,
}

impl KeyedState for Passing {
    fn push(&mut self, _: usize, batch: RecordBatch) -> Result<(), DataflowError> {
        self.held += batch.get_array_memory_size();
        self.waiting.push_back(batch);
        Ok(())
    }

    fn advance(&mut self, _: i64, rows_max: usize) -> Result<Option<RecordBatch>, DataflowError> {
        let Some(batch) = self.waiting.pop_front() else { return Ok(None) };
        let rows = batch.num_rows();
        if rows > rows_max {
            self.waiting.push_front(batch.slice(rows_max, rows - rows_max));
            return Ok(Some(batch.slice(0, rows_max)));
        }
        self.held -= self.held.min(batch.get_array_memory_size());
        Ok(Some(batch))
    }

    /// At rest all rows have gone on.
    fn save(&mut self) -> Result<Vec<SavedRows>, DataflowError> {
        at_rest(self.waiting.is_empty())?;
        Ok(vec![])
    }

    fn load(&mut self, saved: SavedRows) -> Result<(), DataflowError> {
        Err(no_part(saved.part))
    }

    fn ready(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn bytes(&self) -> usize {
        self.held
    }
}
