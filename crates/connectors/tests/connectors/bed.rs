//! What the tests stand on: a directory of their own, a clock that they move, and short ways to
//! read a table to its end.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{ArrayRef, AsArray};
use arrow::compute::{cast, concat_batches};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef, TimeUnit};
use arrow::record_batch::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use dataflow::connector::{Connector, TableDef};
use dataflow::error::ConnectorError;
use dataflow::sink::{Room, SinkWriter, StagedOutput};
use dataflow::source::{ColumnBounds, Next, ReaderContext, Source, Split, SplitReader};
use fabric::Clock;

use crate::servers::s3::{KEY, S3};

/// A directory that goes away with the test.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("connectors-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> String {
        fs::write(self.0.join(name), text).unwrap();
        self.path(name)
    }

    /// All names in the directory, sorted.
    pub fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Has a writer stage its rows, and makes them durable.
pub fn stage_durably(writer: &mut dyn SinkWriter, round: u64, last: bool) -> Vec<u8> {
    let StagedOutput { staged, unsynced } = writer.stage(round, last).unwrap();
    unsynced.iter().for_each(|unsynced| unsynced.sync().unwrap());
    staged
}

/// A split of a source by its number.
pub fn nth(number: usize) -> Split {
    Split { number, ..Split::default() }
}

/// Writes rows when there is room for them.
pub fn put(writer: &mut dyn SinkWriter, batch: &RecordBatch) -> Result<(), ConnectorError> {
    while writer.room() == Room::Full {
        std::thread::yield_now();
    }
    writer.write(batch)
}

