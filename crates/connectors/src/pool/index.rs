//! Indexes of keys (I11): in which strips of a table a key occurs.
//!
//! ```text
//!   t:               strip 0   strip 1   strip 2 …         rows as they were loaded
//!
//!   t (index of k):  directory ─▶ leaf 0   leaf 1 …        (number of a key, strip), in order
//!                    upper level  mapped memory or READs
//! ```
//!
//! An index is a table of the pool that is a cache: its origin is one version of the other table.
//! So the first process that needs it loads it, one at a time, and all others read it; it has its
//! room, its leases and its restarts as any table. Its directory, with the least and the greatest
//! number of each leaf, is the upper level, which a reader has with the version. A lookup reads the
//! leaves that may have its keys.
//!
//! A whole number, a date or a point in time is its own number; texts, bytes and decimals have that
//! of a hash. Two keys may have the same number: the strips of both are read then, and the filter
//! of the query decides. A key that is NULL has no number: nothing is equal to it.

mod load;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::thread;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Int32Type, Int64Type, UInt64Type};
use dataflow::error::ConnectorError;
use dataflow::predicate::ColumnPredicate;
use dataflow::source::{BlockCounts, ReadBlocks};
use pool::access::{BlockRange, BlockReader, PoolAccess};
use pool::manifest::{Block, KeyFamily};
use pool::wire::NAME_BYTES_MAX;

use super::columns::StoredColumns;
use super::decode::{BlockType, buffer, empty};
use super::errors::{damaged, refused};
use super::interrupt::Interrupt;
use super::partition::{family, key};
use super::staged::{ASKED_AGAIN, Unparks};
use super::version::Version;
use crate::format::fnv;
use crate::options::{nearest, refuse, sql_type};

/// Keys that a scan looks up at most: the strips of more are found by their bounds alone.
const KEYS_MAX: usize = 4096;

/// Strips that a scan has to read at least, for each key, so that an index is worth its own reads.
const STRIPS_OF_KEY_MIN: usize = 2;

/// Blocks of leaves that are on their way at most.
const WINDOW: usize = 64;

/// The columns of a leaf.
const NUMBER: usize = 0;
const STRIP: usize = 1;

/// The index of a column of a table.
#[derive(Clone)]
pub(super) struct KeyIndex {
    access: Arc<dyn PoolAccess>,
    /// The table that has the keys.
    table: String,
    /// The name of the column, and its number in the table.
    name: String,
    pub(super) column: usize,
    of: BlockType,
    family: KeyFamily,
    interrupt: Interrupt,
}

impl KeyIndex {
    /// Of a column by its name.
    ///
    /// # Errors
    /// When the table has no such column, or one of a type of which equal values may differ.
    pub(super) fn new(
        access: &Arc<dyn PoolAccess>,
        (table, columns): (&str, &StoredColumns),
        name: &str,
        interrupt: &Interrupt,
    ) -> Result<Self, ConnectorError> {
        let (column, family) = indexed(table, columns, name)?;
        let data_type = columns.schema.field(column).data_type().clone();
        Ok(Self {
            access: Arc::clone(access),
            table: table.to_owned(),
            name: name.to_owned(),
            column,
            of: BlockType { data_type, layout: columns.layouts[column] },
            family,
            interrupt: interrupt.clone(),
        })
    }

    /// # Errors
    /// When the planning of the statement that looks keys up is ended.
    pub(super) fn check(&self) -> Result<(), ConnectorError> {
        self.interrupt.check(&self.table)
    }

    /// The lookup of the keys that a predicate names, where strips are left that the index may
    /// leave out. Loads the index if nobody has: without it the table is read by bounds alone.
    /// Whether there is a lookup does not depend on that: all nodes of a job have the same plan.
    pub(super) fn lookup(
        &self,
        version: &Arc<Version>,
        keys: &[ArrayRef],
        strips: usize,
    ) -> Option<KeyLookup> {
        let numbers = self.numbers_of(keys)?;
        if strips < STRIPS_OF_KEY_MIN * numbers.len().max(1) {
            return None;
        }
        let (own, of) = (self.clone(), Arc::clone(version));
        let found = self.interrupt.waits_for(&self.table, move |given_up| own.of(&of, given_up));
        let found = found.unwrap_or_else(|error| {
            let (table, name) = (&self.table, &self.name);
            tracing::warn!("pool table '{table}' is read without its index of {name}: {error}");
            None
        });
        let name = self.name.clone();
        Some(KeyLookup { index: found, name, numbers, found: Mutex::default() })
    }

