//! A table of a database, and how long to try when the server is away.

use std::time::{Duration, Instant};

use arrow::datatypes::Schema;
use connectors::{OptionReader, refuse};
use dataflow::error::ConnectorError;

use crate::client::{PgConnection, Purpose, TextRow, literal, quoted};
use crate::errors::{PgError, failed};
use crate::server::PgServer;
use crate::types::{PgColumn, check_columns};

/// How long a server is tried again, where 'retry.timeout' says nothing.
const RETRY_TIMEOUT: Duration = Duration::from_secs(300);

/// How long a server is tried at the start of a query at most.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// The first pause before a server is tried again; each is twice as long as the one before, up to
/// the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// How long a pause goes on when nobody waits for its end any more.
const PAUSE_PIECE: Duration = Duration::from_millis(50);

/// Bytes of a name in Postgres at most; it cuts longer ones.
const NAME_BYTES_MAX: usize = 63;

/// A table, and its server.
#[derive(Debug, Clone)]
pub(crate) struct PgTable {
    pub(crate) server: PgServer,
    /// As it is declared: with a schema or without.
    pub(crate) name: String,
    /// The same in SQL.
    pub(crate) quoted: String,
    /// How long to try again while rows flow.
    pub(crate) retry_timeout: Duration,
    /// How long to try at the start.
    pub(crate) start_timeout: Duration,
}

impl PgTable {
    /// Reads the options of a table.
    ///
    /// # Errors
    /// When one is missing or none.
    pub(crate) fn new(options: OptionReader<'_>) -> Result<Self, ConnectorError> {
        let server = PgServer::new(options)?;
        let name = options.required("table-name", "write 'table-name' = 'public.clicks'")?;
        let quoted = quoted_path("table-name", name)?;
        let retry = options.duration_ns("retry.timeout")?.map(Duration::from_nanos);
        let retry_timeout = retry.unwrap_or(RETRY_TIMEOUT);
        let start_timeout = retry_timeout.min(START_TIMEOUT);
        Ok(Self { server, name: name.to_owned(), quoted, retry_timeout, start_timeout })
    }

    /// The table, for messages.
    pub(crate) fn place(&self) -> String {
        format!("postgres table '{}' of {}", self.name, self.server.place())
    }

    /// A connection, and what the table has.
    ///
    /// # Errors
    /// When there is no such table.
    pub(crate) fn columns(&self, connection: &mut PgConnection) -> Result<Vec<PgColumn>, PgError> {
        let sql = format!(
            "SELECT a.attname, format_type(coalesce(nullif(t.typbasetype, 0), t.oid), NULL), \
             NOT a.attnotnull OR a.atthasdef OR a.attidentity <> '' \
             FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid \
             WHERE a.attrelid = {}::regclass AND a.attnum > 0 AND NOT a.attisdropped \
             ORDER BY a.attnum",
            literal(&self.quoted)
        );
        connection.query(&sql)?.into_iter().map(column_of).collect()
    }

    /// Checks, with patience, that the server is there and that its table fits.
    ///
    /// # Errors
    /// When it does not.
    pub(crate) fn check(
        &self,
        declared: &Schema,
        more: impl Fn(&mut PgConnection) -> Result<(), PgError>,
    ) -> Result<(), ConnectorError> {
        patiently(&self.place(), self.start_timeout, &|| false, || {
            let mut connection = PgConnection::open(&self.server, Purpose::Queries)?;
            let there = self.columns(&mut connection)?;
            let fits = check_columns(declared, &there);
            if fits.is_ok() {
                more(&mut connection)?;
            }
            Ok(fits)
        })?
    }
}

fn column_of(row: TextRow) -> Result<PgColumn, PgError> {
    let [Some(name), Some(pg_type), Some(is_optional)] = row.as_slice() else {
        return Err(PgError::Breach("a column of the catalog is none".into()));
    };
    let (name, pg_type, is_optional) = (name.clone(), pg_type.clone(), is_optional == "t");
    Ok(PgColumn { name, pg_type, is_optional })
}

/// A name with a schema or without, in SQL.
///
/// # Errors
/// When it is none.
pub(crate) fn quoted_path(key: &str, name: &str) -> Result<String, ConnectorError> {
    let parts: Vec<&str> = name.split('.').collect();
    let is_name = |part: &&str| {
        !part.is_empty() && part.len() <= NAME_BYTES_MAX && !part.contains(['\0', '"'])
    };
    if parts.len() > 2 || !parts.iter().all(is_name) {
        let message = format!("'{name}' is no name of a table");
        let hint =
            format!("write '{key}' = 'clicks' or '{key}' = 'public.clicks', as it is spelled");
        return Err(refuse(key, message, Some(hint)));
    }
    Ok(parts.into_iter().map(quoted).collect::<Vec<_>>().join("."))
}

/// Tries until it succeeds, fails for good, or the time is over. The pauses between grow.
///
/// # Errors
/// The last failure.
pub(crate) fn patiently<T>(
    place: &str,
    timeout: Duration,
    ends: &dyn Fn() -> bool,
    mut attempt: impl FnMut() -> Result<T, PgError>,
) -> Result<T, ConnectorError> {
    let (since, mut pause, mut is_told) = (Instant::now(), PAUSE_FIRST, false);
    loop {
        let error = match attempt() {
            Ok(done) => {
                if is_told {
                    tracing::info!(target: "postgres", "{place}: the server is there again");
                }
                return Ok(done);
            }
            Err(error) => error,
        };
        if !error.may_pass() || since.elapsed() + pause > timeout {
            return Err(error.at(place));
        }
        if !is_told {
            tracing::info!(target: "postgres", ?error, "{place}: tries again");
            is_told = true;
        }
        let paused = Instant::now();
        while paused.elapsed() < pause {
            if ends() {
                return Err(failed(place, "nobody waits for it any more", "report this"));
            }
            std::thread::sleep(PAUSE_PIECE.min(pause));
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_as_they_are_spelled() {
        assert_eq!(quoted_path("table-name", "public.Clicks").unwrap(), r#""public"."Clicks""#);
        for name in ["", "a.b.c", "a.", "a\"b"] {
            assert!(quoted_path("table-name", name).is_err(), "{name}");
        }
    }

    #[test]
    fn what_may_pass_is_tried_again_and_nothing_else() {
        let mut tries = 0;
        let timeout = Duration::from_secs(60);
        let done = patiently("t", timeout, &|| false, || {
            tries += 1;
            if tries < 3 { Err(PgError::Away("no".into())) } else { Ok(tries) }
        });
        assert_eq!(done, Ok(3));
        tries = 0;
        let failed = patiently::<()>("t", timeout, &|| false, || {
            tries += 1;
            Err(PgError::Breach("no".into()))
        });
        assert!(failed.is_err() && tries == 1);
        let ended = patiently::<()>("t", timeout, &|| true, || Err(PgError::Away("no".into())));
        assert!(ended.is_err());
    }
}
