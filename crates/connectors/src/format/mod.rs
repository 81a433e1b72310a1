//! The meaning of bytes, apart from where they come from.
//!
//! ```text
//! file · object · socket · … ─▶ Read ─▶ Input ─▶ Decoder ─▶ record batches
//!                                    csv json arrow avro … └─▶ bad rows, at name:record
//! ```
//!
//! A [`RecordDecoder`] takes bytes in whatever pieces they arrive in and gives the records that are
//! complete. It does not know whether the bytes come from a disk or a peer: a reader that has
//! nothing at the moment says so ([`ByteInput`]), and the decoder goes on where it stood.
//!
//! Absent on purpose: formats that need their last bytes first, such as Parquet. They are read from
//! what is [`stored`](crate::stored).

use std::sync::Arc;

use arrow::datatypes::{DataType, Schema};
use arrow::record_batch::RecordBatch;
use dataflow::connector::OptionSpec;
use dataflow::error::ConnectorError;
use dataflow::position::refused;
use dataflow::source::{Next, Position, SplitReader};

pub(crate) mod avro;
mod cells;
pub(crate) mod compression;
pub(crate) mod csv;
pub(crate) mod cut;
pub(crate) mod encode;
mod fit;
pub(crate) mod fixed;
pub(crate) mod infer;
pub(crate) mod input;
pub(crate) mod ipc;
pub(crate) mod json;
pub(crate) mod partitions;
pub(crate) mod protobuf;
mod quick;
mod raw;
pub(crate) mod rows;
#[cfg(test)]
mod tests;
pub(crate) mod typed;
pub(crate) mod unpack;
mod unzstd;

pub(crate) use compression::Compression;
pub(crate) use cut::RecordCut;
pub(crate) use input::ByteInput;
pub(crate) use rows::{Refuser, TargetColumns};

use crate::options::{OptionReader, refuse};

/// The names of all formats, as the option 'format' has them.
const KINDS: [(&str, Kind); 8] = [
    ("csv", Kind::Csv),
    ("json", Kind::Json),
    ("parquet", Kind::Parquet),
    ("arrow", Kind::Arrow),
    ("fixed", Kind::Fixed),
    ("raw", Kind::Raw),
    ("avro", Kind::Avro),
    ("protobuf", Kind::Protobuf),
];

/// The format of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Csv,
    Json,
    Parquet,
    Arrow,
    Fixed,
    Raw,
    Avro,
    Protobuf,
}

impl Kind {
    /// By the extension of a name.
    pub(crate) fn of(name: &str) -> Option<Self> {
        match extension(name)?.to_ascii_lowercase().as_str() {
            "csv" | "tsv" => Some(Self::Csv),
            "json" | "jsonl" | "ndjson" => Some(Self::Json),
            "parquet" | "pq" => Some(Self::Parquet),
            "arrow" | "arrows" | "feather" | "ipc" => Some(Self::Arrow),
            "avro" => Some(Self::Avro),
            _ => None,
        }
    }

    /// By the option 'format'.
    pub(crate) fn given(options: OptionReader<'_>) -> Result<Option<Self>, ConnectorError> {
        let names = KINDS.map(|(name, _)| name);
        Self::one_of(options, &names)
    }

    /// By the option 'format', which is one of these names.
    pub(crate) fn one_of(
        options: OptionReader<'_>,
        names: &[&str],
    ) -> Result<Option<Self>, ConnectorError> {
        refuse_registered(options, names)?;
        let given = options.choice("format", names)?.map(|index| names[index]);
        let kind = |name| KINDS.iter().find(|(known, _)| *known == name);
        Ok(given.and_then(kind).map(|(_, kind)| *kind))
    }
}

/// Refuses formats that name a schema with each message, where there are none. `names` are those of
/// the formats that there are.
///
/// # Errors
/// When the option 'format' has one.
fn refuse_registered(options: OptionReader<'_>, names: &[&str]) -> Result<(), ConnectorError> {
    const REGISTERED: [&str; 2] = ["avro-confluent", "protobuf-confluent"];
    let given = options.text("format").unwrap_or_default();
    let found = REGISTERED.iter().find(|name| name.eq_ignore_ascii_case(given));
    let Some(name) = found else { return Ok(()) };
    let message = format!("'{name}' is read from 'kafka': each message names its schema");
    Err(refuse("format", message, Some(format!("formats here are {}", names.join(", ")))))
}

