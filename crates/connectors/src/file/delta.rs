//! Tables of Delta Lake: the files that the log of a directory says are there.
//!
//! ```text
//! _delta_log/ ─▶ the last checkpoint ─▶ the commits behind it ─▶ files added and not removed
//! ```
//!
//! A checkpoint is a Parquet file of the same actions that commits have as lines of JSON. What a
//! reader would have to know about, and this one does not, is refused by its name: vectors of
//! deleted rows, columns with other names in the files, files elsewhere. Partition columns come
//! from the names of directories, as of any files, and have to be there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Component, Path, PathBuf};

use arrow::json::LineDelimitedWriter;
use dataflow::error::ConnectorError;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use serde_json::Value;

use super::paths::io_error;
use crate::format::partitions;
use crate::options::refuse;

/// The directory of the log.
const LOG: &str = "_delta_log";
/// Digits of a version in names.
const VERSION_DIGITS: usize = 20;
/// Bytes of a commit at most.
const COMMIT_BYTES_MAX: u64 = 256 << 20;
/// Actions of a checkpoint that are in memory as text at a time.
const BATCH_ACTIONS: usize = 1024;
/// Their bytes at most: a few bytes of Parquet may be the same value many times.
const BATCH_BYTES_MAX: usize = 64 << 20;
/// Actions of a log at most: files that are there, were removed, or are named again.
const ACTIONS_MAX: usize = 40_000_000;
/// Files of a table at most.
const FILES_MAX: usize = 10_000_000;
/// The version of the protocol for readers that has names of features.
const NAMED_FEATURES: u64 = 3;
/// Features that ask nothing of a reader here: what they allow is looked for where it is used.
const FEATURES: [&str; 4] =
    ["columnMapping", "deletionVectors", "timestampNtz", "vacuumProtocolCheck"];

/// Whether a directory is a table of Delta Lake.
pub(super) fn is_table(path: &Path) -> bool {
    path.join(LOG).is_dir()
}

/// The files of the newest version of a table, sorted.
///
/// # Errors
/// When the log is damaged, or the table has something that is not read.
pub(super) fn files(table: &Path) -> Result<Vec<PathBuf>, ConnectorError> {
    let log = DeltaLog::list(table)?;
    let mut state = TableState::new(table);
    let mut next = 0;
    if let Some((version, parts)) = &log.checkpoint {
        for part in parts {
            state.apply_checkpoint(part)?;
        }
        let behind = version.checked_add(1);
        next = behind.ok_or_else(|| damaged(table, "its checkpoint has the last number"))?;
    }
    for version in next..=log.newest {
        let Some(commit) = log.commits.get(&version) else {
            let message = format!("its log lacks version {version}, of {}", log.newest);
            return Err(unread(table, message, "restore the files of its log"));
        };
        state.apply_commit(commit)?;
    }
    state.paths()
}

fn unread(place: &Path, message: impl Into<String>, hint: &str) -> ConnectorError {
    let place = place.display().to_string();
    ConnectorError::Io { place, message: message.into(), hint: Some(hint.into()) }
}

fn damaged(place: &Path, message: impl Into<String>) -> ConnectorError {
    unread(place, message, "the log of the table is damaged, or of a newer kind")
}

/// The files of a log.
struct DeltaLog {
    /// The newest checkpoint that is there whole, and its parts.
    checkpoint: Option<(u64, Vec<PathBuf>)>,
    commits: BTreeMap<u64, PathBuf>,
    newest: u64,
}

impl DeltaLog {
    fn list(table: &Path) -> Result<Self, ConnectorError> {
        let directory = table.join(LOG);
        let entries = fs::read_dir(&directory).map_err(|error| io_error(&directory, &error))?;
        let (mut commits, mut parts) = (BTreeMap::new(), BTreeMap::<_, BTreeMap<_, _>>::new());
        for entry in entries {
            let path = entry.map_err(|error| io_error(&directory, &error))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let Some((version, kind)) = version_of(&name) else { continue };
            let kind: Vec<&str> = kind.split('.').collect();
            match kind.as_slice() {
                ["json"] => drop(commits.insert(version, path)),
                ["checkpoint", "parquet"] => {
                    parts.entry((version, 1)).or_default().insert(1, path);
                }
                ["checkpoint", part, of, "parquet"] => {
                    if let (Ok(part), Ok(of)) = (part.parse::<u64>(), of.parse::<u64>()) {
                        parts.entry((version, of)).or_default().insert(part, path);
                    }
                }
                _ => {}
            }
        }
        let is_whole = |of: u64, parts: &BTreeMap<u64, PathBuf>| {
            parts.len() as u64 == of && parts.keys().copied().eq(1..=of)
        };
        let checkpoint = parts.into_iter().rev().find(|((_, of), parts)| is_whole(*of, parts));
        let checkpoint =
            checkpoint.map(|((version, _), parts)| (version, parts.into_values().collect()));
        let of_checkpoint = checkpoint.as_ref().map(|(version, _)| *version);
        let newest = commits.keys().next_back().copied().max(of_checkpoint);
        let newest = newest.ok_or_else(|| damaged(&directory, "there is no version in it"))?;
        Ok(Self { checkpoint, commits, newest })
    }
}

