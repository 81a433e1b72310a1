//! A version of a table, as a writer has to know it: its protocol, its columns, the transactions of
//! its writers, and all actions that a checkpoint of the log has.

use std::collections::BTreeMap;

use dataflow::error::ConnectorError;
use serde_json::Value;

use super::columns::{DeltaColumns, bare};
use super::files::path_of;
use super::interval::{HOUR_MS, interval_ms};
use super::log::{DeltaLog, LogState, damaged, of, unread};
use super::place::TablePlace;

/// Files of a table that is written, and those that were removed from it, at most: a writer has
/// them in memory, since its checkpoints of the log have all of them.
pub(super) const WRITTEN_FILES_MAX: usize = 100_000;
/// How long a file that was removed stays in checkpoints, where the table does not say it.
const REMOVED_MS: i64 = 7 * 24 * HOUR_MS;
/// The newest version of the protocol for writers: it has names of features.
const NAMED_FEATURES: u64 = 7;
/// Features that ask nothing of a writer that adds files: what they allow is looked for where a
/// table uses it.
const FEATURES: [&str; 10] = [
    "appendOnly",
    "changeDataFeed",
    "checkConstraints",
    "columnMapping",
    "deletionVectors",
    "generatedColumns",
    "identityColumns",
    "invariants",
    "timestampNtz",
    "vacuumProtocolCheck",
];
/// Rules that the columns of a table may have.
const RULES: [&str; 3] = ["delta.generationExpression", "delta.identity.start", "delta.invariants"];
/// The fields of a file that checkpoints keep.
const FILE_FIELDS: [&str; 9] = [
    "dataChange",
    "deletionTimestamp",
    "extendedFileMetadata",
    "modificationTime",
    "partitionValues",
    "path",
    "size",
    "stats",
    "tags",
];
/// Kinds of actions that checkpoints keep, or need not.
const KINDS: [&str; 8] =
    ["add", "cdc", "checkpointMetadata", "commitInfo", "metaData", "protocol", "remove", "txn"];

/// A version of a table.
#[derive(Default)]
pub(super) struct Snapshot {
    /// `None` while there is no table.
    pub(super) version: Option<u64>,
    /// The newest checkpoint of the log that is known.
    pub(super) checkpoint: Option<u64>,
    pub(super) protocol: Option<Value>,
    pub(super) metadata: Option<Value>,
    /// By the name of a writer, its transactions as an action.
    pub(super) transactions: BTreeMap<String, Value>,
    /// By path, actions as JSON.
    pub(super) files: BTreeMap<String, String>,
    pub(super) removed: BTreeMap<String, String>,
    /// Those of the actions that have not ended.
    pub(super) added: Vec<(String, String)>,
    /// Whether there are actions that a checkpoint would lose.
    pub(super) is_partial: bool,
    /// The time, in milliseconds since 1970.
    pub(super) now_ms: i64,
}

impl LogState for Snapshot {
    fn columns(&self) -> &'static [&'static str] {
        &[
            "add.path",
            "add.partitionValues",
            "add.size",
            "add.modificationTime",
            "add.dataChange",
            "add.stats",
            "add.tags",
            "add.deletionVector",
            "add.baseRowId",
            "add.clusteringProvider",
            "domainMetadata",
            "metaData",
            "protocol",
            "remove",
            "sidecar",
            "txn",
        ]
    }

    fn apply(&mut self, place: &str, action: &Value) -> Result<(), ConnectorError> {
        if let Some(protocol) = of(action, "protocol") {
            check_protocol(place, protocol)?;
            self.protocol = Some(protocol.clone());
        }
        if let Some(metadata) = of(action, "metaData") {
            self.metadata = Some(metadata.clone());
        }
        if let Some(own) = of(action, "txn") {
            let name = own.get("appId").and_then(Value::as_str);
            let name = name.ok_or_else(|| damaged(place, "a transaction has no name"))?;
            if version_of(own).is_none() {
                return Err(damaged(place, "a transaction has no number"));
            }
            self.transactions.insert(name.to_owned(), own.clone());
        }
        if of(action, "sidecar").is_some() {
            let hint = "write its checkpoints as version 1";
            return Err(unread(place, "the checkpoint has further files", hint));
        }
        if let Some(remove) = of(action, "remove") {
            let path = path_of(place, remove)?;
            self.is_partial |= !is_kept(remove);
            self.files.remove(path);
            self.removed.insert(path.to_owned(), remove.to_string());
        }
        if let Some(add) = of(action, "add") {
            self.is_partial |= !is_kept(add);
            self.added.push((path_of(place, add)?.to_owned(), add.to_string()));
        }
        let kinds = action.as_object().into_iter().flatten();
        let mut others = kinds.filter(|(_, value)| !value.is_null());
        self.is_partial |= others.any(|(kind, _)| !KINDS.contains(&kind.as_str()));
        Ok(())
    }

    fn end(&mut self, place: &str) -> Result<(), ConnectorError> {
        for (path, add) in self.added.drain(..) {
            self.removed.remove(&path);
            self.files.insert(path, add);
        }
        if self.files.len() + self.removed.len() > WRITTEN_FILES_MAX {
            self.expire();
        }
        let count = self.files.len() + self.removed.len();
        if count > WRITTEN_FILES_MAX {
            let message =
                format!("the table has {count} files or removed ones, over {WRITTEN_FILES_MAX}");
            let hint = "compact it, and write larger files by fewer checkpoints or 'roll'";
            return Err(unread(place, message, hint));
        }
        Ok(())
    }
}

