//! Scans, as data: the source of a table, the steps that its rows take before an operator sees
//! them, and its event time.

use std::sync::Arc;
use std::task::Waker;

use arrow::datatypes::{DataType, SchemaRef, TimeUnit};

use super::fusion::fusion_property;
use super::{
    DescribeContext, Description, OperatorSpec, ProbedBuild, Property, SavedState, Statistics,
};
use crate::connector::predicate::{ColumnPredicate, JoinFilters};
use crate::connector::scan::{self, FilteredReader, ScanStep};
use crate::connector::source::{
    BucketPart, ColumnBounds, NewSplits, Position, Pruning, ReaderContext, Source, Split,
    SplitReader,
};
use crate::error::ConnectorError;
use crate::rows::time::{span_text, ticks_text};
use crate::secrets::masked;

/// A table that is read.
#[derive(Clone)]
pub struct Scan {
    /// The table's name.
    pub table: String,
    /// The connector's reader of the table.
    pub source: Arc<dyn Source>,
    /// The steps that its rows go through, one after another.
    pub steps: Vec<Arc<dyn ScanStep>>,
    /// Its event time, whether or not anything goes by it.
    pub time: Option<TimeColumn>,
    /// How its event time goes on, where something goes by it.
    pub watermark: Option<Watermark>,
    /// Of a scan in a run: the filters of the builds in which its rows are looked up, over the
    /// columns behind all steps.
    pub filters: Option<Arc<JoinFilters>>,
    /// How its rows are led to workers, where it is [placed](Self::placed).
    pub placement: Option<ScanPlacement>,
    /// Whether each process reads all of it, and its workers have a part each.
    pub is_pulled: bool,
    /// Of a scan that is pulled: the buckets that each process reads. It reads all of it where this
    /// is empty.
    pub grid: Vec<GridAxis>,
}

/// How a scan is [placed](Scan::placed).
#[derive(Clone)]
pub struct ScanPlacement {
    /// The column behind all steps that leads rows to workers.
    pub column: usize,
    /// The source whose splits are assigned by cost.
    unplaced: Arc<dyn Source>,
}

/// How processes divide the buckets of a column among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GridAxis {
    /// The column of the source.
    pub column: usize,
    /// The parts of its buckets.
    pub parts: u32,
    /// Process `n` reads part number `n / stride % parts`.
    pub stride: u32,
}

/// A column without which a row is a bad row, in every query alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeColumn {
    /// Its column behind all steps.
    pub column: usize,
    /// The policy for such a row.
    pub on_bad: OnBad,
}

/// The policy for bad rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnBad {
    /// It is counted, and shown with its place.
    Show,
    /// It is counted: a step of the scan has kept it.
    Count,
    /// It ends the job.
    Fail,
}

/// How far a flow's rows may be out of order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watermark {
    /// The time column behind all steps: an Arrow timestamp of any unit.
    pub column: usize,
    /// Ticks of the column's unit that rows may lag behind the latest.
    pub delay: i64,
    /// Nanoseconds of silence after which a flow no longer holds the watermark back; `None` for
    /// never.
    pub idle_timeout_ns: Option<u64>,
}

impl GridAxis {
    /// The part that a process reads.
    pub(crate) fn part_of(&self, rank: u32) -> u32 {
        rank / self.stride.max(1) % self.parts.max(1)
    }
}

impl Scan {
    /// A scan of the rows as the connector reads them, without event time.
    pub fn new(table: impl Into<String>, source: Arc<dyn Source>) -> Self {
        let (table, steps, time) = (table.into(), vec![], None);
        let (filters, placement) = (None, None);
        let (watermark, is_pulled) = (None, false);
        let grid = vec![];
        Self { table, source, steps, time, watermark, filters, placement, is_pulled, grid }
    }

    /// The same scan with a step behind the others.
    pub fn then(mut self, step: impl ScanStep + 'static) -> Self {
        self.steps.push(Arc::new(step));
        self
    }

    /// The columns behind all steps.
    pub fn columns(&self) -> SchemaRef {
        self.steps.last().map_or_else(|| self.source.schema(), |step| step.schema())
    }

    /// The same scan without rows that cannot pass `filter`, over the columns behind all steps, as
    /// far as the source can leave them out. A row without event time is bad in every query, so it
    /// is kept.
    pub fn pruned(mut self, filter: ColumnPredicate) -> Self {
        let kept = with_untimed(filter, self.time);
        let Some(kept) = kept.over(&|column| self.read_as(column)) else { return self };
        let within_splits =
            self.watermark.is_none() && self.steps.iter().all(|step| step.is_stateless());
        if let Some(pruned) = self.source.pruned(&Pruning { kept, within_splits }) {
            self.source = pruned;
        }
        self
    }

    /// Whether rows may be left out of it that no operator needs: none of its steps counts or keeps
    /// them, and its watermark is not used. A source whose rows come once is read as they come: its
    /// writer may wait for that before it writes other inputs.
    pub(crate) fn may_leave_out_rows(&self) -> bool {
        let is_stateless = self.steps.iter().all(|step| step.is_stateless());
        self.watermark.is_none() && self.bounded() && self.source.repeats() && is_stateless
    }

