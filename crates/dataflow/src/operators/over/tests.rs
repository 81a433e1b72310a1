//! Frames over random rows against a look at all rows of the key for each row.

use arrow::array::{Array, AsArray, Int64Array, StringArray, TimestampMillisecondArray};
use arrow::datatypes::{
    DataType, Field, Float64Type, Int64Type, Schema, TimeUnit, TimestampMillisecondType,
};
use state::{Accumulator, Aggregate, Groups, Part, StateError, aggregates};

use super::*;
use crate::operators::keyed::fixtures::Numbers;

/// A key, a value, a number of its own, a time, and the end of the key's window.
type Row = (Option<i64>, Option<i64>, i64, i64, i64);

/// A row and what its frames hold.
type Expected = (Row, Vec<Option<i64>>);

const CALLS: [&str; 12] = [
    "count(*)",
    "count",
    "sum",
    "min",
    "max",
    "avg",
    "first",
    "last",
    "last not null",
    "third",
    "third not null",
    "times",
];

fn fields() -> Vec<Field> {
    let time = DataType::Timestamp(TimeUnit::Millisecond, None);
    let ints = ["key", "value", "number"].map(|name| Field::new(name, DataType::Int64, true));
    let times = ["time", "end"].map(|name| Field::new(name, time.clone(), true));
    ints.into_iter().chain(times).collect()
}

fn call(text: &str, frame: OverFrame) -> OverCall {
    let of = DataType::Int64;
    let (aggregate, args) = match text {
        "count(*)" => (aggregates::count(), vec![]),
        "count" => (aggregates::count_of(&of), vec![1]),
        "sum" => (aggregates::sum(&of).unwrap(), vec![1]),
        "min" => (aggregates::min(&of).unwrap(), vec![1]),
        "max" => (aggregates::max(&of).unwrap(), vec![1]),
        "avg" => (aggregates::avg(&of).unwrap(), vec![1]),
        "first" => (first_value(of, false), vec![1]),
        "last" => (last_value(of, false), vec![1]),
        "third" => (nth_value(of, 3, false), vec![1]),
        "third not null" => (nth_value(of, 3, true), vec![1]),
        "times" => (times(DataType::Timestamp(TimeUnit::Millisecond, None)), vec![3]),
        _ => (last_value(of, true), vec![1]),
    };
    OverCall { text: text.into(), aggregate, args, frame }
}

fn over(keyed: bool, calls: &[(&str, OverFrame)]) -> Over {
    let calls: Vec<OverCall> = calls.iter().map(|(text, frame)| call(text, *frame)).collect();
    let results = calls.iter().enumerate();
    let results = results
        .map(|(at, call)| Field::new(format!("call_{at}"), call.aggregate.output_type(), true));
    Over {
        input: Arc::new(Schema::new(fields())),
        keys: if keyed { vec![0] } else { vec![] },
        time: 3,
        ties: vec![3, 2, 1, 0, 4],
        window_end: None,
        schema: Arc::new(Schema::new(fields().into_iter().chain(results).collect::<Vec<_>>())),
        calls,
    }
}

fn batch(rows: &[Row]) -> RecordBatch {
    let times = |of: fn(&Row) -> i64| {
        Arc::new(TimestampMillisecondArray::from_iter_values(rows.iter().map(of)))
    };
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from_iter(rows.iter().map(|row| row.0))),
        Arc::new(Int64Array::from_iter(rows.iter().map(|row| row.1))),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.2))),
        times(|row| row.3),
        times(|row| row.4),
    ];
    RecordBatch::try_new(Arc::new(Schema::new(fields())), columns).unwrap()
}