/// A clock that stands still until it is moved.
#[derive(Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    pub fn set(&self, now_ns: u64) {
        self.0.store(now_ns, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

pub fn context() -> ReaderContext {
    ReaderContext::new(Arc::new(ManualClock::default()), Arc::default())
}

pub const BIGINT: DataType = DataType::Int64;
pub const DOUBLE: DataType = DataType::Float64;
pub const VARCHAR: DataType = DataType::Utf8;
pub const TIMESTAMP: DataType = DataType::Timestamp(TimeUnit::Millisecond, None);

/// Columns that may be null.
pub fn columns(fields: &[(&str, DataType)]) -> SchemaRef {
    let fields = fields.iter().map(|(name, of)| Field::new(*name, of.clone(), true));
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

pub fn table(schema: &SchemaRef, options: &[(&str, &str)]) -> TableDef {
    TableDef {
        name: "t".into(),
        schema: Arc::clone(schema),
        options: options.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect(),
        metadata: Default::default(),
        buckets: vec![],
    }
}

/// A table at a path of a store.
pub fn table_of_s3(
    store: &S3,
    path: &str,
    schema: &SchemaRef,
    options: &[(&str, &str)],
) -> TableDef {
    let endpoint = store.endpoint();
    let mut all = vec![
        ("path", path),
        ("s3.endpoint", &endpoint),
        ("s3.region", "eu-west-1"),
        ("s3.access_key_id", KEY),
        ("s3.secret_access_key", "hush"),
        ("retry.timeout", "0"),
    ];
    all.extend(options);
    // The last one of a name counts.
    table(schema, &all)
}

/// A source of all columns.
pub fn source(
    connector: &dyn Connector,
    table: &TableDef,
) -> Result<Arc<dyn Source>, ConnectorError> {
    let all: Vec<usize> = (0..table.schema.fields().len()).collect();
    connector.source(table, &all)
}

/// A flow of a source, to its end, in one batch.
pub fn read_flow(source: &dyn Source, flow: usize, context: &ReaderContext) -> RecordBatch {
    try_read_flow(source, flow, context).unwrap()
}

pub fn try_read_flow(
    source: &dyn Source,
    flow: usize,
    context: &ReaderContext,
) -> Result<RecordBatch, ConnectorError> {
    try_read_split(source, &nth(flow), context)
}

/// A split of a source, to its end, in one batch.
pub fn read_split(source: &dyn Source, split: &Split, context: &ReaderContext) -> RecordBatch {
    try_read_split(source, split, context).unwrap()
}

fn try_read_split(
    source: &dyn Source,
    split: &Split,
    context: &ReaderContext,
) -> Result<RecordBatch, ConnectorError> {
    let mut flow = source.open(split, None, context)?;
    let mut batches = Vec::new();
    loop {
        match flow.next(1000)? {
            Next::Batch(batch) => {
                assert!((1..=1000).contains(&batch.num_rows()));
                batches.push(batch);
            }
            Next::Pending | Next::Wait { .. } => panic!("the flow waits"),
            Next::End => break,
        }
    }
    Ok(concat_batches(&source.schema(), &batches).unwrap())
}

/// All flows, one after the other.
pub fn read(source: &dyn Source, workers: u32, context: &ReaderContext) -> RecordBatch {
    let splits = source.splits(workers, None).unwrap();
    let batches: Vec<RecordBatch> =
        splits.iter().map(|split| read_split(source, split, context)).collect();
    concat_batches(&source.schema(), &batches).unwrap()
}

/// Rows as text, values separated by `|`.
pub fn rows(batch: &RecordBatch) -> Vec<String> {
    let options = FormatOptions::default().with_null("NULL");
    let columns: Vec<ArrayFormatter<'_>> = batch
        .columns()
        .iter()
        .map(|column| ArrayFormatter::try_new(column.as_ref(), &options).unwrap())
        .collect();
    let row = |row| {
        columns.iter().map(|column| column.value(row).to_string()).collect::<Vec<_>>().join("|")
    };
    (0..batch.num_rows()).map(row).collect()
}

/// `(place, reason, text)` of the bad rows; places without their directory.
pub fn bad(context: &ReaderContext) -> Vec<(String, String, String)> {
    let name = |place: &str| place.rsplit('/').next().unwrap_or(place).to_owned();
    let kept = context.bad.kept().into_iter();
    kept.map(|row| (name(&row.place), row.reason, row.text)).collect()
}

pub fn batch(fields: &[(&str, ArrayRef)]) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(
        fields.iter().map(|(name, array)| (*name, Arc::clone(array), true)),
    )
    .unwrap()
}

/// The hint of an error.
pub fn hint(error: &ConnectorError) -> &str {
    match error {
        ConnectorError::Option { hint, .. }
        | ConnectorError::Column { hint, .. }
        | ConnectorError::Io { hint, .. } => hint.as_deref().unwrap_or(""),
        other => panic!("an error of a new kind: {other}"),
    }
}

/// The error of something that must fail.
pub fn refused<T>(result: Result<T, ConnectorError>) -> ConnectorError {
    match result {
        Ok(_) => panic!("it was accepted"),
        Err(error) => error,
    }
}

/// The next rows of a flow, which may have to be waited for.
pub fn await_batch(flow: &mut dyn SplitReader) -> Result<RecordBatch, ConnectorError> {
    loop {
        match flow.next(1000)? {
            Next::Batch(batch) => return Ok(batch),
            Next::Pending | Next::Wait { .. } => std::thread::yield_now(),
            Next::End => panic!("the flow has ended"),
        }
    }
}

/// A flow to its end, which may have to be waited for, in one batch.
pub fn drain(flow: &mut dyn SplitReader) -> Result<RecordBatch, ConnectorError> {
    let mut batches = Vec::new();
    loop {
        match flow.next(1000)? {
            Next::Batch(batch) => {
                assert!((1..=1000).contains(&batch.num_rows()));
                batches.push(batch);
            }
            Next::Pending | Next::Wait { .. } => std::thread::yield_now(),
            Next::End => break,
        }
    }
    let empty = Arc::new(Schema::empty());
    let schema = batches.first().map_or(empty, RecordBatch::schema);
    Ok(concat_batches(&schema, &batches).unwrap())
}

/// How many columns of a source have bounds, which its rows keep.
pub fn bounds_hold(source: &dyn Source) -> usize {
    let rows = read(source, 2, &context());
    let mut known = 0;
    for (at, column) in rows.columns().iter().enumerate() {
        let name = source.schema().field(at).name().clone();
        let bounds = source.bounds(at);
        if let Some([least, greatest]) = bounds.range {
            let values = cast(column, &DataType::Int64).expect("whole numbers");
            let values = values.as_primitive::<Int64Type>().iter().flatten();
            for value in values {
                assert!((least..=greatest).contains(&value), "{name}: {value}, {bounds:?}");
            }
        }
        if let Some(most) = bounds.distinct_max {
            let options = FormatOptions::default();
            let texts = ArrayFormatter::try_new(column, &options).expect("a column");
            let valid = (0..rows.num_rows()).filter(|&row| column.is_valid(row));
            let distinct: HashSet<_> = valid.map(|row| texts.value(row).to_string()).collect();
            assert!(distinct.len() as u64 <= most, "{name}: {}, {bounds:?}", distinct.len());
        }
        known += usize::from(bounds != ColumnBounds::default());
    }
    known
}
