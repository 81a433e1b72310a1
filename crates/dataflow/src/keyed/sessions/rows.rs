//! Rows that wait, in the batches in which they came, and the chains in which they hang together.
//!
//! Beside each row lies the place of the next one of its chain, so that a chain grows by a row, or
//! by another chain, at a constant cost. A batch goes with the last of its rows. Where few rows
//! hold many batches, these are copied out of them ([`Waiting::gathered`]).

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::compute::interleave;

use crate::error::DataflowError;

/// Where a row is: the number of its batch, and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) batch: u32,
    pub(super) row: u32,
}

impl Place {
    /// Where no row is.
    pub(super) const NONE: Self = Self { batch: u32::MAX, row: u32::MAX };
}

/// Rows that hang together; no row is in two chains.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chain {
    pub(super) first: Place,
    pub(super) last: Place,
}

impl Chain {
    pub(super) const EMPTY: Self = Self { first: Place::NONE, last: Place::NONE };

    /// A chain of one row, which is in no other.
    pub(super) fn of(place: Place) -> Self {
        Self { first: place, last: place }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first == Place::NONE
    }
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
    /// By row the next one of its chain.
    next: Vec<Place>,
    /// Rows that wait.
    waiting: usize,
    bytes: usize,
}

impl Waiting {
    /// Takes a batch all of whose rows wait, each without a next one; gives its number.
    pub(super) fn push(&mut self, batch: RecordBatch) -> u32 {
        let rows = batch.num_rows();
        let bytes = batch.get_array_memory_size() + rows * size_of::<Place>();
        self.rows += rows;
        self.waiting += rows;
        self.bytes += bytes;
        let held = Held { batch, next: vec![Place::NONE; rows], waiting: rows, bytes };
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

    /// Hangs a chain behind another.
    #[inline]
    pub(super) fn append(&mut self, chain: &mut Chain, more: Chain) {
        if chain.is_empty() {
            *chain = more;
        } else if !more.is_empty()
            && let Some(held) = &mut self.batches[chain.last.batch as usize]
        {
            held.next[chain.last.row as usize] = more.first;
            chain.last = more.last;
        }
    }

    /// The row behind this one in its chain, or none.
    #[inline]
    pub(super) fn after(&self, place: Place) -> Place {
        match &self.batches[place.batch as usize] {
            Some(held) => held.next[place.row as usize],
            None => Place::NONE,
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
        let batches = || self.used.iter().filter_map(|&at| self.batches[at as usize].as_ref());
        let column = |at: usize| {
            let arrays: Vec<&dyn Array> =
                batches().map(|held| held.batch.column(at).as_ref()).collect();
            Ok(interleave(&arrays, &self.indices)?)
        };
        columns.map(column).collect()
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
    /// then theirs.
    ///
    /// # Errors
    /// As [`Waiting::columns`].
    pub(super) fn gathered<'a>(
        &mut self,
        chains: impl Iterator<Item = &'a mut Chain>,
        rows_max: usize,
    ) -> Result<Self, DataflowError> {
        let mut all = Self::default();
        let mut places = Vec::with_capacity(rows_max.min(self.waiting));
        let mut next = places.clone();
        for chain in chains.filter(|chain| !chain.is_empty()) {
            let mut place = chain.first;
            let at = |row: usize, batch: usize| Place { batch: batch as u32, row: row as u32 };
            chain.first = at(places.len(), all.batches.len());
            while place != Place::NONE {
                let behind = self.after(place);
                places.push(place);
                chain.last = at(places.len() - 1, all.batches.len());
                let full = places.len() == rows_max;
                next.push(match (behind, full) {
                    (Place::NONE, _) => Place::NONE,
                    (_, true) => at(0, all.batches.len() + 1),
                    (_, false) => at(places.len(), all.batches.len()),
                });
                if full {
                    self.hand_over(&mut places, &mut next, &mut all)?;
                }
                place = behind;
            }
        }
        self.hand_over(&mut places, &mut next, &mut all)?;
        Ok(all)
    }

    fn hand_over(
        &mut self,
        places: &mut Vec<Place>,
        next: &mut Vec<Place>,
        to: &mut Self,
    ) -> Result<(), DataflowError> {
        let any = self.batches.iter().flatten().next();
        let Some(schema) = any.filter(|_| !places.is_empty()).map(|held| held.batch.schema())
        else {
            return Ok(());
        };
        let columns = self.columns(places, 0..schema.fields().len())?;
        let options = RecordBatchOptions::new().with_row_count(Some(places.len()));
        let number = to.push(RecordBatch::try_new_with_options(schema, columns, &options)?);
        if let Some(held) = &mut to.batches[number as usize] {
            held.next.copy_from_slice(next);
        }
        places.clear();
        next.clear();
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
