//! The rows that are there when a job begins, read in the order of the key, so that a job that was
//! ended meanwhile goes on behind the last one.
//!
//! ```text
//! slot ─▶ its snapshot: rows ─▶ ✕ ─▶ another snapshot: rows behind the last key ─▶ changes
//! ```

use std::sync::Arc;
use std::time::Duration;

use dataflow::error::ConnectorError;

use crate::changes::Change;
use crate::client::{PgConnection, Purpose, literal, quoted};
use crate::decode::split_line;
use crate::errors::PgError;
use crate::following::{Following, LOST_PAUSE, Outlet};
use crate::key::{TableKey, literals};
use crate::lag::SlotLag;
use crate::pieces::{ChangeBatch, LogPlace, PieceEnd, lsn_of};
use crate::ranges::{KeyText, ReadRanges, SeenTransactions};
use crate::table::patiently;

/// Rows that one query reads: with a bound the server goes by the index of the key.
const QUERY_ROWS: usize = 16_384;

/// How long to wait before it is seen whether a transaction has ended.
const TRANSACTION_PAUSE: Duration = Duration::from_millis(250);

/// The rows that are given, of one snapshot.
struct RowsReading<'a> {
    of: &'a Following,
    outlet: &'a Outlet,
    at: LogPlace,
    /// The time at which they are read, since 1970.
    time_us: Option<i64>,
    /// The ranges that were read up to here, with the one that is read now; `None` without a key.
    ranges: Option<Arc<ReadRanges>>,
    /// The last key that was given.
    upto: Option<KeyText>,
    given: ChangeBatch,
    has_given: bool,
    lag: SlotLag,
}

impl<'a> RowsReading<'a> {
    fn new(
        of: &'a Following,
        outlet: &'a Outlet,
        at: LogPlace,
        ranges: Option<ReadRanges>,
    ) -> Self {
        let (ranges, given) = (ranges.map(Arc::new), ChangeBatch::none());
        let (time_us, upto, lag) = (None, None, SlotLag::default());
        Self { of, outlet, at, time_us, ranges, upto, given, has_given: false, lag }
    }

    /// Takes a line of a COPY, whose first fields are the key; `false` if nobody wants it.
    fn take(&mut self, line: &[u8], key_columns: usize) -> Result<bool, PgError> {
        let fields = self.of.columns.fields.len();
        let mut values = split_line(line)?;
        if values.len() != (key_columns + fields).max(1) {
            return Err(PgError::Breach("a row has other columns".into()));
        }
        let after = values.split_off(key_columns).into_iter().take(fields).collect();
        let key = values.into_iter().collect::<Option<KeyText>>();
        let key = key.ok_or_else(|| PgError::Breach("a key is NULL".into()))?;
        let (lsn, time_us) = (self.at.lsn, self.time_us);
        let (before, after) = (None, Some(after));
        self.given.push(Change { op: "r", before, after, lsn, number: 0, time_us, key });
        Ok(!self.given.is_full() || self.give())
    }

    /// Gives the rows that wait; `false` if nobody wants them.
    fn give(&mut self) -> bool {
        let Some(last) = self.given.changes.last() else { return true };
        let upto = last.key.clone();
        let given = std::mem::replace(&mut self.given, ChangeBatch::none());
        let end = Some(PieceEnd::Rows { lsn: self.at.lsn, ranges: self.ranges.clone() });
        let is_wanted = self.outlet.give(ChangeBatch { end, ..given });
        (self.upto, self.has_given) = (Some(upto), true);
        self.lag.look(self.of, self.at.lsn);
        is_wanted
    }

    /// The ranges as far as they were given.
    fn reached(&self) -> Option<ReadRanges> {
        let mut ranges = ReadRanges::clone(self.ranges.as_ref()?);
        if let (Some(last), Some(upto)) = (ranges.ranges.last_mut(), &self.upto) {
            last.upto.clone_from(upto);
        }
        Some(ranges)
    }

