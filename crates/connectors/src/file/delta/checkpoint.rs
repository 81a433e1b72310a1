//! Checkpoints of the log: all actions of a version in a Parquet file, so that readers need not
//! read the commits in front of it.

use std::io::Cursor;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use arrow::json::ReaderBuilder;
use bytes::Bytes;
use dataflow::error::ConnectorError;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use serde_json::{Value, json};

use super::LOG;
use super::log::{checkpoint_name, damaged};
use super::place::TablePlace;
use super::snapshot::Snapshot;

/// Actions that are brought into columns at a time.
const BATCH_ACTIONS: usize = 8192;

/// Writes the checkpoint of a version.
///
/// # Errors
/// When it cannot be made or written. The table is what it was then.
pub(super) fn write(table: &TablePlace, snapshot: &Snapshot) -> Result<(), ConnectorError> {
    let Some(version) = snapshot.version else { return Ok(()) };
    let place = table.display(&checkpoint_name(version));
    let (bytes, count) = packed(&place, snapshot)?;
    let last = json!({
        "version": version,
        "size": count,
        "sizeInBytes": bytes.len(),
        "numOfAddFiles": snapshot.files.len(),
    });
    table.replace(&checkpoint_name(version), bytes)?;
    table.replace(&format!("{LOG}/_last_checkpoint"), last.to_string().into())
}

/// The bytes of the checkpoint, and the number of its actions.
///
/// # Errors
/// When an action is none that a checkpoint has.
pub(super) fn packed(place: &str, snapshot: &Snapshot) -> Result<(Bytes, usize), ConnectorError> {
    let unfit = |error: &dyn std::fmt::Display| damaged(place, error.to_string());
    let (lines, count) = lines(place, snapshot)?;
    let schema = Arc::new(schema());
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let mut writer = ArrowWriter::try_new(vec![], Arc::clone(&schema), Some(properties))
        .map_err(|error| unfit(&error))?;
    let batches = ReaderBuilder::new(schema).with_batch_size(BATCH_ACTIONS);
    for batch in batches.build(Cursor::new(lines)).map_err(|error| unfit(&error))? {
        let batch = batch.map_err(|error| unfit(&error))?;
        writer.write(&batch).map_err(|error| unfit(&error))?;
    }
    let bytes = writer.into_inner().map_err(|error| unfit(&error))?;
    Ok((bytes.into(), count))
}

/// The actions as lines of JSON.
fn lines(place: &str, snapshot: &Snapshot) -> Result<(Vec<u8>, usize), ConnectorError> {
    let (Some(protocol), Some(metadata)) = (&snapshot.protocol, &snapshot.metadata) else {
        return Err(damaged(place, "its log has no protocol or no metadata"));
    };
    let (mut lines, mut count) = (vec![], 0);
    let mut line = |kind: &str, of: Value| {
        lines.extend_from_slice(json!({ kind: of }).to_string().as_bytes());
        lines.push(b'\n');
        count += 1;
    };
    line("protocol", protocol.clone());
    line("metaData", metadata.clone());
    snapshot.transactions.values().for_each(|own| line("txn", own.clone()));
    let columns = snapshot.partitioned_by();
    let of_text = |text: &String| -> Result<Value, ConnectorError> {
        serde_json::from_str(text).map_err(|error| damaged(place, error.to_string()))
    };
    for add in snapshot.files.values() {
        let mut add = of_text(add)?;
        add["dataChange"] = json!(false);
        // A checkpoint that was read has none where the value is NULL.
        let values = add.get_mut("partitionValues").and_then(Value::as_object_mut);
        let mut values = values.map(std::mem::take).unwrap_or_default();
        for column in &columns {
            values.entry(column).or_insert(Value::Null);
        }
        add["partitionValues"] = Value::Object(values);
        line("add", add);
    }
    for remove in snapshot.removed.values() {
        let mut remove = of_text(remove)?;
        remove["dataChange"] = json!(false);
        line("remove", remove);
    }
    Ok((lines, count))
}

