//! The end of an epoch at a worker that leads some of its groups itself: those stay where they are,
//! and the others' are given away.
//!
//! In an array the others' groups become holes. Any other index has no holes, and there the own
//! groups move to another slice; so they do where an aggregate cannot forget a single group.

use arrow::buffer::{BooleanBuffer, Buffer};

use super::{Cursor, Slice};
use crate::partition::RowsByOwner;
use crate::spill::groups::GroupWriter;
use crate::{GroupColumns, Part, Partitioner, StateError, kernel};

impl Slice {
    /// Gives away all groups of which `own` is not the owner. `each` gets their partial states,
    /// part by part, and which rows of a part are whose; what is said of `own` there is of no
    /// account. `recycled` may be an empty slice of the same kind, and may be one afterwards;
    /// `error` says what it means that one cannot grow.
    ///
    /// Nothing happens if no row has come since the last call: the others' groups are gone, and
    /// what is merged is the own. Tells how many groups were looked at and stayed, at most.
    ///
    /// # Errors
    /// Errors of accumulators and of `each`; [`StateError::BeingDrained`] if it is being drained.
    pub(crate) fn take_remote_groups<E: From<StateError>>(
        &mut self,
        own: u32,
        partitioner: &mut Partitioner,
        recycled: &mut Option<Self>,
        each: impl FnMut(&RowsByOwner, &GroupColumns) -> Result<(), E>,
        error: impl Fn(StateError) -> StateError,
    ) -> Result<usize, E> {
        if !self.touched.is_any() {
            return Ok(0);
        }
        if self.giving.is_some() {
            return Err(StateError::BeingDrained.into());
        }
        self.settle()?;
        if self.is_direct() {
            return self.clear_remote_groups(own, partitioner, each);
        }
        self.touched.clear();
        let mut kept = recycled.take().unwrap_or_else(|| self.alike());
        kept.set_room(self.room);
        kept.set_array_bytes_max(self.array_bytes_max);
        self.keep_own(own, partitioner, &mut kept, each, error)?;
        *recycled = Some(std::mem::replace(self, kept));
        Ok(self.groups_at_most())
    }

    /// Writes all groups of which `own` tells the owner of this slice, or all that there are, and
    /// gives a slice of the others, if there are any. They are of rows that have come since groups
    /// were given away last.
    ///
    /// # Errors
    /// Errors of accumulators and of the disk.
    pub(crate) fn spill(
        mut self,
        own: Option<&mut (u32, Partitioner)>,
        writer: &mut GroupWriter<'_>,
    ) -> Result<Option<Self>, StateError> {
        let Some((own, partitioner)) = own.filter(|_| self.touched.is_any()) else {
            while let Some(part) = self.take_delta()? {
                writer.add(part)?;
            }
            return Ok(None);
        };
        let mut others = self.alike();
        let mut split = RowsByOwner::default();
        while let Some(part) = self.take_delta()? {
            partitioner.split(&part, &mut split)?;
            writer.add(split.select(*own, &part)?)?;
            for owner in (0..split.owners()).filter(|owner| owner != own && split.rows(*owner) > 0)
            {
                let groups = split.select(owner, &part)?;
                others.merge(&groups.keys, &groups.states)?;
            }
        }
        // They are as rows are: not given away yet.
        if others.started {
            others.touched.add_any();
        }
        Ok(Some(others).filter(|others| others.started))
    }

    /// Whether some groups were drained, and not yet all.
    pub(crate) fn is_being_drained(&self) -> bool {
        self.giving.is_some()
    }

    fn clear_remote_groups<E: From<StateError>>(
        &mut self,
        own: u32,
        partitioner: &mut Partitioner,
        mut each: impl FnMut(&RowsByOwner, &GroupColumns) -> Result<(), E>,
    ) -> Result<usize, E> {
        let total = self.index.total();
        let mut few = self.touched.few_of(total).map(Vec::into_iter);
        self.touched.clear();
        let is_few = few.is_some();
        // To find those that have rows, each place of the array is looked at.
        let mut looked = if is_few { 0 } else { self.groups_at_most() };
        let mut split = RowsByOwner::default();
        let mut cursor = Cursor::default();
        let mut next = |slice: &Self| match &mut few {
            Some(few) => few.next(),
            None => slice.next_part(&mut cursor),
        };
        while let Some((ids, occupied)) = next(self) {
            let part = match &occupied {
                Some(marks) => Part::marked(ids.clone(), total, marks),
                None => Part::all(ids.clone(), total),
            };
            looked += if is_few { part.rows() } else { 0 };
            let keys = self.index.keys(&self.spec.keys, &part)?;
            partitioner.split(&GroupColumns { keys, states: vec![] }, &mut split)?;
            if split.rows(own) == part.rows() {
                continue;
            }
            self.blocks.change_within(ids.clone());
            let others = others(&split, own, part.rows(), occupied.as_ref());
            let part = Part::marked(ids, total, &others);
            split.remove(own);
            let columns = self.columns_of(&part, |accumulator, part| accumulator.state(part))?;
            each(&split, &columns)?;
            self.accumulators.iter_mut().for_each(|accumulator| accumulator.forget(&part));
            self.marks.forget(&part);
        }
        Ok(looked)
    }

    fn keep_own<E: From<StateError>>(
        &mut self,
        own: u32,
        partitioner: &mut Partitioner,
        kept: &mut Self,
        mut each: impl FnMut(&RowsByOwner, &GroupColumns) -> Result<(), E>,
        error: impl Fn(StateError) -> StateError,
    ) -> Result<(), E> {
        let mut split = RowsByOwner::default();
        while let Some(part) = self.take_delta()? {
            partitioner.split(&part, &mut split)?;
            each(&split, &part)?;
            if split.rows(own) > 0 {
                let own = split.select(own, &part)?;
                kept.merge(&own.keys, &own.states).map_err(&error)?;
            }
        }
        Ok(())
    }
}

/// Of `rows` groups, which lie at the set bits of `occupied` or side by side, the places of those
/// that are not `own`'s.
fn others(
    split: &RowsByOwner,
    own: u32,
    rows: usize,
    occupied: Option<&BooleanBuffer>,
) -> BooleanBuffer {
    // One word more than needed, so that 64 bits can be read from any place.
    let mut bits = vec![0u64; rows / 64 + 2];
    let mut begin = 0;
    for run in split.runs(own) {
        set(&mut bits, begin, run.start as usize);
        begin = run.end as usize;
    }
    set(&mut bits, begin, rows);
    let Some(occupied) = occupied else {
        return BooleanBuffer::new(Buffer::from_vec(bits), 0, rows);
    };
    let mut row = 0;
    let place = |places: u64| {
        let (word, bit) = (row / 64, row % 64);
        let low = bits[word] >> bit | if bit > 0 { bits[word + 1] << (64 - bit) } else { 0 };
        row += places.count_ones() as usize;
        kernel::deposit(low, places)
    };
    let words: Vec<u64> = occupied.bit_chunks().iter_padded().map(place).collect();
    BooleanBuffer::new(Buffer::from_vec(words), 0, occupied.len())
}

/// Sets the bits from `begin` to `end`.
fn set(bits: &mut [u64], begin: usize, end: usize) {
    let mut at = begin;
    while at < end {
        let (word, bit) = (at / 64, at % 64);
        let count = (64 - bit).min(end - at);
        bits[word] |= (u64::MAX >> (64 - count)) << bit;
        at += count;
    }
}