fn given(batch: &RecordBatch) -> Vec<Expected> {
    let value = |at: usize, row: usize| {
        let column = batch.column(at);
        column.is_valid(row).then(|| match column.data_type() {
            DataType::Int64 => column.as_primitive::<Int64Type>().value(row),
            DataType::Float64 => column.as_primitive::<Float64Type>().value(row).to_bits() as i64,
            _ => column.as_primitive::<TimestampMillisecondType>().value(row),
        })
    };
    let all = 0..batch.num_rows();
    all.map(|row| {
        let own = |at| value(at, row).unwrap();
        let calls = (5..batch.num_columns()).map(|at| value(at, row)).collect();
        ((value(0, row), value(1, row), own(2), own(3), own(4)), calls)
    })
    .collect()
}

/// The rows of a frame, of those of a key in their order.
fn held<'a>(frame: &OverFrame, rows: &'a [Row], at: usize) -> &'a [Row] {
    let (from, to) = match frame.unit {
        FrameUnit::Rows => {
            let from = frame.from.map_or(0, |from| at.saturating_sub(from as usize));
            (from, (at + 1).saturating_sub(frame.to as usize))
        }
        FrameUnit::Range => {
            let time = rows[at].3;
            let begins = |row: &Row| frame.from.is_none_or(|from| row.3 >= time - from);
            let from = rows.iter().position(begins).unwrap_or(rows.len());
            (from, rows.iter().filter(|row| row.3 <= time - frame.to).count())
        }
    };
    if from < to { &rows[from..to] } else { &[] }
}

fn expected(keyed: bool, calls: &[(&str, OverFrame)], rows: &[Row]) -> Vec<Expected> {
    let mut rows = rows.to_vec();
    rows.sort_by_key(|row| (row.0.filter(|_| keyed), row.3, row.2, row.1, row.0));
    let mut all = vec![];
    for rows in rows.chunk_by(|a, b| !keyed || a.0 == b.0) {
        for (at, row) in rows.iter().enumerate() {
            let results = calls.iter().map(|(call, frame)| {
                let held = held(frame, rows, at);
                let values: Vec<i64> = held.iter().filter_map(|row| row.1).collect();
                let some = (!values.is_empty()).then_some(());
                let sum = values.iter().sum::<i64>();
                match *call {
                    "count(*)" => Some(held.len() as i64),
                    "count" => Some(values.len() as i64),
                    "sum" => some.map(|()| sum),
                    "min" => values.iter().min().copied(),
                    "max" => values.iter().max().copied(),
                    "avg" => some.map(|()| (sum as f64 / values.len() as f64).to_bits() as i64),
                    "first" => held.first().and_then(|row| row.1),
                    "last" => held.last().and_then(|row| row.1),
                    "third" => held.get(2).and_then(|row| row.1),
                    "third not null" => values.get(2).copied(),
                    "times" => Some(held.chunk_by(|a, b| a.3 == b.3).count() as i64),
                    _ => values.last().copied(),
                }
            });
            all.push((*row, results.collect()));
        }
    }
    all.sort();
    all
}

fn frame(numbers: &mut Numbers) -> OverFrame {
    let unit = if numbers.below(2) == 0 { FrameUnit::Rows } else { FrameUnit::Range };
    let reach = [1, 3, 17, 100][numbers.below(4) as usize];
    let from = (numbers.below(4) > 0).then(|| numbers.below(reach));
    let to = if numbers.below(3) > 0 { 0 } else { numbers.below(reach) };
    OverFrame { unit, from, to }
}