/// The columns of a checkpoint.
fn schema() -> Schema {
    let text = |name: &str| Field::new(name, DataType::Utf8, true);
    let long = |name: &str| Field::new(name, DataType::Int64, true);
    let int = |name: &str| Field::new(name, DataType::Int32, true);
    let bool = |name: &str| Field::new(name, DataType::Boolean, true);
    let texts = |name: &str| Field::new_list(name, text("element"), true);
    let map = |name: &str| {
        let key = Field::new("key", DataType::Utf8, false);
        Field::new_map(name, "key_value", key, text("value"), false, true)
    };
    let group = |name: &str, fields: Vec<Field>| Field::new_struct(name, fields, true);
    Schema::new(vec![
        group("txn", vec![text("appId"), long("version"), long("lastUpdated")]),
        group(
            "add",
            vec![
                text("path"),
                map("partitionValues"),
                long("size"),
                long("modificationTime"),
                bool("dataChange"),
                text("stats"),
                map("tags"),
            ],
        ),
        group(
            "remove",
            vec![
                text("path"),
                long("deletionTimestamp"),
                bool("dataChange"),
                bool("extendedFileMetadata"),
                map("partitionValues"),
                long("size"),
                map("tags"),
            ],
        ),
        group(
            "metaData",
            vec![
                text("id"),
                text("name"),
                text("description"),
                group("format", vec![text("provider"), map("options")]),
                text("schemaString"),
                texts("partitionColumns"),
                long("createdTime"),
                map("configuration"),
            ],
        ),
        group(
            "protocol",
            vec![
                int("minReaderVersion"),
                int("minWriterVersion"),
                texts("readerFeatures"),
                texts("writerFeatures"),
            ],
        ),
    ])
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::log::{DeltaLog, LogState};
    use super::*;

    #[test]
    fn a_checkpoint_is_read_as_what_it_was_written_of() {
        let directory = std::env::temp_dir();
        let directory = directory.join(format!("millstream-delta-kept-{}", std::process::id()));
        fs::create_dir_all(directory.join(LOG)).unwrap();
        let table = TablePlace::Files(directory.clone());
        let own = json!({"appId": "a", "version": 7, "lastUpdated": 5});
        let values = json!({"day": "2024-01-01", "town": null});
        let add = json!({
            "path": "town=x/a%20b.parquet", "partitionValues": values, "size": 5_000_000_000_u64,
            "modificationTime": 9, "dataChange": true, "stats": "{\"numRecords\":3}",
        });
        let remove = json!({
            "path": "c.parquet", "deletionTimestamp": i64::MAX, "dataChange": true,
            "partitionValues": {"day": null, "town": "y"}, "size": 1,
        });
        let metadata = json!({
            "id": "i", "format": {"provider": "parquet", "options": {}}, "schemaString": "{}",
            "partitionColumns": ["day", "town"], "configuration": {"k": "v"}, "createdTime": 3,
        });
        let protocol = json!({
            "minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["timestampNtz"],
            "writerFeatures": ["timestampNtz"],
        });
        let actions = [
            json!({ "protocol": protocol }),
            json!({ "metaData": metadata }),
            json!({ "txn": own }),
            json!({ "add": add }),
            json!({ "remove": remove }),
        ];
        let mut first = Snapshot { version: Some(11), ..Snapshot::default() };
        actions.iter().for_each(|action| first.apply("t", action).unwrap());
        first.end("t").unwrap();
        assert!(!first.is_partial);
        // Once from commits, once from the checkpoint of those, in which NULLs are not there.
        for _ in 0..2 {
            write(&table, &first).unwrap();
            let log = DeltaLog::list(&table, None).unwrap().unwrap();
            let mut again = Snapshot::default();
            again.version = Some(log.replay(&table, None, &mut again).unwrap());
            let whole = |of: &Option<Value>| of.clone().unwrap();
            assert_eq!(again.version, Some(11));
            assert_eq!(whole(&again.protocol), protocol);
            assert_eq!(whole(&again.metadata), metadata);
            assert_eq!(again.transaction("a"), 7);
            let (text, mut kept): (&String, Value) = {
                let text = again.files.get("town=x/a%20b.parquet").unwrap();
                (text, serde_json::from_str(text).unwrap())
            };
            assert!(text.contains("5000000000"), "{text}");
            assert_eq!(kept["dataChange"], json!(false));
            assert_eq!(kept["partitionValues"]["day"], json!("2024-01-01"));
            kept["partitionValues"] = values.clone();
            kept["dataChange"] = json!(true);
            assert_eq!(kept, add);
            assert!(again.removed.contains_key("c.parquet") && !again.is_partial);
            let (lines, count) = lines("t", &again).unwrap();
            assert_eq!(count, 5);
            let lines = String::from_utf8(lines).unwrap();
            let wanted = r#""partitionValues":{"day":"2024-01-01","town":null}"#;
            assert!(lines.contains(wanted), "{lines}");
            first = again;
        }
        let last = fs::read_to_string(directory.join(LOG).join("_last_checkpoint")).unwrap();
        let last: Value = serde_json::from_str(&last).unwrap();
        assert_eq!((&last["version"], &last["size"]), (&json!(11), &json!(5)));
        fs::remove_dir_all(directory).unwrap();
    }
}
