//! The statements that write rows: COPY into the table, or COPY beside it and an upsert by key.

use arrow::datatypes::Schema;
use arrow::record_batch::RecordBatch;
use connectors::{nearest, refuse};
use dataflow::error::ConnectorError;

use crate::client::{PgConnection, quoted};
use crate::encode::encode;
use crate::errors::PgError;
use crate::table::PgTable;

/// The table of a session in which rows wait for their upsert.
const WAITING: &str = "pg_temp.millstream_rows";

/// How the rows of a table are written.
#[derive(Debug, Clone)]
pub(crate) struct RowStatements {
    place: String,
    /// `COPY …`, of rows as [`encode`](Self::encode) gives them.
    copy: String,
    upsert: Option<Upsert>,
}

/// The statements of an upsert, for which rows are copied into a temporary table.
#[derive(Debug, Clone)]
struct Upsert {
    /// Makes that table, once for each session.
    begin: String,
    insert: String,
}

impl RowStatements {
    /// Of a table with these columns; with columns of a key the last row of each key stays.
    ///
    /// # Errors
    /// When a column of the key is none of the table.
    pub(crate) fn new(
        table: &PgTable,
        schema: &Schema,
        key: &[String],
    ) -> Result<Self, ConnectorError> {
        let names = || schema.fields().iter().map(|field| field.name().as_str());
        for column in key {
            if names().all(|name| name != column) {
                let hint = nearest(column, names()).map(|near| format!("did you mean '{near}'?"));
                let message = format!("there is no column '{column}'");
                return Err(refuse("primary-key", message, hint));
            }
        }
        let list = |names: Vec<String>| names.join(", ");
        let columns = list(names().map(quoted).collect());
        let target = &table.quoted;
        if key.is_empty() {
            let copy = format!("COPY {target} ({columns}) FROM STDIN");
            return Ok(Self { place: table.place(), copy, upsert: None });
        }
        // No column has the name of the number.
        let mut number = "millstream_number".to_owned();
        while names().any(|name| name == number) {
            number.push('_');
        }
        let number = quoted(&number);
        let keys = list(key.iter().map(|column| quoted(column)).collect());
        let others = names().filter(|name| !key.iter().any(|column| column == name)).map(quoted);
        let others: Vec<String> = others.map(|name| format!("{name} = EXCLUDED.{name}")).collect();
        let action = if others.is_empty() {
            "DO NOTHING".to_owned()
        } else {
            format!("DO UPDATE SET {}", list(others))
        };
        let begin = format!(
            "CREATE TEMP TABLE IF NOT EXISTS millstream_rows ON COMMIT DELETE ROWS AS \
             SELECT 0::bigint AS {number}, {columns} FROM {target} WITH NO DATA"
        );
        let insert = format!(
            "INSERT INTO {target} ({columns}) SELECT {columns} FROM \
             (SELECT DISTINCT ON ({keys}) * FROM {WAITING} ORDER BY {keys}, {number} DESC) last \
             ON CONFLICT ({keys}) {action}"
        );
        let copy = format!("COPY {WAITING} ({number}, {columns}) FROM STDIN");
        Ok(Self { place: table.place(), copy, upsert: Some(Upsert { begin, insert }) })
    }

    /// Whether the row of a key is changed where it is there.
    pub(crate) fn is_upsert(&self) -> bool {
        self.upsert.is_some()
    }

    /// Appends rows as COPY takes them; `number` is that of the next row.
    ///
    /// # Errors
    /// When a value cannot be kept.
    pub(crate) fn encode(
        &self,
        batch: &RecordBatch,
        number: &mut u64,
        out: &mut Vec<u8>,
    ) -> Result<(), ConnectorError> {
        let first = self.upsert.as_ref().map(|_| *number);
        *number += batch.num_rows() as u64;
        encode(&self.place, batch, first, out)
    }

    /// Tries the statements without rows, so that what is wrong with them is told early.
    ///
    /// # Errors
    /// When the server refuses one.
    pub(crate) fn check(&self, connection: &mut PgConnection) -> Result<(), PgError> {
        connection.query("BEGIN")?;
        self.write(connection, std::iter::empty())?;
        connection.query("ROLLBACK").map(drop)
    }

    /// Writes rows within a transaction that is open.
    ///
    /// # Errors
    /// When the server refuses them, or is away.
    pub(crate) fn write<'a>(
        &self,
        connection: &mut PgConnection,
        rows: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(), PgError> {
        if let Some(upsert) = &self.upsert {
            connection.query(&upsert.begin)?;
        }
        connection.copy_in(&self.copy, rows)?;
        if let Some(upsert) = &self.upsert {
            connection.query(&upsert.insert)?;
        }
        Ok(())
    }
}
