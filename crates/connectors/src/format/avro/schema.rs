//! Schemas of Avro, as their JSON has them.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, TimeUnit};
use serde_json::{Map, Value};

/// Bytes of the JSON of a schema at most.
pub(crate) const SCHEMA_BYTES_MAX: usize = 4 << 20;

/// Types within types at most: of a schema, and of the values of one that has itself within.
pub(crate) const DEPTH_MAX: usize = 64;

/// Types within a column at most, each time that one is named.
const TYPES_MAX: usize = 10_000;

/// Digits of a DECIMAL at most.
const DIGITS_MAX: u64 = 38;

/// A schema of rows.
#[derive(Debug, Clone)]
pub(crate) struct AvroSchema {
    /// The records that have names, which may have each other within.
    pub(super) records: Vec<AvroRecord>,
    /// The record of a row.
    root: usize,
}

#[derive(Debug, Clone, Default)]
pub(super) struct AvroRecord {
    pub(super) fields: Vec<(String, AvroType)>,
    /// Whether its values have no bytes, as one of `null` alone.
    pub(super) is_empty: bool,
}

/// A type, by how its values are written.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum AvroType {
    Null,
    Boolean,
    Int,
    Long,
    Float,
    Double,
    Bytes,
    String,
    /// Bytes of this length.
    Fixed(usize),
    Enum(Arc<[String]>),
    Array(Box<AvroType>),
    Map(Box<AvroType>),
    Union(Vec<AvroType>),
    /// By its number among all.
    Record(usize),
    /// An `int`.
    Date,
    /// An `int` of milliseconds.
    TimeMillis,
    /// A `long` of microseconds.
    TimeMicros,
    /// A `long`.
    Timestamp(TimeUnit),
    /// `bytes`, or a `fixed` of this length.
    Decimal {
        precision: u8,
        scale: i8,
        fixed: Option<usize>,
    },
}

impl AvroSchema {
    /// Reads the JSON of a schema. `known` are those of the types that it names and does not have,
    /// in an order in which none names a later one; one that is there twice counts once.
    ///
    /// # Errors
    /// Why it is none, or not one of rows.
    pub(crate) fn new(json: &str, known: &[&str]) -> Result<Self, String> {
        let mut parser = Parser::default();
        for (at, json) in known.iter().enumerate() {
            if known[..at].contains(json) {
                continue;
            }
            parser.schema(&value(json)?, "", 0)?;
        }
        match parser.schema(&value(json)?, "", 0)? {
            AvroType::Record(root) => Ok(Self { records: parser.records, root }),
            _ => Err("its schema is not that of a record, whose fields are the columns".into()),
        }
    }

    /// The fields of a row.
    pub(super) fn fields(&self) -> &[(String, AvroType)] {
        &self.records[self.root].fields
    }

    /// The names of the fields.
    pub(super) fn names(&self) -> Vec<String> {
        self.fields().iter().map(|(name, _)| name.clone()).collect()
    }

    /// The type of a column of such values.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn data_type(&self, of: &AvroType) -> Result<DataType, String> {
        self.column_type(of, &mut Within { records: vec![], depth: 0, left: TYPES_MAX })
    }

    fn column_type(&self, of: &AvroType, within: &mut Within) -> Result<DataType, String> {
        within.left = within.left.checked_sub(1).ok_or("it has too many types within")?;
        within.depth += 1;
        if within.depth > DEPTH_MAX {
            return Err(format!("it has more than {DEPTH_MAX} types within each other"));
        }
        let mut inner = |of: &AvroType| self.column_type(of, within);
        let data_type = match of {
            AvroType::Null => DataType::Null,
            AvroType::Boolean => DataType::Boolean,
            AvroType::Int => DataType::Int32,
            AvroType::Long => DataType::Int64,
            AvroType::Float => DataType::Float32,
            AvroType::Double => DataType::Float64,
            AvroType::Bytes | AvroType::Fixed(_) => DataType::Binary,
            AvroType::String | AvroType::Enum(_) => DataType::Utf8,
            AvroType::Date => DataType::Date32,
            AvroType::TimeMillis => DataType::Time32(TimeUnit::Millisecond),
            AvroType::TimeMicros => DataType::Time64(TimeUnit::Microsecond),
            AvroType::Timestamp(unit) => DataType::Timestamp(*unit, None),
            AvroType::Decimal { precision, scale, .. } => DataType::Decimal128(*precision, *scale),
            AvroType::Array(of) => DataType::new_list(inner(of)?, true),
            AvroType::Map(of) => {
                let value = Field::new("value", inner(of)?, true);
                let entries = vec![Field::new("key", DataType::Utf8, false), value];
                let entries = DataType::Struct(entries.into());
                DataType::Map(Arc::new(Field::new("entries", entries, false)), false)
            }
            AvroType::Union(types) => match only(types) {
                Some(of) => inner(of)?,
                None => return Err("it is a union of several types".into()),
            },
            AvroType::Record(record) => {
                if within.records.contains(record) {
                    return Err("its type has itself within".into());
                }
                within.records.push(*record);
                let fields = self.records[*record].fields.iter();
                let fields = fields
                    .map(|(name, of)| Ok(Field::new(name, self.column_type(of, within)?, true)));
                let fields = fields.collect::<Result<Fields, String>>()?;
                within.records.pop();
                DataType::Struct(fields)
            }
        };
        within.depth -= 1;
        Ok(data_type)
    }
}

