//! The thread that follows the changes of a table.
//!
//! ```text
//! slot ─▶ rows (op r) ─▶ changes, transaction by transaction ─▶ queue ─▶ reader
//!   ▲ confirmed: what a checkpoint has
//! ```
//!
//! A place in the log is where the commit of a transaction lies, and how many of its changes were
//! given. The server keeps the log from the place that was confirmed last, so that a transaction
//! that was read in part is sent again whole.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dataflow::error::ConnectorError;

use crate::client::{PgConnection, Purpose, literal, quoted};
use crate::errors::PgError;
use crate::following::{FollowFrom, Following, LOST_PAUSE, Outlet};
use crate::frames::FieldCursor;
use crate::lag::SlotLag;
use crate::overlap::Overlap;
use crate::pgoutput::LogMessage;
use crate::pieces::{ChangeBatch, LogPlace, PieceEnd, lsn_of, shown};
use crate::ranges::ReadRanges;
use crate::table::patiently;
use crate::transactions::LogDecoder;

/// How often the server learns what is confirmed.
const REPORTED_EVERY: Duration = Duration::from_secs(1);
/// How long nothing may come before the server is asked whether it is there.
const SILENCE_MAX: Duration = Duration::from_secs(60);

impl Following {
    /// Follows until nobody wants it any more, or something is wrong for good.
    pub(crate) fn run(&self, from: FollowFrom, outlet: &Outlet) {
        let place = self.table.place();
        let ended = self.follow(from, outlet);
        if let Err(error) = ended
            && outlet.is_wanted()
        {
            tracing::debug!(target: "postgres", %error, "{place}: changes end");
            let _ = outlet.to.send(Err(error));
            outlet.waker.wake_by_ref();
        }
    }

    fn follow(&self, from: FollowFrom, outlet: &Outlet) -> Result<(), ConnectorError> {
        let (mut kept, mut at, ranges) = match from {
            FollowFrom::Log(at, ranges) => (None, at, ranges),
            FollowFrom::Rows(at, ranges) => (None, at, self.rest_of_rows(at, ranges, outlet)?),
            FollowFrom::Anew => self.begin(outlet)?,
        };
        if !outlet.is_wanted() {
            return Ok(());
        }
        let place = self.table.place();
        let timeout = self.table.retry_timeout;
        let ends = || !outlet.is_wanted();
        self.confirmed.fetch_max(at.lsn, Ordering::AcqRel);
        let mut lag = SlotLag::default();
        loop {
            let lost = patiently(&place, timeout, &ends, || {
                let mut connection = match kept.take() {
                    Some(connection) => connection,
                    None => self.reconnect(at)?,
                };
                self.start(&mut connection, at)?;
                self.set_unreachable(false);
                // A failure from here on is retried for the whole timeout again.
                let overlap = ranges.clone().map(Overlap::new);
                Ok(self.stream(&mut connection, &mut at, (overlap, &mut lag), outlet))
            })?;
            match lost {
                Ok(()) => return Ok(()),
                Err(error) if !error.may_pass() || self.is_temporary => {
                    return Err(self.reported(&error));
                }
                Err(error) => {
                    tracing::info!(target: "postgres", ?error, "{place}: follows again");
                    self.set_unreachable(true);
                    std::thread::sleep(LOST_PAUSE);
                }
            }
        }
    }

    /// An error of the slot or the publication.
    pub(crate) fn reported(&self, error: &PgError) -> ConnectorError {
        error.at(&format!("{}, slot '{}'", self.table.place(), self.slot))
    }

    /// Makes publication and slot, and gives the rows that are there.
    fn begin(&self, outlet: &Outlet) -> Result<Begun, ConnectorError> {
        let (place, ends) = (self.table.place(), || !outlet.is_wanted());
        // Where no row was given, another slot will do.
        let (connection, at, first) = patiently(&place, self.table.start_timeout, &ends, || {
            let (connection, at, exported) = self.make_slot()?;
            // The exported snapshot is valid as long as its connection does nothing else.
            let first = self.has_snapshot.then(|| self.first_rows(&exported, at, outlet));
            Ok((connection, at, first.transpose()?))
        })?;
        let (ranges, failed) = first.map_or((None, None), |first| (first.ranges, first.failed));
        match (failed, ranges) {
            (Some(error), Some(ranges)) if error.may_pass() && !self.is_temporary => {
                tracing::info!(target: "postgres", ?error, "{place}: reads on");
                Ok((None, at, self.rest_of_rows(at, ranges, outlet)?))
            }
            (Some(error), _) => Err(self.reported(&error)),
            (None, ranges) => {
                let mut connection = connection;
                // It ends the transaction of the exported snapshot.
                let connection = match connection.query("SELECT 1") {
                    Ok(_) => Some(connection),
                    Err(error) if error.may_pass() && !self.is_temporary => None,
                    Err(error) => return Err(self.reported(&error)),
                };
                let ranges = self.end_rows(at, ranges.unwrap_or_default(), outlet);
                Ok((connection, at, ranges))
            }
        }
    }

