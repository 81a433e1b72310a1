//! The files of a table that a reader reads.
//!
//! What a reader would have to know about, and this one does not, is refused by its name: vectors
//! of deleted rows, columns with other names in the files, files elsewhere. Partition columns come
//! from the names of directories, as of any files, and have to be there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

use dataflow::error::ConnectorError;
use serde_json::Value;

use super::LOG;
use super::log::{DeltaLog, LogState, damaged, of, unread};
use super::place::TablePlace;
use crate::format::partitions;

/// Bytes of the statistics of all files at most: files with further ones are read.
const STATISTICS_BYTES_MAX: usize = 256 << 20;
/// Files of a table at most.
const FILES_MAX: usize = 10_000_000;
/// The version of the protocol for readers that has names of features.
const NAMED_FEATURES: u64 = 3;
/// Features that ask nothing of a reader here: what they allow is looked for where it is used.
const FEATURES: [&str; 4] =
    ["columnMapping", "deletionVectors", "timestampNtz", "vacuumProtocolCheck"];

/// The newest version of a table.
pub(super) struct TableFiles {
    /// The names of its files below it, sorted.
    pub(super) names: Vec<String>,
    /// Of each file what the log says of its columns.
    pub(super) statistics: Vec<Option<Box<str>>>,
    /// Its columns, as JSON.
    pub(super) schema: String,
    /// The columns that name directories, in order.
    pub(super) partitioned_by: Vec<String>,
}

impl TableFiles {
    /// # Errors
    /// When there is no log, it is damaged, or the table has something that is not read.
    pub(super) fn read(table: &TablePlace) -> Result<Self, ConnectorError> {
        let Some(log) = DeltaLog::list(table, None)? else {
            if table.log_names(None)?.is_some() {
                return Err(damaged(&table.display(LOG), "there is no version in it"));
            }
            let hint = "a table of Delta Lake has a directory '_delta_log'";
            return Err(unread(&table.display(""), "there is no table of Delta Lake", hint));
        };
        let mut state = TableState::default();
        log.replay(table, None, &mut state)?;
        state.files(&table.display(""))
    }
}

/// A file that the log has added.
struct DeltaFile {
    /// The values of partition columns.
    values: BTreeMap<String, Option<String>>,
    /// Whether a vector says that some of its rows are deleted.
    has_vector: bool,
    /// Statistics of its columns, as the log has them.
    statistics: Option<Box<str>>,
}

/// The table behind some versions.
#[derive(Default)]
pub(super) struct TableState {
    /// By their paths, as the log has them.
    files: BTreeMap<String, DeltaFile>,
    /// Those of the actions that have not ended.
    added: Vec<(String, DeltaFile)>,
    /// The columns and the partition columns, where metadata came.
    columns: Option<(String, Vec<String>)>,
    has_protocol: bool,
    /// Bytes of the statistics that are kept.
    statistics_bytes: usize,
}

impl LogState for TableState {
    fn columns(&self) -> &'static [&'static str] {
        &[
            "add.path",
            "add.partitionValues",
            "add.stats",
            "add.deletionVector",
            "metaData",
            "protocol",
            "sidecar",
        ]
    }

    fn apply(&mut self, place: &str, action: &Value) -> Result<(), ConnectorError> {
        if let Some(protocol) = of(action, "protocol") {
            check_protocol(place, protocol)?;
            self.has_protocol = true;
        }
        if let Some(metadata) = of(action, "metaData") {
            let schema = metadata.get("schemaString").and_then(Value::as_str).unwrap_or_default();
            self.columns = Some((schema.to_owned(), check_metadata(place, metadata)?));
        }
        if of(action, "sidecar").is_some() {
            let hint = "write its checkpoints as version 1";
            return Err(unread(place, "the checkpoint has further files", hint));
        }
        if let Some(remove) = of(action, "remove") {
            let removed = self.files.remove(path_of(place, remove)?);
            self.statistics_bytes -= removed.map_or(0, |file| file.statistics_bytes());
        }
        if let Some(add) = of(action, "add") {
            let mut file = file_of(add);
            if self.statistics_bytes + file.statistics_bytes() > STATISTICS_BYTES_MAX {
                file.statistics = None;
            }
            self.statistics_bytes += file.statistics_bytes();
            self.added.push((path_of(place, add)?.to_owned(), file));
        }
        Ok(())
    }

    fn end(&mut self, place: &str) -> Result<(), ConnectorError> {
        for (path, file) in self.added.drain(..) {
            let replaced = self.files.insert(path, file);
            self.statistics_bytes -= replaced.map_or(0, |file| file.statistics_bytes());
        }
        if self.files.len() > FILES_MAX {
            let message = format!("the table has over {FILES_MAX} files");
            return Err(unread(place, message, "compact it"));
        }
        Ok(())
    }
}

