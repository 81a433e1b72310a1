//! Tables of Delta Lake: what is removed from them, and when.

use std::fs::{self, File};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use connectors::{Blackhole, DeltaConnector};
use dataflow::connector::{Connector, Vacuum};
use dataflow::error::ConnectorError;
use dataflow::sink::WriterContext;
use dataflow::source::Source;
use serde_json::{Value, json};

use crate::bed::*;
use crate::delta_sink::{Place, commit, numbers, publish, set, staging};
use crate::servers::s3::S3;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn checkpoint(version: u64) -> String {
    format!("_delta_log/{version:020}.checkpoint.parquet")
}

/// Has files of a table been written many days ago.
fn age(place: &Place, names: &[String], days: u32) {
    match place {
        Place::Files(scratch) => {
            for name in names {
                let file = File::open(scratch.path(&format!("t/{name}"))).unwrap();
                file.set_modified(SystemTime::now() - days * DAY).unwrap();
            }
        }
        Place::Objects(store) => {
            let old = names.iter().map(|name| format!("/bucket/lake/t/{name}"));
            store.state.lock().unwrap().old.extend(old);
        }
    }
}

#[test]
fn versions_that_nobody_can_ask_for_are_removed_when_a_checkpoint_is_written() {
    for place in Place::both("delta-cleaned") {
        let sink = place.sink(&[("checkpoint.interval", "3")]);
        let mut writer = sink.open(&staging(0, 1)).unwrap();
        let mut publish_turns = |turns: std::ops::Range<i64>| {
            for turn in turns {
                publish(&*sink, &mut *writer, &numbers(10 * turn, 10 * turn + 10));
            }
        };
        let there = |name: &dyn Fn(u64) -> String| {
            (0..20).filter(|version| place.get(&name(*version)).is_some()).collect::<Vec<u64>>()
        };
        publish_turns(0..9);
        assert_eq!(there(&checkpoint), [3, 6]);
        let old = (0..7).map(commit).chain([3, 6].map(checkpoint));
        age(&place, &old.collect::<Vec<_>>(), 40);
        assert_eq!(there(&commit), (0..9).collect::<Vec<_>>(), "nothing is removed in between");
        // A writer looks at the log with its first checkpoint, and then once an hour.
        let next = place.sink(&[("checkpoint.interval", "3")]);
        let mut next_writer = next.open(&staging(0, 1)).unwrap();
        publish(&*next, &mut *next_writer, &numbers(90, 100));
        assert_eq!((there(&checkpoint), there(&commit)), (vec![6, 9], vec![6, 7, 8, 9]));
        assert_eq!(place.rows(), set(0, 100, false));
        // The writer before goes on, and so does one that has not seen it.
        publish_turns(10..12);
        let other = place.sink(&[("checkpoint.interval", "3")]);
        assert_eq!(other.mark().unwrap(), None);
        publish_turns(12..13);
        assert_eq!(place.rows(), set(0, 130, false));
    }
}

#[test]
fn versions_stay_as_long_as_the_table_says() {
    for (settings, commits) in [
        (json!({"delta.logRetentionDuration": "interval 60 days"}), 7),
        (json!({"delta.enableExpiredLogCleanup": "false"}), 7),
        (json!({"delta.logRetentionDuration": "always"}), 7),
        (json!({"delta.logRetentionDuration": "interval 39 days"}), 4),
        (json!({}), 4),
    ] {
        let place = Place::Files(Scratch::new("delta-log-stays"));
        let publish_some = |count: i64| {
            let sink = place.sink(&[("checkpoint.interval", "3")]);
            let mut writer = sink.open(&staging(0, 2)).unwrap();
            for turn in 0..count {
                publish(&*sink, &mut *writer, &numbers(10 * turn, 10 * turn + 10));
            }
        };
        publish_some(1);
        let Place::Files(scratch) = &place else { unreachable!() };
        let log = scratch.path(&format!("t/{}", commit(0)));
        let text = fs::read_to_string(&log).unwrap();
        let text = text.replace("\"configuration\":{}", &format!("\"configuration\":{settings}"));
        fs::write(&log, text).unwrap();
        publish_some(4);
        age(&place, &[commit(0), commit(1), commit(2), commit(3), checkpoint(3)], 40);
        publish_some(2);
        assert!(place.get(&checkpoint(6)).is_some());
        let there = (0..7).filter(|version| place.get(&commit(*version)).is_some()).count();
        assert_eq!(there, commits, "{settings}");
    }
}

