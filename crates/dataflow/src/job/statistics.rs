//! Statistics of rows before they are read: how many there are at most, and the bounds of their
//! columns. They go from sources along the edges of a job, as far as steps pass columns on.

use arrow::datatypes::SchemaRef;

use crate::connector::source::{ColumnBounds, Split};
use crate::job::{Aggregation, Edge, JoinKind, Operator, RowRange, Scan, Step};
use crate::rows::size::row_bytes;

/// Statistics of the rows that go along an edge.
#[derive(Debug, Clone, Default)]
pub struct Statistics {
    /// How many there are at most.
    pub rows_max: Option<u64>,
    /// The estimated number of rows, which bounds nothing.
    pub rows_estimate: Option<u64>,
    /// Bytes of the files that they are read from.
    read_bytes: Option<u64>,
    columns: Vec<ColumnBounds>,
    /// Whether they end.
    pub ends: bool,
    /// Whether every worker has some of them to begin with.
    pub spread: bool,
}

impl Statistics {
    /// Of the rows that each operator emits. Sources are asked for their splits.
    pub fn of(operators: &[Operator], workers: u32) -> Vec<Self> {
        let mut emitted: Vec<Self> = Vec::with_capacity(operators.len());
        for operator in operators {
            let inputs = operator.inputs.iter().map(|edges| Self::along(edges, &emitted));
            let inputs: Vec<Self> = inputs.collect();
            emitted.push(operator.spec().statistics(&inputs, workers));
        }
        emitted
    }

    /// Of rows of which it is known only whether they end, on all workers.
    pub(crate) fn of_unknown(ends: bool) -> Self {
        Self { ends, spread: true, ..Self::default() }
    }

    /// Of the rows of a scan.
    pub fn of_scan(scan: &Scan, workers: u32) -> Self {
        let flows = scan.splits(workers).unwrap_or_default();
        let ends = scan.bounded();
        let sum = |each: fn(&Split) -> Option<u64>| {
            if ends { flows.iter().map(each).sum() } else { None }
        };
        let columns = 0..scan.columns().fields().len();
        let rows_max: Option<u64> = sum(|flow| flow.rows);
        let read_bytes: Option<u64> = sum(|flow| flow.bytes);
        let by_bytes = || Some((read_bytes? / row_bytes(&scan.columns()).max(1)).max(1));
        Self {
            rows_max,
            rows_estimate: rows_max.or_else(by_bytes),
            read_bytes,
            columns: columns.map(|column| scan.bounds(column)).collect(),
            ends,
            spread: flows.len() >= workers as usize,
        }
    }

    /// Of the rows of all of an input's edges, by the statistics of what each operator emits.
    pub fn along(edges: &[Edge], emitted: &[Self]) -> Self {
        let rows = edges.iter().map(|edge| emitted[edge.from].behind(edge.step.as_deref()));
        rows.reduce(Self::or).unwrap_or_default()
    }

    /// The estimated number of bytes of the rows, of these columns.
    pub fn bytes_estimate(&self, schema: &SchemaRef) -> Option<u64> {
        self.rows_estimate.map(|rows| rows.saturating_mul(row_bytes(schema)))
    }

    /// Bytes of so many rows of these columns at most; of files those that are read.
    pub fn bytes(&self, schema: &SchemaRef) -> Option<u64> {
        self.rows_max.map(|rows| rows.saturating_mul(row_bytes(schema))).or(self.read_bytes)
    }

    /// Of a column's values.
    pub fn column(&self, column: usize) -> ColumnBounds {
        self.columns.get(column).copied().unwrap_or_default()
    }

    /// Of the rows that a step makes of these.
    pub fn behind(&self, step: Option<&dyn Step>) -> Self {
        let Some(step) = step else { return self.clone() };
        let times = |count: Option<u64>| Some(count?.saturating_mul(step.rows_of_one()?));
        let columns = 0..step.schema().fields().len();
        let passed = columns.map(|column| step.passes_on(column).map(|from| self.column(from)));
        let columns = passed.map(Option::unwrap_or_default).collect();
        let (rows_max, read_bytes) = (times(self.rows_max), times(self.read_bytes));
        let rows_estimate = times(self.rows_estimate);
        Self { rows_max, rows_estimate, read_bytes, columns, ..*self }
    }