    /// The numbers of keys, in order and each once; `None` for too many, and for those of another
    /// type than the column.
    fn numbers_of(&self, keys: &[ArrayRef]) -> Option<Vec<i64>> {
        let mut all = BTreeSet::new();
        for keys in keys {
            if *keys.data_type() != self.of.data_type {
                return None;
            }
            all.extend(numbers(keys, self.family).ok()?.into_iter().flatten());
        }
        (all.len() <= KEYS_MAX).then(|| all.into_iter().collect())
    }
}

/// The column of an index, and how its keys are numbered.
///
/// # Errors
/// When the table has no such column, or one of a type of which equal values may differ.
pub(super) fn indexed(
    table: &str,
    columns: &StoredColumns,
    name: &str,
) -> Result<(usize, KeyFamily), ConnectorError> {
    let Ok(column) = columns.schema.index_of(name) else {
        let names = columns.schema.fields().iter().map(|field| field.name().as_str());
        let hint = nearest(name, names).map(|near| format!("did you mean '{near}'?"));
        return Err(refuse("index", format!("the table has no column '{name}'"), hint));
    };
    let of = columns.schema.field(column).data_type();
    let Some(family) = family(of) else {
        let message = format!("keys are not looked up by a {}", sql_type(of));
        let hint = "name a column of whole numbers, text, decimals or points in time";
        return Err(refuse("index", message, Some(hint.into())));
    };
    if index_of(table, name).len() > NAME_BYTES_MAX {
        let message = format!("'{}' has more than {NAME_BYTES_MAX} bytes", index_of(table, name));
        let hint = "give the table a shorter name in the pool: 'table' = '…'";
        return Err(refuse("index", message, Some(hint.into())));
    }
    Ok((column, family))
}

/// Between the name of a table and that of a column, in the name of an index.
const INDEX_OF: &str = " (index of ";

/// The name of the table that is the index of a column.
fn index_of(table: &str, column: &str) -> String {
    format!("{table}{INDEX_OF}{column})")
}

/// Whether a table of the pool is an index of another one, by their names.
pub fn is_index_of(index: &str, table: &str) -> bool {
    let rest = index.strip_prefix(table).and_then(|rest| rest.strip_prefix(INDEX_OF));
    rest.is_some_and(|rest| rest.ends_with(')'))
}

/// The values of a column of which one has to be equal in each row that matches; `None` if a
/// predicate does not say so.
pub(super) fn keys_of(by: &ColumnPredicate, column: usize) -> Option<Vec<ArrayRef>> {
    match by {
        ColumnPredicate::All(parts) => parts.iter().find_map(|part| keys_of(part, column)),
        ColumnPredicate::Any(parts) => {
            let keys: Option<Vec<_>> = parts.iter().map(|part| keys_of(part, column)).collect();
            keys.map(|keys| keys.concat())
        }
        ColumnPredicate::Range(range) if range.column == column => {
            range.only().map(|only| vec![Arc::clone(only)])
        }
        ColumnPredicate::In { column: of, values } if *of == column => {
            Some(vec![Arc::clone(values)])
        }
        _ => None,
    }
}

/// The numbers of keys.
///
/// # Errors
/// When they are of a type that has none.
fn numbers(keys: &ArrayRef, family: KeyFamily) -> Result<Vec<Option<i64>>, String> {
    let hash = |bytes: &[u8]| fnv(bytes).cast_signed();
    let keys = key(keys, family)?;
    Ok(match keys.data_type() {
        DataType::Int64 => keys.as_primitive::<Int64Type>().iter().collect(),
        DataType::UInt64 => {
            let keys = keys.as_primitive::<UInt64Type>().iter();
            keys.map(|key| key.map(u64::cast_signed)).collect()
        }
        DataType::Utf8 => {
            keys.as_string::<i32>().iter().map(|key| key.map(|key| hash(key.as_bytes()))).collect()
        }
        DataType::Binary => keys.as_binary::<i32>().iter().map(|key| key.map(hash)).collect(),
        of => return Err(format!("keys of {of} have no numbers")),
    })
}

/// Keys that a scan looks up in an index of the version that it reads.
pub(super) struct KeyLookup {
    /// `None` where this process has to do without.
    index: Option<Arc<Version>>,
    /// The column.
    name: String,
    /// The numbers of the keys, in order and each once.
    numbers: Vec<i64>,
    /// The strips, once a reader has looked them up for all of this process.
    found: Mutex<Option<Arc<[u32]>>>,
}

impl KeyLookup {
    /// For EXPLAIN: `1 key in the index of k`.
    pub(super) fn describe(&self) -> String {
        let keys = match self.numbers.len() {
            1 => "1 key".to_owned(),
            keys => format!("{keys} keys"),
        };
        format!("{keys} in the index of {}", self.name)
    }

