//! `t__bad` and `t__late`: what a table could not give, as tables.
//!
//! Both read the table once more, for themselves, and give out what its other readers count and
//! pass over. `t__bad` has a row for each that could not be read: where it stands, why, and its
//! text. `t__late` has the rows that came behind the watermark of their own flow, with the
//! watermark that each met: a window counts such a row as long as it has not fired itself, and
//! drops it from then on.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch, StringArray};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use dataflow::bad::{BadRow, BadRows};
use dataflow::error::ConnectorError;
use dataflow::origins::Origins;
use dataflow::source::{Next, Position, ReaderContext, Source, Split, SplitReader};
use dataflow::time::ticks;

use crate::catalog::watermark::{Met, as_time};

/// Which rows of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SideOutput {
    /// Those that cannot be read.
    Bad,
    /// Those that came behind the watermark of their flow.
    Late,
}

/// The column of [`SideOutput::Late`] that the table itself has not.
const WATERMARK: &str = "watermark";

impl SideOutput {
    /// The table and the side that a name means, if it is the name of a side.
    pub(crate) fn of(name: &str) -> Option<(&str, Self)> {
        [SideOutput::Bad, SideOutput::Late]
            .into_iter()
            .find_map(|side_output| Some((name.strip_suffix(side_output.suffix())?, side_output)))
    }

    /// The suffix of the table's name.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            SideOutput::Bad => "__bad",
            SideOutput::Late => "__late",
        }
    }

    /// Its columns, of a table with `columns` of which one is the event time.
    pub(crate) fn schema(self, columns: &Schema, time: &str) -> SchemaRef {
        let text = |name: &str, nullable| Arc::new(Field::new(name, DataType::Utf8, nullable));
        Arc::new(Schema::new(match self {
            SideOutput::Bad => {
                vec![text("place", false), text("reason", false), text("text", false)]
            }
            SideOutput::Late => {
                let time = columns.field_with_name(time).map(|field| field.data_type().clone());
                let time = time.unwrap_or(DataType::Null);
                let all = columns.fields().iter().cloned();
                all.chain([Arc::new(Field::new(WATERMARK, time, false))]).collect()
            }
        }))
    }
}

/// The event time of what is read.
#[derive(Debug, Clone)]
pub(crate) struct Time {
    /// The column of the inner source.
    pub(crate) column: usize,
    /// Ticks that rows may lag behind the latest.
    pub(crate) delay: i64,
}

/// A side of a source.
pub(crate) struct SideOutputSource {
    /// For messages.
    pub(crate) table: String,
    pub(crate) side_output: SideOutput,
    /// Gives all columns that the side asks for.
    pub(crate) inner: Arc<dyn Source>,
    /// Of a [`SideOutput::Late`], always.
    pub(crate) time: Option<Time>,
    /// The side's columns, already projected.
    pub(crate) schema: SchemaRef,
}

impl Source for SideOutputSource {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn bounded(&self) -> bool {
        self.inner.bounded()
    }

    fn splits(&self, workers: u32, _: Option<usize>) -> Result<Vec<Split>, ConnectorError> {
        // How many rows a side has is not known before.
        let unknown = |Split { number, name, .. }| Split { number, name, ..Split::default() };
        Ok(self.inner.splits(workers, None)?.into_iter().map(unknown).collect())
    }

    fn open(
        &self,
        split: &Split,
        from: Option<&Position>,
        context: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        let bad = match self.side_output {
            SideOutput::Bad => Arc::new(BadRows::collecting()),
            // They are counted where the table itself is read.
            SideOutput::Late => Arc::new(BadRows::default()),
        };
        let inner = ReaderContext { bad: Arc::clone(&bad), ..context.clone() };
        Ok(Box::new(SideFlow {
            untimed: Untimed::new(&self.table, split.name.clone(), &context.origins),
            side_output: self.side_output,
            inner: self.inner.open(split, from, &inner)?,
            time: self.time.clone(),
            schema: Arc::clone(&self.schema),
            bad,
            met: Met::new(self.time.as_ref().map_or(0, |time| time.delay)),
            ended: false,
        }))
    }
}

/// Tells of a flow's rows without event time that they are bad.
pub(crate) struct Untimed {
    table: String,
    flow: String,
    /// Where its rows stand.
    origins: Arc<Origins>,
    /// Rows of the flow so far.
    rows: u64,
}

impl Untimed {
    /// Of a flow that begins.
    pub(crate) fn new(table: &str, flow: String, origins: &Arc<Origins>) -> Self {
        Self { table: table.to_owned(), flow, origins: Arc::clone(origins), rows: 0 }
    }

