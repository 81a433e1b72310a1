//! Rows that wait, in the batches in which they came, and the chains in which they hang together.
//!
//! A chain has some places of its own, and blocks of places ([`Chains`]) when it is longer: it
//! grows by a row, or by another chain, at a constant cost, and a session of few rows is found with
//! one miss of the cache. A batch goes with the last of its rows. Where few rows hold many batches,
//! these are copied out of them ([`Waiting::gathered`]).

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::{interleave_record_batch, take};
use state::gather;

use crate::error::DataflowError;

/// Where a row is: the number of its batch, and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) batch: u32,
    pub(super) row: u32,
}

/// Places of a chain's own: with them a session has a cache line.
const OWN: usize = 5;

/// Places of a block: with them it has half a cache line.
const PLACES: usize = 3;

/// No block.
const NONE: u32 = u32::MAX;

/// Rows that hang together; no row is in two chains.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chain {
    /// Its first rows. Where there are blocks, the last place is not of a row: it has the numbers
    /// of the first and the last block.
    own: [Place; OWN],
    len: u16,
    has_blocks: bool,
}

impl Chain {
    pub(super) const EMPTY: Self =
        Self { own: [Place { batch: 0, row: 0 }; OWN], len: 0, has_blocks: false };

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0 && !self.has_blocks
    }

    fn own(&self) -> &[Place] {
        &self.own[..self.len as usize]
    }

    /// Its first and its last block.
    fn blocks(&self) -> Option<(u32, u32)> {
        let Place { batch: first, row: last } = self.own[OWN - 1];
        self.has_blocks.then_some((first, last))
    }

    fn set_blocks(&mut self, first: u32, last: u32) {
        self.own[OWN - 1] = Place { batch: first, row: last };
        self.has_blocks = true;
    }
}

/// Some rows of a chain.
#[derive(Clone, Copy)]
struct Block {
    places: [Place; PLACES],
    /// How many they are, at least one.
    len: u16,
    /// The one behind it, or none.
    next: u32,
}

/// The blocks of all chains.
#[derive(Default)]
pub(super) struct Chains {
    blocks: Vec<Block>,
    free: Vec<u32>,
}

impl Chains {
    /// Hangs a row, which is in no chain, behind one.
    #[inline]
    pub(super) fn push(&mut self, chain: &mut Chain, place: Place) {
        if !chain.has_blocks
            && let Some(room) = chain.own.get_mut(chain.len as usize)
        {
            *room = place;
            chain.len += 1;
        } else {
            self.push_far(chain, place);
        }
    }

    fn push_far(&mut self, chain: &mut Chain, place: Place) {
        let (first, last) = chain.blocks().unwrap_or_else(|| self.spill(chain));
        let block = &mut self.blocks[last as usize];
        if let Some(room) = block.places.get_mut(block.len as usize) {
            *room = place;
            block.len += 1;
        } else {
            let at = self.block(place);
            self.blocks[last as usize].next = at;
            chain.set_blocks(first, at);
        }
    }

    /// Moves the last of a chain's own places, all of which are taken, into a block, its first.
    fn spill(&mut self, chain: &mut Chain) -> (u32, u32) {
        chain.len -= 1;
        let at = self.block(chain.own[OWN - 1]);
        chain.set_blocks(at, at);
        (at, at)
    }

    /// A block of one row.
    fn block(&mut self, place: Place) -> u32 {
        let block = Block { places: [place; PLACES], len: 1, next: NONE };
        match self.free.pop() {
            Some(at) => {
                self.blocks[at as usize] = block;
                at
            }
            None => {
                self.blocks.push(block);
                self.blocks.len() as u32 - 1
            }
        }
    }

    /// Hangs a chain behind another.
    pub(super) fn append(&mut self, chain: &mut Chain, more: Chain) {
        more.own().iter().for_each(|&place| self.push(chain, place));
        let Some((first, last)) = more.blocks() else { return };
        let full = chain.len as usize == OWN;
        match chain.blocks().or_else(|| full.then(|| self.spill(chain))) {
            Some((start, end)) => {
                self.blocks[end as usize].next = first;
                chain.set_blocks(start, last);
            }
            None => chain.set_blocks(first, last),
        }
    }