/// The part of a name behind its last dot, but for that of its compression.
pub(crate) fn extension(name: &str) -> Option<&str> {
    let (stem, extension) = Compression::bare(name).rsplit('/').next()?.rsplit_once('.')?;
    (!stem.is_empty()).then_some(extension)
}

/// The options of the formats that are read in order.
pub(crate) const CSV_OPTIONS: [OptionSpec; 5] = [
    OptionSpec {
        key: "csv.header",
        values: "true | false",
        default: "true",
        doc: "Whether the first record names the columns; without it they stand in the declared \
              order.",
    },
    OptionSpec {
        key: "csv.delimiter",
        values: "character",
        default: ", (a tab for .tsv)",
        doc: "The delimiter between fields.",
    },
    OptionSpec {
        key: "csv.quote",
        values: "character",
        default: "\"",
        doc: "The quote around a field that contains delimiters; it is doubled within the field.",
    },
    OptionSpec {
        key: "csv.comment",
        values: "character",
        default: "none",
        doc: "Lines that begin with it are skipped.",
    },
    OptionSpec {
        key: "csv.null",
        values: "texts, separated by commas",
        default: "none",
        doc: "Texts that stand for NULL, such as NA; an empty field is NULL for every type but \
              strings. A sink writes the first.",
    },
];

/// The treatment of a record that is no row of the table.
pub(crate) const ON_BAD: OptionSpec = OptionSpec {
    key: "on_bad",
    values: "skip | fail | table",
    default: "skip",
    doc: "Whether a record that is no row of the table is counted and skipped, ends the \
          query, or is counted and left to the table t__bad without being shown.",
};

/// A format that is read in order, with what there is to know about it.
#[derive(Debug, Clone)]
pub(crate) enum Format {
    Csv(csv::Dialect),
    Json,
    Arrow,
    Fixed(fixed::FixedOptions),
    Raw,
    Avro,
    /// Messages, each behind its length.
    Protobuf(protobuf::ProtoFormat),
}

impl Format {
    /// `None` where the format needs its last bytes first. `name` is that of a file or object, for
    /// what its extension tells.
    pub(crate) fn new(
        kind: Kind,
        options: OptionReader<'_>,
        name: &str,
    ) -> Result<Option<Self>, ConnectorError> {
        Ok(match kind {
            Kind::Csv => Some(Self::Csv(csv::Dialect::new(options, name)?)),
            Kind::Json => Some(Self::Json),
            Kind::Arrow => Some(Self::Arrow),
            Kind::Fixed => Some(Self::Fixed(fixed::FixedOptions::new(options)?)),
            Kind::Raw => Some(Self::Raw),
            Kind::Avro => Some(Self::Avro),
            Kind::Protobuf => Some(Self::Protobuf(protobuf::ProtoFormat::new(options)?)),
            Kind::Parquet => None,
        })
    }

    /// Refuses declared types that nothing in this format can become.
    pub(crate) fn check(&self, declared: &Schema) -> Result<(), ConnectorError> {
        match self {
            Self::Csv(_) => declared
                .fields()
                .iter()
                .try_for_each(|field| rows::check_castable(field, &DataType::Utf8, "a CSV file")),
            Self::Fixed(given) => fixed::FixedLayout::new(declared, given).map(drop),
            Self::Raw => raw::check(declared),
            Self::Protobuf(given) => {
                let target = Refuser::ignoring(Arc::new(declared.clone())).target;
                given.rows(&target).map(drop)
            }
            Self::Json | Self::Arrow | Self::Avro => Ok(()),
        }
    }

    /// How bytes of it are cut between records; `None` where only the bytes from the beginning on
    /// tell.
    pub(crate) fn cut(&self, declared: usize) -> Option<RecordCut> {
        match self {
            Self::Csv(dialect) => csv::CsvCut::new(dialect, declared).map(RecordCut::Csv),
            Self::Json | Self::Raw => Some(RecordCut::Lines),
            Self::Arrow | Self::Avro | Self::Fixed(_) | Self::Protobuf(_) => None,
        }
    }

    /// Whether a record ends with its line, or lines: what comes in pieces may be cut there.
    pub(crate) fn is_of_lines(&self) -> bool {
        matches!(self, Self::Csv(_) | Self::Json | Self::Raw)
    }

