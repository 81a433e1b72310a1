//! The columns of a table, as Delta Lake writes them.
//!
//! ```text
//! BIGINT long     INT integer        SMALLINT short   TINYINT byte    BOOLEAN boolean
//! DOUBLE double   FLOAT float        DECIMAL decimal(p,s)             DATE date
//! STRING string   BYTES binary       TIMESTAMP timestamp_ntz          TIMESTAMP_LTZ timestamp
//! ARRAY array     MAP map            ROW struct
//! ```
//!
//! Times have microseconds, so those of nanoseconds are refused, as is all that has no type there.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Schema, TimeUnit};
use dataflow::error::ConnectorError;
use serde_json::{Value, json};

use super::log::damaged;
use crate::options::sql_type;

/// Digits of a decimal at most.
const DIGITS_MAX: u8 = 38;
/// Types in each other at most.
const DEPTH_MAX: usize = 64;
/// Time zone of points in time.
const UTC: &str = "UTC";

/// The type of a column in files, and as JSON.
struct DeltaType {
    arrow: DataType,
    json: Value,
}

impl DeltaType {
    fn plain(arrow: DataType, name: &str) -> Self {
        Self { arrow, json: json!(name) }
    }
}

/// The columns of a table that is written.
#[derive(Debug, Clone)]
pub(super) struct DeltaColumns {
    /// The types that files have.
    pub(super) schema: Schema,
    /// Of each the type as JSON.
    pub(super) types: Vec<Value>,
}

impl DeltaColumns {
    /// # Errors
    /// When a column has a type that Delta Lake does not have.
    pub(super) fn of(schema: &Schema) -> Result<Self, ConnectorError> {
        let (mut fields, mut types) = (vec![], vec![]);
        for field in schema.fields() {
            let of = written(field.data_type()).map_err(|hint| ConnectorError::Column {
                column: field.name().clone(),
                message: format!("Delta Lake has no {}", sql_type(field.data_type())),
                hint: Some(hint.into()),
            })?;
            fields.push(Field::new(field.name(), of.arrow, field.is_nullable()));
            types.push(of.json);
        }
        Ok(Self { schema: Schema::new(fields), types })
    }

    /// All of them as JSON.
    pub(super) fn json(&self) -> Value {
        let fields = self.schema.fields().iter().zip(&self.types);
        let fields = fields.map(|(field, of)| as_field(field, of.clone()));
        json!({"type": "struct", "fields": fields.collect::<Vec<_>>()})
    }

    /// Whether there is a time without a time zone, of which readers have to know.
    pub(super) fn has_local_times(&self) -> bool {
        fn has(of: &Value) -> bool {
            match of {
                Value::String(name) => name == "timestamp_ntz",
                Value::Array(all) => all.iter().any(has),
                Value::Object(all) => {
                    all.iter().filter(|(key, _)| *key != "name").any(|(_, value)| has(value))
                }
                _ => false,
            }
        }
        self.types.iter().any(has)
    }
}

fn as_field(field: &Field, of: Value) -> Value {
    json!({"name": field.name(), "type": of, "nullable": field.is_nullable(), "metadata": {}})
}

