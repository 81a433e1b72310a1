//! Sessions against brute force: the rows of a key in order, cut where a pause is longer than the
//! gap.

use std::collections::BTreeMap;

use arrow::array::{Int64Array, StringArray};
use proptest::prelude::*;

use super::*;
use crate::aggregates::{count, max, min, sum};
use crate::sim::{SimDisk, SimDiskOptions};
use crate::windowed::tests::{copies_without_room_are_on_the_disk, elsewhere};
use crate::{StateOptions, Windowed};

/// Time, key and value.
type Row = (i64, i64, i64);
/// Key, first and last time, count and sum.
type Session = (i64, i64, i64, i64, i64);

/// The kinds of keys.
#[derive(Debug, Clone, Copy)]
enum Keys {
    None,
    Number,
    Text,
    Two,
}

impl Keys {
    fn types(self) -> Vec<DataType> {
        match self {
            Keys::None => vec![],
            Keys::Number => vec![DataType::Int64],
            Keys::Text => vec![DataType::Utf8],
            Keys::Two => vec![DataType::Int64, DataType::Utf8],
        }
    }

    /// Key 0 is NULL.
    fn columns(self, key: i64) -> Vec<ArrayRef> {
        let number = || -> ArrayRef { Arc::new(Int64Array::from(vec![(key != 0).then_some(key)])) };
        let text = || -> ArrayRef {
            Arc::new(StringArray::from(vec![(key != 0).then(|| format!("key number {key}"))]))
        };
        match self {
            Keys::None => vec![],
            Keys::Number => vec![number()],
            Keys::Text => vec![text()],
            Keys::Two => vec![number(), text()],
        }
    }

    fn read(self, keys: &[ArrayRef], row: usize) -> i64 {
        match (self, keys.first()) {
            (_, None) => 0,
            (_, Some(key)) if key.is_null(row) => 0,
            (Keys::Text, Some(key)) => {
                let text = key.as_string::<i32>().value(row);
                text.strip_prefix("key number ").unwrap().parse().unwrap()
            }
            (_, Some(key)) => key.as_primitive::<Int64Type>().value(row),
        }
    }
}

fn spec(keys: Keys) -> Arc<GroupBy> {
    let of = DataType::Int64;
    let times = [min(&of), max(&of)].into_iter().flatten();
    let aggregates = [count()].into_iter().chain(sum(&of)).chain(times).collect();
    Arc::new(GroupBy { keys: keys.types(), aggregates, options: StateOptions::default() })
}

fn add(slices: &mut Slices, windows: &Windows, keys: Keys, (time, key, value): Row) {
    let column = |value: i64| -> ArrayRef { Arc::new(Int64Array::from(vec![value])) };
    let args = [vec![], vec![column(value)], vec![column(time)], vec![column(time)]];
    let slice = windows.slice_key(windows.slice_start(time));
    slices.update(slice, 1, &keys.columns(key), &args).unwrap();
}

fn trigger(windowed: &mut Windowed, keys: Keys, watermark: i64, out: &mut Vec<Session>) {
    while let Some(triggered) = windowed.trigger(watermark).unwrap() {
        assert!(triggered.window.is_none() && triggered.columns.rows() > 0);
        let GroupColumns { keys: key, states } = triggered.columns;
        let of = |column: usize, row| states[column].as_primitive::<Int64Type>().value(row);
        for row in 0..states[0].len() {
            let [count, sum, first, last] = [0, 1, 2, 3].map(|column| of(column, row));
            out.push((keys.read(&key, row), first, last, count, sum));
        }
    }
}

fn brute_force(rows: &[Row], gap: i64) -> Vec<Session> {
    let mut by_key: BTreeMap<i64, Vec<(i64, i64)>> = BTreeMap::new();
    rows.iter().for_each(|&(time, key, value)| by_key.entry(key).or_default().push((time, value)));
    let mut sessions: Vec<Session> = vec![];
    for (key, mut rows) in by_key {
        rows.sort_unstable();
        for (time, value) in rows {
            match sessions.last_mut().filter(|last| last.0 == key && time - last.2 <= gap) {
                Some(last) => (last.2, last.3, last.4) = (time, last.3 + 1, last.4 + value),
                None => sessions.push((key, time, time, 1, value)),
            }
        }
    }
    sessions.sort_unstable();
    sessions
}

