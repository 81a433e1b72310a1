//! Columns of a declared table, each by its own `'fields.<column>.kind'`.
//!
//! ```sql
//! CREATE TABLE orders (id BIGINT, item VARCHAR, price DOUBLE, ts TIMESTAMP(3)) WITH (
//!     'connector' = 'generator',
//!     'fields.id.kind' = 'sequence',
//!     'fields.item.kind' = 'zipf', 'fields.item.max' = '500',
//!     'fields.price.min' = '0.5', 'fields.price.max' = '99.5')
//! ```

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BooleanArray, Float64Array, Int64Array, StringArray, UInt64Array,
};
use arrow::compute::{CastOptions, cast, cast_with_options, nullif, take};
use arrow::datatypes::{DataType, Field, Schema};
use dataflow::error::ConnectorError;
use dataflow::source::ColumnBounds;

use super::Model;
use super::columns::{Column, Fill, Timeline};
use super::distribution::{NAMES, Pareto, ValueDistribution};
use super::random::Column as Random;
use crate::options::{OptionReader, nearest, refuse, sql_type};

/// The properties of a column that a table declares.
pub(super) const KINDS: &[&str] =
    &["uniform", "zipf", "pareto", "sequence", "constant", "choice", "time"];

/// The settings of a column, in SQL: `fields.<column>.<setting>`.
pub(super) const SETTINGS: &[&str] =
    &["kind", "min", "max", "exponent", "value", "values", "null_rate"];

/// The largest number where 'max' is not given, as far as the type goes.
const MAX: f64 = 999_999.0;

pub(super) fn model(
    options: OptionReader<'_>,
    schema: &Schema,
    seed: u64,
    timeline: Timeline,
) -> Result<Model, ConnectorError> {
    check_keys(options, schema)?;
    let columns = schema.fields().iter().map(|field| {
        let setting = Setting { options, field };
        let column = setting.column(seed, timeline)?;
        setting.with_nulls(column, seed)
    });
    Ok(Model::rows(columns.collect::<Result<_, _>>()?))
}

/// Refuses settings of columns that do not exist, and settings that do not exist.
fn check_keys(options: OptionReader<'_>, schema: &Schema) -> Result<(), ConnectorError> {
    for key in options.0.keys() {
        let Some(rest) = key.strip_prefix("fields.") else { continue };
        let (column, setting) = rest.rsplit_once('.').unwrap_or((rest, ""));
        if schema.field_with_name(column).is_err() {
            let names = schema.fields().iter().map(|field| field.name().as_str());
            let hint = nearest(column, names).map(|near| format!("did you mean '{near}'?"));
            return Err(refuse(key, format!("there is no column '{column}'"), hint));
        }
        if !SETTINGS.contains(&setting) {
            let hint = match nearest(setting, SETTINGS.iter().copied()) {
                Some(near) => format!("did you mean 'fields.{column}.{near}'?"),
                None => format!("a column has {}", SETTINGS.join(", ")),
            };
            return Err(refuse(key, format!("there is no setting '{setting}'"), Some(hint)));
        }
    }
    Ok(())
}

/// The settings of one column.
#[derive(Clone, Copy)]
struct Setting<'a> {
    options: OptionReader<'a>,
    field: &'a Field,
}