/// The type of a column that is written; else what to write in its place.
fn written(of: &DataType) -> Result<DeltaType, &'static str> {
    let micros = |zone: Option<Arc<str>>| DataType::Timestamp(TimeUnit::Microsecond, zone);
    let within = |field: &FieldRef| -> Result<(FieldRef, Value), &'static str> {
        let inner = written(field.data_type())?;
        let field = field.as_ref().clone().with_data_type(inner.arrow);
        Ok((Arc::new(field), inner.json))
    };
    Ok(match of {
        DataType::Boolean => DeltaType::plain(of.clone(), "boolean"),
        DataType::Int8 => DeltaType::plain(of.clone(), "byte"),
        DataType::Int16 => DeltaType::plain(of.clone(), "short"),
        DataType::Int32 => DeltaType::plain(of.clone(), "integer"),
        DataType::Int64 => DeltaType::plain(of.clone(), "long"),
        DataType::Float32 => DeltaType::plain(of.clone(), "float"),
        DataType::Float64 => DeltaType::plain(of.clone(), "double"),
        DataType::Date32 => DeltaType::plain(of.clone(), "date"),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
            DeltaType::plain(DataType::Utf8, "string")
        }
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => {
            DeltaType::plain(DataType::Binary, "binary")
        }
        DataType::Dictionary(_, values) => written(values)?,
        DataType::Decimal128(digits, scale)
            if *digits <= DIGITS_MAX && (0..=digits.cast_signed()).contains(scale) =>
        {
            DeltaType::plain(of.clone(), &format!("decimal({digits},{scale})"))
        }
        DataType::Timestamp(TimeUnit::Nanosecond, _) => {
            return Err("its times have microseconds: CAST it to TIMESTAMP(6)");
        }
        DataType::Timestamp(_, None) => DeltaType::plain(micros(None), "timestamp_ntz"),
        DataType::Timestamp(_, Some(_)) => DeltaType::plain(micros(Some(UTC.into())), "timestamp"),
        DataType::List(field) | DataType::LargeList(field) => {
            let (field, inner) = within(field)?;
            let is_nullable = field.is_nullable();
            let json = json!({"type": "array", "elementType": inner, "containsNull": is_nullable});
            DeltaType { arrow: DataType::List(field), json }
        }
        DataType::Map(entries, ordered) => {
            let DataType::Struct(pair) = entries.data_type() else { return Err("leave it out") };
            let [key, value] = pair.as_ref() else { return Err("leave it out") };
            let ((key, of_key), (value, of_value)) = (within(key)?, within(value)?);
            let json = json!({
                "type": "map",
                "keyType": of_key,
                "valueType": of_value,
                "valueContainsNull": value.is_nullable(),
            });
            let pair = DataType::Struct(vec![key, value].into());
            let entries = Arc::new(entries.as_ref().clone().with_data_type(pair));
            DeltaType { arrow: DataType::Map(entries, *ordered), json }
        }
        DataType::Struct(fields) => {
            let all = fields.iter().map(within).collect::<Result<Vec<_>, _>>()?;
            let json = all.iter().map(|(field, of)| as_field(field, of.clone()));
            let json = json!({"type": "struct", "fields": json.collect::<Vec<_>>()});
            let fields: Vec<FieldRef> = all.into_iter().map(|(field, _)| field).collect();
            DeltaType { arrow: DataType::Struct(fields.into()), json }
        }
        DataType::Time32(_) | DataType::Time64(_) => {
            return Err("CAST it to TIMESTAMP(6) or STRING");
        }
        DataType::UInt8 | DataType::UInt16 | DataType::UInt32 | DataType::UInt64 => {
            return Err("CAST it to a type with a sign");
        }
        _ => return Err("CAST it to STRING, or leave it out"),
    })
}

/// The columns that a log has, as this program reads them.
///
/// # Errors
/// When they are damaged, or one has a type that is not read. `place` is that of the table.
pub(super) fn read_schema(place: &str, text: &str) -> Result<Schema, ConnectorError> {
    let damaged = |error: String| damaged(place, format!("its columns are damaged: {error}"));
    let json: Value = serde_json::from_str(text).map_err(|error| damaged(error.to_string()))?;
    match read_type(&json, DEPTH_MAX).map_err(damaged)? {
        DataType::Struct(fields) => Ok(Schema::new(fields)),
        of => Err(damaged(format!("they are of type {of}"))),
    }
}

fn read_type(json: &Value, depth: usize) -> Result<DataType, String> {
    if depth == 0 {
        return Err(format!("more than {DEPTH_MAX} types are in each other"));
    }
    let micros = |zone: Option<Arc<str>>| DataType::Timestamp(TimeUnit::Microsecond, zone);
    let inner = |key: &str| {
        json.get(key).ok_or_else(|| format!("a type has no {key}")).and_then(|of| {
            // One less for each that is around it.
            read_type(of, depth - 1)
        })
    };
    let flag = |key: &str| json.get(key).and_then(Value::as_bool).unwrap_or(true);
    if let Some(name) = json.as_str() {
        return Ok(match name {
            "string" => DataType::Utf8,
            "long" => DataType::Int64,
            "integer" => DataType::Int32,
            "short" => DataType::Int16,
            "byte" => DataType::Int8,
            "float" => DataType::Float32,
            "double" => DataType::Float64,
            "boolean" => DataType::Boolean,
            "binary" => DataType::Binary,
            "date" => DataType::Date32,
            "timestamp" => micros(Some(UTC.into())),
            "timestamp_ntz" => micros(None),
            other => decimal(other).ok_or_else(|| format!("type '{other}' is not read"))?,
        });
    }
    match json.get("type").and_then(Value::as_str) {
        Some("struct") => {
            let fields = json.get("fields").and_then(Value::as_array);
            let fields = fields.ok_or("a type of rows has no columns")?;
            let field = |of: &Value| -> Result<Field, String> {
                let name = of.get("name").and_then(Value::as_str).ok_or("a column has no name")?;
                let json = of.get("type").ok_or("a column has no type")?;
                let is_nullable = of.get("nullable").and_then(Value::as_bool).unwrap_or(true);
                Ok(Field::new(name, read_type(json, depth - 1)?, is_nullable))
            };
            let fields = fields.iter().map(field).collect::<Result<Vec<_>, _>>()?;
            Ok(DataType::Struct(fields.into()))
        }
        Some("array") => {
            let element = Field::new("item", inner("elementType")?, flag("containsNull"));
            Ok(DataType::List(Arc::new(element)))
        }
        Some("map") => {
            let key = Field::new("key", inner("keyType")?, false);
            let value = Field::new("value", inner("valueType")?, flag("valueContainsNull"));
            let pair = DataType::Struct(vec![key, value].into());
            Ok(DataType::Map(Arc::new(Field::new("entries", pair, false)), false))
        }
        _ => Err("a type has no name".into()),
    }
}

