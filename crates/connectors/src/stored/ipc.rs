//! Arrow IPC files, read by their footer: each record batch is a flow.
//!
//! Dictionaries are read once per file, when its first flow is opened.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use arrow::datatypes::{Schema, SchemaRef};
use arrow::ipc;
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use dataflow::error::ConnectorError;
use dataflow::source::{Next, Position, ReaderContext, Source, Split, SplitReader};

use super::{
    Blob, FetchingBlob, RowPlace, behind, look, of_several, passed, read_exactly, rows_passed,
};
use crate::format::ipc::{IpcContext, IpcFrame, MAGIC, damaged, frame, rows_of, schema_of};
use crate::format::typed::{Mapping, plain};
use crate::format::{Refuser, TargetColumns};

/// Bytes behind the footer: its length and the magic.
const TRAILER_BYTES: usize = 10;

/// Bytes of the magic and the padding that it has at least.
const MAGIC_BYTES: usize = 8;

/// The mark of files in the format Feather 1.
const MAGIC_OF_FEATHER_1: &[u8] = b"FEA1";

/// Bytes that are looked at for the schema.
const HEAD_BYTES: usize = 128;

/// Bytes between messages at most: what makes them begin at a multiple, and the end mark.
const GAP_BYTES_MAX: u64 = 72;

/// Whether a blob is a file with a footer, and not a stream.
pub(super) fn is_file(blob: &dyn Blob) -> Result<bool, ConnectorError> {
    let first = look(blob, 0, MAGIC.len())?;
    if first.starts_with(MAGIC_OF_FEATHER_1) {
        return Err(ConnectorError::Io {
            place: blob.name(),
            message: "it is Feather of version 1, which is not Arrow IPC".into(),
            hint: Some("write it anew as version 2".into()),
        });
    }
    Ok(first.starts_with(MAGIC))
}

/// Where a message lies.
#[derive(Debug, Clone, Copy)]
struct Block {
    offset: u64,
    metadata_bytes: usize,
    bytes: usize,
}

/// The contents of a footer.
struct Footer {
    schema: SchemaRef,
    dictionaries: Vec<Block>,
    batches: Vec<Block>,
}

impl Footer {
    fn read(blob: &dyn Blob) -> Result<Self, ConnectorError> {
        Self::parse(blob).map_err(|message| damaged(blob.name(), &message))
    }

    fn parse(blob: &dyn Blob) -> Result<Self, String> {
        let io = |error: std::io::Error| error.to_string();
        let Some(end) = blob.bytes().checked_sub(TRAILER_BYTES as u64) else {
            return Err("it is too short for a footer".into());
        };
        let trailer = read_exactly(blob, end, TRAILER_BYTES).map_err(io)?;
        let length = match trailer.split_first_chunk() {
            Some((length, magic)) if magic == MAGIC => u32::from_le_bytes(*length),
            _ => return Err("its footer is missing".into()),
        };
        let Some(begin) = end.checked_sub(u64::from(length)) else {
            return Err(format!("it states a footer of {length} bytes"));
        };
        let bytes = read_exactly(blob, begin, length as usize).map_err(io)?;
        let footer = ipc::root_as_footer(&bytes).map_err(|error| error.to_string())?;
        let block = |block: &ipc::Block| {
            let metadata_bytes = usize::try_from(block.metaDataLength()).ok()?;
            let bytes = metadata_bytes.checked_add(usize::try_from(block.bodyLength()).ok()?)?;
            let offset = u64::try_from(block.offset()).ok()?;
            let fits = offset.checked_add(bytes as u64)? <= begin;
            fits.then_some(Block { offset, metadata_bytes, bytes })
        };
        let outside = || "its footer points outside of the file".to_owned();
        let blocks = |blocks: Option<_>| -> Result<Vec<Block>, String> {
            let blocks: Option<Vec<Block>> =
                Iterator::flatten(blocks.into_iter()).map(block).collect();
            blocks.ok_or_else(outside)
        };
        let footer = Self {
            schema: schema_of(footer.schema().ok_or("its footer has no schema")?)?,
            dictionaries: blocks(footer.dictionaries())?,
            batches: blocks(footer.recordBatches())?,
        };
        footer.check_places(blob, begin)?;
        Ok(footer)
    }

