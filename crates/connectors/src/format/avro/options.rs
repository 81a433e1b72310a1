//! The options of Avro.

use arrow::datatypes::Schema;
use dataflow::connector::OptionSpec;
use dataflow::error::ConnectorError;

use super::schema::SCHEMA_BYTES_MAX;
use super::{AvroSchema, BlockCodec, schema_of};
use crate::options::{OptionReader, refuse};

pub(crate) const OPTIONS: [OptionSpec; 2] = [
    OptionSpec {
        key: "avro.schema",
        values: "JSON",
        default: "that of the columns, as Flink derives it",
        doc: "The schema by which messages of 'avro' are read, and rows are written.",
    },
    OptionSpec {
        key: "avro.schema.file",
        values: "file",
        default: "none",
        doc: "The same, in a file.",
    },
];

pub(crate) const CODEC: OptionSpec = OptionSpec {
    key: "avro.codec",
    values: "snappy | null | deflate | zstandard | bzip2 | xz",
    default: "snappy",
    doc: "How a sink compresses the blocks of a file.",
};

/// The hint where a schema is none.
const SCHEMA_HINT: &str = "a schema is such as {\"type\": \"record\", \"name\": \"row\", \
                           \"fields\": [{\"name\": \"id\", \"type\": \"long\"}]}";

/// How a sink packs blocks.
///
/// # Errors
/// When there is no such way.
pub(crate) fn codec(options: OptionReader<'_>) -> Result<BlockCodec, ConnectorError> {
    let chosen = options.choice(CODEC.key, &BlockCodec::ALL.map(|(name, _)| name))?;
    Ok(chosen.map_or(BlockCodec::Snappy, |chosen| BlockCodec::ALL[chosen].1))
}

/// A schema, and its JSON.
pub(crate) struct WrittenSchema {
    pub(crate) schema: AvroSchema,
    pub(crate) json: String,
}

/// The schema that the options have, or that of the columns.
///
/// # Errors
/// When there is none, or it is none.
pub(crate) fn schema_for(
    columns: &Schema,
    options: OptionReader<'_>,
) -> Result<WrittenSchema, ConnectorError> {
    let (key, json, hint) = match given(options)? {
        Some((key, json)) => (key, json, Some(SCHEMA_HINT.to_owned())),
        None => ("format", schema_of(columns)?, None),
    };
    let schema = AvroSchema::new(&json, &[]).map_err(|reason| refuse(key, reason, hint))?;
    Ok(WrittenSchema { schema, json })
}

/// The schema of the options, and the option that has it.
fn given(options: OptionReader<'_>) -> Result<Option<(&'static str, String)>, ConnectorError> {
    let [schema, file] = OPTIONS.map(|option| option.key);
    match (options.text(schema), options.text(file)) {
        (Some(_), Some(_)) => Err(refuse(file, format!("'{schema}' is there, too"), None)),
        (Some(json), None) => Ok(Some((schema, json.to_owned()))),
        (None, None) => Ok(None),
        (None, Some(path)) => {
            let hint = || Some("write the path of a file with a schema in JSON".to_owned());
            let unfit = |error: String| refuse(file, format!("{path}: {error}"), hint());
            let bytes = std::fs::metadata(path).map_err(|error| unfit(error.to_string()))?.len();
            if bytes > SCHEMA_BYTES_MAX as u64 {
                return Err(unfit(format!("it has {bytes} bytes, {SCHEMA_BYTES_MAX} at most")));
            }
            let json = std::fs::read_to_string(path).map_err(|error| unfit(error.to_string()))?;
            Ok(Some((file, json)))
        }
    }
}
