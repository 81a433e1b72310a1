//! Tables of Delta Lake, written: what the log says, who sees which rows when, and writers that
//! meet.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Date32Array, Int64Array, StringArray, TimestampMillisecondArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow::record_batch::RecordBatch;
use connectors::{DeltaConnector, FileConnector};
use dataflow::connector::{Connector, TableDef, WriteMode};
use dataflow::error::ConnectorError;
use dataflow::sink::{
    Placement, Publishing, RunId, Sink, SinkVisibility, SinkWriter, StagingContext, WriterContext,
};
use serde_json::{Value, json};

use crate::bed::*;
use crate::servers::s3::S3;

pub fn numbers(from: i64, to: i64) -> RecordBatch {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(from..to));
    let town = |n: i64| match n % 5 {
        0 => None,
        4 => Some(String::new()),
        n => Some(["", "New York", "a/b=c%", "Zürich"][n as usize].to_owned()),
    };
    let towns: ArrayRef = Arc::new(StringArray::from_iter((from..to).map(town)));
    let days: ArrayRef =
        Arc::new(Date32Array::from_iter_values((from..to).map(|n| 19_000 + n as i32 % 2)));
    let times: ArrayRef = Arc::new(TimestampMillisecondArray::from_iter_values(
        (from..to).map(|n| 1_700_000_000_123 + n),
    ));
    batch(&[("number", numbers), ("town", towns), ("day", days), ("at", times)])
}

/// The rows of numbers, where an empty town is NULL if it names a directory.
pub fn set(from: i64, to: i64, by_town: bool) -> BTreeSet<String> {
    let all = rows(&numbers(from, to)).into_iter();
    all.map(|row| if by_town { row.replace("||", "|NULL|") } else { row }).collect()
}

/// Where a table lies.
pub enum Place {
    Files(Scratch),
    Objects(S3),
}

impl Place {
    pub fn both(name: &str) -> [Self; 2] {
        [Self::Files(Scratch::new(name)), Self::Objects(S3::start())]
    }

    pub fn table(&self, schema: &SchemaRef, options: &[(&str, &str)]) -> TableDef {
        match self {
            Self::Files(scratch) => {
                let path = scratch.path("t");
                table(schema, &[&[("path", path.as_str())], options].concat())
            }
            Self::Objects(store) => table_of_s3(store, "s3://bucket/lake/t", schema, options),
        }
    }

    pub fn sink(&self, options: &[(&str, &str)]) -> Arc<dyn Sink> {
        DeltaConnector.sink(&self.table(&numbers(0, 0).schema(), options)).unwrap()
    }

    /// The rows, of which there are no two equal ones.
    pub fn rows(&self) -> BTreeSet<String> {
        let table = self.table(&numbers(0, 0).schema(), &[]);
        let source = source(&DeltaConnector, &table).unwrap();
        let splits = source.splits(2, None).unwrap().len();
        let read = |at| drain(&mut *source.open(&nth(at), None, &context()).unwrap()).unwrap();
        let all: Vec<String> = (0..splits).flat_map(|at| rows(&read(at))).collect();
        let set: BTreeSet<String> = all.iter().cloned().collect();
        assert_eq!(set.len(), all.len(), "a row is there twice");
        set
    }

    /// The bytes of a name below the table.
    pub fn get(&self, name: &str) -> Option<Vec<u8>> {
        match self {
            Self::Files(scratch) => fs::read(scratch.path(&format!("t/{name}"))).ok(),
            Self::Objects(store) => {
                store.get(&format!("/bucket/lake/t/{name}")).map(|bytes| bytes.to_vec())
            }
        }
    }

    pub fn put(&self, name: &str, bytes: &[u8]) {
        match self {
            Self::Files(scratch) => {
                let path = scratch.path(&format!("t/{name}"));
                fs::create_dir_all(Path::new(&path).parent().unwrap()).unwrap();
                fs::write(path, bytes).unwrap();
            }
            Self::Objects(store) => {
                store.put(&format!("/bucket/lake/t/{name}"), bytes.to_vec());
            }
        }
    }

    pub fn remove(&self, name: &str) {
        match self {
            Self::Files(scratch) => fs::remove_file(scratch.path(&format!("t/{name}"))).unwrap(),
            Self::Objects(store) => {
                let key = format!("/bucket/lake/t/{name}");
                store.state.lock().unwrap().objects.remove(&key).unwrap();
            }
        }
    }

