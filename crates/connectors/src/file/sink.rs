//! Rows into a file. One worker writes: a file has one end.

use std::fmt::Display;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use dataflow::connector::TableDef;
use dataflow::error::ConnectorError;
use dataflow::sink::{Placement, Sink, SinkWriter};
use parquet::arrow::{ArrowSchemaConverter, ArrowWriter};
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;

use super::PATH_HINT;
use super::atomic::AtomicFile;
use super::paths::{io_error, kind_of};
use crate::format::Kind;
use crate::format::csv::Dialect;
use crate::format::encode::{TextFormat, check_csv_columns};
use crate::options::{Reader, refuse};

/// Bytes of text gathered before they are written.
const BUFFER_BYTES: usize = 1 << 20;

/// A file to be written.
pub(super) struct FileSink {
    path: PathBuf,
    schema: SchemaRef,
    format: SinkFormat,
}

#[derive(Clone)]
enum SinkFormat {
    Text(TextFormat),
    Parquet(Compression),
}

impl FileSink {
    pub(super) fn new(table: &TableDef) -> Result<Self, ConnectorError> {
        let options = Reader(&table.options);
        let path = PathBuf::from(options.required("path", PATH_HINT)?);
        let format = Kind::given(options)?.or_else(|| kind_of(&path)).ok_or_else(|| {
            refuse(
                "format",
                format!("the name '{}' does not tell it", path.display()),
                Some("write 'format' = 'csv', 'json' or 'parquet'".into()),
            )
        })?;
        let compression =
            match options.choice("parquet.compression", &["snappy", "zstd", "none"])? {
                None | Some(0) => Compression::SNAPPY,
                Some(1) => Compression::ZSTD(Default::default()),
                Some(_) => Compression::UNCOMPRESSED,
            };
        let format = match format {
            Kind::Csv => {
                check_csv_columns(&table.schema)?;
                SinkFormat::Text(TextFormat::Csv(
                    Dialect::new(options, &path.to_string_lossy())?.style(),
                ))
            }
            Kind::Json => SinkFormat::Text(TextFormat::Json),
            Kind::Parquet => {
                ArrowSchemaConverter::new().convert(&table.schema).map_err(|error| {
                    ConnectorError::Column {
                        column: table.name.clone(),
                        message: format!("Parquet cannot carry its columns: {error}"),
                        hint: Some("write 'format' = 'json'".into()),
                    }
                })?;
                SinkFormat::Parquet(compression)
            }
        };
        Ok(Self { path, schema: Arc::clone(&table.schema), format })
    }
}

impl Sink for FileSink {
    fn placement(&self) -> Placement {
        Placement::Gather
    }

    fn open(&self, _worker: u32) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        let file = AtomicFile::create(&self.path)?;
        let schema = Arc::clone(&self.schema);
        Ok(match &self.format {
            SinkFormat::Text(format) => {
                let buffer = format.prologue(schema).map_err(|error| unfit(&self.path, &error))?;
                Box::new(TextWriter { file, format: format.clone(), buffer })
            }
            SinkFormat::Parquet(compression) => {
                let properties = WriterProperties::builder().set_compression(*compression).build();
                let file = BufWriter::with_capacity(BUFFER_BYTES, file);
                let writer = ArrowWriter::try_new(file, schema, Some(properties))
                    .map_err(|error| parquet_error(&self.path, error))?;
                Box::new(ParquetWriter { path: self.path.clone(), writer })
            }
        })
    }
}

struct TextWriter {
    file: AtomicFile,
    format: TextFormat,
    buffer: Vec<u8>,
}

impl TextWriter {
    fn send(&mut self) -> Result<(), ConnectorError> {
        let sent = self.file.write_all(&self.buffer);
        sent.map_err(|error| io_error(self.file.path(), &error))?;
        self.buffer.clear();
        Ok(())
    }
}

impl SinkWriter for TextWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        self.format
            .encode(batch, &mut self.buffer)
            .map_err(|error| unfit(self.file.path(), &error))?;
        if self.buffer.len() >= BUFFER_BYTES { self.send() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn commit(mut self: Box<Self>) -> Result<(), ConnectorError> {
        self.send()?;
        self.file.commit()
    }
}

struct ParquetWriter {
    path: PathBuf,
    writer: ArrowWriter<BufWriter<AtomicFile>>,
}

impl SinkWriter for ParquetWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        self.writer.write(batch).map_err(|error| parquet_error(&self.path, error))
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        let Self { path, writer } = *self;
        let buffered = writer.into_inner().map_err(|error| parquet_error(&path, error))?;
        let file = buffered.into_inner().map_err(|error| io_error(&path, error.error()))?;
        file.commit()
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

fn unfit(path: &Path, error: &dyn Display) -> ConnectorError {
    let place = path.display().to_string();
    ConnectorError::Io { place, message: error.to_string(), hint: None }
}
