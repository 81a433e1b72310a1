//! Windows against brute force: every row, in every window that has it and has not triggered for
//! it.

use std::collections::BTreeMap;

use arrow::array::{ArrayRef, AsArray, Int64Array};
use arrow::datatypes::{DataType, Int64Type};
use proptest::prelude::*;

use super::*;
use crate::aggregates::{count, max, sum};
use crate::sim::{SimDisk, SimDiskOptions};
use crate::{KeyMode, Partitioner, RowPlace, RowsByOwner, SaveRound, SavedGroups, StateOptions};

/// Key and value.
type Row = (i64, i64);
/// Sum, maximum and count by key.
type Groups = BTreeMap<i64, (i64, i64, i64)>;

fn spec(mode: Option<KeyMode>) -> Arc<GroupBy> {
    let of = DataType::Int64;
    let aggregates = [sum(&of), max(&of)].into_iter().flatten().chain([count()]).collect();
    let options = StateOptions { key_mode: mode, ..StateOptions::default() };
    Arc::new(GroupBy { keys: vec![of], aggregates, options })
}

/// Saved groups, read where they lie on a disk.
fn groups_of(saved: SavedGroups, keys: usize) -> Result<GroupColumns, StateError> {
    match saved {
        SavedGroups::Held(groups) => groups.columns(),
        SavedGroups::Unchanged { .. } => unreachable!("no round was recorded"),
        SavedGroups::Spilled(batch) => {
            let mut keys_of = batch.read()?.columns().to_vec();
            let states = keys_of.split_off(keys);
            Ok(GroupColumns { keys: keys_of, states })
        }
    }
}

fn add(slices: &mut Slices, key: i64, (group, value): Row) {
    let column = |value: i64| -> ArrayRef { Arc::new(Int64Array::from(vec![value])) };
    let args = [vec![column(value)], vec![column(value)], vec![]];
    slices.update(key, 1, &[column(group)], &args).unwrap();
}

fn add_to(groups: &mut Groups, (group, value): Row) {
    let group = groups.entry(group).or_insert((0, i64::MIN, 0));
    *group = (group.0 + value, group.1.max(value), group.2 + 1);
}

/// Fires what may fire; each window once, in the order of their ends.
fn trigger(windowed: &mut Windowed, watermark: i64, triggered: &mut Vec<(WindowBounds, Groups)>) {
    while let Some(part) = windowed.trigger(watermark).unwrap() {
        let window = part.window.unwrap();
        assert!(window.end <= watermark);
        if part.first {
            assert!(
                triggered.last().is_none_or(|(last, _)| last.end < window.end),
                "{triggered:?}"
            );
            triggered.push((window, Groups::new()));
        }
        let (last, groups) = triggered.last_mut().unwrap();
        assert_eq!(*last, window);
        groups.extend(rows_of(&part.columns));
    }
}

/// One round of what has changed, each window once, in the order of their ends.
fn look(windowed: &mut Windowed) -> BTreeMap<i64, (WindowBounds, Groups)> {
    let mut emitted = BTreeMap::<i64, (WindowBounds, Groups)>::new();
    while let Some(part) = windowed.early().unwrap() {
        let window = part.window.unwrap();
        if part.first {
            assert!(emitted.last_key_value().is_none_or(|(&end, _)| end < window.end));
            emitted.insert(window.end, (window, Groups::new()));
        }
        let (of, groups) = emitted.get_mut(&window.end).unwrap();
        assert_eq!(*of, window);
        groups.extend(rows_of(&part.columns));
    }
    emitted
}

fn rows_of(columns: &GroupColumns) -> Groups {
    let column = |column: &ArrayRef| column.as_primitive::<Int64Type>().values().to_vec();
    let values: Vec<Vec<i64>> = columns.states.iter().map(column).collect();
    let keys = column(&columns.keys[0]).into_iter().enumerate();
    keys.map(|(row, key)| (key, (values[0][row], values[1][row], values[2][row]))).collect()
}