fn keys() -> impl Strategy<Value = Keys> {
    prop_oneof![Just(Keys::None), Just(Keys::Number), Just(Keys::Text), Just(Keys::Two)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Helpers fold rows of their own and hand over deltas when they like; the leader triggers when
    /// the watermarks of all have passed.
    #[test]
    fn sessions_equal_brute_force_however_rows_are_split(
        keys in keys(),
        gap in 1i64..14,
        delay in 0i64..9,
        helpers in 1usize..5,
        steps in prop::collection::vec(
            (0usize..5, 0i64..9, 0i64..25, 0i64..4, -9i64..9, 0u8..10), 0..120,
        ),
        spills in any::<bool>(),
    ) {
        let spec = spec(keys);
        let windows = Windows::sessions(gap).unwrap();
        let mut leader = Windowed::new(&spec, Some(windows));
        let disk = SimDisk::new(SimDiskOptions::default());
        if spills {
            leader.slices().spill_to(disk.clone(), None);
        }
        let mut partials: Vec<Slices> = (0..helpers).map(|_| Slices::new(&spec)).collect();
        // By helper the latest time of its flow, and the watermark that the leader was told.
        let (mut latest, mut emitted) = (vec![0; helpers], vec![i64::MIN; helpers]);
        let (mut counted, mut triggered) = (vec![], vec![]);
        for (helper, ahead, behind, key, value, action) in steps {
            let helper = helper % helpers;
            let watermark = latest[helper] - delay;
            latest[helper] += ahead;
            let time = latest[helper] - behind;
            let key = if matches!(keys, Keys::None) { 0 } else { key };
            if time + gap > watermark {
                counted.push((time, key, value));
                add(&mut partials[helper], &windows, keys, (time, key, value));
            }
            if action < 4 {
                hand_over(&mut partials[helper], &mut leader);
                emitted[helper] = latest[helper] - delay;
            }
            if spills && action % 4 == 1 {
                leader.slices().spill_all();
            }
            if action % 3 == 0 {
                let least = *emitted.iter().min().unwrap();
                let before = triggered.len();
                trigger(&mut leader, keys, least, &mut triggered);
                let horizon = windows.horizon(least);
                prop_assert!(triggered[before..].iter().all(|s| s.2 + gap < horizon), "too early");
                // Nothing that is whole is kept for longer than a slice.
                let over = |s: &Session| s.2 + gap < windows.slice_start(horizon);
                let due = brute_force(&counted, gap).into_iter().filter(over).count();
                let found = triggered.len();
                prop_assert!(least == i64::MIN || found >= due, "{found} of {due}");
                if action == 6 {
                    let disk = spills.then(|| disk.clone());
                    leader = elsewhere(&mut leader, helpers as u32, least, &disk);
                }
            }
        }
        partials.iter_mut().for_each(|partial| hand_over(partial, &mut leader));
        trigger(&mut leader, keys, i64::MAX, &mut triggered);
        triggered.sort_unstable();
        prop_assert_eq!(triggered, brute_force(&counted, gap));
        prop_assert!(leader.slices().is_empty() && disk.files() == 0);
    }
}

fn hand_over(partial: &mut Slices, leader: &mut Windowed) {
    while let Some(slice) = partial.first() {
        while let Some(delta) = partial.take_delta(slice).unwrap() {
            leader.slices().merge(slice, &delta.keys, &delta.states).unwrap();
        }
    }
}

#[test]
fn open_sessions_are_copied_to_the_disk_where_there_is_no_room() {
    let windows = Windows::sessions(10).unwrap();
    let mut windowed = Windowed::new(&spec(Keys::Number), Some(windows));
    for key in 1..=2_000 {
        add(windowed.slices(), &windows, Keys::Number, (4, key, 1));
    }
    let mut triggered = vec![];
    trigger(&mut windowed, Keys::Number, 16, &mut triggered);
    assert!(triggered.is_empty() && windowed.slices().is_empty(), "all sessions may go on");
    copies_without_room_are_on_the_disk(&mut windowed);
    trigger(&mut windowed, Keys::Number, i64::MAX, &mut triggered);
    assert_eq!(triggered.len(), 2_000);
}

#[test]
fn a_row_at_the_end_of_a_session_continues_it() {
    let windows = Windows::sessions(10).unwrap();
    for (second, sessions) in [(9, 1), (10, 1), (11, 2)] {
        let mut windowed = Windowed::new(&spec(Keys::Number), Some(windows));
        for time in [second, 0] {
            add(windowed.slices(), &windows, Keys::Number, (time, 1, 1));
        }
        let mut triggered = vec![];
        trigger(&mut windowed, Keys::Number, i64::MAX, &mut triggered);
        assert_eq!(triggered.len(), sessions, "{second}: {triggered:?}");
    }
}

#[test]
fn a_session_is_over_when_no_row_on_time_can_continue_it() {
    let windows = Windows::sessions(10).unwrap();
    let mut windowed = Windowed::new(&spec(Keys::Number), Some(windows));
    let mut triggered = vec![];
    add(windowed.slices(), &windows, Keys::Number, (0, 1, 5));
    // It ends at 10; a row at 10 is late when the watermark has reached 20.
    trigger(&mut windowed, Keys::Number, 19, &mut triggered);
    assert!(triggered.is_empty());
    trigger(&mut windowed, Keys::Number, 20, &mut triggered);
    assert_eq!(triggered, [(1, 0, 0, 1, 5)]);
}

#[test]
fn sessions_at_both_ends_of_time() {
    let windows = Windows::sessions(10).unwrap();
    let mut windowed = Windowed::new(&spec(Keys::Number), Some(windows));
    for time in [i64::MIN, i64::MAX, 0] {
        add(windowed.slices(), &windows, Keys::Number, (time, 1, 1));
    }
    let mut triggered = vec![];
    trigger(&mut windowed, Keys::Number, i64::MAX, &mut triggered);
    let times: Vec<_> = triggered.iter().map(|session| (session.1, session.2)).collect();
    assert_eq!(times, [(i64::MIN, i64::MIN), (0, 0), (i64::MAX, i64::MAX)]);
}

#[test]
fn a_session_that_goes_on_holds_one_group() {
    let windows = Windows::sessions(10).unwrap();
    let mut windowed = Windowed::new(&spec(Keys::Text), Some(windows));
    let mut triggered = vec![];
    for time in 0..5_000 {
        add(windowed.slices(), &windows, Keys::Text, (time * 10, time % 3 + 1, 1));
        trigger(&mut windowed, Keys::Text, time * 10, &mut triggered);
        assert!(windowed.slices().len() <= 5, "{} slices", windowed.slices().len());
    }
    assert!(windowed.bytes() < 1 << 20, "{} bytes", windowed.bytes());
    // A key comes every 30 ticks: each row is a session.
    trigger(&mut windowed, Keys::Text, i64::MAX, &mut triggered);
    assert_eq!(triggered.len(), 5_000);
    for time in 0..5_000 {
        add(windowed.slices(), &windows, Keys::Text, (time * 3, time % 3 + 1, 1));
        trigger(&mut windowed, Keys::Text, time * 3, &mut triggered);
    }
    assert_eq!(triggered.len(), 5_000, "all of them go on");
    trigger(&mut windowed, Keys::Text, i64::MAX, &mut triggered);
    let counts: Vec<i64> = triggered[5_000..].iter().map(|session| session.3).collect();
    assert_eq!(counts.iter().sum::<i64>(), 5_000);
    assert_eq!(counts.len(), 3);
}
