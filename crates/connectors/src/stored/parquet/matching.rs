//! Finds the rows of a row group that match: the predicate's columns are read before the others.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{ArrayRef, AsArray, BooleanArray, UInt32Array, new_null_array};
use arrow::buffer::BooleanBuffer;
use arrow::compute::{filter_record_batch, take};
use arrow::datatypes::DataType;
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;
use dataflow::predicate::ColumnPredicate;
use dataflow::source::SkippedRows;

use super::columns::{ColumnReader, GroupOf, wide};
use super::damaged;
use super::runs::RowRuns;
use super::statistics::LeafColumn;
use crate::format::TargetColumns;
use crate::format::rows::fitted;

/// How many times smaller than the predicate's columns the others may be, at most, if the
/// predicate's columns are read first.
const OTHERS_SHARE: i64 = 2;

/// Rows of a row group after which it is read as a whole if most of them match.
const TRIED_ROWS: usize = 65_536;

/// The share of the rows that have matched so far.
#[derive(Debug, Default)]
pub(super) struct MatchRate {
    seen: AtomicU64,
    matched: AtomicU64,
}

impl MatchRate {
    pub(super) fn add(&self, seen: u64, matched: u64) {
        self.seen.fetch_add(seen, Ordering::Relaxed);
        self.matched.fetch_add(matched, Ordering::Relaxed);
    }

    /// Whether most rows match.
    pub(super) fn is_high(&self) -> bool {
        let [seen, matched] =
            [&self.seen, &self.matched].map(|count| count.load(Ordering::Relaxed));
        matched.saturating_mul(2) > seen
    }
}

/// The predicate on the rows of a row group.
#[derive(Clone)]
pub(super) struct RowPredicate {
    pub(super) kept: ColumnPredicate,
    /// Whether the footer says that some row of the row group may match.
    pub(super) may_match: bool,
    /// Whether joins alone say which rows are needed.
    pub(super) of_joins: bool,
    pub(super) rate: Arc<MatchRate>,
}

impl RowPredicate {
    /// The counts of rows, and of pages or a row group with them, that it rules out.
    pub(super) fn skipped(&self, rows: u64, pages: u64, row_groups: u64) -> SkippedRows {
        let unmatched = if self.of_joins { rows } else { 0 };
        SkippedRows { row_groups, pages, rows, unmatched }
    }
}

/// The predicate's columns of the rows that may match.
pub(super) struct MatchStage {
    pub(super) reader: ColumnReader,
    pub(super) runs: RowRuns,
    pub(super) kept: ColumnPredicate,
    pub(super) matches: Vec<BooleanBuffer>,
    /// The predicate's columns of the rows that match.
    pub(super) columns: VecDeque<RecordBatch>,
}

impl MatchStage {
    /// The rows whose match is known, and those that match, if they have just become
    /// [`TRIED_ROWS`], and most match: then the predicate's columns are read first in vain.
    pub(super) fn tried(&self) -> Option<[u64; 2]> {
        let seen: usize = self.matches.iter().map(BooleanBuffer::len).sum();
        let before = seen - self.matches.last().map_or(0, BooleanBuffer::len);
        if seen < TRIED_ROWS || before >= TRIED_ROWS {
            return None;
        }
        let matched: usize = self.matches.iter().map(BooleanBuffer::count_set_bits).sum();
        (matched * 2 > seen).then_some([seen as u64, matched as u64])
    }

    /// Evaluates the predicate on the next rows; false when there are none.
    ///
    /// # Errors
    /// When they cannot be read.
    pub(super) fn step(
        &mut self,
        rows_max: usize,
        of: &GroupOf,
        target: &TargetColumns,
    ) -> Result<bool, ConnectorError> {
        let Some(batch) = self.reader.read(rows_max)? else { return Ok(false) };
        let matches = matches(&self.kept, &batch, &self.reader.columns, of, target);
        let matches = matches.map_err(|error| damaged(of.file.blob.name(), &error.to_string()))?;
        let mask = BooleanArray::new(matches.clone(), None);
        if mask.true_count() > 0 {
            let kept = filter_record_batch(&batch, &mask);
            let kept = kept.map_err(|error| damaged(of.file.blob.name(), &error.to_string()))?;
            self.columns.push_back(kept);
        }
        self.matches.push(matches);
        Ok(true)
    }
}

/// The part of a predicate that is evaluated row by row before the other columns are read, if that
/// pays.
pub(super) struct Lookable {
    pub(super) kept: ColumnPredicate,
    /// The columns of the file that it reads.
    pub(super) columns: Vec<usize>,
}

impl Lookable {
    pub(super) fn new(
        of: &GroupOf,
        target: &TargetColumns,
        predicate: &RowPredicate,
    ) -> Option<Self> {
        let name = of.file.blob.name();
        let column = |position: usize| of.file.mapping.column_of(target.column_at(position)?);
        let is_flat = |position: usize| match target.column_at(position) {
            Some(_) => column(position).is_none_or(|at| LeafColumn::new(&of.file, at).is_some()),
            None => matches!(target.constant(position, &name), Ok(Some(_))),
        };
        let kept = predicate.kept.over(&|position| is_flat(position).then_some(position))?;
        let mut columns: Vec<usize> = kept.columns().into_iter().filter_map(column).collect();
        columns.sort_unstable();
        columns.dedup();
        let others: Vec<usize> =
            of.columns.iter().copied().filter(|column| !columns.contains(column)).collect();
        let pays = !columns.is_empty()
            && !others.is_empty()
            && of.bytes(&others).saturating_mul(OTHERS_SHARE) >= of.bytes(&columns)
            && !predicate.rate.is_high();
        pays.then_some(Self { kept, columns })
    }
}

/// The rows of a batch of the file's `columns` that match.
fn matches(
    kept: &ColumnPredicate,
    batch: &RecordBatch,
    columns: &[usize],
    of: &GroupOf,
    target: &TargetColumns,
) -> Result<BooleanBuffer, ArrowError> {
    let rows = batch.num_rows();
    let mut values: BTreeMap<usize, ArrayRef> = BTreeMap::new();
    for position in kept.columns() {
        let declared = target.projected.field(position).data_type();
        let column = target.column_at(position);
        let value = match column.and_then(|column| of.file.mapping.column_of(column)) {
            Some(column) => {
                let at = columns.partition_point(|read| *read < column);
                fitted_dictionary(&wide(batch.column(at), &of.file, column), declared)?
            }
            None => match target.constant(position, &of.file.blob.name()) {
                Ok(Some(value)) => take(&value, &UInt32Array::from_value(0, rows), None)?,
                _ => new_null_array(declared, rows),
            },
        };
        values.insert(position, value);
    }
    kept.matches(&|position| Arc::clone(&values[&position]), rows)
}

/// Values that are known to fit in another type; a dictionary stays one.
fn fitted_dictionary(column: &ArrayRef, declared: &DataType) -> Result<ArrayRef, ArrowError> {
    match column.as_any_dictionary_opt() {
        Some(dictionary) if !matches!(declared, DataType::Dictionary(..)) => {
            Ok(dictionary.with_values(fitted(dictionary.values(), declared)?))
        }
        _ => fitted(column, declared),
    }
}