/// `decimal(10,2)`.
fn decimal(name: &str) -> Option<DataType> {
    let (digits, scale) = name.strip_prefix("decimal(")?.strip_suffix(')')?.split_once(',')?;
    let digits = digits.trim().parse::<u8>().ok()?;
    let scale = scale.trim().parse::<i8>().ok()?;
    let fits = (1..=DIGITS_MAX).contains(&digits) && (0..=digits.cast_signed()).contains(&scale);
    fits.then_some(DataType::Decimal128(digits, scale))
}

/// A type without what may differ between writers: names and marks of what may be NULL within.
pub(super) fn bare(of: &Value) -> Value {
    match of {
        Value::Object(all) => {
            let passes = |key: &str| {
                !["containsNull", "valueContainsNull", "nullable", "metadata"].contains(&key)
            };
            let left = all.iter().filter(|(key, _)| passes(key));
            Value::Object(left.map(|(key, of)| (key.clone(), bare(of))).collect())
        }
        Value::Array(all) => Value::Array(all.iter().map(bare).collect()),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(fields: Vec<Field>) -> Schema {
        Schema::new(fields)
    }

    #[test]
    fn columns_are_read_as_they_were_written() {
        let ms = |zone: Option<Arc<str>>| DataType::Timestamp(TimeUnit::Millisecond, zone);
        let pair = vec![Field::new("a", DataType::Int8, true), Field::new("b", ms(None), false)];
        let map = Field::new_map(
            "map",
            "entries",
            Field::new("key", DataType::Utf8, false),
            Field::new("value", DataType::Binary, true),
            false,
            true,
        );
        let texts = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
        let given = schema(vec![
            Field::new("n", DataType::Int64, false),
            Field::new("d", DataType::Decimal128(10, 2), true),
            Field::new("t", ms(Some("Europe/Zurich".into())), true),
            Field::new("text", texts, true),
            Field::new_list("list", Field::new("item", DataType::Date32, true), true),
            map.clone(),
            Field::new("row", DataType::Struct(pair.into()), true),
        ]);
        let columns = DeltaColumns::of(&given).unwrap();
        assert!(columns.has_local_times());
        let read = read_schema("t", &columns.json().to_string()).unwrap();
        assert_eq!(read, columns.schema);
        assert_eq!(columns.types[1], json!("decimal(10,2)"));
        let plain = schema(vec![Field::new("timestamp_ntz", DataType::Int64, true)]);
        assert!(!DeltaColumns::of(&plain).unwrap().has_local_times());
    }

    #[test]
    fn a_type_that_is_not_there_is_refused_with_its_column() {
        let nanos = DataType::Timestamp(TimeUnit::Nanosecond, None);
        let list = DataType::List(Arc::new(Field::new("item", nanos.clone(), true)));
        let times = DataType::Time64(TimeUnit::Microsecond);
        let others = [DataType::UInt64, times, DataType::Null, DataType::Decimal256(40, 2)];
        for of in [nanos, list].into_iter().chain(others) {
            let given = schema(vec![Field::new("x", of.clone(), true)]);
            match DeltaColumns::of(&given).unwrap_err() {
                ConnectorError::Column { column, hint: Some(_), .. } => assert_eq!(column, "x"),
                other => panic!("{of}: {other}"),
            }
        }
    }

    #[test]
    fn columns_that_are_damaged_are_errors() {
        let deep = "[".repeat(200);
        let mut nested = json!("long");
        for _ in 0..DEPTH_MAX {
            nested = json!({"type": "array", "elementType": nested});
        }
        let nested = json!({"type": "struct", "fields": [{"name": "x", "type": nested}]});
        let texts = ["", "7", "\"long\"", r#"{"type":"struct"}"#, &deep, &nested.to_string()]
            .map(str::to_owned);
        for text in texts {
            let error = read_schema("t", &text).unwrap_err().to_string();
            assert!(error.contains("its columns are damaged"), "{text}: {error}");
        }
        for name in ["decimal(39,2)", "decimal(2,3)", "decimal(2)", "variant"] {
            let field = json!({"name": "x", "type": name});
            let text = json!({"type": "struct", "fields": [field]}).to_string();
            let error = read_schema("t", &text).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }
}
