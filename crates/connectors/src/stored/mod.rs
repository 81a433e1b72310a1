//! Bytes that stay where they are and can be read again: files, objects of a store.
//!
//! ```text
//! CSV, JSON          a range of bytes of a blob is a flow (`ranges`); a blob is one if its rows
//!                    have a watermark: they would lose the order of times; and if it is packed
//! fixed, protobuf    a blob is a flow
//! Arrow              a record batch is a flow; a stream, or what is packed as a whole, is one
//! Parquet            a row group is a flow
//! ```
//!
//! The connector lists the blobs — a directory, a bucket — in an order that is the same on
//! every node, and gets a source.

use std::io::{self, ErrorKind, Read};
use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;

use arrow::datatypes::Schema;
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use dataflow::error::ConnectorError;
use dataflow::position::refused;
use dataflow::source::{Next, Position, ReaderContext, Source};

use crate::format::input::read_error;
use crate::format::rows::all_found;
use crate::format::{ByteInput, Compression, Format, InputVersion, Kind, TargetColumns};
use crate::options::{OptionReader, refuse};

mod ipc;
mod parquet;
mod partitioned;
mod ranges;
mod text;

pub(crate) use parquet::{always_fits, keeps_order};
pub(crate) use partitioned::{FileSummaries, PartitionedSource};
pub(crate) use ranges::SPLIT_BYTES;

/// Bytes of a buffer between a blob and a reader of small pieces.
const BUFFER_BYTES: usize = 64 << 10;

/// Named bytes that do not change while they are read.
pub(crate) trait Blob: Send + Sync {
    /// For messages, and for what the extension tells: a path, an address.
    fn name(&self) -> String;

    /// How many bytes there are.
    fn bytes(&self) -> u64;

    /// The version of its bytes, as far as that is known: another blob of the same name differs in
    /// it.
    fn version(&self) -> InputVersion {
        InputVersion { bytes: self.bytes(), mark: 0 }
    }

    /// A number that is another one when the bytes have changed, by what a file system or a store
    /// says of them: none of them are read. 0 if unknown.
    fn stamp(&self) -> u64 {
        0
    }

    /// All bytes, in order. Where they come from afar, the reader answers
    /// [`WouldBlock`](ErrorKind::WouldBlock) while there are none, and `waker` is called when there
    /// are some.
    ///
    /// # Errors
    /// When it cannot be opened.
    fn read(&self, waker: &Waker) -> Result<Box<dyn Read + Send>, ConnectorError>;

    /// All bytes from `offset` on, in order, where any of them are at hand and can be read at once;
    /// `None` where bytes before `offset` would have to be read, too.
    fn read_from(&self, offset: u64) -> Option<Result<Box<dyn Read + Send>, ConnectorError>> {
        let _ = offset;
        None
    }

    /// Up to `length` bytes from `offset` on; fewer only where the blob ends. Waits for them: for
    /// what happens before rows flow, and for what was [fetched](Self::fetch).
    ///
    /// # Errors
    /// When they cannot be read; one that carries an error of a connector stands for that one.
    fn read_at(&self, offset: u64, length: usize) -> io::Result<Bytes>;

    /// Whether it is cheap to read a few bytes: the blob is not remote.
    fn is_at_hand(&self) -> bool {
        true
    }

    /// Begins to bring the bytes of `ranges` here, so that reading them does not wait, and calls
    /// `waker` when they have come. `None` where all bytes are at hand.
    fn fetch(&self, ranges: Vec<Range<u64>>, waker: &Waker) -> Option<Box<dyn Fetch>> {
        let _ = (ranges, waker);
        None
    }
}

/// Bytes of a blob on their way.
pub(crate) trait Fetch: Send {
    /// The blob with those bytes at hand, once they have come.
    ///
    /// # Errors
    /// When they cannot be read.
    fn poll(&mut self) -> Result<Option<Arc<dyn Blob>>, ConnectorError>;
}

/// A blob whose bytes may be on their way.
struct FetchingBlob {
    blob: Arc<dyn Blob>,
    fetch: Option<Box<dyn Fetch>>,
}

