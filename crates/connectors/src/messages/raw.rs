//! Messages as they are: the value is the only column.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BinaryBuilder, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, FieldRef, Schema};
use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;

use super::INPUT;
use crate::format::Refuser;
use crate::format::rows::{self, RowOrigin};
use crate::options::{refuse, sql_type};

/// The column that is the value of a message.
///
/// # Errors
/// When there are several, or none, or it is neither text nor bytes.
pub(super) fn value_column(columns: &Schema) -> Result<FieldRef, ConnectorError> {
    let unfit = |field: &FieldRef, message: String, hint: &str| ConnectorError::Column {
        column: field.name().clone(),
        message,
        hint: Some(hint.to_owned()),
    };
    match &columns.fields()[..] {
        [] => {
            let hint = "declare a column of STRING or BYTES";
            Err(refuse("format", "'raw' needs a column for the value", Some(hint.into())))
        }
        [field] if matches!(field.data_type(), DataType::Utf8 | DataType::Binary) => {
            Ok(Arc::clone(field))
        }
        [field] => {
            let of = sql_type(field.data_type());
            let message = format!("the value of a message is STRING or BYTES, and not {of}");
            Err(unfit(field, message, "declare it so, and CAST it in the query"))
        }
        [first, field, ..] => {
            let message = format!("'raw' has one column, and that is '{}'", first.name());
            let hint = "write 'format' = 'json'; a column of the key is one of 'key.fields' with \
                        'value.fields-include' = 'EXCEPT_KEY', or METADATA FROM 'key'";
            Err(unfit(field, message, hint))
        }
    }
}

/// Messages becoming rows of one column.
pub(super) struct RawMessages {
    refuser: Refuser,
    column: FieldRef,
    values: BinaryBuilder,
    /// Of the messages, counted from 1.
    numbers: Vec<u64>,
}

impl RawMessages {
    pub(super) fn new(column: FieldRef, refuser: Refuser) -> Self {
        Self { refuser, column, values: BinaryBuilder::new(), numbers: vec![] }
    }

    /// Takes a message.
    ///
    /// # Errors
    /// Why it is no row.
    pub(super) fn push(&mut self, message: u32, value: Option<&[u8]>) -> Result<(), String> {
        let name = self.column.name();
        match value {
            None if !self.column.is_nullable() => {
                return Err(format!("the message has no value, and column '{name}' is NOT NULL"));
            }
            Some(value)
                if *self.column.data_type() == DataType::Utf8
                    && std::str::from_utf8(value).is_err() =>
            {
                return Err(format!(
                    "column '{name}': the value is not UTF-8: declare it as BYTES"
                ));
            }
            _ => {}
        }
        self.values.append_option(value);
        self.numbers.push(u64::from(message) + 1);
        Ok(())
    }

    /// The rows of the messages.
    ///
    /// # Errors
    /// When they cannot be made.
    pub(super) fn finish(&mut self) -> Result<Vec<RecordBatch>, ConnectorError> {
        let numbers = std::mem::take(&mut self.numbers);
        if numbers.is_empty() {
            return Ok(vec![]);
        }
        let mut values: ArrayRef = Arc::new(self.values.finish());
        if *self.column.data_type() == DataType::Utf8 {
            let texts = StringArray::try_from_binary(values.as_binary().clone());
            values = Arc::new(texts.map_err(|error| rows::unfit(INPUT, &error))?);
        }
        let (rows, origin) = (numbers.len(), RawOrigin(numbers));
        self.refuser.rows(&|_| Arc::clone(&values), rows, vec![], &origin).map(|rows| vec![rows])
    }
}

/// The numbers of messages, none of which is refused.
struct RawOrigin(Vec<u64>);

impl RowOrigin for RawOrigin {
    fn name(&self) -> &str {
        INPUT
    }

    fn record(&self, row: usize) -> u64 {
        self.0[row]
    }

    fn text(&self, _row: usize) -> Cow<'_, [u8]> {
        Cow::Borrowed(b"")
    }
}

/// Gives the value of each row as it is; none where it is NULL.
pub(super) fn encode(batch: &RecordBatch, give: impl FnMut(Option<&[u8]>)) -> Result<(), String> {
    let values = cast(batch.column(0), &DataType::Binary).map_err(|error| error.to_string())?;
    values.as_binary::<i32>().iter().for_each(give);
    Ok(())
}
