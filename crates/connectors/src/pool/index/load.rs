//! Loads an index, when it is not that of the version that is read.

use std::sync::Arc;
use std::task::Waker;
use std::thread;

use arrow::array::{ArrayRef, Int32Array, Int64Array};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;
use dataflow::sink::{Room, SinkWriter, WriterContext};
use pool::PoolError;
use pool::access::{At, LookOutcome, OriginLook};
use pool::manifest::{CachedOrigin, Definition};

use super::{BlockReads, KeyIndex, index_of, numbers};
use crate::pool::cache::PendingLook;
use crate::pool::columns::StoredColumns;
use crate::pool::errors::{damaged, refused};
use crate::pool::interrupt::Interrupt;
use crate::pool::lists::NodeCache;
use crate::pool::sink::PoolSink;
use crate::pool::staged::{ASKED_AGAIN, Unparks};
use crate::pool::version::Version;
use crate::pool::{LOAD_BYTES, PoolOptions};

/// Rows of a leaf: what a lookup reads at least, of each key.
const LEAF_ROWS: u32 = 4096;

/// Rows of a table that has an index at most: they are sorted in memory, 16 bytes each.
const ROWS_MAX: u64 = 1 << 26;

/// The version that an index is of: the start of the server that has the table, and the number of
/// the version, which means the same rows for as long as that server runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct IndexMark {
    start: u32,
    version: u32,
}

impl IndexMark {
    /// That of a version; `None` where it means nothing.
    fn of(version: &Version) -> Option<Self> {
        let start = version.pinned.blocks.incarnation()?;
        Some(Self { start, version: u32::try_from(version.manifest().version).ok()? })
    }

    fn number(self) -> u64 {
        u64::from(self.start) << 32 | u64::from(self.version)
    }

    fn from_number(number: u64) -> Self {
        Self { start: (number >> 32) as u32, version: number as u32 }
    }

    /// Whether the index of another version is of no use for later statements either.
    fn is_before(self, other: Self) -> bool {
        self.start != other.start || self.version < other.version
    }
}

/// Which index the pool has, for one version of the table.
enum HeldIndex {
    /// That of the version.
    Of(Arc<Version>),
    /// That of a later one.
    Later,
    /// That of an earlier one, or none.
    Missing,
}

impl KeyIndex {
    /// The index of a version: as the pool has it, or loaded now. `None` if another process loads
    /// it, or this one may not, and if the pool has that of a later version.
    ///
    /// # Errors
    /// When it cannot be loaded.
    pub(super) fn of(
        &self,
        version: &Version,
        given_up: &Interrupt,
    ) -> Result<Option<Arc<Version>>, ConnectorError> {
        let Some(mark) = IndexMark::of(version) else { return Ok(None) };
        match self.held(mark)? {
            HeldIndex::Of(index) => return Ok(Some(index)),
            HeldIndex::Later => return Ok(None),
            HeldIndex::Missing => {}
        }
        let name = index_of(&self.table, &self.name);
        match self.access.look(&name, 0) {
            Ok(OriginLook::Due) => {}
            Ok(OriginLook::Wait | OriginLook::Current | OriginLook::Resting)
            | Err(PoolError::NoTable { .. }) => return Ok(None),
            Err(error) => return Err(refused(error)),
        }
        let access = Arc::clone(&self.access);
        let mut look = PendingLook { access, table: name, outcome: LookOutcome::Abandoned };
        // Another process may have loaded it between the first question and this look.
        let loaded = match self.held(mark)? {
            HeldIndex::Missing => self.load(version, mark, given_up),
            HeldIndex::Of(_) | HeldIndex::Later => Ok(()),
        };
        if given_up.is_set() {
            return Ok(None);
        }
        look.outcome = if loaded.is_ok() { LookOutcome::Copy } else { LookOutcome::Failed };
        loaded?;
        Ok(match self.held(mark)? {
            HeldIndex::Of(index) => Some(index),
            HeldIndex::Later | HeldIndex::Missing => None,
        })
    }

    /// The index that the pool has, as seen from a version.
    fn held(&self, mark: IndexMark) -> Result<HeldIndex, ConnectorError> {
        Ok(match self.newest()? {
            Some((index, of)) if of == mark => HeldIndex::Of(Arc::new(index)),
            Some((_, of)) if !of.is_before(mark) => HeldIndex::Later,
            _ => HeldIndex::Missing,
        })
    }

    fn origin(&self) -> String {
        format!("column {} of table '{}'", self.name, self.table)
    }

