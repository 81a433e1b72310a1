//! Rows that a function of the program could not take, as a table that ends.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use dataflow::bad::{self, BadRow};
use dataflow::error::ConnectorError;
use dataflow::source::{Position, ReaderContext, RowsReader, Source, Split, SplitReader};

/// Rows that are kept at most: the last ones.
pub const FAILED_ROWS_MAX: usize = 10_000;

/// Bytes of the places, reasons and texts that are kept at most, but for those of the last row.
pub const FAILED_ROW_BYTES_MAX: usize = 16 << 20;

/// The last rows that the program has put aside: a table with the columns `place`, `reason` and
/// `text` of `t__bad`. A query that reads it gets the rows that are kept when it begins, and they
/// stay; behind a row that counts those that were dropped. Clones are the same.
#[derive(Clone)]
pub struct FailedRows {
    rows: Arc<Mutex<Retained>>,
    schema: SchemaRef,
}

#[derive(Default)]
struct Retained {
    rows: VecDeque<BadRow>,
    bytes: usize,
    dropped: u64,
}

fn bytes(row: &BadRow) -> usize {
    row.place.len() + row.reason.len() + row.text.len()
}

impl FailedRows {
    pub(crate) fn new() -> Self {
        Self { rows: Arc::default(), schema: bad::columns() }
    }

    fn lock(&self) -> MutexGuard<'_, Retained> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its columns.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Keeps a row. The oldest go where there are more than [`FAILED_ROWS_MAX`] or
    /// [`FAILED_ROW_BYTES_MAX`], and are counted. Secrets are masked.
    pub fn add(&self, row: BadRow) {
        let row = row.masked();
        let mut kept = self.lock();
        kept.bytes += bytes(&row);
        kept.rows.push_back(row);
        while kept.rows.len() > FAILED_ROWS_MAX
            || (kept.bytes > FAILED_ROW_BYTES_MAX && kept.rows.len() > 1)
        {
            let Some(oldest) = kept.rows.pop_front() else { break };
            kept.bytes -= bytes(&oldest);
            kept.dropped += 1;
        }
    }

    /// The columns of `schema` of the rows that are kept now.
    fn batch(&self, schema: &SchemaRef) -> Result<RecordBatch, ConnectorError> {
        let kept = self.lock();
        let dropped = (kept.dropped > 0).then(|| BadRow {
            table: String::new(),
            place: String::new(),
            reason: format!("{} rows before the next were not kept", kept.dropped),
            text: String::new(),
        });
        bad::as_batch(schema, dropped.iter().chain(&kept.rows))
    }

    /// Its columns of `projection`, for a query.
    pub(crate) fn source(&self, projection: &[usize]) -> Result<Arc<dyn Source>, ConnectorError> {
        let schema = self.schema.project(projection).map_err(|error| ConnectorError::Io {
            place: "rows that a function could not take".into(),
            message: error.to_string(),
            hint: None,
        })?;
        Ok(Arc::new(FailedScan { of: self.clone(), schema: Arc::new(schema) }))
    }
}

impl fmt::Debug for FailedRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FailedRows({})", self.lock().rows.len())
    }
}

/// The rows as one query reads them.
struct FailedScan {
    of: FailedRows,
    schema: SchemaRef,
}

impl Source for FailedScan {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn bounded(&self) -> bool {
        true
    }

    fn repeats(&self) -> bool {
        false
    }

    fn splits(&self, _: u32, _: Option<usize>) -> Result<Vec<Split>, ConnectorError> {
        Ok(vec![Split { name: "kept rows".into(), ..Split::default() }])
    }

    fn describe(&self) -> Option<String> {
        Some("rows that a function could not take".into())
    }

    fn open(
        &self,
        split: &Split,
        from: Option<&Position>,
        _: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        split.begins(from)?;
        let rows = self.of.batch(&self.schema)?;
        Ok(Box::new(RowsReader::open(&split.name, vec![rows], None)?))
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::AsArray;

    use super::*;

    fn row(text: String) -> BadRow {
        BadRow { table: String::new(), place: "f".into(), reason: "no".into(), text }
    }

    fn texts(rows: &RecordBatch) -> Vec<&str> {
        rows.column(2).as_string::<i32>().iter().flatten().collect()
    }

    #[test]
    fn the_last_rows_are_kept_and_the_others_are_counted() {
        let kept = FailedRows::new();
        assert_eq!(kept.batch(kept.schema()).unwrap().num_rows(), 0);
        kept.add(row("0".into()));
        assert_eq!(texts(&kept.batch(kept.schema()).unwrap()), ["0"]);
        (1..FAILED_ROWS_MAX + 3).for_each(|at| kept.add(row(at.to_string())));
        let rows = kept.batch(kept.schema()).unwrap();
        assert_eq!(rows.num_rows(), FAILED_ROWS_MAX + 1);
        assert_eq!(texts(&rows)[..2], ["", "3"]);
        let reasons = rows.column(1).as_string::<i32>();
        assert_eq!(reasons.value(0), "3 rows before the next were not kept");
        assert_eq!(kept.batch(kept.schema()).unwrap(), rows, "they stay");
    }

    #[test]
    fn the_bytes_are_bounded() {
        let kept = FailedRows::new();
        (0..3).for_each(|_| kept.add(row("x".repeat(FAILED_ROW_BYTES_MAX / 2))));
        let counts = || {
            let kept = kept.lock();
            (kept.rows.len(), kept.bytes, kept.dropped)
        };
        assert_eq!(counts().0, 1, "two are more than is kept");
        kept.add(row("x".repeat(FAILED_ROW_BYTES_MAX + 1)));
        assert_eq!(counts(), (1, FAILED_ROW_BYTES_MAX + 4, 3), "the last one is kept");
        kept.add(row("y".into()));
        assert_eq!(counts(), (1, 4, 4));
    }
}