/// The enclosing types, and the number of types that are left of the bound.
struct Within {
    records: Vec<usize>,
    depth: usize,
    left: usize,
}

/// The type of the values of a union with `null`; `null` where there is no other.
pub(super) fn only(types: &[AvroType]) -> Option<&AvroType> {
    let mut others = types.iter().filter(|of| **of != AvroType::Null);
    match (others.next(), others.next()) {
        (None, _) => types.first(),
        (Some(of), None) => Some(of),
        (Some(_), Some(_)) => None,
    }
}

fn value(json: &str) -> Result<Value, String> {
    if json.len() > SCHEMA_BYTES_MAX {
        return Err(format!("its schema has {} bytes, {SCHEMA_BYTES_MAX} at most", json.len()));
    }
    serde_json::from_str(json).map_err(|error| format!("its schema is no JSON: {error}"))
}

#[derive(Default)]
struct Parser {
    records: Vec<AvroRecord>,
    /// By the name with its namespace.
    named: BTreeMap<String, AvroType>,
}

impl Parser {
    fn schema(&mut self, of: &Value, space: &str, depth: usize) -> Result<AvroType, String> {
        if depth > DEPTH_MAX {
            return Err(format!("its schema has more than {DEPTH_MAX} types within each other"));
        }
        match of {
            Value::String(name) => self.by_name(name, space),
            Value::Array(types) => {
                let types = types.iter().map(|of| self.schema(of, space, depth + 1));
                let types = types.collect::<Result<Vec<_>, _>>()?;
                if types.is_empty() {
                    return Err("its schema has a union of nothing".into());
                }
                Ok(AvroType::Union(types))
            }
            Value::Object(object) => self.object(object, space, depth),
            other => Err(format!("'{other}' in its schema is no type")),
        }
    }

    fn by_name(&self, name: &str, space: &str) -> Result<AvroType, String> {
        if let Some(of) = primitive(name) {
            return Ok(of);
        }
        let within = full_name(name, space);
        let found = self.named.get(&within).or_else(|| self.named.get(name));
        found.cloned().ok_or_else(|| format!("its schema names the type '{name}', which it lacks"))
    }

    fn object(
        &mut self,
        object: &Map<String, Value>,
        space: &str,
        depth: usize,
    ) -> Result<AvroType, String> {
        let text = |key: &str| object.get(key).and_then(Value::as_str);
        let kind = object.get("type").ok_or("a type in its schema has no 'type'")?;
        let Value::String(kind) = kind else {
            // As in {"type": {"type": "string"}}.
            return self.schema(kind, space, depth + 1);
        };
        let inner = |key: &str| object.get(key).ok_or(format!("a type {kind} has no '{key}'"));
        let of = match kind.as_str() {
            "array" => {
                let items = self.schema(inner("items")?, space, depth + 1)?;
                AvroType::Array(Box::new(items))
            }
            "map" => {
                let values = self.schema(inner("values")?, space, depth + 1)?;
                AvroType::Map(Box::new(values))
            }
            "record" | "error" => return self.record(object, space, depth),
            "enum" => {
                let symbols = inner("symbols")?.as_array().into_iter().flatten();
                let symbols = symbols.filter_map(|symbol| symbol.as_str().map(str::to_owned));
                let of = AvroType::Enum(symbols.collect());
                self.name(object, space, of)?
            }
            "fixed" => {
                let size = inner("size")?.as_u64().and_then(|size| usize::try_from(size).ok());
                let size = size.ok_or("a fixed type has no size")?;
                let of = logical(AvroType::Fixed(size), object);
                self.name(object, space, of)?
            }
            name => self.by_name(name, space)?,
        };
        Ok(if text("logicalType").is_some() { logical(of, object) } else { of })
    }