    /// Gives the rows behind those that were given.
    fn rest_of_rows(
        &self,
        at: LogPlace,
        mut ranges: ReadRanges,
        outlet: &Outlet,
    ) -> Result<Option<Arc<ReadRanges>>, ConnectorError> {
        self.other_rows(at, &mut ranges, outlet)?;
        Ok(self.end_rows(at, ranges, outlet))
    }

    /// Says that all rows are given. Gives the ranges if they are needed further on.
    fn end_rows(
        &self,
        place: LogPlace,
        ranges: ReadRanges,
        outlet: &Outlet,
    ) -> Option<Arc<ReadRanges>> {
        let ranges = Some(Arc::new(ranges)).filter(|ranges| ranges.overlap(place.lsn));
        let end = Some(PieceEnd::Log { place, ranges: ranges.clone() });
        // Whether somebody wants more is asked before the next piece.
        let _ = outlet.give(ChangeBatch { end, ..ChangeBatch::none() });
        ranges
    }

    fn make_slot(&self) -> Result<(PgConnection, LogPlace, String), PgError> {
        let mut queries = PgConnection::open(&self.table.server, Purpose::Queries)?;
        self.make_publication(&mut queries)?;
        let slot = literal(&self.slot);
        let there = queries.query(&format!(
            "SELECT plugin, active, confirmed_flush_lsn FROM pg_replication_slots \
             WHERE slot_name = {slot}"
        ))?;
        if let Some(row) = there.into_iter().next() {
            if row.first() != Some(&Some("pgoutput".into())) {
                return Err(PgError::Own {
                    message: format!("the slot '{}' is of another use", self.slot),
                    hint: "give it another name: 'slot.name'".into(),
                });
            }
            if !self.has_snapshot && !self.is_new {
                let confirmed = row.get(2).and_then(Option::as_deref).and_then(lsn_of);
                let at = LogPlace { lsn: confirmed.unwrap_or(0), given: 0 };
                let connection = PgConnection::open(&self.table.server, Purpose::Replication)?;
                return Ok((connection, at, String::new()));
            }
            tracing::warn!(
                "{}: the slot '{}' of a run before is made anew",
                self.table.place(),
                self.slot
            );
            queries.query(&format!("SELECT pg_drop_replication_slot({slot})"))?;
        }
        let mut connection = PgConnection::open(&self.table.server, Purpose::Replication)?;
        let temporary = if self.is_temporary { " TEMPORARY" } else { "" };
        let made = connection.query(&format!(
            "CREATE_REPLICATION_SLOT {}{temporary} LOGICAL pgoutput EXPORT_SNAPSHOT",
            quoted(&self.slot)
        ))?;
        let row = made.into_iter().next().unwrap_or_default();
        let text = |at: usize| row.get(at).cloned().flatten().unwrap_or_default();
        let lsn = lsn_of(&text(1)).ok_or_else(|| PgError::Breach("a slot has no place".into()))?;
        Ok((connection, LogPlace { lsn, given: 0 }, text(2)))
    }

    /// Makes the publication, unless it is there.
    fn make_publication(&self, queries: &mut PgConnection) -> Result<(), PgError> {
        let (name, table) = (literal(&self.publication), literal(&self.table.quoted));
        let there = queries.query(&format!(
            "SELECT EXISTS (SELECT FROM pg_publication_tables p JOIN pg_class c ON \
             c.relname = p.tablename JOIN pg_namespace n ON n.oid = c.relnamespace AND \
             n.nspname = p.schemaname WHERE p.pubname = {name} AND c.oid = {table}::regclass) \
             FROM pg_publication WHERE pubname = {name}"
        ))?;
        match there.first().and_then(|row| row.first()).and_then(Option::as_deref) {
            Some("t") => Ok(()),
            Some(_) => Err(PgError::Own {
                message: format!("the publication '{}' has not this table", self.publication),
                hint: format!(
                    "ALTER PUBLICATION {} ADD TABLE {}",
                    quoted(&self.publication),
                    self.table.quoted
                ),
            }),
            None => queries
                .query(&format!(
                    "CREATE PUBLICATION {} FOR TABLE {}",
                    quoted(&self.publication),
                    self.table.quoted
                ))
                .map(drop),
        }
    }

    /// A connection to the slot, which has to be as the job has left it.
    fn reconnect(&self, at: LogPlace) -> Result<PgConnection, PgError> {
        let mut queries = PgConnection::open(&self.table.server, Purpose::Queries)?;
        self.check_slot(&mut queries, at)?;
        PgConnection::open(&self.table.server, Purpose::Replication)
    }

