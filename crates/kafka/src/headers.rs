//! Headers of messages that are written: a column of `MAP<STRING, BYTES>`.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryBuilder, MapArray, MapBuilder, StringBuilder};
use arrow::datatypes::{DataType, Field};
use rdkafka::message::{Header, OwnedHeaders};

/// A header: its name, and its value if it has one.
pub(crate) type OutHeader = (String, Option<Vec<u8>>);

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
    let mut maps = MapBuilder::new(None, StringBuilder::new(), BinaryBuilder::new());
    for headers in messages {
        for (name, value) in headers {
            maps.keys().append_value(name);
            maps.values().append_option(value.as_deref());
        }
        // The builders have as many keys as values.
        let _ = maps.append(true);
    }
    Arc::new(maps.finish())
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
        let mut nulls = MapBuilder::new(None, StringBuilder::new(), BinaryBuilder::new());
        nulls.append(false).unwrap();
        assert_eq!(of_row(&nulls.finish(), 0), vec![]);
    }
}
