//! Reads a row group: all of it, or the rows that may match a predicate.
//!
//! ```text
//! whole    ─────────────────────────────────────────────────────────▶ rows
//! pruned   page index, Bloom filters ─▶ predicate's columns ─▶ rows of the other columns
//!            which pages may match        which rows match        only those are decoded
//! ```
//!
//! Each stage asks for its bytes when it begins, so that the bytes that a stage rules out are never
//! fetched. The predicate's columns are read first only if the others are large enough for it to
//! pay, and not if most rows have matched so far, in other row groups or among the first rows of
//! this one. Texts that a row group has as dictionaries stay dictionaries meanwhile: each value is
//! looked at once, and only the rows that match become texts. A position counts all rows of the row
//! group, whether or not they were emitted: it means the same with and without a predicate.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use arrow::compute::concat_batches;
use arrow::datatypes::Schema;
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;
use dataflow::position::refused;
use dataflow::source::{Next, Position, ReaderContext, Split, SplitReader};

use super::columns::{ColumnReader, GroupOf};
use super::index::{GroupIndex, IndexPlan, PageList};
use super::matching::{Lookable, MatchStage, RowPredicate};
use super::runs::RowRuns;
use super::{FORMAT, damaged};
use crate::format::typed::RecordNumbers;
use crate::format::{Refuser, TargetColumns};
use crate::stored::{FetchingBlob, RowPlace, passed};

/// The stage of a reader.
enum ReadStage {
    /// It waits for the indexes.
    Index { fetching: FetchingBlob, plan: IndexPlan },
    /// It finds the rows that match.
    Match(Box<MatchStage>),
    /// It emits rows.
    Rows(Box<RowsStage>),
}

/// The state of the stage that emits rows.
struct RowsStage {
    /// Reads the columns that were not read to find the rows; none if no row is read.
    reader: Option<ColumnReader>,
    /// The predicate's columns of the matching rows, if they were read to find the rows.
    matched: Option<VecDeque<RecordBatch>>,
    /// The numbers in the row group of the rows to come, if not all are read.
    runs: Option<RowRuns>,
    /// Rows that did not fit into the last batch, as the file has them.
    rest: Option<RecordBatch>,
}

/// A row group that is being read.
pub(super) struct ParquetReader {
    of: GroupOf,
    split: String,
    predicate: Option<RowPredicate>,
    stage: ReadStage,
    /// Rows of it that were emitted or refused, now or before the position.
    passed: u64,
    /// The row to be read next, if all are read.
    row: u64,
    refuser: Refuser,
    context: ReaderContext,
}

impl ParquetReader {
    /// Opens a row group of which `passed` rows were emitted before.
    ///
    /// # Errors
    /// When the stated places of its columns are invalid.
    pub(super) fn open(
        of: GroupOf,
        split: &Split,
        passed: u64,
        predicate: Option<RowPredicate>,
        target: &Arc<TargetColumns>,
        context: &ReaderContext,
    ) -> Result<Self, ConnectorError> {
        let name = &split.name;
        if predicate.is_some() && passed > of.rows() {
            return Err(refused(name, format!("the position is behind row {passed}, and the end")));
        }
        let stage = match &predicate {
            Some(predicate) if !predicate.may_match => {
                context.skipped.add(&predicate.skipped(of.rows() - passed, 0, 1));
                ReadStage::none()
            }
            Some(predicate) => {
                let read = (of.group, &of.columns[..]);
                let plan = IndexPlan::new(&of.file, target, read, &predicate.kept);
                let ranges = plan.ranges(&of.file, of.group);
                let fetching = FetchingBlob::new(&of.file.blob, ranges, context);
                ReadStage::Index { fetching, plan }
            }
            None => {
                let all = (None, &Arc::default());
                let reader = Some(ColumnReader::new(&of, of.columns.clone(), all, context)?);
                ReadStage::Rows(Box::new(RowsStage {
                    reader,
                    matched: None,
                    runs: None,
                    rest: None,
                }))
            }
        };
        Ok(Self {
            of,
            split: name.clone(),
            predicate,
            stage,
            passed,
            row: 0,
            refuser: Refuser::new(target, context),
            context: context.clone(),
        })
    }

