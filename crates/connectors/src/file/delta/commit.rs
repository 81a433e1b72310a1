//! Commits to a table: the file of the next version in the log, which one writer alone can make.
//!
//! ```text
//! read what is new ─▶ check ─▶ make _delta_log/N.json ─▶ a checkpoint, every so many commits
//!        ▲                          │ somebody else has made it
//!        └──────────────────────────┘
//! ```
//!
//! A commit only adds files, so that it fits behind those of others, unless they have changed the
//! columns or the protocol. The commit of a publication has a transaction: the name of the sink and
//! the number of its publications. The same publication is committed once, since the record of its
//! checkpoint has the number in front of it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use dataflow::error::ConnectorError;
use serde_json::{Map, Value, json};

use super::checkpoint;
use super::columns::DeltaColumns;
use super::log::{COMMIT_BYTES_MAX, DeltaLog, apply_commit, commit_name, unread};
use super::place::{TablePlace, now_ms, random};
use super::retention::{self, CLEANED_EVERY_MS};
use super::snapshot::Snapshot;
use super::statistics;

/// Commits of others in a row that a commit is tried behind.
const ATTEMPTS_MAX: u32 = 1_000;

/// A file that rows were written to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NewFile {
    /// Its name below the table.
    pub(super) name: String,
    pub(super) bytes: u64,
    /// Statistics of its columns, as the log has them.
    pub(super) statistics: String,
    /// The values of the partition columns.
    pub(super) values: Vec<(String, Option<String>)>,
}

/// Checks that files lie in directories of the table's partitions: another writer may have made the
/// table since they were begun.
fn check_directories(
    place: &str,
    files: &[NewFile],
    partitions: &[String],
) -> Result<(), ConnectorError> {
    let fits = |file: &NewFile| {
        let names = |name: &String| file.values.iter().any(|(column, _)| column == name);
        file.values.len() == partitions.len() && partitions.iter().all(names)
    };
    if files.iter().all(fits) {
        return Ok(());
    }
    let by = if partitions.is_empty() { "nothing".to_owned() } else { partitions.join(", ") };
    let message = format!("another writer has made the table, partitioned by {by}");
    Err(unread(place, message, "run the job again, from the beginning: --from none"))
}

/// The publication that a commit is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Transaction {
    /// The name of the sink.
    pub(super) name: String,
    /// The publications in front of it.
    pub(super) before: u64,
    /// Whether it may have been committed before: a run that this one replaces may commit it yet.
    pub(super) again: bool,
}

/// A table that is written.
pub(super) struct WrittenTable {
    pub(super) place: TablePlace,
    pub(super) columns: DeltaColumns,
    /// The partition columns, in order; `None` if those of the table count.
    given_partitions: Option<Vec<String>>,
    /// Commits from one checkpoint of the log to the next; 0 for none.
    checkpoint_every: u64,
    known: Mutex<LatestSnapshot>,
}

#[derive(Default)]
struct LatestSnapshot {
    snapshot: Snapshot,
    /// The [rules](Snapshot::rules) that rows were checked against.
    checked: Option<[Value; 2]>,
    /// The time at which old versions were last removed, in milliseconds since 1970.
    cleaned_ms: i64,
}

impl WrittenTable {
    pub(super) fn new(
        place: TablePlace,
        columns: DeltaColumns,
        given_partitions: Option<Vec<String>>,
        checkpoint_every: u64,
    ) -> Self {
        let known = Mutex::default();
        Self { place, columns, given_partitions, checkpoint_every, known }
    }

    fn lock(&self) -> MutexGuard<'_, LatestSnapshot> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The partition columns, and the columns of which files have statistics; of the table if it is
    /// there. Checks that rows can be added.
    ///
    /// # Errors
    /// When they cannot, or the log cannot be read.
    pub(super) fn layout(&self) -> Result<(Vec<String>, Vec<String>), ConnectorError> {
        let mut known = self.lock();
        self.refresh(&mut known)?;
        let snapshot = &known.snapshot;
        let partitioned_by = self.partitions(snapshot);
        let setting = |key: &str| snapshot.setting(key);
        let summarized = statistics::columns_of(&self.columns.schema, &partitioned_by, setting);
        Ok((partitioned_by, summarized))
    }

    fn partitions(&self, snapshot: &Snapshot) -> Vec<String> {
        match snapshot.version {
            Some(_) => snapshot.partitioned_by(),
            None => self.given_partitions.clone().unwrap_or_default(),
        }
    }