impl FetchingBlob {
    /// Begins to bring `ranges` of a blob here.
    fn new(blob: &Arc<dyn Blob>, ranges: Vec<Range<u64>>, context: &ReaderContext) -> Self {
        Self { fetch: blob.fetch(ranges, &context.waker), blob: Arc::clone(blob) }
    }

    /// The answer of a reader until they have come; afterwards `blob` has them.
    fn wait(&mut self) -> Result<Option<Next>, ConnectorError> {
        let Some(fetch) = &mut self.fetch else { return Ok(None) };
        match fetch.poll()? {
            Some(blob) => self.blob = blob,
            None => return Ok(Some(Next::Pending)),
        }
        self.fetch = None;
        Ok(None)
    }
}

/// How blobs are read.
enum Layout {
    InOrder(Format),
    ArrowFile,
    Parquet,
}

impl Layout {
    /// By the first blob.
    fn of(
        first: &dyn Blob,
        kind: Kind,
        options: OptionReader<'_>,
        packed: Option<Compression>,
    ) -> Result<Self, ConnectorError> {
        let name = first.name();
        let is_packed = packed.unwrap_or_else(|| Compression::of(&name)) != Compression::None;
        if is_packed && kind == Kind::Parquet {
            return Err(not_packed());
        }
        if kind == Kind::Arrow && !is_packed && ipc::is_file(first)? {
            return Ok(Self::ArrowFile);
        }
        Ok(match Format::new(kind, options, &name)? {
            Some(format) => Self::InOrder(format),
            None => Self::Parquet,
        })
    }
}

/// The error that a Parquet file is packed as a whole.
pub(crate) fn not_packed() -> ConnectorError {
    refuse(
        "compression",
        "a Parquet file is not packed as a whole: its pages are",
        Some("leave it out; a sink has 'parquet.compression'".into()),
    )
}

/// A source of blobs of one kind. The first is looked at, so that a column that does not exist is
/// reported before anything runs.
///
/// # Errors
/// When there is none, or what is looked at does not fit the table.
pub(crate) fn source(
    blobs: Vec<Arc<dyn Blob>>,
    kind: Kind,
    options: OptionReader<'_>,
    target: Arc<TargetColumns>,
) -> Result<Arc<dyn Source>, ConnectorError> {
    let packed = Compression::given(options)?;
    let Some(first) = blobs.first() else { return Err(refuse("path", "names nothing", None)) };
    Ok(match Layout::of(&**first, kind, options, packed)? {
        Layout::InOrder(format) => Arc::new({
            let split_bytes = ranges::split_bytes(options)?;
            text::TextSource::open(blobs, format, packed, target, split_bytes)?
        }),
        Layout::ArrowFile => Arc::new(ipc::IpcSource::open(blobs, target)?),
        Layout::Parquet => Arc::new(parquet::ParquetSource::open(blobs, target)?),
    })
}

/// The names of blobs.
pub(crate) fn names(blobs: &[Arc<dyn Blob>]) -> Vec<String> {
    blobs.iter().map(|blob| blob.name()).collect()
}

/// The target of several blobs, each of which may lack columns that another one has; one blob, or
/// several that lack the same column, must have all.
fn of_several<'a>(
    target: Arc<TargetColumns>,
    schemas: impl ExactSizeIterator<Item = &'a Schema>,
) -> Arc<TargetColumns> {
    if schemas.len() > 1 && all_found(&target.declared, schemas) {
        target.of_several()
    } else {
        target
    }
}

/// The columns of a blob: its own, or those that its first records suggest.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn infer(
    blob: &Arc<dyn Blob>,
    kind: Kind,
    options: OptionReader<'_>,
) -> Result<Schema, ConnectorError> {
    let packed = Compression::given(options)?;
    match Layout::of(&**blob, kind, options, packed)? {
        Layout::InOrder(format) => format.infer(beginning(blob, packed)?),
        Layout::ArrowFile => ipc::infer(&**blob),
        Layout::Parquet => parquet::infer(blob),
    }
}

