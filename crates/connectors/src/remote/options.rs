//! Options that several connectors have.

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

/// The format of a stream of lines, CSV by default; `header` is whether CSV has a header by
/// default.
pub(crate) fn line_format(options: &Options, header: bool) -> Result<Format, ConnectorError> {
    format(options, &["csv", "json", "raw"], header)
}

/// The format of a stream of bytes, CSV with a header by default.
pub(crate) fn stream_format(options: &Options) -> Result<Format, ConnectorError> {
    format(options, &["csv", "json", "raw", "arrow", "fixed", "avro", "protobuf"], true)
}

fn format(options: &Options, names: &[&str], header: bool) -> Result<Format, ConnectorError> {
    refuse_unframed(options, names)?;
    let kind = match OptionReader(options).choice("format", names)? {
        None | Some(0) => Kind::Csv,
        Some(1) => Kind::Json,
        Some(2) => Kind::Raw,
        Some(3) => Kind::Arrow,
        Some(4) => Kind::Fixed,
        Some(5) => Kind::Avro,
        Some(_) => Kind::Protobuf,
    };
    let mut options = options.clone();
    options.entry("csv.header".into()).or_insert_with(|| header.to_string());
    Format::new(kind, OptionReader(&options), "")?
        .ok_or_else(|| refuse("format", "it is not read in order", None))
}

/// Refuses formats whose values a stream of bytes does not hold apart.
fn refuse_unframed(options: &Options, names: &[&str]) -> Result<(), ConnectorError> {
    const UNFRAMED: [&str; 4] = ["avro", "avro-confluent", "protobuf", "protobuf-confluent"];
    let given = OptionReader(options).text("format").unwrap_or_default();
    let unframed = UNFRAMED.iter().find(|name| name.eq_ignore_ascii_case(given));
    let Some(name) = unframed.filter(|name| !names.contains(name)) else { return Ok(()) };
    let message = format!("a stream of bytes does not tell where values of '{name}' end");
    let hint = match *name {
        "avro" => "read it from 'kafka', or files of it from 'file' or 'stdin'",
        _ => "read it from 'kafka', where each message is one",
    };
    Err(refuse("format", message, Some(hint.into())))
}

/// The same format, to be written.
pub(crate) fn text_format(format: &Format, schema: &Schema) -> Result<RowEncoding, ConnectorError> {
    match format {
        Format::Csv(dialect) => {
            check_csv_columns(schema)?;
            Ok(RowEncoding::Csv(dialect.style()))
        }
        Format::Json => Ok(RowEncoding::Json),
        Format::Arrow | Format::Fixed(_) => Err(refuse("format", "it has no lines", None)),
        Format::Avro => Err(refuse("format", "'avro' has no lines", None)),
        Format::Protobuf(_) => Err(refuse("format", "'protobuf' has no lines", None)),
        Format::Raw => Err(refuse("format", "'raw' is read, and not written", None)),
    }
}
