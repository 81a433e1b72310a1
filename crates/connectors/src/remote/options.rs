//! Options that several connectors have.

use arrow::datatypes::Schema;
use dataflow::connector::{OptionSpec, Options};
use dataflow::error::ConnectorError;

use crate::format::encode::{RowFormat, check_csv_columns};
use crate::format::{Format, Kind};
use crate::options::{Reader, refuse};

/// Seconds for which a peer that cannot be reached is tried again.
const PATIENCE_NS: u64 = 30_000_000_000;

/// How long a peer that cannot be reached is tried again.
pub(crate) const PATIENCE: OptionSpec = OptionSpec {
    key: "patience",
    values: "duration",
    default: "30s",
    doc: "How long to try again, with growing pauses, when the other end cannot be reached, before \
          the query fails.",
};

/// The option [`PATIENCE`], in nanoseconds.
pub(crate) fn patience_ns(options: Reader<'_>) -> Result<u64, ConnectorError> {
    Ok(options.duration_ns(PATIENCE.key)?.unwrap_or(PATIENCE_NS))
}

/// The format of a stream of lines, CSV unless said; `header` is whether CSV has one unless said.
pub(crate) fn line_format(options: &Options, header: bool) -> Result<Format, ConnectorError> {
    format(options, &["csv", "json"], header)
}

/// The format of a stream of bytes, CSV with a header unless said.
pub(crate) fn stream_format(options: &Options) -> Result<Format, ConnectorError> {
    format(options, &["csv", "json", "arrow", "fixed"], true)
}

fn format(options: &Options, names: &[&str], header: bool) -> Result<Format, ConnectorError> {
    let kind = match Reader(options).choice("format", names)? {
        None | Some(0) => Kind::Csv,
        Some(1) => Kind::Json,
        Some(2) => Kind::Arrow,
        Some(_) => Kind::Fixed,
    };
    let mut options = options.clone();
    options.entry("csv.header".into()).or_insert_with(|| header.to_string());
    Format::new(kind, Reader(&options), "")?
        .ok_or_else(|| refuse("format", "it is not read in order", None))
}

/// The same format, to be written.
pub(crate) fn text_format(format: &Format, schema: &Schema) -> Result<RowFormat, ConnectorError> {
    match format {
        Format::Csv(dialect) => {
            check_csv_columns(schema)?;
            Ok(RowFormat::Csv(dialect.style()))
        }
        Format::Json => Ok(RowFormat::Json),
        Format::Arrow | Format::Fixed(_) => Err(refuse("format", "it has no lines", None)),
    }
}
