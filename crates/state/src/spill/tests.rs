//! State that is many times its budget against a map of all rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, DictionaryArray, Int64Array, StringViewArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Int32Type, Int64Type};

use crate::aggregates::{avg, count, max, sum};
use crate::sim::{SimDisk, SimDiskOptions};
use crate::{
    GroupBy, GroupColumns, KeyMode, Partitioner, RowsByOwner, Slice, StateError, StateOptions,
    Windowed, Windows,
};

/// Rows of a batch.
const ROWS: i64 = 256;

/// What keys look like, and what a slice makes of them.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Keys {
    /// Side by side: an array.
    Dense,
    /// Far apart: a hash table.
    Sparse,
    Views,
    Dictionary,
    Two,
}

const KEYS: [Keys; 5] = [Keys::Dense, Keys::Sparse, Keys::Views, Keys::Dictionary, Keys::Two];

/// By key and window: sum, greatest value, rows.
type Groups = BTreeMap<(String, i64), (i64, i64, i64)>;

impl Keys {
    fn columns(self, keys: &[i64]) -> Vec<ArrayRef> {
        let numbers = |by: i64| -> ArrayRef {
            Arc::new(keys.iter().map(|key| (*key != 3).then_some(key * by)).collect::<Int64Array>())
        };
        let text =
            || keys.iter().map(|key| (*key != 3).then(|| format!("a long key, number {key}")));
        match self {
            Keys::Dense => vec![numbers(1)],
            Keys::Sparse => vec![numbers(1_000_003)],
            Keys::Views => vec![Arc::new(text().collect::<StringViewArray>())],
            Keys::Dictionary => {
                let text: Vec<Option<String>> = text().collect();
                let text = text.iter().map(Option::as_deref);
                vec![Arc::new(text.collect::<DictionaryArray<Int32Type>>())]
            }
            Keys::Two => vec![numbers(1), Arc::new(text().collect::<StringViewArray>())],
        }
    }

    fn spec(self, budget_bytes: usize) -> Arc<GroupBy> {
        let of = DataType::Int64;
        let keys = self.columns(&[]).iter().map(|key| key.data_type().clone()).collect();
        let aggregates = [sum(&of), max(&of)].into_iter().flatten().chain([count()]).collect();
        let key_mode = (self == Keys::Sparse).then_some(KeyMode::Hash);
        let options = StateOptions { budget_bytes, key_mode, ..StateOptions::default() };
        Arc::new(GroupBy { keys, aggregates, options })
    }
}

/// Adds what a part has, whose keys no part had before.
fn into_buffer(columns: &GroupColumns, window: i64, groups: &mut Groups) {
    let text: Vec<ArrayRef> =
        columns.keys.iter().map(|key| cast(key, &DataType::Utf8).unwrap()).collect();
    let of = |at: usize, row| columns.states[at].as_primitive::<Int64Type>().value(row);
    for row in 0..columns.rows() {
        let keys = text.iter().map(|key| key.as_string::<i32>());
        let key = keys.map(|key| if key.is_null(row) { "NULL" } else { key.value(row) });
        let key = key.collect::<Vec<_>>().join(", ");
        let before = groups.insert((key, window), (of(0, row), of(1, row), of(2, row)));
        assert_eq!(before, None, "a group is given out once");
    }
}

/// A batch of rows that look random.
fn batch(keys: Keys, of: i64, number: i64) -> (Vec<ArrayRef>, Vec<ArrayRef>, Vec<(i64, i64)>) {
    let row = |at: i64| ((number * ROWS + at).wrapping_mul(7_919) % of, at % 23 - 11);
    let rows: Vec<(i64, i64)> = (0..ROWS).map(row).collect();
    let (groups, values): (Vec<i64>, Vec<i64>) = rows.iter().copied().unzip();
    let values: ArrayRef = Arc::new(Int64Array::from(values));
    (keys.columns(&groups), vec![values], rows)
}

/// Groups `batches` batches of `of` keys in windows of ten batches, of which each begins in the
/// middle of the one before; and checks all along that nothing holds more than the budget.
fn run(
    keys: Keys,
    of: i64,
    batches: i64,
    budget: usize,
    disk: Arc<SimDisk>,
) -> Result<Groups, StateError> {
    let windows = Windows::hopping(10, 5, 0).unwrap();
    let mut windowed = Windowed::new(&keys.spec(budget), Some(windows));
    windowed.slices().spill_to(disk, None);
    let mut groups = Groups::new();
    for number in 0..=batches {
        windowed.set_budget(budget);
        if number < batches {
            let (key, value, _) = batch(keys, of, number);
            let args = [value.clone(), value, vec![]];
            let slice = windows.slice_key(windows.slice_start(number));
            windowed.slices().update(slice, ROWS as usize, &key, &args)?;
        }
        let watermark = if number < batches { number - 3 } else { i64::MAX };
        while let Some(triggered) = windowed.trigger(watermark)? {
            into_buffer(&triggered.columns, triggered.window.unwrap().start, &mut groups);
            assert!(windowed.bytes() <= budget, "{} bytes of {budget}", windowed.bytes());
        }
        assert!(windowed.bytes() <= budget, "{} bytes of {budget}", windowed.bytes());
    }
    let spilled = windowed.slices().spilled();
    assert!(spilled.runs > 0 && spilled.bytes > 0 && spilled.read_bytes > 0, "{spilled:?}");
    assert!(windowed.slices().is_empty());
    Ok(groups)
}

