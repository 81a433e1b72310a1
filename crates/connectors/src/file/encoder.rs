//! Rows as the bytes of a file, in each format that a sink has.

use std::fmt::Display;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::compute::cast;
use arrow::datatypes::{DataType, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::ipc::CompressionType;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use dataflow::connector::TableDef;
use dataflow::error::ConnectorError;
use dataflow::sink::{Room, SinkWriter};
use parquet::arrow::{ArrowSchemaConverter, ArrowWriter};
use parquet::basic::Compression as ParquetCodec;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;

use super::atomic::AtomicFile;
use super::avro_writer::{AvroWriter, avro_not_packed};
use super::paths::{io_error, kind_of};
use crate::format::compression::CompressingWriter;
use crate::format::csv::Dialect;
use crate::format::encode::{RowEncoding, check_csv_columns};
use crate::format::{Compression, Kind, avro, fixed, protobuf};
use crate::object::Upload;
use crate::options::{OptionReader, refuse};
use crate::stored::not_packed;

/// Bytes of rows gathered before they are written.
pub(super) const BUFFER_BYTES: usize = 1 << 20;

/// Bytes that appear all at once under their name, or not at all where they are dropped.
pub(super) trait Output: Write + Send {
    fn commit(self: Box<Self>) -> Result<(), ConnectorError>;
}

impl Output for AtomicFile {
    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        AtomicFile::commit(*self)
    }
}

impl Output for Upload {
    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        Upload::commit(*self)
    }
}

/// A [`SinkWriter`] of one file.
pub(super) trait FormatWriter: SinkWriter {
    /// Writes the rest of the file, and gives it back to be committed.
    fn finish(self: Box<Self>) -> Result<Box<dyn Output>, ConnectorError>;

    /// Bytes, about, of rows that were taken and not written to the file yet.
    fn unwritten(&self) -> u64 {
        0
    }
}

/// How the rows of a table become the bytes of a file.
#[derive(Debug, Clone)]
pub(super) struct Encoder {
    schema: SchemaRef,
    format: SinkFormat,
}

#[derive(Debug, Clone)]
enum SinkFormat {
    Rows(RowEncoding, Compression),
    Parquet(ParquetCodec),
    Arrow {
        stream: bool,
        options: IpcWriteOptions,
        packed: Compression,
    },
    /// With its schema as JSON.
    Avro(Arc<avro::AvroEncoder>, Arc<str>, avro::BlockCodec),
}

impl Encoder {
    /// For a file of this name. The format is the table's, or that of the extension.
    pub(super) fn new(table: &TableDef, path: &Path) -> Result<Self, ConnectorError> {
        let options = OptionReader(&table.options);
        let kind = Kind::given(options)?.or_else(|| kind_of(path)).ok_or_else(|| {
            refuse(
                "format",
                format!("the name '{}' does not tell it", path.display()),
                Some(
                    "write 'format' = 'csv', 'json', 'parquet', 'arrow', 'avro', 'protobuf' or \
                     'fixed'"
                        .into(),
                ),
            )
        })?;
        let name = path.to_string_lossy();
        let packed = Compression::given(options)?.unwrap_or_else(|| Compression::of(&name));
        let mut schema = Arc::clone(&table.schema);
        let format = match kind {
            Kind::Csv => {
                check_csv_columns(&schema)?;
                SinkFormat::Rows(RowEncoding::Csv(Dialect::new(options, &name)?.style()), packed)
            }
            Kind::Json => SinkFormat::Rows(RowEncoding::Json, packed),
            Kind::Fixed => {
                let layout = fixed::FixedLayout::new(&schema, &fixed::FixedOptions::new(options)?)?;
                SinkFormat::Rows(RowEncoding::Fixed(layout), packed)
            }
            Kind::Protobuf => {
                let encoder = protobuf::ProtoFormat::new(options)?.encoder(&schema)?;
                SinkFormat::Rows(RowEncoding::Protobuf(Arc::new(encoder)), packed)
            }
            Kind::Avro if packed != Compression::None => return Err(avro_not_packed()),
            Kind::Avro => {
                let of = avro::schema_for(&schema, options)?;
                let encoder = avro::AvroEncoder::new(&schema, of.schema)?;
                SinkFormat::Avro(Arc::new(encoder), of.json.into(), avro::codec(options)?)
            }
            Kind::Raw => {
                let hint = Some("write 'format' = 'csv' or 'json'".into());
                return Err(refuse("format", "'raw' is read, and not written", hint));
            }
            Kind::Parquet if packed != Compression::None => return Err(not_packed()),
            Kind::Parquet => {
                ArrowSchemaConverter::new().convert(&schema).map_err(|error| {
                    ConnectorError::Column {
                        column: table.name.clone(),
                        message: format!("Parquet cannot carry its columns: {error}"),
                        hint: Some("write 'format' = 'json'".into()),
                    }
                })?;
                SinkFormat::Parquet(parquet_codec(options)?)
            }
            Kind::Arrow => {
                schema = Arc::new(flat(&schema));
                let stream = match options.choice("arrow.layout", &["file", "stream"])? {
                    Some(0) if packed != Compression::None => return Err(no_footer()),
                    Some(layout) => layout == 1,
                    None => packed != Compression::None || name.ends_with(".arrows"),
                };
                SinkFormat::Arrow { stream, options: arrow_options(options)?, packed }
            }
        };
        Ok(Self { schema, format })
    }