    /// The actions of a commit of one kind.
    pub fn actions(&self, version: u64, kind: &str) -> Vec<Value> {
        let lines = self.get(&commit(version)).unwrap();
        let lines = String::from_utf8(lines).unwrap();
        let all = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        all.filter_map(|action| action.get(kind).cloned()).collect()
    }

    /// The number of versions.
    pub fn versions(&self) -> u64 {
        (0..).find(|version| self.get(&commit(*version)).is_none()).unwrap()
    }
}

pub fn commit(version: u64) -> String {
    format!("_delta_log/{version:020}.json")
}

pub fn staging(worker: u32, generation: u64) -> WriterContext {
    let run = RunId { job: 7, generation };
    let staging = Some(StagingContext { run, goes_on: generation > 1, before: vec![] });
    WriterContext { staging, ..WriterContext::of(worker) }
}

pub fn publishing(sink: &dyn Sink, again: bool) -> Publishing {
    Publishing { last: false, again, mark: sink.mark().unwrap() }
}

/// Has one worker publish rows by a checkpoint.
pub fn publish(sink: &dyn Sink, writer: &mut dyn SinkWriter, rows: &RecordBatch) {
    writer.write(rows).unwrap();
    let staged = stage_durably(writer, 1, false);
    sink.publish(&[staged], publishing(sink, false)).unwrap();
}

#[test]
fn the_workers_of_a_process_add_their_rows_by_one_commit() {
    for place in Place::both("delta-workers") {
        for (options, by_town) in [(vec![], false), (vec![("roll", "1 B")], false)] {
            let before = if place.get(&commit(0)).is_some() { place.versions() } else { 0 };
            let sink = place.sink(&options);
            let is = (sink.placement(), sink.staging());
            assert_eq!(is, (Placement::Everywhere, SinkVisibility::ByCheckpoint));
            let open = |worker| sink.open(&WriterContext::of(worker)).unwrap();
            let mut writers: Vec<Box<dyn SinkWriter>> = (0..3).map(open).collect();
            let first = 1000 * before as i64;
            for (at, writer) in writers.iter_mut().take(2).enumerate() {
                let from = first + 10 * at as i64;
                writer.write(&numbers(from, from + 10)).unwrap();
                writer.flush().unwrap();
            }
            assert!(place.get(&commit(before)).is_none(), "nothing is seen before the end");
            writers.into_iter().for_each(|writer| writer.commit().unwrap());
            assert_eq!(place.versions(), before + 1);
            let all = (0..=before).flat_map(|at| {
                let first = 1000 * at as i64;
                set(first, first + 20, by_town)
            });
            assert_eq!(place.rows(), all.collect());
        }
        let add = &place.actions(0, "add")[0];
        let statistics: Value = serde_json::from_str(add["stats"].as_str().unwrap()).unwrap();
        let ends = [&statistics["minValues"], &statistics["maxValues"]];
        assert_eq!(ends.map(|ends| ends["number"].as_i64().unwrap() % 10), [0, 9]);
        assert_eq!(statistics["numRecords"], json!(10));
        assert_eq!(statistics["nullCount"]["town"], json!(2));
        let size = place.get(add["path"].as_str().unwrap()).unwrap().len();
        assert_eq!(add["size"], json!(size));
        let protocol = &place.actions(0, "protocol")[0];
        assert_eq!(protocol["writerFeatures"], json!(["timestampNtz"]));
        assert!(place.actions(0, "txn").is_empty());
    }
}

