//! Rows that could not be read: counted always, kept up to a bound, never dropped without trace.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

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
        for shown in [&mut row.place, &mut row.reason] {
            if let Cow::Owned(masked) = secrets::masked(shown) {
                *shown = masked;
            }
        }
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
