//! Rows as values of Avro.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, StringArray};
use arrow::buffer::{BooleanBuffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::compute::can_cast_types;
use arrow::datatypes::{ArrowNativeType, DataType, Field, Schema, TimeUnit};
use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;
use serde_json::{Value, json};

use super::datum::may_be_null;
use super::pack::{BlockWriter, put_bytes, put_long};
use super::schema::{AvroSchema, AvroType, only};
use crate::format::rows::{exact, find_columns, is_text};
use crate::options::sql_type;

/// The name and namespace of rows whose schema is that of the columns, as Flink has them.
const ROOT: (&str, &str) = ("record", "org.apache.flink.avro.generated");

/// Rows of some columns as values of a schema.
#[derive(Debug, Clone)]
pub(crate) struct AvroEncoder {
    schema: Arc<AvroSchema>,
    /// The column of each field, where there is one, and the type that it gets.
    fields: Vec<(Option<usize>, Field)>,
}

impl AvroEncoder {
    /// For rows of `columns`.
    ///
    /// # Errors
    /// When the schema has no place for one of them, or a field that cannot be without one.
    pub(crate) fn new(columns: &Schema, schema: AvroSchema) -> Result<Self, ConnectorError> {
        let unfit = |column: &str, message: String| ConnectorError::Column {
            column: column.to_owned(),
            message,
            hint: Some("the schema is that of 'avro.schema' or 'avro.schema.file'".into()),
        };
        let found = find_columns(columns, &schema.names());
        if let Some(at) = found.iter().position(Option::is_none) {
            let message = "the Avro schema has no such field".into();
            return Err(unfit(columns.field(at).name(), message));
        }
        let fields = schema.fields().iter().enumerate().map(|(at, (name, of))| {
            let column = found.iter().position(|field| *field == Some(at));
            let data_type = schema.data_type(of).map_err(|reason| unfit(name, reason))?;
            let field = Field::new(name, data_type, may_be_null(of));
            let Some(column) = column else {
                if field.is_nullable() {
                    return Ok((None, field));
                }
                let message = "the Avro schema has it, not NULL, and the table has not".into();
                return Err(unfit(name, message));
            };
            let from = columns.field(column).data_type();
            if !from.is_nested() && !can_cast_types(from, field.data_type()) {
                let (from, to) = (sql_type(from), sql_type(field.data_type()));
                return Err(unfit(name, format!("{from} is not written as {to}")));
            }
            Ok((Some(column), field))
        });
        let fields = fields.collect::<Result<_, _>>()?;
        Ok(Self { schema: Arc::new(schema), fields })
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
        let columns = self.fields.iter().zip(self.schema.fields());
        let columns = columns.map(|((column, field), (_, of))| {
            let column = match column {
                Some(column) => exact(batch.column(*column), field)?,
                None => arrow::array::new_null_array(field.data_type(), batch.num_rows()),
            };
            Written::new(&self.schema, of, &column)
        });
        let columns = columns.collect::<Result<Vec<_>, String>>()?;
        for row in 0..batch.num_rows() {
            for (column, (_, field)) in columns.iter().zip(&self.fields) {
                column
                    .write(row, out)
                    .map_err(|reason| format!("column '{}': {reason}", field.name()))?;
            }
            end(out)?;
        }
        Ok(())
    }

    /// Appends the rows to a file, whose next bytes are appended to `out`.
    ///
    /// # Errors
    /// Why a value cannot be written.
    pub(crate) fn encode_blocks(
        &self,
        batch: &RecordBatch,
        blocks: &mut BlockWriter,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        let mut bytes = std::mem::take(&mut blocks.bytes);
        let encoded = self.encode(batch, &mut bytes, |bytes| blocks.end_row(bytes, out));
        blocks.bytes = bytes;
        encoded
    }
}

/// Values that are to be written.
struct Written<'s> {
    /// Of a union: the number of `null`, where there is one, and of the type of the others.
    union: Option<(Option<i64>, i64)>,
    nulls: Option<NullBuffer>,
    values: WrittenValues<'s>,
}

