//! Sources: where rows enter.
//!
//! A source is cut into *splits*. A split is read in order, by one worker, from its beginning or
//! from a [`Position`] to its end; its rows have a watermark of their own. The cut must not depend
//! on the node that asks: every node computes the same list and takes its share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};

use arrow::array::ArrayRef;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use fabric::Clock;

use crate::connector::backlog::SourceBacklog;
use crate::connector::bad::BadRows;
use crate::connector::costs::ReadCosts;
use crate::connector::origins::Origins;
use crate::connector::peers::{NeededPeers, PeerCheck};
pub use crate::connector::position::Position;
use crate::connector::position::replayed;
use crate::connector::predicate::ColumnPredicate;
pub use crate::connector::rows::RowsReader;
use crate::error::ConnectorError;

/// A table that can be read.
pub trait Source: Send + Sync {
    /// Columns of the batches, already projected.
    fn schema(&self) -> SchemaRef;

    /// Whether every split ends by itself.
    fn bounded(&self) -> bool;

    /// Whether it gives the same rows whenever it is read; else each goes to one reader alone.
    fn repeats(&self) -> bool {
        self.bounded()
    }

    /// Whether its splits are read on from positions, so that a job goes on behind a checkpoint.
    fn replays(&self) -> bool {
        self.repeats()
    }

    /// Whether its rows are gone when they were read: a job that begins anew has them no more.
    fn comes_once(&self) -> bool {
        false
    }

    /// The splits, equal on every node, or else with [owners](Split::owner). `workers` is the
    /// number of workers of the whole job, for sources that can be cut at will; `time_column` asks
    /// for [`Split::event_time_min`] of that column.
    ///
    /// # Errors
    /// When the input is missing or cannot be read.
    fn splits(
        &self,
        workers: u32,
        time_column: Option<usize>,
    ) -> Result<Vec<Split>, ConnectorError>;

    /// The same where the order of rows within a split counts, though no column of the source is
    /// their time: a source that cuts what is in the order of times leaves it whole.
    ///
    /// # Errors
    /// As [`splits`](Self::splits).
    fn splits_in_order(&self, workers: u32) -> Result<Vec<Split>, ConnectorError> {
        self.splits(workers, None)
    }

    /// The costs of its parts, where readers measure them.
    fn costs(&self) -> Option<Arc<dyn ReadCosts>> {
        None
    }

    /// The splits by the [costs](Self::costs) that were [fixed](ReadCosts::fix): for a job all of
    /// whose nodes have fixed the same, and that never goes on from positions.
    ///
    /// # Errors
    /// As [`splits`](Self::splits).
    fn splits_by_cost(&self, workers: u32) -> Result<Vec<Split>, ConnectorError> {
        self.splits(workers, None)
    }

    /// What is known of a column's values before they are read. It estimates the state of a job
    /// for EXPLAIN; no result depends on it.
    fn bounds(&self, column: usize) -> ColumnBounds {
        let _ = column;
        ColumnBounds::default()
    }

    /// About how many distinct values a column has, if that is cheap to find: it is asked for
    /// columns that are joined or compared. No result depends on it.
    fn distinct(&self, column: usize) -> Option<u64> {
        let _ = column;
        None
    }

    /// The same table without rows that cannot match: it leaves out splits and, if `by` allows it,
    /// rows within splits. The rows that match, their order and the positions in a split are the
    /// same; so are the bad rows, since a part that may have bad rows is kept. `None` if nothing
    /// can be left out.
    fn pruned(&self, by: &Pruning) -> Option<Arc<dyn Source>> {
        let _ = by;
        None
    }

    /// The same table, of which only some rows are needed: `needed` is called before each split is
    /// read. The source may emit rows that are not needed. `None` if it cannot leave out rows.
    fn listen(&self, needed: NeededRows) -> Option<Arc<dyn Source>> {
        let _ = needed;
        None
    }

    /// The same table as one split for each of `workers`, in their order, with the column of the
    /// schema that decides: a split has the rows that an exchange by that column alone would lead
    /// to its worker. `None` where it is not stored by such a column, or if the splits would differ
    /// much. It is asked after the source was [pruned](Self::pruned), if it is.
    fn placed(&self, workers: u32) -> Option<(Arc<dyn Source>, usize)> {
        let _ = workers;
        None
    }

