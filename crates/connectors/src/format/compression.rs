//! Text that is packed as a whole: gzip, zstd, bzip2, xz.
//!
//! By the extension of a name (`flights.csv.gz`) or the option 'compression'. Several packed parts
//! one after the other are read as one, as the tools of these formats do. Packed bytes that end too
//! early or do not fit their checksum end the query at the record that they would have held: what
//! came before them is no proof of what is missing. A file of no bytes at all is an empty text, as
//! it is where nothing is packed.

use std::fmt;
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bzip2::read::MultiBzDecoder;
use bzip2::write::BzEncoder;
use dataflow::connector::OptionSpec;
use dataflow::error::ConnectorError;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use liblzma::read::XzDecoder;
use liblzma::stream::{CONCATENATED, Stream};
use liblzma::write::XzEncoder;

use super::unzstd::Unzstd;
use crate::options::OptionReader;

/// Memory that the header of an xz file may ask for: the largest preset needs 65 MiB.
const XZ_BYTES_MAX: u64 = 256 << 20;

/// Packed bytes read at a time.
const PACKED_BYTES: usize = 64 << 10;

/// Level of xz, of 9: its own default.
const XZ_LEVEL: u32 = 6;

/// How bytes are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compression {
    None,
    Gzip,
    Zstd,
    Bzip2,
    Xz,
}

/// All of them, as the option 'compression' has them.
const NAMES: [(&str, Compression); 5] = [
    ("none", Compression::None),
    ("gzip", Compression::Gzip),
    ("zstd", Compression::Zstd),
    ("bzip2", Compression::Bzip2),
    ("xz", Compression::Xz),
];

/// The option.
pub(crate) const COMPRESSION: OptionSpec = OptionSpec {
    key: "compression",
    values: "none | gzip | zstd | bzip2 | xz",
    default: "by extension",
    doc: "How CSV, JSON, records or an Arrow stream are packed as a whole: by default as .gz, \
          .zst, .bz2 or .xz behind the name say.",
};

impl Compression {
    /// By the extension of a name.
    pub(crate) fn of(name: &str) -> Self {
        let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
        match extension.to_ascii_lowercase().as_str() {
            "gz" | "gzip" => Self::Gzip,
            "zst" | "zstd" => Self::Zstd,
            "bz2" => Self::Bzip2,
            "xz" => Self::Xz,
            _ => Self::None,
        }
    }

    /// By the option.
    pub(crate) fn given(options: OptionReader<'_>) -> Result<Option<Self>, ConnectorError> {
        let index = options.choice("compression", &NAMES.map(|(name, _)| name))?;
        Ok(index.map(|index| NAMES[index].1))
    }

    /// A name without the extension that stands for the packing.
    pub(crate) fn bare(name: &str) -> &str {
        match (Self::of(name), name.rsplit_once('.')) {
            (Self::None, _) | (_, None) => name,
            (_, Some((bare, _))) => bare,
        }
    }

