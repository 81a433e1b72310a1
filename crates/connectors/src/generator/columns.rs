//! Columns that are functions of the row.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, ArrowPrimitiveType, DictionaryArray, PrimitiveArray, StringArray, StringBuilder,
};
use arrow::buffer::ScalarBuffer;
use arrow::compute::{CastOptions, cast, cast_with_options};
use arrow::datatypes::{DataType, Field, Int8Type, TimeUnit, TimestampMillisecondType};
use dataflow::error::ConnectorError;

use super::{random, unfit_type};
use crate::options::OptionReader;

/// Makes the values of a range of rows.
pub(super) type Fill = Box<dyn Fn(Range<u64>) -> ArrayRef + Send + Sync>;

/// A column that can be generated.
pub(super) struct Column {
    pub(super) field: Field,
    pub(super) fill: Fill,
    /// Whether it is the event time, which goes on where rows are repeated.
    pub(super) is_time: bool,
    /// Milliseconds by which such a time may be behind that of its event.
    pub(super) ahead_ms: i64,
    /// How many different values there are at most, where that is known.
    pub(super) distinct_max: Option<u64>,
}

impl Column {
    pub(super) fn new(name: &str, data_type: DataType, fill: Fill) -> Self {
        let field = Field::new(name, data_type, false);
        Self { field, fill, is_time: false, ahead_ms: 0, distinct_max: None }
    }

    /// The column, with at most `distinct_max` different values.
    pub(super) fn of(self, distinct_max: u64) -> Self {
        Self { distinct_max: Some(distinct_max), ..self }
    }

    /// The column as `field` declares it: its name, its type where the values can be cast to it.
    pub(super) fn declared_as(self, field: &Field) -> Result<Self, ConnectorError> {
        let wanted = field.data_type().clone();
        let made = self.field.data_type().clone();
        let is_still_time = !self.is_time || matches!(wanted, DataType::Timestamp(..));
        // The first row is made to see whether the cast is possible.
        let sample = (self.fill)(0..1);
        let strict = CastOptions { safe: false, ..Default::default() };
        if !is_still_time || cast_with_options(&sample, &wanted, &strict).is_err() {
            return Err(unfit_type(field.name(), &made, &wanted));
        }
        let inner = self.fill;
        let fill: Fill = if *sample.data_type() == wanted {
            inner
        } else {
            Box::new(move |rows| {
                let values = inner(rows);
                cast(&values, &wanted).unwrap_or(values)
            })
        };
        Ok(Self { field: field.clone(), fill, ..self })
    }
}

/// The type of a column of few different words: a byte a row.
pub(super) fn word_type() -> DataType {
    DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8))
}

/// The type of event time.
pub(super) fn time_type() -> DataType {
    DataType::Timestamp(TimeUnit::Millisecond, None)
}

/// A column of numbers.
pub(super) fn numbers<T: ArrowPrimitiveType>(
    name: &str,
    value: impl Fn(u64) -> T::Native + Send + Sync + 'static,
) -> Column {
    let fill = move |rows: Range<u64>| -> ArrayRef {
        Arc::new(PrimitiveArray::<T>::from_iter_values(rows.map(&value)))
    };
    Column::new(name, T::DATA_TYPE, Box::new(fill))
}

/// A column of words, at most 127 of them, chosen by index.
pub(super) fn words(
    name: &str,
    words: &[&str],
    index: impl Fn(u64) -> usize + Send + Sync + 'static,
) -> Column {
    let distinct = words.len() as u64;
    let values: ArrayRef = Arc::new(StringArray::from(words.to_vec()));
    let fill = move |rows: Range<u64>| -> ArrayRef {
        let keys = rows.map(|row| index(row) as i8);
        let keys = PrimitiveArray::<Int8Type>::from_iter_values(keys);
        Arc::new(DictionaryArray::new(keys, Arc::clone(&values)))
    };
    Column::new(name, word_type(), Box::new(fill)).of(distinct)
}

/// A column of text.
pub(super) fn texts(
    name: &str,
    write: impl Fn(u64, &mut String) + Send + Sync + 'static,
) -> Column {
    let fill = move |rows: Range<u64>| -> ArrayRef {
        let mut builder = StringBuilder::new();
        let mut text = String::new();
        for row in rows {
            text.clear();
            write(row, &mut text);
            builder.append_value(&text);
        }
        Arc::new(builder.finish())
    };
    Column::new(name, DataType::Utf8, Box::new(fill))
}

/// Event time: `start + event · interval − jitter`, the jitter uniform up to `disorder`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timeline {
    pub(super) start_ms: i64,
    pub(super) interval_ns: u64,
    pub(super) disorder_ns: u64,
    pub(super) seed: u64,
}

impl Timeline {
    /// From 'start', 'interval' and 'disorder'. Without an interval, time passes at the rate, or a
    /// microsecond a row.
    pub(super) fn new(
        options: OptionReader<'_>,
        seed: u64,
        rate: Option<u64>,
    ) -> Result<Self, ConnectorError> {
        let by_rate = rate.map_or(1_000, |rate| (1_000_000_000 / rate).max(1));
        Ok(Self {
            start_ms: options.timestamp_ms("start", super::START)?,
            interval_ns: options.duration_ns("interval")?.unwrap_or(by_rate),
            disorder_ns: options.duration_ns("disorder")?.unwrap_or(0),
            seed,
        })
    }

    /// Milliseconds of event `event`, before jitter.
    pub(super) fn nominal_ms(&self, event: u64) -> i64 {
        self.start_ms.saturating_add((event.saturating_mul(self.interval_ns) / 1_000_000) as i64)
    }

    /// The least that an event from `event` on can have.
    pub(super) fn least_ms(&self, event: u64) -> i64 {
        self.nominal_ms(event).saturating_sub(self.disorder_ns.div_ceil(1_000_000) as i64)
    }

    /// The column of event time, where row `row` is event `event(row)`.
    pub(super) fn column(
        self,
        name: &str,
        event: impl Fn(u64) -> u64 + Send + Sync + 'static,
    ) -> Column {
        let jitter = random::Column::new(self.seed, "disorder");
        let fill = move |rows: Range<u64>| -> ArrayRef {
            let values: Vec<i64> = match self.disorder_ns {
                0 => rows.map(|row| self.nominal_ms(event(row))).collect(),
                disorder_ns => rows
                    .map(|row| {
                        let event = event(row);
                        let late_ns = jitter.below(event, disorder_ns.saturating_add(1));
                        let offset_ns = event.saturating_mul(self.interval_ns) as i64;
                        let passed_ns = offset_ns.saturating_sub(late_ns as i64);
                        self.start_ms.saturating_add(passed_ns.div_euclid(1_000_000))
                    })
                    .collect(),
            };
            let values = ScalarBuffer::from(values);
            Arc::new(PrimitiveArray::<TimestampMillisecondType>::new(values, None))
        };
        Column { is_time: true, ..Column::new(name, time_type(), Box::new(fill)) }
    }
}
