//! The thread that follows the changes of a table.
//!
//! ```text
//! slot ─▶ snapshot (op r) ─▶ changes, transaction by transaction ─▶ queue ─▶ reader
//!   ▲ confirmed: what a checkpoint has
//! ```
//!
//! A place in the log is where the commit of a transaction lies, and how many of its changes were
//! given. The server keeps the log from the place that was confirmed last, so that a transaction
//! that was read in part is sent again whole.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dataflow::error::ConnectorError;

use crate::changes::{Change, ChangeColumns, since_1970};
use crate::client::{PgConnection, Purpose, literal, quoted};
use crate::decode::split_line;
use crate::errors::PgError;
use crate::frames::FieldCursor;
use crate::pgoutput::{LogMessage, LoggedValue, OldRow, PgRelation};
use crate::pieces::{ChangeBatch, LogPlace, lsn_of, shown};
use crate::table::{PgTable, patiently};

/// How often the server learns what is confirmed.
const REPORTED_EVERY: Duration = Duration::from_secs(1);
/// How long nothing may come before the server is asked whether it is there.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// How long to wait until the reader may have room.
const ROOM_PAUSE: Duration = Duration::from_millis(5);
/// How long to wait before a connection that was lost is made again.
const LOST_PAUSE: Duration = Duration::from_millis(250);
/// Bytes of the log that the server keeps for a slot before that is worth a warning.
const KEPT_MUCH: u64 = 1 << 30;
/// Relations that are remembered at most.
const RELATIONS_MAX: usize = 1024;

/// How the changes of a table are followed.
pub(crate) struct Following {
    pub(crate) table: PgTable,
    pub(crate) columns: ChangeColumns,
    pub(crate) slot: String,
    pub(crate) publication: String,
    /// Whether the slot ends with the connection.
    pub(crate) is_temporary: bool,
    /// Whether the rows that are there when the job begins are given first.
    pub(crate) has_snapshot: bool,
    /// Whether the job begins anew: a slot of that name is of a run before.
    pub(crate) is_new: bool,
    /// The position up to which the server may remove its log.
    pub(crate) confirmed: Arc<AtomicU64>,
}

/// Where the thread puts what it has.
pub(crate) struct Outlet {
    pub(crate) to: SyncSender<Result<ChangeBatch, ConnectorError>>,
    pub(crate) waker: Waker,
    pub(crate) wanted: Weak<()>,
}

impl Outlet {
    /// Gives something, or gives it back after a while if there is no room.
    fn try_give(&self, given: ChangeBatch) -> Option<ChangeBatch> {
        match self.to.try_send(Ok(given)) {
            Err(TrySendError::Full(Ok(given))) => {
                std::thread::sleep(ROOM_PAUSE);
                Some(given)
            }
            _ => {
                self.waker.wake_by_ref();
                None
            }
        }
    }

    /// Gives something; `false` if nobody wants it any more.
    fn give(&self, given: ChangeBatch) -> bool {
        let is_wanted = self.to.send(Ok(given)).is_ok();
        self.waker.wake_by_ref();
        is_wanted
    }

    fn is_wanted(&self) -> bool {
        self.wanted.strong_count() > 0
    }
}

