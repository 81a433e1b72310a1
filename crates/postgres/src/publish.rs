//! Publications: the rows of a checkpoint and a marker, in one transaction.
//!
//! ```text
//! BEGIN ─▶ the marker's row, locked ─▶ rows ─▶ the marker counts one more ─▶ COMMIT
//! ```
//!
//! The marker counts the publications of a sink, and has a checksum of the last one. The record of
//! a checkpoint has the count before its own: a run that goes on and finds the next count there,
//! with its own checksum, knows that its rows are in the table. So a publication may be repeated,
//! also one whose answer was lost. The lock lets a run that was given up end its transaction first.

use std::sync::{Mutex, PoisonError};

use dataflow::error::ConnectorError;

use crate::client::{PgConnection, Purpose, literal};
use crate::errors::{PgError, failed};
use crate::staged::StagedText;
use crate::table::{PgTable, patiently};
use crate::write::RowStatements;

/// How long a transaction of ours may wait for its client, and how long for the lock of another:
/// one that nobody goes on with is given up by the server before those that wait for it are.
const SESSION: &str = "SET idle_in_transaction_session_timeout = '30s'; SET lock_timeout = '40s'";

/// The place of the marker of a sink.
#[derive(Debug, Clone)]
pub(crate) struct Marker {
    /// The table with the markers, in SQL.
    pub(crate) table: String,
    /// The name of the sink; `None`: of its job and its table.
    pub(crate) name: Option<String>,
}

/// The marker of a sink's publications in the table.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Published {
    count: u64,
    note: String,
}

/// The rows of a checkpoint.
#[derive(Debug)]
pub(crate) struct StagedPublication {
    pub(crate) staged: Vec<StagedText>,
    /// A checksum of them and of their job, whatever the order of the workers' parts.
    pub(crate) checksum: u64,
    /// The name of the marker.
    pub(crate) name: String,
}

/// The connection of a sink's publications, from one to the next.
#[derive(Default)]
pub(crate) struct KeptConnection(Mutex<Option<PgConnection>>);

impl KeptConnection {
    /// Does something by the connection, or by a new one. It is kept when all goes well.
    fn with<T>(
        &self,
        table: &PgTable,
        work: impl FnOnce(&mut PgConnection) -> Result<T, PgError>,
    ) -> Result<T, PgError> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut connection = match kept.take() {
            Some(connection) => connection,
            None => {
                let mut new = PgConnection::open(&table.server, Purpose::Queries)?;
                new.query(SESSION)?;
                new
            }
        };
        let done = work(&mut connection)?;
        *kept = Some(connection);
        Ok(done)
    }
}

impl Marker {
    /// The name of the marker of a job's sink.
    pub(crate) fn name_for(&self, table: &PgTable, job: u64) -> String {
        self.name.clone().unwrap_or_else(|| format!("{job:016x}:{}", table.name))
    }

    /// Makes the table of the markers, unless it is there.
    ///
    /// # Errors
    /// When the server refuses, or is away.
    pub(crate) fn prepare(&self, connection: &mut PgConnection) -> Result<(), PgError> {
        if self.is_there(connection)? {
            return Ok(());
        }
        let table = &self.table;
        let made = connection.query(&format!(
            "CREATE TABLE IF NOT EXISTS {table} (sink text PRIMARY KEY, count bigint NOT NULL, \
             note text NOT NULL, changed timestamptz NOT NULL DEFAULT now())"
        ));
        match made {
            // Another worker has made it meanwhile: IF NOT EXISTS then fails in several ways, by
            // the catalogue in which the server met the other table first.
            Err(PgError::Refused(_)) if self.is_there(connection).unwrap_or(false) => Ok(()),
            made => made.map(drop),
        }
    }

    fn is_there(&self, connection: &mut PgConnection) -> Result<bool, PgError> {
        let there = connection.query(&format!("SELECT to_regclass({})", literal(&self.table)))?;
        Ok(there.first().and_then(|row| row.first()).is_some_and(Option::is_some))
    }