    /// The columns of a file. None of them is a dictionary in the formats of Arrow.
    pub(super) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Whether rows are whole behind each batch, and not behind the end of the file alone.
    pub(super) fn writes_by_row(&self) -> bool {
        matches!(self.format, SinkFormat::Rows(..))
    }

    /// The extension of a file that is read in this format, with its packing.
    pub(super) fn extension(&self) -> String {
        let (name, packed) = match &self.format {
            SinkFormat::Rows(RowEncoding::Csv(_), packed) => ("csv", *packed),
            SinkFormat::Rows(RowEncoding::Json, packed) => ("json", *packed),
            SinkFormat::Rows(RowEncoding::Protobuf(_), packed) => ("pb", *packed),
            SinkFormat::Rows(RowEncoding::Fixed(_), packed) => ("dat", *packed),
            SinkFormat::Parquet(_) => ("parquet", Compression::None),
            SinkFormat::Arrow { stream: true, packed, .. } => ("arrows", *packed),
            SinkFormat::Arrow { packed, .. } => ("arrow", *packed),
            SinkFormat::Avro(..) => ("avro", Compression::None),
        };
        let packing = match packed {
            Compression::None => "",
            Compression::Gzip => ".gz",
            Compression::Zstd => ".zst",
            Compression::Bzip2 => ".bz2",
            Compression::Xz => ".xz",
        };
        format!("{name}{packing}")
    }

    /// Writes rows in the format of the table.
    pub(super) fn begin(
        &self,
        path: &Path,
        file: Box<dyn Output>,
    ) -> Result<Box<dyn FormatWriter>, ConnectorError> {
        let schema = Arc::clone(&self.schema);
        Ok(match &self.format {
            SinkFormat::Rows(format, packed) => {
                let buffer = format.prologue(schema).map_err(|error| unfit(path, &error))?;
                let path = path.to_owned();
                Box::new(RowWriter { path, to: packed.pack(file)?, format: format.clone(), buffer })
            }
            SinkFormat::Parquet(codec) => {
                let properties = WriterProperties::builder().set_compression(*codec).build();
                let file = BufWriter::with_capacity(BUFFER_BYTES, file);
                let writer = ArrowWriter::try_new(file, schema, Some(properties))
                    .map_err(|error| parquet_error(path, error))?;
                Box::new(ParquetWriter { path: path.to_owned(), writer })
            }
            SinkFormat::Arrow { stream, options, packed } => {
                let to = BufWriter::with_capacity(BUFFER_BYTES, packed.pack(file)?);
                let options = options.clone();
                let writer = if *stream {
                    StreamWriter::try_new_with_options(to, &schema, options)
                        .map(ArrowLayout::Stream)
                } else {
                    FileWriter::try_new_with_options(to, &schema, options).map(ArrowLayout::File)
                };
                let writer = writer.map_err(|error| arrow_error(path, error))?;
                Box::new(IpcWriter { path: path.to_owned(), schema, writer })
            }
            SinkFormat::Avro(encoder, json, codec) => {
                Box::new(AvroWriter::begin(path, file, Arc::clone(encoder), (json, *codec)))
            }
        })
    }
}

fn parquet_codec(options: OptionReader<'_>) -> Result<ParquetCodec, ConnectorError> {
    let names = ["snappy", "zstd", "gzip", "brotli", "lz4", "none"];
    Ok(match options.choice("parquet.compression", &names)? {
        None | Some(0) => ParquetCodec::SNAPPY,
        Some(1) => ParquetCodec::ZSTD(Default::default()),
        Some(2) => ParquetCodec::GZIP(Default::default()),
        Some(3) => ParquetCodec::BROTLI(Default::default()),
        Some(4) => ParquetCodec::LZ4_RAW,
        Some(_) => ParquetCodec::UNCOMPRESSED,
    })
}

fn arrow_options(options: OptionReader<'_>) -> Result<IpcWriteOptions, ConnectorError> {
    let codec = match options.choice("arrow.compression", &["lz4", "zstd", "none"])? {
        None | Some(0) => Some(CompressionType::LZ4_FRAME),
        Some(1) => Some(CompressionType::ZSTD),
        Some(_) => None,
    };
    IpcWriteOptions::default()
        .try_with_compression(codec)
        .map_err(|error| refuse("arrow.compression", error.to_string(), None))
}

fn no_footer() -> ConnectorError {
    refuse(
        "arrow.layout",
        "an Arrow file that is packed as a whole is a stream",
        Some("leave 'compression' out: 'arrow.compression' packs the columns".into()),
    )
}

