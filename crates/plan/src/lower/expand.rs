//! Rows that come out of a step several times: once for each grouping set ([`crate::lower::sets`]),
//! or once for each window that they are in ([`crate::lower::multi_window`]).
//!
//! A relation is finished in front of such a step, and a new one begins behind it, whose columns
//! are those of the old one and what the step adds. Nothing is kept: rows, their lateness and
//! watermarks go on as they came.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array, UInt32Array, UInt64Array, new_null_array};
use arrow::compute::{cast, concat, take};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use dataflow::error::DataflowError;
use dataflow::job::{Origin, Property, Step, Stepped};
use dataflow::step::chain;
use dataflow::time::{last_tick, ticks};
use datafusion::common::Column;
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::Expr;
use state::Windows;

use crate::expr::own::own;
use crate::logical::windows::Bound;
use crate::lower::builder::JobBuilder;
use crate::lower::context::Context;
use crate::lower::pipeline;
use crate::lower::pipeline::RequestedColumns;
use crate::lower::relation::{LowerError, Relation};
use crate::lower::session::{columns_beside, replaced, row_name, take_filters};
use crate::lower::window_bounds::AttachedWindow;

/// Lets the rows of a relation go through a step that gives them several times.
///
/// `computed` arrive at it. `make` is given the columns that do, and which of them each of
/// `computed` is; its step passes all of them on and adds others. `added` is the column of the
/// step that an expression over the old base becomes.
pub(crate) fn expanded(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    mut relation: Relation,
    computed: &[Expr],
    make: impl FnOnce(&SchemaRef, &[usize]) -> DfResult<Arc<dyn Step>>,
    added: impl Fn(&Expr) -> Option<Expr>,
) -> Result<Relation, LowerError> {
    let later = take_filters(&mut relation);
    let mut requested = RequestedColumns::default();
    let places: Vec<usize> = computed.iter().map(|expr| requested.index(expr)).collect();
    for expr in relation.outputs.iter().map(|(_, expr)| expr).chain(&later) {
        let columns = columns_beside(expr, |node| added(node).is_some());
        columns.iter().for_each(|column| _ = requested.index(column));
    }
    let attached = relation.attached.as_ref().map(|attached| &attached.last);
    attached.into_iter().for_each(|last| _ = requested.index(last));
    let time = requested.0.iter().find(|requested| relation.tells(requested)).cloned();
    let finished =
        pipeline::finish_without_lateness(cx, job, &relation, &requested.0, time.as_ref())?;
    let places: Vec<usize> = places.into_iter().map(|at| finished.places[at]).collect();
    let step = make(&finished.schema, &places).map_err(|error| cx.report(&error))?;

    let behind = step.schema();
    let passed = |expr: &Expr| {
        let at = requested.0.iter().position(|requested| requested == expr)?;
        let name = behind.field(finished.places[at]).name();
        (matches!(expr, Expr::Column(_)) || attached == Some(expr)).then(|| own(name))
    };
    let over = |expr: &Expr| replaced(expr.clone(), |node| added(node).or_else(|| passed(node)));
    let (columns, outputs): (Vec<Column>, Vec<&Expr>) =
        relation.outputs.iter().map(|(column, expr)| (column.clone(), expr)).unzip();
    let outputs = outputs.into_iter().map(over).collect::<Result<_, _>>()?;
    let edges = finished.edges.into_iter();
    let from = edges.map(|edge| (edge.from, chain(edge.step, Some(step.clone()))));
    let mut expanded = Relation::of_operators(from.collect(), step.schema(), columns, outputs)?;
    expanded.filters = later.iter().map(over).collect::<Result<_, _>>()?;
    expanded.lateness_ns = relation.lateness_ns;
    expanded.times = relation.times.iter().filter_map(passed).collect();
    expanded.windows = relation.windows.clone();
    let attached = relation.attached.as_ref();
    expanded.attach(attached.and_then(|AttachedWindow { window, last }| {
        Some(AttachedWindow { window: *window, last: passed(last)? })
    }));
    let names = finished.schema.fields().iter().zip(behind.fields()).filter_map(|(was, is)| {
        let known = relation.names.iter().find(|(name, _)| name == was.name());
        known.map(|(_, text)| (is.name().clone(), text.clone()))
    });
    expanded.names = names.collect();
    Ok(expanded)
}

/// The columns that a step passes on, under their own names where these tell them apart, and those
/// that it adds.
fn with_added(before: &Schema, added: Vec<Field>) -> SchemaRef {
    let fields = before.fields();
    let taken = |name: &String| {
        added.iter().any(|field| field.name() == name)
            || fields.iter().filter(|field| field.name() == name).count() > 1
    };
    let passed = fields.iter().enumerate().map(|(at, field)| {
        if taken(field.name()) {
            field.as_ref().clone().with_name(row_name(at))
        } else {
            field.as_ref().clone()
        }
    });
    let passed: Vec<Field> = passed.collect();
    Arc::new(Schema::new(passed.into_iter().chain(added).collect::<Vec<_>>()))
}

/// Each row once for each grouping set, with NULL for the keys that the set lacks.
pub(crate) struct InSets {
    /// The columns with keys that some set lacks.
    keys: Vec<usize>,
    /// Of each set, whether it lacks each of them, and the number that tells it from others.
    sets: Vec<(Vec<bool>, u64)>,
    number: DataType,
    schema: SchemaRef,
}

