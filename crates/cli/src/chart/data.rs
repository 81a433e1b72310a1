//! From rows to what is drawn.
//!
//! The first column of a time is x, or else the first column; numbers are y. Over a time or a
//! number, each value of the first column of text makes a series of its own; over text there are
//! bars.

use arrow::array::{Array, Float64Array, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Schema, TimeUnit};
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};

/// Series that are drawn; more would be a tangle.
pub(super) const SERIES_MAX: usize = 6;
/// Bars that are drawn.
pub(super) const BARS_MAX: usize = 40;
/// Points that are kept.
const POINTS_MAX: usize = 1 << 16;
/// Different texts that are counted; beyond, the rest is one.
const NAMES_MAX: usize = 1000;

/// Which columns are drawn how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) x: X,
    /// The column of x.
    column: usize,
    /// Columns of y.
    ys: Vec<usize>,
    /// The column whose texts tell series apart.
    split: Option<usize>,
    names: Vec<String>,
}

/// The values of the horizontal axis; texts lie along the vertical one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum X {
    /// Milliseconds since 1970.
    Time,
    Number,
    Text,
}

impl Shape {
    /// Looks at the columns; `None` if there is nothing to draw.
    pub(super) fn of(schema: &Schema) -> Option<Self> {
        let fields = schema.fields();
        let is_text = |t: &DataType| {
            matches!(t, DataType::Utf8 | DataType::LargeUtf8)
                || matches!(t, DataType::Utf8View | DataType::Dictionary(..) | DataType::Boolean)
        };
        let column = fields.iter().position(|f| f.data_type().is_temporal()).unwrap_or(0);
        let x = match fields.get(column)?.data_type() {
            t if t.is_temporal() => X::Time,
            t if t.is_numeric() => X::Number,
            _ => X::Text,
        };
        let others = || (0..fields.len()).filter(|at| *at != column);
        let ys: Vec<usize> =
            others().filter(|at| fields[*at].data_type().is_numeric()).take(SERIES_MAX).collect();
        let split = others().find(|at| is_text(fields[*at].data_type()));
        let split = split.filter(|_| x != X::Text);
        let names = fields.iter().map(|field| field.name().clone()).collect();
        (!ys.is_empty()).then_some(Self { x, column, ys, split, names })
    }

    /// The name of the column of x.
    pub(super) fn x_name(&self) -> &str {
        &self.names[self.column]
    }
}

/// A line, or the bars of one colour.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Series {
    pub(super) name: String,
    /// In the order in which they came. NULL has no point.
    pub(super) points: Vec<(f64, f64)>,
}

/// The rows that were kept.
#[derive(Debug)]
pub(super) struct Data {
    pub(super) shape: Shape,
    /// For bars: the text of each row that is drawn. A bar's x is its number.
    pub(super) labels: Vec<String>,
    pub(super) series: Vec<Series>,
    /// Series that are not drawn.
    pub(super) more_series: usize,
    pub(super) rows: u64,
    /// One row in this number is drawn.
    pub(super) stride: u64,
    /// Texts of all series, drawn or not.
    groups: Vec<String>,
}

impl Data {
    pub(super) fn new(shape: Shape) -> Self {
        let (labels, series, groups) = Default::default();
        Self { shape, labels, series, more_series: 0, rows: 0, stride: 1, groups }
    }

    /// Takes rows.
    pub(super) fn add(&mut self, batch: &RecordBatch) -> Result<(), ArrowError> {
        let column = |at: usize| floats(batch.column(at));
        let ys = self.shape.ys.iter().map(|at| column(*at)).collect::<Result<Vec<_>, _>>()?;
        let options = FormatOptions::default().with_null("NULL");
        if self.shape.x == X::Text {
            let texts = ArrayFormatter::try_new(batch.column(self.shape.column), &options)?;
            for row in 0..batch.num_rows() {
                self.rows += 1;
                if self.labels.len() < BARS_MAX {
                    let x = self.labels.len() as f64;
                    self.labels.push(texts.value(row).try_to_string()?);
                    self.points(None, x, &ys, row);
                }
            }
            return Ok(());
        }
        let xs = column(self.shape.column)?;
        let split = self.shape.split.map(|at| ArrayFormatter::try_new(batch.column(at), &options));
        let split = split.transpose()?;
        for row in 0..batch.num_rows() {
            let number = self.rows;
            self.rows += 1;
            if xs.is_null(row) || !number.is_multiple_of(self.stride) {
                continue;
            }
            let group = split.as_ref().map(|split| split.value(row).try_to_string()).transpose()?;
            self.points(group, xs.value(row), &ys, row);
            self.thin_out();
        }
        Ok(())
    }