    /// Of either, as in a union.
    fn or(self, other: Self) -> Self {
        let sum = |a: Option<u64>, b: Option<u64>| Some(a?.saturating_add(b?));
        let columns = self.columns.iter().zip(&other.columns).map(|(a, b)| a.or(*b));
        Self {
            rows_max: sum(self.rows_max, other.rows_max),
            rows_estimate: sum(self.rows_estimate, other.rows_estimate),
            read_bytes: sum(self.read_bytes, other.read_bytes),
            columns: columns.collect(),
            ends: self.ends && other.ends,
            spread: self.spread || other.spread,
        }
    }

    /// The statistics of the rows in a range, on one worker.
    pub(crate) fn in_range(self, range: &RowRange) -> Self {
        let left = self.rows_max.map(|rows| rows.saturating_sub(range.skip as u64));
        let fetch = range.fetch.map(|fetch| fetch as u64);
        let rows_max = left.into_iter().chain(fetch).min();
        Self { rows_max, spread: false, ends: self.ends || fetch.is_some(), ..self }
    }

    /// Those behind a join with a table: how many partners a row has is not known.
    pub(crate) fn joined(mut self, table: Self) -> Self {
        self.columns.extend(table.columns);
        Self { rows_max: None, read_bytes: None, ..self }
    }

    /// What a grouping gives out of them: its keys come first.
    pub(crate) fn grouped(&self, aggregation: &Aggregation) -> Self {
        let columns = aggregation.keys.iter().map(|&key| self.column(key)).collect();
        let (rows_max, spread) = (self.groups_max(aggregation), !aggregation.keys.is_empty());
        let rows_estimate = rows_max.or(self.rows_estimate);
        Self { rows_max, rows_estimate, read_bytes: None, columns, ends: self.ends, spread }
    }

    /// The statistics behind a join of these rows with others by equal keys. The estimate assumes
    /// that each row of the larger side has about one partner.
    pub(crate) fn met(self, build: Self, kind: JoinKind) -> Self {
        use JoinKind::{Full, Inner, Left, LeftAnti, LeftSemi, Right, RightAnti, RightSemi};
        let sum = |a: Option<u64>, b: Option<u64>| Some(a?.saturating_add(b?));
        let most = |a: Option<u64>, b: Option<u64>| Some(a?.max(b?));
        let (left, right) = (self.rows_estimate, build.rows_estimate);
        let (rows_max, rows_estimate, columns) = match kind {
            LeftSemi | LeftAnti => (self.rows_max, left, self.columns),
            RightSemi | RightAnti => (build.rows_max, right, build.columns),
            Inner | Left | Right => {
                (None, most(left, right), [self.columns, build.columns].concat())
            }
            Full => (None, sum(left, right), [self.columns, build.columns].concat()),
        };
        let ends = self.ends && build.ends;
        Self { rows_max, rows_estimate, read_bytes: None, columns, ends, spread: true }
    }

    /// How many values of `keys` there are together, at most. NULL is one.
    pub fn values_max(&self, keys: &[usize]) -> Option<u64> {
        keys.iter().try_fold(1u64, |all, &key| {
            Some(all.saturating_mul(self.column(key).distinct_max?.saturating_add(1)))
        })
    }

    /// About how many values of `keys` there are together. A range that is wider than there are
    /// rows says nothing of how many of its numbers occur.
    pub fn values(&self, keys: &[usize]) -> Option<u64> {
        let found = |&key: &usize| {
            let ColumnBounds { range, distinct_max } = self.column(key);
            let distinct = distinct_max?;
            (range.is_none() || distinct <= self.rows_max?).then_some(distinct)
        };
        keys.iter().try_fold(1u64, |all, key| Some(all.saturating_mul(found(key)?)))
    }

    /// Windows of a grouping that these rows may fall into, at most; `None` where that is unknown,
    /// as of sessions. One for a grouping without windows.
    pub fn windows_max(&self, aggregation: &Aggregation) -> Option<u64> {
        let Some(window) = &aggregation.window else { return Some(1) };
        let range = self.column(window.column).range.filter(|_| window.windows.gap().is_none());
        let width = window.windows.width().max(1);
        range.map(|[least, greatest]| (greatest.abs_diff(least) / width as u64).saturating_add(2))
    }

    /// Groups of a grouping of these rows, of all windows, at most.
    pub fn groups_max(&self, aggregation: &Aggregation) -> Option<u64> {
        let keys = self.values_max(&aggregation.keys).zip(self.windows_max(aggregation));
        let groups = keys.map(|(keys, windows)| keys.saturating_mul(windows));
        groups.into_iter().chain(self.rows_max).min()
    }
}
