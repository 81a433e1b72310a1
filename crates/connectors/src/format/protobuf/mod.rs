//! Protobuf: messages of a type that a file or a registry describes.
//!
//! ```text
//! repeated   ARRAY        map          MAP         message   ROW, its fields by their names
//! enum       STRING, or INT            bytes       BYTES     uint64    BIGINT, if it fits
//! google.protobuf.Timestamp   TIMESTAMP, or ROW<seconds BIGINT, nanos INT>
//! google.protobuf.Int64Value and its like   the value, or NULL
//! ```
//!
//! A message is that of a log such as Kafka, or one of a stream, behind its length (`stream`).
//!
//! The columns that are declared say what is read. A field that is not in a message is NULL where
//! its presence can be told, and has its default otherwise, as in Flink; lists and maps without
//! values are NULL. 'protobuf.read-default-values' gives the defaults instead.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, Schema, TimeUnit};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;
use prost_reflect::{
    DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, ReflectMessage, Value,
};

use super::cells::{CellValues, GrowingRows, ValueCells};
use super::rows::{TargetColumns, find_columns};
use super::typed::Mapping;

mod describe;
mod encode;
mod options;
mod stream;
#[cfg(test)]
mod tests;

use describe::described;
pub(crate) use describe::{compiled, message_at, message_named};
pub(crate) use encode::ProtoEncoder;
pub(crate) use options::{DEFAULTS, MESSAGE_NAME, OPTIONS, ProtoFormat, proto_null, proto_type};
pub(crate) use stream::ProtoDecoder;

/// A field of a message that becomes a column, or a part of one.
#[derive(Debug, Clone)]
struct ProtoField {
    field: FieldDescriptor,
    /// The fields of its message that are read; of a list or a map, of that of its values.
    fields: Vec<ProtoField>,
}

/// The plan and the type of a field, which becomes a column or a part of the type `declared`.
///
/// # Errors
/// Why it cannot.
fn planned(field: &FieldDescriptor, declared: &DataType) -> Result<(ProtoField, DataType), String> {
    let (kind, mut fields) = (field.kind(), vec![]);
    let data_type = match (&kind, declared) {
        (Kind::Message(entry), DataType::Map(entries, _)) if field.is_map() => {
            let DataType::Struct(declared) = entries.data_type() else {
                return Err("a MAP has no entries".into());
            };
            let of =
                |at: usize| declared.get(at).map_or(&DataType::Null, |field| field.data_type());
            let (key, value) = (entry.map_entry_key_field(), entry.map_entry_value_field());
            let key = kind_type(&key.kind(), of(0), &mut fields)?;
            let value = kind_type(&value.kind(), of(1), &mut fields)?;
            let entries = [Field::new("key", key, false), Field::new("value", value, true)];
            let entries = DataType::Struct(entries.into_iter().collect());
            DataType::Map(Arc::new(Field::new("entries", entries, false)), false)
        }
        (_, _) if field.is_map() => return Err("it is a map: declare a MAP".into()),
        (kind, DataType::List(item) | DataType::LargeList(item)) if field.is_list() => {
            DataType::new_list(kind_type(kind, item.data_type(), &mut fields)?, true)
        }
        (_, _) if field.is_list() => return Err("it is repeated: declare an ARRAY".into()),
        (kind, declared) => kind_type(kind, declared, &mut fields)?,
    };
    Ok((ProtoField { field: field.clone(), fields }, data_type))
}

