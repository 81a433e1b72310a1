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

/// Places of a chain's own.
const OWN: usize = 4;

/// Places of a block: with them it has half a cache line.
const PLACES: usize = 3;

/// No block.
const NONE: u32 = u32::MAX;

/// Rows that hang together; no row is in two chains.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chain {
    /// Its first rows.
    own: [Place; OWN],
    len: u32,
    /// Its first and last block, or none.
    first: u32,
    last: u32,
}

impl Chain {
    pub(super) const EMPTY: Self =
        Self { own: [Place { batch: 0, row: 0 }; OWN], len: 0, first: NONE, last: NONE };

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0 && self.first == NONE
    }

    fn own(&self) -> &[Place] {
        &self.own[..self.len as usize]
    }
}

/// Some rows of a chain.
#[derive(Clone, Copy)]
struct Block {
    places: [Place; PLACES],
    /// How many they are, at least one.
    len: u32,
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
        if chain.first == NONE
            && let Some(room) = chain.own.get_mut(chain.len as usize)
        {
            *room = place;
            chain.len += 1;
        } else {
            self.push_far(chain, place);
        }
    }

    fn push_far(&mut self, chain: &mut Chain, place: Place) {
        if let Some(block) = self.blocks.get_mut(chain.last as usize)
            && let Some(room) = block.places.get_mut(block.len as usize)
        {
            *room = place;
            block.len += 1;
            return;
        }
        let block = Block { places: [place; PLACES], len: 1, next: NONE };
        let at = match self.free.pop() {
            Some(at) => {
                self.blocks[at as usize] = block;
                at
            }
            None => {
                self.blocks.push(block);
                self.blocks.len() as u32 - 1
            }
        };
        self.link(chain, at, at);
    }

    /// Hangs blocks behind a chain.
    fn link(&mut self, chain: &mut Chain, first: u32, last: u32) {
        match self.blocks.get_mut(chain.last as usize) {
            Some(before) => before.next = first,
            None => chain.first = first,
        }
        chain.last = last;
    }

    /// Hangs a chain behind another.
    pub(super) fn append(&mut self, chain: &mut Chain, more: Chain) {
        more.own().iter().for_each(|&place| self.push(chain, place));
        if more.first != NONE {
            self.link(chain, more.first, more.last);
        }
    }

    /// Moves the first rows of a chain behind `places`, until these are `rows_max`.
    #[inline]
    pub(super) fn take(&mut self, chain: &mut Chain, rows_max: usize, places: &mut Vec<Place>) {
        taken(&mut chain.own, &mut chain.len, rows_max, places);
        while chain.len == 0
            && let Some(block) = self.blocks.get_mut(chain.first as usize)
        {
            taken(&mut block.places, &mut block.len, rows_max, places);
            if block.len > 0 {
                return;
            }
            self.free.push(chain.first);
            match block.next {
                NONE => *chain = Chain::EMPTY,
                next => chain.first = next,
            }
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
    len: &mut u32,
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
    *len -= some as u32;
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
    used: Vec<u32>,
    local: Vec<u32>,
    indices: Vec<(usize, usize)>,
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
        let batches = || self.used.iter().filter_map(|&at| self.batches[at as usize].as_ref());
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
        let batches = self.used.iter().filter_map(|&at| self.batches[at as usize].as_ref());
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
        let empty = |&batch: &u32| Part { batch, of: vec![] };
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
        for place in places {
            let local = &mut self.local[place.batch as usize];
            if *local == u32::MAX {
                *local = self.used.len() as u32;
                self.used.push(place.batch);
            }
            self.indices.push((*local as usize, place.row as usize));
        }
        self.used.iter().for_each(|&number| self.local[number as usize] = u32::MAX);
    }

    /// These rows wait no more.
    pub(super) fn forget(&mut self, places: &[Place]) {
        self.waiting -= places.len();
        for run in places.chunk_by(|a, b| a.batch == b.batch) {
            let slot = &mut self.batches[run[0].batch as usize];
            let Some(held) = slot else { continue };
            held.waiting -= run.len();
            if held.waiting == 0 {
                self.rows -= held.batch.num_rows();
                self.bytes -= held.bytes;
                self.free.push(run[0].batch);
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
            let mut at = chain.first;
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
        let numbers = self.free.capacity() + self.local.capacity() + self.used.capacity();
        let scratch = self.indices.capacity() * size_of::<(usize, usize)>();
        self.bytes + batches + numbers * size_of::<u32>() + scratch
    }
}