    /// Moves the first rows of a chain behind `places`, until these are `rows_max`.
    #[inline]
    pub(super) fn take(&mut self, chain: &mut Chain, rows_max: usize, places: &mut Vec<Place>) {
        taken(&mut chain.own, &mut chain.len, rows_max, places);
        while chain.len == 0
            && let Some((first, last)) = chain.blocks()
        {
            let block = &mut self.blocks[first as usize];
            taken(&mut block.places, &mut block.len, rows_max, places);
            if block.len > 0 {
                return;
            }
            self.free.push(first);
            match block.next {
                NONE => *chain = Chain::EMPTY,
                next => chain.set_blocks(next, last),
            }
        }
    }

    /// The rows of a chain.
    pub(super) fn each(&self, chain: &Chain, mut each: impl FnMut(Place)) {
        chain.own().iter().for_each(|place| each(*place));
        let mut at = chain.blocks().map_or(NONE, |(first, _)| first);
        while let Some(block) = self.blocks.get(at as usize) {
            block.places[..block.len as usize].iter().for_each(|place| each(*place));
            at = block.next;
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.blocks.capacity() * size_of::<Block>() + self.free.capacity() * size_of::<u32>()
    }
}

/// Moves the first of some places behind others, until these are `rows_max`.
#[inline]
fn taken<const N: usize>(
    places: &mut [Place; N],
    len: &mut u16,
    rows_max: usize,
    to: &mut Vec<Place>,
) {
    let (all, from) = (*len as usize, to.len());
    let some = all.min(rows_max.saturating_sub(from));
    // To copy more than there is takes less than to call what copies a few.
    to.extend_from_slice(places);
    to.truncate(from + some);
    if some < all {
        places.copy_within(some..all, 0);
    }
    *len -= some as u16;
}

/// Rows of a batch on the average that are worth a batch of their own.
const PART_ROWS: usize = 512;

/// Those of some rows that are of one batch.
pub(super) struct Part {
    pub(super) batch: u32,
    /// Their numbers.
    pub(super) of: Vec<u32>,
}

/// Rows that wait.
#[derive(Default)]
pub(super) struct Waiting {
    /// By number; nothing where a batch is gone.
    batches: Vec<Option<Held>>,
    /// Numbers of batches that are gone.
    free: Vec<u32>,
    /// Rows of the batches, and how many of them wait.
    rows: usize,
    waiting: usize,
    bytes: usize,
    /// Scratch: the batches of rows that are gathered, and by number which of them each is.
    used: Vec<Used>,
    local: Vec<u32>,
    indices: Vec<(usize, usize)>,
}

/// A batch of rows that are asked for.
struct Used {
    batch: u32,
    /// How many of them are of it.
    rows: usize,
}

struct Held {
    batch: RecordBatch,
    /// Rows that wait.
    waiting: usize,
    bytes: usize,
}

impl Waiting {
    /// Takes a batch all of whose rows wait; gives its number.
    pub(super) fn push(&mut self, batch: RecordBatch) -> u32 {
        let rows = batch.num_rows();
        let bytes = batch.get_array_memory_size();
        self.rows += rows;
        self.waiting += rows;
        self.bytes += bytes;
        let held = Held { batch, waiting: rows, bytes };
        match self.free.pop() {
            Some(number) => {
                self.batches[number as usize] = Some(held);
                number
            }
            None => {
                self.batches.push(Some(held));
                self.local.push(u32::MAX);
                self.batches.len() as u32 - 1
            }
        }
    }

    /// The values of rows in some columns of theirs.
    ///
    /// # Errors
    /// When a column has too many bytes for its type.
    pub(super) fn columns(
        &mut self,
        places: &[Place],
        columns: impl Iterator<Item = usize>,
    ) -> Result<Vec<ArrayRef>, DataflowError> {
        self.find(places);
        let batches =
            || self.used.iter().filter_map(|used| self.batches[used.batch as usize].as_ref());
        let column = |at: usize| {
            let arrays: Vec<&dyn Array> =
                batches().map(|held| held.batch.column(at).as_ref()).collect();
            Ok(gather(&arrays, &self.indices)?)
        };
        columns.map(column).collect()
    }

    /// Rows, with all columns.
    pub(super) fn rows(&mut self, places: &[Place]) -> Result<Option<RecordBatch>, DataflowError> {
        self.find(places);
        let batches =
            self.used.iter().filter_map(|used| self.batches[used.batch as usize].as_ref());
        let batches: Vec<&RecordBatch> = batches.map(|held| &held.batch).collect();
        Ok((!batches.is_empty())
            .then(|| interleave_record_batch(&batches, &self.indices))
            .transpose()?)
    }

