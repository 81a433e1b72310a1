//! Reads a row group: all of it, or the rows that may match a predicate.
//!
//! ```text
//! whole    ─────────────────────────────────────────────────────────▶ rows
//! pruned   page index, Bloom filters ─▶ predicate's columns ─▶ rows of the other columns
//!            which pages may match        which rows match        only those are decoded
//! ```
//!
//! Each stage asks for its bytes when it begins, so that what a stage rules out is never fetched.
//! The predicate's columns are read first only where the others are large enough for it to pay, and
//! not where most rows have matched so far. A position counts all rows of the row group, whether or
//! not they were given: it means the same with and without a predicate.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{ArrayRef, BooleanArray, UInt32Array, new_null_array};
use arrow::buffer::BooleanBuffer;
use arrow::compute::{concat_batches, filter_record_batch, take};
use arrow::datatypes::Schema;
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;
use dataflow::position::refused;
use dataflow::predicate::Predicate;
use dataflow::source::{Next, Position, ReaderContext, SkippedRows, Split, SplitReader};
use parquet::arrow::arrow_reader::ParquetRecordBatchReader;
use parquet::arrow::{ProjectionMask, parquet_to_arrow_field_levels};

use super::index::{GroupIndex, IndexPlan, PageList};
use super::runs::RowRuns;
use super::statistics::LeafColumn;
use super::{FORMAT, ParquetFile, damaged, pages};
use crate::format::rows::fitted;
use crate::format::typed::{Records, guarded};
use crate::format::{Refuser, TargetColumns};
use crate::stored::{FetchingBlob, RowPlace, passed};

/// How much smaller than the predicate's columns the others may be for those to be read first.
const OTHERS_SHARE: i64 = 2;

/// A row group to be read.
#[derive(Clone)]
pub(super) struct GroupOf {
    pub(super) file: Arc<ParquetFile>,
    pub(super) group: usize,
    /// The file's columns that are read.
    pub(super) columns: Vec<usize>,
    /// The number in the file of its first row, counted from 1.
    pub(super) first: u64,
}

impl GroupOf {
    fn rows(&self) -> u64 {
        self.file.metadata.metadata().row_group(self.group).num_rows().max(0) as u64
    }

    fn place(&self, row: u64) -> String {
        format!("{}:{}", self.file.blob.name(), self.first + row)
    }

    /// Bytes of columns as they are decoded.
    fn bytes(&self, columns: &[usize]) -> i64 {
        let roots = self.file.metadata.parquet_schema();
        let group = self.file.metadata.metadata().row_group(self.group);
        let leaves = (0..group.num_columns())
            .filter(|leaf| columns.contains(&roots.get_column_root_idx(*leaf)));
        leaves.map(|leaf| group.column(leaf).uncompressed_size().max(0)).sum()
    }
}

/// How many rows have matched so far, of those that were looked at.
#[derive(Debug, Default)]
pub(super) struct MatchRate {
    seen: AtomicU64,
    matched: AtomicU64,
}

impl MatchRate {
    fn add(&self, seen: u64, matched: u64) {
        self.seen.fetch_add(seen, Ordering::Relaxed);
        self.matched.fetch_add(matched, Ordering::Relaxed);
    }

    /// Whether most rows match.
    fn is_high(&self) -> bool {
        let [seen, matched] =
            [&self.seen, &self.matched].map(|count| count.load(Ordering::Relaxed));
        matched.saturating_mul(2) > seen
    }
}

/// What is asked of rows.
#[derive(Clone)]
pub(super) struct RowPredicate {
    pub(super) kept: Predicate,
    pub(super) rate: Arc<MatchRate>,
}

/// Some columns of the rows of a row group.
struct ColumnReader {
    of: GroupOf,
    fetching: FetchingBlob,
    columns: Vec<usize>,
    /// The rows, where not all are read.
    runs: Option<RowRuns>,
    pages: Arc<BTreeMap<usize, PageList>>,
    reader: Option<ParquetRecordBatchReader>,
    /// Rows that were read.
    row: u64,
    /// Rows that have not come yet.
    left: u64,
}