    /// Refuses a footer that names a message twice, or leaves one out: its messages fill the file
    /// from the schema to the footer, which begins at `end`.
    fn check_places(&self, blob: &dyn Blob, end: u64) -> Result<(), String> {
        let look_at = usize::try_from(end).unwrap_or(usize::MAX).min(HEAD_BYTES);
        let head = read_exactly(blob, 0, look_at).map_err(|error| error.to_string())?;
        let word = |at: usize| head.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
        // Behind the magic and what makes it as long as a multiple is the schema, with its length
        // in front and no body.
        let schema = (MAGIC_BYTES..).step_by(4).find(|at| word(*at) != Some(0));
        let schema = schema.unwrap_or(MAGIC_BYTES);
        let mut at = schema as u64
            + match word(schema) {
                Some(u32::MAX) => 8 + u64::from(word(schema + 4).unwrap_or(0)),
                length => 4 + u64::from(length.unwrap_or(0)),
            };
        let mut all: Vec<&Block> = self.dictionaries.iter().chain(&self.batches).collect();
        all.sort_by_key(|block| block.offset);
        for block in all {
            if block.offset < at {
                return Err("its footer names bytes twice".into());
            }
            if block.offset - at > GAP_BYTES_MAX {
                return Err(format!("its footer leaves out {} bytes", block.offset - at));
            }
            at = block.offset + block.bytes as u64;
        }
        match end.checked_sub(at) {
            Some(left) if left <= GAP_BYTES_MAX => Ok(()),
            Some(left) => Err(format!("its footer leaves out {left} bytes")),
            None => Err("its footer points outside of the file".into()),
        }
    }
}

/// The bytes of a block with the message in them.
fn read_block(blob: &dyn Blob, block: Block, bytes: usize) -> Result<(Bytes, IpcFrame), String> {
    let bytes = read_exactly(blob, block.offset, bytes).map_err(|error| error.to_string())?;
    let frame = frame(&bytes, block.bytes as u64)?;
    Ok((bytes, frame))
}

struct IpcFile {
    blob: Arc<dyn Blob>,
    footer: Footer,
    mapping: Mapping,
    /// The dictionaries, once read.
    context: OnceLock<IpcContext>,
    /// The number of the first row of each batch, once counted.
    firsts: OnceLock<Vec<u64>>,
}

impl IpcFile {
    /// The byte ranges read for a batch.
    fn ranges(&self, batch: usize) -> Vec<Range<u64>> {
        let range = |offset: u64, bytes: usize| offset..offset + bytes as u64;
        let Footer { dictionaries, batches, .. } = &self.footer;
        let mut ranges = vec![range(batches[batch].offset, batches[batch].bytes)];
        if self.context.get().is_none() {
            ranges.extend(dictionaries.iter().map(|block| range(block.offset, block.bytes)));
        }
        if self.firsts.get().is_none() {
            let before = &batches[..batches.len() - 1];
            ranges.extend(before.iter().map(|block| range(block.offset, block.metadata_bytes)));
        }
        ranges
    }

    fn context(&self, blob: &dyn Blob) -> Result<IpcContext, String> {
        if let Some(context) = self.context.get() {
            return Ok(context.clone());
        }
        let mut context = IpcContext::new(Arc::clone(&self.footer.schema));
        for block in &self.footer.dictionaries {
            let (bytes, frame) = read_block(blob, *block, block.bytes)?;
            let IpcFrame::Message { metadata, body } = frame else {
                return Err("a dictionary is cut off".into());
            };
            context.accept(&bytes[metadata], &bytes[body], &[])?;
        }
        Ok(self.context.get_or_init(|| context).clone())
    }

    /// The number of the first row of a batch; from the metadata of those before it.
    fn first(&self, blob: &dyn Blob, batch: usize) -> Result<u64, String> {
        if let Some(firsts) = self.firsts.get() {
            return Ok(firsts[batch]);
        }
        let mut firsts = vec![1_u64];
        for block in &self.footer.batches[..self.footer.batches.len().saturating_sub(1)] {
            let head = read_exactly(blob, block.offset, block.metadata_bytes);
            let rows = metadata_of(&head.map_err(|error| error.to_string())?).and_then(rows_of)?;
            firsts.push(firsts[firsts.len() - 1].saturating_add(rows));
        }
        Ok(self.firsts.get_or_init(|| firsts)[batch])
    }

    fn read(&self, blob: &dyn Blob, batch: usize) -> Result<(RecordBatch, u64), String> {
        let block = self.footer.batches[batch];
        let mut context = self.context(blob)?;
        let (bytes, frame) = read_block(blob, block, block.bytes)?;
        let IpcFrame::Message { metadata, body } = frame else {
            return Err(format!("record batch {batch} is cut off"));
        };
        let columns = self.mapping.columns_read();
        let read = context.accept(&bytes[metadata], &bytes[body], &columns)?;
        let read = read.ok_or_else(|| format!("record batch {batch} is none"))?;
        Ok((read, self.first(blob, batch)?))
    }
}

