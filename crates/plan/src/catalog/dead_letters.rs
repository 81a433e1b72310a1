//! `'on_bad' = 'table'`: bad rows are counted, not shown, and left to `t__bad`.
//!
//! Most tables that end can be read again, so that `t__bad` reads them once more, as with other
//! policies ([`crate::catalog::side`]). Others, such as a socket or standard input, give their rows
//! to one reader alone: what reads such a table puts the bad ones on a shelf, and `t__bad` takes
//! them from there, each once, in the same statement set or in a later statement. Each node has a
//! shelf for each such table, and keeps the last [`ROWS_MAX`] rows there, of [`BYTES_MAX`] bytes
//! together; how many it has let go is told by a row in their place.
//!
//! A reader of the shelf ends when nobody of its node reads the table and the shelf is empty. Each
//! worker opens all that it reads before it begins, so that what it reads itself is never missed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::datatypes::SchemaRef;
use dataflow::bad::{BadRow, BadRows};
use dataflow::error::ConnectorError;
use dataflow::source::{ColumnBounds, Next, Position, ReaderContext, Source, Split, SplitReader};

use crate::catalog::side::{Untimed, as_batch};

/// Rows on a shelf at most.
pub(crate) const ROWS_MAX: usize = 10_000;

/// Bytes of places, reasons and texts on a shelf at most, but for the last row.
pub(crate) const BYTES_MAX: usize = 16 << 20;

/// How often a reader looks at an empty shelf.
const LOOK_NS: u64 = 100_000_000;

/// Bad rows of a table that nobody has taken yet.
#[derive(Debug, Default)]
pub(crate) struct Shelf(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    rows: VecDeque<BadRow>,
    bytes: usize,
    let_go: u64,
    readers: usize,
}

impl Shelf {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, row: BadRow) {
        let mut kept = self.kept();
        kept.bytes += bytes(&row);
        kept.rows.push_back(row);
        while kept.rows.len() > ROWS_MAX || kept.bytes > BYTES_MAX && kept.rows.len() > 1 {
            let Some(oldest) = kept.rows.pop_front() else { break };
            kept.bytes -= bytes(&oldest);
            kept.let_go += 1;
        }
    }

    /// Some rows, oldest first; and whether there will be none for now, because nobody reads the
    /// table.
    fn take(&self, table: &str, rows_max: usize) -> (Vec<BadRow>, bool) {
        let mut kept = self.kept();
        let gone = std::mem::take(&mut kept.let_go);
        let gone = (gone > 0).then(|| BadRow {
            table: table.to_owned(),
            place: table.to_owned(),
            reason: format!("{gone} bad rows before the next were not kept"),
            text: String::new(),
        });
        let count = kept.rows.len().min(rows_max.saturating_sub(usize::from(gone.is_some())));
        let taken: Vec<BadRow> = kept.rows.drain(..count).collect();
        kept.bytes -= taken.iter().map(bytes).sum::<usize>();
        (gone.into_iter().chain(taken).collect(), kept.readers == 0)
    }
}

fn bytes(row: &BadRow) -> usize {
    row.place.len() + row.reason.len() + row.text.len()
}

/// A table whose bad rows are not shown: see the [module](self).
pub(crate) struct ShelvingSource {
    pub(crate) table: String,
    pub(crate) inner: Arc<dyn Source>,
    /// The event time among its columns: rows without one are bad.
    pub(crate) time: Option<usize>,
    /// Where they go; nothing where they can be read again.
    pub(crate) shelf: Option<Arc<Shelf>>,
}

impl Source for ShelvingSource {
    fn schema(&self) -> SchemaRef {
        self.inner.schema()
    }

    fn bounded(&self) -> bool {
        self.inner.bounded()
    }

    fn repeats(&self) -> bool {
        self.inner.repeats()
    }

    fn splits(&self, workers: u32, time: Option<usize>) -> Result<Vec<Split>, ConnectorError> {
        self.inner.splits(workers, time)
    }

    fn bounds(&self, column: usize) -> ColumnBounds {
        self.inner.bounds(column)
    }

