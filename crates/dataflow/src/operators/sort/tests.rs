//! Sorts of random rows against a plain sort.

use arrow::array::{Array, AsArray, Float64Array, Int64Array, StringViewArray};
use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, Field, Float64Type, Int64Type, Schema};
use state::sim::{SimDisk, SimDiskOptions};

use super::*;
use crate::job::RowRange;
use crate::operators::keyed::fixtures::Numbers;

const SEEDS: u64 = 200;

/// A key with NULLs, another key, a text that is not a key, and the number of the row.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    key: Option<i64>,
    other: f64,
    text: String,
    number: i64,
}

fn spec(numbers: &mut Numbers) -> Sort {
    let fields = [
        Field::new("key", DataType::Int64, true),
        Field::new("other", DataType::Float64, false),
        Field::new("text", DataType::Utf8View, false),
        Field::new("number", DataType::Int64, false),
    ];
    let mut options =
        || SortOptions { descending: numbers.below(2) == 0, nulls_first: numbers.below(2) == 0 };
    Sort {
        schema: Arc::new(Schema::new(fields.to_vec())),
        order: vec![(0, options()), (1, options())],
        range: RowRange::default(),
    }
}

fn random_rows(numbers: &mut Numbers, count: i64) -> Vec<Row> {
    let row = |number| Row {
        key: (numbers.below(5) > 0).then(|| numbers.below(7) - 3),
        other: [0.0, -0.0, 1.5, f64::NAN, f64::INFINITY, -2.0][numbers.below(6) as usize],
        text: "text".repeat(numbers.below(9) as usize),
        number,
    };
    (0..count).map(row).collect()
}

fn batch(spec: &Sort, rows: &[Row]) -> RecordBatch {
    RecordBatch::try_new(
        spec.schema.clone(),
        vec![
            Arc::new(rows.iter().map(|row| row.key).collect::<Int64Array>()),
            Arc::new(rows.iter().map(|row| Some(row.other)).collect::<Float64Array>()),
            Arc::new(StringViewArray::from_iter_values(rows.iter().map(|row| &row.text))),
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.number))),
        ],
    )
    .unwrap()
}

/// Rows cut at random into batches.
fn batches(spec: &Sort, rows: &[Row], numbers: &mut Numbers) -> Vec<RecordBatch> {
    let mut rest = rows;
    let mut cut = vec![];
    while !rest.is_empty() {
        let (first, others) = rest.split_at((1 + numbers.below(40) as usize).min(rest.len()));
        cut.push(batch(spec, first));
        rest = others;
    }
    cut
}

fn rows_of(batch: &RecordBatch) -> Vec<Row> {
    let keys = batch.column(0).as_primitive::<Int64Type>();
    let row = |at: usize| Row {
        key: keys.is_valid(at).then(|| keys.value(at)),
        other: batch.column(1).as_primitive::<Float64Type>().value(at),
        text: batch.column(2).as_string_view().value(at).to_owned(),
        number: batch.column(3).as_primitive::<Int64Type>().value(at),
    };
    (0..batch.num_rows()).map(row).collect()
}

/// Compares the keys of two rows: the zeros are equal, and NaN is the greatest.
fn compared(spec: &Sort, a: &Row, b: &Row) -> std::cmp::Ordering {
    let directed = |order: std::cmp::Ordering, at: usize| {
        if spec.order[at].1.descending { order.reverse() } else { order }
    };
    let nulls = |row: &Row| row.key.is_none() != spec.order[0].1.nulls_first;
    let number = |row: &Row| if row.other.is_nan() { f64::INFINITY } else { row.other };
    let by_number = |a: &Row, b: &Row| {
        let of_nan = a.other.is_nan().cmp(&b.other.is_nan());
        number(a).partial_cmp(&number(b)).unwrap().then(of_nan)
    };
    nulls(a).cmp(&nulls(b)).then(directed(a.key.cmp(&b.key), 0)).then(directed(by_number(a, b), 1))
}

fn plainly_sorted(spec: &Sort, mut rows: Vec<Row>) -> Vec<Row> {
    // Rows with equal keys are ordered by their other columns: by the bits of floats first.
    rows.sort_by(|a, b| {
        let others = |row: &Row| (row.text.clone(), row.number);
        compared(spec, a, b)
            .then(a.other.total_cmp(&b.other))
            .then_with(|| others(a).cmp(&others(b)))
    });
    rows
}

fn shown(rows: &[Row]) -> Vec<String> {
    rows.iter().map(|row| format!("{row:?}")).collect()
}

fn all(sorted: &mut Sorted) -> Vec<Row> {
    let mut rows = vec![];
    while let Some(batch) = sorted.next().unwrap() {
        assert!(batch.num_rows() > 0, "a batch has rows");
        rows.extend(rows_of(&batch));
    }
    rows
}