    /// Whether a process can read all of it as well as a part: the rows lie in memory that each of
    /// them reads. Then no process reads them for another one.
    fn is_shared(&self) -> bool {
        false
    }

    /// The same table for processes of which each reads all of it: its splits are those of the
    /// workers of one process, and it is not [placed](Self::placed). `None` if the rows do not lie
    /// in [shared](Self::is_shared) memory.
    fn pulled(&self) -> Option<Arc<dyn Source>> {
        None
    }

    /// The columns of its schema by whose buckets it is stored.
    fn buckets(&self) -> Vec<BucketColumn> {
        vec![]
    }

    /// Finds the buckets of values of such a column. `None` of a column without buckets.
    fn row_buckets(&self, column: usize) -> Option<Arc<dyn RowBuckets>> {
        let _ = column;
        None
    }

    /// How [shared](Self::is_shared) memory is read, if that is known.
    fn shared_reads(&self) -> Option<SharedReads> {
        None
    }

    /// The same table without the rows that are not in all of these parts of its
    /// [buckets](Self::buckets). `None` if it cannot tell.
    fn in_cell(&self, parts: &[BucketPart]) -> Option<Arc<dyn Source>> {
        let _ = parts;
        None
    }

    /// The table and its version that are read, where a job that goes on must read that version
    /// again. `None` of a table without versions, and where the SQL names a version or asks for
    /// newer ones while the job runs.
    fn version(&self) -> Option<(String, u64)> {
        None
    }

    /// How often a stream that looks rows up in the table asks whether there is a newer version of
    /// it, in nanoseconds; `None` if it keeps the one that was there at the start.
    fn refresh_ns(&self) -> Option<u64> {
        None
    }

    /// Asks for the newest version of the table, which is given as this source is: with its columns
    /// and without the rows that were left out. It never blocks.
    fn newest(&self, waker: Waker) -> Option<Box<dyn NewestVersion>> {
        let _ = waker;
        None
    }

    /// A checkpoint is recorded, and its output is published: what lies before these positions of
    /// the splits is read by nobody again. The process that leads the job gets the positions of all
    /// splits, and each other one of those that its workers read, when the next round ends.
    fn settle(&self, positions: &[Position]) {
        let _ = positions;
    }

    /// Opens the input as far as the source put that off when it was made, since it might be
    /// [pruned](Self::pruned); it is not pruned any more afterwards.
    ///
    /// # Errors
    /// When the input cannot be read or does not fit the table.
    fn validate(&self) -> Result<(), ConnectorError> {
        Ok(())
    }

    /// Looks for splits that an unbounded table gets while it is read; `None` where it gets none.
    /// The waker is called when there are some. Their numbers are those behind the ones of
    /// [`splits`](Self::splits), and are the same on every node, unless the splits have
    /// [owners](Split::owner).
    ///
    /// # Errors
    /// When the input is missing or cannot be read.
    fn new_splits(&self, waker: Waker) -> Result<Option<Box<dyn NewSplits>>, ConnectorError> {
        let _ = waker;
        Ok(None)
    }

    /// Tells whether the input is still there, where it can be lost while nobody reads it.
    fn peer_check(&self) -> Option<Arc<dyn PeerCheck>> {
        None
    }

    /// The [owner](Split::owner) of a split of this name, also where it is not listed; `None` if
    /// splits have none. A job that goes on expects a split to be listed by the process that reads
    /// it, and by no other one.
    fn owner_of(&self, split: &str) -> Option<u64> {
        let _ = split;
        None
    }

    /// For EXPLAIN: what is read, and how; `None` where its name and its options say that.
    fn describe(&self) -> Option<String> {
        None
    }

    /// For EXPLAIN: the parts that a [pruned](Self::pruned) source leaves out.
    fn describe_pruning(&self) -> Option<String> {
        None
    }