    /// Whether there is a table.
    ///
    /// # Errors
    /// When its log cannot be listed.
    pub(super) fn is_there(&self) -> Result<bool, ConnectorError> {
        Ok(DeltaLog::list(&self.place, None)?.is_some())
    }

    /// The number of publications of a sink.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub(super) fn count(&self, name: &str) -> Result<u64, ConnectorError> {
        let mut known = self.lock();
        self.refresh(&mut known)?;
        Ok(known.snapshot.transaction(name))
    }

    /// Reads the versions that are new, and checks that rows can still be added.
    fn refresh(&self, known: &mut LatestSnapshot) -> Result<(), ConnectorError> {
        let snapshot = &mut known.snapshot;
        snapshot.now_ms = now_ms();
        let mut from = snapshot.version;
        let mut log = DeltaLog::list(&self.place, from)?;
        if let (Some(found), Some(version)) = (&log, from)
            && !found.continues(version)
        {
            // Its commits were removed behind a checkpoint, or it was made anew.
            (from, log) = (None, DeltaLog::list(&self.place, None)?);
        }
        let Some(log) = log else {
            if snapshot.version.is_some() {
                let hint = "nobody may remove a table while it is written";
                return Err(unread(&self.place.display(""), "its log is gone", hint));
            }
            return Ok(());
        };
        if from.is_some() {
            snapshot.version = Some(log.replay(&self.place, from, snapshot)?);
        } else {
            // A log that is read in part leaves nothing behind.
            *snapshot = Snapshot::of_log(&log, &self.place, snapshot.now_ms)?;
        }
        snapshot.checkpoint = log.checkpoint().max(snapshot.checkpoint);
        let place = self.place.display("");
        snapshot.check(&place, &self.columns, self.given_partitions.as_deref())?;
        let now = snapshot.rules();
        let checked = known.checked.get_or_insert_with(|| now.clone());
        if *checked != now {
            let message = "another writer has changed its columns, its settings or its protocol";
            return Err(unread(&place, message, "run the job again: it goes on if rows fit still"));
        }
        Ok(())
    }

    /// Adds files to the table, which is made if it is not there: also without files if it
    /// `makes` one.
    ///
    /// # Errors
    /// When they cannot be added, or nobody knows whether they were: a transaction may be repeated.
    pub(super) fn commit(
        &self,
        files: &[NewFile],
        own: Option<&Transaction>,
        makes: bool,
    ) -> Result<(), ConnectorError> {
        let place = self.place.display("");
        let (known, id) = (&mut *self.lock(), format!("{:016x}{:016x}", random(), random()));
        for _ in 0..ATTEMPTS_MAX {
            self.refresh(known)?;
            let snapshot = &mut known.snapshot;
            if files.is_empty() && (snapshot.version.is_some() || !makes) {
                return Ok(());
            }
            if let Some(own) = own
                && own.is_committed(&place, snapshot.transaction(&own.name))?
            {
                return Ok(());
            }
            check_directories(&place, files, &self.partitions(snapshot))?;
            let version = snapshot.next(&place)?;
            let (name, lines) = (commit_name(version), self.lines(snapshot, files, own, &id));
            let is_made = self.place.create(&name, &lines)?;
            // A store may have made it by a request whose answer was lost, and that it was asked
            // again.
            let is_own = is_made
                || self.place.read(&name, COMMIT_BYTES_MAX)?.is_some_and(|bytes| bytes == lines);
            if is_own {
                apply_commit(&self.place.display(&name), &lines, snapshot, &mut 0)?;
                snapshot.version = Some(version);
                if known.checked.is_none() {
                    known.checked = Some(snapshot.rules());
                }
                self.keep_checkpoint(known);
                return Ok(());
            }
            tracing::info!(place, version, "another writer was first: commits behind it");
        }
        let message = format!("others have committed {ATTEMPTS_MAX} times in a row meanwhile");
        Err(unread(&place, message, "let fewer jobs write to it at a time"))
    }

    /// Writes a checkpoint of the log if it is time. The commit stands without it.
    fn keep_checkpoint(&self, known: &mut LatestSnapshot) {
        let snapshot = &mut known.snapshot;
        let given = snapshot.setting("delta.checkpointInterval").and_then(|of| of.parse().ok());
        let every = given.unwrap_or(self.checkpoint_every);
        let Some(version) = snapshot.version else { return };
        let since = version.saturating_sub(snapshot.checkpoint.unwrap_or(0));
        if every == 0 || since < every || snapshot.is_partial {
            return;
        }
        snapshot.expire();
        match checkpoint::write(&self.place, snapshot) {
            Ok(()) => {
                snapshot.checkpoint = Some(version);
                self.place.sweep_log();
                if snapshot.now_ms - known.cleaned_ms >= CLEANED_EVERY_MS {
                    retention::clean_log(&self.place, snapshot);
                    known.cleaned_ms = snapshot.now_ms;
                }
            }
            Err(error) => {
                tracing::warn!(%error, "no checkpoint of the log: the next commit tries again");
            }
        }
    }

    /// The actions of a commit.
    fn lines(
        &self,
        snapshot: &Snapshot,
        files: &[NewFile],
        own: Option<&Transaction>,
        id: &str,
    ) -> Bytes {
        let now = snapshot.now_ms;
        let is_new = snapshot.version.is_none();
        let operation = if is_new { "CREATE TABLE AS SELECT" } else { "WRITE" };
        let mut lines = vec![json!({"commitInfo": {
            "timestamp": now,
            "operation": operation,
            "operationParameters": {"mode": "Append"},
            "isBlindAppend": true,
            "engineInfo": concat!("Millstream/", env!("CARGO_PKG_VERSION")),
            "txnId": id,
        }})];
        if is_new {
            lines.push(json!({ "protocol": self.protocol() }));
            lines.push(json!({"metaData": {
                "id": uuid(),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": self.columns.json().to_string(),
                "partitionColumns": self.given_partitions.clone().unwrap_or_default(),
                "configuration": {},
                "createdTime": now,
            }}));
        }
        if let Some(Transaction { name, before, .. }) = own {
            let number = before + 1;
            lines.push(json!({"txn": {"appId": name, "version": number, "lastUpdated": now}}));
        }
        for NewFile { name, bytes, statistics, values } in files {
            let values = values.iter().map(|(column, of)| (column.clone(), json!(of)));
            lines.push(json!({"add": {
                "path": encoded(name),
                "partitionValues": values.collect::<Map<_, _>>(),
                "size": bytes,
                "modificationTime": now,
                "dataChange": true,
                "stats": statistics,
            }}));
        }
        lines.iter().map(|line| format!("{line}\n")).collect::<String>().into()
    }

    fn protocol(&self) -> Value {
        if !self.columns.has_local_times() {
            return json!({"minReaderVersion": 1, "minWriterVersion": 2});
        }
        let features = ["timestampNtz"];
        json!({
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": features,
            "writerFeatures": features,
        })
    }
}

