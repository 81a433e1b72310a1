//! Rows that could not be read: counted always, kept up to a bound, never dropped without trace.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use crate::error::ConnectorError;
use crate::secrets;

/// Bad rows kept for the reader of a report; the count goes on beyond.
pub const BAD_ROWS_KEPT_MAX: usize = 100;

/// Bytes kept of a bad row's text.
pub const BAD_TEXT_BYTES_MAX: usize = 200;

/// A row that a source could not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadRow {
    /// The table.
    pub table: String,
    /// File or flow, and the record in it: `flights.csv:17`.
    pub place: String,
    /// Why it was refused.
    pub reason: String,
    /// Its text, cut at [`BAD_TEXT_BYTES_MAX`].
    pub text: String,
}

impl BadRow {
    /// The same without the secrets that its place and its reason may show.
    #[must_use]
    pub fn masked(mut self) -> Self {
        for shown in [&mut self.place, &mut self.reason] {
            if let Cow::Owned(masked) = secrets::masked(shown) {
                *shown = masked;
            }
        }
        self
    }
}

/// The columns of a table of bad rows: `place`, `reason` and `text`.
pub fn columns() -> SchemaRef {
    let text = |name: &str| Field::new(name, DataType::Utf8, false);
    Arc::new(Schema::new(vec![text("place"), text("reason"), text("text")]))
}

/// Bad rows as rows of such a table, with the [columns] that `schema` has of it.
///
/// # Errors
/// When it has others.
pub fn as_batch<'a>(
    schema: &SchemaRef,
    bad: impl Iterator<Item = &'a BadRow> + Clone,
) -> Result<RecordBatch, ConnectorError> {
    let column = |name: &str| -> ArrayRef {
        let of = |row: &'a BadRow| match name {
            "place" => row.place.as_str(),
            "reason" => row.reason.as_str(),
            _ => row.text.as_str(),
        };
        Arc::new(StringArray::from_iter_values(bad.clone().map(of)))
    };
    let columns = schema.fields().iter().map(|field| column(field.name())).collect();
    // There may be rows and no columns.
    let count = RecordBatchOptions::new().with_row_count(Some(bad.clone().count()));
    let batch = RecordBatch::try_new_with_options(Arc::clone(schema), columns, &count);
    batch.map_err(|error| ConnectorError::Column {
        column: "reason".into(),
        message: error.to_string(),
        hint: None,
    })
}

/// The bad rows of a node, of a worker, or of a source on a worker.
#[derive(Debug, Default)]
pub struct BadRows {
    count: AtomicU64,
    kept: Mutex<Vec<BadRow>>,
    /// Whether all of them are kept, with their whole texts, for who takes them.
    all: bool,
    /// The bad rows that these are a part of: those of a source are a part of its worker's, and
    /// those of a worker of its node's, which keeps them.
    whole: Option<Arc<BadRows>>,
}

impl BadRows {
    /// Keeps every row, as it is, until it is [taken](Self::take).
    pub fn collecting() -> Self {
        Self { all: true, ..Self::default() }
    }

    /// A part of others, of a worker or a source, which is counted here and kept there.
    pub(crate) fn within(whole: Arc<BadRows>) -> Self {
        Self { whole: Some(whole), ..Self::default() }
    }

    /// The rows that are kept, which are kept no longer.
    pub fn take(&self) -> Vec<BadRow> {
        std::mem::take(&mut self.kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// Counts a row, and keeps it if there is room.
    pub fn add(&self, mut row: BadRow) {
        self.count.fetch_add(1, Ordering::Relaxed);
        if let Some(whole) = &self.whole {
            return whole.add(row);
        }
        row = row.masked();
        let mut kept = self.kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if self.all {
            kept.push(row);
        } else if kept.len() < BAD_ROWS_KEPT_MAX {
            if row.text.len() > BAD_TEXT_BYTES_MAX {
                let mut end = BAD_TEXT_BYTES_MAX;
                while !row.text.is_char_boundary(end) {
                    end -= 1;
                }
                row.text.truncate(end);
                row.text.push('…');
            }
            kept.push(row);
        }
    }

    /// Counts rows that somebody else keeps.
    pub fn count_more(&self, rows: u64) {
        self.count.fetch_add(rows, Ordering::Relaxed);
        if let Some(whole) = &self.whole {
            whole.count_more(rows);
        }
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The first [`BAD_ROWS_KEPT_MAX`] of them.
    pub fn kept(&self) -> Vec<BadRow> {
        self.kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }
}