/// The version at the beginning of a name, and what is behind its point.
fn version_of(name: &str) -> Option<(u64, &str)> {
    let (version, kind) = name.split_once('.')?;
    let is_version =
        version.len() == VERSION_DIGITS && version.bytes().all(|byte| byte.is_ascii_digit());
    Some((version.parse().ok().filter(|_| is_version)?, kind))
}

fn commit_lines(commit: &Path) -> Result<Vec<u8>, ConnectorError> {
    let length = fs::metadata(commit).map_err(|error| io_error(commit, &error))?.len();
    if length > COMMIT_BYTES_MAX {
        return Err(damaged(commit, format!("it has {length} bytes")));
    }
    fs::read(commit).map_err(|error| io_error(commit, &error))
}

/// A file that the log has added.
struct DeltaFile {
    /// The values of partition columns.
    values: BTreeMap<String, Option<String>>,
    /// Whether a vector says that some of its rows are deleted.
    has_vector: bool,
}

/// The table behind some versions.
struct TableState<'a> {
    table: &'a Path,
    /// By their paths, as the log has them.
    files: BTreeMap<String, DeltaFile>,
    /// The partition columns, where metadata came.
    partitioned_by: Option<BTreeSet<String>>,
    has_protocol: bool,
    /// The actions so far.
    actions: usize,
}

impl<'a> TableState<'a> {
    fn new(table: &'a Path) -> Self {
        Self {
            table,
            files: BTreeMap::new(),
            partitioned_by: None,
            has_protocol: false,
            actions: 0,
        }
    }

    /// Applies the actions of a part of a checkpoint, some at a time.
    fn apply_checkpoint(&mut self, part: &Path) -> Result<(), ConnectorError> {
        let file = File::open(part).map_err(|error| io_error(part, &error))?;
        let unfit = |error: &dyn std::fmt::Display| damaged(part, error.to_string());
        // Types that its writer had, such as dictionaries, would hide how much the values are.
        let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
        let builder = ParquetRecordBatchReaderBuilder::try_new_with_options(file, options)
            .map_err(|error| unfit(&error))?;
        // Statistics of the files are the most of it.
        let wanted =
            ["add.path", "add.partitionValues", "add.deletionVector", "metaData", "protocol"];
        let wanted = wanted.into_iter().chain(["sidecar"]);
        let mask = ProjectionMask::columns(builder.parquet_schema(), wanted);
        let builder = builder.with_projection(mask).with_batch_size(BATCH_ACTIONS);
        for batch in builder.build().map_err(|error| unfit(&error))? {
            let batch = batch.map_err(|error| unfit(&error))?;
            // Actions that are not read are empty rows.
            self.count_actions(part, batch.num_rows())?;
            let bytes = batch.get_array_memory_size();
            if bytes > BATCH_BYTES_MAX {
                let message = format!("{} of its actions have {bytes} bytes", batch.num_rows());
                return Err(damaged(part, message));
            }
            let mut writer = LineDelimitedWriter::new(Vec::new());
            writer.write(&batch).map_err(|error| unfit(&error))?;
            writer.finish().map_err(|error| unfit(&error))?;
            self.apply_lines(part, &writer.into_inner())?;
        }
        Ok(())
    }

    /// Applies the actions of a commit.
    fn apply_commit(&mut self, commit: &Path) -> Result<(), ConnectorError> {
        let lines = commit_lines(commit)?;
        self.count_actions(commit, lines.split(|byte| *byte == b'\n').count())?;
        self.apply_lines(commit, &lines)
    }

    fn count_actions(&mut self, place: &Path, more: usize) -> Result<(), ConnectorError> {
        self.actions += more;
        if self.actions > ACTIONS_MAX {
            let message = format!("the log has over {ACTIONS_MAX} actions");
            return Err(unread(place, message, "compact the table, and write a checkpoint"));
        }
        Ok(())
    }