    /// A reader of the records of `input`.
    pub(crate) fn decoder(&self, input: ByteInput, refuser: Refuser) -> Box<dyn RecordDecoder> {
        match self {
            Self::Csv(dialect) => Box::new(csv::CsvDecoder::new(input, dialect.clone(), refuser)),
            Self::Json => Box::new(json::JsonDecoder::new(input, refuser)),
            Self::Raw => Box::new(raw::RawDecoder::new(input, refuser)),
            Self::Arrow => Box::new(ipc::IpcDecoder::new(input, refuser)),
            Self::Avro => Box::new(avro::AvroDecoder::new(input, refuser)),
            Self::Fixed(given) => Box::new(fixed::FixedDecoder::new(input, given.clone(), refuser)),
            Self::Protobuf(given) => {
                Box::new(protobuf::ProtoDecoder::new(input, given.clone(), refuser))
            }
        }
    }

    /// The name of positions in it.
    fn name(&self) -> &'static str {
        match self {
            Self::Csv(_) => "csv",
            Self::Json => "json",
            Self::Arrow => "arrow stream",
            Self::Fixed(_) => "fixed",
            Self::Raw => "raw",
            Self::Avro => "avro",
            Self::Protobuf(_) => "protobuf",
        }
    }

    /// Columns that are known before there are bytes, where there are any.
    pub(crate) fn described(&self) -> Option<Schema> {
        match self {
            Self::Protobuf(given) => {
                Some(given.columns()).filter(|columns| !columns.fields().is_empty())
            }
            _ => None,
        }
    }

    /// Columns that the first records of `input` suggest. The input must not be one that waits.
    pub(crate) fn infer(&self, input: ByteInput) -> Result<Schema, ConnectorError> {
        match self {
            Self::Csv(dialect) => csv::infer(input, dialect.clone()),
            Self::Json => json::infer(input),
            Self::Arrow => ipc::infer(input),
            Self::Avro => avro::infer(input),
            Self::Protobuf(given) => Ok(given.columns()),
            Self::Raw => {
                Ok(Schema::new(vec![arrow::datatypes::Field::new("line", DataType::Utf8, true)]))
            }
            Self::Fixed(_) => Err(refuse(
                "format",
                "records of fixed length do not name their columns",
                Some("declare them: CREATE TABLE t (key BIGINT, …) WITH (…)".into()),
            )),
        }
    }
}

/// Bytes becoming rows.
pub(crate) trait RecordDecoder: Send {
    /// Reads what stands before the first record and checks the columns against it, so that what
    /// does not fit is reported early. `false`: it has not arrived yet. May be left out.
    ///
    /// # Errors
    /// When the bytes cannot be read, or a declared column is not there.
    fn start(&mut self) -> Result<bool, ConnectorError>;

    /// The place behind the records of the last batch.
    fn place(&self) -> RecordStart;

    /// Goes on at a place that [`place`](Self::place) gave, once its bytes have come: called before
    /// anything is decoded.
    fn go_to(&mut self, place: RecordStart);

    /// Decodes no record that begins at `offset` or behind. Only for formats that are
    /// [cut](Format::cut).
    fn stop_at(&mut self, offset: u64) {
        let _ = offset;
    }

    /// Up to `rows_max` of the rows that have arrived. Records that are no rows have gone to the
    /// refuser.
    ///
    /// # Errors
    /// When the bytes cannot be read, or nothing in them can be told apart any more.
    fn decode(&mut self, rows_max: usize) -> Result<Decoded, ConnectorError>;
}

/// A place between two records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordStart {
    /// In bytes, unpacked.
    pub(crate) offset: u64,
    /// The number of the record behind it, as messages have it.
    pub(crate) record: u64,
    /// Whether the rest of a record that is too long stands there, to be passed over.
    pub(crate) rest: bool,
}

/// Moves on to where a record begins; `false` if its bytes have not come yet.
///
/// # Errors
/// When no record begins there.
fn seek(input: &mut ByteInput, place: RecordStart) -> Result<bool, ConnectorError> {
    if !input.skip_to(place.offset, place.record)? {
        return Ok(false);
    }
    if !place.rest && !input.is_behind_line(place.record)? {
        return Err(refused(input.name(), format!("byte {} is within a record", place.offset)));
    }
    Ok(true)
}

/// The outcome of a call of a decoder.
#[derive(Debug)]
pub(crate) enum Decoded {
    /// Rows, in order. Not empty.
    Batch(RecordBatch),
    /// No whole record at the moment.
    Later,
    /// No more rows, ever.
    End,
}