fn kind_type(
    kind: &Kind,
    declared: &DataType,
    fields: &mut Vec<ProtoField>,
) -> Result<DataType, String> {
    Ok(match kind {
        Kind::Double => DataType::Float64,
        Kind::Float => DataType::Float32,
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => DataType::Int32,
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 | Kind::Uint32 | Kind::Fixed32 => {
            DataType::Int64
        }
        Kind::Uint64 | Kind::Fixed64 => DataType::UInt64,
        Kind::Bool => DataType::Boolean,
        Kind::String => DataType::Utf8,
        Kind::Bytes => DataType::Binary,
        Kind::Enum(_) if declared.is_integer() => DataType::Int32,
        Kind::Enum(_) => DataType::Utf8,
        Kind::Message(message) => match declared {
            DataType::Struct(declared) => {
                let names: Vec<_> = message.fields().map(|own| own.name().to_owned()).collect();
                let found = find_columns(&Schema::new(declared.clone()), &names);
                let mut columns = vec![];
                for (own, found) in declared.iter().zip(found) {
                    let field = found.and_then(|at| message.get_field_by_name(&names[at]));
                    let Some(field) = field else { continue };
                    let (plan, data_type) = planned(&field, own.data_type())
                        .map_err(|reason| format!("field '{}': {reason}", field.name()))?;
                    columns.push(Field::new(own.name(), data_type, true));
                    fields.push(plan);
                }
                DataType::Struct(Fields::from(columns))
            }
            DataType::Timestamp(unit, _) if is_time(message) => DataType::Timestamp(*unit, None),
            declared => match wrapped(message) {
                Some(value) => kind_type(&value.kind(), declared, fields)?,
                None => {
                    return Err(format!(
                        "it is a message '{}': declare a ROW",
                        message.full_name()
                    ));
                }
            },
        },
    })
}

/// Messages within each other that become ROWs, where nothing is declared.
const ROWS_MAX: usize = 3;

/// Fields within a column at most, where nothing is declared.
const FIELDS_MAX: usize = 10_000;

/// The columns that the fields of a message can be, where nothing is declared.
pub(crate) fn columns_of(message: &MessageDescriptor) -> Schema {
    let columns = message.fields().filter_map(|field| {
        let mut left = FIELDS_MAX + 1;
        let wanted = wanted(&field, ROWS_MAX, &mut left).filter(|_| left > 0)?;
        let (_, data_type) = planned(&field, &wanted).ok()?;
        Some(Field::new(field.name(), data_type, true))
    });
    Schema::new(columns.collect::<Vec<_>>())
}

/// A type that a field can be; `None` where it is a message within too many others. It is not whole
/// when no fields are `left`.
fn wanted(field: &FieldDescriptor, rows_left: usize, left: &mut usize) -> Option<DataType> {
    *left = left.checked_sub(1)?;
    let kind = match field.kind() {
        Kind::Message(entry) if field.is_map() => {
            let value = wanted(&entry.map_entry_value_field(), rows_left, left)?;
            let value = Field::new("value", value, true);
            let entries = [Field::new("key", DataType::Null, false), value];
            let entries = DataType::Struct(entries.into_iter().collect());
            return Some(DataType::Map(Arc::new(Field::new("entries", entries, false)), false));
        }
        // It has the years that these messages have; shorter times are cut.
        Kind::Message(message) if is_time(&message) => {
            DataType::Timestamp(TimeUnit::Microsecond, None)
        }
        Kind::Message(message) if wrapped(&message).is_some() => DataType::Null,
        Kind::Message(message) => {
            let rows_left = rows_left.checked_sub(1)?;
            let fields = message.fields();
            let fields = fields.filter_map(|field| {
                Some(Field::new(field.name(), wanted(&field, rows_left, left)?, true))
            });
            DataType::Struct(fields.collect())
        }
        _ => DataType::Null,
    };
    Some(if field.is_list() { DataType::new_list(kind, true) } else { kind })
}

/// The type of points in time.
const TIMESTAMP: &str = "google.protobuf.Timestamp";

/// Whether a message is a point in time.
fn is_time(message: &MessageDescriptor) -> bool {
    let is = |number: u32, kind: Kind| {
        let field = message.get_field(number);
        field.is_some_and(|field| !field.is_list() && field.kind() == kind)
    };
    message.full_name() == TIMESTAMP && is(1, Kind::Int64) && is(2, Kind::Int32)
}

/// The field of a message that is there for its value alone, such as `google.protobuf.Int64Value`.
fn wrapped(message: &MessageDescriptor) -> Option<FieldDescriptor> {
    let name = message.full_name().strip_prefix("google.protobuf.")?.strip_suffix("Value")?;
    let is_one = matches!(
        name,
        "Double" | "Float" | "Int64" | "UInt64" | "Int32" | "UInt32" | "Bool" | "String" | "Bytes"
    );
    // Another file of this name may have anything there, also the message itself.
    let is_value = |field: &FieldDescriptor| {
        !field.is_list() && !matches!(field.kind(), Kind::Message(_) | Kind::Enum(_))
    };
    message.get_field(1).filter(|field| is_one && is_value(field))
}