    /// The index that the pool has, and of which version it is. One that is damaged is dropped: it
    /// is loaded again.
    fn newest(&self) -> Result<Option<(Version, IndexMark)>, ConnectorError> {
        let name = index_of(&self.table, &self.name);
        let tables = self.access.tables().map_err(refused)?;
        let Some(newest) = tables.into_iter().find(|of| of.name == name) else { return Ok(None) };
        if newest.damaged {
            self.access.drop_table(&name).map_err(refused)?;
            return Ok(None);
        }
        let pinned = match self.access.pin(&name, At::Version(newest.version)) {
            Ok(pinned) => pinned,
            // It was replaced or dropped meanwhile, or a part of it was lost.
            Err(
                PoolError::NoVersion { .. } | PoolError::NoTable { .. } | PoolError::Lost { .. },
            ) => return Ok(None),
            Err(error) => return Err(refused(error)),
        };
        let index = Version::checked(pinned, &NodeCache::default())?;
        let origin = index.manifest().origin.clone().filter(|of| of.name == self.origin());
        match origin {
            Some(origin) if index.columns.layouts == columns()?.layouts => {
                Ok(Some((index, IndexMark::from_number(origin.mark))))
            }
            _ => Err(damaged(&name, "it is not the index that its name says")),
        }
    }

    /// Reads the keys of a version, and loads them in the order of their numbers.
    fn load(
        &self,
        version: &Version,
        mark: IndexMark,
        given_up: &Interrupt,
    ) -> Result<(), ConnectorError> {
        tracing::info!("loads the index of {}", self.origin());
        let rows = self.rows(version, given_up)?;
        let columns = columns()?;
        let schema = Arc::clone(&columns.schema);
        let definition = Definition {
            schema: columns.encoded(),
            columns: columns.layouts,
            buckets: vec![],
            strip_rows: LEAF_ROWS,
        };
        let options = PoolOptions {
            table: index_of(&self.table, &self.name),
            at: At::Newest,
            strip_rows: LEAF_ROWS,
            load_bytes: LOAD_BYTES as usize,
            every: None,
            listed: None,
            prefetch: None,
            refresh_ns: None,
            origin: None,
            index: None,
        };
        let origin = CachedOrigin { name: self.origin(), mark: mark.number() };
        let sink = PoolSink::of_cache(&self.access, &options, definition, origin)?;
        let loading = sink.begun(|load| sink.access().begin_alone(load, 1))?;
        let waker = Waker::from(Arc::new(Unparks(thread::current())));
        let context = WriterContext { worker: 0, waker, staging: None };
        let mut writer = sink.writer(&loading, &context, None)?;
        for leaf in rows.chunks(LEAF_ROWS as usize) {
            while writer.room() == Room::Full {
                given_up.check(&self.table)?;
                thread::park_timeout(ASKED_AGAIN);
            }
            let of = [
                Arc::new(Int64Array::from_iter_values(leaf.iter().map(|(of, _)| *of))) as ArrayRef,
                Arc::new(Int32Array::from_iter_values(leaf.iter().map(|(_, at)| *at))),
            ];
            let batch = RecordBatch::try_new(Arc::clone(&schema), of.into());
            writer.write(&batch.map_err(|error| damaged(&self.table, error.to_string()))?)?;
        }
        while writer.drain()? == Room::Full {
            given_up.check(&self.table)?;
            thread::park_timeout(ASKED_AGAIN);
        }
        given_up.check(&self.table)?;
        Box::new(writer).commit()
    }

    /// The numbers of all keys with the strips that have them: in order, and each pair once.
    fn rows(
        &self,
        version: &Version,
        given_up: &Interrupt,
    ) -> Result<Vec<(i64, i32)>, ConnectorError> {
        let manifest = version.manifest();
        if manifest.rows() > ROWS_MAX {
            let place = format!("pool table '{}'", self.table);
            let message = format!("it has {} rows: {ROWS_MAX} at most", manifest.rows());
            return Err(ConnectorError::Io { place, message, hint: None });
        }
        let mut blocks = manifest.strips.iter().map(|strip| &strip.blocks[self.column]);
        let mut reads = BlockReads::open(version)?;
        let mut all = vec![];
        for (at, strip) in (0..).zip(&manifest.strips) {
            given_up.check(&self.table)?;
            reads.ask(&mut blocks);
            let block = &strip.blocks[self.column];
            let bytes = reads.next(block)?;
            let keys = self.of.array(block, &bytes, strip.rows as usize);
            let found = keys.and_then(|keys| numbers(&keys, self.family));
            let found = found.map_err(|message| damaged(&self.table, message))?;
            all.extend(found.into_iter().flatten().map(|number| (number, at)));
        }
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }
}

/// The columns of an index.
fn columns() -> Result<StoredColumns, ConnectorError> {
    let number = Field::new("number", DataType::Int64, false);
    StoredColumns::declared(&Schema::new(vec![number, Field::new("strip", DataType::Int32, false)]))
}