    /// Opens a split of the list for reading: from its beginning, or behind the rows that had been
    /// given when its reader told the [position](SplitReader::position) `from`.
    ///
    /// # Errors
    /// When the input is missing or cannot be read; when `from` is a position of another split, or
    /// no position that its reader tells, or when rows cannot be replayed.
    fn open(
        &self,
        split: &Split,
        from: Option<&Position>,
        context: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError>;
}

/// A column by whose buckets a table is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketColumn {
    /// The column, among those of the source.
    pub column: usize,
    /// The number of buckets, as a power of two.
    pub bits: u8,
    /// How values are hashed: those of columns of the same family that are equal are in buckets of
    /// the same number.
    pub family: u8,
}

/// Finds the buckets of values of a column by which a table is stored.
pub trait RowBuckets: Send + Sync {
    /// Adds the bucket of each value to `to`.
    ///
    /// # Errors
    /// When the values cannot be hashed, in words.
    fn of_values(&self, column: &ArrayRef, to: &mut Vec<u32>) -> Result<(), String>;
}

/// How memory is read that the processes share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedReads {
    /// The servers over which the table is spread.
    pub servers: u32,
    /// Whether it is mapped: then no byte travels.
    pub is_mapped: bool,
}

/// Buckets of a column: one of equal parts of them, in the order of their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketPart {
    /// The column, among those of the source.
    pub column: usize,
    /// The number of the part.
    pub part: u32,
    /// How many parts there are: a power of two, at most as many as buckets.
    pub parts: u32,
}

/// A question for the newest version of a table, whose waker is woken when it is answered.
pub trait NewestVersion {
    /// The answer, once it is there. It is `None` if the version that is read is the newest.
    ///
    /// # Errors
    /// When the version cannot be read.
    fn poll(&mut self) -> Poll<Result<Option<Arc<dyn Source>>, ConnectorError>>;
}

/// The splits that a table gets while it is read.
pub trait NewSplits: Send {
    /// Those that came since the last call, in order. Must not block, and costs little where there
    /// are none.
    ///
    /// # Errors
    /// When the input cannot be read any further.
    fn poll(&mut self) -> Result<Vec<Split>, ConnectorError>;
}

/// Gives the predicate on the rows of a scan that are needed, over the columns of
/// [`Source::schema`]: `None` if all rows are needed.
pub type NeededRows = Arc<dyn Fn() -> Option<ColumnPredicate> + Send + Sync>;

/// The rows that may be left out of a source.
#[derive(Debug, Clone)]
pub struct Pruning {
    /// The rows that are kept, over the columns of [`Source::schema`].
    pub kept: ColumnPredicate,
    /// Whether a split may leave out some of its rows. It must emit all of them if its watermark is
    /// used: a row that a filter drops moves the watermark, too.
    pub within_splits: bool,
}

impl Pruning {
    /// The pruning that leaves out the rows that either leaves out.
    pub fn and(&self, other: &Self) -> Self {
        Self {
            kept: ColumnPredicate::All(vec![self.kept.clone(), other.kept.clone()]),
            within_splits: self.within_splits && other.within_splits,
        }
    }
}

/// A part of a source, with what is known of it before it is read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Split {
    /// Its number in the list. Whoever asks for the list sets it.
    pub number: usize,
    /// The number of splits that the rows are dealt out to, where the share of each depends on it;
    /// 0 elsewhere.
    pub of: u32,
    /// For messages, EXPLAIN and positions: a file and row group, a generator's shard. No two
    /// splits of a source have the same.
    pub name: String,
    /// Rows, where known: for the progress bar.
    pub rows: Option<u64>,
    /// Bytes to be read, where known.
    pub bytes: Option<u64>,
    /// A lower bound of the time column in the column's own ticks, where known. A bounded split
    /// that has not been opened yet holds the watermark back to here, or altogether where this is
    /// unknown.
    pub event_time_min: Option<i64>,
    /// The number that says which worker reads it, where nodes may see other lists, in which its
    /// number differs. It follows from the name of the split alone.
    pub owner: Option<u64>,
    /// Whether the table has got it since the job began. It is read from its very beginning, though
    /// the table may say that others are not.
    pub is_new: bool,
}