/// The number of the last transaction.
fn version_of(own: &Value) -> Option<u64> {
    own.get("version").and_then(Value::as_u64)
}

/// Whether a checkpoint keeps all that an action says of a file.
fn is_kept(file: &Value) -> bool {
    let mut fields = file.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    fields.all(|(field, _)| FILE_FIELDS.contains(&field.as_str()))
}

fn check_protocol(place: &str, protocol: &Value) -> Result<(), ConnectorError> {
    let version = protocol.get("minWriterVersion").and_then(Value::as_u64);
    let version = version.ok_or_else(|| damaged(place, "its protocol has no version"))?;
    let features = protocol.get("writerFeatures").and_then(Value::as_array);
    let mut features = features.into_iter().flatten().filter_map(Value::as_str);
    let message = match features.find(|feature| !FEATURES.contains(feature)) {
        Some(feature) => format!("the table has the feature '{feature}', which is not written"),
        None if version > NAMED_FEATURES => {
            format!("the table is for writers of version {version}, and this one has 7")
        }
        None => return Ok(()),
    };
    Err(unread(place, message, "write to a table without it"))
}

impl Snapshot {
    /// The newest version of a table; `None` if there is none.
    ///
    /// # Errors
    /// When its log is damaged, or has what a writer has to know and this one does not.
    pub(super) fn read(place: &TablePlace, now_ms: i64) -> Result<Option<Self>, ConnectorError> {
        let log = DeltaLog::list(place, None)?;
        log.map(|log| Self::of_log(&log, place, now_ms)).transpose()
    }

    /// The newest version that a log has.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(super) fn of_log(
        log: &DeltaLog,
        place: &TablePlace,
        now_ms: i64,
    ) -> Result<Self, ConnectorError> {
        let mut snapshot = Self { now_ms, ..Self::default() };
        snapshot.version = Some(log.replay(place, None, &mut snapshot)?);
        snapshot.checkpoint = log.checkpoint();
        Ok(snapshot)
    }

    /// The version of the next commit.
    ///
    /// # Errors
    /// When there is none.
    pub(super) fn next(&self, place: &str) -> Result<u64, ConnectorError> {
        let next = self.version.map_or(Some(0), |version| version.checked_add(1));
        next.ok_or_else(|| damaged(place, "its newest version has the last number"))
    }

    /// The number of the last transaction of a writer; 0 if it has none.
    pub(super) fn transaction(&self, name: &str) -> u64 {
        self.transactions.get(name).and_then(version_of).unwrap_or(0)
    }

    /// A setting of the table.
    pub(super) fn setting(&self, key: &str) -> Option<&str> {
        self.metadata.as_ref()?.get("configuration")?.get(key)?.as_str()
    }

    /// How long files that were removed stay; `None` where the table says it in a way that is not
    /// understood.
    pub(super) fn removed_stay(&self) -> Option<i64> {
        let given = self.setting("delta.deletedFileRetentionDuration");
        given.map_or(Some(REMOVED_MS), interval_ms)
    }

    /// Forgets files that were removed longer ago than the table keeps them.
    pub(super) fn expire(&mut self) {
        if let Some(stay) = self.removed_stay() {
            self.forget_removed(self.now_ms.saturating_sub(stay));
        }
    }

    /// Forgets files that were removed before a time.
    pub(super) fn forget_removed(&mut self, before_ms: i64) {
        let removed = |remove: &str| {
            let remove: Value = serde_json::from_str(remove).ok()?;
            remove.get("deletionTimestamp")?.as_i64()
        };
        self.removed.retain(|_, remove| removed(remove).is_none_or(|at| at >= before_ms));
    }

    /// The protocol and the metadata, equal however they were written: a checkpoint leaves out what
    /// a commit has as NULL or as empty.
    pub(super) fn rules(&self) -> [Value; 2] {
        [&self.protocol, &self.metadata].map(|of| of.as_ref().map_or(Value::Null, filled))
    }

    /// Checks that rows of these columns can be added.
    ///
    /// # Errors
    /// When the table has others, or rules that a writer has to keep.
    pub(super) fn check(
        &self,
        place: &str,
        columns: &DeltaColumns,
        partitioned_by: Option<&[String]>,
    ) -> Result<(), ConnectorError> {
        let (Some(metadata), Some(_)) = (&self.metadata, &self.protocol) else {
            return Err(damaged(place, "its log has no protocol or no metadata"));
        };
        let settings = metadata.get("configuration").and_then(Value::as_object);
        for (key, value) in settings.into_iter().flatten() {
            let is_mapped = key == "delta.columnMapping.mode" && value != "none";
            if is_mapped || key.starts_with("delta.constraints.") {
                let message = format!("the table has '{key}', which this program does not keep");
                return Err(unread(place, message, "write to a table without it"));
            }
        }
        if let Some(given) = partitioned_by
            && given != self.partitioned_by()
        {
            let message =
                format!("the table is partitioned by '{}'", self.partitioned_by().join(","));
            let hint = "leave 'partition.by' out: the table says it".to_owned();
            return Err(crate::options::refuse("partition.by", message, Some(hint)));
        }
        let text = metadata.get("schemaString").and_then(Value::as_str).unwrap_or_default();
        let schema: Value = serde_json::from_str(text)
            .map_err(|error| damaged(place, format!("its columns are damaged: {error}")))?;
        let known = schema.get("fields").and_then(Value::as_array);
        let known: Vec<&Value> = known.into_iter().flatten().collect();
        check_columns(columns, &known)
    }

    /// The partition columns.
    pub(super) fn partitioned_by(&self) -> Vec<String> {
        let columns = self.metadata.as_ref().and_then(|of| of.get("partitionColumns"));
        let columns = columns.and_then(Value::as_array).into_iter().flatten();
        columns.filter_map(Value::as_str).map(str::to_owned).collect()
    }
}