#[test]
fn each_row_has_what_its_frames_hold() {
    let mut numbers = Numbers(11);
    let mut rows_given = 0;
    for round in 0..600 {
        let keyed = round % 4 > 0;
        let calls: Vec<(&str, OverFrame)> = (0..1 + numbers.below(4))
            .map(|_| (CALLS[numbers.below(CALLS.len() as i64) as usize], frame(&mut numbers)))
            .collect();
        let (keys, spread) = (1 + numbers.below(6), [2, 20, 60][round % 3]);
        let mut state = over(keyed, &calls).create();
        let (mut all, mut got) = (vec![], vec![]);
        let mut watermark = -50;
        for step in 0..30 {
            let rows: Vec<Row> = (0..numbers.below(25))
                .map(|_| {
                    let (key, value) = (numbers.below(keys), numbers.below(9));
                    let (key, value) = ((key > 0).then_some(key), (value > 0).then_some(value));
                    // Some rows are equal in all columns.
                    let number = numbers.below(30);
                    (key, value, number, watermark + numbers.below(spread), 0)
                })
                .collect();
            if !rows.is_empty() {
                state.push(0, batch(&rows)).unwrap();
            }
            all.extend(rows);
            let next = if step == 29 { i64::MAX } else { watermark + numbers.below(20) };
            let rows_max = 1 + numbers.below(9) as usize;
            let mut last = std::collections::BTreeMap::new();
            while let Some(batch) = state.advance(next, rows_max).unwrap() {
                let rows = given(&batch);
                assert!(!rows.is_empty() && rows.len() <= rows_max);
                for (row, _) in &rows {
                    assert!(watermark <= row.3 && row.3 < next);
                    let before = last.insert(row.0.filter(|_| keyed), row.3);
                    assert!(before.is_none_or(|before| before <= row.3), "the order of time");
                }
                got.extend(rows);
            }
            watermark = next;
        }
        got.sort();
        rows_given += got.len();
        assert_eq!(got, expected(keyed, &calls, &all), "round {round}: {calls:?}");
        assert_eq!(state.bytes(), 0, "nothing is left behind");
    }
    assert!(rows_given > 150_000, "too tame: {rows_given}");
}

/// Bytes after each of `steps` steps of 100 rows, one every tick, of keys that `key` makes of their
/// number.
fn bytes(spec: &Over, steps: i64, key: impl Fn(i64) -> i64) -> Vec<usize> {
    let mut state = spec.create();
    let of = |step: i64| {
        let rows: Vec<Row> = (step * 100..(step + 1) * 100)
            .map(|at| (Some(key(at)), Some(at % 7), at, at, (at / 500 + 1) * 500))
            .collect();
        state.push(0, batch(&rows)).unwrap();
        let mut rows = 0;
        while let Some(batch) = state.advance(step * 100, 64).unwrap() {
            rows += batch.num_rows();
        }
        assert_eq!(rows, if step == 0 { 0 } else { 100 });
        state.bytes()
    };
    (0..steps).map(of).collect()
}

fn bounded(bytes: &[usize]) {
    let half = bytes.len() / 2;
    let (early, late) = (bytes[..half].iter().max().unwrap(), bytes[half..].iter().max().unwrap());
    assert!(late * 2 < early * 3, "state grows with time: {early}, {late}");
}

#[test]
fn state_does_not_grow_with_time() {
    let range = OverFrame { unit: FrameUnit::Range, from: Some(700), to: 0 };
    let rows = OverFrame { unit: FrameUnit::Rows, from: Some(20), to: 3 };
    let all = OverFrame { unit: FrameUnit::Range, from: None, to: 0 };
    let all_rows = OverFrame { unit: FrameUnit::Rows, from: None, to: 2 };
    let calls = [("sum", range), ("max", rows), ("avg", all), ("last", all_rows), ("min", range)];
    bounded(&bytes(&over(true, &calls), 600, |at| at % 13));
    bounded(&bytes(&over(false, &calls), 600, |at| at % 13));
    // Keys that never come back are forgotten.
    bounded(&bytes(&over(true, &[("count", range), ("first", range)]), 600, |at| at / 3));
    let windowed = Over { window_end: Some(4), ..over(true, &calls) };
    bounded(&bytes(&windowed, 600, |at| at / 250));
}

