//! Tables of Delta Lake: what is removed from them, and when.

use std::fs::{self, File};
use std::time::{Duration, SystemTime};

use serde_json::json;

use crate::bed::*;
use crate::delta_sink::{Place, commit, numbers, publish, set, staging};

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
        let mut turns = 0..;
        let mut publish = |count: usize| {
            for turn in turns.by_ref().take(count) {
                publish(&*sink, &mut *writer, &numbers(10 * turn, 10 * turn + 10));
            }
        };
        let there = |name: &dyn Fn(u64) -> String| {
            (0..20).filter(|version| place.get(&name(*version)).is_some()).collect::<Vec<u64>>()
        };
        publish(9);
        assert_eq!(there(&checkpoint), [3, 6]);
        let old = (0..7).map(commit).chain([3, 6].map(checkpoint));
        age(&place, &old.collect::<Vec<_>>(), 40);
        assert_eq!(there(&commit), (0..9).collect::<Vec<_>>(), "nothing is removed in between");
        publish(1);
        assert_eq!((there(&checkpoint), there(&commit)), (vec![6, 9], vec![6, 7, 8, 9]));
        assert_eq!(place.rows(), set(0, 100, false));
        // Its writer goes on, and so does one that has not seen it.
        publish(2);
        let other = place.sink(&[("checkpoint.interval", "3")]);
        assert_eq!(other.mark().unwrap(), None);
        publish(1);
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
