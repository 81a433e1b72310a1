//! Headers of messages as a column of `MAP<STRING, BYTES>`.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryBuilder, MapArray, MapBuilder, StringBuilder};
use arrow::datatypes::{DataType, Field};
use rdkafka::message::{Header, OwnedHeaders};

/// A header: its name, and its value if it has one.
pub(crate) type OutHeader = (String, Option<Vec<u8>>);

/// Whether it is a map of texts to texts or bytes.
pub(crate) fn is_map(of: &DataType) -> bool {
    let DataType::Map(entries, _) = of else { return false };
    let DataType::Struct(fields) = entries.data_type() else { return false };
    let types: Vec<&DataType> = fields.iter().map(|field| field.data_type()).collect();
    matches!(types[..], [DataType::Utf8, DataType::Utf8 | DataType::Binary])
}

/// Builds a column of headers.
pub(crate) struct HeaderMap(MapBuilder<StringBuilder, BinaryBuilder>);

impl Default for HeaderMap {
    fn default() -> Self {
        Self(MapBuilder::new(None, StringBuilder::new(), BinaryBuilder::new()))
    }
}

impl HeaderMap {
    /// Appends the headers of a row; `None` is NULL.
    pub(crate) fn append<'a>(
        &mut self,
        headers: Option<impl IntoIterator<Item = (impl AsRef<str>, Option<&'a [u8]>)>>,
    ) {
        let is_valid = headers.is_some();
        for (name, value) in headers.into_iter().flatten() {
            self.0.keys().append_value(name);
            self.0.values().append_option(value);
        }
        // The builders have as many keys as values.
        let _ = self.0.append(is_valid);
    }

    /// The column of all rows, which are none afterwards.
    pub(crate) fn finish(&mut self) -> ArrayRef {
        Arc::new(self.0.finish())
    }
}

/// A column of headers, as it is staged and as rows are brought to before they are sent.
pub(crate) fn field(name: &str) -> Field {
    let key = Field::new("keys", DataType::Utf8, false);
    Field::new_map(name, "entries", key, Field::new("values", DataType::Binary, true), false, true)
}

/// The headers of a row; none where the row has NULL.
pub(crate) fn of_row(column: &MapArray, row: usize) -> Vec<OutHeader> {
    if column.is_null(row) {
        return vec![];
    }
    let entries = column.value(row);
    let names = entries.column(0).as_string::<i32>().iter();
    let values = entries.column(1).as_binary::<i32>().iter();
    let header = |(name, value): (Option<&str>, Option<&[u8]>)| {
        (name.unwrap_or_default().to_owned(), value.map(<[u8]>::to_vec))
    };
    names.zip(values).map(header).collect()
}

/// A column of the headers of messages.
pub(crate) fn array<'a>(messages: impl Iterator<Item = &'a [OutHeader]>) -> ArrayRef {
    let mut maps = HeaderMap::default();
    for headers in messages {
        maps.append(Some(headers.iter().map(|(name, value)| (name.as_str(), value.as_deref()))));
    }
    maps.finish()
}

/// Headers as the client takes them.
pub(crate) fn sent(headers: &[OutHeader]) -> OwnedHeaders {
    let add = |all: OwnedHeaders, (key, value): &OutHeader| {
        all.insert(Header { key, value: value.as_deref() })
    };
    headers.iter().fold(OwnedHeaders::new_with_capacity(headers.len()), add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_those_of_their_row() {
        let value = |text: &str| Some(text.as_bytes().to_vec());
        let rows: [Vec<OutHeader>; 4] = [
            vec![("trace".into(), value("a\"b")), ("none".into(), None)],
            vec![],
            vec![("empty".into(), value(""))],
            vec![("twice".into(), value("1")), ("twice".into(), value("2"))],
        ];
        let column = array(rows.iter().map(Vec::as_slice));
        assert_eq!(column.data_type(), field("headers").data_type());
        let back: Vec<_> = (0..rows.len()).map(|row| of_row(column.as_map(), row)).collect();
        assert_eq!(back, rows);
        let mut nulls = HeaderMap::default();
        nulls.append(None::<[(&str, Option<&[u8]>); 0]>);
        assert_eq!(of_row(nulls.finish().as_map(), 0), vec![]);
    }
}
