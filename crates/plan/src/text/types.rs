//! SQL's types as Arrow's, after Flink: `TIMESTAMP` has microseconds unless it says otherwise.

use std::sync::Arc;

use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DataType, Field, FieldRef, TimeUnit};
use dataflow::type_name::type_name;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::planner::TypePlanner;
use datafusion::sql::sqlparser::ast::{
    ArrayElemTypeDef, DataType as SqlType, ExactNumberInfo, TimezoneInfo,
};

/// Types in DDL, for hints.
pub(crate) const TYPE_NAMES: &[&str] = &[
    "STRING",
    "VARCHAR",
    "CHAR",
    "BOOLEAN",
    "TINYINT",
    "SMALLINT",
    "INT",
    "BIGINT",
    "FLOAT",
    "DOUBLE",
    "DECIMAL",
    "DATE",
    "TIME",
    "TIMESTAMP",
    "TIMESTAMP_LTZ",
    "BYTES",
    "BINARY",
    "VARBINARY",
    "ARRAY",
    "MAP",
    "ROW",
];

/// The Arrow type of a SQL type.
///
/// # Errors
/// The message for the user.
pub(crate) fn arrow_type(sql: &SqlType) -> std::result::Result<DataType, String> {
    Ok(match sql {
        SqlType::Boolean | SqlType::Bool => DataType::Boolean,
        SqlType::TinyInt(_) => DataType::Int8,
        SqlType::SmallInt(_) => DataType::Int16,
        SqlType::Int(_) | SqlType::Integer(_) => DataType::Int32,
        SqlType::BigInt(_) => DataType::Int64,
        SqlType::TinyIntUnsigned(_) => DataType::UInt8,
        SqlType::SmallIntUnsigned(_) => DataType::UInt16,
        SqlType::IntUnsigned(_) | SqlType::IntegerUnsigned(_) => DataType::UInt32,
        SqlType::BigIntUnsigned(_) => DataType::UInt64,
        SqlType::Float(_) | SqlType::Real => DataType::Float32,
        SqlType::Double(_) | SqlType::DoublePrecision => DataType::Float64,
        SqlType::String(_)
        | SqlType::Text
        | SqlType::Varchar(_)
        | SqlType::Char(_)
        | SqlType::Character(_)
        | SqlType::CharacterVarying(_)
        | SqlType::CharVarying(_) => DataType::Utf8,
        SqlType::Bytes(_)
        | SqlType::Binary(_)
        | SqlType::Varbinary(_)
        | SqlType::Blob(_)
        | SqlType::Bytea => DataType::Binary,
        SqlType::Date => DataType::Date32,
        SqlType::Time(precision, TimezoneInfo::None | TimezoneInfo::WithoutTimeZone) => {
            time(*precision)?
        }
        SqlType::Timestamp(precision, zone) => {
            let local = matches!(zone, TimezoneInfo::Tz | TimezoneInfo::WithTimeZone);
            timestamp(*precision, local)?
        }
        SqlType::Decimal(info) | SqlType::Numeric(info) | SqlType::Dec(info) => decimal(info)?,
        SqlType::Array(
            ArrayElemTypeDef::AngleBracket(element) | ArrayElemTypeDef::SquareBracket(element, _),
        ) => DataType::List(Arc::new(Field::new_list_field(arrow_type(element)?, true))),
        SqlType::Custom(name, arguments) => custom(&name.to_string(), arguments)?,
        _ => return Err(format!("type {sql} is not supported")),
    })
}

fn custom(name: &str, arguments: &[String]) -> std::result::Result<DataType, String> {
    let precision = match arguments {
        [] => None,
        [digits] => digits.parse().ok(),
        _ => return Err(format!("type {name} takes one precision")),
    };
    match name.to_uppercase().as_str() {
        "TIMESTAMP_LTZ" => timestamp(precision, true),
        "TIMESTAMP_NTZ" => timestamp(precision, false),
        _ => Err(format!("unknown type '{name}'")),
    }
}

fn unit(precision: Option<u64>) -> std::result::Result<TimeUnit, String> {
    match precision.unwrap_or(6) {
        0 => Ok(TimeUnit::Second),
        1..=3 => Ok(TimeUnit::Millisecond),
        4..=6 => Ok(TimeUnit::Microsecond),
        7..=9 => Ok(TimeUnit::Nanosecond),
        other => Err(format!("a precision of {other} is not possible: it is 0 to 9")),
    }
}

