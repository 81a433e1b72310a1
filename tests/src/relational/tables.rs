//! Tables of no rows, of one and of many, with NULLs and the extremes of each type.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int16Array, Int32Array,
    Int64Array, StringArray, TimestampMillisecondArray,
};
use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use arrow::record_batch::RecordBatch;

use super::{Kind, Named};
use crate::memory::{Event, Table};
use crate::random::Random;

/// The columns of every table: name, type here, type in SQLite, kind. `id` and `ts` tell rows
/// apart and are never NULL.
const COLUMNS: [(&str, &str, &str, Kind); 11] = [
    ("id", "BIGINT", "BIGINT", Kind::Int),
    ("a", "BIGINT", "BIGINT", Kind::Int),
    ("i", "INT", "INT", Kind::Int),
    ("s", "SMALLINT", "SMALLINT", Kind::Int),
    ("f", "DOUBLE", "DOUBLE", Kind::Float),
    ("t", "STRING", "TEXT", Kind::Text),
    ("b", "BOOLEAN", "BOOLEAN", Kind::Bool),
    ("d", "DECIMAL(9, 2)", "INT", Kind::Decimal),
    ("dy", "DATE", "TEXT", Kind::Date),
    ("tm", "TIMESTAMP(3)", "TEXT", Kind::Time),
    ("ts", "TIMESTAMP(3)", "TEXT", Kind::Time),
];

/// The first of January 2024 in days, and in milliseconds.
const DAY: i32 = 19_723;
const MS: i64 = DAY as i64 * 86_400_000;

/// 0001-01-01 and 9999-12-31, in days.
const DAYS: [i32; 2] = [-719_162, 2_932_896];

/// A table of a case.
#[derive(Debug, Clone)]
pub struct Relation {
    /// Its name.
    pub name: String,
    /// Its rows.
    pub rows: RecordBatch,
    /// The same in flows.
    pub table: Table,
    /// Whether `ts` has a watermark, behind which no row is.
    timed: bool,
}

impl Relation {
    /// The same without event time.
    pub fn untimed(self) -> Self {
        Self { timed: false, ..self }
    }

    /// Its declaration in our dialect.
    pub fn declared(&self) -> String {
        let columns: Vec<_> = COLUMNS.iter().map(|(name, of, ..)| format!("{name} {of}")).collect();
        let watermark = if self.timed { ", WATERMARK FOR ts AS ts - INTERVAL '2' DAY" } else { "" };
        let columns = columns.join(", ");
        format!("CREATE TABLE {} ({columns}{watermark}) WITH ('connector' = 'memory');", self.name)
    }

    /// Its declaration in SQLite's.
    pub fn declared_there(&self) -> String {
        let columns: Vec<_> =
            COLUMNS.iter().map(|(name, _, of, _)| format!("{name} {of}")).collect();
        format!("CREATE TABLE {} ({});", self.name, columns.join(", "))
    }

    pub(super) fn named(&self) -> Named {
        let columns = COLUMNS.iter().map(|(name, .., kind)| (name.to_string(), *kind)).collect();
        Named { name: self.name.clone(), columns, keyed: true }
    }
}

/// The tables of a case; one of them has no rows, one has one.
pub fn relations(random: &mut Random) -> Vec<Relation> {
    let many = 2 + random.below(9);
    let most = if random.chance(10) { 60 } else { 9 };
    let more = 2 + random.below(most);
    let relation = |(at, count): (usize, u64)| relation(random, format!("t{at}"), count as usize);
    [0, 1, many, more, 5].into_iter().enumerate().map(relation).collect()
}

fn relation(random: &mut Random, name: String, count: usize) -> Relation {
    let rows = rows(random, count);
    let mut flows = vec![];
    let mut from = 0;
    while from < count {
        let take = (1 + random.below(8) as usize).min(count - from);
        flows.push(vec![Event::Rows(rows.slice(from, take))]);
        from += take;
    }
    if flows.is_empty() || random.chance(30) {
        flows.push(if random.chance(50) { vec![] } else { vec![Event::Rows(rows.slice(0, 0))] });
    }
    let table = Table { schema: rows.schema(), bounded: true, flows };
    Relation { name, rows, table, timed: random.chance(40) }
}

fn rows(random: &mut Random, count: usize) -> RecordBatch {
    let time = || DataType::Timestamp(TimeUnit::Millisecond, None);
    let texts =
        ["", "a", "b", "ab", "A", "a%b_", "é", "日本", "🦀 ", "a longer text than fits inline"];
    let of_times = |ms: [i64; 5]| ms.map(|ms| MS + ms);
    let [first, last] = DAYS.map(|days| i64::from(days) * 86_400_000);
    let times = [of_times([0, 0, 1, 1_500, -1]).as_slice(), &[0, -1, first, last]].concat();
    let days = [DAY, DAY, DAY + 1, DAY + 59, 0, -1, DAYS[0], DAYS[1]];
    let floats = [0.0, -0.0, 0.25, -0.25, 1.0, -1.5, 100.75, f64::MAX, f64::MIN, 5e-324];
    let ints = [0, 0, 1, 1, 2, -1, 7, i64::MAX, i64::MIN];
    let columns: [(&str, DataType, ArrayRef); 11] = [
        ("id", DataType::Int64, Arc::new((0..count as i64).collect::<Int64Array>())),
        ("a", DataType::Int64, Arc::new(Int64Array::from(picked(random, count, &ints)))),
        (
            "i",
            DataType::Int32,
            Arc::new(Int32Array::from(picked(random, count, &[0, 1, 2, -1, i32::MAX, i32::MIN]))),
        ),
        (
            "s",
            DataType::Int16,
            Arc::new(Int16Array::from(picked(random, count, &[0, 1, 2, -3, i16::MAX, i16::MIN]))),
        ),
        ("f", DataType::Float64, Arc::new(Float64Array::from(picked(random, count, &floats)))),
        ("t", DataType::Utf8, Arc::new(StringArray::from(picked(random, count, &texts)))),
        (
            "b",
            DataType::Boolean,
            Arc::new(BooleanArray::from(picked(random, count, &[true, false]))),
        ),
        ("d", DataType::Decimal128(9, 2), {
            let values = picked(random, count, &[0, 1, 100, 225, -50, 999_999_999, -999_999_999]);
            let decimals = Decimal128Array::from(values).with_precision_and_scale(9, 2);
            Arc::new(decimals.expect("nine digits"))
        }),
        ("dy", DataType::Date32, Arc::new(Date32Array::from(picked(random, count, &days)))),
        ("tm", time(), Arc::new(TimestampMillisecondArray::from(picked(random, count, &times)))),
        ("ts", time(), {
            // Each number once, in another order than that of `id`; within a day.
            let at = |row: usize| MS + (row as i64 * 37 % 101) * 1_000;
            Arc::new((0..count).map(|row| Some(at(row))).collect::<TimestampMillisecondArray>())
        }),
    ];
    let field = |(name, of, _): &(&str, DataType, ArrayRef)| Field::new(*name, of.clone(), true);
    let schema = Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()));
    let arrays = columns.into_iter().map(|(.., array)| array).collect();
    RecordBatch::try_new(schema, arrays).expect("the columns fit")
}

/// Some of these, or NULL; all of a column may be.
fn picked<T: Copy>(random: &mut Random, count: usize, values: &[T]) -> Vec<Option<T>> {
    let nulls = *random.one_of(&[0, 20, 20, 40, 100]);
    (0..count).map(|_| (!random.chance(nulls)).then(|| *random.one_of(values))).collect()
}