fn expected(keys: Keys, of: i64, batches: i64) -> Groups {
    let mut groups = Groups::new();
    let name = |group: i64| match (group, keys) {
        (3, Keys::Two) => "NULL, NULL".into(),
        (3, _) => "NULL".into(),
        (_, Keys::Dense) => group.to_string(),
        (_, Keys::Sparse) => (group * 1_000_003).to_string(),
        (_, Keys::Views | Keys::Dictionary) => format!("a long key, number {group}"),
        (_, Keys::Two) => format!("{group}, a long key, number {group}"),
    };
    for number in 0..batches {
        for (group, value) in batch(keys, of, number).2 {
            let first = number.div_euclid(5) * 5;
            for window in [first - 5, first] {
                let of = groups.entry((name(group), window)).or_insert((0, i64::MIN, 0));
                *of = (of.0 + value, of.1.max(value), of.2 + 1);
            }
        }
    }
    groups
}

#[test]
fn windows_larger_than_the_budget_equal_a_map() {
    for keys in KEYS {
        let disk = SimDisk::new(SimDiskOptions::default());
        let groups = run(keys, 5_000, 60, 96 << 10, disk.clone()).unwrap();
        assert!(groups == expected(keys, 5_000, 60), "{keys:?}");
        assert_eq!(disk.files(), 0, "files go when they were read");
    }
}

#[test]
fn what_is_split_and_still_does_not_fit_is_split_again() {
    let (budget, of) = (128 << 10, 150_000);
    let spec = Keys::Sparse.spec(budget);
    let disk = SimDisk::new(SimDiskOptions::default());
    let mut windowed = Windowed::new(&spec, None);
    windowed.slices().spill_to(disk.clone(), None);
    for number in 0..of / ROWS + 1 {
        let (key, value, _) = batch(Keys::Sparse, of, number);
        let args = [value.clone(), value, vec![]];
        windowed.slices().update(0, ROWS as usize, &key, &args).unwrap();
        assert!(windowed.bytes() <= budget);
    }
    let written = windowed.slices().spilled().bytes;
    let mut rows = 0;
    while let Some(triggered) = windowed.trigger(i64::MAX).unwrap() {
        rows += triggered.columns.rows();
        assert!(windowed.bytes() <= budget, "{} bytes of {budget}", windowed.bytes());
    }
    let spilled = windowed.slices().spilled();
    assert_eq!(rows as i64, of.min((of / ROWS + 1) * ROWS), "each key once");
    assert!(spilled.bytes > written * 5 / 2, "piles were split again: {spilled:?}, {written}");
    assert_eq!(disk.files(), 0);
}

#[test]
fn a_disk_that_fails_is_an_error_and_never_a_wrong_row() {
    let good = SimDisk::new(SimDiskOptions::default());
    run(Keys::Two, 800, 25, 96 << 10, good.clone()).unwrap();
    let reads = good.reads();
    assert!(reads > 20, "{reads} reads");
    for number in (0..reads).step_by(reads as usize / 20) {
        let fails = SimDiskOptions { fails_at: Some(number), ..SimDiskOptions::default() };
        let error = run(Keys::Two, 800, 25, 96 << 10, SimDisk::new(fails)).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("state that does not fit memory cannot be read: "), "{text}");
        assert!(text.ends_with(": the device does not answer"), "{text}");
        let damages = SimDiskOptions { damages_at: Some(number), ..SimDiskOptions::default() };
        let disk = SimDisk::new(damages);
        let error = run(Keys::Two, 800, 25, 96 << 10, disk.clone()).unwrap_err();
        assert!(matches!(error, StateError::Damaged { .. }), "{error}");
        assert_eq!(disk.files(), 0, "files go with the state");
    }
    for bytes_max in [0, 1_000, 100_000] {
        let full = SimDiskOptions { bytes_max: Some(bytes_max), ..SimDiskOptions::default() };
        let error = run(Keys::Two, 800, 25, 96 << 10, SimDisk::new(full)).unwrap_err();
        assert!(error.to_string().contains("cannot be written: simulated file"), "{error}");
    }
}

