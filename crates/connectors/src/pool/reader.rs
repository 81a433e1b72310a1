//! Reads the strips of a split: blocks of the next ones are on their way while one is given.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::buffer::Buffer;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use dataflow::error::ConnectorError;
use dataflow::position::refused as refused_position;
use dataflow::source::{
    BlockCounts, Next, Position, ReadBlocks, ReaderContext, Split, SplitReader,
};
use fabric::Clock;
use pool::access::{BlockRange, BlockReader};

use super::PREFETCH_MAX;
use super::costs::SplitMeter;
use super::decode::{BlockType, buffer, empty};
use super::errors::{damaged, refused};
use super::version::Version;

/// The name of positions in a split.
const FORMAT: &str = "pool";

/// The format of positions: the version of the table, a strip and a row in it.
const POSITION_VERSION: u32 = 1;

/// Bytes of blocks that are on their way, where no number of strips is given.
const AHEAD_BYTES: u64 = 1 << 20;

/// The strips of a split.
pub(super) struct ReadStrips {
    pub(super) version: Arc<Version>,
    pub(super) strips: Arc<[u32]>,
    /// The columns that are read, and how their blocks are.
    pub(super) projection: Arc<[usize]>,
    pub(super) types: Arc<[BlockType]>,
    pub(super) schema: SchemaRef,
    /// Measures what their partitions cost, where there are several.
    pub(super) meter: Option<SplitMeter>,
}

impl ReadStrips {
    /// The block of the `n`th column of the `at`th strip, if it has bytes.
    fn block(&self, at: usize, n: usize) -> Option<BlockRange> {
        let strip = self.version.manifest().strips.get(*self.strips.get(at)? as usize)?;
        let block = strip.blocks.get(self.projection[n])?;
        (block.bytes > 0).then_some(BlockRange { at: block.at, bytes: block.bytes })
    }

    fn rows(&self, at: usize) -> usize {
        let strip = self.strips.get(at).map(|strip| *strip as usize);
        strip.map_or(0, |strip| self.version.manifest().strips[strip].rows as usize)
    }

    /// How many strips to ask for ahead, so that their blocks are worth a journey.
    fn ahead(&self) -> usize {
        let blocks = (0..self.projection.len()).filter_map(|n| self.block(0, n));
        let bytes: u64 = blocks.map(|block| u64::from(block.bytes)).sum();
        (AHEAD_BYTES / bytes.max(1)).clamp(2, PREFETCH_MAX) as usize
    }
}

/// A reader of the strips of a split.
pub(super) struct PoolReader {
    read: ReadStrips,
    split: String,
    blocks: Box<dyn BlockReader>,
    /// Strips that are asked for beyond the one that is read.
    ahead: usize,
    /// The first strip whose blocks are not asked for.
    wanted: usize,
    /// The strip that is read, and its rows that were given.
    at: usize,
    given: usize,
    /// The blocks of that strip that have come.
    came: VecDeque<Buffer>,
    batch: Option<RecordBatch>,
    counts: Arc<BlockCounts>,
    is_mapped: bool,
    clock: Arc<dyn Clock>,
    /// When it began to wait for blocks.
    waits_since_ns: Option<u64>,
}

impl PoolReader {
    pub(super) fn open(
        read: ReadStrips,
        split: &Split,
        from: Option<&Position>,
        prefetch: Option<usize>,
        context: &ReaderContext,
    ) -> Result<Self, ConnectorError> {
        let (at, given) = place(&read, split, from)?;
        let ahead = prefetch.or(context.prefetch).unwrap_or_else(|| read.ahead());
        let window = (ahead + 1) * read.projection.len().max(1);
        let waker = context.waker.clone();
        let blocks = read.version.pinned.blocks.open(window, waker).map_err(refused)?;
        let counts = Arc::clone(&context.blocks);
        counts.hold(true);
        Ok(Self {
            split: split.name.clone(),
            blocks,
            ahead,
            wanted: at,
            at,
            given,
            came: VecDeque::new(),
            batch: None,
            counts,
            is_mapped: read.version.pinned.blocks.is_mapped(),
            clock: Arc::clone(&context.clock),
            waits_since_ns: None,
            read,
        })
    }

    /// Notes that the blocks of a strip are not there yet.
    fn wait(&mut self) {
        if self.waits_since_ns.is_none() {
            self.waits_since_ns = Some(self.clock.now_ns());
        }
    }

    /// Counts the blocks of a strip that have come, and the wait for them.
    fn count(&mut self) {
        let blocks = self.came.iter().filter(|block| !block.is_empty());
        let blocks = blocks.fold(ReadBlocks::default(), |all, block| ReadBlocks {
            blocks: all.blocks + 1,
            bytes: all.bytes + block.len() as u64,
            ..all
        });
        let mapped = if self.is_mapped { blocks.blocks } else { 0 };
        let since = self.waits_since_ns.take();
        let wait_ns = since.map_or(0, |since| self.clock.now_ns().saturating_sub(since));
        let waits = u64::from(since.is_some());
        self.counts.add(&ReadBlocks { mapped, waits, wait_ns, ..blocks });
    }

