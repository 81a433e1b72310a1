//! Changes as rows: `op`, `before` and `after`, as Debezium has them.
//!
//! ```text
//! op   r (was there when the job began) │ c (insert) │ u (update) │ d (delete) │ t (truncate)
//! ```

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, StringArray, StructArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Fields, SchemaRef, TimeUnit};
use arrow::record_batch::RecordBatch;
use dataflow::connector::TableDef;
use dataflow::error::ConnectorError;

use crate::decode::column_of;
use crate::errors::PgError;
use crate::pgoutput::{LoggedValue, OldRow, PgRelation};
use crate::ranges::KeyText;
use crate::types::type_of;

/// Microseconds from 1970 to 2000, from when Postgres counts.
const EPOCH_US: i64 = 946_684_800_000_000;

/// One side of a change: the values of the fields that are read.
pub(crate) type RowSide = Option<Vec<Option<String>>>;

/// A change that is to become a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) op: &'static str,
    pub(crate) before: RowSide,
    pub(crate) after: RowSide,
    /// The place of its transaction in the log.
    pub(crate) lsn: u64,
    /// Its number within the transaction, from 1 on; 0 in a snapshot.
    pub(crate) number: u64,
    /// The time of its transaction since 1970, if it is known.
    pub(crate) time_us: Option<i64>,
    /// The key of a row that was there, if it is read by its key.
    pub(crate) key: KeyText,
}

impl Change {
    /// Bytes of memory that its values take.
    pub(crate) fn bytes(&self) -> usize {
        let values = [&self.before, &self.after].into_iter().flatten().flatten();
        let of = |value: &Option<String>| value.as_ref().map_or(0, String::len);
        let key = self.key.iter().map(|text| size_of::<String>() + text.len()).sum::<usize>();
        size_of::<Self>()
            + key
            + values.map(|value| size_of::<Option<String>>() + of(value)).sum::<usize>()
    }
}

/// The content of a column of changes.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Op,
    Before(Fields),
    After(Fields),
    Lsn,
    Sequence,
    Time,
}

/// The columns of a table of changes.
#[derive(Debug, Clone)]
pub(crate) struct ChangeColumns {
    pub(crate) schema: SchemaRef,
    parts: Vec<Part>,
    /// The columns of the table in Postgres that are read, each once.
    pub(crate) fields: Vec<String>,
}

impl ChangeColumns {
    /// Those of a projection of a declaration.
    ///
    /// # Errors
    /// When a column is none of a change.
    pub(crate) fn new(def: &TableDef, projection: &[usize]) -> Result<Self, ConnectorError> {
        let (mut parts, mut fields) = (vec![], Vec::<String>::new());
        for &at in projection {
            let field = def.schema.field(at);
            let part = match def.metadata.get(&at).map(String::as_str) {
                Some("lsn") => Some(Part::Lsn),
                Some("sequence") => Some(Part::Sequence),
                Some(_) => Some(Part::Time),
                None => data_part(field.name(), field.data_type()),
            };
            let unfit = |message: String| ConnectorError::Column {
                column: field.name().clone(),
                message,
                hint: Some(
                    "a table of changes has the columns op STRING, `before` ROW<…> and `after` \
                     ROW<…>, with columns of the table in Postgres within"
                        .into(),
                ),
            };
            let part = part.ok_or_else(|| unfit("is no part of a change".into()))?;
            if let Part::Before(own) | Part::After(own) = &part {
                for inner in own {
                    if type_of(inner.data_type()).is_none() {
                        let name = inner.name();
                        return Err(unfit(format!("Postgres has no type for its field '{name}'")));
                    }
                    if !fields.contains(inner.name()) {
                        fields.push(inner.name().clone());
                    }
                }
            }
            parts.push(part);
        }
        let schema = def.schema.project(projection).map_err(|error| ConnectorError::Column {
            column: def.name.clone(),
            message: error.to_string(),
            hint: None,
        })?;
        Ok(Self { schema: Arc::new(schema), parts, fields })
    }