/// Messages of one type becoming rows.
pub(crate) struct ProtoRows {
    message: MessageDescriptor,
    /// Those that are read, in the order of the columns.
    fields: Vec<ProtoField>,
    rows: GrowingRows,
    /// Whether fields that are not there have their defaults.
    defaults: bool,
}

impl ProtoRows {
    /// For messages of a type, which is called `place` in errors.
    ///
    /// # Errors
    /// When it does not fit the table.
    pub(crate) fn new(
        target: &TargetColumns,
        message: &MessageDescriptor,
        place: &str,
        defaults: bool,
    ) -> Result<Self, ConnectorError> {
        let names: Vec<_> = message.fields().map(|field| field.name().to_owned()).collect();
        let found = target.match_columns(&names, place)?;
        let (mut fields, mut columns) = (vec![], vec![]);
        for (declared, found) in target.declared.fields().iter().zip(found) {
            let field = found.and_then(|at| message.get_field_by_name(&names[at]));
            let Some(field) = field else { continue };
            let (plan, data_type) = planned(&field, declared.data_type())
                .map_err(|reason| unfit(declared.name(), &reason, place))?;
            columns.push(Field::new(field.name(), data_type, true));
            fields.push(plan);
        }
        let rows = GrowingRows::new(target, &Schema::new(columns), place)?;
        let read = rows.mapping.columns_read();
        let fields = read.into_iter().map(|column| fields[column].clone()).collect();
        Ok(Self { message: message.clone(), fields, rows, defaults })
    }

    /// Reads a row that is all of a message.
    ///
    /// # Errors
    /// Why it is none; then nothing was added.
    pub(crate) fn push(&mut self, message: &[u8]) -> Result<(), String> {
        let message = DynamicMessage::decode(self.message.clone(), message);
        let message = message.map_err(|error| error.to_string())?;
        let (fields, defaults) = (&self.fields, self.defaults);
        self.rows.push(|columns| {
            fields
                .iter()
                .zip(columns)
                .try_for_each(|(field, to)| field.read(&message, defaults, to))
        })
    }

    /// The rows as the data have them, which are none afterwards.
    pub(crate) fn finish(&mut self) -> Result<RecordBatch, ArrowError> {
        self.rows.finish()
    }

    pub(crate) fn mapping(&self) -> &Mapping {
        &self.rows.mapping
    }
}

fn unfit(column: &str, reason: &str, place: &str) -> ConnectorError {
    ConnectorError::Column {
        column: column.to_owned(),
        message: format!("{place}: {reason}"),
        hint: Some("docs/connectors.md has the types of Protobuf".into()),
    }
}

impl ProtoField {
    /// Reads the field of a message.
    fn read(
        &self,
        from: &DynamicMessage,
        defaults: bool,
        to: &mut ValueCells,
    ) -> Result<(), String> {
        let field = &self.field;
        let has_default = !field.supports_presence() && !field.is_list() && !field.is_map();
        let is_message = matches!(field.kind(), Kind::Message(_)) && !field.is_list();
        let is_single = is_message && !field.is_map();
        if !from.has_field(field) && (is_single || !(has_default || defaults)) {
            return to.push_null();
        }
        let read = match &*from.get_field(field) {
            Value::List(values) => self.read_list(values, defaults, to),
            Value::Map(entries) => {
                let mut entries: Vec<_> = entries.iter().collect();
                // The library has them in an order that changes.
                entries.sort_by_key(|(key, _)| *key);
                let CellValues::Maps(runs, columns) = &mut to.values else { return Err(bug()) };
                let Kind::Message(entry) = field.kind() else { return Err(bug()) };
                let [keys, values] = &mut **columns;
                let (key_kind, value_kind) =
                    (entry.map_entry_key_field().kind(), entry.map_entry_value_field().kind());
                for (key, value) in entries {
                    self.read_value(&key.clone().into(), &key_kind, defaults, keys)?;
                    self.read_value(value, &value_kind, defaults, values)?;
                }
                runs.push(values.len())?;
                to.pushed();
                Ok(())
            }
            value => self.read_value(value, &field.kind(), defaults, to),
        };
        read.map_err(|reason| format!("field '{}': {reason}", field.name()))
    }