impl Split {
    /// For splits that give their rows once: they are opened at their beginning alone.
    ///
    /// # Errors
    /// [`ConnectorError::Io`] when there is a position to read from.
    pub fn begins(&self, from: Option<&Position>) -> Result<(), ConnectorError> {
        from.map_or(Ok(()), |_| Err(replayed(&self.name)))
    }
}

/// Bounds of a column's values over all splits. NULL does not count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ColumnBounds {
    /// Of whole numbers and points in time: none is less or greater, in the column's own ticks.
    pub range: Option<[i64; 2]>,
    /// How many different ones there are at most.
    pub distinct_max: Option<u64>,
}

impl ColumnBounds {
    /// Of whole numbers from `least` to `greatest`.
    pub fn between(least: i64, greatest: i64) -> Self {
        let distinct = greatest.checked_sub(least).map_or(u64::MAX, |span| span.max(-1) as u64 + 1);
        Self { range: Some([least, greatest]), distinct_max: Some(distinct) }
    }

    /// Of so many different values.
    pub fn distinct(most: u64) -> Self {
        Self { range: None, distinct_max: Some(most) }
    }

    /// Of the values of either.
    pub fn or(self, other: Self) -> Self {
        let range = self.range.zip(other.range);
        let distinct = self.distinct_max.zip(other.distinct_max);
        Self {
            range: range.map(|([a, b], [c, d])| [a.min(c), b.max(d)]),
            distinct_max: distinct.map(|(a, b)| a.saturating_add(b)),
        }
    }
}

/// The services of the runtime that the reader of a split may use.
#[derive(Clone)]
pub struct ReaderContext {
    /// Time, for readers that wait for a time: paced generators, polling.
    pub clock: Arc<dyn Clock>,
    /// Where rows go that cannot be read.
    pub bad: Arc<BadRows>,
    /// Where a reader tells from where its rows are, for messages; each split has its own. One of
    /// which nothing is told is named by its name.
    pub origins: Arc<Origins>,
    /// The counters of rows that a reader of a [pruned](Source::pruned) source has left out.
    pub skipped: Arc<SkippedCounts>,
    /// The counters of blocks that a reader of [shared](Source::is_shared) memory has read.
    pub blocks: Arc<BlockCounts>,
    /// Where a reader that knows what is left to read tells that.
    pub backlog: Arc<SourceBacklog>,
    /// The inputs that the readers of the process have not read to their ends.
    pub peers: Arc<NeededPeers>,
    /// Whether sources are cut by [costs](Source::splits_by_cost) that were measured.
    pub by_cost: bool,
    /// How many pieces of input to ask for ahead, where each has to be waited for: `None` where the
    /// reader decides.
    pub prefetch: Option<usize>,
    /// Wakes the worker, from any thread: a reader that answered [`Next::Pending`] calls it when
    /// the answer would be another. A call that was not needed costs little.
    pub waker: Waker,
}

impl ReaderContext {
    /// Of a worker that nobody has to wake: for tests, and for readers that wait for a time alone.
    pub fn new(clock: Arc<dyn Clock>, bad: Arc<BadRows>) -> Self {
        let (origins, skipped, blocks) = (Arc::default(), Arc::default(), Arc::default());
        let (backlog, peers, waker) = (Arc::default(), Arc::default(), Waker::noop().clone());
        let (by_cost, prefetch) = (false, None);
        Self { clock, bad, origins, skipped, blocks, backlog, peers, by_cost, prefetch, waker }
    }
}

/// The parts of splits that readers have left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SkippedRows {
    /// Row groups of which no row was read.
    pub row_groups: u64,
    /// Pages that were not read in the others.
    pub pages: u64,
    /// Rows that were not emitted, in both.
    pub rows: u64,
    /// Rows that were not emitted because no build of a join has their key: in the parts above, if
    /// the joins alone rule them out, and behind the reader.
    pub unmatched: u64,
}

/// The counters of [`SkippedRows`].
#[derive(Debug, Default)]
pub struct SkippedCounts([AtomicU64; 4]);

