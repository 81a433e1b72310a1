//! Tables that lie in the memory of the program.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use dataflow::connector::{Connector, OptionSpec, Options, TableDef};
use dataflow::error::ConnectorError;
use dataflow::sink::Sink;
use dataflow::source::{Position, ReaderContext, RowsReader, Source, Split, SplitReader};

use crate::embedded::appended::AppendSource;
use crate::embedded::failed_rows::FailedRows;
use crate::error::Error;

/// The name of the connector.
pub(crate) const MEMORY: &str = "memory";

/// The option that names the table.
pub(crate) const TABLE: &str = "table";

/// Rows of a split at least, so that small tables are read by one worker.
const SPLIT_ROWS_MIN: usize = 16 << 10;

/// A table in memory, that ends. Rows are read where they lie: nothing of them is copied.
#[derive(Clone)]
pub struct MemoryTable {
    schema: SchemaRef,
    batches: Arc<[RecordBatch]>,
}

impl MemoryTable {
    /// A table of these rows, which have these columns.
    ///
    /// # Errors
    /// [`Error::Usage`] when a batch has others.
    pub fn new(schema: SchemaRef, batches: Vec<RecordBatch>) -> Result<Self, Error> {
        let other = |batch: &&RecordBatch| batch.schema().fields() != schema.fields();
        if let Some(batch) = batches.iter().find(other) {
            let message = "the batches of a table have different columns".to_owned();
            let hint = format!("{} and {}", schema, batch.schema());
            return Err(Error::Usage { message, hint });
        }
        let batches = batches.into_iter().filter(|batch| batch.num_rows() > 0).collect();
        Ok(Self { schema, batches })
    }

    /// How many rows it has.
    pub fn rows(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }
}

impl fmt::Debug for MemoryTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryTable({} rows)", self.rows())
    }
}

/// The tables of a session that lie in memory: the connector that reads them. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct MemoryTables(Arc<Mutex<BTreeMap<String, HeldTable>>>);

#[derive(Clone)]
pub(crate) enum HeldTable {
    Table(MemoryTable),
    Appended(AppendSource),
    Failed(FailedRows),
}

impl HeldTable {
    fn schema(&self) -> SchemaRef {
        match self {
            HeldTable::Table(table) => Arc::clone(&table.schema),
            HeldTable::Appended(source) => Arc::clone(source.schema()),
            HeldTable::Failed(rows) => Arc::clone(rows.schema()),
        }
    }
}

impl MemoryTables {
    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<String, HeldTable>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, options: &Options) -> Result<HeldTable, ConnectorError> {
        let name = options.get(TABLE).cloned().unwrap_or_default();
        let held = self.lock().get(&name).cloned();
        held.ok_or_else(|| ConnectorError::Option {
            key: TABLE.into(),
            message: format!("the program has given no table '{name}' to the session"),
            hint: Some("tables in memory are made by the program that runs the session".into()),
        })
    }
}

impl Connector for MemoryTables {
    fn name(&self) -> &'static str {
        MEMORY
    }

    fn options(&self) -> &'static [OptionSpec] {
        &[OptionSpec {
            key: TABLE,
            values: "text",
            default: "",
            doc: "The table that the program has given to the session.",
        }]
    }

    fn infer(&self, options: &Options) -> Result<Option<SchemaRef>, ConnectorError> {
        Ok(Some(self.of(options)?.schema()))
    }

    fn source(
        &self,
        table: &TableDef,
        projection: &[usize],
    ) -> Result<Arc<dyn Source>, ConnectorError> {
        match self.of(&table.options)? {
            HeldTable::Appended(source) => source.source(projection),
            HeldTable::Failed(rows) => rows.source(projection),
            HeldTable::Table(held) => {
                let failed = |error: arrow::error::ArrowError| ConnectorError::Io {
                    place: format!("table '{}'", table.name),
                    message: error.to_string(),
                    hint: None,
                };
                let schema = Arc::new(held.schema.project(projection).map_err(failed)?);
                let batches = held.batches.iter().map(|batch| batch.project(projection));
                let batches = batches.collect::<Result<_, _>>().map_err(failed)?;
                Ok(Arc::new(MemoryScan { schema, batches }))
            }
        }
    }

    fn sink(&self, table: &TableDef) -> Result<Arc<dyn Sink>, ConnectorError> {
        Err(ConnectorError::Option {
            key: "connector".into(),
            message: format!("'{}' lies in the program's memory and is read only", table.name),
            hint: Some("write to a file or to another table".into()),
        })
    }
}

struct MemoryScan {
    schema: SchemaRef,
    batches: Arc<[RecordBatch]>,
}

impl MemoryScan {
    /// The rows from `from` to `to` of the whole table, as pieces of its batches.
    fn rows(&self, from: usize, to: usize) -> Vec<RecordBatch> {
        let mut start = 0;
        let piece = |batch: &RecordBatch| {
            let (begin, end) = (start, start + batch.num_rows());
            start = end;
            let (first, last) = (from.max(begin), to.min(end));
            (first < last).then(|| batch.slice(first - begin, last - first))
        };
        self.batches.iter().filter_map(piece).collect()
    }
}

impl Source for MemoryScan {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn bounded(&self) -> bool {
        true
    }

    fn splits(&self, workers: u32, _: Option<usize>) -> Result<Vec<Split>, ConnectorError> {
        let rows: usize = self.batches.iter().map(RecordBatch::num_rows).sum();
        let count = (rows / SPLIT_ROWS_MIN).clamp(1, workers.max(1) as usize);
        let split = |at: usize| {
            let (from, to) = (rows * at / count, rows * (at + 1) / count);
            let rows = Some((to - from) as u64);
            Split { name: format!("rows {from}..{to}"), rows, ..Split::default() }
        };
        Ok((0..count).map(split).collect())
    }

    fn describe(&self) -> Option<String> {
        Some("rows in memory".into())
    }

    fn open(
        &self,
        split: &Split,
        from: Option<&Position>,
        _: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        let name = &split.name;
        let bounds = name.strip_prefix("rows ").and_then(|bounds| bounds.split_once(".."));
        let bounds = bounds.and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        let (start, end): (usize, usize) = bounds.ok_or_else(|| ConnectorError::Io {
            place: name.clone(),
            message: "this table has no such part".into(),
            hint: None,
        })?;
        Ok(Box::new(RowsReader::open(name, self.rows(start, end), from)?))
    }
}