    /// The strips that have rows of the keys, or of others with the same number, in order; `None`
    /// without an index. The first call of a process reads leaves, and waits for them.
    ///
    /// # Errors
    /// When a leaf cannot be read, or is not one of an index of a version with `strips` strips.
    pub(super) fn strips(
        &self,
        strips: usize,
        counts: &BlockCounts,
    ) -> Result<Option<Arc<[u32]>>, ConnectorError> {
        let Some(index) = &self.index else { return Ok(None) };
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = &*found {
            return Ok(Some(Arc::clone(found)));
        }
        let of_keys = self.read(index, strips, counts)?;
        Ok(Some(Arc::clone(found.insert(of_keys.into_iter().collect()))))
    }

    /// Whether one of the numbers lies within the bounds of a block.
    fn may_be_in(&self, block: &Block) -> bool {
        let at = self.numbers.partition_point(|number| *number < block.least);
        self.numbers.get(at).is_some_and(|number| *number <= block.greatest)
    }

    fn read(
        &self,
        index: &Version,
        strips: usize,
        counts: &BlockCounts,
    ) -> Result<BTreeSet<u32>, ConnectorError> {
        let manifest = index.manifest();
        let leaves = manifest.strips.iter().filter(|leaf| self.may_be_in(&leaf.blocks[NUMBER]));
        let leaves: Vec<_> = leaves.collect();
        let wrong = |message: String| damaged(&manifest.table, message);
        let blocks = leaves.iter().flat_map(|leaf| &leaf.blocks);
        let mut reads = BlockReads::open(index)?;
        let mut of_keys = BTreeSet::new();
        let types = [NUMBER, STRIP].map(|at| BlockType {
            data_type: index.columns.schema.field(at).data_type().clone(),
            layout: index.columns.layouts[at],
        });
        let mut blocks = blocks.peekable();
        for leaf in &leaves {
            let rows = leaf.rows as usize;
            let mut columns = Vec::with_capacity(types.len());
            for (of, block) in types.iter().zip(&leaf.blocks) {
                reads.ask(&mut blocks);
                let bytes = reads.next(block)?;
                columns.push(of.array(block, &bytes, rows).map_err(wrong)?);
            }
            let [numbers, places] = &columns[..] else { continue };
            let numbers = numbers.as_primitive::<Int64Type>().iter();
            for (number, place) in numbers.zip(places.as_primitive::<Int32Type>()) {
                let is_key = number.is_some_and(|of| self.numbers.binary_search(&of).is_ok());
                if !is_key {
                    continue;
                }
                let place = place.and_then(|place| u32::try_from(place).ok());
                let place = place.filter(|place| (*place as usize) < strips);
                of_keys.insert(place.ok_or_else(|| wrong("it names a strip beyond".into()))?);
            }
        }
        counts.add(&reads.counts);
        let (keys, leaves) = (self.numbers.len(), leaves.len());
        tracing::debug!(index = manifest.table, keys, leaves, strips = of_keys.len());
        Ok(of_keys)
    }
}

/// Reads blocks on a thread that may wait.
struct BlockReads {
    reader: Box<dyn BlockReader>,
    is_mapped: bool,
    counts: ReadBlocks,
}

impl BlockReads {
    fn open(version: &Version) -> Result<Self, ConnectorError> {
        let waker = Waker::from(Arc::new(Unparks(thread::current())));
        let blocks = &version.pinned.blocks;
        let reader = blocks.open(WINDOW, waker).map_err(refused)?;
        Ok(Self { reader, is_mapped: blocks.is_mapped(), counts: ReadBlocks::default() })
    }

    /// Asks for blocks ahead.
    fn ask<'a>(&mut self, blocks: &mut impl Iterator<Item = &'a Block>) {
        while self.reader.wanted() < WINDOW {
            let Some(block) = blocks.next() else { return };
            if block.bytes > 0 {
                self.reader.want(BlockRange { at: block.at, bytes: block.bytes });
            }
        }
    }

    /// The bytes of the next block.
    fn next(&mut self, block: &Block) -> Result<arrow::buffer::Buffer, ConnectorError> {
        if block.bytes == 0 {
            return Ok(empty());
        }
        loop {
            if let Some(bytes) = self.reader.next().map_err(refused)? {
                self.counts.blocks += 1;
                self.counts.bytes += u64::from(block.bytes);
                self.counts.mapped += u64::from(self.is_mapped);
                return Ok(buffer(bytes));
            }
            thread::park_timeout(ASKED_AGAIN);
        }
    }
}
