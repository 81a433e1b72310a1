//! Rows that are part of a checkpoint until they are published.

use std::sync::Arc;

use arrow::array::{Array, AsArray, BinaryArray};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::record_batch::RecordBatch;
use connectors::{StagedFormat, StagedStream};
use dataflow::error::ConnectorError;
use dataflow::sink::{SinkWriter, StagedOutput};

use crate::errors::failed;
use crate::write::RowStatements;

/// Bytes of rows that are packed together, about.
const PIECE_BYTES: usize = 1 << 20;

/// The format of the rows that are staged for a table: their text, in pieces.
fn staged_format(place: &str) -> StagedFormat {
    let schema = Arc::new(Schema::new(vec![Field::new("rows", DataType::Binary, false)]));
    StagedFormat { magic: *b"MSQ1", schema, what: "rows", place: place.to_owned() }
}

/// Keeps the rows of a worker, as text, until they are part of a checkpoint.
pub(crate) struct PgStagingWriter {
    statements: RowStatements,
    /// That of the next row. It grows from round to round, since rounds that were given up are
    /// published together with the next one, where the newest row of a key has to win.
    number: u64,
    /// Rows that are not packed yet.
    text: Vec<u8>,
    rows: StagedStream,
}

impl PgStagingWriter {
    pub(crate) fn new(place: &str, job: u64, statements: RowStatements) -> Self {
        let rows = StagedStream::new(staged_format(place), job);
        Self { statements, number: 0, text: vec![], rows }
    }

    /// Packs the rows that wait.
    fn pack(&mut self) -> Result<(), ConnectorError> {
        let rows = BinaryArray::from_vec(vec![self.text.as_slice()]);
        let format = self.rows.format();
        let batch = RecordBatch::try_new(Arc::clone(&format.schema), vec![Arc::new(rows)]);
        let batch =
            batch.map_err(|error| failed(&format.place, error.to_string(), "report this"))?;
        self.text.clear();
        self.rows.push(&batch)
    }
}

impl SinkWriter for PgStagingWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        self.statements.encode(batch, &mut self.number, &mut self.text)?;
        if self.text.len() < PIECE_BYTES { Ok(()) } else { self.pack() }
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn stage(&mut self, _: u64, _: bool) -> Result<StagedOutput, ConnectorError> {
        if !self.text.is_empty() {
            self.pack()?;
        }
        self.rows.stage().map(Into::into)
    }

    /// A writer that stages is dropped in place of a commit.
    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        Err(self.rows.format().committed())
    }
}

/// Rows that a [`PgStagingWriter`] has staged.
#[derive(Debug)]
pub(crate) struct StagedText {
    pub(crate) job: u64,
    /// The text of the rows, in pieces.
    pieces: Vec<BinaryArray>,
}

impl StagedText {
    /// # Errors
    /// When nobody has staged these bytes.
    pub(crate) fn of(place: &str, staged: &[u8]) -> Result<Self, ConnectorError> {
        let (job, batches) = staged_format(place).read(staged)?;
        let piece = |batch: RecordBatch| batch.column(0).as_binary::<i32>().clone();
        let pieces = batches.map(|batch| batch.map(piece)).collect::<Result<_, _>>()?;
        Ok(Self { job, pieces })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.iter().all(|piece| piece.is_empty())
    }

    pub(crate) fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces.iter().flat_map(|piece| piece.iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array};
    use connectors::OptionReader;

    use super::*;
    use crate::table::PgTable;

    #[test]
    fn rows_of_a_later_round_have_greater_numbers() {
        let options = [("url", "postgresql://u@127.0.0.1/d"), ("table-name", "t")];
        let options = options.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let options = options.into_iter().collect();
        let table = PgTable::new(OptionReader(&options)).unwrap();
        let rows = |keys: Vec<i64>| {
            let keys: ArrayRef = Arc::new(Int64Array::from(keys));
            RecordBatch::try_from_iter([("k", keys)]).unwrap()
        };
        let statements = RowStatements::new(&table, &rows(vec![]).schema(), &["k".into()]).unwrap();
        let mut writer = PgStagingWriter::new("t", 1, statements);
        let mut round = |number: u64, keys: Vec<i64>| {
            writer.write(&rows(keys)).unwrap();
            let staged = writer.stage(number, false).unwrap();
            let text = StagedText::of("t", &staged.staged).unwrap();
            String::from_utf8(text.pieces().collect::<Vec<_>>().concat()).unwrap()
        };
        assert_eq!(round(1, vec![7, 8, 9]), "0\t7\n1\t8\n2\t9\n");
        // It is published in one statement with the round before, if that was given up.
        assert_eq!(round(2, vec![9]), "3\t9\n");
    }
}