impl ColumnReader {
    fn new(
        of: &GroupOf,
        columns: Vec<usize>,
        (runs, pages): (Option<RowRuns>, &Arc<BTreeMap<usize, PageList>>),
        context: &ReaderContext,
    ) -> Result<Self, ConnectorError> {
        let ranges = guarded(|| Ok::<_, String>(ranges(of, &columns, runs.as_ref(), pages)))
            .map_err(|message| damaged(of.file.blob.name(), &message))?;
        Ok(Self {
            fetching: FetchingBlob::new(&of.file.blob, ranges, context),
            left: runs.as_ref().map_or_else(|| of.rows(), RowRuns::rows),
            of: of.clone(),
            columns,
            runs,
            pages: Arc::clone(pages),
            reader: None,
            row: 0,
        })
    }

    /// The next rows as the file has them.
    fn read(&mut self, rows_max: usize) -> Result<Option<RecordBatch>, ConnectorError> {
        let place = self.of.place(self.row);
        let next = guarded(|| {
            let reader = match &mut self.reader {
                Some(reader) => reader,
                None => {
                    let reader = self.begin(rows_max).map_err(|error| error.to_string())?;
                    self.reader.insert(reader)
                }
            };
            reader.next().transpose().map_err(|error| error.to_string())
        });
        let next = next.map_err(|message| damaged(place.clone(), &message))?;
        let rows = next.as_ref().map_or(0, |batch| batch.num_rows() as u64);
        let states = |what: &str| {
            let message = format!("row group {} states {what} rows than it has", self.of.group);
            Err(damaged(place, &message))
        };
        match self.left.checked_sub(rows) {
            None => states("fewer"),
            Some(left) if left > 0 && next.is_none() => states("more"),
            Some(left) => {
                self.left = left;
                self.row += rows;
                Ok(next)
            }
        }
    }

    fn begin(&self, rows_max: usize) -> parquet::errors::Result<ParquetRecordBatchReader> {
        let metadata = &self.of.file.metadata;
        let roots = metadata.parquet_schema();
        let mask = ProjectionMask::roots(roots, self.columns.iter().copied());
        let hint = Some(metadata.schema().fields());
        let levels = parquet_to_arrow_field_levels(roots, mask, hint)?;
        let group = pages::Group {
            blob: Arc::clone(&self.fetching.blob),
            metadata: Arc::clone(metadata.metadata()),
            index: self.of.group,
            unpacked: Arc::default(),
            pages: Arc::clone(&self.pages),
        };
        let selection = self.runs.as_ref().map(|runs| runs.selection(self.of.rows()));
        ParquetRecordBatchReader::try_new_with_row_groups(&levels, &group, rows_max, selection)
    }
}

/// Where the bytes are that are read.
fn ranges(
    of: &GroupOf,
    columns: &[usize],
    runs: Option<&RowRuns>,
    pages: &BTreeMap<usize, PageList>,
) -> Vec<Range<u64>> {
    let roots = of.file.metadata.parquet_schema();
    let mask = ProjectionMask::roots(roots, columns.iter().copied());
    let chunks = of.file.metadata.metadata().row_group(of.group).columns().iter().enumerate();
    let read = chunks.filter(|(leaf, _)| mask.leaf_included(*leaf));
    let ranges = read.flat_map(|(leaf, chunk)| match (runs, pages.get(&leaf)) {
        (Some(runs), Some(list)) => list.ranges(runs),
        _ => {
            let (start, length) = chunk.byte_range();
            vec![start..start.saturating_add(length).min(of.file.blob.bytes()).max(start)]
        }
    });
    ranges.collect()
}

