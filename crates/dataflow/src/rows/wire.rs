//! Rows on the wire: how they lie in a slot.
//!
//! ```text
//! ┌ 16-byte aligned ───────────────────────────────────────────────────────────────────────┐
//! │ rows │ bytes of the extra │ extra │ words of each column │ 0 … │ regions, 16-byte aligned │
//! └──────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Both sides know the schema from the plan, so only values travel, and words that say how long
//! they are. The rows are written from where they lie straight into the slot ([`Picks`],
//! [`RowsLayout`]); the receiver's arrays point into it, and its credit returns when the last of
//! them is dropped ([`Decoder`]). Dictionaries, runs and views travel as plain values and are made
//! again on arrival. What arrives is validated like a file from a stranger.
//! `docs/protocols/rows.md` has the form of each type.

mod bits;
mod form;
mod gather;
mod groups;
mod memory;
#[cfg(test)]
mod passes;
mod picks;
mod read;
mod rows;
#[cfg(test)]
mod tests;
mod values;

use std::borrow::Cow;
use std::cell::Cell;
use std::ops::Range;

use bytes::Bytes;

use self::form::{PREFIX_BYTES, WORD_BYTES};
use self::gather::{Column, Writer};
pub(crate) use self::groups::{GroupPart, NarrowGroups};
pub(crate) use self::memory::{bytes_of, bytes_of_array, compact, own_views};
pub use self::memory::{detach, pieces};
#[cfg(test)]
pub(crate) use self::passes::{RowCopies, count_into_region_again, count_into_slot, take_copied};
pub(crate) use self::picks::{Picks, take_rows};
pub(crate) use self::read::Decoder;
use crate::error::DataflowError;

/// Bytes of the texts or elements of a column, at most: offsets have 31 bits.
const PAYLOAD_BYTES_MAX: usize = i32::MAX as usize;

/// Some rows of [`Picks`] as a payload that is to be written.
pub(crate) struct RowsLayout<'a> {
    rows: usize,
    extra: Cow<'a, [u8]>,
    columns: Vec<Column<'a>>,
    /// Bytes before the first region.
    head: usize,
    bytes: usize,
}

impl<'a> RowsLayout<'a> {
    /// Of these rows, with bytes that travel beside them.
    ///
    /// # Errors
    /// When a column's type cannot travel.
    pub(crate) fn of(
        picks: &'a Picks,
        rows: Range<usize>,
        extra: &'a [u8],
    ) -> Result<Self, DataflowError> {
        let column = |at: usize| Column::of(picks.column(at, &rows));
        let columns = (0..picks.columns()).map(column).collect::<Result<Vec<_>, _>>()?;
        Ok(Self::with(columns, rows.len(), extra.len()).beside(Cow::Borrowed(extra)))
    }

    /// Of these columns, with room for an extra, which is missing yet.
    fn with(columns: Vec<Column<'a>>, rows: usize, extra_bytes: usize) -> Self {
        let words: usize = columns.iter().map(Column::words).sum();
        let head = PREFIX_BYTES + extra_bytes + words * WORD_BYTES;
        let bytes = columns.iter().fold(head, |at, column| column.end(at));
        Self { rows, extra: Cow::Borrowed(&[]), columns, head, bytes }
    }

    /// With the extra, which has as many bytes as were said.
    pub(crate) fn beside(self, extra: Cow<'a, [u8]>) -> Self {
        Self { extra, ..self }
    }

    /// How many rows there are.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes of the payload.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// Writes the payload to the beginning of `out`, which is large enough.
    pub(crate) fn write_to(&self, out: &mut [u8]) {
        let mut writer = Writer::new(&mut *out, self.head);
        self.columns.iter().for_each(|column| column.write(&mut writer));
        let (words, end) = writer.finish();
        debug_assert_eq!(end, self.bytes, "what is written is what was measured");
        let words = [self.rows as u32, self.extra.len() as u32].into_iter().chain(words);
        let mut words = words.flat_map(u32::to_le_bytes);
        let (prefix, rest) = out[..self.head].split_at_mut(PREFIX_BYTES);
        prefix.fill_with(|| words.next().unwrap_or(0));
        let (extra, rest) = rest.split_at_mut(self.extra.len());
        extra.copy_from_slice(&self.extra);
        rest.fill_with(|| words.next().unwrap_or(0));
    }

    /// The payload in memory of its own.
    pub(crate) fn payload(&self) -> Bytes {
        let mut payload = vec![0; self.bytes];
        self.write_to(&mut payload);
        #[cfg(test)]
        passes::count_elsewhere(payload.len());
        payload.into()
    }
}

/// Cuts rows into payloads, as many into each as fit.
#[derive(Debug)]
pub(crate) struct Cutter {
    /// How many rows are tried first: about as many as have fitted last.
    fitting: Cell<usize>,
}

impl Default for Cutter {
    fn default() -> Self {
        Self { fitting: Cell::new(usize::MAX) }
    }
}

impl Cutter {
    /// As many rows from `from` on as fit `room` bytes; at least one, which may need more.
    ///
    /// # Errors
    /// When a column's type cannot travel, or a row is too large to.
    pub(crate) fn cut<'a>(
        &self,
        picks: &'a Picks,
        from: usize,
        room: usize,
    ) -> Result<RowsLayout<'a>, DataflowError> {
        let of = |rows| RowsLayout::of(picks, from..from + rows, &[]);
        self.fit(picks.rows() - from, room, of)
    }

    /// The payload of as many of the `left` rows as fit `room` bytes; at least one, which may need
    /// more.
    ///
    /// # Errors
    /// Those of `layout`, or when a row is too large to travel.
    pub(crate) fn fit<'a>(
        &self,
        left: usize,
        room: usize,
        layout: impl Fn(usize) -> Result<RowsLayout<'a>, DataflowError>,
    ) -> Result<RowsLayout<'a>, DataflowError> {
        let mut rows = self.fitting.get().clamp(1, left.max(1)).min(left);
        loop {
            let layout = layout(rows)?;
            let scaled = (rows as u128 * room as u128 / layout.len() as u128) as usize;
            if layout.len() > room && rows > 1 {
                rows = scaled.clamp(1, rows - 1);
                continue;
            }
            if layout.len() > PAYLOAD_BYTES_MAX {
                let message = format!("a row of {} bytes cannot travel", layout.len());
                return Err(DataflowError::Expression(message));
            }
            // The rest of a slot need not be filled to the last row.
            let is_full = layout.len() > room - room / 8;
            self.fitting.set(if is_full { rows } else { scaled.max(1) });
            return Ok(layout);
        }
    }
}