const HOUR_MS: u64 = 60 * 60 * 1000;

fn vacuumed(place: &Place, how: Vacuum) -> Result<Arc<dyn Source>, ConnectorError> {
    DeltaConnector.vacuum(&place.table(&numbers(0, 0).schema(), &[]), how)
}

/// The files that a statement gives, in order.
fn files(place: &Place, how: Vacuum) -> Vec<String> {
    let source = vacuumed(place, how).unwrap();
    let mut reader = source.open(&nth(0), None, &context()).unwrap();
    rows(&drain(&mut *reader).unwrap())
}

/// Commits actions behind all versions.
fn commit_actions(place: &Place, actions: &[Value]) {
    let lines: String = actions.iter().map(|action| format!("{action}\n")).collect();
    place.put(&commit(place.versions()), lines.as_bytes());
}

/// A file that was removed so many days ago.
fn remove(path: &str, days: u32) -> Value {
    let at = ago_ms(days);
    json!({"remove": {"path": path, "deletionTimestamp": at, "dataChange": true}})
}

fn ago_ms(days: u32) -> u64 {
    let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() - days * DAY;
    at.as_millis() as u64
}

#[test]
fn files_that_no_version_needs_are_removed_and_no_others() {
    for place in Place::both("delta-vacuum") {
        let sink = place.sink(&[("partition.by", "town")]);
        let mut writer = sink.open(&WriterContext::of(0)).unwrap();
        writer.write(&numbers(0, 40)).unwrap();
        writer.commit().unwrap();
        let path = |add: &Value| add["path"].as_str().unwrap().to_owned();
        let added: Vec<String> = place.actions(0, "add").iter().map(path).collect();
        // Names on this side, as the log has them decoded.
        let strangers = ["old.parquet", "New York/old", "town=x/b c", "town=x/y%20z", "never"];
        let kept = ["young", "_old", ".old", "_x/old", "_k=1/_old", "removed-late", "a%20b"];
        for name in strangers.iter().chain(&kept) {
            place.put(name, b"1234");
        }
        let lines = [
            remove("old.parquet", 40),
            remove("removed-late", 2),
            // A name that its writer has not encoded.
            json!({"add": {"path": "a%20b", "partitionValues": {}, "size": 4}}),
            remove(&added[0], 30),
        ];
        commit_actions(&place, &lines);
        let old: Vec<String> =
            strangers.iter().chain(&kept[1..]).map(|name| (*name).into()).collect();
        age(&place, &old, 20);
        let dry = Vacuum { dry_run: true, ..Vacuum::default() };
        let given = files(&place, dry);
        let mut expected: Vec<String> = strangers.iter().map(|name| format!("{name}|4")).collect();
        expected.sort();
        assert_eq!(given, expected);
        assert!(strangers.iter().all(|name| place.get(name).is_some()), "they stay");
        // What is within the retention that the statement asks for stays.
        let ever = Vacuum { retain_ms: Some(u64::MAX), dry_run: false };
        assert!(files(&place, ever).is_empty());
        if let Place::Files(_) = place {
            let long = Vacuum { retain_ms: Some(24 * 25 * HOUR_MS), dry_run: false };
            assert!(files(&place, long).is_empty());
        }
        assert_eq!(files(&place, Vacuum::default()), expected);
        assert!(strangers.iter().all(|name| place.get(name).is_none()));
        assert!(kept.iter().all(|name| place.get(name).is_some()));
        assert!(files(&place, Vacuum::default()).is_empty());
    }
}

