//! Sessions of random rows against brute force: the rows of a key in order, cut at each long pause.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{BooleanArray, Int64Array, TimestampMillisecondArray};
use arrow::compute::cast;
use arrow::datatypes::{Field, Int64Type, Schema, TimeUnit};

use super::*;

/// Key, number, and time.
type Row = (Option<i64>, i64, i64);
/// A row with the start and the end of its session.
type Expected = (Row, i64, i64);

fn fields(names: &[&str]) -> Vec<Field> {
    let time = DataType::Timestamp(TimeUnit::Millisecond, None);
    let field = |name: &&str| Field::new(*name, time.clone(), true);
    names.iter().map(field).collect()
}

fn spec(keyed: bool, gap: i64) -> RowSessions {
    let number = |name: &str| Field::new(name, DataType::Int64, true);
    let inner = vec![number("k"), number("n")].into_iter().chain(fields(&["ts"]));
    let all = inner.chain(fields(&["window_start", "window_end", "window_time"]));
    let schema = Arc::new(Schema::new(all.collect::<Vec<_>>()));
    let input = Arc::new(schema.project(&[0, 1, 2]).unwrap());
    let keys = if keyed { vec![0] } else { vec![] };
    RowSessions { input, keys, time: 2, gap, given: None, schema }
}

fn batch(schema: &SchemaRef, rows: &[Row]) -> RecordBatch {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from_iter(rows.iter().map(|row| row.0))),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.1))),
        Arc::new(TimestampMillisecondArray::from_iter_values(rows.iter().map(|row| row.2))),
    ];
    RecordBatch::try_new(Arc::new(schema.project(&[0, 1, 2]).unwrap()), columns).unwrap()
}

/// With a column more, which says whether a row is given out.
fn with_given(batch: &RecordBatch, given: impl Fn(i64) -> Option<bool>) -> RecordBatch {
    let numbers = batch.column(1).as_primitive::<Int64Type>().values();
    let column: BooleanArray = numbers.iter().map(|&number| given(number)).collect();
    let mut fields = batch.schema().fields().to_vec();
    fields.push(Arc::new(Field::new("given", DataType::Boolean, true)));
    let columns = batch.columns().iter().cloned().chain([Arc::new(column) as ArrayRef]);
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns.collect()).unwrap()
}

fn advance(state: &mut dyn KeyedState, watermark: i64, out: &mut Vec<Expected>) {
    while let Some(batch) = state.advance(watermark, 3).unwrap() {
        assert!(batch.num_rows() <= 3);
        let numbers: Vec<ArrayRef> =
            batch.columns().iter().map(|c| cast(c, &DataType::Int64).unwrap()).collect();
        for row in 0..batch.num_rows() {
            let value = |at: usize| numbers[at].as_primitive::<Int64Type>().value(row);
            assert_eq!(value(5), value(4) - 1, "the last millisecond");
            let key = (!numbers[0].is_null(row)).then(|| value(0));
            out.push(((key, value(1), value(2)), value(3), value(4)));
        }
    }
}

fn brute_force(
    rows: &[Row],
    keyed: bool,
    gap: i64,
    given: fn(i64) -> Option<bool>,
) -> Vec<Expected> {
    let mut by_key: BTreeMap<Option<i64>, Vec<Row>> = BTreeMap::new();
    rows.iter().for_each(|row| by_key.entry(row.0.filter(|_| keyed)).or_default().push(*row));
    let mut out = vec![];
    for mut rows in by_key.into_values() {
        rows.sort_unstable_by_key(|row| row.2);
        for session in rows.chunk_by(|a, b| b.2 - a.2 <= gap) {
            let (first, end) = (session[0].2, session[session.len() - 1].2 + gap);
            let given = session.iter().filter(|row| given(row.1) == Some(true));
            out.extend(given.map(|&row| (row, first, end)));
        }
    }
    out.sort_unstable();
    out
}

/// Numbers that look random (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> i64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % n) as i64
    }
}

#[test]
fn rows_have_the_sessions_of_brute_force() {
    let mut all = 0;
    for seed in 0..300 {
        let mut random = Random(seed);
        let (keyed, gap, delay) = (random.below(4) > 0, 1 + random.below(13), random.below(9));
        let given: fn(i64) -> Option<bool> = match random.below(3) {
            0 => |_| Some(true),
            1 => |number| (number % 3 != 0).then_some(number % 4 != 0),
            _ => |number| Some(number % 9 > 5),
        };
        let mut spec = spec(keyed, gap);
        spec.given = (seed % 2 == 0).then_some(3);
        let given = if seed % 2 == 0 { given } else { |_| Some(true) };
        // Little slack: rows are copied and ids are given anew every other batch.
        let slack = Slack { rows: 1, keys: 1, batch_rows: 1 + random.below(4) as usize };
        let mut state = Sessions::new(spec.clone(), slack);
        let (mut counted, mut out) = (vec![], vec![]);
        let (mut latest, mut watermark) = (0, i64::MIN);
        for _ in 0..random.below(25) {
            let mut on_time = vec![];
            for _ in 0..1 + random.below(5) {
                let key = random.below(7);
                latest += random.below(9);
                let time = latest - random.below(25);
                if time + gap > watermark {
                    let number = (counted.len() + on_time.len()) as i64;
                    on_time.push(((key != 0).then_some(key), number, time));
                }
            }
            if !on_time.is_empty() {
                let rows = batch(&spec.schema, &on_time);
                let rows = if seed % 2 == 0 { with_given(&rows, given) } else { rows };
                state.push(0, rows).unwrap();
            }
            counted.extend(on_time);
            watermark = latest - delay;
            advance(&mut state, watermark, &mut out);
            let due = |(_, _, end): &&Expected| *end <= watermark - gap;
            assert!(out.is_sorted_by_key(|row| row.2), "seed {seed}: by their ends");
            let whole = brute_force(&counted, keyed, gap, given).iter().filter(due).count();
            assert_eq!(out.len(), whole, "seed {seed}: all that are over, and no others");
        }
        advance(&mut state, i64::MAX, &mut out);
        out.sort_unstable();
        assert_eq!(out, brute_force(&counted, keyed, gap, given), "seed {seed}");
        assert_eq!(state.bytes(), 0, "seed {seed}");
        all += out.len();
    }
    assert!(all > 5_000, "too tame");
}