    /// Applies actions: all of a commit, or some of a checkpoint, which removes none.
    fn apply_lines(&mut self, place: &Path, lines: &[u8]) -> Result<(), ConnectorError> {
        let mut added = vec![];
        let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
        for line in lines {
            let action: Value = serde_json::from_slice(line)
                .map_err(|error| damaged(place, format!("an action is no JSON: {error}")))?;
            // Of each action one of them is there.
            let of = |key: &str| action.get(key).filter(|value| !value.is_null());
            if let Some(protocol) = of("protocol") {
                check_protocol(place, protocol)?;
                self.has_protocol = true;
            }
            if let Some(metadata) = of("metaData") {
                self.partitioned_by = Some(check_metadata(place, metadata)?);
            }
            if of("sidecar").is_some() {
                let hint = "write its checkpoints as version 1";
                return Err(unread(place, "the checkpoint has further files", hint));
            }
            if let Some(remove) = of("remove") {
                self.files.remove(path_of(place, remove)?);
            }
            if let Some(add) = of("add") {
                added.push((path_of(place, add)?.to_owned(), file_of(add)));
            }
        }
        // A file that one commit removes and adds is there.
        self.files.extend(added);
        if self.files.len() > FILES_MAX {
            return Err(unread(
                place,
                format!("the table has over {FILES_MAX} files"),
                "compact it",
            ));
        }
        Ok(())
    }

    fn paths(self) -> Result<Vec<PathBuf>, ConnectorError> {
        // Without them nobody knows what the files are.
        let has_protocol = self.has_protocol;
        let partitioned_by = self.partitioned_by.filter(|_| has_protocol);
        let partitioned_by = partitioned_by
            .ok_or_else(|| damaged(self.table, "its log has no protocol or no metadata"))?;
        let mut paths = vec![];
        for (path, DeltaFile { values, has_vector }) in self.files {
            if has_vector {
                let message =
                    format!("rows of its file '{path}' are deleted by vectors, which are not read");
                let hint = "REORG TABLE … APPLY (PURGE) writes the files anew";
                return Err(unread(self.table, message, hint));
            }
            let decoded = partitions::decoded(&path);
            let relative = Path::new(&decoded);
            let is_below = relative.components().all(|part| matches!(part, Component::Normal(_)));
            if path.contains("://") || decoded.starts_with("file:") || !is_below {
                let message = format!("its file '{path}' is outside of its directory");
                return Err(unread(self.table, message, "copy the table with its files"));
            }
            let named = partitions::of_name(&decoded);
            let is_named = partitioned_by.iter().all(|column| {
                let value = values.get(column).cloned().flatten().filter(|value| !value.is_empty());
                named.get(&column.to_lowercase()) == Some(&value)
            });
            if !is_named {
                let message = format!(
                    "the name of its file '{path}' has not the values of its partition columns"
                );
                let hint = "only files in directories such as 'year=2024' are read";
                return Err(unread(self.table, message, hint));
            }
            paths.push(self.table.join(relative));
        }
        paths.sort();
        Ok(paths)
    }
}

fn path_of<'a>(place: &Path, action: &'a Value) -> Result<&'a str, ConnectorError> {
    let path = action.get("path").and_then(Value::as_str);
    path.ok_or_else(|| damaged(place, "an action has no path"))
}

/// The file of an action that adds it.
fn file_of(add: &Value) -> DeltaFile {
    let has_vector = add.get("deletionVector").is_some_and(|vector| !vector.is_null());
    let values = add.get("partitionValues").and_then(Value::as_object);
    let text =
        |(column, value): (&String, &Value)| (column.clone(), value.as_str().map(str::to_owned));
    DeltaFile { values: values.into_iter().flatten().map(text).collect(), has_vector }
}

fn check_protocol(place: &Path, protocol: &Value) -> Result<(), ConnectorError> {
    let version = protocol.get("minReaderVersion").and_then(Value::as_u64);
    let version = version.ok_or_else(|| damaged(place, "its protocol has no version"))?;
    let features = protocol.get("readerFeatures").and_then(Value::as_array);
    let features = features.into_iter().flatten().filter_map(Value::as_str);
    let unknown = features.into_iter().find(|feature| !FEATURES.contains(feature));
    let message = match unknown {
        Some(feature) => format!("the table has the feature '{feature}', which is not read"),
        None if version > NAMED_FEATURES => {
            format!("the table is for readers of version {version}, and this one has 3")
        }
        None => return Ok(()),
    };
    Err(unread(place, message, "write it without, or as files of Parquet"))
}