impl SkippedCounts {
    /// Adds to the counts.
    pub fn add(&self, skipped: &SkippedRows) {
        let counts = [skipped.row_groups, skipped.pages, skipped.rows, skipped.unmatched];
        for (counter, count) in self.0.iter().zip(counts) {
            counter.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Gives the counts and sets them to zero.
    pub fn take(&self) -> SkippedRows {
        let [row_groups, pages, rows, unmatched] =
            [0, 1, 2, 3].map(|at: usize| self.0[at].swap(0, Ordering::Relaxed));
        SkippedRows { row_groups, pages, rows, unmatched }
    }
}

/// The blocks of shared memory that readers have read since they were asked last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadBlocks {
    /// Blocks that were read, and their bytes.
    pub blocks: u64,
    /// Bytes of these blocks.
    pub bytes: u64,
    /// Those that were read in mapped memory.
    pub mapped: u64,
    /// Blocks that were not read because no row of them is needed.
    pub pruned: u64,
    /// Waits for blocks that were requested ahead.
    pub waits: u64,
    /// Nanoseconds of these waits.
    pub wait_ns: u64,
}

/// The counters of [`ReadBlocks`], and the readers that hold a version.
#[derive(Debug, Default)]
pub struct BlockCounts {
    counts: [AtomicU64; 6],
    leases: AtomicU64,
}

impl BlockCounts {
    /// Adds to the counts. Relaxed: one worker adds and takes.
    pub fn add(&self, read: &ReadBlocks) {
        let ReadBlocks { blocks, bytes, mapped, pruned, waits, wait_ns } = *read;
        for (counter, count) in
            self.counts.iter().zip([blocks, bytes, mapped, pruned, waits, wait_ns])
        {
            if count > 0 {
                counter.fetch_add(count, Ordering::Relaxed);
            }
        }
    }

    /// Gives the counts and sets them to zero; `None` if there is nothing.
    pub fn take(&self) -> Option<ReadBlocks> {
        let is_none = self.counts.iter().all(|counter| counter.load(Ordering::Relaxed) == 0);
        if is_none {
            return None;
        }
        let [blocks, bytes, mapped, pruned, waits, wait_ns] =
            [0, 1, 2, 3, 4, 5].map(|at: usize| self.counts[at].swap(0, Ordering::Relaxed));
        Some(ReadBlocks { blocks, bytes, mapped, pruned, waits, wait_ns })
    }

    /// A reader holds a version from now on, or until now.
    pub fn hold(&self, holds: bool) {
        if holds {
            self.leases.fetch_add(1, Ordering::Relaxed);
        } else {
            self.leases.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// How many readers hold a version.
    pub fn leases(&self) -> u64 {
        self.leases.load(Ordering::Relaxed)
    }
}

/// A split that is being read.
pub trait SplitReader: Send {
    /// The next batch of at most `rows_max` rows. Must not block: a split without rows answers
    /// [`Next::Pending`] or [`Next::Wait`].
    ///
    /// # Errors
    /// When the input cannot be read any further. A single bad row is no error: it goes to
    /// [`BadRows`].
    fn next(&mut self, rows_max: usize) -> Result<Next, ConnectorError>;

    /// How far it was read: behind the rows of the last batch that it gave. A reader that is opened
    /// there gives exactly the rows that are left.
    fn position(&self) -> Position;

    /// Whether rows are known to come, though the last answer was not [`Next::Batch`]: a file that
    /// was found and not read yet. Such a split is not idle: it holds the watermark back.
    fn owes(&self) -> bool {
        false
    }

    /// Whether it needs more of its input: not when all that is left to give has been read.
    fn has_unread(&self) -> bool {
        true
    }
}

/// The result of a read.
#[derive(Debug, Clone)]
pub enum Next {
    /// Rows, in order. Not empty.
    Batch(RecordBatch),
    /// Nothing until the context's waker is called.
    Pending,
    /// Nothing before this time of the context's clock, or before the context's waker is called.
    Wait {
        /// Nanoseconds of the context's clock.
        until_ns: u64,
    },
    /// No more rows, ever.
    End,
}