/// What a reader does now.
enum Stage {
    /// It waits for the indexes.
    Index { fetching: FetchingBlob, plan: IndexPlan },
    /// It finds the rows that match.
    Match(Box<Matching>),
    /// It gives rows.
    Rows(Box<Giving>),
}

/// The predicate's columns of the rows that may match.
struct Matching {
    reader: ColumnReader,
    runs: RowRuns,
    kept: Predicate,
    matches: Vec<BooleanBuffer>,
    /// The predicate's columns of rows that match.
    columns: VecDeque<RecordBatch>,
}

/// The rows that are given.
struct Giving {
    /// The columns that were not read to find the rows; none where all were.
    reader: Option<ColumnReader>,
    /// The others.
    matched: Option<VecDeque<RecordBatch>>,
    /// The numbers in the row group of the rows to come, where not all are read.
    runs: Option<RowRuns>,
    /// Rows that did not fit into the last batch asked for, as the file has it.
    rest: Option<RecordBatch>,
}

/// A row group that is being read.
pub(super) struct ParquetReader {
    of: GroupOf,
    split: String,
    predicate: Option<RowPredicate>,
    stage: Stage,
    /// Rows of it that were given, or refused, or are passed over because they were before.
    passed: u64,
    /// The row to be read next, where all are read.
    row: u64,
    refuser: Refuser,
    context: ReaderContext,
}