#[test]
fn a_row_far_ahead_of_time_does_not_hold_its_batch() {
    let all = OverFrame { unit: FrameUnit::Rows, from: None, to: 0 };
    let mut state = over(true, &[("count", all)]).create();
    let mut most = 0;
    for step in 0..200 {
        let mut rows: Vec<Row> =
            (0..500).map(|at| (Some(at % 3), None, at, step * 500 + at, 0)).collect();
        rows[7].3 = 1 << 40;
        state.push(0, batch(&rows)).unwrap();
        while state.advance(step * 500 + 500, 1_000).unwrap().is_some() {}
        most = most.max(state.bytes());
    }
    assert!(most < 200 * 2_000, "{most} bytes for 200 rows");
}

/// A text of a mebibyte for each row, of all rows one behind the other.
#[derive(Debug)]
struct Texts;

impl Aggregate for Texts {
    fn state_types(&self) -> Vec<DataType> {
        vec![DataType::Utf8]
    }

    fn output_type(&self) -> DataType {
        DataType::Utf8
    }

    fn create(&self) -> Box<dyn Accumulator> {
        Box::new(Long(vec![]))
    }
}

struct Long(Vec<String>);

impl Accumulator for Long {
    fn update(&mut self, _: &[ArrayRef], ids: &Groups, total: usize) -> Result<(), StateError> {
        self.0.resize(total.max(self.0.len()), String::new());
        ids.iter().for_each(|id| self.0[id as usize].push_str(&"x".repeat(1 << 20)));
        Ok(())
    }

    fn merge(&mut self, states: &[ArrayRef], ids: &Groups, total: usize) -> Result<(), StateError> {
        self.0.resize(total.max(self.0.len()), String::new());
        let texts = states[0].as_string::<i32>().iter().flatten();
        ids.iter().zip(texts).for_each(|(id, text)| self.0[id as usize].push_str(text));
        Ok(())
    }

    fn state(&mut self, part: &Part) -> Result<Vec<ArrayRef>, StateError> {
        Ok(vec![self.values(part)?])
    }

    fn values(&mut self, part: &Part) -> Result<ArrayRef, StateError> {
        self.0.resize(part.total().max(self.0.len()), String::new());
        Ok(Arc::new(StringArray::from_iter_values(&self.0[part.ids()])))
    }

    fn clear(&mut self, _: usize) {
        self.0.clear();
    }

    fn bytes(&self) -> usize {
        self.0.iter().map(String::capacity).sum()
    }
}

#[test]
fn what_frames_of_a_batch_hold_together_has_a_bound() {
    let rows = OverFrame { unit: FrameUnit::Rows, from: Some(15), to: 0 };
    let range = OverFrame { unit: FrameUnit::Range, from: Some(7), to: 0 };
    let call =
        |frame| OverCall { text: "texts".into(), aggregate: Arc::new(Texts), args: vec![], frame };
    let calls = vec![call(rows), call(range)];
    let spec = over(true, &[("count", rows), ("count", range)]);
    let texts = (0..2).map(|at| Field::new(format!("call_{at}"), DataType::Utf8, true));
    let schema = Arc::new(Schema::new(fields().into_iter().chain(texts).collect::<Vec<_>>()));
    let mut state = Over { calls, schema, ..spec }.create();
    let given: Vec<Row> = (0..24).map(|at| (Some(at / 16), None, at, at % 16, 0)).collect();
    state.push(0, batch(&given)).unwrap();
    let mut lengths = vec![];
    while let Some(batch) = state.advance(i64::MAX, 8_192).unwrap() {
        let texts = [5, 6].map(|at| batch.column(at).as_string::<i32>().clone());
        let bytes = texts.clone().map(|texts| texts.values().len()).iter().sum::<usize>();
        assert!(batch.num_rows() == 1 || bytes <= (2 * 65) << 20, "{bytes} in a batch");
        let mib = |texts: &StringArray, row| texts.value(row).len() >> 20;
        lengths.extend((0..batch.num_rows()).map(|row| texts.clone().map(|t| mib(&t, row))));
    }
    let expected = |at: usize| [at % 16 + 1, (at % 16 + 1).min(8)];
    assert_eq!(lengths, (0..24).map(expected).collect::<Vec<_>>());
}