/// What is saved is taken up by some owners of keys, saved by them, and put together again.
pub(crate) fn elsewhere(
    from: &mut Windowed,
    owners: u32,
    watermark: i64,
    disk: &Disks,
) -> Windowed {
    let (spec, windows) = (from.spec.clone(), from.windows);
    let new = || {
        let mut to = Windowed::new(&spec, windows);
        if let Some(disk) = disk {
            to.slices().spill_to(disk.clone(), None);
        }
        to
    };
    let saved = |from: &mut Windowed| {
        let mut all = vec![];
        from.save(SaveRound::default(), |key, part| {
            all.push((key, groups_of(part, spec.keys.len())?));
            Ok::<_, StateError>(())
        })
        .unwrap();
        (all, from.early_emitted())
    };
    let (parts, early) = saved(from);
    assert_eq!((&parts, &early), (&saved(from).0, &from.early_emitted()), "it stays as it is");
    let mut partitioner = Partitioner::in_blocks(owners);
    let mut split = RowsByOwner::default();
    let (mut all, mut of_all) = (vec![], BTreeMap::new());
    for owner in 0..owners {
        let mut one = new();
        for (key, part) in &parts {
            partitioner.split(part, &mut split).unwrap();
            if split.rows(owner) > 0 {
                one.load(*key, &split.select(owner, part).unwrap()).unwrap();
            }
        }
        one.resume_at(watermark);
        one.load_early(&early.iter().copied().collect());
        if disk.is_some() && owner % 2 == 0 {
            one.slices().spill_all();
        }
        let (parts, early) = saved(&mut one);
        all.extend(parts);
        for (end, latest) in early {
            *of_all.entry(end).or_insert(true) &= latest;
        }
    }
    let mut to = new();
    all.iter().for_each(|(key, part)| to.load(*key, part).unwrap());
    to.resume_at(watermark);
    to.load_early(&of_all);
    to
}

/// Groups that stay in memory are saved: while there is room for copies, without room, and when
/// nothing has changed.
pub(crate) fn copies_without_room_are_on_the_disk(windowed: &mut Windowed) {
    let disk = SimDisk::new(SimDiskOptions::default());
    windowed.slices().spill_to(disk.clone(), None);
    let keys = windowed.spec.keys.len();
    let mut saved = |budget, round, recorded| {
        windowed.set_budget(budget);
        let (mut all, mut bytes) = (vec![], 0);
        let kept = windowed.save(SaveRound { round, recorded }, |_, groups| {
            bytes += groups.bytes();
            all.push(groups);
            Ok::<_, StateError>(())
        });
        kept.unwrap();
        (all, bytes)
    };
    let read = |all: Vec<SavedGroups>| -> Vec<GroupColumns> {
        all.into_iter().map(|groups| groups_of(groups, keys).unwrap()).collect()
    };
    let (held, bytes) = saved(usize::MAX, 1, None);
    assert!(!held.is_empty() && disk.files() == 0);
    let (written, few) = saved(0, 2, None);
    assert!(disk.files() == 1 && few * 10 < bytes, "{few} of {bytes} bytes");
    assert_eq!(read(written), read(held));
    assert_eq!(disk.files(), 0, "a copy is gone with its checkpoint");
    let (unchanged, _) = saved(0, 3, Some(2));
    let is_unchanged = |groups: &SavedGroups| matches!(groups, SavedGroups::Unchanged { .. });
    assert!(!unchanged.is_empty() && unchanged.iter().all(is_unchanged), "{unchanged:?}");
    assert_eq!(disk.files(), 0);
}

#[test]
fn a_running_window_is_copied_to_the_disk_where_there_is_no_room() {
    let windows = Windows::cumulating(100, 10, 0).unwrap();
    let mut windowed = Windowed::new(&spec(None), Some(windows));
    (0..2_000).for_each(|group| add(windowed.slices(), windows.slice_key(0), (group, 1)));
    let mut triggered = vec![];
    trigger(&mut windowed, 10, &mut triggered);
    assert!(triggered.len() == 1 && windowed.slices().is_empty());
    copies_without_room_are_on_the_disk(&mut windowed);
}

