//! A connector of one's own: `countdown` is a source of numbers and, as a sink, adds up what it is
//! given. `docs/connectors.md` explains it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use arrow::array::{AsArray, Int64Array};
use arrow::compute::sum;
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use dataflow::connector::{Connector, OptionSpec, Options, TableDef};
use dataflow::error::ConnectorError;
use dataflow::sink::{Placement, Sink, SinkWriter, WriterContext};
use dataflow::source::{Next, Position, ReaderContext, Source, Split, SplitReader};
use millstream::Session;

/// The connector: knows its options and makes sources and sinks of tables.
#[derive(Clone, Default)]
struct Countdown {
    /// The sum of what was written and committed.
    total: Arc<AtomicI64>,
}

impl Connector for Countdown {
    fn name(&self) -> &'static str {
        "countdown"
    }

    fn options(&self) -> &'static [OptionSpec] {
        &[OptionSpec {
            key: "from",
            values: "integer",
            default: "10",
            doc: "The first number; the last is 1.",
        }]
    }

    fn infer(&self, _: &Options) -> Result<Option<SchemaRef>, ConnectorError> {
        Ok(Some(Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false)]))))
    }

    fn source(
        &self,
        table: &TableDef,
        projection: &[usize],
    ) -> Result<Arc<dyn Source>, ConnectorError> {
        let text = table.options.get("from").map_or("10", String::as_str);
        let from = text.parse().map_err(|_| ConnectorError::Option {
            key: "from".into(),
            message: format!("'{text}' is not a whole number"),
            hint: Some("write 'from' = '10'".into()),
        })?;
        let schema = table.schema.project(projection).map_err(|error| ConnectorError::Column {
            column: table.name.clone(),
            message: error.to_string(),
            hint: None,
        })?;
        Ok(Arc::new(Numbers { from, schema: Arc::new(schema) }))
    }

    fn sink(&self, _: &TableDef) -> Result<Arc<dyn Sink>, ConnectorError> {
        Ok(Arc::new(Adding(self.total.clone())))
    }
}

/// A table to be read: a single split that ends.
struct Numbers {
    from: i64,
    schema: SchemaRef,
}

impl Source for Numbers {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn bounded(&self) -> bool {
        true
    }

    fn splits(&self, _: u32, _: Option<usize>) -> Result<Vec<Split>, ConnectorError> {
        let rows = Some(self.from.max(0) as u64);
        Ok(vec![Split { name: "countdown".into(), rows, ..Split::default() }])
    }

    fn open(
        &self,
        split: &Split,
        from: Option<&Position>,
        _: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        let given = from.map(|from| from.numbers("countdown", 1, &split.name)).transpose()?;
        let [given] = given.unwrap_or_default();
        let next = self.from - given as i64;
        Ok(Box::new(Counting { from: self.from, next, schema: self.schema.clone() }))
    }
}

/// The split, being read.
struct Counting {
    from: i64,
    next: i64,
    schema: SchemaRef,
}

impl SplitReader for Counting {
    fn next(&mut self, rows_max: usize) -> Result<Next, ConnectorError> {
        let rows = (self.next.max(0) as usize).min(rows_max);
        if rows == 0 {
            return Ok(Next::End);
        }
        let last = self.next - rows as i64;
        let numbers = Int64Array::from_iter_values((last + 1..=self.next).rev());
        self.next = last;
        // A query that counts rows reads no column at all: the number of rows goes along.
        let columns = self.schema.fields().iter().map(|_| Arc::new(numbers.clone()) as _).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)
            .map(Next::Batch)
            .map_err(|error| ConnectorError::Io {
                place: "countdown".into(),
                message: error.to_string(),
                hint: None,
            })
    }

    fn position(&self) -> Position {
        Position::new("countdown", 1, "countdown", &[(self.from - self.next) as u64])
    }
}

/// A table to be written, by one worker.
struct Adding(Arc<AtomicI64>);

impl Sink for Adding {
    fn placement(&self) -> Placement {
        Placement::Gather
    }

    fn open(&self, _: &WriterContext) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        Ok(Box::new(Writer { sum: 0, total: self.0.clone() }))
    }
}

/// Keeps its sum to itself until the query has ended well.
struct Writer {
    sum: i64,
    total: Arc<AtomicI64>,
}

impl SinkWriter for Writer {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        let numbers = batch.column(0).as_primitive::<Int64Type>();
        self.sum += sum(numbers).unwrap_or(0);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        self.total.fetch_add(self.sum, Ordering::Relaxed);
        Ok(())
    }
}

fn main() -> Result<(), millstream::Error> {
    let countdown = Countdown::default();
    let mut session = Session::builder().connector(Arc::new(countdown.clone())).build()?;
    session.collect(
        "CREATE TABLE numbers WITH ('connector' = 'countdown', 'from' = '100');
         CREATE TABLE total (n BIGINT) WITH ('connector' = 'countdown');
         INSERT INTO total SELECT n FROM numbers WHERE n > 90",
    )?;
    println!("{}", countdown.total.load(Ordering::Relaxed));
    assert_eq!(countdown.total.load(Ordering::Relaxed), (91..=100).sum::<i64>());
    Ok(())
}