    /// The publications of a sink so far.
    ///
    /// # Errors
    /// When the server does not tell.
    pub(crate) fn count(
        &self,
        table: &PgTable,
        kept: &KeptConnection,
        name: &str,
    ) -> Result<u64, ConnectorError> {
        patiently(&table.place(), table.retry_timeout, &|| false, || {
            kept.with(table, |connection| Ok(self.read(connection, name, "")?.count))
        })
    }

    fn read(
        &self,
        connection: &mut PgConnection,
        name: &str,
        lock: &str,
    ) -> Result<Published, PgError> {
        let (table, name) = (&self.table, literal(name));
        let sql = format!("SELECT count, note FROM {table} WHERE sink = {name}{lock}");
        let rows = connection.query(&sql)?;
        let Some(row) = rows.into_iter().next() else {
            return Ok(Published { count: 0, note: String::new() });
        };
        let [Some(count), Some(note)] = row.as_slice() else {
            return Err(PgError::Breach("the marker is none".into()));
        };
        let count = count.parse().map_err(|_| PgError::Breach("the marker is none".into()))?;
        Ok(Published { count, note: note.clone() })
    }

    /// Publishes rows, unless they were: `before` is the count before them.
    ///
    /// # Errors
    /// When they cannot be published, or nobody knows whether they were.
    pub(crate) fn publish(
        &self,
        (table, kept): (&PgTable, &KeptConnection),
        statements: &RowStatements,
        publication: &StagedPublication,
        before: u64,
    ) -> Result<(), ConnectorError> {
        let place = table.place();
        let found = patiently(&place, table.retry_timeout, &|| false, || {
            kept.with(table, |connection| {
                self.transact(connection, statements, publication, before)
            })
        })?;
        match found {
            None => Ok(()),
            Some(now) => Err(changed(&place, &publication.name, before, now)),
        }
    }

    /// One transaction; gives the count if it is neither that before nor that behind these rows.
    fn transact(
        &self,
        connection: &mut PgConnection,
        statements: &RowStatements,
        publication: &StagedPublication,
        before: u64,
    ) -> Result<Option<u64>, PgError> {
        let (table, name) = (&self.table, literal(&publication.name));
        connection.query("BEGIN")?;
        connection.query(&format!(
            "INSERT INTO {table} (sink, count, note) VALUES ({name}, 0, '') \
             ON CONFLICT (sink) DO NOTHING"
        ))?;
        let found = self.read(connection, &publication.name, " FOR UPDATE")?;
        let behind = Published {
            count: before + 1,
            note: format!("{} {:016x}", before + 1, publication.checksum),
        };
        if found == behind || found.count != before {
            connection.query("ROLLBACK")?;
            return Ok((found != behind).then_some(found.count));
        }
        let rows = publication.staged.iter().flat_map(StagedText::pieces);
        statements.write(connection, rows)?;
        connection.query(&format!(
            "UPDATE {table} SET count = {}, note = {}, changed = now() WHERE sink = {name}",
            behind.count,
            literal(&behind.note)
        ))?;
        connection.query("COMMIT")?;
        Ok(None)
    }
}

/// Nobody knows whether the rows of a checkpoint are in the table.
fn changed(place: &str, name: &str, before: u64, now: u64) -> ConnectorError {
    let message = match now {
        0 => format!(
            "the marker '{name}' is gone, which counted {before} publications: nobody knows \
             whether the rows of the last checkpoint are in the table"
        ),
        _ => format!(
            "the marker '{name}' counted {before} publications when the checkpoint was taken, and \
             counts {now} now: another run or another sink writes by the same name"
        ),
    };
    let hint = "end the other one, or give each sink a name of its own, 'sink.marker-name'; else \
                look into the table, and begin anew, --from none, where its rows end";
    failed(place, message, hint)
}
