//! The tables of a suite as a connector: rows are generated when a split is opened for the first
//! time, and stay in memory.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use dataflow::connector::{Connector, OptionSpec, Options, TableDef};
use dataflow::error::ConnectorError;
use dataflow::sink::Sink;
use dataflow::source::{ColumnBounds, Next, Position, ReaderContext, Source, Split, SplitReader};

use super::Suite;
use super::table::BATCH_ROWS;

/// A part of a table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Part {
    table: &'static str,
    /// The bits of the scale.
    scale: u64,
    number: u32,
    of: u32,
}

type Rows = Arc<Vec<RecordBatch>>;
/// Rows of a part, once they are generated.
type Made = Arc<OnceLock<Result<Rows, String>>>;

/// The connector of a suite, by the suite's name; `'table'` and `'scale'` select the rows. Clones
/// share the rows generated.
#[derive(Clone)]
pub struct SuiteConnector {
    suite: Suite,
    made: Arc<Mutex<HashMap<Part, Made>>>,
}

impl SuiteConnector {
    /// The connector of a suite; no rows are generated yet.
    pub fn new(suite: Suite) -> Self {
        Self { suite, made: Arc::default() }
    }

    /// All rows of a table.
    ///
    /// # Errors
    /// When the values do not form a batch, which is our bug.
    pub fn rows(&self, table: &'static str, scale: f64) -> Result<Rows, ConnectorError> {
        self.part(&Part { table, scale: scale.to_bits(), number: 0, of: 1 })
    }

    /// Drops the rows generated.
    pub(super) fn forget(&self) {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Generates a part unless it is there.
    fn part(&self, part: &Part) -> Result<Rows, ConnectorError> {
        let made = {
            let mut all = self.made.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(all.entry(part.clone()).or_default())
        };
        let suite = self.suite;
        let make = || {
            let batches =
                suite.batches(part.table, f64::from_bits(part.scale), part.number, part.of);
            batches.map(Arc::new).map_err(|error| error.to_string())
        };
        made.get_or_init(make).clone().map_err(|message| ConnectorError::Io {
            place: part.table.to_owned(),
            message,
            hint: None,
        })
    }

    /// The table and the scale of the options.
    fn read(&self, options: &Options) -> Result<(&'static str, f64), ConnectorError> {
        let given = |key: &str| options.get(key).map_or("", String::as_str);
        let refuse = |key: &str, message: String, hint: String| ConnectorError::Option {
            key: key.to_owned(),
            message,
            hint: Some(hint),
        };
        let named = self.suite.tables().iter().find(|name| **name == given("table"));
        let Some(&table) = named else {
            let message = format!("{} has no table '{}'", self.suite, given("table"));
            return Err(refuse("table", message, self.suite.tables().join(", ")));
        };
        match super::scale(given("scale")) {
            Ok(scale) => Ok((table, scale)),
            Err(hint) => Err(refuse("scale", format!("'{}' is no scale", given("scale")), hint)),
        }
    }
}

const OPTIONS: &[OptionSpec] = &[
    OptionSpec { key: "table", values: "a table of the suite", default: "", doc: "The table." },
    OptionSpec { key: "scale", values: "number", default: "", doc: "How large it is." },
];

impl Connector for SuiteConnector {
    fn name(&self) -> &'static str {
        self.suite.name()
    }

    fn options(&self) -> &'static [OptionSpec] {
        OPTIONS
    }

    fn infer(&self, options: &Options) -> Result<Option<SchemaRef>, ConnectorError> {
        let (table, scale) = self.read(options)?;
        Ok(Some(self.suite.schema(table, scale)))
    }

    fn source(
        &self,
        table: &TableDef,
        projection: &[usize],
    ) -> Result<Arc<dyn Source>, ConnectorError> {
        let (name, scale) = self.read(&table.options)?;
        let schema = self.suite.schema(name, scale).project(projection).map_err(unfit)?;
        let connector = self.clone();
        let projection = projection.to_vec();
        Ok(Arc::new(MemorySource {
            connector,
            table: name,
            scale,
            schema: Arc::new(schema),
            projection,
        }))
    }

    fn sink(&self, _: &TableDef) -> Result<Arc<dyn Sink>, ConnectorError> {
        Err(ConnectorError::Option {
            key: "connector".into(),
            message: format!("'{}' can only be read from", self.suite),
            hint: Some("write to 'file', 'stdout' or 'blackhole'".into()),
        })
    }
}