    /// The same scan in a run, without rows that `filters` say are not needed, as they are when a
    /// split is opened. A row without event time is kept, as in [`Scan::pruned`].
    pub(crate) fn listening(&self, filters: Arc<JoinFilters>) -> Self {
        let places: Vec<Option<usize>> =
            (0..self.columns().fields().len()).map(|column| self.read_as(column)).collect();
        let (of, time) = (filters.clone(), self.time);
        let needed =
            move || with_untimed(of.predicate()?, time).over(&|column| *places.get(column)?);
        let source = self.source.listen(Arc::new(needed));
        let source = source.unwrap_or_else(|| self.source.clone());
        Self { source, filters: Some(filters), ..self.clone() }
    }

    /// Whether it waits for the filters of builds before it opens a split.
    pub(crate) fn is_listening(&self) -> bool {
        self.filters.is_some()
    }

    /// The same scan so that each of `workers` reads the rows that an exchange by a column would
    /// lead to it, where the source is stored by one that is read.
    pub fn placed(mut self, workers: u32) -> Self {
        if workers < 2 || self.watermark.is_some() || self.placement.is_some() {
            return self;
        }
        let Some((source, column)) = self.source.placed(workers) else { return self };
        let columns = 0..self.columns().fields().len();
        let Some(column) = columns.into_iter().find(|&at| self.read_as(at) == Some(column)) else {
            return self;
        };
        let unplaced = std::mem::replace(&mut self.source, source);
        self.placement = Some(ScanPlacement { column, unplaced });
        self
    }

    /// The same scan, not placed: its splits are assigned by cost.
    pub(crate) fn released(&self) -> Self {
        let of = self.placement.as_ref();
        let source = of.map_or(&self.source, |placement| &placement.unplaced).clone();
        Self { source, placement: None, ..self.clone() }
    }

    /// The same scan so that each process reads all of it, if its rows lie in memory that the
    /// processes share.
    pub fn pulled(&self) -> Option<Self> {
        let source = self.source.pulled().filter(|_| self.is_shared() && self.watermark.is_none());
        let pulled = |source| Self { source, placement: None, is_pulled: true, ..self.clone() };
        source.map(pulled)
    }

    /// The same scan as a process reads it: the buckets of its cell.
    pub fn of_process(&self, rank: u32) -> Self {
        let part = |axis: &GridAxis| BucketPart {
            column: axis.column,
            part: axis.part_of(rank),
            parts: axis.parts,
        };
        let cell: Vec<BucketPart> = self.grid.iter().map(part).collect();
        let source = if cell.is_empty() { None } else { self.source.in_cell(&cell) };
        Self { source: source.unwrap_or_else(|| self.source.clone()), ..self.clone() }
    }

    /// Whether a process can read all of it as well as a part, as [`Source::is_shared`].
    pub fn is_shared(&self) -> bool {
        self.source.is_shared() && self.steps.iter().all(|step| step.is_stateless())
    }

    /// Whether every split ends by itself.
    pub fn bounded(&self) -> bool {
        self.source.bounded()
    }

    /// The splits, as [`Source::splits`].
    ///
    /// # Errors
    /// As [`Source::splits`].
    pub fn splits(&self, workers: u32) -> Result<Vec<Split>, ConnectorError> {
        self.cut(workers, false)
    }

    /// The same by the costs that were measured, as [`Source::splits_by_cost`].
    pub(crate) fn splits_by_cost(&self, workers: u32) -> Result<Vec<Split>, ConnectorError> {
        self.cut(workers, true)
    }

    fn cut(&self, workers: u32, by_cost: bool) -> Result<Vec<Split>, ConnectorError> {
        let time = self.watermark.and_then(|watermark| self.read_as(watermark.column));
        let mut splits = match (self.watermark, time) {
            // The time of a row is computed.
            (Some(_), None) => self.source.splits_in_order(workers)?,
            (None, _) if by_cost => self.source.splits_by_cost(workers)?,
            _ => self.source.splits(workers, time)?,
        };
        if !self.steps.iter().all(|step| step.keeps_rows()) {
            for split in &mut splits {
                (split.rows, split.bytes) = (None, None);
            }
        }
        Ok(splits)
    }

    /// Bounds of a column behind all steps, as [`Source::bounds`].
    pub fn bounds(&self, column: usize) -> ColumnBounds {
        self.read_as(column).map_or_else(ColumnBounds::default, |read| self.source.bounds(read))
    }

    /// About how many distinct values a column has behind all steps, as [`Source::distinct`].
    pub fn distinct(&self, column: usize) -> Option<u64> {
        self.source.distinct(self.read_as(column)?)
    }

    /// Opens a split, as [`Source::open`].
    ///
    /// # Errors
    /// As [`Source::open`].
    pub fn open(
        &self,
        split: &Split,
        from: Option<&Position>,
        context: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        let reader = scan::open(self.source.as_ref(), &self.steps, split, from, context)?;
        let needed = self.filters.as_ref().and_then(|filters| filters.predicate());
        Ok(match needed {
            Some(needed) => {
                let needed = with_untimed(needed, self.time);
                Box::new(FilteredReader::new(reader, needed, context))
            }
            None => reader,
        })
    }