/// The name of a file as a listing of the table has it. `path` is that of the log, and `name` the
/// same, decoded or not.
///
/// # Errors
/// When it is not below the table: nobody knows which file that may be.
pub(super) fn below(table: &str, path: &str, name: &str) -> Result<String, ConnectorError> {
    let part = |part: Component<'_>| match part {
        Component::Normal(name) => name.to_str().map(str::to_owned),
        _ => None,
    };
    let parts: Option<Vec<String>> = Path::new(name).components().map(part).collect();
    let parts = parts.filter(|_| !path.contains("://") && !name.starts_with("file:"));
    parts.filter(|parts| !parts.is_empty()).map(|parts| parts.join("/")).ok_or_else(|| {
        let message = format!("its file '{path}' is outside of its directory");
        unread(table, message, "copy the table with its files")
    })
}

impl TableState {
    /// The files, all of which are read. `table` is its address.
    ///
    /// # Errors
    /// When the table has something that is not read.
    pub(super) fn files(self, table: &str) -> Result<TableFiles, ConnectorError> {
        // Without them nobody knows what the files are.
        let has_protocol = self.has_protocol;
        let columns = self.columns.filter(|_| has_protocol);
        let (schema, partitioned_by) =
            columns.ok_or_else(|| damaged(table, "its log has no protocol or no metadata"))?;
        let distinct: BTreeSet<&String> = partitioned_by.iter().collect();
        let mut files = vec![];
        for (path, DeltaFile { values, has_vector, statistics }) in self.files {
            if has_vector {
                let message =
                    format!("rows of its file '{path}' are deleted by vectors, which are not read");
                let hint = "REORG TABLE … APPLY (PURGE) writes the files anew";
                return Err(unread(table, message, hint));
            }
            let decoded = partitions::decoded(&path);
            below(table, &path, &decoded)?;
            let named = partitions::of_name(&decoded);
            let is_named = distinct.iter().all(|column| {
                let value =
                    values.get(*column).cloned().flatten().filter(|value| !value.is_empty());
                named.get(&column.to_lowercase()) == Some(&value)
            });
            if !is_named {
                let message = format!(
                    "the name of its file '{path}' has not the values of its partition columns"
                );
                let hint = "only files in directories such as 'year=2024' are read";
                return Err(unread(table, message, hint));
            }
            files.push((decoded, statistics));
        }
        files.sort();
        let (names, statistics) = files.into_iter().unzip();
        Ok(TableFiles { names, statistics, schema, partitioned_by })
    }
}

pub(super) fn path_of<'a>(place: &str, action: &'a Value) -> Result<&'a str, ConnectorError> {
    let path = action.get("path").and_then(Value::as_str);
    path.ok_or_else(|| damaged(place, "an action has no path"))
}

/// The file of an action that adds it.
fn file_of(add: &Value) -> DeltaFile {
    let has_vector = of(add, "deletionVector").is_some();
    let values = add.get("partitionValues").and_then(Value::as_object);
    let text =
        |(column, value): (&String, &Value)| (column.clone(), value.as_str().map(str::to_owned));
    let statistics = add.get("stats").and_then(Value::as_str).map(Box::from);
    DeltaFile { values: values.into_iter().flatten().map(text).collect(), has_vector, statistics }
}

impl DeltaFile {
    fn statistics_bytes(&self) -> usize {
        self.statistics.as_ref().map_or(0, |text| text.len())
    }
}