    fn record(
        &mut self,
        object: &Map<String, Value>,
        space: &str,
        depth: usize,
    ) -> Result<AvroType, String> {
        let number = self.records.len();
        self.records.push(AvroRecord::default());
        // Before its fields, which may name it.
        let of = self.name(object, space, AvroType::Record(number))?;
        let name = name_of(object, space)?;
        let space = name.rsplit_once('.').map_or("", |(space, _)| space);
        let fields = object.get("fields").and_then(Value::as_array);
        let fields = fields.ok_or_else(|| format!("the record '{name}' has no 'fields'"))?;
        let fields = fields.iter().map(|field| {
            let own = field.get("name").and_then(Value::as_str).zip(field.get("type"));
            let (own, of) =
                own.ok_or_else(|| format!("a field of '{name}' has no name or type"))?;
            Ok((own.to_owned(), self.schema(of, space, depth + 1)?))
        });
        let fields = fields.collect::<Result<Vec<_>, String>>()?;
        // One that has itself within is none of these, as long as it is not whole.
        let is_empty = fields.iter().all(|(_, of)| is_empty(of, &self.records));
        self.records[number] = AvroRecord { fields, is_empty };
        Ok(of)
    }

    /// Names a type.
    fn name(
        &mut self,
        object: &Map<String, Value>,
        space: &str,
        of: AvroType,
    ) -> Result<AvroType, String> {
        let name = name_of(object, space)?;
        if self.named.insert(name.clone(), of.clone()).is_some() {
            return Err(format!("its schema has two types '{name}'"));
        }
        Ok(of)
    }
}

/// Whether all values of a type have no bytes.
pub(super) fn is_empty(of: &AvroType, records: &[AvroRecord]) -> bool {
    match of {
        AvroType::Null | AvroType::Fixed(0) | AvroType::Decimal { fixed: Some(0), .. } => true,
        AvroType::Record(record) => records[*record].is_empty,
        _ => false,
    }
}

/// The name of a type with its namespace.
fn name_of(object: &Map<String, Value>, space: &str) -> Result<String, String> {
    let text = |key: &str| object.get(key).and_then(Value::as_str);
    let name = text("name").ok_or("a type in its schema has no name")?;
    Ok(full_name(name, text("namespace").unwrap_or(space)))
}

fn full_name(name: &str, space: &str) -> String {
    if space.is_empty() || name.contains('.') { name.into() } else { format!("{space}.{name}") }
}

fn primitive(name: &str) -> Option<AvroType> {
    Some(match name {
        "null" => AvroType::Null,
        "boolean" => AvroType::Boolean,
        "int" => AvroType::Int,
        "long" => AvroType::Long,
        "float" => AvroType::Float,
        "double" => AvroType::Double,
        "bytes" => AvroType::Bytes,
        "string" => AvroType::String,
        _ => return None,
    })
}

/// The type with its 'logicalType'; one that does not fit counts for nothing, as Avro says.
fn logical(of: AvroType, object: &Map<String, Value>) -> AvroType {
    let number = |key: &str| object.get(key).and_then(Value::as_u64);
    match (object.get("logicalType").and_then(Value::as_str), &of) {
        (Some("date"), AvroType::Int) => AvroType::Date,
        (Some("time-millis"), AvroType::Int) => AvroType::TimeMillis,
        (Some("time-micros"), AvroType::Long) => AvroType::TimeMicros,
        (Some(name), AvroType::Long) => match name.trim_start_matches("local-") {
            "timestamp-millis" => AvroType::Timestamp(TimeUnit::Millisecond),
            "timestamp-micros" => AvroType::Timestamp(TimeUnit::Microsecond),
            "timestamp-nanos" => AvroType::Timestamp(TimeUnit::Nanosecond),
            _ => of,
        },
        (Some("decimal"), AvroType::Bytes | AvroType::Fixed(_)) => {
            let fixed = match of {
                AvroType::Fixed(bytes) => Some(bytes),
                _ => None,
            };
            let digits = (number("precision").unwrap_or(0), number("scale").unwrap_or(0));
            match digits {
                (1..=DIGITS_MAX, scale) if scale <= digits.0 => {
                    // Both are 38 at most.
                    let (precision, scale) = (digits.0 as u8, scale as i8);
                    AvroType::Decimal { precision, scale, fixed }
                }
                _ => of,
            }
        }
        _ => of,
    }
}