    /// The splits that it gets while it is read, as [`Source::new_splits`].
    ///
    /// # Errors
    /// As [`Source::new_splits`].
    pub fn new_splits(&self, waker: Waker) -> Result<Option<Box<dyn NewSplits>>, ConnectorError> {
        if self.bounded() { Ok(None) } else { self.source.new_splits(waker) }
    }

    /// The owner of a split of this name, as [`Source::owner_of`].
    pub(crate) fn owner_of(&self, split: &str) -> Option<u64> {
        self.source.owner_of(split)
    }

    /// The column of the source that a column behind all steps is, row by row.
    pub(crate) fn read_as(&self, column: usize) -> Option<usize> {
        self.steps.iter().rev().try_fold(column, |column, step| step.passes_on(column))
    }

    /// The unit of its watermarks.
    pub(crate) fn time_unit(&self) -> Option<TimeUnit> {
        match self.columns().field(self.watermark?.column).data_type() {
            DataType::Timestamp(unit, _) => Some(*unit),
            _ => None,
        }
    }

    /// Describes the table. With `readers`, it reports its splits for that many workers.
    pub fn properties(&self, readers: Option<u32>) -> Vec<Property> {
        let schema = self.columns();
        let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        let mut properties = vec![];
        if let Some(readers) = readers {
            properties.push(("flows", self.splits_text(readers)));
        }
        properties.push(("columns", names.join(", ")));
        if let Some(reads) = self.source.describe() {
            properties.push(("reads", masked(&reads).into_owned()));
        }
        if let Some(pruning) = self.source.describe_pruning() {
            properties.push(("pruned", pruning));
        }
        if let Some(ScanPlacement { column, .. }) = self.placement {
            let text = format!("each worker reads its own partitions, by {}", names[column]);
            properties.push(("placed", text));
        }
        if self.is_pulled {
            let source = self.source.schema();
            let axis = |axis: &GridAxis| {
                format!("1 of {} parts by {}", axis.parts, source.field(axis.column).name())
            };
            let cell: Vec<String> = self.grid.iter().map(axis).collect();
            let reads = if cell.is_empty() { "all of it".into() } else { cell.join(", ") };
            properties.push(("pulled", format!("each process reads {reads}")));
        }
        if !self.steps.is_empty() {
            let steps: Vec<String> = self.steps.iter().map(|step| step.describe()).collect();
            properties.push(("steps", steps.join(", ")));
        }
        if let Some(watermark) = self.watermark {
            let field = schema.field(watermark.column);
            let delay = ticks_text(watermark.delay, field.data_type());
            let idle = watermark.idle_timeout_ns;
            let idle =
                idle.map_or(String::new(), |ns| format!(", idle after {}", span_text(ns as i64)));
            properties.push(("watermark", format!("{} - {delay}{idle}", field.name())));
        }
        properties
    }

    /// The number of splits of the table for `readers` readers.
    fn splits_text(&self, readers: u32) -> String {
        let end = if self.bounded() { "" } else { ", unbounded" };
        match self.splits(readers) {
            Err(error) => format!("unreadable ({error})"),
            Ok(splits) => {
                let rows: Option<u64> = splits.iter().map(|split| split.rows).sum();
                let rows = rows.map_or(String::new(), |rows| format!(", {rows} rows"));
                format!("{}{rows}{end}", splits.len())
            }
        }
    }
}

/// The rows that match, and those without event time.
fn with_untimed(filter: ColumnPredicate, time: Option<TimeColumn>) -> ColumnPredicate {
    match time {
        Some(time) => ColumnPredicate::Any(vec![filter, ColumnPredicate::Null(time.column)]),
        None => filter,
    }
}

impl OperatorSpec for Scan {
    fn input_schema(&self, _: usize) -> Option<SchemaRef> {
        None
    }

    fn schema(&self) -> Option<SchemaRef> {
        Some(self.columns())
    }

    fn saved_state(&self) -> SavedState {
        SavedState::Nothing
    }

    fn describe(&self, context: &DescribeContext<'_>) -> Description {
        let mut properties = self.properties(context.readers);
        properties.extend(fusion_property(context.fusion));
        if !context.builds.is_empty() {
            let schema = self.columns();
            let of = |build: &ProbedBuild| {
                format!("{} in the build of [{}]", schema.field(build.column).name(), build.join)
            };
            let builds: Vec<String> = context.builds.iter().map(of).collect();
            properties.push(("join filters", builds.join(", ")));
        }
        let name = if context.fusion.is_ok() { "FusedScan" } else { "Scan" };
        Description { name, properties }
    }

    fn statistics(&self, _: &[Statistics], workers: u32) -> Statistics {
        Statistics::of_scan(self, workers)
    }

    fn source(&self) -> Option<&Scan> {
        Some(self)
    }

    fn placed_by(&self) -> Option<(usize, DataType)> {
        let column = self.placement.as_ref()?.column;
        Some((column, self.columns().field(column).data_type().clone()))
    }
}
