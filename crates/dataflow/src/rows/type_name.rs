//! The names under which users declare types: `TIMESTAMP(3)`, `ARRAY<INT>`, `ROW<x INT>`.

use arrow::datatypes::{DataType, FieldRef, TimeUnit};

/// The name of a type as `CREATE TABLE` takes it; Arrow's own where there is none. `text` is the
/// word for a text of any length: `STRING` or `VARCHAR`.
pub fn type_name(of: &DataType, text: &str) -> String {
    let name = |of: &DataType| type_name(of, text);
    match of {
        DataType::Null => "NULL".into(),
        DataType::Boolean => "BOOLEAN".into(),
        DataType::Int8 => "TINYINT".into(),
        DataType::Int16 => "SMALLINT".into(),
        DataType::Int32 => "INT".into(),
        DataType::Int64 => "BIGINT".into(),
        DataType::UInt8 => "TINYINT UNSIGNED".into(),
        DataType::UInt16 => "SMALLINT UNSIGNED".into(),
        DataType::UInt32 => "INT UNSIGNED".into(),
        DataType::UInt64 => "BIGINT UNSIGNED".into(),
        DataType::Float32 => "FLOAT".into(),
        DataType::Float64 => "DOUBLE".into(),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => text.into(),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => "BYTES".into(),
        DataType::Dictionary(_, value) => name(value),
        DataType::Date32 => "DATE".into(),
        DataType::Interval(_) | DataType::Duration(_) => "INTERVAL".into(),
        DataType::Decimal128(precision, scale) | DataType::Decimal256(precision, scale) => {
            format!("DECIMAL({precision}, {scale})")
        }
        DataType::Time32(unit) | DataType::Time64(unit) => format!("TIME({})", digits(*unit)),
        DataType::Timestamp(unit, None) => format!("TIMESTAMP({})", digits(*unit)),
        DataType::Timestamp(unit, Some(_)) => format!("TIMESTAMP_LTZ({})", digits(*unit)),
        DataType::List(element) => format!("ARRAY<{}>", name(element.data_type())),
        DataType::Struct(fields) => {
            let part = |field: &FieldRef| {
                let not_null = if field.is_nullable() { "" } else { " NOT NULL" };
                format!("{} {}{not_null}", field.name(), name(field.data_type()))
            };
            format!("ROW<{}>", fields.iter().map(part).collect::<Vec<_>>().join(", "))
        }
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(fields) => {
                let parts = fields.iter().map(|field| name(field.data_type()));
                format!("MAP<{}>", parts.collect::<Vec<_>>().join(", "))
            }
            other => other.to_string(),
        },
        other => other.to_string(),
    }
}

/// Decimal digits of a second's fraction.
fn digits(unit: TimeUnit) -> u8 {
    match unit {
        TimeUnit::Second => 0,
        TimeUnit::Millisecond => 3,
        TimeUnit::Microsecond => 6,
        TimeUnit::Nanosecond => 9,
    }
}