impl Following {
    /// Follows until nobody wants it any more, or something is wrong for good.
    pub(crate) fn run(&self, from: Option<LogPlace>, outlet: &Outlet) {
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

    fn follow(&self, from: Option<LogPlace>, outlet: &Outlet) -> Result<(), ConnectorError> {
        let place = self.table.place();
        let timeout = self.table.retry_timeout;
        let ends = || !outlet.is_wanted();
        let (mut kept, mut at) = match from {
            Some(from) => (None, from),
            None => {
                let (connection, at) = self.begin(outlet)?;
                (Some(connection), at)
            }
        };
        self.confirmed.fetch_max(at.lsn, Ordering::AcqRel);
        loop {
            let lost = patiently(&place, timeout, &ends, || {
                let mut connection = match kept.take() {
                    Some(connection) => connection,
                    None => self.reconnect(at)?,
                };
                self.start(&mut connection, at)?;
                // A failure from here on is retried for the whole timeout again.
                Ok(self.stream(&mut connection, &mut at, outlet))
            })?;
            match lost {
                Ok(()) => return Ok(()),
                Err(error) if !error.may_pass() || self.is_temporary => {
                    return Err(self.reported(&error));
                }
                Err(error) => {
                    tracing::info!(target: "postgres", ?error, "{place}: follows again");
                    std::thread::sleep(LOST_PAUSE);
                }
            }
        }
    }

    /// An error of the slot or the publication.
    fn reported(&self, error: &PgError) -> ConnectorError {
        error.at(&format!("{}, slot '{}'", self.table.place(), self.slot))
    }

    /// Makes publication and slot, and gives the rows that are there.
    fn begin(&self, outlet: &Outlet) -> Result<(PgConnection, LogPlace), ConnectorError> {
        let (place, ends) = (self.table.place(), || !outlet.is_wanted());
        let (mut connection, at, snapshot) =
            patiently(&place, self.table.start_timeout, &ends, || self.make_slot())?;
        if self.has_snapshot {
            // It is valid as long as this connection does nothing else. What was given cannot be
            // read anew, so that a failure here is one for good.
            self.snapshot(&snapshot, at, outlet).map_err(|error| self.reported(&error))?;
        }
        connection.query("SELECT 1").map_err(|error| self.reported(&error))?;
        if !outlet.give(ChangeBatch { place: Some(at), ..ChangeBatch::none() }) {
            let error = PgError::Away("nobody wants the changes any more".into());
            return Err(self.reported(&error));
        }
        Ok((connection, at))
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

    /// Gives the rows that were there when the slot was made.
    fn snapshot(&self, snapshot: &str, at: LogPlace, outlet: &Outlet) -> Result<(), PgError> {
        let mut queries = PgConnection::open(&self.table.server, Purpose::Queries)?;
        queries.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")?;
        queries.query(&format!("SET TRANSACTION SNAPSHOT {}", literal(snapshot)))?;
        let now = queries.query("SELECT (extract(epoch FROM now()) * 1000000)::bigint")?;
        let now = now.first().and_then(|row| row.first()?.as_ref()?.parse().ok());
        let fields = &self.columns.fields;
        let columns: Vec<String> = fields.iter().map(|name| quoted(name)).collect();
        let columns = if columns.is_empty() { "1".to_owned() } else { columns.join(", ") };
        let mut given = ChangeBatch::none();
        let mut is_wanted = true;
        queries.copy_out(
            &format!("COPY (SELECT {columns} FROM {}) TO STDOUT", self.table.quoted),
            |line| {
                let values = split_line(line)?;
                if values.len() != fields.len().max(1) {
                    return Err(PgError::Breach("a row has other columns".into()));
                }
                let after = Some(values.into_iter().take(fields.len()).collect());
                let (lsn, time_us) = (at.lsn, now);
                given.push(Change { op: "r", before: None, after, lsn, number: 0, time_us });
                if given.is_full() {
                    is_wanted = outlet.give(std::mem::replace(&mut given, ChangeBatch::none()));
                }
                Ok(is_wanted)
            },
        )?;
        if is_wanted {
            outlet.give(given);
        }
        Ok(())
    }

    /// A connection to the slot, which has to be as the job has left it.
    fn reconnect(&self, at: LogPlace) -> Result<PgConnection, PgError> {
        let mut queries = PgConnection::open(&self.table.server, Purpose::Queries)?;
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
        PgConnection::open(&self.table.server, Purpose::Replication)
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

    /// Gives changes until the connection is lost or nobody wants them.
    fn stream(
        &self,
        connection: &mut PgConnection,
        at: &mut LogPlace,
        outlet: &Outlet,
    ) -> Result<(), PgError> {
        let mut decoder = Decoder {
            of: self,
            relations: vec![],
            open: None,
            seen: 0,
            given: ChangeBatch::none(),
        };
        let (mut reported, mut received) = (Instant::now(), Instant::now());
        let mut warned = false;
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
                        decoder.take(&LogMessage::of(cursor.0)?, at)?;
                    }
                    b'k' => {
                        let (end, _time) = (cursor.u64()?, cursor.u64()?);
                        asks = cursor.u8()? != 0;
                        warned |= !warned && self.warn(end);
                        decoder.pass(end, at);
                    }
                    _ => return Err(PgError::Breach("a message of no replication".into())),
                }
            } else if received.elapsed() > SILENCE_MAX {
                return Err(PgError::Away("it is silent".into()));
            }
            if decoder.is_due(connection.has_more()) {
                let mut given = Some(decoder.given(*at));
                // The server hears of us also while the reader is slow.
                while let Some(waits) = given.take() {
                    given = outlet.try_give(waits);
                    if given.is_some() && reported.elapsed() >= REPORTED_EVERY {
                        self.tell(connection)?;
                        reported = Instant::now();
                    }
                }
                self.forget(*at);
            }
            if asks || reported.elapsed() >= REPORTED_EVERY {
                self.tell(connection)?;
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

    /// Says that the server keeps much of the log for the slot, if it does.
    fn warn(&self, end: u64) -> bool {
        let kept = end.saturating_sub(self.confirmed.load(Ordering::Acquire));
        let is_much = kept > KEPT_MUCH;
        if is_much {
            tracing::warn!(
                "{}: the server keeps {kept} bytes of its log for the slot '{}': what no \
                 checkpoint of a job with --state has",
                self.table.place(),
                self.slot
            );
        }
        is_much
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

/// The transactions of a connection.
struct Decoder<'a> {
    of: &'a Following,
    relations: Vec<PgRelation>,
    /// The transaction that has begun: its place and its time.
    open: Option<(u64, Option<i64>)>,
    /// Its changes so far.
    seen: u64,
    given: ChangeBatch,
}

impl Decoder<'_> {
    /// Takes a message, and moves the place.
    fn take(&mut self, message: &LogMessage, at: &mut LogPlace) -> Result<(), PgError> {
        match message {
            LogMessage::Begin { commit_lsn, time_us } => {
                if at.given > 0 && *commit_lsn != at.lsn {
                    return Err(PgError::Own {
                        message: format!("the transaction at {} is gone", shown(at.lsn)),
                        hint: "begin anew: --from none".into(),
                    });
                }
                at.lsn = *commit_lsn;
                self.seen = 0;
                self.open = Some((*commit_lsn, since_1970(*time_us)));
            }
            LogMessage::Commit { end_lsn } => {
                if self.seen < at.given {
                    return Err(PgError::Breach("a transaction has lost changes".into()));
                }
                *at = LogPlace { lsn: *end_lsn, given: 0 };
                self.open = None;
            }
            LogMessage::PgRelation(relation) => {
                self.relations.retain(|other| other.oid != relation.oid);
                if self.relations.len() >= RELATIONS_MAX {
                    return Err(PgError::Breach("too many tables".into()));
                }
                self.relations.push(relation.clone());
            }
            LogMessage::Insert { oid, new } => self.change("c", *oid, None, Some(new), at)?,
            LogMessage::Update { oid, old, new } => {
                self.change("u", *oid, old.as_ref(), Some(new), at)?
            }
            LogMessage::Delete { oid, old } => self.change("d", *oid, Some(old), None, at)?,
            LogMessage::Truncate { oids } => {
                for oid in oids {
                    self.change("t", *oid, None, None, at)?;
                }
            }
            LogMessage::Other => {}
        }
        Ok(())
    }

    fn change(
        &mut self,
        op: &'static str,
        oid: u32,
        old: Option<&OldRow>,
        new: Option<&Vec<LoggedValue>>,
        at: &mut LogPlace,
    ) -> Result<(), PgError> {
        let Some((lsn, time_us)) = self.open else {
            return Err(PgError::Breach("a change outside of a transaction".into()));
        };
        let relation = self.relations.iter().find(|relation| relation.oid == oid);
        let relation = relation.ok_or_else(|| PgError::Breach("a change of no table".into()))?;
        let own = [quoted(&relation.schema), quoted(&relation.name)].join(".");
        if own != self.of.table.quoted && quoted(&relation.name) != self.of.table.quoted {
            return Ok(());
        }
        self.seen += 1;
        // It was given before the connection was lost.
        if self.seen <= at.given {
            return Ok(());
        }
        at.given = self.seen;
        let columns = &self.of.columns;
        let before = old.map(|old| columns.side(relation, &old.values, None)).transpose();
        let after = new.map(|new| columns.side(relation, new, old)).transpose();
        match before.and_then(|before| Ok((before, after?))) {
            Ok((before, after)) => {
                let number = self.seen;
                self.given.push(Change { op, before, after, lsn, number, time_us });
            }
            Err(reason) => self.given.bad.push((LogPlace { lsn, given: self.seen }, reason)),
        }
        Ok(())
    }

    /// The log has gone on without changes of the table.
    fn pass(&mut self, end: u64, at: &mut LogPlace) {
        if self.open.is_none() && at.given == 0 && end > at.lsn {
            *at = LogPlace { lsn: end, given: 0 };
            self.given.place = Some(*at);
        }
    }

    /// Whether something is to be given now.
    fn is_due(&mut self, has_more: bool) -> bool {
        let has_some = !self.given.changes.is_empty() || !self.given.bad.is_empty();
        self.given.is_full() || !has_more && (has_some || self.given.place.is_some())
    }

    fn given(&mut self, at: LogPlace) -> ChangeBatch {
        let given = std::mem::replace(&mut self.given, ChangeBatch::none());
        ChangeBatch { place: Some(at), ..given }
    }
}
