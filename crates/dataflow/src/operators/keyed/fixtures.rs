//! What the tests of joins and rankings share: two sides of rows, and numbers that look random.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch, TimestampMillisecondArray,
};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{
    DataType, Field, Int64Type, Schema, SchemaRef, TimeUnit, TimestampMillisecondType,
};

use crate::error::DataflowError;
use crate::job::{FILTER, JoinKind, Origin, Property, Step, Stepped};

/// A key, a number, and a time.
pub(crate) type Row = (Option<i64>, i64, i64);

/// Left and right row of a result.
pub(crate) type Pair = (Option<Row>, Option<Row>);

pub(crate) const SIDES: [&str; 2] = ["left", "right"];

pub(crate) const KINDS: [JoinKind; 8] = [
    JoinKind::Inner,
    JoinKind::Left,
    JoinKind::Right,
    JoinKind::Full,
    JoinKind::LeftSemi,
    JoinKind::LeftAnti,
    JoinKind::RightSemi,
    JoinKind::RightAnti,
];

/// Columns of a side, by its name.
pub(crate) fn schema(side: &str) -> SchemaRef {
    let time = DataType::Timestamp(TimeUnit::Millisecond, None);
    Arc::new(Schema::new(vec![
        Field::new(format!("{side}_key"), DataType::Int64, true),
        Field::new(format!("{side}_number"), DataType::Int64, true),
        Field::new(format!("{side}_time"), time, true),
    ]))
}

/// Columns of both sides.
pub(crate) fn both() -> SchemaRef {
    let fields: Vec<_> = SIDES.iter().flat_map(|side| schema(side).fields().to_vec()).collect();
    Arc::new(Schema::new(fields))
}

/// Columns that a kind of join gives out.
pub(crate) fn given_out(kind: JoinKind) -> SchemaRef {
    match kind {
        JoinKind::LeftSemi | JoinKind::LeftAnti => schema("left"),
        JoinKind::RightSemi | JoinKind::RightAnti => schema("right"),
        _ => both(),
    }
}

pub(crate) fn batch(side: &str, rows: &[Row]) -> RecordBatch {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from_iter(rows.iter().map(|row| row.0))),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.1))),
        Arc::new(TimestampMillisecondArray::from_iter_values(rows.iter().map(|row| row.2))),
    ];
    RecordBatch::try_new(schema(side), columns).unwrap()
}

/// The row of three columns; none if it has no time.
fn row_of(batch: &RecordBatch, from: usize, row: usize) -> Option<Row> {
    let time = batch.column(from + 2);
    let int = |at: usize| batch.column(at).as_primitive::<Int64Type>();
    time.is_valid(row).then(|| {
        let key = int(from).is_valid(row).then(|| int(from).value(row));
        let time = time.as_primitive::<TimestampMillisecondType>().value(row);
        (key, int(from + 1).value(row), time)
    })
}

/// The rows that a kind of join gave out.
pub(crate) fn rows_of(batch: &RecordBatch, kind: JoinKind) -> Vec<Pair> {
    let all = 0..batch.num_rows();
    all.map(|row| match kind {
        JoinKind::LeftSemi | JoinKind::LeftAnti => (row_of(batch, 0, row), None),
        JoinKind::RightSemi | JoinKind::RightAnti => (None, row_of(batch, 0, row)),
        _ => (row_of(batch, 0, row), row_of(batch, 3, row)),
    })
    .collect()
}

/// Passes pairs by their left and right numbers.
pub(crate) struct Passing(pub(crate) fn(i64, i64) -> bool);

impl Step for Passing {
    fn schema(&self) -> SchemaRef {
        both()
    }

    fn apply_for(&self, batch: &RecordBatch, _: Option<usize>) -> Result<Stepped, DataflowError> {
        let numbers = |at: usize| batch.column(at).as_primitive::<Int64Type>().values();
        let pairs = numbers(1).iter().zip(numbers(4));
        let kept: BooleanArray = pairs.map(|(&l, &r)| Some((self.0)(l, r))).collect();
        Ok(Stepped { batch: filter_record_batch(batch, &kept)?, origin: Origin::Mask(kept) })
    }

    fn passes_on(&self, output: usize) -> Option<usize> {
        Some(output)
    }

    fn describe(&self) -> Vec<Property> {
        vec![(FILTER, "a condition".into())]
    }
}

/// Numbers that look random.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn below(&mut self, limit: i64) -> i64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) as i64 % limit
    }
}