fn timestamp(precision: Option<u64>, local: bool) -> std::result::Result<DataType, String> {
    Ok(DataType::Timestamp(unit(precision)?, local.then(|| "UTC".into())))
}

fn time(precision: Option<u64>) -> std::result::Result<DataType, String> {
    Ok(match unit(Some(precision.unwrap_or(0)))? {
        unit @ (TimeUnit::Second | TimeUnit::Millisecond) => DataType::Time32(unit),
        unit => DataType::Time64(unit),
    })
}

fn decimal(info: &ExactNumberInfo) -> std::result::Result<DataType, String> {
    let (precision, scale) = match *info {
        ExactNumberInfo::None => (10, 0),
        ExactNumberInfo::Precision(precision) => (precision, 0),
        ExactNumberInfo::PrecisionAndScale(precision, scale) => (precision, scale),
    };
    if !(1..=u64::from(DECIMAL128_MAX_PRECISION)).contains(&precision) {
        return Err(format!(
            "a decimal has 1 to {DECIMAL128_MAX_PRECISION} digits, not {precision}"
        ));
    }
    if !(0..=precision as i64).contains(&scale) {
        return Err(format!("a decimal of {precision} digits cannot have {scale} after the point"));
    }
    Ok(DataType::Decimal128(precision as u8, scale as i8))
}

/// The name of a type in SQL, for messages.
pub(crate) fn sql_name(of: &DataType) -> String {
    type_name(of, "STRING")
}

/// Gives the types above to expressions too: `CAST(x AS TIMESTAMP_LTZ(3))`.
#[derive(Debug)]
pub(crate) struct Types;

impl TypePlanner for Types {
    fn plan_type_field(&self, sql: &SqlType) -> Result<Option<FieldRef>> {
        match arrow_type(sql) {
            Ok(data_type) => Ok(Some(Arc::new(Field::new("", data_type, true)))),
            Err(_) if !matches!(sql, SqlType::Custom(..)) => Ok(None),
            Err(message) => Err(DataFusionError::Plan(message)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::syntax::{parser, split};

    fn of(sql: &str) -> std::result::Result<DataType, String> {
        let tokens = split(sql).expect("tokens");
        arrow_type(&parser(&tokens[0]).parse_data_type().expect("a type"))
    }

    #[test]
    fn types_of_flink_have_arrow_types() {
        let ts = |unit| Ok(DataType::Timestamp(unit, None));
        for (sql, expected) in [
            ("STRING", Ok(DataType::Utf8)),
            ("VARCHAR(20)", Ok(DataType::Utf8)),
            ("INT", Ok(DataType::Int32)),
            ("BIGINT", Ok(DataType::Int64)),
            ("SMALLINT", Ok(DataType::Int16)),
            ("TINYINT", Ok(DataType::Int8)),
            ("DOUBLE", Ok(DataType::Float64)),
            ("FLOAT", Ok(DataType::Float32)),
            ("BOOLEAN", Ok(DataType::Boolean)),
            ("BYTES", Ok(DataType::Binary)),
            ("DATE", Ok(DataType::Date32)),
            ("TIME", Ok(DataType::Time32(TimeUnit::Second))),
            ("TIMESTAMP", ts(TimeUnit::Microsecond)),
            ("TIMESTAMP(0)", ts(TimeUnit::Second)),
            ("TIMESTAMP(3)", ts(TimeUnit::Millisecond)),
            ("TIMESTAMP(9)", ts(TimeUnit::Nanosecond)),
            (
                "TIMESTAMP_LTZ(3)",
                Ok(DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into()))),
            ),
            ("DECIMAL(12, 2)", Ok(DataType::Decimal128(12, 2))),
            ("DECIMAL", Ok(DataType::Decimal128(10, 0))),
        ] {
            assert_eq!(of(sql), expected, "{sql}");
        }
        for sql in ["TIMESTAMP(12)", "DECIMAL(50, 2)", "DECIMAL(5, 7)", "STRIN"] {
            assert!(of(sql).is_err(), "{sql}");
        }
    }

    #[test]
    fn names_of_types_are_read_back() {
        for name in ["BIGINT", "TIMESTAMP(3)", "TIMESTAMP_LTZ(6)", "DECIMAL(9, 4)", "ARRAY<INT>"] {
            assert_eq!(sql_name(&of(name).expect(name)), name);
        }
    }
}