/// Checks that a table with these columns takes rows of `columns`.
fn check_columns(columns: &DeltaColumns, known: &[&Value]) -> Result<(), ConnectorError> {
    let refused = |column: &str, message: String, hint: &str| ConnectorError::Column {
        column: column.to_owned(),
        message,
        hint: Some(hint.to_owned()),
    };
    let name_of =
        |of: &Value| of.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let must_be = |of: &Value| of.get("nullable").and_then(Value::as_bool) == Some(false);
    for of in known {
        let name = name_of(of);
        let rules = of.get("metadata").and_then(Value::as_object);
        if let Some(rule) =
            RULES.iter().find(|rule| rules.is_some_and(|has| has.contains_key(**rule)))
        {
            let message = format!("the table has a rule for it, '{rule}', which is not kept");
            return Err(refused(&name, message, "write to a table without it"));
        }
        if must_be(of) && columns.schema.column_with_name(&name).is_none() {
            let message = "the table has it as NOT NULL, and no rows with it come".to_owned();
            return Err(refused(&name, message, "declare the column"));
        }
    }
    for (field, own) in columns.schema.fields().iter().zip(&columns.types) {
        let name = field.name();
        let Some(of) = known.iter().find(|of| name_of(of) == *name) else {
            let names: Vec<String> = known.iter().map(|of| name_of(of)).collect();
            let message = "the table that is there has no such column".to_owned();
            return Err(refused(name, message, &format!("its columns are {}", names.join(", "))));
        };
        let theirs = of.get("type").unwrap_or(&Value::Null);
        if bare(theirs) != bare(own) {
            let message = format!("the table that is there has it as {}", shown(theirs));
            return Err(refused(name, message, &format!("this one has {}", shown(own))));
        }
        if must_be(of) && field.is_nullable() {
            let message = "the table that is there has it as NOT NULL".to_owned();
            return Err(refused(name, message, "declare it NOT NULL"));
        }
    }
    Ok(())
}

/// A value without fields that are NULL or empty.
fn filled(of: &Value) -> Value {
    let Value::Object(all) = of else { return of.clone() };
    let is_empty = |of: &Value| match of {
        Value::Null => true,
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
        _ => false,
    };
    let each = all.iter().map(|(key, of)| (key.clone(), filled(of)));
    Value::Object(each.filter(|(_, of)| !is_empty(of)).collect())
}