#[test]
fn rows_lie_in_directories_of_their_partitions() {
    for place in Place::both("delta-partitions") {
        let sink = place.sink(&[("partition.by", "town, day")]);
        let mut writer = sink.open(&WriterContext::of(0)).unwrap();
        writer.write(&numbers(0, 40)).unwrap();
        writer.commit().unwrap();
        assert_eq!(place.rows(), set(0, 40, true));
        let adds = place.actions(0, "add");
        // NULL and an empty text are one directory.
        assert_eq!(adds.len(), 4 * 2);
        let values: BTreeSet<String> =
            adds.iter().map(|add| add["partitionValues"]["town"].to_string()).collect();
        let expected = ["\"New York\"", "\"Zürich\"", "\"a/b=c%\"", "null"];
        assert_eq!(values.iter().map(String::as_str).collect::<Vec<_>>(), expected);
        assert_eq!(place.actions(0, "metaData")[0]["partitionColumns"], json!(["town", "day"]));
        // The table says it from now on.
        let sink = place.sink(&[]);
        let mut writer = sink.open(&WriterContext::of(0)).unwrap();
        writer.write(&numbers(40, 50)).unwrap();
        writer.commit().unwrap();
        assert_eq!(place.rows(), set(0, 50, true));
        let columns = numbers(0, 0).schema();
        let error =
            refused(DeltaConnector.sink(&place.table(&columns, &[("partition.by", "day")])));
        assert!(error.to_string().contains("partitioned by 'town,day'"), "{error}");
        let error = place.table(&columns, &[("partition.by", "at")]);
        let error = refused(DeltaConnector.sink(&error));
        assert!(error.to_string().contains("partition"), "{error}");
        // Its columns are those of the log.
        let known = DeltaConnector.infer(&place.table(&columns, &[]).options).unwrap().unwrap();
        let names: Vec<&String> = known.fields().iter().map(|field| field.name()).collect();
        assert_eq!(names, ["number", "town", "day", "at"]);
        let at = DataType::Timestamp(TimeUnit::Microsecond, None);
        assert_eq!(*known.field(3).data_type(), at);
    }
}

#[test]
fn a_publication_is_committed_once_whoever_repeats_it() {
    for place in Place::both("delta-once") {
        let sink = place.sink(&[]);
        let mut writers = [0, 1].map(|worker| sink.open(&staging(worker, 1)).unwrap());
        let stage = |writers: &mut [Box<dyn SinkWriter>; 2], from: i64| {
            let mut all = vec![];
            for (at, writer) in writers.iter_mut().enumerate() {
                let from = from + 10 * at as i64;
                writer.write(&numbers(from, from + 10)).unwrap();
                all.push(stage_durably(&mut **writer, 1, false));
            }
            all
        };
        let first = stage(&mut writers, 0);
        let how = publishing(&*sink, false);
        assert_eq!(how.mark, Some([0, 7]));
        assert_eq!(place.get(&commit(0)), None);
        sink.publish(&first, how).unwrap();
        assert_eq!(place.rows(), set(0, 20, false));
        let name = json!("millstream-0000000000000007");
        let own = &place.actions(0, "txn")[0];
        assert_eq!((&own["appId"], &own["version"]), (&name, &json!(1)));
        // A process died, and the next one does not know how far it came.
        let next = place.sink(&[]);
        next.publish(&first, Publishing { again: true, ..how }).unwrap();
        assert_eq!(place.versions(), 1);
        // It died between the names and the log.
        let second = stage(&mut writers, 20);
        let how = publishing(&*sink, false);
        assert_eq!(how.mark, Some([1, 7]));
        let log = commit(1);
        sink.publish(&second, how).unwrap();
        let committed = place.get(&log).unwrap();
        place.remove(&log);
        assert_eq!(place.rows(), set(0, 20, false));
        let next = place.sink(&[]);
        next.publish(&second, Publishing { again: true, ..how }).unwrap();
        assert_eq!(place.rows(), set(0, 40, false));
        assert_ne!(place.get(&log).unwrap(), committed, "it is another commit");
        next.publish(&second, Publishing { again: true, ..how }).unwrap();
        assert_eq!(place.versions(), 2);
        // Nobody has published without rows.
        let mut idle = next.open(&staging(0, 2)).unwrap();
        let none = stage_durably(&mut *idle, 3, false);
        next.publish(&[none], publishing(&*next, false)).unwrap();
        assert_eq!((place.versions(), next.mark().unwrap()), (2, Some([2, 7])));
        // A job that goes back to an older checkpoint would write rows twice.
        let error = refused(next.publish(&second, how));
        assert!(error.to_string().contains("counted 1 publications"), "{error}");
        // What no checkpoint names goes with the next run.
        idle.write(&numbers(90, 95)).unwrap();
        let third = stage_durably(&mut *idle, 4, false);
        let lost = {
            idle.write(&numbers(95, 99)).unwrap();
            stage_durably(&mut *idle, 5, false)
        };
        let how = publishing(&*next, false);
        next.sweep(RunId { job: 7, generation: 3 }, std::slice::from_ref(&third)).unwrap();
        next.publish(&[third], how).unwrap();
        assert!(next.publish(&[lost], publishing(&*next, false)).is_err());
        assert_eq!(place.rows(), &set(0, 40, false) | &set(90, 95, false));
    }
}