    /// Adds those of the next batch, in which the event time has the column `time`, to `bad`.
    pub(crate) fn tell(&mut self, batch: &RecordBatch, time: Option<usize>, bad: &BadRows) {
        let first = self.rows;
        self.rows += batch.num_rows() as u64;
        let Some(column) = time else { return };
        let (times, schema) = (batch.column(column), batch.schema_ref());
        for row in (0..batch.num_rows()).filter(|&row| times.is_null(row)) {
            let number = first + row as u64;
            let place = self.origins.of(number);
            bad.add(BadRow {
                table: self.table.clone(),
                place: place.unwrap_or_else(|| format!("{}:{}", self.flow, number + 1)),
                reason: format!("event time '{}' is NULL", schema.field(column).name()),
                text: String::new(),
            });
        }
    }
}

struct SideFlow {
    untimed: Untimed,
    side_output: SideOutput,
    inner: Box<dyn SplitReader>,
    time: Option<Time>,
    schema: SchemaRef,
    bad: Arc<BadRows>,
    met: Met,
    /// Whether the table's flow has ended; its last rows may still have to be emitted.
    ended: bool,
}

impl SplitReader for SideFlow {
    fn next(&mut self, rows_max: usize) -> Result<Next, ConnectorError> {
        if self.ended {
            return Ok(Next::End);
        }
        let next = self.inner.next(rows_max)?;
        self.ended = matches!(next, Next::End);
        let batch = match &next {
            Next::Batch(batch) => Some(batch),
            _ => None,
        };
        let found = match self.side_output {
            SideOutput::Bad => Some(self.bad(batch)?),
            SideOutput::Late => batch.map(|batch| self.late(batch)).transpose()?,
        };
        match (found, next) {
            (Some(found), _) if found.num_rows() > 0 => Ok(Next::Batch(found)),
            // Rows, and none of them of this side: ask again, soon.
            (_, Next::Batch(_)) => Ok(Next::Wait { until_ns: 0 }),
            (_, next) => Ok(next),
        }
    }

    fn position(&self) -> Position {
        self.inner.position()
    }

    fn owes(&self) -> bool {
        self.inner.owes()
    }
}

impl SideFlow {
    /// The bad rows since the last call, those of `batch` that have no event time included.
    fn bad(&mut self, batch: Option<&RecordBatch>) -> Result<RecordBatch, ConnectorError> {
        if let Some(batch) = batch {
            let time = self.time.as_ref().map(|time| time.column);
            self.untimed.tell(batch, time, &self.bad);
        }
        as_batch(&self.schema, &self.bad.take())
    }

    /// The rows of `batch` that lie behind the watermark that they met.
    fn late(&mut self, batch: &RecordBatch) -> Result<RecordBatch, ConnectorError> {
        let refused = |message: String| ConnectorError::Column {
            column: WATERMARK.into(),
            message,
            hint: None,
        };
        let Some(Time { column, .. }) = self.time else {
            return Err(refused("the table has no event time".into()));
        };
        let array = batch.column(column);
        let times = ticks(array).ok_or_else(|| refused("it is no timestamp".into()))?;
        let met = self.met.of(array).map_err(refused)?;
        let late = times.iter().zip(&met).enumerate().map(|(row, (time, met))| {
            array.is_valid(row) && met.is_some_and(|watermark| *time < watermark)
        });
        let late: Vec<bool> = late.collect();
        // There is always one late row; the others are not emitted.
        let met = met.into_iter().map(|met| Some(met.unwrap_or(i64::MIN))).collect();
        let met = as_time(met, array.data_type()).map_err(refused)?;
        let columns = self.schema.fields().iter().map(|field| {
            batch.column_by_name(field.name()).map_or_else(|| Arc::clone(&met), Arc::clone)
        });
        RecordBatch::try_new(Arc::clone(&self.schema), columns.collect())
            .and_then(|all| filter_record_batch(&all, &BooleanArray::from(late)))
            .map_err(|error| refused(error.to_string()))
    }
}

/// Bad rows as rows of [`SideOutput::Bad`], with the columns of `schema`.
pub(crate) fn as_batch(schema: &SchemaRef, bad: &[BadRow]) -> Result<RecordBatch, ConnectorError> {
    let column = |name: &str| -> ArrayRef {
        let of = |row: &BadRow| match name {
            "place" => row.place.clone(),
            "reason" => row.reason.clone(),
            _ => row.text.clone(),
        };
        Arc::new(StringArray::from_iter_values(bad.iter().map(of)))
    };
    let columns = schema.fields().iter().map(|field| column(field.name())).collect();
    RecordBatch::try_new(Arc::clone(schema), columns).map_err(|error: ArrowError| {
        ConnectorError::Column { column: "reason".into(), message: error.to_string(), hint: None }
    })
}
