//! Rankings of random rows against sorted lists.

use arrow::array::{Array, AsArray, Int64Array, TimestampMillisecondArray};
use arrow::datatypes::{
    DataType, Field, Int64Type, Schema, TimeUnit, TimestampMillisecondType, UInt64Type,
};

use super::*;
use crate::operators::keyed::fixtures::Numbers;

/// A key, a value to order by, a number of its own, and the end of the window.
type Row = (Option<i64>, Option<i64>, i64, i64);

fn fields() -> Vec<Field> {
    let end = DataType::Timestamp(TimeUnit::Millisecond, None);
    let ints = ["key", "value", "number"].map(|name| Field::new(name, DataType::Int64, true));
    ints.into_iter().chain([Field::new("end", end, true)]).collect()
}

fn ranking(keyed: bool, down: bool, limit: Option<usize>) -> Ranking {
    let rank = Field::new("rank", DataType::UInt64, false);
    Ranking {
        input: Arc::new(Schema::new(fields())),
        keys: if keyed { vec![0] } else { vec![] },
        window_end: 3,
        order: vec![(1, SortOptions { descending: down, nulls_first: down })],
        limit,
        schema: Arc::new(Schema::new(fields().into_iter().chain([rank]).collect::<Vec<_>>())),
    }
}

fn batch(rows: &[Row]) -> RecordBatch {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from_iter(rows.iter().map(|row| row.0))),
        Arc::new(Int64Array::from_iter(rows.iter().map(|row| row.1))),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.2))),
        Arc::new(TimestampMillisecondArray::from_iter_values(rows.iter().map(|row| row.3))),
    ];
    RecordBatch::try_new(Arc::new(Schema::new(fields())), columns).unwrap()
}

fn rows_of(batch: &RecordBatch) -> Vec<(Row, u64)> {
    let value = |at: usize, row: usize| {
        let column = batch.column(at).as_primitive::<Int64Type>();
        column.is_valid(row).then(|| column.value(row))
    };
    let end = batch.column(3).as_primitive::<TimestampMillisecondType>();
    let rank = batch.column(4).as_primitive::<UInt64Type>();
    (0..batch.num_rows())
        .map(|row| {
            let number = value(2, row).unwrap();
            ((value(0, row), value(1, row), number, end.value(row)), rank.value(row))
        })
        .collect()
}

fn expected(rows: &[Row], keyed: bool, down: bool, limit: Option<usize>) -> Vec<(Row, u64)> {
    let mut groups: BTreeMap<(i64, Option<i64>), Vec<Row>> = BTreeMap::new();
    for row in rows {
        groups.entry((row.3, row.0.filter(|_| keyed))).or_default().push(*row);
    }
    let mut all = vec![];
    for mut rows in groups.into_values() {
        // NULL is the greatest; rows of equal value are in the order of key and number.
        rows.sort_by_key(|row| (row.0, row.2));
        rows.sort_by(|a, b| {
            let order = (a.1.is_none(), a.1).cmp(&(b.1.is_none(), b.1));
            if down { order.reverse() } else { order }
        });
        rows.truncate(limit.unwrap_or(usize::MAX));
        all.extend(rows.into_iter().zip(1..));
    }
    all.sort();
    all
}

#[test]
fn the_first_rows_of_each_window_are_given_out() {
    let mut numbers = Numbers(3);
    for round in 0..200 {
        let (keyed, down) = (round % 2 > 0, round % 3 > 0);
        let limit = [None, Some(1), Some(3), Some(40)][round % 4];
        let rows: Vec<Row> = (0..numbers.below(300))
            .map(|number| {
                let (key, value) = (numbers.below(5), numbers.below(12));
                let (key, value) = ((key > 0).then_some(key), (value > 0).then_some(value));
                (key, value, number, 10 * (1 + numbers.below(4)))
            })
            .collect();
        let mut state = ranking(keyed, down, limit).create();
        for part in rows.chunks(37) {
            state.push(0, batch(part)).unwrap();
        }
        let mut got = vec![];
        for watermark in [5, 20, 25, i64::MAX] {
            let rows_max = 1 + numbers.below(9) as usize;
            while let Some(batch) = state.advance(watermark, rows_max).unwrap() {
                let rows = rows_of(&batch);
                assert!(!rows.is_empty() && rows.len() <= rows_max);
                assert!(rows.iter().all(|(row, _)| row.3 <= watermark));
                got.extend(rows);
            }
        }
        got.sort();
        assert_eq!(got, expected(&rows, keyed, down, limit), "round {round}");
        assert_eq!(state.bytes(), 0, "nothing is left behind");
    }
}

#[test]
fn rows_that_cannot_be_first_are_thrown_away() {
    let mut numbers = Numbers(5);
    let mut state = ranking(true, true, Some(2)).create();
    let mut rows = vec![];
    let mut most = 0;
    for _ in 0..200 {
        let part: Vec<Row> = (0..500)
            .map(|_| (Some(numbers.below(50)), Some(numbers.below(1 << 30)), rows.len() as i64, 10))
            .collect();
        state.push(0, batch(&part)).unwrap();
        rows.extend(part);
        most = most.max(state.bytes());
    }
    assert!(most < 2 * (ROWS_MIN + 500) * 4 * size_of::<i64>(), "{most} bytes");
    let mut got = vec![];
    while let Some(batch) = state.advance(10, 64).unwrap() {
        got.extend(rows_of(&batch));
    }
    got.sort();
    assert_eq!(got, expected(&rows, true, true, Some(2)));
}