fn shown(of: &Value) -> String {
    of.as_str().map_or_else(|| bare(of).to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn removed(path: &str, at: i64) -> Value {
        json!({"remove": {"path": path, "deletionTimestamp": at, "dataChange": true}})
    }

    #[test]
    fn files_of_a_table_that_is_written_have_a_bound() {
        let mut snapshot = Snapshot { now_ms: REMOVED_MS + 100, ..Snapshot::default() };
        for n in 0..WRITTEN_FILES_MAX {
            // The first ten were removed long ago.
            let at = if n < 10 { 1 } else { 100 };
            let action = match n % 2 {
                0 => json!({"add": {"path": format!("{n}"), "size": 1}}),
                _ => removed(&format!("{n}"), at),
            };
            snapshot.apply("t", &action).unwrap();
        }
        snapshot.end("t").unwrap();
        let add = |n: usize| json!({"add": {"path": format!("more {n}"), "size": 1}});
        for n in 0..5 {
            snapshot.apply("t", &add(n)).unwrap();
            snapshot.end("t").unwrap();
        }
        assert!(!snapshot.removed.contains_key("1"), "it is forgotten for want of room");
        snapshot.apply("t", &add(5)).unwrap();
        let error = snapshot.end("t").unwrap_err().to_string();
        assert!(error.contains("over 100000"), "{error}");
    }

    #[test]
    fn files_that_were_removed_stay_as_long_as_the_table_says() {
        let kept = |setting: Option<&str>| {
            let configuration = setting.map(|of| ("delta.deletedFileRetentionDuration", of));
            let configuration: BTreeMap<_, _> = configuration.into_iter().collect();
            let metadata = Some(json!({ "configuration": configuration }));
            let now_ms = 100 * 24 * 3_600_000;
            let mut snapshot = Snapshot { metadata, now_ms, ..Snapshot::default() };
            for hours in [0, 1, 2, 24 * 6, 24 * 8, 24 * 40] {
                let action = removed(&hours.to_string(), now_ms - hours * 3_600_000);
                snapshot.apply("t", &action).unwrap();
            }
            snapshot.expire();
            snapshot.removed.len()
        };
        assert_eq!(kept(None), 4);
        assert_eq!(kept(Some("interval 1 hour")), 2);
        assert_eq!(kept(Some("interval 1 week 2 days")), 5);
        assert_eq!(kept(Some("interval 0 days")), 1);
        assert_eq!(kept(Some("a while")), 6, "what is not understood keeps all");
    }

    #[test]
    fn rules_are_equal_however_they_were_written() {
        let of = |protocol: Value, metadata: Value| {
            let (protocol, metadata) = (Some(protocol), Some(metadata));
            Snapshot { protocol, metadata, ..Snapshot::default() }.rules()
        };
        let commit = of(
            json!({"minWriterVersion": 2, "writerFeatures": null}),
            json!({"id": "a", "name": null, "format": {"provider": "parquet", "options": {}},
                   "partitionColumns": []}),
        );
        let checkpoint = of(
            json!({"minWriterVersion": 2}),
            json!({"id": "a", "format": {"provider": "parquet"}, "configuration": {}}),
        );
        assert_eq!(commit, checkpoint);
        let other = of(json!({"minWriterVersion": 2}), json!({"id": "a", "name": "b"}));
        assert_ne!(commit, other);
    }

    #[test]
    fn a_checkpoint_that_would_lose_something_is_known() {
        let is_partial = |action: Value| {
            let mut snapshot = Snapshot::default();
            snapshot.apply("t", &action).unwrap();
            snapshot.is_partial
        };
        assert!(!is_partial(json!({"add": {"path": "a", "tags": null, "baseRowId": null}})));
        assert!(!is_partial(json!({"commitInfo": {"x": 1}, "domainMetadata": null})));
        assert!(is_partial(json!({"add": {"path": "a", "baseRowId": 0}})));
        assert!(is_partial(json!({"remove": {"path": "a", "deletionVector": {}}})));
        assert!(is_partial(json!({"domainMetadata": {"domain": "d"}})));
    }

    #[test]
    fn what_a_writer_would_have_to_keep_is_refused_by_its_name() {
        let apply = |action: Value| {
            let error = Snapshot::default().apply("t", &action).unwrap_err();
            error.to_string()
        };
        let protocol = |of: Value| apply(json!({ "protocol": of }));
        assert!(protocol(json!({"minWriterVersion": 8})).contains("writers of version 8"));
        assert!(protocol(json!({})).contains("has no version"));
        let features = json!({"minWriterVersion": 7, "writerFeatures": ["rowTracking"]});
        assert!(protocol(features).contains("'rowTracking'"));
        assert!(apply(json!({"txn": {"version": 1}})).contains("no name"));
        assert!(apply(json!({"txn": {"appId": "a", "version": -1}})).contains("no number"));
        assert!(apply(json!({"add": {}})).contains("has no path"));
        assert!(apply(json!({"sidecar": {}})).contains("further files"));
    }
}