/// The column of the set's number behind [`InSets`].
pub(crate) const SET_NUMBER: &str = "set number";

impl InSets {
    /// The step over columns `before`; keys have names behind it, and numbers are of type `number`.
    pub(crate) fn new(
        before: &Schema,
        keys: &[usize],
        names: &[String],
        sets: Vec<(Vec<bool>, u64)>,
        number: DataType,
    ) -> Self {
        let added = keys.iter().zip(names);
        let added =
            added.map(|(&key, name)| Field::new(name, before.field(key).data_type().clone(), true));
        let added = added.chain([Field::new(SET_NUMBER, number.clone(), false)]);
        let schema = with_added(before, added.collect());
        Self { keys: keys.to_vec(), sets, number, schema }
    }
}

impl Step for InSets {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn apply_for(&self, batch: &RecordBatch, _: Option<usize>) -> Result<Stepped, DataflowError> {
        let (rows, times) = (batch.num_rows(), self.sets.len());
        let repeated = |column: &ArrayRef| concat(&vec![column.as_ref(); times]);
        let mut columns = batch.columns().iter().map(repeated).collect::<Result<Vec<_>, _>>()?;
        for (at, &key) in self.keys.iter().enumerate() {
            let values = batch.column(key);
            let nulls = new_null_array(values.data_type(), rows);
            let parts = self.sets.iter().map(|(lacks, _)| if lacks[at] { &nulls } else { values });
            columns.push(concat(&parts.map(AsRef::as_ref).collect::<Vec<_>>())?);
        }
        let numbers = self.sets.iter().flat_map(|(_, number)| std::iter::repeat_n(*number, rows));
        columns.push(cast(&UInt64Array::from_iter_values(numbers), &self.number)?);
        let batch = RecordBatch::try_new(self.schema.clone(), columns)?;
        let taken = (0..times).flat_map(|_| 0..rows as u32);
        Ok(Stepped { batch, origin: Origin::Taken(UInt32Array::from_iter_values(taken)) })
    }

    fn rows_of_one(&self) -> Option<u64> {
        Some(self.sets.len() as u64)
    }

    fn passes_on(&self, output: usize) -> Option<usize> {
        let passed = self.schema.fields().len() - self.keys.len() - 1;
        (output < passed).then_some(output)
    }

    fn describe(&self) -> Vec<Property> {
        vec![("Expand", format!("{} grouping sets", self.sets.len()))]
    }
}

/// Each row once for each window that it is in, with the bounds of that window.
pub(crate) struct InWindows {
    time: usize,
    windows: Windows,
    /// How far `window_time` lies before the end, in ticks.
    last: i64,
    text: String,
    schema: SchemaRef,
}

/// The last tick of the window of a row, behind [`InWindows`].
pub(crate) const LAST_TICK: &str = "window_last";

impl InWindows {
    /// The step over columns `before`, of which column `time` is the time. `None` if that is none.
    pub(crate) fn new(
        before: &Schema,
        time: usize,
        windows: Windows,
        text: String,
    ) -> Option<Self> {
        let time_type = before.field(time).data_type();
        let DataType::Timestamp(unit, _) = time_type else { return None };
        let names = Bound::ALL.map(Bound::column).into_iter().chain([LAST_TICK]);
        let added = names.map(|name| Field::new(name, time_type.clone(), true));
        let schema = with_added(before, added.collect());
        Some(Self { time, windows, last: last_tick(*unit), text, schema })
    }
}

impl Step for InWindows {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn apply_for(&self, batch: &RecordBatch, _: Option<usize>) -> Result<Stepped, DataflowError> {
        let time = batch.column(self.time);
        let Some(times) = ticks(time) else {
            return Err(DataflowError::Expression("the time column is not a timestamp".into()));
        };
        let (mut taken, mut starts, mut ends) = (vec![], vec![], vec![]);
        for (row, &at) in times.iter().enumerate().filter(|(row, _)| time.is_valid(*row)) {
            for end in self.windows.ends_of(self.windows.slice_start(at), i64::MIN) {
                taken.push(row as u32);
                starts.push(self.windows.window_at(end).start);
                ends.push(end);
            }
        }
        let before = |ticks: i64| {
            Int64Array::from_iter_values(ends.iter().map(|end| end.saturating_sub(ticks)))
        };
        let (last, last_tick) = (before(self.last), before(1));
        let (starts, ends) = (Int64Array::from(starts), before(0));
        let taken = UInt32Array::from(taken);
        let passed = batch.columns().iter().map(|column| take(column, &taken, None));
        let mut columns = passed.collect::<Result<Vec<_>, _>>()?;
        for bound in [starts, ends, last, last_tick] {
            columns.push(cast(&bound, time.data_type())?);
        }
        let batch = RecordBatch::try_new(self.schema.clone(), columns)?;
        Ok(Stepped { batch, origin: Origin::Taken(taken) })
    }

    fn rows_of_one(&self) -> Option<u64> {
        Some(self.windows.size() as u64 / self.windows.slide() as u64 + 1)
    }

    fn passes_on(&self, output: usize) -> Option<usize> {
        let passed = self.schema.fields().len() - Bound::ALL.len() - 1;
        (output < passed).then_some(output)
    }

    fn describe(&self) -> Vec<Property> {
        vec![("Windows", self.text.clone())]
    }
}
