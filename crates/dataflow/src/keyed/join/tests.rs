//! Joins of random windows against all pairs of rows.

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int64Array, TimestampMillisecondArray};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, Field, Int64Type, Schema, TimeUnit, TimestampMillisecondType};

use super::*;
use crate::job::{Origin, Stepped};

/// A key, a value, and the end of the window.
type Row = (Option<i64>, i64, i64);

fn schema(side: &str) -> SchemaRef {
    let end = DataType::Timestamp(TimeUnit::Millisecond, None);
    Arc::new(Schema::new(vec![
        Field::new(format!("{side}_key"), DataType::Int64, true),
        Field::new(format!("{side}_value"), DataType::Int64, true),
        Field::new(format!("{side}_end"), end, true),
    ]))
}

fn batch(side: &str, rows: &[Row]) -> RecordBatch {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from_iter(rows.iter().map(|row| row.0))),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.1))),
        Arc::new(TimestampMillisecondArray::from_iter_values(rows.iter().map(|row| row.2))),
    ];
    RecordBatch::try_new(schema(side), columns).unwrap()
}

/// Passes pairs whose left value is less than the right one.
struct Less(SchemaRef);

impl Step for Less {
    fn schema(&self) -> SchemaRef {
        self.0.clone()
    }

    fn apply_for(&self, batch: &RecordBatch, _: Option<usize>) -> Result<Stepped, DataflowError> {
        let value = |at: usize| batch.column(at).as_primitive::<Int64Type>();
        let pairs = value(1).values().iter().zip(value(4).values());
        let kept: BooleanArray = pairs.map(|(left, right)| Some(left < right)).collect();
        Ok(Stepped { batch: filter_record_batch(batch, &kept)?, origin: Origin::Kept(kept) })
    }

    fn passes_on(&self, output: usize) -> Option<usize> {
        Some(output)
    }

    fn describe(&self) -> String {
        "left_value < right_value".into()
    }
}

fn join(kind: JoinKind, keyed: bool, filtered: bool) -> WindowJoin {
    let both: Vec<_> = ["left", "right"].iter().flat_map(|s| schema(s).fields().to_vec()).collect();
    let both: SchemaRef = Arc::new(Schema::new(both));
    let side = |name: &str| JoinSide {
        schema: schema(name),
        keys: if keyed { vec![0] } else { vec![] },
        window_end: 2,
    };
    let schema = match kind {
        JoinKind::LeftSemi | JoinKind::LeftAnti => schema("left"),
        JoinKind::RightSemi | JoinKind::RightAnti => schema("right"),
        _ => both.clone(),
    };
    let on = filtered.then(|| Arc::new(Less(both.clone())) as Arc<dyn Step>);
    WindowJoin { sides: [side("left"), side("right")], kind, on, schema, both }
}

/// Rows of a result, as left and right rows.
type Pair = (Option<Row>, Option<Row>);

fn rows_of(batch: &RecordBatch, kind: JoinKind) -> Vec<Pair> {
    let side = |from: usize, row: usize| -> Option<Row> {
        let end = batch.column(from + 2);
        let int = |at: usize| batch.column(at).as_primitive::<Int64Type>();
        end.is_valid(row).then(|| {
            let key = int(from).is_valid(row).then(|| int(from).value(row));
            let end = end.as_primitive::<TimestampMillisecondType>().value(row);
            (key, int(from + 1).value(row), end)
        })
    };
    (0..batch.num_rows())
        .map(|row| match kind {
            JoinKind::LeftSemi | JoinKind::LeftAnti => (side(0, row), None),
            JoinKind::RightSemi | JoinKind::RightAnti => (None, side(0, row)),
            _ => (side(0, row), side(3, row)),
        })
        .collect()
}

fn expected(kind: JoinKind, keyed: bool, filtered: bool, left: &[Row], right: &[Row]) -> Vec<Pair> {
    let fits = |l: &Row, r: &Row| {
        let equal = !keyed || (l.0.is_some() && l.0 == r.0);
        l.2 == r.2 && equal && (!filtered || l.1 < r.1)
    };
    let mut pairs = vec![];
    let (mut left_met, mut right_met) = (vec![false; left.len()], vec![false; right.len()]);
    for (i, l) in left.iter().enumerate() {
        for (j, r) in right.iter().enumerate().filter(|(_, r)| fits(l, r)) {
            (left_met[i], right_met[j]) = (true, true);
            pairs.push((Some(*l), Some(*r)));
        }
    }
    let alone = |rows: &[Row], met: &[bool], with: bool| -> Vec<Row> {
        let of = rows.iter().zip(met).filter(|(_, met)| **met == with);
        of.map(|(row, _)| *row).collect()
    };
    let lefts = |with| alone(left, &left_met, with).into_iter().map(|row| (Some(row), None));
    let rights = |with| alone(right, &right_met, with).into_iter().map(|row| (None, Some(row)));
    match kind {
        JoinKind::Inner => {}
        JoinKind::Left => pairs.extend(lefts(false)),
        JoinKind::Right => pairs.extend(rights(false)),
        JoinKind::Full => pairs.extend(lefts(false).chain(rights(false))),
        JoinKind::LeftSemi => pairs = lefts(true).collect(),
        JoinKind::LeftAnti => pairs = lefts(false).collect(),
        JoinKind::RightSemi => pairs = rights(true).collect(),
        JoinKind::RightAnti => pairs = rights(false).collect(),
    }
    pairs.sort();
    pairs
}

/// Numbers that look random.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> i64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        ((self.0 >> 33) % limit) as i64
    }

    fn rows(&mut self, most: u64) -> Vec<Row> {
        let rows = self.below(most + 1);
        (0..rows)
            .map(|value| {
                let key = self.below(6);
                ((key > 0).then_some(key), value, 10 * (1 + self.below(4)))
            })
            .collect()
    }
}

#[test]
fn every_kind_gives_what_all_pairs_give() {
    const KINDS: [JoinKind; 8] = [
        JoinKind::Inner,
        JoinKind::Left,
        JoinKind::Right,
        JoinKind::Full,
        JoinKind::LeftSemi,
        JoinKind::LeftAnti,
        JoinKind::RightSemi,
        JoinKind::RightAnti,
    ];
    let mut numbers = Numbers(7);
    for round in 0..240 {
        let (kind, keyed, filtered) = (KINDS[round % 8], round % 3 > 0, round % 5 > 2);
        let (left, right) = (numbers.rows(30), numbers.rows(30));
        let mut state = join(kind, keyed, filtered).create();
        for (side, name, rows) in [(0, "left", &left), (1, "right", &right)] {
            for part in rows.chunks(7) {
                state.push(side, batch(name, part)).unwrap();
            }
        }
        let mut got = vec![];
        for watermark in [5, 20, 25, i64::MAX] {
            let rows_max = 1 + numbers.below(9) as usize;
            while let Some(batch) = state.advance(watermark, rows_max).unwrap() {
                let rows = rows_of(&batch, kind);
                assert!(!rows.is_empty() && rows.len() <= rows_max);
                let ended = |row: &Row| row.2 <= watermark;
                assert!(rows.iter().all(|(l, r)| l.iter().chain(r).all(ended)));
                got.extend(rows);
            }
        }
        got.sort();
        assert_eq!(
            got,
            expected(kind, keyed, filtered, &left, &right),
            "{kind:?} in round {round}"
        );
        assert_eq!(state.bytes(), 0, "nothing is left behind");
    }
}