    /// The rows of the strip whose blocks have come are processed from now on.
    fn measure(&mut self) {
        if let Some(meter) = &mut self.read.meter {
            meter.begin(self.at, &*self.clock);
        }
    }

    /// Requests the blocks of the current strip and of the next ones.
    fn want(&mut self) {
        let end = (self.at + 1 + self.ahead).min(self.read.strips.len());
        for at in self.wanted..end {
            for n in 0..self.read.projection.len() {
                if let Some(block) = self.read.block(at, n) {
                    self.blocks.want(block);
                }
            }
        }
        self.wanted = self.wanted.max(end);
    }

    /// Whether all blocks of the strip that is read have come.
    fn has_come(&mut self) -> Result<bool, ConnectorError> {
        while self.came.len() < self.read.projection.len() {
            let block = self.read.block(self.at, self.came.len());
            let came = match block {
                None => empty(),
                Some(range) => match self.blocks.next().map_err(refused)? {
                    None => return Ok(false),
                    Some(block) => {
                        let bytes = buffer(block);
                        if bytes.len() != range.bytes as usize {
                            let table = &self.read.version.manifest().table;
                            return Err(damaged(table, "a block came with another length"));
                        }
                        bytes
                    }
                },
            };
            self.came.push_back(came);
        }
        Ok(true)
    }

    /// The rows of the strip whose blocks have come.
    fn decoded(&mut self) -> Result<RecordBatch, ConnectorError> {
        let manifest = self.read.version.manifest();
        let number = self.read.strips[self.at];
        let strip = &manifest.strips[number as usize];
        let rows = strip.rows as usize;
        let wrong =
            |message: String| damaged(&manifest.table, format!("strip {number}: {message}"));
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(self.came.len());
        for (n, bytes) in self.came.drain(..).enumerate() {
            let block = &strip.blocks[self.read.projection[n]];
            columns.push(self.read.types[n].array(block, &bytes, rows).map_err(wrong)?);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let schema = Arc::clone(&self.read.schema);
        RecordBatch::try_new_with_options(schema, columns, &options)
            .map_err(|error| wrong(error.to_string()))
    }
}

/// The strip and the row at which a split is opened.
fn place(
    read: &ReadStrips,
    split: &Split,
    from: Option<&Position>,
) -> Result<(usize, usize), ConnectorError> {
    let Some(from) = from else { return Ok((0, 0)) };
    let [version, strip, row] = from.numbers(FORMAT, POSITION_VERSION, &split.name)?;
    let read_now = read.version.manifest().version;
    if version != read_now {
        let message = format!("the table has version {read_now}, and had {version} before");
        return Err(refused_position(&split.name, message));
    }
    // A strip may be left out now that was read before, or the other way round.
    let strips = read.version.manifest().strips.len() as u64;
    let place = read.strips.partition_point(|own| u64::from(*own) < strip);
    let is_there = read.strips.get(place).is_some_and(|own| u64::from(*own) == strip);
    match usize::try_from(row) {
        Ok(0) if strip <= strips => Ok((place, 0)),
        Ok(row) if is_there && row < read.rows(place) => Ok((place, row)),
        Ok(_) if !is_there && strip < strips => Ok((place, 0)),
        _ => {
            let message = format!("strip {strip}, row {row} is behind its end");
            Err(refused_position(&split.name, message))
        }
    }
}

impl Drop for PoolReader {
    fn drop(&mut self) {
        self.counts.hold(false);
    }
}

impl SplitReader for PoolReader {
    fn next(&mut self, rows_max: usize) -> Result<Next, ConnectorError> {
        while self.at < self.read.strips.len() {
            let batch = match self.batch.take() {
                Some(batch) => batch,
                None => {
                    self.want();
                    if !self.has_come()? {
                        self.wait();
                        return Ok(Next::Pending);
                    }
                    self.count();
                    self.measure();
                    self.decoded()?
                }
            };
            let rows = (batch.num_rows() - self.given).min(rows_max.max(1));
            let given = batch.slice(self.given, rows);
            self.given += rows;
            if self.given >= batch.num_rows() {
                (self.at, self.given) = (self.at + 1, 0);
                self.want();
            } else {
                self.batch = Some(batch);
            }
            if rows > 0 {
                return Ok(Next::Batch(given));
            }
        }
        if let Some(meter) = &mut self.read.meter {
            meter.end(&*self.clock);
        }
        Ok(Next::End)
    }

    fn position(&self) -> Position {
        let manifest = self.read.version.manifest();
        let strip = self.read.strips.get(self.at).map_or(manifest.strips.len(), |at| *at as usize);
        let numbers = [manifest.version, strip as u64, self.given as u64];
        Position::new(FORMAT, POSITION_VERSION, &self.split, &numbers)
    }

    fn owes(&self) -> bool {
        self.at < self.read.strips.len()
    }

    fn has_unread(&self) -> bool {
        // The blocks of the strip that is given have come.
        let next = self.at + usize::from(self.batch.is_some());
        next < self.read.strips.len() && !self.read.projection.is_empty()
    }
}