    /// Finds the rows that may match by the indexes, and begins the next stage: to find the rows
    /// that match, or to emit rows.
    fn look_at(&mut self, index: GroupIndex) -> Result<(), ConnectorError> {
        let Some(predicate) = self.predicate.clone() else { return Ok(()) };
        let skipped = Arc::clone(&self.context.skipped);
        let rows = self.of.rows();
        let runs = if index.may_match(&predicate.kept) {
            index.rows(&predicate.kept, rows)
        } else {
            RowRuns::default()
        };
        if runs.rows() == 0 {
            skipped.add(&predicate.skipped(rows, 0, 1));
        } else {
            let pages = index.pages.values().map(|list| list.skipped(&runs)).sum();
            skipped.add(&predicate.skipped(rows - runs.rows(), pages, 0));
        }
        let runs = runs.behind(self.passed);
        let pages = Arc::new(index.pages);
        let looks = Lookable::new(&self.of, &self.refuser.target, &predicate);
        self.stage = match looks.filter(|_| runs.rows() > 0) {
            Some(Lookable { kept, columns }) => {
                let some = (Some(runs.clone()), &pages);
                let reader = ColumnReader::new(&self.of, columns, some, &self.context)?;
                let reader = reader.keeping_dictionaries();
                let (matches, columns) = (vec![], VecDeque::new());
                ReadStage::Match(Box::new(MatchStage { reader, runs, kept, matches, columns }))
            }
            None => self.all_of(runs, &pages)?,
        };
        Ok(())
    }

    /// The stage that emits all of some rows.
    fn all_of(
        &self,
        runs: RowRuns,
        pages: &Arc<BTreeMap<usize, PageList>>,
    ) -> Result<ReadStage, ConnectorError> {
        let (some, columns) = ((Some(runs.clone()), pages), self.of.columns.clone());
        let reader =
            (runs.rows() > 0).then(|| ColumnReader::new(&self.of, columns, some, &self.context));
        let (reader, runs) = (reader.transpose()?, Some(runs));
        Ok(ReadStage::Rows(Box::new(RowsStage { reader, matched: None, runs, rest: None })))
    }

    /// Begins to emit the rows that match, when all were found.
    fn give(&mut self, matching: MatchStage) -> Result<(), ConnectorError> {
        let MatchStage { reader, runs, matches, columns, .. } = matching;
        let mut bits = arrow::array::BooleanBufferBuilder::new(runs.rows() as usize);
        matches.iter().for_each(|matches| bits.append_buffer(matches));
        let (seen, runs) = (runs.rows(), runs.only(&bits.finish()));
        if let Some(predicate) = &self.predicate {
            self.context.skipped.add(&predicate.skipped(seen - runs.rows(), 0, 0));
            predicate.rate.add(seen, runs.rows());
        }
        let others = self.of.columns.iter().copied();
        let others = others.filter(|column| !reader.columns.contains(column)).collect();
        let some = (Some(runs.clone()), &reader.pages);
        let others = (runs.rows() > 0)
            .then(|| ColumnReader::new(&self.of, others, some, &self.context))
            .transpose()?;
        let (matched, runs) = (Some(columns), Some(runs));
        self.stage =
            ReadStage::Rows(Box::new(RowsStage { reader: others, matched, runs, rest: None }));
        Ok(())
    }

    /// The next rows to be emitted, as the file has them, with all columns.
    fn read(&mut self, rows_max: usize) -> Result<Option<RecordBatch>, ConnectorError> {
        let Some(batch) = self.read_narrow(rows_max)? else { return Ok(None) };
        let wide = self.of.as_stated(batch);
        wide.map(Some).map_err(|error| damaged(self.of.file.blob.name(), &error.to_string()))
    }

    /// The same, where decimals may have fewer bits than the file's schema says.
    fn read_narrow(&mut self, rows_max: usize) -> Result<Option<RecordBatch>, ConnectorError> {
        let ReadStage::Rows(giving) = &mut self.stage else { return Ok(None) };
        if let Some(rest) = giving.rest.take() {
            return Ok(Some(rest));
        }
        let Some(reader) = &mut giving.reader else { return Ok(None) };
        let Some(batch) = reader.read(rows_max)? else { return Ok(None) };
        if let Some(matched) = &mut giving.matched {
            let others = &reader.columns;
            let of_first = self.of.columns.iter().map(|column| !others.contains(column));
            let first = beside(matched, batch.num_rows());
            let both = first.and_then(|first| joined(of_first, &first, &batch));
            return both
                .map(Some)
                .map_err(|error| damaged(self.of.file.blob.name(), &error.to_string()));
        }
        if giving.runs.is_some() {
            return Ok(Some(batch));
        }
        // Only the rows behind the position.
        let begin = self.row;
        self.row += batch.num_rows() as u64;
        let before = usize::try_from(self.passed.saturating_sub(begin)).unwrap_or(usize::MAX);
        let before = before.min(batch.num_rows());
        Ok(Some(batch.slice(before, batch.num_rows() - before)))
    }

    /// The numbers in the file of the next rows, and the row of the row group behind them.
    fn numbers(&mut self, rows: usize) -> (Box<dyn RecordNumbers>, u64) {
        let first = self.of.first;
        match &mut self.stage {
            ReadStage::Rows(giving) if giving.runs.is_some() => {
                let numbers = giving.runs.as_mut().map_or(vec![], |runs| runs.take(rows as u64));
                let behind = numbers.last().map_or(self.passed, |last| last + 1);
                (Box::new(numbers.into_iter().map(|row| first + row).collect::<Vec<_>>()), behind)
            }
            _ => (Box::new(first + self.passed), self.passed + rows as u64),
        }
    }