    /// The packed bytes.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub(crate) fn unpack(
        self,
        packed: Box<dyn Read + Send>,
    ) -> Result<Box<dyn Read + Send>, ConnectorError> {
        if self == Self::None {
            return Ok(packed);
        }
        let begun = Arc::new(AtomicBool::new(false));
        let packed = Packed { reader: packed, begun: Arc::clone(&begun) };
        let buffered = BufReader::with_capacity(PACKED_BYTES, packed);
        let no_memory = |error: io::Error| self.failed(&error);
        let reader: Box<dyn Read + Send> = match self {
            Self::None => Box::new(buffered),
            Self::Gzip => Box::new(MultiGzDecoder::new(buffered)),
            Self::Zstd => Box::new(Unzstd::new(buffered).map_err(no_memory)?),
            Self::Bzip2 => Box::new(MultiBzDecoder::new(buffered)),
            Self::Xz => {
                let stream = Stream::new_stream_decoder(XZ_BYTES_MAX, CONCATENATED)
                    .map_err(|error| no_memory(error.into()))?;
                Box::new(XzDecoder::new_stream(buffered, stream))
            }
        };
        Ok(Box::new(Unpacked { reader, of: self, begun }))
    }

    /// A writer that packs.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub(crate) fn pack<W: Write>(self, to: W) -> Result<CompressingWriter<W>, ConnectorError> {
        Ok(match self {
            Self::None => CompressingWriter::None(to),
            Self::Gzip => {
                CompressingWriter::Gzip(GzEncoder::new(to, flate2::Compression::default()))
            }
            Self::Zstd => {
                let level = zstd::DEFAULT_COMPRESSION_LEVEL;
                let mut encoder = zstd::stream::write::Encoder::new(to, level)
                    .map_err(|error| self.failed(&error))?;
                encoder.include_checksum(true).map_err(|error| self.failed(&error))?;
                CompressingWriter::Zstd(encoder)
            }
            Self::Bzip2 => {
                CompressingWriter::Bzip2(BzEncoder::new(to, bzip2::Compression::default()))
            }
            Self::Xz => CompressingWriter::Xz(XzEncoder::new(to, XZ_LEVEL)),
        })
    }

    fn failed(self, error: &io::Error) -> ConnectorError {
        ConnectorError::Io { place: self.to_string(), message: error.to_string(), hint: None }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|(_, compression)| compression == self);
        f.write_str(name.map_or("", |(name, _)| name))
    }
}

/// Tells whether there are any packed bytes.
struct Packed {
    reader: Box<dyn Read + Send>,
    begun: Arc<AtomicBool>,
}

impl Read for Packed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let bytes = self.reader.read(into)?;
        if bytes > 0 {
            // Both ends are called by one thread, so that nothing has to be ordered.
            self.begun.store(true, Ordering::Relaxed);
        }
        Ok(bytes)
    }
}

/// Says of an error that it is the packing that is damaged.
struct Unpacked {
    reader: Box<dyn Read + Send>,
    of: Compression,
    /// A packed byte has come: the end before the first one is an empty text.
    begun: Arc<AtomicBool>,
}

impl Read for Unpacked {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.reader.read(into).or_else(|error| {
            let of = self.of;
            let message = match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::Interrupted => return Err(error),
                // The reader below speaks for itself.
                _ if error.get_ref().is_some_and(|inner| inner.is::<ConnectorError>()) => {
                    return Err(error);
                }
                ErrorKind::UnexpectedEof if !self.begun.load(Ordering::Relaxed) => return Ok(0),
                ErrorKind::UnexpectedEof => format!("the {of} data ends too early: truncated?"),
                _ => format!("the {of} data is damaged: {error}"),
            };
            Err(io::Error::new(error.kind(), message))
        })
    }
}

/// A writer that packs what it is given.
pub(crate) enum CompressingWriter<W: Write> {
    None(W),
    Gzip(GzEncoder<W>),
    Zstd(zstd::stream::write::Encoder<'static, W>),
    Bzip2(BzEncoder<W>),
    Xz(XzEncoder<W>),
}

impl<W: Write> CompressingWriter<W> {
    /// Writes what is still in hand.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn finish(self) -> io::Result<W> {
        match self {
            Self::None(writer) => Ok(writer),
            Self::Gzip(encoder) => encoder.finish(),
            Self::Zstd(encoder) => encoder.finish(),
            Self::Bzip2(encoder) => encoder.finish(),
            Self::Xz(encoder) => encoder.finish(),
        }
    }
}

impl<W: Write> Write for CompressingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::None(writer) => writer.write(bytes),
            Self::Gzip(encoder) => encoder.write(bytes),
            Self::Zstd(encoder) => encoder.write(bytes),
            Self::Bzip2(encoder) => encoder.write(bytes),
            Self::Xz(encoder) => encoder.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::None(writer) => writer.flush(),
            Self::Gzip(encoder) => encoder.flush(),
            Self::Zstd(encoder) => encoder.flush(),
            Self::Bzip2(encoder) => encoder.flush(),
            Self::Xz(encoder) => encoder.flush(),
        }
    }
}