    /// The values of the fields that are read, of a row of a relation. What was not sent is taken
    /// from `old`.
    ///
    /// # Errors
    /// When the relation lacks a field, or a value was not sent and is not in `old`.
    pub(crate) fn side(
        &self,
        relation: &PgRelation,
        values: &[LoggedValue],
        old: Option<&OldRow>,
    ) -> Result<Vec<Option<String>>, String> {
        let value = |name: &String| {
            let at = relation.columns.iter().position(|column| column == name);
            let at = at.ok_or_else(|| format!("the table has no column '{name}' any more"))?;
            let unsent = || {
                format!(
                    "the value of '{name}' has not changed and was not sent: ALTER TABLE {} \
                     REPLICA IDENTITY FULL",
                    relation.name
                )
            };
            let old = old.filter(|old| !old.key_only).and_then(|old| old.values.get(at));
            match values.get(at) {
                Some(LoggedValue::Text(text)) => Ok(Some(text.clone())),
                Some(LoggedValue::Null) => Ok(None),
                None => Err("a row lacks a column".into()),
                Some(LoggedValue::Unsent) => match old {
                    Some(LoggedValue::Text(text)) => Ok(Some(text.clone())),
                    Some(LoggedValue::Null) => Ok(None),
                    Some(LoggedValue::Unsent) | None => Err(unsent()),
                },
            }
        };
        self.fields.iter().map(value).collect()
    }

    /// Changes as rows.
    ///
    /// # Errors
    /// When a value is none of the declared type.
    pub(crate) fn rows(&self, changes: &[Change]) -> Result<RecordBatch, PgError> {
        let columns = self.parts.iter().zip(self.schema.fields()).map(|(part, field)| {
            let column: Result<ArrayRef, String> = match part {
                Part::Op => {
                    let ops: StringArray = changes.iter().map(|change| Some(change.op)).collect();
                    Ok(Arc::new(ops))
                }
                Part::Before(fields) => self.sides(fields, changes, |change| &change.before),
                Part::After(fields) => self.sides(fields, changes, |change| &change.after),
                Part::Lsn => Ok(numbers(changes, |change| change.lsn)),
                Part::Sequence => Ok(numbers(changes, |change| change.number)),
                Part::Time => {
                    let times: Int64Array = changes.iter().map(|change| change.time_us).collect();
                    let micros = DataType::Timestamp(TimeUnit::Microsecond, None);
                    let cast = arrow::compute::cast(&times, &micros)
                        .and_then(|times| arrow::compute::cast(&times, field.data_type()));
                    cast.map_err(|error| error.to_string())
                }
            };
            column.map_err(|message| PgError::Own {
                message: format!("column '{}': {message}", field.name()),
                hint: "declare the fields as they are in Postgres, or as STRING".into(),
            })
        });
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        RecordBatch::try_new(Arc::clone(&self.schema), columns).map_err(|error| PgError::Own {
            message: error.to_string(),
            hint: "leave NOT NULL out: a side of a change may be NULL".into(),
        })
    }

    fn sides(
        &self,
        fields: &Fields,
        changes: &[Change],
        side: impl Fn(&Change) -> &RowSide,
    ) -> Result<ArrayRef, String> {
        let column = |field: &Arc<arrow::datatypes::Field>| {
            let at = self.fields.iter().position(|name| name == field.name());
            let values = changes.iter().map(|change| {
                let values = side(change).as_ref()?;
                values.get(at?).cloned().flatten()
            });
            column_of(values.collect(), field.data_type())
        };
        let columns = fields.iter().map(column).collect::<Result<Vec<_>, _>>()?;
        let valid: NullBuffer =
            changes.iter().map(|change| side(change).is_some()).collect::<Vec<_>>().into();
        let sides = StructArray::try_new(fields.clone(), columns, Some(valid));
        Ok(Arc::new(sides.map_err(|error| error.to_string())?))
    }
}

fn numbers(changes: &[Change], number: impl Fn(&Change) -> u64) -> ArrayRef {
    let numbers = changes.iter().map(|change| number(change).cast_signed());
    Arc::new(Int64Array::from_iter_values(numbers))
}

fn data_part(name: &str, data_type: &DataType) -> Option<Part> {
    Some(match (name, data_type) {
        ("op", DataType::Utf8) => Part::Op,
        ("before", DataType::Struct(fields)) => Part::Before(fields.clone()),
        ("after", DataType::Struct(fields)) => Part::After(fields.clone()),
        _ => return None,
    })
}

/// A time of Postgres, since 1970.
pub(crate) fn since_1970(time_us: i64) -> Option<i64> {
    time_us.checked_add(EPOCH_US)
}