/// The metadata of a message whose body is not there.
fn metadata_of(head: &[u8]) -> Result<&[u8], String> {
    let from = if head.starts_with(&[0xff; 4]) { 8 } else { 4 };
    head.get(from..).ok_or_else(|| "a message is cut off".into())
}

/// Arrow files, cut into their record batches.
pub(super) struct IpcSource {
    files: Vec<Arc<IpcFile>>,
    /// File and batch of each flow.
    flows: Vec<(usize, usize)>,
    target: Arc<TargetColumns>,
}

impl IpcSource {
    pub(super) fn open(
        blobs: Vec<Arc<dyn Blob>>,
        target: Arc<TargetColumns>,
    ) -> Result<Self, ConnectorError> {
        let footers: Result<Vec<_>, _> = blobs.iter().map(|blob| Footer::read(&**blob)).collect();
        let footers = footers?;
        let target = of_several(target, footers.iter().map(|footer| footer.schema.as_ref()));
        let mut files = Vec::with_capacity(blobs.len());
        let mut flows = Vec::new();
        for (blob, footer) in blobs.into_iter().zip(footers) {
            let mapping = Mapping::new(&target, &footer.schema, &blob.name())?;
            flows.extend((0..footer.batches.len()).map(|batch| (files.len(), batch)));
            let (context, firsts) = Default::default();
            files.push(Arc::new(IpcFile { blob, footer, mapping, context, firsts }));
        }
        Ok(Self { files, flows, target })
    }
}

impl Source for IpcSource {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.target.projected)
    }

    fn bounded(&self) -> bool {
        true
    }

    fn splits(
        &self,
        _workers: u32,
        _time_column: Option<usize>,
    ) -> Result<Vec<Split>, ConnectorError> {
        let describe = |(number, (file, batch)): (usize, &(usize, usize))| {
            let file = &self.files[*file];
            Split {
                number,
                name: format!("{} record batch {batch}", file.blob.name()),
                bytes: Some(file.footer.batches[*batch].bytes as u64),
                ..Split::default()
            }
        };
        Ok(self.flows.iter().enumerate().map(describe).collect())
    }

    fn open(
        &self,
        split: &Split,
        from: Option<&Position>,
        context: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        let (file, batch) = self.flows[split.number];
        let file = Arc::clone(&self.files[file]);
        let passed = rows_passed(FORMAT, &split.name, file.blob.version(), from)?;
        Ok(Box::new(IpcReader {
            fetching: FetchingBlob::new(&file.blob, file.ranges(batch), context),
            file,
            batch,
            split: split.name.clone(),
            passed,
            rest: None,
            refuser: Refuser::new(&self.target, context),
        }))
    }
}

/// The name of positions in a record batch of a file.
const FORMAT: &str = "arrow";

/// A record batch that is being read.
struct IpcReader {
    fetching: FetchingBlob,
    file: Arc<IpcFile>,
    batch: usize,
    split: String,
    /// Rows of it that were given, or refused.
    passed: u64,
    /// The rest of it, as the file has it, and the number of its first row; `None` before it
    /// has been read.
    rest: Option<(RecordBatch, u64)>,
    refuser: Refuser,
}

impl SplitReader for IpcReader {
    fn next(&mut self, rows_max: usize) -> Result<Next, ConnectorError> {
        if let Some(wait) = self.fetching.wait()? {
            return Ok(wait);
        }
        let name = self.fetching.blob.name();
        loop {
            let (batch, first) = match self.rest.take() {
                Some(rest) => rest,
                None => {
                    let read = self.file.read(&*self.fetching.blob, self.batch);
                    let (batch, first) = read.map_err(|message| {
                        let place = format!("{name} record batch {}", self.batch);
                        damaged(place, &message)
                    })?;
                    (behind(&self.split, &batch, self.passed)?, first + self.passed)
                }
            };
            let rows = batch.num_rows().min(rows_max);
            let rest = batch.slice(rows, batch.num_rows() - rows);
            self.rest = Some((rest, first + rows as u64));
            self.passed += rows as u64;
            if rows == 0 {
                return Ok(Next::End);
            }
            let batch =
                self.file.mapping.rows(&self.refuser, &batch.slice(0, rows), &name, &first)?;
            if batch.num_rows() > 0 {
                return Ok(Next::Batch(batch));
            }
        }
    }

    fn position(&self) -> Position {
        let place = RowPlace { of: self.file.blob.version(), rows: self.passed };
        passed(FORMAT, &self.split, place)
    }
}

/// The file's own columns.
pub(super) fn infer(blob: &dyn Blob) -> Result<Schema, ConnectorError> {
    Ok(plain(&Footer::read(blob)?.schema))
}