#[test]
fn what_comes_later_is_not_before_the_watermark_that_is_passed_on() {
    let spec = spec(true, 10);
    let mut state = spec.create();
    state.push(0, batch(&spec.schema, &[(Some(1), 0, 0), (Some(2), 1, 1)])).unwrap();
    let mut given = vec![];
    advance(state.as_mut(), 20, &mut given);
    assert_eq!(given, [((Some(1), 0, 0), 0, 10)]);
    // The other session ends at 11, and its time is 10.
    assert_eq!(state.complete(20), 10);
}

#[test]
fn rows_that_come_between_two_parts_of_a_session_leave_it_whole() {
    let spec = spec(false, 10);
    let slack = Slack { rows: 0, keys: 0, batch_rows: 3 };
    let mut state = Sessions::new(spec.clone(), slack);
    let rows: Vec<Row> = (0..20).map(|n| (None, n, n)).collect();
    state.push(0, batch(&spec.schema, &rows)).unwrap();
    let (mut given, mut numbers) = (0, vec![]);
    // Each batch that comes makes the rest of the first session be copied.
    while let Some(batch_out) = state.advance(1000, 3).unwrap() {
        given += batch_out.num_rows();
        numbers.extend(batch_out.column(1).as_primitive::<Int64Type>().values().to_vec());
        let bound = |at: usize| cast(batch_out.column(at), &DataType::Int64).unwrap();
        assert!(bound(3).as_primitive::<Int64Type>().values().iter().all(|&start| start == 0));
        assert!(bound(4).as_primitive::<Int64Type>().values().iter().all(|&end| end == 29));
        state.push(0, batch(&spec.schema, &[(None, 99, 2000 + given as i64)])).unwrap();
    }
    assert_eq!(numbers, (0..20).collect::<Vec<i64>>());
}

#[test]
fn many_rows_of_a_batch_are_given_out_apart_from_others() {
    let spec = spec(true, 100);
    let mut state = spec.create();
    // Each session has a row of either batch.
    let rows = |first: i64| (0..4000).map(|n| (Some(n), first + n, n)).collect::<Vec<Row>>();
    for first in [0, 10_000] {
        state.push(0, batch(&spec.schema, &rows(first))).unwrap();
    }
    let (mut parts, mut given) = (vec![], vec![]);
    while let Some(batch) = state.advance(i64::MAX, 3000).unwrap() {
        let numbers = |at: usize| {
            let numbers = cast(batch.column(at), &DataType::Int64).unwrap();
            numbers.as_primitive::<Int64Type>().values().to_vec()
        };
        let (keys, own, ends) = (numbers(0), numbers(1), numbers(4));
        assert!(ends.is_sorted());
        assert!(keys.iter().zip(&ends).all(|(key, end)| key + 100 == *end));
        let of = own[0] / 10_000;
        assert!(own.iter().zip(&keys).all(|(own, key)| *own == 10_000 * of + key));
        parts.push((of, own.len()));
        given.extend(own);
    }
    assert_eq!(parts, [(0, 1500), (1, 1500), (0, 1500), (1, 1500), (0, 1000), (1, 1000)]);
    given.sort_unstable();
    assert_eq!(
        given,
        [0, 10_000].iter().flat_map(|first| *first..first + 4000).collect::<Vec<_>>()
    );
    assert_eq!(state.bytes(), 0);
}

#[test]
fn state_is_in_proportion_to_the_rows_that_wait() {
    let spec = spec(true, 10);
    let slack = Slack { rows: 1000, keys: 1000, batch_rows: 100 };
    let mut state = Sessions::new(spec.clone(), slack);
    let (mut most, mut given) = (0, 0);
    for number in 0..2000 {
        // One key goes on; each of the others comes once.
        let one = |n: i64| (Some(if n == 0 { -1 } else { number * 100 + n }), n, number * 10);
        let rows: Vec<Row> = (0..100).map(one).collect();
        state.push(0, batch(&spec.schema, &rows)).unwrap();
        while let Some(batch) = state.advance(number * 10, 1000).unwrap() {
            given += batch.num_rows();
        }
        most = most.max(state.bytes());
    }
    assert!(given > 197_000, "{given} of those that came once are over");
    // 2,000 rows wait in the end, and three times as many may be held; of some 100 bytes each.
    assert!(most < 1 << 20, "{most} bytes");
    assert_eq!(state.waiting.len(), 200_000 - given);
}