#[test]
fn remote_groups_stay_until_they_are_taken() {
    for keys in KEYS {
        let (of, own, batches) = (2_000, 1, 40);
        let mut windowed = Windowed::new(&keys.spec(1 << 30), None);
        let disk = SimDisk::new(SimDiskOptions::default());
        windowed.slices().spill_to(disk, Some((own, Partitioner::new(3))));
        // The leaders of the others.
        let mut others = Windowed::new(&keys.spec(1 << 30), None);
        let mut partitioner = Partitioner::new(3);
        for number in 0..batches {
            let (key, value, _) = batch(keys, of, number);
            let args = [value.clone(), value, vec![]];
            windowed.slices().update(0, ROWS as usize, &key, &args).unwrap();
            windowed.slices().spill_all();
            if number % 4 == 3 {
                let give = |_: i64, split: &RowsByOwner, groups: &GroupColumns| {
                    for other in [0, 2] {
                        let groups = split.select(other, groups)?;
                        others.slices().merge(0, &groups.keys, &groups.states)?;
                    }
                    Ok::<_, StateError>(())
                };
                windowed.slices().take_remote_groups(own, &mut partitioner, give).unwrap();
                let left = windowed.slices().get(0).map_or(0, Slice::groups);
                assert_eq!(left, 0, "what is own is on disk");
            }
        }
        let mut groups = Groups::new();
        for leader in [&mut windowed, &mut others] {
            while let Some(part) = leader.trigger(i64::MAX).unwrap() {
                into_buffer(&part.columns, 0, &mut groups);
            }
        }
        let mut all = Groups::new();
        for ((key, window), (sum, most, rows)) in expected(keys, of, batches) {
            // Each row is in two windows, one of which begins at an odd five.
            if window.rem_euclid(10) == 0 {
                let of = all.entry((key, 0)).or_insert((0, i64::MIN, 0));
                *of = (of.0 + sum, of.1.max(most), of.2 + rows);
            }
        }
        assert!(groups == all, "{keys:?}");
    }
}

#[test]
fn groups_of_others_may_exceed_the_budget_and_not_what_the_job_has() {
    for keys in KEYS {
        let fill = |limit| {
            let mut windowed = Windowed::new(&keys.spec(limit), None);
            let disk = SimDisk::new(SimDiskOptions::default());
            windowed.slices().spill_to(disk, Some((1, Partitioner::new(3))));
            windowed.set_budget(1 << 10);
            let mut update = |number| {
                let (key, value, _) = batch(keys, 2_000, number);
                let args = [value.clone(), value, vec![]];
                windowed.slices().update(0, ROWS as usize, &key, &args)
            };
            (0..40).try_for_each(&mut update)
        };
        fill(1 << 30).unwrap();
        let error = fill(16 << 10).unwrap_err();
        assert!(matches!(error, StateError::Budget { .. }), "{keys:?}: {error}");
    }
}

#[test]
fn a_batch_that_has_to_wait_for_the_disk_counts_once() {
    let budget = 600 << 10;
    let options = StateOptions { budget_bytes: budget, ..StateOptions::default() };
    let aggregates = avg(&DataType::Int64).into_iter().collect();
    let spec = Arc::new(GroupBy { keys: vec![DataType::Int64], aggregates, options });
    let mut windowed = Windowed::new(&spec, None);
    windowed.slices().spill_to(Arc::new(SimDisk::default()), None);
    let mut update = |keys: Vec<i64>, value: i64| {
        let values: ArrayRef = Arc::new(Int64Array::from(vec![value; keys.len()]));
        let (rows, keys): (_, ArrayRef) = (keys.len(), Arc::new(Int64Array::from(keys)));
        windowed.slices().update(0, rows, &[keys], &[vec![values]]).unwrap();
    };
    update((0..4_096).collect(), 0);
    // The range grows in the middle of the batch, beyond what is left of the budget.
    update((0..100).chain(60_000..60_100).collect(), 30);
    assert!(windowed.slices().spilled().runs > 0, "it did not fit");
    let mut means = BTreeMap::new();
    while let Some(triggered) = windowed.trigger(i64::MAX).unwrap() {
        let keys = triggered.columns.keys[0].as_primitive::<Int64Type>().values();
        let values = triggered.columns.states[0].as_primitive::<Float64Type>().values();
        means.extend(keys.iter().copied().zip(values.iter().copied()));
    }
    let expected = (0..4_096).map(|key| (key, if key < 100 { 15.0 } else { 0.0 }));
    assert_eq!(means, expected.chain((60_000..60_100).map(|key| (key, 30.0))).collect());
}