enum WrittenValues<'s> {
    Null,
    Bools(BooleanBuffer),
    Ints(ScalarBuffer<i32>),
    Longs(ScalarBuffer<i64>),
    Floats(ScalarBuffer<f32>),
    Doubles(ScalarBuffer<f64>),
    Decimals(ScalarBuffer<i128>, Option<usize>),
    Texts(StringArray),
    Symbols(StringArray, &'s [String]),
    Bytes(BinaryArray),
    Fixed(BinaryArray, usize),
    Rows(Vec<Written<'s>>),
    Lists(OffsetBuffer<i32>, Box<Written<'s>>),
    Maps(OffsetBuffer<i32>, StringArray, Box<Written<'s>>),
}

/// Values as they lie in memory.
fn scalars<T: ArrowNativeType>(array: &dyn Array) -> ScalarBuffer<T> {
    let data = array.to_data();
    ScalarBuffer::new(data.buffers()[0].clone(), data.offset(), data.len())
}

impl<'s> Written<'s> {
    /// `array` has the type of such a value.
    fn new(schema: &'s AvroSchema, of: &'s AvroType, array: &ArrayRef) -> Result<Self, String> {
        if let AvroType::Union(types) = of {
            let value = only(types).ok_or("it is a union of several types")?;
            let place = |of: &AvroType| types.iter().position(|own| own == of);
            let null = place(&AvroType::Null).map(|at| at as i64);
            let inner = Self::new(schema, value, array)?;
            let value = place(value).unwrap_or_default() as i64;
            return Ok(Self { union: Some((null, value)), ..inner });
        }
        let values = match of {
            AvroType::Null | AvroType::Union(_) => WrittenValues::Null,
            AvroType::Boolean => WrittenValues::Bools(array.as_boolean().values().clone()),
            AvroType::Int | AvroType::Date | AvroType::TimeMillis => {
                WrittenValues::Ints(scalars(array))
            }
            AvroType::Long | AvroType::TimeMicros | AvroType::Timestamp(_) => {
                WrittenValues::Longs(scalars(array))
            }
            AvroType::Float => WrittenValues::Floats(scalars(array)),
            AvroType::Double => WrittenValues::Doubles(scalars(array)),
            AvroType::Decimal { fixed, .. } => WrittenValues::Decimals(scalars(array), *fixed),
            AvroType::String => WrittenValues::Texts(array.as_string().clone()),
            AvroType::Enum(symbols) => WrittenValues::Symbols(array.as_string().clone(), symbols),
            AvroType::Bytes => WrittenValues::Bytes(array.as_binary().clone()),
            AvroType::Fixed(bytes) => WrittenValues::Fixed(array.as_binary().clone(), *bytes),
            AvroType::Array(of) => {
                let list = array.as_list::<i32>();
                let items = Self::new(schema, of, list.values())?;
                WrittenValues::Lists(list.offsets().clone(), Box::new(items))
            }
            AvroType::Map(of) => {
                let map = array.as_map();
                let values = Self::new(schema, of, map.values())?;
                let keys = map.keys().as_string().clone();
                WrittenValues::Maps(map.offsets().clone(), keys, Box::new(values))
            }
            AvroType::Record(record) => {
                let fields = schema.records[*record].fields.iter();
                let fields = fields.zip(array.as_struct().columns());
                let fields = fields.map(|((_, of), array)| Self::new(schema, of, array));
                WrittenValues::Rows(fields.collect::<Result<_, _>>()?)
            }
        };
        let nulls = array.logical_nulls().filter(|nulls| nulls.null_count() > 0);
        Ok(Self { union: None, nulls, values })
    }

    fn write(&self, row: usize, out: &mut Vec<u8>) -> Result<(), String> {
        let is_null = self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
        match (is_null, self.union, &self.values) {
            (true, Some((Some(null), _)), _) => {
                put_long(null, out);
                return Ok(());
            }
            (_, None, WrittenValues::Null) => return Ok(()),
            (true, ..) => return Err("NULL, which the Avro schema does not have there".into()),
            (false, Some((_, value)), _) => put_long(value, out),
            (false, None, _) => {}
        }
        match &self.values {
            WrittenValues::Null => {}
            WrittenValues::Bools(values) => out.push(u8::from(values.value(row))),
            WrittenValues::Ints(values) => put_long(i64::from(values[row]), out),
            WrittenValues::Longs(values) => put_long(values[row], out),
            WrittenValues::Floats(values) => out.extend(values[row].to_le_bytes()),
            WrittenValues::Doubles(values) => out.extend(values[row].to_le_bytes()),
            WrittenValues::Decimals(values, fixed) => put_decimal(values[row], *fixed, out)?,
            WrittenValues::Texts(texts) => put_bytes(texts.value(row).as_bytes(), out),
            WrittenValues::Bytes(bytes) => put_bytes(bytes.value(row), out),
            WrittenValues::Symbols(texts, symbols) => {
                let text = texts.value(row);
                let number = symbols.iter().position(|symbol| symbol == text);
                let number = number.ok_or_else(|| format!("'{text}' is no symbol of its enum"))?;
                put_long(number as i64, out);
            }
            WrittenValues::Fixed(bytes, length) => {
                let bytes = bytes.value(row);
                if bytes.len() != *length {
                    return Err(format!("it has {} bytes, and not {length}", bytes.len()));
                }
                out.extend_from_slice(bytes);
            }
            WrittenValues::Rows(fields) => {
                fields.iter().try_for_each(|field| field.write(row, out))?;
            }
            WrittenValues::Lists(offsets, items) => {
                let items_of = offsets[row].as_usize()..offsets[row + 1].as_usize();
                if !items_of.is_empty() {
                    put_long(items_of.len() as i64, out);
                }
                for item in items_of {
                    items.write(item, out)?;
                }
                put_long(0, out);
            }
            WrittenValues::Maps(offsets, keys, values) => {
                let entries = offsets[row].as_usize()..offsets[row + 1].as_usize();
                if !entries.is_empty() {
                    put_long(entries.len() as i64, out);
                }
                for entry in entries {
                    put_bytes(keys.value(entry).as_bytes(), out);
                    values.write(entry, out)?;
                }
                put_long(0, out);
            }
        }
        Ok(())
    }
}

/// Appends a number, the most significant byte first: as few bytes as it needs, or as many as its
/// type has.
fn put_decimal(value: i128, fixed: Option<usize>, out: &mut Vec<u8>) -> Result<(), String> {
    let bytes = value.to_be_bytes();
    let fill = if value < 0 { 0xff } else { 0 };
    // The first bit of what is kept tells the sign.
    let is_leading = |at: usize| bytes[at] == fill && (bytes[at + 1] ^ fill) & 0x80 == 0;
    let leading = (0..bytes.len() - 1).take_while(|at| is_leading(*at)).count();
    let needed = &bytes[leading..];
    match fixed {
        None => put_bytes(needed, out),
        Some(length) => {
            let wide = length.checked_sub(needed.len());
            let wide = wide.ok_or_else(|| format!("a decimal needs more than {length} bytes"))?;
            out.extend(std::iter::repeat_n(fill, wide));
            out.extend_from_slice(needed);
        }
    }
    Ok(())
}

/// The schema of rows of `columns`, as JSON.
///
/// # Errors
/// When Avro has no name or no type for one.
pub(crate) fn schema_of(columns: &Schema) -> Result<String, ConnectorError> {
    let (name, space) = ROOT;
    let fields = columns.fields().iter().map(|field| field_of(field, name));
    let fields = fields.collect::<Result<Vec<_>, _>>()?;
    let of = json!({"type": "record", "name": name, "namespace": space, "fields": fields});
    Ok(of.to_string())
}

fn field_of(field: &Field, within: &str) -> Result<Value, ConnectorError> {
    let name = field.name();
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let is_name = name.bytes().all(is_letter) && !name.is_empty();
    if !is_name || name.as_bytes()[0].is_ascii_digit() {
        return Err(ConnectorError::Column {
            column: name.clone(),
            message: "Avro has no such names: they are of letters, digits and _".into(),
            hint: Some("give it another name".into()),
        });
    }
    Ok(json!({"name": name, "type": type_of(field, &format!("{within}_{name}"))?}))
}

/// The type of a field; a record in it is called `name`.
fn type_of(field: &Field, name: &str) -> Result<Value, ConnectorError> {
    use DataType::{
        Boolean, Date32, Date64, Decimal128, Dictionary, Float16, Float32, Float64, Int8, Int16,
        Int32, Int64, LargeList, List, Map, Null, Struct, Time32, Time64, Timestamp, UInt8, UInt16,
        UInt32, UInt64,
    };
    let logical = |of: &str, name: &str| json!({"type": of, "logicalType": name});
    let of = match field.data_type() {
        Null => return Ok(json!("null")),
        Boolean => json!("boolean"),
        Int8 | Int16 | Int32 | UInt8 | UInt16 => json!("int"),
        Int64 | UInt32 | UInt64 => json!("long"),
        Float16 | Float32 => json!("float"),
        Float64 => json!("double"),
        of if is_text(of) => json!("string"),
        of if of.is_binary() => json!("bytes"),
        Date32 | Date64 => logical("int", "date"),
        Time32(_) => logical("int", "time-millis"),
        Time64(_) => logical("long", "time-micros"),
        Timestamp(unit, _) => logical(
            "long",
            match unit {
                TimeUnit::Second | TimeUnit::Millisecond => "timestamp-millis",
                TimeUnit::Microsecond => "timestamp-micros",
                TimeUnit::Nanosecond => "timestamp-nanos",
            },
        ),
        Decimal128(precision, scale) if *scale >= 0 => {
            let mut of = logical("bytes", "decimal");
            (of["precision"], of["scale"]) = (json!(precision), json!(scale));
            of
        }
        Dictionary(_, value) => {
            return type_of(&field.clone().with_data_type(value.as_ref().clone()), name);
        }
        List(item) | LargeList(item) => json!({"type": "array", "items": type_of(item, name)?}),
        Map(entries, _) => match entries.data_type() {
            Struct(fields) if fields.len() == 2 && is_text(fields[0].data_type()) => {
                json!({"type": "map", "values": type_of(&fields[1], name)?})
            }
            _ => return Err(no_type(field, "the keys of a map are texts")),
        },
        Struct(fields) => {
            let fields = fields.iter().map(|field| field_of(field, name));
            let fields = fields.collect::<Result<Vec<_>, _>>()?;
            json!({"type": "record", "name": name, "fields": fields})
        }
        _ => return Err(no_type(field, "it has no such type")),
    };
    Ok(if field.is_nullable() { json!(["null", of]) } else { of })
}

fn no_type(field: &Field, reason: &str) -> ConnectorError {
    ConnectorError::Column {
        column: field.name().clone(),
        message: format!("Avro cannot carry {}: {reason}", sql_type(field.data_type())),
        hint: Some("CAST it, or leave it out".into()),
    }
}