#[test]
fn a_part_that_is_gone_is_no_commit() {
    for place in Place::both("delta-gone") {
        let sink = place.sink(&[]);
        let mut writer = sink.open(&staging(0, 1)).unwrap();
        publish(&*sink, &mut *writer, &numbers(0, 10));
        writer.write(&numbers(10, 20)).unwrap();
        let staged = stage_durably(&mut *writer, 2, false);
        let how = publishing(&*sink, false);
        sink.sweep(RunId { job: 7, generation: 9 }, &[]).unwrap();
        let error =
            refused(sink.publish(std::slice::from_ref(&staged), Publishing { again: true, ..how }));
        assert!(error.to_string().contains("gone"), "{error}");
        assert!(sink.publish(&[staged], how).is_err());
        assert_eq!((place.versions(), place.rows()), (1, set(0, 10, false)));
    }
}

#[test]
fn two_sinks_of_a_job_stage_their_own_parts() {
    for place in Place::both("delta-two") {
        let sinks = ["a", "b"].map(|name| place.sink(&[("txn.app-id", name)]));
        let mut writers = sinks.each_ref().map(|sink| sink.open(&staging(0, 1)).unwrap());
        let mut staged = vec![];
        for (writer, from) in writers.iter_mut().zip([0, 10]) {
            writer.write(&numbers(from, from + 10)).unwrap();
            staged.push(stage_durably(&mut **writer, 1, false));
        }
        // A run that goes on keeps what its own checkpoint names, and leaves that of the other.
        let next = RunId { job: 7, generation: 2 };
        for (sink, staged) in sinks.iter().zip(&staged) {
            sink.sweep(next, std::slice::from_ref(staged)).unwrap();
        }
        for (sink, staged) in sinks.iter().zip(staged) {
            sink.publish(&[staged], publishing(&**sink, false)).unwrap();
        }
        assert_eq!((place.versions(), place.rows()), (2, set(0, 20, false)));
    }
}

#[test]
fn a_table_that_was_made_meanwhile_has_its_own_partitions() {
    for place in Place::both("delta-partitions") {
        let (plain, by_day) = (place.sink(&[]), place.sink(&[("partition.by", "day")]));
        let mut first = plain.open(&WriterContext::of(0)).unwrap();
        first.write(&numbers(0, 10)).unwrap();
        let mut second = by_day.open(&WriterContext::of(0)).unwrap();
        second.write(&numbers(10, 20)).unwrap();
        second.commit().unwrap();
        let error = refused(first.commit());
        assert!(error.to_string().contains("partitioned by day"), "{error}");
        assert_eq!((place.versions(), place.rows()), (1, set(10, 20, false)));
    }
}

#[test]
fn a_table_without_rows_is_empty() {
    for place in Place::both("delta-empty") {
        let sink = place.sink(&[("partition.by", "day")]);
        let mut writer = sink.open(&staging(0, 1)).unwrap();
        let none = stage_durably(&mut *writer, 1, true);
        let how = Publishing { last: true, ..publishing(&*sink, false) };
        sink.publish(&[none], how).unwrap();
        assert_eq!((place.versions(), place.rows()), (1, BTreeSet::new()));
        let sink = place.sink(&[]);
        sink.open(&WriterContext::of(0)).unwrap().commit().unwrap();
        assert_eq!(place.versions(), 1, "there is nothing to commit");
        let mut writer = sink.open(&WriterContext::of(0)).unwrap();
        writer.write(&numbers(3, 4)).unwrap();
        writer.commit().unwrap();
        assert_eq!(place.rows(), set(3, 4, true));
    }
    // Without partitions.
    for place in Place::both("delta-empty-plain") {
        place.sink(&[]).open(&WriterContext::of(0)).unwrap().commit().unwrap();
        assert_eq!(place.rows(), BTreeSet::new());
    }
}