impl Transaction {
    /// Whether it stands in the log already, where the sink counts `count` publications.
    ///
    /// # Errors
    /// When the sink has not published what was in front, or more.
    fn is_committed(&self, place: &str, count: u64) -> Result<bool, ConnectorError> {
        let Self { name, before, again } = self;
        if count == *before {
            return Ok(false);
        }
        if *again && before.checked_add(1) == Some(count) {
            return Ok(true);
        }
        let message = format!(
            "transaction '{name}' counted {before} publications when the checkpoint was taken, \
             and counts {count} now"
        );
        let hint = "another job writes by that name, or the job went back to an older checkpoint: \
                    give each sink a name of its own, 'txn.app-id', or begin anew, --from none";
        Err(unread(place, message, hint))
    }
}

/// A name below the table as the log has it.
fn encoded(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~/=".contains(&byte);
    let each = name.bytes().map(|byte| {
        if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    });
    each.collect()
}

/// A number for a table that no other one has, as a UUID of version 4.
fn uuid() -> String {
    let bits = (u128::from(random()) << 64) | u128::from(random());
    let bits = bits & !(0xf << 76) & !(0x3 << 62) | (0x4 << 76) | (0x2 << 62);
    let text = format!("{bits:032x}");
    [&text[..8], &text[8..12], &text[12..16], &text[16..20], &text[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_publication_that_another_run_has_committed_stands() {
        let own = |before: u64, again: bool| Transaction { name: "a".into(), before, again };
        for (before, again, count, committed) in [
            (3, false, 3, Some(false)),
            (3, true, 3, Some(false)),
            (3, true, 4, Some(true)),
            (3, false, 4, None),
            (3, true, 5, None),
            (3, true, 2, None),
            (u64::MAX, true, 0, None),
        ] {
            let found = own(before, again).is_committed("t", count).ok();
            assert_eq!(found, committed, "{before}, {again}, {count}");
        }
    }
}