    /// Reads all rows in whatever order.
    fn read_all(&mut self, queries: &mut PgConnection) -> Result<(), PgError> {
        let columns: Vec<String> = self.of.columns.fields.iter().map(|name| quoted(name)).collect();
        let columns = if columns.is_empty() { "1".to_owned() } else { columns.join(", ") };
        let sql = format!("COPY (SELECT {columns} FROM {}) TO STDOUT", self.of.table.quoted);
        queries.copy_out(&sql, |line| self.take(line, 0))?;
        self.give();
        Ok(())
    }

    /// Reads the rows behind a key in its order.
    fn read_by_key(
        &mut self,
        queries: &mut PgConnection,
        key: &TableKey,
        from: &[String],
    ) -> Result<(), PgError> {
        let (list, table) = (key.list(), &self.of.table.quoted);
        let columns: Vec<String> =
            self.of.columns.fields.iter().map(|name| format!(", {}", quoted(name))).collect();
        let columns = columns.concat();
        let mut from = from.to_vec();
        loop {
            let behind = match from.as_slice() {
                [] => String::new(),
                from => format!("WHERE ({list}) > ({}) ", literals(from)),
            };
            let sql = format!(
                "COPY (SELECT {list}{columns} FROM {table} {behind}ORDER BY {list} \
                 LIMIT {QUERY_ROWS}) TO STDOUT"
            );
            let (mut rows, mut is_wanted) = (0, true);
            queries.copy_out(&sql, |line| {
                rows += 1;
                is_wanted = self.take(line, key.columns.len())?;
                Ok(is_wanted)
            })?;
            if !is_wanted {
                return Ok(());
            }
            let waits = self.given.changes.last().map(|last| &last.key);
            if let Some(last) = waits.or(self.upto.as_ref()) {
                from.clone_from(last);
            }
            if rows < QUERY_ROWS {
                self.give();
                return Ok(());
            }
        }
    }
}

/// Begins to read with a snapshot: the exported one of this name, or one of now. Gives the
/// transactions that it sees, the time, and the end of the log behind it.
fn begin_reading(
    queries: &mut PgConnection,
    exported: Option<&str>,
) -> Result<(SeenTransactions, Option<i64>, u64), PgError> {
    queries.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")?;
    if let Some(exported) = exported {
        queries.query(&format!("SET TRANSACTION SNAPSHOT {}", literal(exported)))?;
    }
    let seen = one(queries, "SELECT pg_current_snapshot()")?;
    // A transaction that the snapshot sees has its commit in the log before this place.
    let until = lsn_of(&one(queries, "SELECT pg_current_wal_insert_lsn()")?)
        .ok_or_else(|| PgError::Breach("the log has no end".into()))?;
    let now = one(queries, "SELECT (extract(epoch FROM now()) * 1000000)::bigint")?;
    Ok((SeenTransactions::of(&seen)?, now.parse().ok(), until))
}

fn one(queries: &mut PgConnection, sql: &str) -> Result<String, PgError> {
    let row = queries.query(sql)?.into_iter().next();
    let value = row.and_then(|row| row.into_iter().next()).flatten();
    value.ok_or_else(|| PgError::Breach("a query has no answer".into()))
}