#[test]
fn a_version_that_can_be_read_loses_no_file() {
    for place in Place::both("delta-vacuum-versions") {
        let sink = place.sink(&[]);
        let mut writer = sink.open(&staging(0, 1)).unwrap();
        for turn in 0..3 {
            publish(&*sink, &mut *writer, &numbers(10 * turn, 10 * turn + 10));
        }
        let path =
            |version: u64| place.actions(version, "add")[0]["path"].as_str().unwrap().to_owned();
        let paths = [0, 1, 2].map(path);
        age(&place, &paths, 100);
        commit_actions(&place, &[remove(&paths[0], 3)]);
        commit_actions(&place, &[remove(&paths[1], 9)]);
        let names: Vec<String> = files(&place, Vacuum::default());
        assert_eq!(names.len(), 1);
        assert!(names[0].starts_with(&format!("{}|", paths[1])), "{names:?}");
        assert_eq!(place.rows(), set(20, 30, false));
        assert!(place.get(&paths[0]).is_some());
    }
}

#[test]
fn a_vacuum_that_might_take_what_is_needed_is_refused() {
    let place = Place::Files(Scratch::new("delta-vacuum-refused"));
    let refused = |how: Vacuum| refused(vacuumed(&place, how)).to_string();
    let day = Vacuum { retain_ms: Some(24 * HOUR_MS), dry_run: false };
    assert!(refused(day).contains("there is no table of Delta Lake"));
    let sink = place.sink(&[]);
    let mut writer = sink.open(&WriterContext::of(0)).unwrap();
    writer.write(&numbers(0, 10)).unwrap();
    writer.commit().unwrap();
    assert!(refused(day).contains("for 168 hours"), "{}", refused(day));
    let is_fit = |place: &Place, how: Vacuum| vacuumed(place, how).is_ok();
    assert!(is_fit(&place, Vacuum { retain_ms: Some(168 * HOUR_MS), dry_run: true }));
    let first = place.get(&commit(0)).unwrap();
    let set = |setting: &str| {
        let text = String::from_utf8(first.clone()).unwrap();
        let key = "delta.deletedFileRetentionDuration";
        let setting = json!({ key: setting }).to_string();
        let text = text.replace("\"configuration\":{}", &format!("\"configuration\":{setting}"));
        place.put(&commit(0), text.as_bytes());
    };
    set("interval 1 day");
    assert!(is_fit(&place, day));
    set("some days");
    assert!(refused(day).contains("'some days', which is not understood"));
    place.put(&commit(0), &first);
    // A table may have files beside those that the log names as such.
    for (action, expected) in [
        (json!({"add": {"path": "a", "deletionVector": {"storageType": "u"}}}), "does not know"),
        (json!({"domainMetadata": {"domain": "d"}}), "does not know"),
        (
            json!({"protocol": {"minReaderVersion": 3, "minWriterVersion": 7,
                "writerFeatures": ["inCommitTimestamp"]}}),
            "'inCommitTimestamp'",
        ),
    ] {
        commit_actions(&place, &[action]);
        assert!(refused(Vacuum::default()).contains(expected), "{}", refused(Vacuum::default()));
        place.remove(&commit(1));
    }
    commit_actions(&place, &[json!({"add": {"path": "file:/t/a", "size": 1}})]);
    let source = vacuumed(&place, Vacuum::default()).unwrap();
    let mut reader = source.open(&nth(0), None, &context()).unwrap();
    let error = await_batch(&mut *reader).unwrap_err().to_string();
    assert!(error.contains("outside of its directory"), "{error}");
    let table = table(&numbers(0, 0).schema(), &[]);
    let other = self::refused(Blackhole::default().vacuum(&table, day));
    assert!(hint(&other).contains("'connector' = 'delta'"));
}

#[test]
fn a_store_that_has_many_files_gives_them_some_at_a_time() {
    let place = Place::Objects(S3::start());
    let sink = place.sink(&[]);
    let mut writer = sink.open(&WriterContext::of(0)).unwrap();
    writer.write(&numbers(0, 10)).unwrap();
    writer.commit().unwrap();
    let names: Vec<String> = (0..1100).map(|n| format!("x{n:04}")).collect();
    names.iter().for_each(|name| place.put(name, b"1"));
    age(&place, &["x".to_owned()], 20);
    let source = vacuumed(&place, Vacuum::default()).unwrap();
    let mut reader = source.open(&nth(0), None, &context()).unwrap();
    let first = await_batch(&mut *reader).unwrap();
    assert_eq!(first.num_rows(), 1000);
    assert_eq!(await_batch(&mut *reader).unwrap().num_rows(), 100);
    assert_eq!(place.rows(), set(0, 10, false));
}
