//! Rows as messages of Protobuf.

use std::collections::HashMap;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::can_cast_types;
use arrow::datatypes::{
    ArrowNativeType, DataType, Field, Float32Type, Float64Type, Int32Type, Int64Type, Schema,
    TimeUnit, UInt64Type,
};
use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;
use prost_reflect::prost::Message;
use prost_reflect::{DynamicMessage, EnumDescriptor, Kind, MapKey, MessageDescriptor, Value};

use super::stream::write_frame;
use super::{ProtoField, planned, unfit, wrapped};
use crate::format::rows::{exact, find_columns};
use crate::options::sql_type;

/// Rows of some columns as messages of a type.
#[derive(Debug, Clone)]
pub(crate) struct ProtoEncoder {
    message: MessageDescriptor,
    /// The field of each column, and the type that it gets.
    fields: Vec<(ProtoField, Field)>,
    /// The text in place of NULL where there is none: in lists and maps.
    null: String,
}

impl ProtoEncoder {
    /// For rows of `columns`.
    ///
    /// # Errors
    /// When the type has no place for one of them, or a field that cannot be without one.
    pub(crate) fn new(
        columns: &Schema,
        message: &MessageDescriptor,
        null: &str,
    ) -> Result<Self, ConnectorError> {
        let place = format!("the message '{}'", message.full_name());
        let names: Vec<_> = message.fields().map(|field| field.name().to_owned()).collect();
        let found = find_columns(columns, &names);
        let fields = columns.fields().iter().zip(&found).map(|(column, found)| {
            let field = found.and_then(|at| message.get_field_by_name(&names[at]));
            let field =
                field.ok_or_else(|| unfit(column.name(), "it has no such field", &place))?;
            let (plan, of) = planned(&field, column.data_type())
                .map_err(|reason| unfit(column.name(), &reason, &place))?;
            let from = column.data_type();
            if !from.is_nested() && !can_cast_types(from, &of) {
                let reason = format!("{} is not written as {}", sql_type(from), sql_type(&of));
                return Err(unfit(column.name(), &reason, &place));
            }
            Ok((plan, Field::new(column.name(), of, true)))
        });
        let fields = fields.collect::<Result<Vec<_>, _>>()?;
        let is_given = |name: &str| fields.iter().any(|(plan, _)| plan.field.name() == name);
        let missing = message.fields().find(|own| own.is_required() && !is_given(own.name()));
        if let Some(missing) = missing {
            return Err(unfit(missing.name(), "it is required, and the table has not it", &place));
        }
        Ok(Self { message: message.clone(), fields, null: null.to_owned() })
    }

    /// Appends the rows, and gives where each ends.
    ///
    /// # Errors
    /// Why a value cannot be written.
    pub(crate) fn encode(
        &self,
        batch: &RecordBatch,
        out: &mut Vec<u8>,
        mut end: impl FnMut(&mut Vec<u8>) -> Result<(), String>,
    ) -> Result<(), String> {
        let columns = self.fields.iter().zip(batch.columns());
        let columns = columns.map(|((_, field), column)| exact(column, field));
        let columns = columns.collect::<Result<Vec<_>, String>>()?;
        for row in 0..batch.num_rows() {
            let mut message = DynamicMessage::new(self.message.clone());
            for ((plan, field), column) in self.fields.iter().zip(&columns) {
                self.set(plan, column, row, &mut message)
                    .map_err(|reason| format!("column '{}': {reason}", field.name()))?;
            }
            message.encode(out).map_err(|error| error.to_string())?;
            end(out)?;
        }
        Ok(())
    }

    /// Appends the rows, each behind its length.
    ///
    /// # Errors
    /// Why a value cannot be written; then nothing was appended.
    pub(crate) fn encode_stream(
        &self,
        batch: &RecordBatch,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        let (begin, mut row) = (out.len(), vec![]);
        let written = self.encode(batch, &mut row, |row| {
            write_frame(row, out)?;
            row.clear();
            Ok(())
        });
        if written.is_err() {
            out.truncate(begin);
        }
        written
    }

