//! The columns of a table that are in the key of a message, and those that are in its value.

use std::sync::Arc;

use arrow::array::{RecordBatch, UInt32Array};
use arrow::datatypes::{DataType, Schema};
use connectors::messages::{MessageDecoder, MessageFormat, MessageRows};
use connectors::{OptionReader, refuse};
use dataflow::bad::BadRows;
use dataflow::connector::TableDef;
use dataflow::error::ConnectorError;

use crate::errors::failed;
use crate::flink;

/// The option with the prefix of the columns of a key.
pub(crate) const PREFIX: &str = "key.fields-prefix";

/// 'key.fields', with what belongs to it.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeyFields {
    /// The columns, in the order of the option.
    pub(crate) columns: Vec<usize>,
    /// Whether the key is the text or the bytes of its one column.
    pub(crate) is_raw: bool,
    /// The format of a key that is not.
    format: &'static str,
    /// Whether the value of a message does not have them.
    is_except: bool,
    /// The prefix of their names in the table, which the key does not have.
    prefix: String,
}

impl KeyFields {
    /// Of the options of a table.
    ///
    /// # Errors
    /// When they do not fit.
    pub(crate) fn of(table: &TableDef) -> Result<Self, ConnectorError> {
        let options = OptionReader(&table.options);
        let columns = key_fields(table, options)?;
        let include = options.choice("value.fields-include", &["ALL", "EXCEPT_KEY"])?;
        let is_except = include == Some(1);
        let format = options.choice("key.format", &["raw", "csv", "json"])?;
        let (is_raw, format) = match (format, columns.len()) {
            (None | Some(0), 1) => (true, "raw"),
            (Some(0), 2..) => {
                let message = "'raw' is the text of one column";
                let hint = "write 'key.format' = 'json'";
                return Err(refuse("key.format", message, Some(hint.into())));
            }
            (Some(1), _) => (false, "csv"),
            _ => (false, "json"),
        };
        let prefix = options.text(PREFIX).unwrap_or_default().to_owned();
        if !prefix.is_empty() && !is_except {
            let message = "a name that is another one in the key is not in the value, too";
            let hint = "write 'value.fields-include' = 'EXCEPT_KEY'";
            return Err(refuse(PREFIX, message, Some(hint.into())));
        }
        let mut fields = columns.iter().map(|column| table.schema.field(*column).name());
        if let Some(other) = fields.find(|name| !name.starts_with(&prefix)) {
            let message = format!("the key column '{other}' does not begin with '{prefix}'");
            return Err(refuse(PREFIX, message, Some("give each of them the prefix".into())));
        }
        Ok(Self { columns, is_raw, format, is_except, prefix })
    }

    /// The columns of the key, as they are called there.
    pub(crate) fn schema(&self, table: &TableDef) -> Schema {
        let field = |column: &usize| {
            let field = table.schema.field(*column);
            field.clone().with_name(&field.name()[self.prefix.len()..])
        };
        Schema::new(self.columns.iter().map(field).collect::<Vec<_>>())
    }

    /// Whether the value of a message does not have a column, for the key has it.
    pub(crate) fn is_left_out(&self, column: usize) -> bool {
        self.is_except && self.columns.contains(&column)
    }

    /// The table of the columns of the key, in its format.
    pub(crate) fn table(&self, table: &TableDef) -> TableDef {
        let mut own = value_table(table);
        own.options.extend(flink::key_options(&table.options));
        own.options.insert("format".into(), self.format.into());
        own.schema = Arc::new(self.schema(table));
        own
    }

    /// How columns of the key are read, in this order.
    ///
    /// # Errors
    /// When they do not fit.
    pub(crate) fn reading(
        &self,
        table: &TableDef,
        read: &[usize],
    ) -> Result<MessageFormat, ConnectorError> {
        let own = self.table(table);
        let projection: Vec<usize> = read
            .iter()
            .filter_map(|column| self.columns.iter().position(|own| own == column))
            .collect();
        MessageFormat::new(&own, &projection)
    }
}

/// The table of the values of messages, without the columns that come from elsewhere.
pub(crate) fn value_table(table: &TableDef) -> TableDef {
    let fields = table.schema.fields().iter().enumerate();
    let values = fields.filter(|(at, _)| !table.metadata.contains_key(at));
    let values: Vec<_> = values.map(|(_, field)| Arc::clone(field)).collect();
    let mut own = table.clone();
    (own.schema, own.metadata) = (Arc::new(Schema::new(values)), Default::default());
    own
}