fn check_protocol(place: &str, protocol: &Value) -> Result<(), ConnectorError> {
    let version = protocol.get("minReaderVersion").and_then(Value::as_u64);
    let version = version.ok_or_else(|| damaged(place, "its protocol has no version"))?;
    let features = protocol.get("readerFeatures").and_then(Value::as_array);
    let features = features.into_iter().flatten().filter_map(Value::as_str);
    let unknown = features.into_iter().find(|feature| !FEATURES.contains(feature));
    match unknown {
        Some(feature) => {
            let message = format!("the table has the feature '{feature}', which is not read");
            Err(unread(place, message, "write the table without that feature"))
        }
        None if version > NAMED_FEATURES => {
            let message =
                format!("the table is for readers of version {version}, and this one has 3");
            Err(unread(place, message, "write the table for readers of version 3 or less"))
        }
        None => Ok(()),
    }
}

/// The partition columns.
fn check_metadata(place: &str, metadata: &Value) -> Result<Vec<String>, ConnectorError> {
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

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::sync::Arc;

    use arrow::array::{Array, ArrayRef, StringArray, StructArray};
    use arrow::datatypes::{DataType, Field, Schema};
    use arrow::record_batch::RecordBatch;
    use parquet::arrow::ArrowWriter;

    use super::super::log::{ACTIONS_MAX, BATCH_ACTIONS, BATCH_BYTES_MAX};
    use super::*;

    /// Applies a part of a checkpoint that adds files; a row without a path is no action that is
    /// read. Gives the bytes of the part, too.
    fn apply(
        name: &str,
        (state, actions): (&mut TableState, &mut usize),
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
        let path = std::env::temp_dir().join(&name);
        let file = File::create(&path).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let bytes = fs::metadata(&path).unwrap().len();
        let place = TablePlace::Files(std::env::temp_dir());
        let applied = place.read_checkpoint(&name, state, actions);
        fs::remove_file(path).unwrap();
        (bytes, applied)
    }

    #[test]
    fn a_checkpoint_is_applied_some_actions_at_a_time() {
        let names: Vec<String> = (0..3 * BATCH_ACTIONS).map(|n| format!("{n}.parquet")).collect();
        let rows: Vec<_> = names.iter().flat_map(|name| [Some(&**name), None]).collect();
        let (mut state, mut actions) = (TableState::default(), 0);
        apply("batches", (&mut state, &mut actions), rows.clone()).1.unwrap();
        let mut sorted = names.clone();
        sorted.sort();
        assert!(state.files.keys().eq(&sorted));
        assert_eq!(actions, 2 * names.len());
        // The second batch has one too many: no file of it is there.
        let (mut state, mut actions) = (TableState::default(), ACTIONS_MAX + 1 - 2 * BATCH_ACTIONS);
        let error = apply("too-many", (&mut state, &mut actions), rows).1.unwrap_err().to_string();
        assert!(error.contains("over 40000000 actions"), "{error}");
        assert_eq!(state.files.len(), BATCH_ACTIONS / 2);
    }

    #[test]
    fn a_checkpoint_that_unpacks_to_much_is_refused() {
        // The name is once in the file.
        let long = "x".repeat(2 * BATCH_BYTES_MAX / BATCH_ACTIONS);
        let (mut state, mut actions) = (TableState::default(), 0);
        let rows = vec![Some(&*long); 2 * BATCH_ACTIONS];
        let (bytes, applied) = apply("long", (&mut state, &mut actions), rows);
        assert!(bytes < 1 << 20, "{bytes}");
        let error = applied.unwrap_err().to_string();
        let expected = format!("{BATCH_ACTIONS} of its actions have");
        assert!(error.contains(&expected), "{error}");
        assert!(state.files.is_empty());
        // Actions that say the same are counted, and not the one file that they name.
        actions = ACTIONS_MAX - 3 * BATCH_ACTIONS;
        let same = vec![Some("a.parquet"); 3 * BATCH_ACTIONS];
        apply("same", (&mut state, &mut actions), same.clone()).1.unwrap();
        assert_eq!(state.files.len(), 1);
        let error = apply("same", (&mut state, &mut actions), same).1.unwrap_err().to_string();
        assert!(error.contains("over 40000000 actions"), "{error}");
    }

    #[test]
    fn paths_of_the_log_are_names_below_the_table_or_refused() {
        for (path, name) in [("a", "a"), ("k=1//a", "k=1/a"), ("k=1/./a", "k=1/a")] {
            assert_eq!(below("t", path, path).unwrap(), name);
        }
        for path in ["/a", "../a", "k/../../a", "s3://b/a", "file:/a"] {
            assert!(below("t", path, path).is_err(), "{path}");
        }
    }
}