#[test]
fn writers_that_meet_add_all_of_their_rows() {
    for place in Place::both("delta-meet") {
        // The table is made by one of them.
        std::thread::scope(|scope| {
            for writer in 0..4_i64 {
                let place = &place;
                scope.spawn(move || {
                    for turn in 0..6 {
                        let sink = place.sink(&[("checkpoint.interval", "5")]);
                        let mut own = sink.open(&WriterContext::of(0)).unwrap();
                        let from = 1000 * writer + 10 * turn;
                        own.write(&numbers(from, from + 10)).unwrap();
                        own.commit().unwrap();
                    }
                });
            }
        });
        assert_eq!(place.versions(), 24);
        let all = (0..4).flat_map(|writer| set(1000 * writer, 1000 * writer + 60, false));
        assert_eq!(place.rows(), all.collect());
        let metadata = (0..24).filter(|at| !place.actions(*at, "metaData").is_empty());
        assert_eq!(metadata.collect::<Vec<_>>(), [0], "it was made once");
    }
}

#[test]
fn checkpoints_of_the_log_stand_for_the_commits_in_front_of_them() {
    for place in Place::both("delta-checkpoints") {
        let sink = place.sink(&[("checkpoint.interval", "4"), ("partition.by", "town")]);
        let mut writer = sink.open(&staging(0, 1)).unwrap();
        for turn in 0..10 {
            publish(&*sink, &mut *writer, &numbers(10 * turn, 10 * turn + 10));
        }
        let has = |version: u64| {
            place.get(&format!("_delta_log/{version:020}.checkpoint.parquet")).is_some()
        };
        let written: Vec<u64> = (0..10).filter(|version| has(*version)).collect();
        assert_eq!(written, [4, 8]);
        let last = place.get("_delta_log/_last_checkpoint").unwrap();
        let last: Value = serde_json::from_slice(&last).unwrap();
        assert_eq!(last["version"], json!(8));
        let versions = (0..9).map(commit);
        versions.for_each(|name| place.remove(&name));
        assert_eq!(place.rows(), set(0, 100, true));
        // Its writers go on from it, and know how often they have published.
        let next = place.sink(&[("checkpoint.interval", "4")]);
        let mut writer = next.open(&staging(0, 2)).unwrap();
        assert_eq!(next.mark().unwrap(), Some([10, 7]));
        for turn in 10..13 {
            publish(&*next, &mut *writer, &numbers(10 * turn, 10 * turn + 10));
        }
        assert!(has(12));
        place.remove(&format!("_delta_log/{:020}.checkpoint.parquet", 8));
        (9..13).map(commit).for_each(|name| place.remove(&name));
        assert_eq!(place.rows(), set(0, 130, true));
    }
}

/// A writer whose commits were removed behind a checkpoint reads the checkpoint: in part, not at
/// all, and whole.
#[test]
fn a_log_that_is_read_in_part_leaves_nothing_behind() {
    for place in Place::both("delta-in-part") {
        let sink = place.sink(&[("checkpoint.interval", "0")]);
        let mut writer = sink.open(&staging(0, 1)).unwrap();
        publish(&*sink, &mut *writer, &numbers(0, 10));
        writer.write(&numbers(10, 20)).unwrap();
        let staged = stage_durably(&mut *writer, 2, false);
        let how = publishing(&*sink, false);
        // Another one adds files, removes ours, and writes checkpoints.
        let other = place.sink(&[("checkpoint.interval", "2")]);
        let add = |from: i64| {
            let mut own = other.open(&WriterContext::of(0)).unwrap();
            own.write(&numbers(from, from + 10)).unwrap();
            own.commit().unwrap();
        };
        add(100);
        let remove = json!({"remove": {"path": place.actions(0, "add")[0]["path"],
            "deletionTimestamp": i64::MAX, "dataChange": true}});
        place.put(&commit(2), format!("{remove}\n").as_bytes());
        add(110);
        let checkpoint = format!("_delta_log/{:020}.checkpoint.parquet", 3);
        let whole = place.get(&checkpoint).unwrap();
        (0..3).map(commit).for_each(|name| place.remove(&name));
        // It cannot be read, and neither can the commit behind it.
        place.put(&checkpoint, b"PAR1");
        refused(sink.publish(std::slice::from_ref(&staged), how));
        place.put(&checkpoint, &whole);
        let last = place.get(&commit(3)).unwrap();
        place.put(&commit(4), b"{");
        refused(sink.publish(std::slice::from_ref(&staged), how));
        place.remove(&commit(4));
        // A log that is gone is no new table.
        place.remove(&checkpoint);
        place.remove(&commit(3));
        let error = refused(sink.publish(std::slice::from_ref(&staged), how));
        assert!(error.to_string().contains("its log is gone"), "{error}");
        place.put(&checkpoint, &whole);
        place.put(&commit(3), &last);
        sink.publish(&[staged], Publishing { again: true, ..how }).unwrap();
        assert_eq!(place.rows(), &set(100, 120, false) | &set(10, 20, false));
    }
}