    /// The points of a row.
    fn points(&mut self, group: Option<String>, x: f64, ys: &[Float64Array], row: usize) {
        let many = ys.len() > 1;
        let first = match &group {
            None => 0,
            Some(group) => match self.groups.iter().position(|entry| entry == group) {
                Some(at) => at * ys.len(),
                None if self.groups.len() == NAMES_MAX => return,
                None => {
                    self.groups.push(group.clone());
                    (self.groups.len() - 1) * ys.len()
                }
            },
        };
        for (n, values) in ys.iter().enumerate() {
            let at = first + n;
            if at >= SERIES_MAX {
                self.more_series = self.more_series.max(at + 1 - SERIES_MAX);
                continue;
            }
            while self.series.len() <= at {
                let column = &self.shape.names[self.shape.ys[self.series.len() % ys.len()]];
                let name = match &group {
                    Some(group) if many => format!("{group} {column}"),
                    Some(group) => group.clone(),
                    None => column.clone(),
                };
                self.series.push(Series { name, points: vec![] });
            }
            let y = values.value(row);
            if values.is_valid(row) && x.is_finite() && y.is_finite() {
                self.series[at].points.push((x, y));
            }
        }
    }

    /// Drops every second point when there are too many.
    fn thin_out(&mut self) {
        let points: usize = self.series.iter().map(|series| series.points.len()).sum();
        if points > POINTS_MAX {
            self.stride *= 2;
            for series in &mut self.series {
                let mut keep = false;
                series.points.retain(|_| {
                    keep = !keep;
                    keep
                });
            }
        }
    }
}

/// Numbers as they are, times in milliseconds.
fn floats(array: &dyn Array) -> Result<Float64Array, ArrowError> {
    let millis = match array.data_type() {
        DataType::Timestamp(_, zone) => {
            cast(array, &DataType::Timestamp(TimeUnit::Millisecond, zone.clone()))?
        }
        DataType::Date32 | DataType::Date64 => cast(array, &DataType::Date64)?,
        DataType::Time32(_) | DataType::Time64(_) => {
            cast(array, &DataType::Time32(TimeUnit::Millisecond))?
        }
        DataType::Duration(_) => cast(array, &DataType::Duration(TimeUnit::Millisecond))?,
        _ => cast(array, array.data_type())?,
    };
    let numbers = match millis.data_type() {
        DataType::Time32(_) => cast(&millis, &DataType::Int32)?,
        t if t.is_temporal() => cast(&millis, &DataType::Int64)?,
        _ => millis,
    };
    let numbers = cast(&numbers, &DataType::Float64)?;
    Ok(Float64Array::from(numbers.to_data()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, StringArray, TimestampMicrosecondArray};
    use arrow::datatypes::Field;

    use super::*;

    fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
        RecordBatch::try_from_iter(columns).expect("a batch")
    }

    fn ints(values: Vec<i64>) -> ArrayRef {
        Arc::new(Int64Array::from(values))
    }

    fn drawn(batch: &RecordBatch) -> Data {
        let mut data = Data::new(Shape::of(&batch.schema()).expect("something to draw"));
        data.add(batch).expect("rows");
        data
    }

    #[test]
    fn a_time_is_x_wherever_it_stands_and_texts_make_series() {
        let times: ArrayRef = Arc::new(TimestampMicrosecondArray::from(vec![1000, 2000, 3000]));
        let origins: ArrayRef = Arc::new(StringArray::from(vec!["EWR", "JFK", "EWR"]));
        let data = drawn(&batch(vec![("n", ints(vec![7, 8, 9])), ("o", origins), ("ts", times)]));
        assert_eq!((data.shape.x, data.shape.x_name()), (X::Time, "ts"));
        let names: Vec<_> = data.series.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["EWR", "JFK"]);
        assert_eq!(data.series[0].points, [(1.0, 7.0), (3.0, 9.0)]);
    }

    #[test]
    fn texts_alone_make_bars() {
        let names: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None]));
        let data = drawn(&batch(vec![("s", names), ("n", ints(vec![1, 2]))]));
        assert_eq!(data.shape.x, X::Text);
        assert_eq!(data.labels, ["a", "NULL"]);
        assert_eq!(data.series[0].points, [(0.0, 1.0), (1.0, 2.0)]);
    }

    #[test]
    fn without_a_number_there_is_nothing_to_draw() {
        let text = Field::new("s", DataType::Utf8, true);
        assert_eq!(Shape::of(&Schema::new(vec![text])), None);
        assert_eq!(Shape::of(&Schema::empty()), None);
        let number = Field::new("n", DataType::Int64, true);
        assert_eq!(Shape::of(&Schema::new(vec![number])), None);
    }

    #[test]
    fn series_points_and_bars_are_bounded() {
        let many: Vec<i64> = (0..200_000).collect();
        let data = drawn(&batch(vec![("x", ints(many.clone())), ("y", ints(many))]));
        assert!(data.series[0].points.len() <= POINTS_MAX);
        assert_eq!((data.rows, data.stride), (200_000, 4));
        assert!(data.series[0].points.iter().all(|(x, _)| x.rem_euclid(4.0) == 0.0));

        let names: ArrayRef =
            Arc::new(StringArray::from_iter_values((0..5000).map(|n| format!("s{n}"))));
        let numbers = || ints((0..5000).collect());
        let data = drawn(&batch(vec![("x", numbers()), ("s", names.clone()), ("y", numbers())]));
        assert_eq!((data.series.len(), data.more_series), (SERIES_MAX, NAMES_MAX - SERIES_MAX));
        let data = drawn(&batch(vec![("s", names), ("y", numbers())]));
        assert_eq!((data.labels.len(), data.rows), (BARS_MAX, 5000));
    }
}