/// Columns with the values of dictionaries in place: a file may have one dictionary per column
/// only, and batches come with their own.
pub(super) fn flat(schema: &Schema) -> Schema {
    let fields = schema.fields().iter().map(|field| match field.data_type() {
        DataType::Dictionary(_, values) => {
            Arc::new(field.as_ref().clone().with_data_type(values.as_ref().clone()))
        }
        _ => Arc::clone(field),
    });
    Schema::new(fields.collect::<Vec<_>>())
}

struct RowWriter {
    path: PathBuf,
    to: CompressingWriter<Box<dyn Output>>,
    format: RowEncoding,
    buffer: Vec<u8>,
}

impl RowWriter {
    fn send(&mut self) -> Result<(), ConnectorError> {
        let sent = self.to.write_all(&self.buffer);
        sent.map_err(|error| io_error(&self.path, &error))?;
        self.buffer.clear();
        Ok(())
    }
}

impl FormatWriter for RowWriter {
    fn finish(mut self: Box<Self>) -> Result<Box<dyn Output>, ConnectorError> {
        self.send()?;
        let Self { path, to, .. } = *self;
        to.finish().map_err(|error| io_error(&path, &error))
    }

    fn unwritten(&self) -> u64 {
        self.buffer.len() as u64
    }
}

impl SinkWriter for RowWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        self.format.encode(batch, &mut self.buffer).map_err(|error| unfit(&self.path, &error))?;
        if self.buffer.len() >= BUFFER_BYTES { self.send() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn settle(&mut self) -> Result<Room, ConnectorError> {
        self.send()?;
        self.to.flush().map_err(|error| io_error(&self.path, &error))?;
        Ok(Room::Ready)
    }

    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        self.finish()?.commit()
    }
}

struct ParquetWriter {
    path: PathBuf,
    writer: ArrowWriter<BufWriter<Box<dyn Output>>>,
}

impl FormatWriter for ParquetWriter {
    fn finish(self: Box<Self>) -> Result<Box<dyn Output>, ConnectorError> {
        let Self { path, writer } = *self;
        let buffered = writer.into_inner().map_err(|error| parquet_error(&path, error))?;
        buffered.into_inner().map_err(|error| io_error(&path, error.error()))
    }

    fn unwritten(&self) -> u64 {
        self.writer.in_progress_size() as u64
    }
}

impl SinkWriter for ParquetWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        self.writer.write(batch).map_err(|error| parquet_error(&self.path, error))
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        self.finish()?.commit()
    }
}

type Buffered = BufWriter<CompressingWriter<Box<dyn Output>>>;

enum ArrowLayout {
    File(FileWriter<Buffered>),
    Stream(StreamWriter<Buffered>),
}

struct IpcWriter {
    path: PathBuf,
    /// Without dictionaries.
    schema: SchemaRef,
    writer: ArrowLayout,
}

impl FormatWriter for IpcWriter {
    fn finish(self: Box<Self>) -> Result<Box<dyn Output>, ConnectorError> {
        let Self { path, writer, .. } = *self;
        // Both write their end mark on the way.
        let buffered = match writer {
            ArrowLayout::File(writer) => writer.into_inner(),
            ArrowLayout::Stream(writer) => writer.into_inner(),
        };
        let buffered = buffered.map_err(|error| arrow_error(&path, error))?;
        let packer = buffered.into_inner().map_err(|error| io_error(&path, error.error()))?;
        packer.finish().map_err(|error| io_error(&path, &error))
    }
}

impl SinkWriter for IpcWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        let batch = as_schema(batch, &self.schema);
        let written = batch.and_then(|batch| match &mut self.writer {
            ArrowLayout::File(writer) => writer.write(&batch),
            ArrowLayout::Stream(writer) => writer.write(&batch),
        });
        written.map_err(|error| arrow_error(&self.path, error))
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        self.finish()?.commit()
    }
}

/// Rows with the types of these columns, in place of dictionaries.
pub(super) fn as_schema(
    batch: &RecordBatch,
    schema: &SchemaRef,
) -> Result<RecordBatch, ArrowError> {
    let columns: Result<Vec<_>, _> = batch
        .columns()
        .iter()
        .zip(schema.fields())
        .map(|(column, field)| cast(column, field.data_type()))
        .collect();
    let rows = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns?, &rows)
}

pub(super) fn arrow_error(path: &Path, error: ArrowError) -> ConnectorError {
    match error {
        ArrowError::IoError(_, error) => io_error(path, &error),
        other => unfit(path, &other),
    }
}

fn parquet_error(path: &Path, error: ParquetError) -> ConnectorError {
    match error {
        ParquetError::External(inner) => match inner.downcast_ref::<std::io::Error>() {
            Some(error) => io_error(path, error),
            None => unfit(path, &inner),
        },
        other => unfit(path, &other),
    }
}

pub(super) fn unfit(path: &Path, error: &dyn Display) -> ConnectorError {
    let place = path.display().to_string();
    ConnectorError::Io { place, message: error.to_string(), hint: None }
}