#[test]
fn what_another_writer_adds_is_kept_and_what_it_changes_is_an_error() {
    for place in Place::both("delta-others") {
        let sink = place.sink(&[]);
        let mut writer = sink.open(&staging(0, 1)).unwrap();
        publish(&*sink, &mut *writer, &numbers(0, 10));
        // Another one appends.
        let other = place.sink(&[]);
        let mut own = other.open(&WriterContext::of(0)).unwrap();
        own.write(&numbers(100, 110)).unwrap();
        own.commit().unwrap();
        publish(&*sink, &mut *writer, &numbers(10, 20));
        assert_eq!(place.versions(), 3);
        assert_eq!(place.rows(), &set(0, 20, false) | &set(100, 110, false));
        // Another one compacts: its files replace ours.
        let add = place.actions(0, "add")[0].clone();
        let remove = json!({"remove": {"path": add["path"], "deletionTimestamp": i64::MAX,
            "dataChange": false}});
        place.put(&commit(3), format!("{remove}\n").as_bytes());
        publish(&*sink, &mut *writer, &numbers(20, 30));
        assert_eq!(place.rows(), &set(10, 30, false) | &set(100, 110, false));
        // It changes the columns.
        let mut metadata = place.actions(0, "metaData")[0].clone();
        let text = metadata["schemaString"].as_str().unwrap();
        let mut columns: Value = serde_json::from_str(text).unwrap();
        let more = json!({"name": "more", "type": "long", "nullable": true, "metadata": {}});
        columns["fields"].as_array_mut().unwrap().push(more);
        metadata["schemaString"] = json!(columns.to_string());
        let changed = json!({ "metaData": metadata });
        place.put(&commit(5), format!("{changed}\n").as_bytes());
        writer.write(&numbers(30, 40)).unwrap();
        let staged = stage_durably(&mut *writer, 9, false);
        let how = Publishing { last: false, again: false, mark: Some([3, 7]) };
        let error = refused(sink.publish(std::slice::from_ref(&staged), how));
        assert!(error.to_string().contains("has changed its columns"), "{error}");
        // A run that begins behind that checks the columns anew.
        let next = place.sink(&[]);
        next.publish(&[staged], Publishing { again: true, ..how }).unwrap();
        assert_eq!(place.rows(), &set(10, 40, false) | &set(100, 110, false));
    }
}