/// A table of a suite.
struct MemorySource {
    connector: SuiteConnector,
    table: &'static str,
    scale: f64,
    schema: SchemaRef,
    projection: Vec<usize>,
}

impl MemorySource {
    /// The number of parts for a number of workers: small tables have one.
    fn parts(&self, workers: u32) -> u32 {
        let batches = self.connector.suite.rows(self.table, self.scale) / BATCH_ROWS as u64;
        workers.min(u32::try_from(batches).unwrap_or(u32::MAX)).max(1)
    }
}

impl Source for MemorySource {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn bounded(&self) -> bool {
        true
    }

    fn splits(&self, workers: u32, _: Option<usize>) -> Result<Vec<Split>, ConnectorError> {
        let parts = self.parts(workers);
        let rows = self.connector.suite.rows(self.table, self.scale) / u64::from(parts);
        let split = |number: u32| Split {
            number: number as usize,
            name: format!("{} {number} of {parts}", self.table),
            rows: Some(rows),
            ..Split::default()
        };
        Ok((0..parts).map(split).collect())
    }

    fn bounds(&self, column: usize) -> ColumnBounds {
        let Some(field) = self.schema.fields().get(column) else { return ColumnBounds::default() };
        match self.connector.suite.range(self.table, field.name(), self.scale) {
            Some((range, distinct)) => {
                ColumnBounds { range: Some(range), distinct_max: Some(distinct) }
            }
            None => ColumnBounds::default(),
        }
    }

    fn open(
        &self,
        split: &Split,
        from: Option<&Position>,
        _: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        split.begins(from)?;
        let parts = split.name.rsplit(' ').next().and_then(|parts| parts.parse().ok());
        let part = Part {
            table: self.table,
            scale: self.scale.to_bits(),
            number: split.number as u32,
            of: parts.unwrap_or(1),
        };
        let rows = self.connector.part(&part)?;
        let project = |batch: &RecordBatch| batch.project(&self.projection);
        let batches: Vec<_> = rows.iter().map(project).collect::<Result<_, _>>().map_err(unfit)?;
        let split = split.name.clone();
        Ok(Box::new(MemoryReader { batches, split, next: 0, taken: 0 }))
    }
}

/// Emits batches; one with more rows than requested is emitted in parts.
struct MemoryReader {
    batches: Vec<RecordBatch>,
    split: String,
    /// The next batch, and how many of its rows were emitted.
    next: usize,
    taken: usize,
}

impl SplitReader for MemoryReader {
    fn next(&mut self, rows_max: usize) -> Result<Next, ConnectorError> {
        while let Some(batch) = self.batches.get(self.next) {
            let rows = rows_max.max(1).min(batch.num_rows() - self.taken);
            if rows == batch.num_rows() {
                self.next += 1;
                if rows > 0 {
                    return Ok(Next::Batch(batch.clone()));
                }
            } else if rows == 0 {
                (self.next, self.taken) = (self.next + 1, 0);
            } else {
                self.taken += rows;
                return Ok(Next::Batch(batch.slice(self.taken - rows, rows)));
            }
        }
        Ok(Next::End)
    }

    fn position(&self) -> Position {
        Position::none(&self.split)
    }
}

impl fmt::Debug for SuiteConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SuiteConnector({})", self.suite)
    }
}

fn unfit(error: ArrowError) -> ConnectorError {
    ConnectorError::Io { place: "rows in memory".into(), message: error.to_string(), hint: None }
}
