//! `'on_bad' = 'table'`: bad rows are counted, not shown, and left to `t__bad`.
//!
//! Most tables that end can be read again, so that `t__bad` reads them once more, as with other
//! policies ([`crate::catalog::side_output`]). Others, such as a socket or standard input, give
//! their rows to one reader alone: a step of the table's scan puts the bad ones in a *dead-letter
//! buffer*, and `t__bad` takes them from there, each once, in the same statement set or in a later
//! statement. Each node has a buffer for each such table, and keeps the last [`ROWS_MAX`] rows
//! there, of [`BYTES_MAX`] bytes together; a row in place of the dropped ones counts them.
//!
//! A reader of the buffer ends when nobody of its node reads the table and the buffer is empty.
//! Each worker opens all that it reads before it begins, so that what it reads itself is never
//! missed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use dataflow::bad::{BadRow, BadRows, as_batch};
use dataflow::error::ConnectorError;
use dataflow::scan::{ScanStep, SplitStep};
use dataflow::source::{Next, Position, ReaderContext, Source, Split, SplitReader};

use crate::catalog::bad::UntimedRows;

/// Rows in a buffer at most.
pub(crate) const ROWS_MAX: usize = 10_000;

/// Bytes of places, reasons and texts in a buffer at most, but for the last row.
pub(crate) const BYTES_MAX: usize = 16 << 20;

/// Bad rows of a table that nobody has taken yet.
#[derive(Debug, Default)]
pub(crate) struct DeadLetterBuffer(Mutex<BufferedRows>);

#[derive(Debug, Default)]
struct BufferedRows {
    rows: VecDeque<BadRow>,
    bytes: usize,
    dropped: u64,
    readers: usize,
    /// Of the readers of the buffer that found it empty.
    waiting: Vec<Waker>,
}

impl BufferedRows {
    fn wake(&mut self) {
        self.waiting.drain(..).for_each(Waker::wake);
    }
}

impl DeadLetterBuffer {
    fn buffered(&self) -> MutexGuard<'_, BufferedRows> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, row: BadRow) {
        let mut buffered = self.buffered();
        buffered.bytes += bytes(&row);
        buffered.rows.push_back(row);
        while buffered.rows.len() > ROWS_MAX
            || buffered.bytes > BYTES_MAX && buffered.rows.len() > 1
        {
            let Some(oldest) = buffered.rows.pop_front() else { break };
            buffered.bytes -= bytes(&oldest);
            buffered.dropped += 1;
        }
        buffered.wake();
    }

    /// Some rows, oldest first; and whether there will be none for now, because nobody reads the
    /// table. Where there are none and will be some, `waker` is called then.
    fn take(&self, table: &str, rows_max: usize, waker: &Waker) -> (Vec<BadRow>, bool) {
        let mut buffered = self.buffered();
        let gone = std::mem::take(&mut buffered.dropped);
        let gone = (gone > 0).then(|| BadRow {
            table: table.to_owned(),
            place: table.to_owned(),
            reason: format!("{gone} bad rows before the next were not kept"),
            text: String::new(),
        });
        let count = buffered.rows.len().min(rows_max.saturating_sub(usize::from(gone.is_some())));
        let taken: Vec<BadRow> = buffered.rows.drain(..count).collect();
        buffered.bytes -= taken.iter().map(bytes).sum::<usize>();
        let (taken, over) =
            (gone.into_iter().chain(taken).collect::<Vec<_>>(), buffered.readers == 0);
        if taken.is_empty() && !over && !buffered.waiting.iter().any(|other| other.will_wake(waker))
        {
            buffered.waiting.push(waker.clone());
        }
        (taken, over)
    }
}

fn bytes(row: &BadRow) -> usize {
    row.place.len() + row.reason.len() + row.text.len()
}

/// The step of a scan that keeps bad rows, which are counted and not shown: see the
/// [module](self). It changes nothing in the others.
pub(crate) struct CaptureBadRows {
    pub(crate) table: String,
    pub(crate) schema: SchemaRef,
    /// The event time among the columns: rows without one are bad.
    pub(crate) time: Option<usize>,
    /// Where they go; nothing where they can be read again.
    pub(crate) dead_letters: Option<Arc<DeadLetterBuffer>>,
}

impl ScanStep for CaptureBadRows {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn passes_on(&self, output: usize) -> Option<usize> {
        Some(output)
    }

    fn open(&self, split: &Split, context: &mut ReaderContext) -> Box<dyn SplitStep> {
        let bad = Arc::new(BadRows::collecting());
        let counted = std::mem::replace(&mut context.bad, Arc::clone(&bad));
        Box::new(CapturedSplit {
            untimed: UntimedRows::new(&self.table, self.time, split, &context.origins),
            bad,
            untimed_rows: BadRows::collecting(),
            counted,
            reading: self.dead_letters.clone().map(Reading::begun),
        })
    }

    fn describe(&self) -> String {
        "keep bad rows".into()
    }
}

/// Says that somebody reads the table, as long as it lives.
struct Reading(Arc<DeadLetterBuffer>);

