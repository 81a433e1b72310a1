//! A connector for tests: tables of given columns that read nothing, and sinks that keep what they
//! get.

use std::sync::{Arc, Mutex};

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow::record_batch::RecordBatch;
use dataflow::connector::{Connector, OptionSpec, Options, TableDef};
use dataflow::error::ConnectorError;
use dataflow::sink::{Placement, Sink, SinkWriter, WriterContext};
use dataflow::source::{ColumnBounds, Position, ReaderContext, Source, Split, SplitReader};
use plan::{Planner, Workers};

/// `'connector' = 'memory'`.
#[derive(Default)]
pub struct Memory {
    pub written: Arc<Mutex<Vec<RecordBatch>>>,
}

const OPTIONS: &[OptionSpec] = &[
    OptionSpec { key: "path", values: "path", default: "", doc: "A file; 'flights' has columns." },
    OptionSpec { key: "bounded", values: "true | false", default: "true", doc: "Whether it ends." },
    OptionSpec { key: "format", values: "csv | json", default: "csv", doc: "The format." },
    OptionSpec { key: "rows", values: "integer", default: "", doc: "How many rows it has." },
    OptionSpec {
        key: "values",
        values: "column least greatest | column count, …",
        default: "",
        doc: "The values of its columns.",
    },
];

/// The columns of the file `flights`.
pub fn flights() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("ts", DataType::Timestamp(TimeUnit::Millisecond, None), true),
        Field::new("origin", DataType::Utf8, true),
        Field::new("dest", DataType::Utf8, true),
        Field::new("delay", DataType::Float64, true),
        Field::new("distance", DataType::Int32, true),
    ]))
}

fn option_error(key: &str, message: &str, hint: &str) -> ConnectorError {
    ConnectorError::Option { key: key.into(), message: message.into(), hint: Some(hint.into()) }
}

impl Connector for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn options(&self) -> &'static [OptionSpec] {
        OPTIONS
    }

    fn infer(&self, options: &Options) -> Result<Option<SchemaRef>, ConnectorError> {
        match options.get("path").map(String::as_str) {
            None => Ok(None),
            Some("flights") => Ok(Some(flights())),
            Some(other) => Err(ConnectorError::Io {
                place: other.into(),
                message: "no such file".into(),
                hint: Some("the path is relative to the script".into()),
            }),
        }
    }

    fn source(
        &self,
        table: &TableDef,
        projection: &[usize],
    ) -> Result<Arc<dyn Source>, ConnectorError> {
        let bounded = match table.options.get("bounded").map(String::as_str) {
            None | Some("true") => true,
            Some("false") => false,
            Some(_) => return Err(option_error("bounded", "is no boolean", "true or false")),
        };
        let schema = table.schema.project(projection).expect("a projection of the table");
        let rows = table.options.get("rows").and_then(|rows| rows.parse().ok());
        let values = table.options.get("values").cloned().unwrap_or_default();
        Ok(Arc::new(Nothing { schema: Arc::new(schema), bounded, rows, values }))
    }

    fn sink(&self, table: &TableDef) -> Result<Arc<dyn Sink>, ConnectorError> {
        if let Some(field) = table.schema.fields().iter().find(|f| f.data_type().is_nested()) {
            return Err(ConnectorError::Column {
                column: field.name().clone(),
                message: "nested values cannot be written".into(),
                hint: None,
            });
        }
        Ok(Arc::new(CollectingSink(self.written.clone())))
    }
}

struct Nothing {
    schema: SchemaRef,
    bounded: bool,
    rows: Option<u64>,
    values: String,
}

impl Source for Nothing {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn bounded(&self) -> bool {
        self.bounded
    }

    fn splits(&self, workers: u32, _: Option<usize>) -> Result<Vec<Split>, ConnectorError> {
        let workers = u64::from(workers);
        let rows = |split| match self.rows {
            Some(rows) => rows * (split + 1) / workers - rows * split / workers,
            None => 1000,
        };
        let splits = (0..workers).map(|at| Split { rows: Some(rows(at)), ..Split::default() });
        Ok(splits.collect())
    }

    fn bounds(&self, column: usize) -> ColumnBounds {
        let name = self.schema.field(column).name().as_str();
        for stated in self.values.split(',') {
            let words: Vec<&str> = stated.split_whitespace().collect();
            let number = |at: usize| words[at].parse::<i64>().expect("a number");
            match words[..] {
                [column, _, _] if column == name => {
                    return ColumnBounds::between(number(1), number(2));
                }
                [column, _] if column == name => {
                    return ColumnBounds::distinct(number(1).unsigned_abs());
                }
                _ => {}
            }
        }
        match name {
            "ts" => ColumnBounds::between(0, 86_400_000),
            "distance" => ColumnBounds::between(1, 9),
            "dest" => ColumnBounds::distinct(1_000_000),
            _ => ColumnBounds::default(),
        }
    }

    fn open(
        &self,
        split: &Split,
        _: Option<&Position>,
        _: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        panic!("split {} is opened, but nothing runs here", split.number)
    }
}

struct CollectingSink(Arc<Mutex<Vec<RecordBatch>>>);

impl Sink for CollectingSink {
    fn placement(&self) -> Placement {
        Placement::Gather
    }

    fn open(&self, _: &WriterContext) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        Ok(Box::new(KeptWriter { sink: self.0.clone(), batches: vec![] }))
    }
}

struct KeptWriter {
    sink: Arc<Mutex<Vec<RecordBatch>>>,
    batches: Vec<RecordBatch>,
}

impl SinkWriter for KeptWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        self.batches.push(batch.clone());
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        self.sink.lock().expect("the rows").extend(self.batches);
        Ok(())
    }
}

/// A planner with that connector, also for bare SELECTs, and where its sinks put their rows.
pub fn planner(workers: u32) -> (Planner, Arc<Mutex<Vec<RecordBatch>>>) {
    let memory = Arc::new(Memory::default());
    let written = memory.written.clone();
    let mut planner = Planner::new(vec![memory.clone()], Workers { nodes: 1, per_node: workers });
    planner.set_default_sink(memory, Options::new());
    (planner, written)
}