/// The partition columns.
fn check_metadata(place: &Path, metadata: &Value) -> Result<BTreeSet<String>, ConnectorError> {
    let provider = metadata.pointer("/format/provider").and_then(Value::as_str);
    if provider.is_some_and(|provider| provider != "parquet") {
        return Err(damaged(place, "its files are no Parquet"));
    }
    let mapping = metadata.pointer("/configuration/delta.columnMapping.mode");
    if mapping.and_then(Value::as_str).is_some_and(|mode| mode != "none") {
        let message = "its columns have other names in the files, which is not read";
        return Err(unread(place, message, "delta.columnMapping.mode has to be none"));
    }
    let columns = metadata.get("partitionColumns").and_then(Value::as_array);
    let columns = columns.into_iter().flatten().filter_map(Value::as_str);
    Ok(columns.map(str::to_owned).collect())
}

/// Refuses what a table of Delta Lake is not for.
///
/// # Errors
/// When the path is one.
pub(super) fn refuse_table(path: &str, key: &str, what: &str) -> Result<(), ConnectorError> {
    if is_table(Path::new(path)) {
        let message = format!("'{path}' is a table of Delta Lake, which cannot be {what}");
        return Err(refuse(key, message, None));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Array, ArrayRef, StringArray, StructArray};
    use arrow::datatypes::{DataType, Field, Schema};
    use arrow::record_batch::RecordBatch;
    use parquet::arrow::ArrowWriter;

    use super::*;

    /// Applies a part of a checkpoint that adds files; a row without a path is no action that is
    /// read. Gives the bytes of the part, too.
    fn apply(
        name: &str,
        state: &mut TableState<'_>,
        paths: Vec<Option<&str>>,
    ) -> (u64, Result<(), ConnectorError>) {
        let is_there = paths.iter().map(Option::is_some).collect::<Vec<_>>();
        let field = Arc::new(Field::new("path", DataType::Utf8, true));
        let paths = Arc::new(StringArray::from(paths)) as ArrayRef;
        let add = StructArray::new(vec![field].into(), vec![paths], Some(is_there.into()));
        let fields = vec![Field::new("add", add.data_type().clone(), true)];
        let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), vec![Arc::new(add)]);
        let batch = batch.unwrap();
        let name = format!("millstream-delta-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let file = File::create(&path).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let bytes = fs::metadata(&path).unwrap().len();
        let applied = state.apply_checkpoint(&path);
        fs::remove_file(path).unwrap();
        (bytes, applied)
    }

    #[test]
    fn a_checkpoint_is_applied_some_actions_at_a_time() {
        let names: Vec<String> = (0..3 * BATCH_ACTIONS).map(|n| format!("{n}.parquet")).collect();
        let rows: Vec<_> = names.iter().flat_map(|name| [Some(&**name), None]).collect();
        let mut state = TableState::new(Path::new("t"));
        apply("batches", &mut state, rows.clone()).1.unwrap();
        let mut sorted = names.clone();
        sorted.sort();
        assert!(state.files.keys().eq(&sorted));
        assert_eq!(state.actions, 2 * names.len());
        // The second batch has one too many: no file of it is there.
        let mut state = TableState::new(Path::new("t"));
        state.actions = ACTIONS_MAX + 1 - 2 * BATCH_ACTIONS;
        let error = apply("too-many", &mut state, rows).1.unwrap_err().to_string();
        assert!(error.contains("over 40000000 actions"), "{error}");
        assert_eq!(state.files.len(), BATCH_ACTIONS / 2);
    }

    #[test]
    fn a_checkpoint_that_unpacks_to_much_is_refused() {
        // The name is once in the file.
        let long = "x".repeat(2 * BATCH_BYTES_MAX / BATCH_ACTIONS);
        let mut state = TableState::new(Path::new("t"));
        let (bytes, applied) = apply("long", &mut state, vec![Some(&long); 2 * BATCH_ACTIONS]);
        assert!(bytes < 1 << 20, "{bytes}");
        let error = applied.unwrap_err().to_string();
        assert!(error.contains("1024 of its actions have"), "{error}");
        assert!(state.files.is_empty());
        // Actions that say the same are counted, and not the one file that they name.
        state.actions = ACTIONS_MAX - 3 * BATCH_ACTIONS;
        let same = vec![Some("a.parquet"); 3 * BATCH_ACTIONS];
        apply("same", &mut state, same.clone()).1.unwrap();
        assert_eq!(state.files.len(), 1);
        let error = apply("same", &mut state, same).1.unwrap_err().to_string();
        assert!(error.contains("over 40000000 actions"), "{error}");
    }
}