    /// The next batch in the stage that emits rows.
    fn rows(&mut self, rows_max: usize) -> Result<Next, ConnectorError> {
        loop {
            let Some(batch) = self.read(rows_max)? else {
                if self.predicate.is_none() && self.row < self.passed {
                    let message =
                        format!("the position is behind row {}, and the end", self.passed);
                    return Err(refused(&self.split, message));
                }
                return Ok(Next::End);
            };
            let rows = batch.num_rows().min(rows_max);
            if let ReadStage::Rows(giving) = &mut self.stage
                && rows < batch.num_rows()
            {
                giving.rest = Some(batch.slice(rows, batch.num_rows() - rows));
            }
            if rows == 0 {
                continue;
            }
            let (batch, name) = (batch.slice(0, rows), self.of.file.blob.name());
            let (records, behind) = self.numbers(rows);
            let batch = self.of.file.mapping.rows(&self.refuser, &batch, &name, &*records)?;
            self.passed = behind;
            if batch.num_rows() > 0 {
                return Ok(Next::Batch(batch));
            }
        }
    }
}

impl SplitReader for ParquetReader {
    fn next(&mut self, rows_max: usize) -> Result<Next, ConnectorError> {
        loop {
            let name = || self.of.file.blob.name();
            match &mut self.stage {
                ReadStage::Index { fetching, plan } => {
                    if let Some(wait) = fetching.wait()? {
                        return Ok(wait);
                    }
                    let (of, target) = (&self.of, &self.refuser.target);
                    let index = plan.read(&of.file, target, &*fetching.blob, of.group);
                    let index = index.map_err(|message| damaged(name(), &message))?;
                    self.look_at(index)?;
                }
                ReadStage::Match(matching) => {
                    if let Some(wait) = matching.reader.fetching.wait()? {
                        return Ok(wait);
                    }
                    if matching.step(rows_max, &self.of, &self.refuser.target)? {
                        if let Some([seen, matched]) = matching.tried() {
                            let pages = Arc::clone(&matching.reader.pages);
                            let runs = matching.runs.clone();
                            let stage = self.all_of(runs, &pages)?;
                            if let Some(predicate) = &self.predicate {
                                predicate.rate.add(seen, matched);
                            }
                            self.stage = stage;
                        }
                        // The worker has other things to do between two batches.
                        return Ok(Next::Wait { until_ns: 0 });
                    }
                    let ReadStage::Match(matching) =
                        std::mem::replace(&mut self.stage, ReadStage::none())
                    else {
                        return Ok(Next::End);
                    };
                    self.give(*matching)?;
                }
                ReadStage::Rows(giving) => {
                    if let Some(reader) = &mut giving.reader
                        && let Some(wait) = reader.fetching.wait()?
                    {
                        return Ok(wait);
                    }
                    return self.rows(rows_max);
                }
            }
        }
    }

    fn position(&self) -> Position {
        let place = RowPlace { of: self.of.file.blob.version(), rows: self.passed };
        passed(FORMAT, &self.split, place)
    }
}

impl ReadStage {
    /// The stage of a row group of which no row is read.
    fn none() -> Self {
        Self::Rows(Box::new(RowsStage { reader: None, matched: None, runs: None, rest: None }))
    }
}

/// Removes the first `rows` rows of some batches, and gives them.
fn beside(batches: &mut VecDeque<RecordBatch>, rows: usize) -> Result<RecordBatch, ArrowError> {
    let (mut taken, mut left) = (vec![], rows);
    while left > 0 {
        let Some(batch) = batches.pop_front() else {
            return Err(ArrowError::ComputeError("its columns have not as many rows".into()));
        };
        let some = batch.num_rows().min(left);
        if some < batch.num_rows() {
            batches.push_front(batch.slice(some, batch.num_rows() - some));
        }
        taken.push(batch.slice(0, some));
        left -= some;
    }
    match &taken[..] {
        [one] => Ok(one.clone()),
        [] => Err(ArrowError::ComputeError("a batch without rows".into())),
        several => concat_batches(&several[0].schema(), several),
    }
}

/// Joins two batches of the same rows; `of_first` says for each column whether it is of the first.
fn joined(
    of_first: impl Iterator<Item = bool>,
    first: &RecordBatch,
    second: &RecordBatch,
) -> Result<RecordBatch, ArrowError> {
    let mut next = [0, 0];
    let (mut fields, mut columns) = (vec![], vec![]);
    for of_first in of_first {
        let (batch, at) = if of_first { (first, 0) } else { (second, 1) };
        let column = next[at];
        next[at] += 1;
        if column >= batch.num_columns() {
            return Err(ArrowError::SchemaError("a column did not come".into()));
        }
        fields.push(batch.schema().field(column).clone());
        columns.push(Arc::clone(batch.column(column)));
    }
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)
}
