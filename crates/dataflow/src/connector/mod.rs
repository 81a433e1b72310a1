//! The border between the planner and the connectors: a table's definition on one side, sources and
//! sinks on the other.

pub mod backlog;
pub mod bad;
pub mod costs;
pub mod gauge;
pub mod join_filter;
pub mod origins;
pub mod peers;
pub mod position;
pub mod predicate;
mod range;
mod rows;
pub mod scan;
pub mod sink;
pub mod source;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef};

use crate::connector::sink::Sink;
use crate::connector::source::Source;
use crate::error::ConnectorError;

/// A `CREATE TABLE`, without its connector's name.
#[derive(Debug, Clone)]
pub struct TableDef {
    /// The table's name.
    pub name: String,
    /// The declared (or inferred) columns.
    pub schema: SchemaRef,
    /// `WITH (…)` without `'connector'`.
    pub options: Options,
    /// The columns that come not from the data but from where it stands: for each, by its position
    /// in the schema, a key of [`Connector::metadata`].
    pub metadata: BTreeMap<usize, String>,
    /// `DISTRIBUTED BY`, one after another: given only to a connector that
    /// [takes it](Connector::takes_buckets).
    pub buckets: Vec<HashBuckets>,
}

/// `HASH(column) INTO count BUCKETS`: rows are partitioned by a hash of a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HashBuckets {
    /// The column.
    pub column: String,
    /// How many buckets there are.
    pub count: u32,
}

/// Why a table is written, and what becomes of the rows that it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteMode {
    /// `CREATE TABLE AS`: the table is made.
    Create,
    /// `INSERT INTO`: as the connector does it; some add rows, others replace a file.
    Insert,
    /// `INSERT OVERWRITE`: the rows are replaced.
    Overwrite,
}

/// `VACUUM`: which files go that no version of a table needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Vacuum {
    /// How long files stay that a version had, in milliseconds; `None` if the table says it.
    pub retain_ms: Option<u64>,
    /// Whether the files are told, and stay.
    pub dry_run: bool,
}

/// The options of a table, by name.
pub type Options = BTreeMap<String, String>;

/// One kind of source and sink, chosen by `'connector' = '…'`.
pub trait Connector: Send + Sync {
    /// The name in SQL.
    fn name(&self) -> &'static str;

    /// The options that it knows. The planner refuses others and names the nearest.
    fn options(&self) -> &'static [OptionSpec] {
        &[]
    }

    /// What it knows of a row beside its columns: `name TYPE METADATA FROM 'key'`.
    fn metadata(&self) -> &'static [MetadataSpec] {
        &[]
    }

    /// The keys of [`metadata`](Self::metadata) that a statement writes, too, unless their columns
    /// are `VIRTUAL`. [`TableDef::metadata`] has those of them that a sink gets.
    fn written_metadata(&self) -> &'static [&'static str] {
        &[]
    }

    /// Whether tables may be `DISTRIBUTED BY` a hash of columns.
    fn takes_buckets(&self) -> bool {
        false
    }

    /// Checks a declaration as far as that is possible before the table is used. Gives the columns
    /// that it has, where it declares none and they are known at once, whether it is read or
    /// written.
    ///
    /// # Errors
    /// When options or columns do not fit.
    fn declare(&self, table: &TableDef) -> Result<Option<SchemaRef>, ConnectorError> {
        let _ = table;
        Ok(None)
    }

    /// Columns for a table that declares none; `None` where the connector cannot tell.
    ///
    /// # Errors
    /// When the data that would tell cannot be read.
    fn infer(&self, options: &Options) -> Result<Option<SchemaRef>, ConnectorError> {
        let _ = options;
        Ok(None)
    }

    /// A reader of the columns of `projection`, in that order. By default there is none.
    ///
    /// # Errors
    /// When options, columns or data do not fit, or the connector cannot be read from.
    fn source(
        &self,
        table: &TableDef,
        projection: &[usize],
    ) -> Result<Arc<dyn Source>, ConnectorError> {
        let _ = projection;
        Err(ConnectorError::Option {
            key: "connector".into(),
            message: format!("'{}' can only be written to", self.name()),
            hint: Some(format!("write to it: INSERT INTO {} SELECT …", table.name)),
        })
    }

    /// A writer of all columns.
    ///
    /// # Errors
    /// When options or columns do not fit, or the connector cannot be written to.
    fn sink(&self, table: &TableDef) -> Result<Arc<dyn Sink>, ConnectorError>;

    /// A writer of all columns for a statement of this kind; by default `INSERT OVERWRITE` is
    /// refused, and the others are one.
    ///
    /// # Errors
    /// As [`Connector::sink`], and when the connector does not write in this way.
    fn sink_for(&self, table: &TableDef, mode: WriteMode) -> Result<Arc<dyn Sink>, ConnectorError> {
        if mode != WriteMode::Overwrite {
            return self.sink(table);
        }
        Err(ConnectorError::Option {
            key: "connector".into(),
            message: format!("'{}' has no INSERT OVERWRITE", self.name()),
            hint: Some(format!("write INSERT INTO {} SELECT …", table.name)),
        })
    }

    /// The files below a table that no version of it needs, as rows: they are removed when they are
    /// read. By default there are none, since tables have no versions.
    ///
    /// # Errors
    /// When the table cannot be read, or may need them.
    fn vacuum(&self, table: &TableDef, how: Vacuum) -> Result<Arc<dyn Source>, ConnectorError> {
        let _ = (table, how);
        Err(ConnectorError::Option {
            key: "connector".into(),
            message: format!("tables of '{}' have no versions whose files could go", self.name()),
            hint: Some("VACUUM is for tables of Delta Lake, 'connector' = 'delta'".into()),
        })
    }
}

/// An option of a connector, for checks and for the reference page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionSpec {
    /// Its name.
    pub key: &'static str,
    /// Its values, for a reader: `integer`, `duration`, `csv | json`.
    pub values: &'static str,
    /// Its default, for a reader; empty when it must be given.
    pub default: &'static str,
    /// One sentence.
    pub doc: &'static str,
}

/// Something that a connector knows of a row beside its columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetadataSpec {
    /// Its name.
    pub key: &'static str,
    /// Its type; a column of it may have another precision of time.
    pub data_type: DataType,
    /// One sentence.
    pub doc: &'static str,
}
