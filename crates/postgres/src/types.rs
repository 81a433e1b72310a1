//! Types of columns, in SQL here and in Postgres.
//!
//! ```text
//! BOOLEAN                     boolean             TIMESTAMP(0..6)      timestamp
//! TINYINT, SMALLINT           smallint            TIMESTAMP_LTZ(0..6)  timestamptz
//! INT, SMALLINT UNSIGNED      integer             DATE, TIME(0..6)     date, time
//! BIGINT, INT UNSIGNED        bigint              STRING               text, and any other type
//! BIGINT UNSIGNED, DECIMAL    numeric             BYTES                bytea
//! FLOAT, DOUBLE               real, double        ARRAY<t>             t[]
//! ```
//!
//! A column of Postgres may be wider: a `bigint` for an INT, a `numeric` for any whole number. A
//! narrower one would lose something, and is refused before the first row.

use arrow::datatypes::{DataType, Schema, TimeUnit};
use connectors::nearest;
use dataflow::error::ConnectorError;
use dataflow::type_name::type_name;

/// The type in Postgres of a type here; `None` if it has none.
pub(crate) fn type_of(of: &DataType) -> Option<String> {
    Some(match of {
        DataType::Boolean => "boolean".into(),
        DataType::Int8 | DataType::Int16 | DataType::UInt8 => "smallint".into(),
        DataType::Int32 | DataType::UInt16 => "integer".into(),
        DataType::Int64 | DataType::UInt32 => "bigint".into(),
        DataType::UInt64 => "numeric(20, 0)".into(),
        DataType::Decimal128(precision, scale) | DataType::Decimal256(precision, scale) => {
            format!("numeric({precision}, {scale})")
        }
        DataType::Float32 => "real".into(),
        DataType::Float64 => "double precision".into(),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "text".into(),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => "bytea".into(),
        DataType::Date32 => "date".into(),
        DataType::Time32(unit) | DataType::Time64(unit) => format!("time({})", digits(*unit)?),
        DataType::Timestamp(unit, None) => format!("timestamp({})", digits(*unit)?),
        DataType::Timestamp(unit, Some(_)) => format!("timestamptz({})", digits(*unit)?),
        DataType::List(element) if !element.data_type().is_nested() => {
            format!("{}[]", type_of(element.data_type())?)
        }
        DataType::Dictionary(_, value) => type_of(value)?,
        _ => return None,
    })
}

/// Digits of a second; Postgres keeps six.
fn digits(unit: TimeUnit) -> Option<u8> {
    match unit {
        TimeUnit::Second => Some(0),
        TimeUnit::Millisecond => Some(3),
        TimeUnit::Microsecond => Some(6),
        TimeUnit::Nanosecond => None,
    }
}

/// Checks that columns have types that Postgres has.
///
/// # Errors
/// When one has not.
pub(crate) fn check_types(schema: &Schema) -> Result<(), ConnectorError> {
    for field in schema.fields() {
        if type_of(field.data_type()).is_some() {
            continue;
        }
        let shown = type_name(field.data_type(), "STRING");
        let hint = match field.data_type() {
            DataType::Timestamp(..) | DataType::Time64(_) => "declare six digits: TIMESTAMP(6)",
            _ => "give its parts columns of their own, or CAST it to STRING",
        };
        return Err(ConnectorError::Column {
            column: field.name().clone(),
            message: format!("Postgres has no type for {shown}"),
            hint: Some(hint.into()),
        });
    }
    Ok(())
}

/// A column that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PgColumn {
    pub(crate) name: String,
    /// Its type without precision, such as `timestamp without time zone`.
    pub(crate) pg_type: String,
    /// Whether a row may leave it out: it has a default or may be NULL.
    pub(crate) is_optional: bool,
}