    fn open(
        &self,
        split: &Split,
        from: Option<&Position>,
        context: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        let bad = Arc::new(BadRows::collecting());
        let inner = ReaderContext { bad: Arc::clone(&bad), ..context.clone() };
        let inner = self.inner.open(split, from, &inner)?;
        let reading = self.shelf.as_ref().map(|shelf| Reading::begun(Arc::clone(shelf)));
        Ok(Box::new(ShelvingFlow {
            untimed: Untimed::new(&self.table, split.name.clone(), &context.origins),
            inner,
            time: self.time,
            bad,
            untimed_rows: BadRows::collecting(),
            counted: Arc::clone(&context.bad),
            reading,
        }))
    }
}

/// Says that somebody reads the table, as long as it lives.
struct Reading(Arc<Shelf>);

impl Reading {
    fn begun(shelf: Arc<Shelf>) -> Self {
        shelf.kept().readers += 1;
        Self(shelf)
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.kept().readers -= 1;
    }
}

struct ShelvingFlow {
    untimed: Untimed,
    inner: Box<dyn SplitReader>,
    time: Option<usize>,
    /// Where the table's reader puts them.
    bad: Arc<BadRows>,
    /// Those without an event time.
    untimed_rows: BadRows,
    /// Where they are counted.
    counted: Arc<BadRows>,
    reading: Option<Reading>,
}

impl SplitReader for ShelvingFlow {
    fn next(&mut self, rows_max: usize) -> Result<Next, ConnectorError> {
        let next = match self.inner.next(rows_max)? {
            Next::Batch(batch) => {
                self.untimed.tell(&batch, self.time, &self.untimed_rows);
                Next::Batch(batch)
            }
            other => other,
        };
        let mut bad = self.bad.take();
        self.counted.count_more(bad.len() as u64);
        // They are left out and counted where rows are read.
        bad.append(&mut self.untimed_rows.take());
        if let Some(Reading(shelf)) = &self.reading {
            bad.into_iter().for_each(|row| shelf.put(row));
        }
        Ok(next)
    }

    fn position(&self) -> Position {
        self.inner.position()
    }

    fn owes(&self) -> bool {
        self.inner.owes()
    }
}

/// What `t__bad` is of a table with a shelf.
pub(crate) struct ShelfSource {
    pub(crate) table: String,
    pub(crate) shelf: Arc<Shelf>,
    /// Whether reading the table ends.
    pub(crate) bounded: bool,
    /// The columns of the side, projected.
    pub(crate) schema: SchemaRef,
}

impl Source for ShelfSource {
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
        Ok(Box::new(ShelfFlow {
            table: self.table.clone(),
            shelf: Arc::clone(&self.shelf),
            schema: Arc::clone(&self.schema),
            clock: context.clone(),
        }))
    }
}

struct ShelfFlow {
    table: String,
    shelf: Arc<Shelf>,
    schema: SchemaRef,
    clock: ReaderContext,
}

impl SplitReader for ShelfFlow {
    fn next(&mut self, rows_max: usize) -> Result<Next, ConnectorError> {
        let (rows, over) = self.shelf.take(&self.table, rows_max);
        match rows.is_empty() {
            false => as_batch(&self.schema, &rows).map(Next::Batch),
            true if over => Ok(Next::End),
            true => {
                let now = self.clock.clock.now_ns();
                Ok(Next::Wait { until_ns: now.saturating_add(LOOK_NS) })
            }
        }
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
    fn a_shelf_keeps_the_last_rows_and_tells_how_many_it_let_go() {
        let shelf = Shelf::default();
        (0..ROWS_MAX + 3).for_each(|at| shelf.put(row(at.to_string())));
        let (first, over) = shelf.take("t", 2);
        assert!(over);
        assert_eq!(first[0].reason, "3 bad rows before the next were not kept");
        assert_eq!(first[1].text, "3");
        let (rest, _) = shelf.take("t", usize::MAX);
        assert_eq!((rest.len(), rest[0].text.as_str()), (ROWS_MAX - 1, "4"));
        assert!(shelf.take("t", 10).0.is_empty());

        let long = "x".repeat(BYTES_MAX / 2 + 1);
        (0..3).for_each(|_| shelf.put(row(long.clone())));
        assert_eq!(shelf.kept().rows.len(), 1, "two are more than the shelf holds");
        shelf.put(row("x".repeat(BYTES_MAX + 1)));
        assert_eq!(shelf.take("t", 10).0.len(), 2, "the last is kept, and what was let go is told");
        assert_eq!(shelf.kept().bytes, 0);

        let reading = Reading::begun(Arc::new(Shelf::default()));
        assert!(!reading.0.take("t", 1).1, "somebody reads the table");
    }
}