impl Reading {
    fn begun(dead_letters: Arc<DeadLetterBuffer>) -> Self {
        dead_letters.buffered().readers += 1;
        Self(dead_letters)
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let mut buffered = self.0.buffered();
        buffered.readers -= 1;
        buffered.wake();
    }
}

struct CapturedSplit {
    untimed: UntimedRows,
    /// Where the reader puts bad rows.
    bad: Arc<BadRows>,
    /// Those without an event time.
    untimed_rows: BadRows,
    /// Where they are counted.
    counted: Arc<BadRows>,
    reading: Option<Reading>,
}

impl CapturedSplit {
    fn capture(&self) {
        let mut bad = self.bad.take();
        self.counted.count_more(bad.len() as u64);
        // Those are dropped, and counted, where the watermark is.
        bad.append(&mut self.untimed_rows.take());
        if let Some(Reading(dead_letters)) = &self.reading {
            bad.into_iter().for_each(|row| dead_letters.put(row));
        }
    }
}

impl SplitStep for CapturedSplit {
    fn apply(&mut self, batch: RecordBatch) -> Result<RecordBatch, ConnectorError> {
        self.untimed.find(&batch, &self.untimed_rows);
        self.capture();
        Ok(batch)
    }

    fn flush(&mut self) -> Result<Option<RecordBatch>, ConnectorError> {
        self.capture();
        Ok(None)
    }
}

/// The source `t__bad` of a table with a dead-letter buffer.
pub(crate) struct DeadLetterSource {
    pub(crate) table: String,
    pub(crate) dead_letters: Arc<DeadLetterBuffer>,
    /// Whether reading the table ends.
    pub(crate) bounded: bool,
    /// The columns of the side, projected.
    pub(crate) schema: SchemaRef,
}

impl Source for DeadLetterSource {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn bounded(&self) -> bool {
        self.bounded
    }

    fn repeats(&self) -> bool {
        false
    }

    fn splits(&self, workers: u32, _: Option<usize>) -> Result<Vec<Split>, ConnectorError> {
        let named = |at: u32| Split {
            number: at as usize,
            name: format!("{} {at}", self.table),
            ..Split::default()
        };
        Ok((0..workers).map(named).collect())
    }

    fn open(
        &self,
        split: &Split,
        from: Option<&Position>,
        context: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        split.begins(from)?;
        Ok(Box::new(DeadLetterReader {
            table: self.table.clone(),
            dead_letters: Arc::clone(&self.dead_letters),
            schema: Arc::clone(&self.schema),
            waker: context.waker.clone(),
        }))
    }
}

struct DeadLetterReader {
    table: String,
    dead_letters: Arc<DeadLetterBuffer>,
    schema: SchemaRef,
    waker: Waker,
}

impl SplitReader for DeadLetterReader {
    fn next(&mut self, rows_max: usize) -> Result<Next, ConnectorError> {
        let (rows, over) = self.dead_letters.take(&self.table, rows_max, &self.waker);
        if !rows.is_empty() {
            return as_batch(&self.schema, rows.iter()).map(Next::Batch);
        }
        if over {
            return Ok(Next::End);
        }
        Ok(Next::Pending)
    }

    fn position(&self) -> Position {
        Position::none(&self.table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(text: String) -> BadRow {
        BadRow { table: "t".into(), place: String::new(), reason: String::new(), text }
    }

    #[test]
    fn a_full_buffer_drops_the_oldest_rows_and_counts_them() {
        let dead_letters = DeadLetterBuffer::default();
        (0..ROWS_MAX + 3).for_each(|at| dead_letters.put(row(at.to_string())));
        let (first, over) = dead_letters.take("t", 2, Waker::noop());
        assert!(over);
        assert_eq!(first[0].reason, "3 bad rows before the next were not kept");
        assert_eq!(first[1].text, "3");
        let (rest, _) = dead_letters.take("t", usize::MAX, Waker::noop());
        assert_eq!((rest.len(), rest[0].text.as_str()), (ROWS_MAX - 1, "4"));
        assert!(dead_letters.take("t", 10, Waker::noop()).0.is_empty());

        let long = "x".repeat(BYTES_MAX / 2 + 1);
        (0..3).for_each(|_| dead_letters.put(row(long.clone())));
        assert_eq!(dead_letters.buffered().rows.len(), 1, "two are more than the buffer holds");
        dead_letters.put(row("x".repeat(BYTES_MAX + 1)));
        assert_eq!(
            dead_letters.take("t", 10, Waker::noop()).0.len(),
            2,
            "the last is kept, and the dropped rows are counted"
        );
        assert_eq!(dead_letters.buffered().bytes, 0);

        let reading = Reading::begun(Arc::new(DeadLetterBuffer::default()));
        assert!(!reading.0.take("t", 1, Waker::noop()).1, "somebody reads the table");
        assert_eq!(reading.0.buffered().waiting.len(), 1);
        reading.0.put(row("late".into()));
        assert_eq!(reading.0.buffered().waiting.len(), 0, "the reader of the buffer was woken");
    }
}