#[test]
fn a_table_with_other_columns_or_rules_is_refused_at_their_place() {
    let scratch = Scratch::new("delta-unfit");
    let place = Place::Files(scratch);
    let fields = |fields: &[(&str, DataType, bool)]| -> SchemaRef {
        let fields = fields.iter().map(|(name, of, null)| Field::new(*name, of.clone(), *null));
        Arc::new(Schema::new(fields.collect::<Vec<_>>()))
    };
    let own = [("n", BIGINT, false), ("s", VARCHAR, true)];
    let sink = DeltaConnector.sink(&place.table(&fields(&own), &[])).unwrap();
    sink.open(&WriterContext::of(0)).unwrap().commit().unwrap();
    let column = |given: &[(&str, DataType, bool)]| match refused(
        DeltaConnector.sink(&place.table(&fields(given), &[])),
    ) {
        ConnectorError::Column { column, message, .. } => format!("{column}: {message}"),
        other => panic!("{other}"),
    };
    let text = column(&[("n", DataType::Int32, false)]);
    assert!(text.contains("n: the table that is there has it as long"), "{text}");
    assert!(column(&[("n", BIGINT, true)]).contains("NOT NULL"));
    assert!(column(&[("s", VARCHAR, true)]).contains("n: the table has it as NOT NULL"));
    let text = column(&[("n", BIGINT, false), ("x", VARCHAR, true)]);
    assert!(text.contains("x: the table that is there has no such column"), "{text}");
    let time = DataType::Time64(TimeUnit::Microsecond);
    assert!(column(&[("t", time, true)]).contains("t: Delta Lake has no TIME"));
    // Fewer columns are NULL in the others.
    let fewer = fields(&own[..1]);
    DeltaConnector.sink(&place.table(&fewer, &[])).unwrap();
    // It is there already.
    let create = DeltaConnector.sink_for(&place.table(&fewer, &[]), WriteMode::Create).unwrap();
    let error = refused(create.open(&WriterContext::of(0)));
    assert!(error.to_string().contains("there is a table"), "{error}");
    assert!(create.check_new().is_err());
    assert!(create.open(&staging(0, 2)).is_ok(), "a job that goes on has made it itself");
    for path in ["", "http://127.0.0.1:9/t"] {
        let nowhere = table(&fewer, &[("path", path)]);
        assert!(matches!(
            refused(DeltaConnector.sink(&nowhere)),
            ConnectorError::Option { key, .. } if key == "path"
        ));
        assert!(source(&DeltaConnector, &nowhere).is_err());
    }
    let overwrite = DeltaConnector.sink_for(&place.table(&fewer, &[]), WriteMode::Overwrite);
    assert!(refused(overwrite).to_string().contains("no INSERT OVERWRITE"));
    let rules = [
        json!({"protocol": {"minReaderVersion": 1, "minWriterVersion": 9}}),
        json!({"protocol": {"minReaderVersion": 3, "minWriterVersion": 7,
            "writerFeatures": ["rowTracking"]}}),
        json!({"metaData": {"schemaString": "{\"fields\":[]}", "partitionColumns": [],
            "configuration": {"delta.constraints.c": "n > 1"}}}),
        json!({"metaData": {"schemaString": "{", "partitionColumns": []}}),
    ];
    for rule in rules {
        place.put(&commit(1), rule.to_string().as_bytes());
        let error = refused(DeltaConnector.sink(&place.table(&fewer, &[])));
        assert!(matches!(error, ConnectorError::Io { .. }), "{error}");
    }
    // A directory is read as one by `file`, and written by this connector alone.
    place.remove(&commit(1));
    let path = format!("{}/", place.table(&fewer, &[]).options["path"]);
    let files = table(&fewer, &[("path", &path), ("format", "parquet")]);
    let error = refused(FileConnector::default().sink(&files));
    assert!(hint(&error).contains("'connector' = 'delta'"), "{error}");
}

#[test]
fn rows_of_a_writer_that_fails_are_not_committed() {
    for place in Place::both("delta-fails") {
        let sink = place.sink(&[]);
        let mut writers = [0, 1].map(|worker| sink.open(&WriterContext::of(worker)).unwrap());
        for writer in &mut writers {
            writer.write(&numbers(0, 10)).unwrap();
        }
        let [first, second] = writers;
        drop(first);
        second.commit().unwrap();
        assert_eq!(place.get(&commit(0)), None);
        // A run of the same statement that does not fail is not held to that.
        let mut writer = sink.open(&WriterContext::of(0)).unwrap();
        writer.write(&numbers(20, 30)).unwrap();
        writer.commit().unwrap();
        assert_eq!(place.rows(), set(20, 30, false));
    }
}

#[test]
fn objects_of_a_table_are_not_read_as_files() {
    let store = S3::start();
    let place = Place::Objects(store);
    let sink = place.sink(&[]);
    let mut writer = sink.open(&WriterContext::of(0)).unwrap();
    writer.write(&numbers(0, 10)).unwrap();
    writer.commit().unwrap();
    let mut as_files = place.table(&numbers(0, 0).schema(), &[("format", "parquet")]);
    as_files.options.insert("path".into(), "s3://bucket/lake/t/".into());
    let error = refused(source(&FileConnector::default(), &as_files));
    assert!(error.to_string().contains("table of Delta Lake"), "{error}");
    as_files.options.insert("path".into(), "s3://bucket/lake/t/*.parquet".into());
    assert!(source(&FileConnector::default(), &as_files).is_ok());
}