#[test]
fn streams_are_merged_as_a_plain_sort_has_them() {
    for seed in 0..SEEDS {
        let numbers = &mut Numbers(seed);
        let spec = spec(numbers);
        let order = Rc::new(Order::of(&spec));
        let streams = 1 + numbers.below(6) as usize;
        let rows_max = 1 + numbers.below(30) as usize;
        let count = numbers.below(400);
        let rows = random_rows(numbers, count);
        let mut queues: Vec<VecDeque<RecordBatch>> = vec![VecDeque::new(); streams];
        for (at, queue) in queues.iter_mut().enumerate() {
            let of = rows.iter().filter(|row| row.number as usize % streams == at).cloned();
            let of = plainly_sorted(&spec, of.collect());
            queue.extend(batches(&spec, &of, numbers));
        }
        let mut merge = Merge::new(order, streams, rows_max);
        let mut merged = vec![];
        loop {
            match merge.next().unwrap() {
                Merged::Needs(stream) => {
                    let next = queues[stream].pop_front();
                    merge.push(stream, next).unwrap();
                }
                Merged::Rows(batch) => {
                    assert!((1..=rows_max).contains(&batch.num_rows()), "seed {seed}");
                    merged.extend(rows_of(&batch));
                }
                Merged::End => break,
            }
        }
        assert_eq!(shown(&merged), shown(&plainly_sorted(&spec, rows)), "seed {seed}");
        assert_eq!(merge.bytes(), 0, "seed {seed}");
    }
}

#[test]
fn the_first_rows_are_those_of_a_plain_sort() {
    for seed in 0..SEEDS {
        let numbers = &mut Numbers(seed);
        let spec = spec(numbers);
        let order = Rc::new(Order::of(&spec));
        // Some have more rows than are gathered before any is dropped.
        let count = if seed % 20 == 0 { 30_000 } else { numbers.below(300) };
        let most = numbers.below(50) as usize;
        let rows = random_rows(numbers, count);
        let mut top = Top::new(order.clone(), most);
        for batch in batches(&spec, &rows, numbers) {
            top.push(batch).unwrap();
            assert!(top.gathered_rows() <= 8_192 + 40, "seed {seed}");
        }
        let mut runs = Runs::new(order, Some(most), 16, None);
        for batch in top.into_gathered() {
            runs.push(batch, usize::MAX).unwrap();
        }
        let mut expected = plainly_sorted(&spec, rows);
        expected.truncate(most);
        let first = all(&mut runs.sorted().unwrap());
        assert_eq!(shown(&first), shown(&expected), "seed {seed}");
    }
}

/// Spills to the end.
fn spill(runs: &mut Runs, share: usize) {
    let mut spilling = std::pin::pin!(runs.spill(share, || false));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    loop {
        if let std::task::Poll::Ready(spilled) = spilling.as_mut().poll(&mut context) {
            return spilled.unwrap();
        }
    }
}

#[test]
fn runs_on_a_disk_are_merged_within_a_small_share() {
    for seed in 0..4 {
        let numbers = &mut Numbers(seed);
        let spec = spec(numbers);
        let disk = SimDisk::new(SimDiskOptions::default());
        let most = (seed % 3 == 0).then_some(7_000);
        let share = 1 << 19;
        let mut runs =
            Runs::new(Rc::new(Order::of(&spec)), most, 64, Some(disk.clone() as Arc<dyn Disk>));
        let rows = random_rows(numbers, 60_000);
        for batch in batches(&spec, &rows, numbers) {
            runs.push(batch, share).unwrap();
            if runs.spills(share) {
                spill(&mut runs, share);
            }
            assert!(runs.bytes() < share, "seed {seed}: {}", runs.bytes());
        }
        let mut sorted = runs.sorted().unwrap();
        let mut expected = plainly_sorted(&spec, rows);
        expected.truncate(most.unwrap_or(usize::MAX));
        let mut peak = 0;
        let mut read = vec![];
        while let Some(batch) = sorted.next().unwrap() {
            peak = peak.max(sorted.bytes());
            read.extend(rows_of(&batch));
        }
        assert!(peak < share, "seed {seed}: {peak} bytes");
        assert!(shown(&read) == shown(&expected), "seed {seed}");
        let spilled = sorted.spilled();
        assert!(spilled.bytes > 0 && spilled.read_bytes > 0, "seed {seed}: {spilled:?}");
        drop(sorted);
        assert_eq!(disk.files(), 0, "seed {seed}");
    }
}

#[test]
fn a_range_is_cut_out_of_batches() {
    let numbers = &mut Numbers(1);
    let spec = spec(numbers);
    let rows = random_rows(numbers, 100);
    for (skip, fetch) in
        [(0, None), (0, Some(0)), (0, Some(1)), (30, Some(50)), (99, None), (100, Some(1))]
    {
        let mut cut = RowCut::of(RowRange { skip, fetch });
        let mut taken = vec![];
        for batch in batches(&spec, &rows, numbers) {
            taken.extend(cut.take(batch).iter().flat_map(rows_of));
        }
        let expected: Vec<Row> =
            rows.iter().skip(skip).take(fetch.unwrap_or(usize::MAX)).cloned().collect();
        assert_eq!(shown(&taken), shown(&expected));
        assert_eq!(cut.is_full(), fetch.is_some_and(|fetch| taken.len() == fetch));
    }
}

#[test]
fn a_range_of_a_range_is_one_range() {
    let rows: Vec<usize> = (0..20).collect();
    let of = |range: RowRange, rows: &[usize]| -> Vec<usize> {
        rows.iter().copied().skip(range.skip).take(range.fetch.unwrap_or(usize::MAX)).collect()
    };
    let ranges = || {
        let fetches = [None, Some(0), Some(1), Some(7), Some(30)];
        let all = [0, 1, 6, 25].into_iter();
        all.flat_map(move |skip| fetches.map(|fetch| RowRange { skip, fetch }))
    };
    for (first, second) in ranges().flat_map(|first| ranges().map(move |second| (first, second))) {
        let one_by_one = of(second, &of(first, &rows));
        assert_eq!(of(first.then(second), &rows), one_by_one, "{first:?}, {second:?}");
    }
}