/// The columns of 'key.fields'.
fn key_fields(table: &TableDef, options: OptionReader<'_>) -> Result<Vec<usize>, ConnectorError> {
    let names = options.text("key.fields").unwrap_or_default().split(';').map(str::trim);
    names
        .filter(|name| !name.is_empty())
        .map(|name| {
            let fields = table.schema.fields();
            fields.iter().position(|field| field.name() == name).ok_or_else(|| {
                let near = connectors::nearest(name, fields.iter().map(|of| of.name().as_str()));
                let hint = near.map(|near| format!("did you mean '{near}'?"));
                refuse("key.fields", format!("there is no column '{name}'"), hint)
            })
        })
        .collect()
}

/// Whether a raw key can be read as a column of this type.
pub(crate) fn is_raw_type(of: &DataType) -> bool {
    matches!(of, DataType::Utf8 | DataType::Binary)
}

/// Reads the columns of keys.
pub(crate) struct KeyDecoder {
    decoder: MessageDecoder,
    table: String,
}

impl KeyDecoder {
    pub(crate) fn new(format: &MessageFormat, table: &str, bad: &Arc<BadRows>) -> Self {
        Self { decoder: format.decoder(bad), table: table.to_owned() }
    }

    /// Decodes the keys of messages that are rows; the others are none. Gives the rows that are
    /// left, and their columns of the key, which are NULL where a message has no key. `keys` are
    /// those of all messages.
    ///
    /// # Errors
    /// When a key is bad and the table says that this is an error.
    pub(crate) fn join(
        &mut self,
        MessageRows { rows, messages }: MessageRows,
        keys: &[Option<Vec<u8>>],
        place: &dyn Fn(u32) -> String,
    ) -> Result<(MessageRows, RecordBatch), ConnectorError> {
        let unfit = |error: arrow::error::ArrowError| {
            failed(&self.table, error.to_string(), "check the columns of 'key.fields'")
        };
        // The rows with a key, by their numbers among the rows.
        let with_key: Vec<u32> = (0..messages.len() as u32)
            .filter(|row| keys[messages[*row as usize] as usize].is_some())
            .collect();
        for row in &with_key {
            self.decoder.push(keys[messages[*row as usize] as usize].as_deref())?;
        }
        let place = |key: u32| place(messages[with_key[key as usize] as usize]);
        let decoded = self.decoder.rows(&place)?;
        // By row, its key; a row whose key is bad is none.
        let mut of_row = vec![None; messages.len()];
        let mut is_kept = vec![true; messages.len()];
        with_key.iter().for_each(|row| is_kept[*row as usize] = false);
        for (at, key) in (0..).zip(&decoded.messages) {
            let row = with_key[*key as usize] as usize;
            (of_row[row], is_kept[row]) = (Some(at), true);
        }
        let kept = |row: &u32| is_kept[*row as usize];
        let kept: Vec<u32> = (0..messages.len() as u32).filter(kept).collect();
        let of_kept: UInt32Array = kept.iter().map(|row| of_row[*row as usize]).collect();
        let columns = numbered(&decoded.rows, &of_kept).map_err(unfit)?;
        if kept.len() == messages.len() {
            return Ok((MessageRows { rows, messages }, columns));
        }
        let left = kept.iter().map(|row| messages[*row as usize]).collect();
        let rows = numbered(&rows, &kept.into()).map_err(unfit)?;
        Ok((MessageRows { rows, messages: left }, columns))
    }
}

/// Rows by their numbers; those of a number that is NULL are NULL.
fn numbered(
    rows: &RecordBatch,
    numbers: &UInt32Array,
) -> Result<RecordBatch, arrow::error::ArrowError> {
    let fields = rows.schema_ref().fields().iter();
    let fields: Vec<_> = fields.map(|field| field.as_ref().clone().with_nullable(true)).collect();
    let columns = rows.columns().iter().map(|column| arrow::compute::take(column, numbers, None));
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    let options = arrow::record_batch::RecordBatchOptions::new();
    let options = options.with_row_count(Some(numbers.len()));
    RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options)
}