impl From<Decoded> for Next {
    fn from(decoded: Decoded) -> Self {
        match decoded {
            Decoded::Batch(batch) => Next::Batch(batch),
            Decoded::Later => Next::Pending,
            Decoded::End => Next::End,
        }
    }
}

/// The version of the positions of decoders.
const POSITION_VERSION: u32 = 2;

/// The version of bytes that can be read again: others of the same name differ in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InputVersion {
    /// How many there are.
    pub(crate) bytes: u64,
    /// A checksum of the first and the last of them, or of what a store says of them; 0 where
    /// nothing is known.
    pub(crate) mark: u64,
}

impl InputVersion {
    /// The mark of bytes, their FNV-1a hash: the same in each version of the program, and not 0.
    pub(crate) fn mark_of<'a>(bytes: impl Iterator<Item = &'a u8>) -> u64 {
        fnv(bytes).max(1)
    }

    /// The numbers of it in a position.
    pub(crate) fn numbers(self) -> [u64; 2] {
        [self.bytes, self.mark]
    }

    /// Refuses a position whose split was of another version.
    ///
    /// # Errors
    /// When it was.
    pub(crate) fn check(self, [bytes, mark]: [u64; 2], split: &str) -> Result<(), ConnectorError> {
        if bytes != self.bytes {
            let message = format!("it has {} bytes, and had {bytes} before", self.bytes);
            return Err(refused(split, message));
        }
        if mark != 0 && self.mark != 0 && mark != self.mark {
            return Err(refused(split, "it was replaced: it has other bytes than before".into()));
        }
        Ok(())
    }
}

/// The FNV-1a hash of bytes: the same in each version of the program and on every machine.
pub fn fnv<'a>(bytes: impl IntoIterator<Item = &'a u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Bytes that can be read again.
pub(crate) struct VersionedInput {
    pub(crate) input: ByteInput,
    pub(crate) version: InputVersion,
}

/// The records of a range of bytes: those that begin in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordRange {
    /// Where the first of them begins.
    pub(crate) begin: RecordStart,
    /// The offset where the first record behind them begins.
    pub(crate) end: u64,
}

/// The rows of bytes that can be read again: a file, an object, or a range of it.
pub(crate) struct DecoderReader {
    decoder: Box<dyn RecordDecoder>,
    format: &'static str,
    split: String,
    /// One of another version is another one.
    version: InputVersion,
}

impl DecoderReader {
    /// Reads an input from a position or from the beginning: the records of `range`, or all of
    /// them. `split` is the name of the split.
    ///
    /// # Errors
    /// When it does not fit the table, or `from` is no position in it.
    pub(crate) fn open(
        format: &Format,
        VersionedInput { input, version }: VersionedInput,
        (split, range): (&str, Option<RecordRange>),
        from: Option<&Position>,
        refuser: Refuser,
    ) -> Result<Self, ConnectorError> {
        let (split, name) = (split.to_owned(), format.name());
        let mut decoder = format.decoder(input, refuser);
        decoder.start()?;
        if let Some(RecordRange { begin, end }) = range {
            decoder.go_to(begin);
            decoder.stop_at(end);
        }
        if let Some(from) = from {
            let numbers = from.numbers(name, POSITION_VERSION, &split)?;
            let [length, mark, offset, record, rest] = numbers;
            version.check([length, mark], &split)?;
            if rest > 1 || record == 0 {
                return Err(refused(&split, "the position names no record".into()));
            }
            let begin = range.map_or(0, |range| range.begin.offset);
            if offset < begin {
                let message = format!("the position is byte {offset}, before byte {begin}");
                return Err(refused(&split, message));
            }
            decoder.go_to(RecordStart { offset, record, rest: rest == 1 });
        }
        Ok(Self { decoder, format: name, split, version })
    }
}

impl SplitReader for DecoderReader {
    fn next(&mut self, rows_max: usize) -> Result<Next, ConnectorError> {
        self.decoder.decode(rows_max).map(Next::from)
    }

    fn position(&self) -> Position {
        let RecordStart { offset, record, rest } = self.decoder.place();
        let [bytes, mark] = self.version.numbers();
        let numbers = [bytes, mark, offset, record, u64::from(rest)];
        Position::new(self.format, POSITION_VERSION, &self.split, &numbers)
    }
}