impl ParquetReader {
    /// Opens a row group of which `passed` rows were given before.
    ///
    /// # Errors
    /// When the places of its columns are none.
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
            Some(predicate) => {
                let read = (of.group, &of.columns[..]);
                let plan = IndexPlan::new(&of.file, target, read, &predicate.kept);
                let ranges = plan.ranges(&of.file, of.group);
                let fetching = FetchingBlob::new(&of.file.blob, ranges, context);
                Stage::Index { fetching, plan }
            }
            None => {
                let all = (None, &Arc::default());
                let reader = Some(ColumnReader::new(&of, of.columns.clone(), all, context)?);
                Stage::Rows(Box::new(Giving { reader, matched: None, runs: None, rest: None }))
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

    /// Which rows may match, by the indexes; then goes on to find those that do, or to give them.
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
            skipped.add(&SkippedRows { row_groups: 1, pages: 0, rows });
        } else {
            let pages = index.pages.values().map(|list| list.skipped(&runs)).sum();
            skipped.add(&SkippedRows { row_groups: 0, pages, rows: rows - runs.rows() });
        }
        let runs = runs.behind(self.passed);
        let pages = Arc::new(index.pages);
        let looks = Lookable::new(&self.of, &self.refuser.target, &predicate);
        self.stage = match looks.filter(|_| runs.rows() > 0) {
            Some(Lookable { kept, columns }) => {
                let some = (Some(runs.clone()), &pages);
                let reader = ColumnReader::new(&self.of, columns, some, &self.context)?;
                let (matches, columns) = (vec![], VecDeque::new());
                Stage::Match(Box::new(Matching { reader, runs, kept, matches, columns }))
            }
            None => {
                let some = (Some(runs.clone()), &pages);
                let columns = self.of.columns.clone();
                let reader = (runs.rows() > 0)
                    .then(|| ColumnReader::new(&self.of, columns, some, &self.context));
                let (reader, runs) = (reader.transpose()?, Some(runs));
                Stage::Rows(Box::new(Giving { reader, matched: None, runs, rest: None }))
            }
        };
        Ok(())
    }

    /// Goes on to give the rows that match, which are all found.
    fn give(&mut self, matching: Matching) -> Result<(), ConnectorError> {
        let Matching { reader, runs, matches, columns, .. } = matching;
        let mut bits = arrow::array::BooleanBufferBuilder::new(runs.rows() as usize);
        matches.iter().for_each(|matches| bits.append_buffer(matches));
        let (seen, runs) = (runs.rows(), runs.only(&bits.finish()));
        let skipped = SkippedRows { row_groups: 0, pages: 0, rows: seen - runs.rows() };
        self.context.skipped.add(&skipped);
        if let Some(predicate) = &self.predicate {
            predicate.rate.add(seen, runs.rows());
        }
        let others = self.of.columns.iter().copied();
        let others = others.filter(|column| !reader.columns.contains(column)).collect();
        let some = (Some(runs.clone()), &reader.pages);
        let others = (runs.rows() > 0)
            .then(|| ColumnReader::new(&self.of, others, some, &self.context))
            .transpose()?;
        let (matched, runs) = (Some(columns), Some(runs));
        self.stage = Stage::Rows(Box::new(Giving { reader: others, matched, runs, rest: None }));
        Ok(())
    }

    /// The next rows to be given, as the file has them, of which all columns are there.
    fn read(&mut self, rows_max: usize) -> Result<Option<RecordBatch>, ConnectorError> {
        let Stage::Rows(giving) = &mut self.stage else { return Ok(None) };
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
        // The rows that are behind the position.
        let begin = self.row;
        self.row += batch.num_rows() as u64;
        let before = usize::try_from(self.passed.saturating_sub(begin)).unwrap_or(usize::MAX);
        let before = before.min(batch.num_rows());
        Ok(Some(batch.slice(before, batch.num_rows() - before)))
    }

    /// The numbers in the file of the next rows, and the row of the row group behind them.
    fn numbers(&mut self, rows: usize) -> (Box<dyn Records>, u64) {
        let first = self.of.first;
        match &mut self.stage {
            Stage::Rows(giving) if giving.runs.is_some() => {
                let numbers = giving.runs.as_mut().map_or(vec![], |runs| runs.take(rows as u64));
                let behind = numbers.last().map_or(self.passed, |last| last + 1);
                (Box::new(numbers.into_iter().map(|row| first + row).collect::<Vec<_>>()), behind)
            }
            _ => (Box::new(first + self.passed), self.passed + rows as u64),
        }
    }

    /// Rows, at last.
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
            if let Stage::Rows(giving) = &mut self.stage
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
                Stage::Index { fetching, plan } => {
                    if let Some(wait) = fetching.wait()? {
                        return Ok(wait);
                    }
                    let (of, target) = (&self.of, &self.refuser.target);
                    let index = plan.read(&of.file, target, &*fetching.blob, of.group);
                    let index = index.map_err(|message| damaged(name(), &message))?;
                    self.look_at(index)?;
                }
                Stage::Match(matching) => {
                    if let Some(wait) = matching.reader.fetching.wait()? {
                        return Ok(wait);
                    }
                    if matching.step(rows_max, &self.of, &self.refuser.target)? {
                        // The worker has other things to do between two batches.
                        return Ok(Next::Wait { until_ns: 0 });
                    }
                    let Stage::Match(matching) = std::mem::replace(&mut self.stage, Stage::none())
                    else {
                        return Ok(Next::End);
                    };
                    self.give(*matching)?;
                }
                Stage::Rows(giving) => {
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
        let place = RowPlace { bytes: self.of.file.blob.bytes(), rows: self.passed };
        passed(FORMAT, &self.split, place)
    }
}

impl Stage {
    /// Of a row group without rows.
    fn none() -> Self {
        Self::Rows(Box::new(Giving { reader: None, matched: None, runs: None, rest: None }))
    }
}

impl Matching {
    /// Looks at the next rows; false when there are none.
    fn step(
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

/// What can be looked at row by row before the other columns are read, where that pays.
struct Lookable {
    kept: Predicate,
    /// The file's columns of it.
    columns: Vec<usize>,
}

impl Lookable {
    fn new(of: &GroupOf, target: &TargetColumns, predicate: &RowPredicate) -> Option<Self> {
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
    kept: &Predicate,
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
                fitted(batch.column(at), declared)?
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

/// Takes the first `rows` rows of some batches away.
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

/// Two batches of the same rows as one; each column is of the first batch or of the second.
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