    /// Which of some rows are of which batch, if batches have many of them.
    pub(super) fn parts(&mut self, places: &[Place]) -> Option<Vec<Part>> {
        self.find(places);
        if places.len() < self.used.len() * PART_ROWS {
            return None;
        }
        let empty = |used: &Used| Part { batch: used.batch, of: Vec::with_capacity(used.rows) };
        let mut parts: Vec<Part> = self.used.iter().map(empty).collect();
        for (at, &(local, _)) in self.indices.iter().enumerate() {
            parts[local].of.push(at as u32);
        }
        Some(parts)
    }

    /// The values of rows of one batch in some columns of theirs.
    ///
    /// # Errors
    /// As [`Waiting::columns`].
    pub(super) fn taken(
        &self,
        batch: u32,
        rows: Vec<u32>,
        columns: impl Iterator<Item = usize>,
    ) -> Result<Vec<ArrayRef>, DataflowError> {
        let Some(held) = &self.batches[batch as usize] else { return Ok(vec![]) };
        let rows = UInt32Array::from(rows);
        columns.map(|at| Ok(take(held.batch.column(at), &rows, None)?)).collect()
    }

    /// Finds out of which batches rows are.
    fn find(&mut self, places: &[Place]) {
        self.used.clear();
        self.indices.clear();
        self.indices.reserve(places.len());
        for place in places {
            let local = &mut self.local[place.batch as usize];
            if *local == u32::MAX {
                *local = self.used.len() as u32;
                self.used.push(Used { batch: place.batch, rows: 0 });
            }
            let local = *local as usize;
            self.used[local].rows += 1;
            self.indices.push((local, place.row as usize));
        }
        self.used.iter().for_each(|used| self.local[used.batch as usize] = u32::MAX);
    }

    /// The rows that were asked for last wait no more.
    pub(super) fn forget(&mut self) {
        for used in self.used.drain(..) {
            let slot = &mut self.batches[used.batch as usize];
            let Some(held) = slot else { continue };
            self.waiting -= used.rows;
            held.waiting -= used.rows;
            if held.waiting == 0 {
                self.rows -= held.batch.num_rows();
                self.bytes -= held.bytes;
                self.free.push(used.batch);
                *slot = None;
            }
        }
    }

    /// The rows of some chains, which are all that wait, in batches of `rows_max`. The chains are
    /// then of their places there.
    ///
    /// # Errors
    /// As [`Waiting::columns`].
    pub(super) fn gathered<'a>(
        &mut self,
        of: impl Iterator<Item = &'a mut Chain>,
        chains: &mut Chains,
        rows_max: usize,
    ) -> Result<Self, DataflowError> {
        let mut all = Self::default();
        let mut places = Vec::with_capacity(rows_max.min(self.waiting));
        let mut gather = |some: &mut [Place]| {
            for place in some {
                let (batch, row) = (all.batches.len() as u32, places.len() as u32);
                places.push(std::mem::replace(place, Place { batch, row }));
                if places.len() == rows_max {
                    self.hand_over(&mut places, &mut all)?;
                }
            }
            Ok::<_, DataflowError>(())
        };
        for chain in of {
            gather(&mut chain.own[..chain.len as usize])?;
            let mut at = chain.blocks().map_or(NONE, |(first, _)| first);
            while let Some(block) = chains.blocks.get_mut(at as usize) {
                gather(&mut block.places[..block.len as usize])?;
                at = block.next;
            }
        }
        self.hand_over(&mut places, &mut all)?;
        Ok(all)
    }

    fn hand_over(&mut self, places: &mut Vec<Place>, to: &mut Self) -> Result<(), DataflowError> {
        let any = self.batches.iter().flatten().next();
        let Some(schema) = any.filter(|_| !places.is_empty()).map(|held| held.batch.schema())
        else {
            return Ok(());
        };
        let columns = self.columns(places, 0..schema.fields().len())?;
        let options = RecordBatchOptions::new().with_row_count(Some(places.len()));
        to.push(RecordBatch::try_new_with_options(schema, columns, &options)?);
        places.clear();
        Ok(())
    }

    /// Rows that wait.
    pub(super) fn len(&self) -> usize {
        self.waiting
    }

    /// Rows of batches of which some wait.
    pub(super) fn held(&self) -> usize {
        self.rows
    }

    pub(super) fn bytes(&self) -> usize {
        let batches = self.batches.capacity() * size_of::<Option<Held>>();
        let numbers = self.free.capacity() + self.local.capacity();
        let scratch = self.indices.capacity() * size_of::<(usize, usize)>()
            + self.used.capacity() * size_of::<Used>();
        self.bytes + batches + numbers * size_of::<u32>() + scratch
    }
}