/// The bytes of a blob in order, unpacked as its name says, or as `packed` says instead.
fn input(
    blob: &Arc<dyn Blob>,
    packed: Option<Compression>,
    context: &ReaderContext,
) -> Result<ByteInput, ConnectorError> {
    let input = unpacked(blob.name(), blob.read(&context.waker)?, packed)?;
    let is_packed = packed.unwrap_or_else(|| Compression::of(input.name())) != Compression::None;
    if is_packed || blob.read_from(0).is_none() {
        return Ok(input);
    }
    let blob = Arc::clone(blob);
    Ok(input.seeking(Box::new(move |offset| blob.read_from(offset))))
}

/// The same before rows flow: its reader waits.
fn beginning(
    blob: &Arc<dyn Blob>,
    packed: Option<Compression>,
) -> Result<ByteInput, ConnectorError> {
    unpacked(blob.name(), Box::new(Tail::new(Arc::clone(blob), 0)), packed)
}

fn unpacked(
    name: String,
    bytes: Box<dyn Read + Send>,
    packed: Option<Compression>,
) -> Result<ByteInput, ConnectorError> {
    let packed = packed.unwrap_or_else(|| Compression::of(&name));
    Ok(ByteInput::new(packed.unpack(bytes)?, name).of_file())
}

/// The version of the positions that are a number of rows.
const ROWS_VERSION: u32 = 2;

/// A place in a blob that has rows.
struct RowPlace {
    /// The blob.
    of: InputVersion,
    /// The rows in front.
    rows: u64,
}

/// The position of a place in a split.
fn passed(format: &str, split: &str, RowPlace { of, rows }: RowPlace) -> Position {
    let [bytes, mark] = of.numbers();
    Position::new(format, ROWS_VERSION, split, &[bytes, mark, rows])
}

/// The rows in front of a position; none where there is no position.
///
/// # Errors
/// When it is of another split, or of a blob that was replaced.
fn rows_passed(
    format: &str,
    split: &str,
    of: InputVersion,
    from: Option<&Position>,
) -> Result<u64, ConnectorError> {
    let Some(from) = from else { return Ok(0) };
    let [bytes, mark, rows] = from.numbers(format, ROWS_VERSION, split)?;
    of.check([bytes, mark], split)?;
    Ok(rows)
}

/// A batch without its first rows.
///
/// # Errors
/// When it has fewer.
fn behind(split: &str, batch: &RecordBatch, rows: u64) -> Result<RecordBatch, ConnectorError> {
    match usize::try_from(rows).ok().filter(|&rows| rows <= batch.num_rows()) {
        Some(rows) => Ok(batch.slice(rows, batch.num_rows() - rows)),
        None => Err(refused(split, format!("the position is behind row {rows}, and the end"))),
    }
}

/// A few bytes of a blob, for the errors of the blob itself: what the reader of a format says of a
/// file that is not there is long.
fn look(blob: &dyn Blob, offset: u64, length: usize) -> Result<Bytes, ConnectorError> {
    blob.read_at(offset, length).map_err(|error| read_error(&blob.name(), error))
}

/// A reader of a blob from an offset on, which can jump.
pub(crate) struct Tail {
    blob: Arc<dyn Blob>,
    offset: u64,
    buffer: Bytes,
}

impl Tail {
    pub(crate) fn new(blob: Arc<dyn Blob>, offset: u64) -> Self {
        Self { blob, offset, buffer: Bytes::new() }
    }
}

impl Read for Tail {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.buffer.is_empty() {
            self.buffer = self.blob.read_at(self.offset, BUFFER_BYTES.max(into.len()))?;
            self.offset += self.buffer.len() as u64;
        }
        let bytes = self.buffer.len().min(into.len());
        into[..bytes].copy_from_slice(&self.buffer.split_to(bytes));
        Ok(bytes)
    }
}

/// Exactly `length` bytes from `offset` on.
fn read_exactly(blob: &dyn Blob, offset: u64, length: usize) -> io::Result<Bytes> {
    // A damaged length must not become an allocation.
    if offset.saturating_add(length as u64) > blob.bytes() {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    let bytes = blob.read_at(offset, length)?;
    if bytes.len() < length { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(bytes) }
}
