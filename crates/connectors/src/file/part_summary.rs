//! A summary of each column of a part that is written: the least value, the greatest one, and the
//! NULLs.
//!
//! Numbers, times, texts and decimals have ends. A column of floats with a NaN has none: engines
//! differ in where they order it. Other types have no ends.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, PrimitiveArray, StringArray, downcast_primitive_array,
    make_comparator,
};
use arrow::compute::{SortOptions, max, max_string, min, min_string};
use arrow::datatypes::{ArrowPrimitiveType, DataType};
use arrow::record_batch::RecordBatch;
use dataflow::predicate::ColumnSummary;

/// Columns of the rows that a part has so far.
pub(super) struct PartSummary {
    /// Their places among the columns of the part, each with what is known of it.
    columns: Vec<(usize, ColumnSummary)>,
}

impl PartSummary {
    /// Of a part without rows, for the columns at `places`.
    pub(super) fn new(places: &[usize]) -> Self {
        let empty = ColumnSummary { nulls: Some(0), rows: Some(0), ..ColumnSummary::default() };
        Self { columns: places.iter().map(|place| (*place, empty.clone())).collect() }
    }

    /// Adds rows of the part.
    pub(super) fn add(&mut self, rows: &RecordBatch) {
        for (place, of) in &mut self.columns {
            let Some(values) = rows.columns().get(*place) else { continue };
            let (is_first, nulls) = (of.rows == of.nulls, values.logical_null_count() as u64);
            of.nulls = of.nulls.map(|before| before + nulls);
            of.rows = of.rows.map(|before| before + values.len() as u64);
            if nulls == values.len() as u64 {
                continue;
            }
            let Some([least, greatest]) = ends(values) else {
                (of.least, of.greatest) = (None, None);
                continue;
            };
            if is_first {
                (of.least, of.greatest) = (Some(least), Some(greatest));
            } else {
                // Once there were none, there are none.
                of.least = of.least.take().map(|of| first(of, least, Ordering::Less));
                of.greatest = of.greatest.take().map(|of| first(of, greatest, Ordering::Greater));
            }
        }
    }

    /// What is known of each column.
    pub(super) fn columns(self) -> Vec<(usize, ColumnSummary)> {
        self.columns
    }
}

/// The one of two values of a type that is on a side of the other.
fn first(a: ArrayRef, b: ArrayRef, side: Ordering) -> ArrayRef {
    let order = make_comparator(&b, &a, SortOptions::default());
    if order.is_ok_and(|order| order(0, 0) == side) { b } else { a }
}

/// The least and the greatest of values that are not all NULL; `None` where they have no order.
fn ends(values: &ArrayRef) -> Option<[ArrayRef; 2]> {
    let values = values.as_ref();
    if let DataType::Utf8 = values.data_type() {
        let texts = values.as_string::<i32>();
        let ends = [min_string(texts)?, max_string(texts)?];
        return Some(ends.map(|text| Arc::new(StringArray::from(vec![text])) as ArrayRef));
    }
    let has_ends = values.data_type().is_numeric()
        || matches!(values.data_type(), DataType::Date32 | DataType::Timestamp(..));
    if !has_ends {
        return None;
    }
    let ends = downcast_primitive_array!(
        values => primitive_ends(values),
        _ => return None,
    )?;
    let is_nan = |of: &ArrayRef| match of.data_type() {
        DataType::Float32 => of.as_primitive::<arrow::datatypes::Float32Type>().value(0).is_nan(),
        DataType::Float64 => of.as_primitive::<arrow::datatypes::Float64Type>().value(0).is_nan(),
        _ => false,
    };
    // A NaN is an end in the order of these functions.
    (!ends.iter().any(is_nan)).then_some(ends)
}

fn primitive_ends<T: ArrowPrimitiveType>(values: &PrimitiveArray<T>) -> Option<[ArrayRef; 2]> {
    let ends = [min(values)?, max(values)?];
    Some(ends.map(|of| {
        let one = PrimitiveArray::<T>::from_value(of, 1);
        Arc::new(one.with_data_type(values.data_type().clone())) as ArrayRef
    }))
}

#[cfg(test)]
mod tests {
    use arrow::array::{BinaryArray, Decimal128Array, Float64Array, Int64Array};

    use super::*;

    /// What is known of a column of these batches, as text: ends, NULLs and rows.
    fn known(batches: &[ArrayRef]) -> String {
        let mut summary = PartSummary::new(&[0]);
        for values in batches {
            let rows = RecordBatch::try_from_iter([("x", values.clone())]).unwrap();
            summary.add(&rows);
        }
        let of = summary.columns().remove(0).1;
        let text = |end: &Option<ArrayRef>| match end {
            Some(end) => dataflow::calendar::text_of(end, 0).unwrap(),
            None => "-".into(),
        };
        let (nulls, rows) = (of.nulls.unwrap(), of.rows.unwrap());
        format!("{} {} {nulls} {rows}", text(&of.least), text(&of.greatest))
    }

    #[test]
    fn ends_are_those_of_all_rows_that_have_a_value() {
        let longs = |of: &[Option<i64>]| Arc::new(Int64Array::from(of.to_vec())) as ArrayRef;
        let texts = |of: &[Option<&str>]| Arc::new(StringArray::from(of.to_vec())) as ArrayRef;
        let floats = |of: &[f64]| Arc::new(Float64Array::from(of.to_vec())) as ArrayRef;
        for (batches, expected) in [
            (vec![], "- - 0 0"),
            (vec![longs(&[])], "- - 0 0"),
            (vec![longs(&[None, None])], "- - 2 2"),
            (vec![longs(&[None]), longs(&[Some(3)]), longs(&[Some(-7), None])], "-7 3 2 4"),
            (vec![longs(&[Some(1)]), longs(&[None]), longs(&[Some(9)])], "1 9 1 3"),
            (vec![texts(&[Some("b"), None]), texts(&[Some("é"), Some("")])], " é 1 4"),
            (vec![floats(&[1.5, -0.0]), floats(&[f64::INFINITY])], "-0.0 inf 0 3"),
        ] {
            assert_eq!(known(&batches), expected);
        }
        let cents = Decimal128Array::from(vec![Some(1234), Some(-5)]);
        let cents = cents.with_precision_and_scale(10, 2).unwrap();
        assert_eq!(known(&[Arc::new(cents)]), "-0.05 12.34 0 2");
    }

    #[test]
    fn a_column_with_nan_or_without_an_order_has_no_ends() {
        let floats = |of: &[f64]| Arc::new(Float64Array::from(of.to_vec())) as ArrayRef;
        for nan in [f64::NAN, -f64::NAN] {
            for batches in [
                vec![floats(&[1.0, nan])],
                vec![floats(&[nan]), floats(&[1.0])],
                vec![floats(&[1.0]), floats(&[nan]), floats(&[2.0])],
            ] {
                assert!(known(&batches).starts_with("- - 0 "), "{}", known(&batches));
            }
        }
        let bytes: ArrayRef = Arc::new(BinaryArray::from(vec![Some(b"x".as_slice()), None]));
        assert_eq!(known(&[bytes]), "- - 1 2");
    }
}