/// Where groups go that do not fit, if they may.
pub(crate) type Disks = Option<Arc<SimDisk>>;

fn kinds() -> impl Strategy<Value = Windows> {
    let hop = (1i64..40, 1i64..15).prop_map(|(size, slide)| (size, slide, false));
    let cumulate = (1i64..8, 1i64..8).prop_map(|(steps, step)| (steps * step, step, true));
    (prop_oneof![2 => hop, 1 => cumulate], -20i64..20).prop_map(|((size, slide, grow), offset)| {
        if grow {
            Windows::cumulating(size, slide, offset).unwrap()
        } else {
            Windows::hopping(size, slide, offset).unwrap()
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn windows_equal_brute_force(
        windows in kinds(),
        delay in 0i64..12,
        steps in prop::collection::vec((-3i64..9, 0i64..25, 0i64..6, -9i64..9), 0..80),
        hash in any::<bool>(),
        spills in any::<bool>(),
        owners in 1u32..4,
    ) {
        let spec = spec(hash.then_some(KeyMode::Hash));
        let mut windowed = Windowed::new(&spec, Some(windows));
        let disk = SimDisk::new(SimDiskOptions::default());
        if spills {
            windowed.slices().spill_to(disk.clone(), None);
        }
        let mut expected = BTreeMap::<i64, (WindowBounds, Groups)>::new();
        let (mut latest, mut watermark, mut triggered) = (0, i64::MIN, vec![]);
        let (mut emitted, mut fired) = (BTreeMap::new(), i64::MIN);
        for (ahead, behind, group, value) in steps {
            latest += ahead.max(0);
            let (time, row) = (latest - behind, (group, value));
            let slice = windows.slice_start(time);
            for end in windows.ends_of(slice, watermark) {
                let window = windows.window_at(end);
                add_to(&mut expected.entry(end).or_insert((window, Groups::new())).1, row);
            }
            match windows.place(time, watermark) {
                RowPlace::Slice(start) => add(windowed.slices(), windows.slice_key(start), row),
                RowPlace::Windows => windows.ends_of(slice, watermark).for_each(|end| {
                    add(windowed.slices(), windows.window_key(end), row);
                }),
                RowPlace::Late => {}
            }
            watermark = watermark.max(latest - delay);
            if spills && value % 4 == 0 {
                windowed.slices().spill_all();
            }
            // Other workers may hold windows back for any time.
            if ahead < 0 {
                trigger(&mut windowed, watermark, &mut triggered);
                fired = watermark;
            }
            if value == 5 {
                let disk = spills.then(|| disk.clone());
                windowed = elsewhere(&mut windowed, owners, fired, &disk);
            }
            if ahead == -2 {
                let done = triggered.last().map_or(i64::MIN, |(window, _)| window.end);
                let mut open = expected.clone().split_off(&done.saturating_add(1));
                open.retain(|end, groups| emitted.get(end) != Some(groups));
                let latest = look(&mut windowed);
                prop_assert_eq!(&latest, &open);
                emitted.extend(latest);
                prop_assert!(look(&mut windowed).is_empty(), "nothing has come since");
            }
        }
        trigger(&mut windowed, i64::MAX, &mut triggered);
        prop_assert_eq!(triggered, expected.into_values().collect::<Vec<_>>());
        prop_assert!(windowed.slices().is_empty() && disk.files() == 0);
    }
}

#[test]
fn a_window_on_its_way_out_is_not_saved() {
    let mut windowed = Windowed::new(&spec(None), Windows::tumbling(10, 0));
    add(windowed.slices(), 0, (1, 1));
    assert!(windowed.trigger(10).unwrap().is_some());
    let refused = windowed.save(SaveRound::default(), |_, _| Ok::<_, StateError>(()));
    assert!(matches!(refused, Err(StateError::BeingDrained)));
    assert!(windowed.trigger(10).unwrap().is_none());
    windowed.save(SaveRound::default(), |_, _| Err(StateError::BeingDrained)).unwrap();
}

#[test]
fn what_no_window_needs_any_more_is_gone() {
    let windows = Windows::hopping(10, 2, 0).unwrap();
    let mut windowed = Windowed::new(&spec(None), Some(windows));
    let mut triggered = vec![];
    for time in 0..1_000 {
        add(windowed.slices(), windows.slice_key(windows.slice_start(time)), (1, 1));
        trigger(&mut windowed, time, &mut triggered);
        assert!(windowed.slices().len() <= 6, "{} slices", windowed.slices().len());
    }
    assert!(triggered.iter().skip(4).all(|(_, groups)| groups[&1] == (10, 1, 10)), "{triggered:?}");
    let windows = Windows::cumulating(1_000, 1, 0).unwrap();
    let mut windowed = Windowed::new(&spec(None), Some(windows));
    triggered.clear();
    for time in 0..1_000 {
        add(windowed.slices(), windows.slice_key(time), (1, 1));
        trigger(&mut windowed, time + 1, &mut triggered);
        assert!(windowed.slices().is_empty(), "what was is in the running slice");
    }
    let counts: Vec<i64> = triggered.iter().map(|(_, groups)| groups[&1].2).collect();
    assert_eq!(counts, (1..=1_000).collect::<Vec<_>>());
    assert!(windowed.bytes() < 1 << 20);
}

#[test]
fn looking_at_many_windows_looks_at_few_slices() {
    let windows = Windows::tumbling(1, 0).unwrap();
    let mut windowed = Windowed::new(&spec(None), Some(windows));
    (0..20_000).for_each(|time| add(windowed.slices(), windows.slice_key(time), (1, 1)));
    assert_eq!(look(&mut windowed).len(), 20_000);
    assert_eq!(windowed.slices().len(), 20_000, "nothing is taken out");
    add(windowed.slices(), windows.slice_key(7), (1, 1));
    let latest = look(&mut windowed);
    assert_eq!(latest.values().map(|(_, groups)| groups[&1].2).collect::<Vec<_>>(), [2]);
}

#[test]
fn early_results_of_triggered_windows_are_forgotten() {
    let windows = Windows::hopping(10, 2, 0).unwrap();
    let mut windowed = Windowed::new(&spec(None), Some(windows));
    let mut triggered = vec![];
    for time in 0..1_000 {
        add(windowed.slices(), windows.slice_key(windows.slice_start(time)), (1, 1));
        trigger(&mut windowed, time, &mut triggered);
        assert_eq!(look(&mut windowed).len(), 5);
        assert!(windowed.early.emitted.len() <= 6);
    }
    assert!(windowed.bytes() < 1 << 20);
}

#[test]
fn firing_many_windows_looks_at_few_slices() {
    let windows = Windows::tumbling(1, 0).unwrap();
    let mut windowed = Windowed::new(&spec(None), Some(windows));
    (0..20_000).for_each(|time| add(windowed.slices(), windows.slice_key(time), (1, 1)));
    let mut triggered = vec![];
    trigger(&mut windowed, i64::MAX, &mut triggered);
    assert_eq!(triggered.len(), 20_000);
}

#[test]
fn without_windows_all_fires_at_the_end() {
    let mut windowed = Windowed::new(&spec(None), None);
    assert_eq!(windowed.trigger(i64::MAX).unwrap(), None);
    add(windowed.slices(), ALL, (7, 3));
    assert_eq!(windowed.trigger(i64::MAX - 1).unwrap(), None);
    let triggered = windowed.trigger(i64::MAX).unwrap().unwrap();
    assert_eq!((triggered.window, triggered.first, triggered.columns.rows()), (None, true, 1));
    assert_eq!(windowed.trigger(i64::MAX).unwrap(), None);
}