/// Types of Postgres that take every value of a type; `None`: all do.
fn takers(of: &DataType) -> Option<&'static [&'static str]> {
    Some(match of {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => return None,
        DataType::Boolean => &["boolean"],
        DataType::Int8 | DataType::Int16 | DataType::UInt8 => {
            &["smallint", "integer", "bigint", "numeric"]
        }
        DataType::Int32 | DataType::UInt16 => &["integer", "bigint", "numeric"],
        DataType::Int64 | DataType::UInt32 => &["bigint", "numeric"],
        DataType::UInt64 | DataType::Decimal128(..) | DataType::Decimal256(..) => &["numeric"],
        DataType::Float32 => &["real", "double precision"],
        DataType::Float64 => &["double precision"],
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => &["bytea"],
        DataType::Date32 => &["date"],
        DataType::Time32(_) | DataType::Time64(_) => &["time without time zone"],
        DataType::Timestamp(_, None) => &["timestamp without time zone"],
        DataType::Timestamp(_, Some(_)) => &["timestamp with time zone"],
        DataType::Dictionary(_, value) => return takers(value),
        _ => &[],
    })
}

/// Whether a column of Postgres takes every value of a type.
fn takes(pg_type: &str, of: &DataType) -> bool {
    match of {
        DataType::List(element) => pg_type
            .strip_suffix("[]")
            .is_some_and(|of_element| takes(of_element, element.data_type())),
        of => takers(of).is_none_or(|takers| takers.contains(&pg_type)),
    }
}

/// Checks that a table has the declared columns, and that they take every value.
///
/// # Errors
/// The error for the author of the SQL where types do not fit.
pub(crate) fn check_columns(declared: &Schema, there: &[PgColumn]) -> Result<(), ConnectorError> {
    for field in declared.fields() {
        let unfit = |message: String, hint: Option<String>| {
            Err(ConnectorError::Column { column: field.name().clone(), message, hint })
        };
        let shown = type_name(field.data_type(), "STRING");
        let Some(own) = there.iter().find(|own| own.name == *field.name()) else {
            let near = nearest(field.name(), there.iter().map(|own| own.name.as_str()));
            let hint = near.map(|near| format!("did you mean '{near}'?"));
            return unfit("the table in Postgres has no such column".into(), hint);
        };
        if !takes(&own.pg_type, field.data_type()) {
            let hint = type_of(field.data_type()).map(|fit| {
                format!("make it {fit} there, or CAST here and declare what the column has")
            });
            return unfit(format!("{shown} does not fit into {} of Postgres", own.pg_type), hint);
        }
    }
    let is_declared = |own: &&PgColumn| declared.fields().iter().any(|of| *of.name() == own.name);
    match there.iter().find(|own| !own.is_optional && !is_declared(own)) {
        None => Ok(()),
        Some(own) => Err(ConnectorError::Column {
            column: own.name.clone(),
            message: "the table in Postgres wants a value for it, and it is not declared".into(),
            hint: Some("declare it, or give it a default there".into()),
        }),
    }
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::Field;

    use super::*;

    #[test]
    fn a_narrower_column_is_refused() {
        let of = |data_type| Schema::new(vec![Field::new("a", data_type, true)]);
        let there = |pg_type: &str| {
            [PgColumn { name: "a".into(), pg_type: pg_type.into(), is_optional: true }]
        };
        let is_fit = |data_type, pg_type| check_columns(&of(data_type), &there(pg_type)).is_ok();
        assert!(is_fit(DataType::Int32, "bigint") && !is_fit(DataType::Int64, "integer"));
        assert!(is_fit(DataType::Utf8, "jsonb") && !is_fit(DataType::Float64, "real"));
        let stamp = DataType::Timestamp(TimeUnit::Millisecond, None);
        assert!(!is_fit(stamp.clone(), "date"));
        assert!(!is_fit(stamp, "timestamp with time zone"));
        let list = DataType::List(Field::new("item", DataType::Int32, true).into());
        assert!(is_fit(list.clone(), "bigint[]") && !is_fit(list, "smallint[]"));
        assert!(check_types(&of(DataType::Timestamp(TimeUnit::Nanosecond, None))).is_err());
    }

    #[test]
    fn a_column_that_is_missing_is_named() {
        let declared = Schema::new(vec![Field::new("prize", DataType::Int64, true)]);
        let there =
            |is_optional| PgColumn { name: "price".into(), pg_type: "bigint".into(), is_optional };
        let error = check_columns(&declared, &[there(true)]).unwrap_err();
        let ConnectorError::Column { column, hint, .. } = error else { panic!() };
        assert_eq!((column.as_str(), hint.as_deref()), ("prize", Some("did you mean 'price'?")));
        let error = check_columns(&Schema::empty(), &[there(false)]).unwrap_err();
        assert!(error.to_string().contains("wants a value"), "{error}");
    }
}
