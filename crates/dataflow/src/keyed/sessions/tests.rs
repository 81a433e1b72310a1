//! Sessions of random rows against brute force: the rows of a key in order, cut at each long pause.

use arrow::array::{AsArray, TimestampMillisecondArray};
use arrow::compute::cast;
use arrow::datatypes::{Field, Int64Type, Schema, TimeUnit};

use super::*;

/// Key, number, and time.
type Row = (Option<i64>, i64, i64);
/// A row with the start and the end of its session.
type Given = (Row, i64, i64);

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
    RowSessions { keys: if keyed { vec![0] } else { vec![] }, time: 2, gap, schema }
}

fn batch(schema: &SchemaRef, rows: &[Row]) -> RecordBatch {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from_iter(rows.iter().map(|row| row.0))),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.1))),
        Arc::new(TimestampMillisecondArray::from_iter_values(rows.iter().map(|row| row.2))),
    ];
    RecordBatch::try_new(Arc::new(schema.project(&[0, 1, 2]).unwrap()), columns).unwrap()
}

fn advance(state: &mut dyn KeyedState, watermark: i64, out: &mut Vec<Given>) {
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

fn brute_force(rows: &[Row], keyed: bool, gap: i64) -> Vec<Given> {
    let mut by_key: BTreeMap<Option<i64>, Vec<Row>> = BTreeMap::new();
    rows.iter().for_each(|row| by_key.entry(row.0.filter(|_| keyed)).or_default().push(*row));
    let mut out = vec![];
    for mut rows in by_key.into_values() {
        rows.sort_unstable_by_key(|row| row.2);
        for session in rows.chunk_by(|a, b| b.2 - a.2 <= gap) {
            let (first, end) = (session[0].2, session[session.len() - 1].2 + gap);
            out.extend(session.iter().map(|&row| (row, first, end)));
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
        let spec = spec(keyed, gap);
        let mut state = spec.create();
        let (mut counted, mut given) = (vec![], vec![]);
        let (mut latest, mut watermark) = (0, i64::MIN);
        for _ in 0..random.below(25) {
            let mut on_time = vec![];
            for _ in 0..1 + random.below(5) {
                let key = random.below(4);
                latest += random.below(9);
                let time = latest - random.below(25);
                if time + gap > watermark {
                    let number = (counted.len() + on_time.len()) as i64;
                    on_time.push(((key != 0).then_some(key), number, time));
                }
            }
            if !on_time.is_empty() {
                state.push(0, batch(&spec.schema, &on_time)).unwrap();
            }
            counted.extend(on_time);
            watermark = latest - delay;
            advance(state.as_mut(), watermark, &mut given);
            let due = |(_, _, end): &&Given| *end <= watermark - gap;
            let whole = brute_force(&counted, keyed, gap).iter().filter(due).count();
            assert_eq!(given.len(), whole, "seed {seed}: all that are over, and no others");
        }
        advance(state.as_mut(), i64::MAX, &mut given);
        given.sort_unstable();
        assert_eq!(given, brute_force(&counted, keyed, gap), "seed {seed}");
        assert_eq!(state.bytes(), 0, "seed {seed}");
        all += given.len();
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
