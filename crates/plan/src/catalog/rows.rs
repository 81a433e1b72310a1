//! Rows that are known when the statement is planned: `VALUES`, `SHOW TABLES`.

use std::sync::{Arc, Mutex, PoisonError};

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;
use dataflow::position::refused;
use dataflow::source::{Next, Position, ReaderContext, Source, Split, SplitReader};

/// The name of positions in them.
const FORMAT: &str = "rows";
const VERSION: u32 = 1;

/// A source of rows in memory.
pub(crate) struct MemorySource {
    pub(crate) schema: SchemaRef,
    pub(crate) batches: Arc<Mutex<Vec<RecordBatch>>>,
}

impl MemorySource {
    fn batches(&self) -> Vec<RecordBatch> {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Source for MemorySource {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn bounded(&self) -> bool {
        true
    }

    fn splits(&self, _: u32, _: Option<usize>) -> Result<Vec<Split>, ConnectorError> {
        let rows = Some(self.batches().iter().map(|batch| batch.num_rows() as u64).sum());
        Ok(vec![Split { name: "rows".into(), rows, ..Split::default() }])
    }

    fn open(
        &self,
        split: &Split,
        from: Option<&Position>,
        _: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        let numbers = from.map(|from| from.numbers(FORMAT, VERSION, &split.name)).transpose()?;
        let [mut pass] = numbers.unwrap_or_default();
        let mut reader = RowsReader {
            split: split.name.clone(),
            rest: self.batches().into_iter().rev().collect(),
            given: pass,
        };
        while pass > 0 {
            let Some(batch) = reader.rest.pop() else {
                return Err(refused(&split.name, "the position is behind the end".into()));
            };
            let rows = batch.num_rows().min(usize::try_from(pass).unwrap_or(usize::MAX));
            pass -= rows as u64;
            if rows < batch.num_rows() {
                reader.rest.push(batch.slice(rows, batch.num_rows() - rows));
            }
        }
        Ok(Box::new(reader))
    }
}

/// The batches not read yet; the next one is the last.
struct RowsReader {
    split: String,
    /// Rows that were given.
    given: u64,
    rest: Vec<RecordBatch>,
}

impl SplitReader for RowsReader {
    fn next(&mut self, rows_max: usize) -> Result<Next, ConnectorError> {
        while let Some(batch) = self.rest.pop() {
            let rows = batch.num_rows();
            if rows > rows_max {
                self.rest.push(batch.slice(rows_max, rows - rows_max));
            }
            if rows > 0 {
                let rows = rows.min(rows_max);
                self.given += rows as u64;
                return Ok(Next::Batch(batch.slice(0, rows)));
            }
        }
        Ok(Next::End)
    }

    fn position(&self) -> Position {
        Position::new(FORMAT, VERSION, &self.split, &[self.given])
    }
}