    /// Checks that the slot is as the job has left it.
    pub(crate) fn check_slot(
        &self,
        queries: &mut PgConnection,
        at: LogPlace,
    ) -> Result<(), PgError> {
        let there = queries.query(&format!(
            "SELECT confirmed_flush_lsn, wal_status FROM pg_replication_slots \
             WHERE slot_name = {}",
            literal(&self.slot)
        ))?;
        let lost = |message: String| PgError::Own {
            message,
            hint: "changes since the last checkpoint are gone: begin anew, --from none".into(),
        };
        let Some(row) = there.first() else {
            return Err(lost(format!("the slot '{}' was dropped", self.slot)));
        };
        if row.get(1).and_then(Option::as_deref) == Some("lost") {
            let message = "the server has thrown away what the slot kept (max_slot_wal_keep_size)";
            return Err(lost(message.into()));
        }
        let confirmed = row.first().and_then(Option::as_deref).and_then(lsn_of).unwrap_or(0);
        if confirmed > at.lsn {
            return Err(lost(format!(
                "somebody else has read from the slot '{}', up to {}",
                self.slot,
                shown(confirmed)
            )));
        }
        Ok(())
    }

    fn start(&self, connection: &mut PgConnection, at: LogPlace) -> Result<(), PgError> {
        connection.start_replication(&format!(
            "START_REPLICATION SLOT {} LOGICAL {} (proto_version '1', publication_names {})",
            quoted(&self.slot),
            shown(at.lsn),
            // A name within a list of names, within a text.
            format_args!("'{}'", quoted(&self.publication).replace('\'', "''"))
        ))?;
        connection.set_timeout(REPORTED_EVERY)
    }

    /// Gives changes until the connection is lost or nobody wants them. `at` is the place behind
    /// those that were given.
    fn stream(
        &self,
        connection: &mut PgConnection,
        at: &mut LogPlace,
        (overlap, lag): (Option<Overlap>, &mut SlotLag),
        outlet: &Outlet,
    ) -> Result<(), PgError> {
        let mut decoder = LogDecoder::new(self, *at, overlap);
        let (mut reported, mut received) = (Instant::now(), Instant::now());
        self.tell(connection)?;
        while outlet.is_wanted() {
            let frame = connection.try_next()?;
            let mut asks = false;
            if let Some(frame) = frame {
                received = Instant::now();
                let mut cursor = FieldCursor(copy_data(&frame.body, frame.tag)?);
                match cursor.u8()? {
                    b'w' => {
                        let (_start, _end, _time) = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
                        decoder.take(&LogMessage::of(cursor.0)?)?;
                    }
                    b'k' => {
                        let (end, _time) = (cursor.u64()?, cursor.u64()?);
                        asks = cursor.u8()? != 0;
                        decoder.pass(end);
                    }
                    _ => return Err(PgError::Breach("a message of no replication".into())),
                }
            } else if received.elapsed() > SILENCE_MAX {
                return Err(PgError::Away("it is silent".into()));
            }
            if decoder.is_due(connection.has_more()) {
                let place = decoder.at;
                let mut given = Some(decoder.given()?);
                // The server hears of us also while the reader is slow.
                while let Some(waits) = given.take() {
                    given = outlet.try_give(waits);
                    if given.is_some() && reported.elapsed() >= REPORTED_EVERY {
                        self.tell(connection)?;
                        lag.look(self, place.lsn);
                        reported = Instant::now();
                    }
                }
                *at = place;
                self.forget(place);
            }
            if asks || reported.elapsed() >= REPORTED_EVERY {
                self.tell(connection)?;
                lag.look(self, decoder.at.lsn);
                reported = Instant::now();
            }
        }
        Ok(())
    }

    /// Lets the server forget what was given, if no job can go on with the slot.
    fn forget(&self, at: LogPlace) {
        if self.is_temporary {
            self.confirmed.fetch_max(at.lsn, Ordering::Release);
        }
    }

    pub(crate) fn set_unreachable(&self, is_unreachable: bool) {
        if let Some(backlog) = self.backlog.upgrade() {
            backlog.set_unreachable(is_unreachable);
        }
    }

    /// Tells the server what is confirmed.
    fn tell(&self, connection: &mut PgConnection) -> Result<(), PgError> {
        let confirmed = self.confirmed.load(Ordering::Acquire);
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // A clock may be before 2000.
        let since_2000 = since_1970.saturating_sub(Duration::from_secs(946_684_800));
        let mut status = vec![b'r'];
        for place in [confirmed; 3] {
            status.extend(place.to_be_bytes());
        }
        status.extend((since_2000.as_micros() as u64).to_be_bytes());
        status.push(0);
        connection.send_copy(&status)
    }
}

/// A message of the log, or the server's error.
fn copy_data(body: &[u8], tag: u8) -> Result<&[u8], PgError> {
    match tag {
        b'd' => Ok(body),
        b'E' => Err(PgError::Refused(crate::frames::error_of(body)?)),
        b'c' | b'C' | b'Z' => Err(PgError::Away("it has ended the replication".into())),
        _ => Err(PgError::Breach("a message of no replication".into())),
    }
}

/// A connection to the slot, if there is one, the place in the log, and the ranges of the rows
/// while they are needed.
type Begun = (Option<PgConnection>, LogPlace, Option<Arc<ReadRanges>>);