impl Following {
    /// Gives the rows that the snapshot of a new slot has.
    ///
    /// # Errors
    /// When none was given.
    pub(crate) fn first_rows(
        &self,
        exported: &str,
        at: LogPlace,
        outlet: &Outlet,
    ) -> Result<FirstRows, PgError> {
        let mut queries = PgConnection::open(&self.table.server, Purpose::Queries)?;
        // Without checkpoints nobody goes on behind a row.
        let wants_key = !self.is_temporary;
        let key = wants_key.then(|| TableKey::of(&self.table, &mut queries)).transpose()?;
        let (seen, time_us, until) = begin_reading(&mut queries, Some(exported))?;
        let key = key.flatten();
        let ranges = key.as_ref().map(|key| {
            ReadRanges { columns: key.names(), ..ReadRanges::default() }.with(seen, until)
        });
        let ranges = ranges.transpose()?;
        let mut reading = RowsReading { time_us, ..RowsReading::new(self, outlet, at, ranges) };
        let read = match key {
            Some(key) => reading.read_by_key(&mut queries, &key, &[]),
            None => reading.read_all(&mut queries),
        };
        match read {
            Err(error) if !reading.has_given => Err(error),
            read => Ok(FirstRows { ranges: reading.reached(), failed: read.err() }),
        }
    }

    /// Gives the rows behind those that were given, until all are.
    pub(crate) fn other_rows(
        &self,
        at: LogPlace,
        ranges: &mut ReadRanges,
        outlet: &Outlet,
    ) -> Result<(), ConnectorError> {
        let (place, ends) = (self.table.place(), || !outlet.is_wanted());
        loop {
            let done = patiently(&place, self.table.retry_timeout, &ends, || {
                let before = ranges.clone();
                match self.rows_behind(at, ranges, outlet) {
                    // Rows have come: the time begins anew.
                    Err(error) if error.may_pass() && *ranges != before => Ok(Err(error)),
                    Err(error) if error.may_pass() => Err(error),
                    done => Ok(done),
                }
            })?;
            match done {
                Ok(()) => return Ok(()),
                Err(error) if error.may_pass() => {
                    tracing::info!(target: "postgres", ?error, "{place}: reads on");
                    self.set_unreachable(true);
                    std::thread::sleep(LOST_PAUSE);
                }
                Err(error) => return Err(self.reported(&error)),
            }
        }
    }

    fn rows_behind(
        &self,
        at: LogPlace,
        ranges: &mut ReadRanges,
        outlet: &Outlet,
    ) -> Result<(), PgError> {
        let mut queries = PgConnection::open(&self.table.server, Purpose::Queries)?;
        self.check_slot(&mut queries, at)?;
        self.set_unreachable(false);
        let key = TableKey::of(&self.table, &mut queries)?;
        let Some(key) = key.filter(|key| key.names() == ranges.columns) else {
            return Err(PgError::Own {
                message: "the table has another key than when the job began".into(),
                hint: "begin anew: --from none".into(),
            });
        };
        // Changes that are not in the log were there when the slot was made: its snapshot sees
        // them, and another one does when all transactions from then have ended.
        let began_by = ranges.ranges.first().map_or(0, |first| first.seen.end);
        let mut has_warned = false;
        let (seen, time_us, until) = loop {
            let begun = begin_reading(&mut queries, None)?;
            if begun.0.least >= began_by || !outlet.is_wanted() {
                break begun;
            }
            if !has_warned {
                let place = self.table.place();
                tracing::warn!("{place}: waits for transactions that began before its slot");
                has_warned = true;
            }
            queries.query("ROLLBACK")?;
            std::thread::sleep(TRANSACTION_PAUSE);
        };
        let (next, from) = (ranges.with(seen, until)?, ranges.upto().to_vec());
        let (place, count) = (self.table.place(), next.ranges.len());
        tracing::info!(target: "postgres", "{place}: reads on, range {count} of the key");
        let mut reading = RowsReading { time_us, ..RowsReading::new(self, outlet, at, Some(next)) };
        let read = reading.read_by_key(&mut queries, &key, &from);
        if let Some(reached) = reading.reached().filter(|_| read.is_ok() || reading.has_given) {
            *ranges = reached;
        }
        read
    }
}

/// The rows that were given with the snapshot of a slot.
pub(crate) struct FirstRows {
    /// How far they go; `None` without a key.
    pub(crate) ranges: Option<ReadRanges>,
    /// The failure, if they are not all.
    pub(crate) failed: Option<PgError>,
}