    fn read_list(&self, list: &[Value], defaults: bool, to: &mut ValueCells) -> Result<(), String> {
        let CellValues::Lists(runs, items) = &mut to.values else { return Err(bug()) };
        let kind = self.field.kind();
        list.iter().try_for_each(|value| self.read_value(value, &kind, defaults, items))?;
        runs.push(items.len())?;
        to.pushed();
        Ok(())
    }

    fn read_value(
        &self,
        value: &Value,
        kind: &Kind,
        defaults: bool,
        to: &mut ValueCells,
    ) -> Result<(), String> {
        let unit = match to.data_type() {
            DataType::Timestamp(unit, _) => Some(*unit),
            _ => None,
        };
        match (value, &mut to.values) {
            (Value::Bool(value), CellValues::Bools(to)) => to.append(*value),
            (Value::I32(value) | Value::EnumNumber(value), CellValues::Ints(to)) => to.push(*value),
            (Value::U32(value), CellValues::Longs(to)) => to.push(i64::from(*value)),
            (Value::I64(value), CellValues::Longs(to)) => to.push(*value),
            (Value::U64(value), CellValues::Longs(to)) => to.push(value.cast_signed()),
            (Value::F32(value), CellValues::Floats(to)) => to.push(*value),
            (Value::F64(value), CellValues::Doubles(to)) => to.push(*value),
            (Value::String(text), CellValues::Texts(to)) => to.push(text.as_bytes())?,
            (Value::Bytes(bytes), CellValues::Texts(to)) => to.push(bytes)?,
            (Value::EnumNumber(number), CellValues::Texts(to)) => {
                let Kind::Enum(of) = kind else { return Err(bug()) };
                match of.get_value(*number) {
                    Some(value) => to.push(value.name().as_bytes())?,
                    // A later version of the type has a name for it.
                    None => to.push(number.to_string().as_bytes())?,
                }
            }
            (Value::Message(message), CellValues::Rows(columns)) => {
                let fields = self.fields.iter().zip(columns);
                fields.into_iter().try_for_each(|(field, to)| field.read(message, defaults, to))?;
            }
            (Value::Message(message), CellValues::Longs(to)) if unit.is_some() => {
                to.push(ticks(message, unit.unwrap_or(arrow::datatypes::TimeUnit::Second))?);
            }
            (Value::Message(message), _) => {
                let field = wrapped(&message.descriptor()).ok_or_else(bug)?;
                return self.read_value(&message.get_field(&field), &field.kind(), defaults, to);
            }
            _ => return Err(bug()),
        }
        to.pushed();
        Ok(())
    }
}

/// A point in time in ticks: the one that has begun.
fn ticks(of: &DynamicMessage, unit: arrow::datatypes::TimeUnit) -> Result<i64, String> {
    use arrow::datatypes::TimeUnit::{Microsecond, Millisecond, Nanosecond, Second};
    let number = |field: u32| {
        of.get_field_by_number(field).map(|value| match &*value {
            Value::I64(value) => *value,
            Value::I32(value) => i64::from(*value),
            _ => 0,
        })
    };
    let (seconds, nanos) = (number(1).unwrap_or(0), number(2).unwrap_or(0));
    let a_second = match unit {
        Second => 1,
        Millisecond => 1_000,
        Microsecond => 1_000_000,
        Nanosecond => 1_000_000_000,
    };
    let begun = nanos / (1_000_000_000 / a_second);
    let ticks = seconds.checked_mul(a_second).and_then(|ticks| ticks.checked_add(begun));
    ticks.filter(|_| (0..1_000_000_000).contains(&nanos)).ok_or_else(|| {
        format!("{seconds} seconds and {nanos} nanoseconds are no point in time of its type")
    })
}

/// The type of the column was made from that of the field.
fn bug() -> String {
    "its column has another type: this is a bug, please report it".into()
}