    /// Sets a field to the value of a row, unless that is NULL.
    fn set(
        &self,
        plan: &ProtoField,
        column: &ArrayRef,
        row: usize,
        message: &mut DynamicMessage,
    ) -> Result<(), String> {
        if column.is_null(row) {
            if plan.field.is_required() {
                return Err("NULL, but the field is required".into());
            }
            return Ok(());
        }
        let (field, kind) = (&plan.field, plan.field.kind());
        let value = match (&kind, column.data_type()) {
            (Kind::Message(entry), DataType::Map(..)) if field.is_map() => {
                let map = column.as_map();
                let offsets = map.value_offsets();
                let entries = offsets[row].as_usize()..offsets[row + 1].as_usize();
                let (keys, values) =
                    (entry.map_entry_key_field().kind(), entry.map_entry_value_field().kind());
                let entries = entries.map(|at| {
                    let key = self.value(plan, &keys, map.keys(), at)?;
                    let key = key.into_map_key().ok_or("its keys are no keys of a map")?;
                    Ok((key, self.item(plan, &values, map.values(), at)?))
                });
                Value::Map(entries.collect::<Result<HashMap<MapKey, Value>, String>>()?)
            }
            (kind, DataType::List(_)) => {
                let list = column.as_list::<i32>();
                let offsets = list.value_offsets();
                let items = offsets[row].as_usize()..offsets[row + 1].as_usize();
                let items = items.map(|at| self.item(plan, kind, list.values(), at));
                Value::List(items.collect::<Result<_, String>>()?)
            }
            (kind, _) => self.value(plan, kind, column, row)?,
        };
        message.try_set_field(field, value).map_err(|error| error.to_string())
    }

    /// A value of a list or a map, where nothing can be NULL.
    fn item(
        &self,
        plan: &ProtoField,
        kind: &Kind,
        column: &ArrayRef,
        row: usize,
    ) -> Result<Value, String> {
        match (column.is_null(row), kind) {
            (false, _) => self.value(plan, kind, column, row),
            (true, Kind::String) => Ok(Value::String(self.null.clone())),
            (true, kind) => Ok(Value::default_value(kind)),
        }
    }

    /// A value that is not NULL.
    fn value(
        &self,
        plan: &ProtoField,
        kind: &Kind,
        column: &ArrayRef,
        row: usize,
    ) -> Result<Value, String> {
        let int = || column.as_primitive::<Int32Type>().value(row);
        let long = || column.as_primitive::<Int64Type>().value(row);
        Ok(match kind {
            Kind::Double => Value::F64(column.as_primitive::<Float64Type>().value(row)),
            Kind::Float => Value::F32(column.as_primitive::<Float32Type>().value(row)),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => Value::I32(int()),
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => Value::I64(long()),
            Kind::Uint32 | Kind::Fixed32 => {
                let value = u32::try_from(long());
                Value::U32(value.map_err(|_| format!("{} is no uint32", long()))?)
            }
            Kind::Uint64 | Kind::Fixed64 => {
                Value::U64(column.as_primitive::<UInt64Type>().value(row))
            }
            Kind::Bool => Value::Bool(column.as_boolean().value(row)),
            Kind::String => Value::String(column.as_string::<i32>().value(row).to_owned()),
            Kind::Bytes => Value::Bytes(column.as_binary::<i32>().value(row).to_vec().into()),
            Kind::Enum(of) => Value::EnumNumber(match column.data_type() {
                DataType::Int32 => int(),
                _ => enum_number(of, column.as_string::<i32>().value(row))?,
            }),
            Kind::Message(of) => {
                let mut message = DynamicMessage::new(of.clone());
                match (column.data_type(), wrapped(of)) {
                    (DataType::Struct(_), _) => {
                        let columns = column.as_struct().columns();
                        for (plan, column) in plan.fields.iter().zip(columns) {
                            self.set(plan, column, row, &mut message)
                                .map_err(|why| format!("field '{}': {why}", plan.field.name()))?;
                        }
                    }
                    (DataType::Timestamp(unit, _), _) => set_time(column, row, *unit, &mut message),
                    (_, Some(field)) => {
                        let value = self.value(plan, &field.kind(), column, row)?;
                        message.set_field(&field, value);
                    }
                    (_, None) => return Err("it is a message, and no ROW".into()),
                }
                Value::Message(message)
            }
        })
    }
}

fn enum_number(of: &EnumDescriptor, text: &str) -> Result<i32, String> {
    let named = of.get_value_by_name(text).map(|value| value.number());
    let number = named.or_else(|| text.parse().ok());
    number.ok_or_else(|| format!("'{text}' is no value of '{}'", of.full_name()))
}

/// Sets seconds and nanoseconds.
fn set_time(column: &ArrayRef, row: usize, unit: TimeUnit, message: &mut DynamicMessage) {
    let data = column.to_data();
    let ticks = data.buffers()[0].typed_data::<i64>()[data.offset() + row];
    let a_second = match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    };
    let nanos = ticks.rem_euclid(a_second) * (1_000_000_000 / a_second);
    message.set_field_by_number(1, Value::I64(ticks.div_euclid(a_second)));
    // It is less than a second.
    message.set_field_by_number(2, Value::I32(nanos as i32));
}
