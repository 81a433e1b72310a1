//! Options that several connectors have.

use std::sync::Arc;

use arrow::datatypes::Schema;
use dataflow::connector::{OptionSpec, Options};
use dataflow::error::ConnectorError;

use crate::format::encode::{RowEncoding, check_csv_columns};
use crate::format::{Format, Kind};
use crate::options::{OptionReader, refuse};

/// Seconds for which a peer that cannot be reached is tried again.
const RETRY_TIMEOUT_NS: u64 = 30_000_000_000;

/// How long a peer that cannot be reached is tried again.
pub(crate) const RETRY_TIMEOUT: OptionSpec = OptionSpec {
    key: "retry.timeout",
    values: "duration",
    default: "30s",
    doc: "How long to try again, with growing pauses, when the other end cannot be reached, before \
          the query fails.",
};

/// The option [`RETRY_TIMEOUT`], in nanoseconds.
pub(crate) fn retry_timeout_ns(options: OptionReader<'_>) -> Result<u64, ConnectorError> {
    Ok(options.duration_ns(RETRY_TIMEOUT.key)?.unwrap_or(RETRY_TIMEOUT_NS))
}

/// The formats of messages and events, of connections and answers, and of all that is read in
/// order.
const LINES: &[&str] = &["csv", "json", "raw"];
const OF_CONNECTIONS: &[&str] = &["csv", "json", "raw", "avro", "protobuf"];
const IN_ORDER: &[&str] = &["csv", "json", "raw", "avro", "protobuf", "arrow", "fixed"];

/// The format of texts that are one record each, CSV by default; `header` is whether CSV has a
/// header by default.
pub(crate) fn line_format(options: &Options, header: bool) -> Result<Format, ConnectorError> {
    let given = OptionReader(options).text("format").unwrap_or_default();
    let is_given = |name: &&&str| name.eq_ignore_ascii_case(given) && !LINES.contains(name);
    if let Some(name) = IN_ORDER.iter().find(is_given) {
        let message = format!("an event is a text, and '{name}' is none");
        let hint = format!("formats here are {}", LINES.join(", "));
        return Err(refuse("format", message, Some(hint)));
    }
    format(options, LINES, header)
}

/// The format of a connection, or of an answer; `header` as for [`line_format`].
pub(crate) fn connection_format(options: &Options, header: bool) -> Result<Format, ConnectorError> {
    format(options, OF_CONNECTIONS, header)
}

/// The format of a stream of bytes, CSV with a header by default.
pub(crate) fn stream_format(options: &Options) -> Result<Format, ConnectorError> {
    format(options, IN_ORDER, true)
}

fn format(options: &Options, names: &[&str], header: bool) -> Result<Format, ConnectorError> {
    let kind = Kind::one_of(OptionReader(options), names)?.unwrap_or(Kind::Csv);
    let mut options = options.clone();
    options.entry("csv.header".into()).or_insert_with(|| header.to_string());
    Format::new(kind, OptionReader(&options), "")?
        .ok_or_else(|| refuse("format", "it is not read in order", None))
}

/// The same format, to be written, where each row is written by itself.
pub(crate) fn row_encoding(
    format: &Format,
    schema: &Schema,
) -> Result<RowEncoding, ConnectorError> {
    match format {
        Format::Csv(dialect) => {
            check_csv_columns(schema)?;
            Ok(RowEncoding::Csv(dialect.style()))
        }
        Format::Json => Ok(RowEncoding::Json),
        Format::Protobuf(of) => Ok(RowEncoding::Protobuf(Arc::new(of.encoder(schema)?))),
        Format::Arrow | Format::Fixed(_) | Format::Avro => {
            Err(refuse("format", "its rows are not written one by one", None))
        }
        Format::Raw => Err(refuse("format", "'raw' is read, and not written", None)),
    }
}