impl Setting<'_> {
    fn key(&self, setting: &str) -> String {
        format!("fields.{}.{setting}", self.field.name())
    }

    fn column(&self, seed: u64, timeline: Timeline) -> Result<Column, ConnectorError> {
        let data_type = self.field.data_type();
        let is_time = matches!(data_type, DataType::Timestamp(..));
        let default = if is_time { 6 } else { 0 };
        let kind = self.options.choice(&self.key("kind"), KINDS)?.unwrap_or(default);
        let random = Random::new(seed, self.field.name());
        let (fill, distinct_max) = match KINDS[kind] {
            "time" if is_time => {
                return timeline.column(self.field.name(), |row| row).declared_as(self.field);
            }
            "constant" => (self.chosen(vec![self.required("value")?], random)?, Some(1)),
            "choice" => {
                let values = self.required("values")?;
                let values = values.split(',').map(|value| value.trim().to_owned());
                let values: Vec<_> = values.collect();
                let count = values.len() as u64;
                (self.chosen(values, random)?, Some(count))
            }
            _ if data_type.is_floating() || matches!(data_type, DataType::Decimal128(..)) => {
                (self.fractional(kind, random)?, None)
            }
            "sequence" | "uniform" | "zipf" | "pareto" => {
                let [min, max] = self.whole_bounds()?;
                let distribution = (KINDS[kind] != "sequence").then_some(kind);
                let distinct = ColumnBounds::between(min, max).distinct_max;
                (self.whole(distribution, random)?, distinct)
            }
            _ => return Err(self.unfit(&format!("'{}' does not make a", KINDS[kind]))),
        };
        let made = fill(0..1).data_type().clone();
        let column = Column::new(self.field.name(), made, fill).declared_as(self.field)?;
        Ok(Column { distinct_max, ..column })
    }

    /// Whole numbers: of a distribution, or in sequence.
    fn whole(&self, distribution: Option<usize>, random: Random) -> Result<Fill, ConnectorError> {
        let [min, max] = self.whole_bounds()?;
        let Some(name) = distribution else {
            let span = (max.wrapping_sub(min) as u64).saturating_add(1);
            return Ok(Box::new(move |rows: Range<u64>| -> ArrayRef {
                let values = rows.map(|row| min.wrapping_add((row % span) as i64));
                Arc::new(Int64Array::from_iter_values(values))
            }));
        };
        let distribution = ValueDistribution::new(name, min, max, self.exponent(NAMES[name])?);
        Ok(Box::new(move |rows: Range<u64>| -> ArrayRef {
            let values = rows.map(|row| distribution.draw(random.draws(row)));
            Arc::new(Int64Array::from_iter_values(values))
        }))
    }

    /// The least and the greatest whole number.
    fn whole_bounds(&self) -> Result<[i64; 2], ConnectorError> {
        let (min, max) = (self.bound("min", 0.0)?, self.bound("max", MAX)?);
        let (min, max) = (min.ceil() as i64, max.floor() as i64);
        if min > max {
            let message = format!("{max} is less than the min, {min}");
            return Err(refuse(&self.key("max"), message, None));
        }
        Ok([min, max])
    }

    /// Numbers with a fraction.
    fn fractional(&self, kind: usize, random: Random) -> Result<Fill, ConnectorError> {
        let min = self.bound("min", if KINDS[kind] == "pareto" { 1.0 } else { 0.0 })?;
        let max = self.bound("max", MAX)?;
        if min > max {
            return Err(refuse(
                &self.key("max"),
                format!("{max} is less than the min, {min}"),
                None,
            ));
        }
        let value: Box<dyn Fn(u64) -> f64 + Send + Sync> = match KINDS[kind] {
            "uniform" => Box::new(move |row| min + random.unit(row) * (max - min)),
            "pareto" => {
                if min <= 0.0 {
                    let message = "must be more than 0 for a Pareto distribution";
                    return Err(refuse(&self.key("min"), message, None));
                }
                let pareto = Pareto::new(min, max, self.exponent("pareto")?);
                Box::new(move |row| pareto.draw(random.unit(row)))
            }
            "zipf" | "sequence" => {
                let whole = self.whole((KINDS[kind] == "zipf").then_some(1), random)?;
                return Ok(Box::new(move |rows| {
                    let values = whole(rows);
                    cast(&values, &DataType::Float64).unwrap_or(values)
                }));
            }
            other => return Err(self.unfit(&format!("'{other}' does not make a"))),
        };
        Ok(Box::new(move |rows: Range<u64>| -> ArrayRef {
            Arc::new(Float64Array::from_iter_values(rows.map(&value)))
        }))
    }

    /// One of `values`, each as likely.
    fn chosen(&self, values: Vec<String>, random: Random) -> Result<Fill, ConnectorError> {
        let key = if values.len() == 1 { self.key("value") } else { self.key("values") };
        let data_type = self.field.data_type();
        let count = values.len() as u64;
        let strict = CastOptions { safe: false, ..Default::default() };
        let values = cast_with_options(&StringArray::from(values), data_type, &strict)
            .map_err(|error| refuse(&key, error.to_string(), None))?;
        Ok(Box::new(move |rows: Range<u64>| -> ArrayRef {
            let indices = UInt64Array::from_iter_values(rows.map(|row| random.below(row, count)));
            // An index below the number of values is never out of bounds.
            take(&values, &indices, None).unwrap_or_else(|_| Arc::clone(&values))
        }))
    }

    /// The column with a share of nulls.
    fn with_nulls(&self, column: Column, seed: u64) -> Result<Column, ConnectorError> {
        let key = self.key("null_rate");
        let rate =
            self.options.number(&key, 0.0, "of 0 to 1", |rate| (0.0..=1.0).contains(&rate))?;
        if rate == 0.0 {
            return Ok(column);
        }
        if !self.field.is_nullable() {
            return Err(refuse(&key, "the column is NOT NULL", None));
        }
        let random = Random::new(seed, &key);
        let inner = column.fill;
        let fill: Fill = Box::new(move |rows: Range<u64>| {
            let values = inner(rows.clone());
            let nulls: BooleanArray = rows.map(|row| Some(random.unit(row) < rate)).collect();
            nullif(&values, &nulls).unwrap_or(values)
        });
        Ok(Column { fill, ..column })
    }

    fn bound(&self, setting: &str, default: f64) -> Result<f64, ConnectorError> {
        let limit = match self.field.data_type() {
            DataType::Int8 => i8::MAX as f64,
            DataType::Int16 => i16::MAX as f64,
            DataType::UInt8 => u8::MAX as f64,
            DataType::UInt16 => u16::MAX as f64,
            DataType::Int32 => i32::MAX as f64,
            DataType::UInt32 => u32::MAX as f64,
            DataType::Boolean => 1.0,
            _ => 9e18,
        };
        let least = match self.field.data_type() {
            data_type if data_type.is_unsigned_integer() => 0.0,
            DataType::Boolean => 0.0,
            _ => -limit - 1.0,
        };
        let fits = |value: f64| (least..=limit).contains(&value);
        let range = format!("that fits {}", sql_type(self.field.data_type()));
        self.options.number(&self.key(setting), default.min(limit), &range, fits)
    }

    fn exponent(&self, distribution: &str) -> Result<f64, ConnectorError> {
        super::exponent(self.options, &self.key("exponent"), distribution)
    }

    fn required(&self, setting: &str) -> Result<String, ConnectorError> {
        let key = self.key(setting);
        self.options.required(&key, &format!("write '{key}' = '…'")).map(str::to_owned)
    }

    fn unfit(&self, what: &str) -> ConnectorError {
        ConnectorError::Column {
            column: self.field.name().clone(),
            message: format!("{what} {}", sql_type(self.field.data_type())),
            hint: Some(match self.field.data_type() {
                DataType::Timestamp(..) => {
                    format!("write '{}' = 'time', or leave it out", self.key("kind"))
                }
                _ => format!("write '{}' = 'choice' and its values", self.key("kind")),
            }),
        }
    }
}
