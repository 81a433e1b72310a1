//! Counting rows.
//!
//! Counters are 32 bits wide as long as all counts of the slice together cannot exceed that: half
//! the memory traffic of the state that most queries have.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::{DataType, Int64Type};

use super::{any_column, column};
use crate::groups::{Groups, Ids};
use crate::kernel;
use crate::table::ZeroedTable;
use crate::{Accumulator, Aggregate, ConsumedRows, DenseRows, Part, SparseIds, StateError, fused};

/// The memory of a group, as long as counters are narrow.
const COUNTER_BYTES: usize = size_of::<u32>();
/// A batch of fewer groups is counted in a small table of its own first.
const LANE_GROUPS: usize = 1 << 10;
#[derive(Debug)]
pub(super) struct Count {
    /// Whether rows are counted by their argument being not null.
    pub(super) argument: bool,
}

impl Aggregate for Count {
    fn state_types(&self) -> Vec<DataType> {
        vec![DataType::Int64]
    }

    fn output_type(&self) -> DataType {
        DataType::Int64
    }

    fn create(&self) -> Box<dyn Accumulator> {
        let counters = Counters::Narrow(ZeroedTable::new());
        Box::new(Counts {
            argument: self.argument,
            counters,
            counted: 0,
            lanes: vec![],
            turns: true,
        })
    }

    fn is_fusible(&self) -> bool {
        !self.argument
    }

    fn keeps_arrays(&self) -> bool {
        false
    }

    fn sparse_ids(&self) -> SparseIds {
        // A group may have rows but no argument that is not null; then only its other aggregates
        // know it.
        if self.argument {
            SparseIds::Allowed(COUNTER_BYTES)
        } else {
            SparseIds::Reported(COUNTER_BYTES)
        }
    }
}

/// The counters of one slice.
struct Counts {
    argument: bool,
    counters: Counters,
    /// The sum of all counters.
    counted: u64,
    /// Scratch of [`kernel::histogram`]; zero between batches.
    lanes: Vec<u32>,
    /// Whether rows of few groups may take turns at them.
    turns: bool,
}

enum Counters {
    Narrow(ZeroedTable<u32>),
    Wide(ZeroedTable<u64>),
}

impl Counts {
    /// Makes room for groups, and for counters that grow by `more` in sum.
    fn reserve(&mut self, groups: &Groups, total: usize, more: u64) {
        self.reserve_len(total.max(groups.reach() + 1), more);
    }

    fn reserve_len(&mut self, len: usize, more: u64) {
        self.counted = self.counted.saturating_add(more);
        if self.counted > u64::from(u32::MAX) {
            self.widen();
        }
        match &mut self.counters {
            Counters::Narrow(table) => table.grow(len),
            Counters::Wide(table) => table.grow(len),
        }
    }

    #[cold]
    fn widen(&mut self) {
        if let Counters::Narrow(narrow) = &self.counters {
            let mut wide = ZeroedTable::<u64>::zeroed(narrow.len());
            for (wide, &narrow) in wide.as_mut().iter_mut().zip(narrow.as_ref()) {
                *wide = u64::from(narrow);
            }
            self.counters = Counters::Wide(wide);
        }
    }

    /// Whether rows of groups up to `reach` are counted in a small table of their own first.
    fn are_few(&self, reach: usize, rows: usize) -> bool {
        self.turns && reach < LANE_GROUPS && rows > 2 * reach
    }

    fn count_rows(&mut self, groups: &Groups) {
        let few = self.are_few(groups.reach(), groups.rows());
        match (groups.ids(), &mut self.counters) {
            (Ids::One { id, rows }, Counters::Narrow(table)) => {
                // `counted` bounds each counter, so neither the cast nor the addition overflows.
                table.as_mut()[id as usize] += rows as u32;
            }
            (Ids::One { id, rows }, Counters::Wide(table)) => {
                table.as_mut()[id as usize] += rows as u64;
            }
            (Ids::Each(_), counters) if few => {
                let lanes = lanes(&mut self.lanes, groups.reach() + 1);
                kernel::histogram(lanes, groups);
                counters.add(lanes);
            }
            (Ids::Each(_), Counters::Narrow(table)) => {
                kernel::touch(table.as_mut(), groups, |slot| *slot = slot.wrapping_add(1));
            }
            (Ids::Each(_), Counters::Wide(table)) => {
                kernel::touch(table.as_mut(), groups, |slot| *slot = slot.wrapping_add(1));
            }
        }
    }
}

/// Four tables of at least this many zeros side by side.
fn lanes(lanes: &mut Vec<u32>, groups: usize) -> &mut [u32] {
    let width = groups.next_power_of_two();
    if lanes.len() < 4 * width {
        lanes.resize(4 * width, 0);
    }
    &mut lanes[..4 * width]
}

impl Counters {
    /// Adds the four tables of `lanes`, leaving zeros.
    fn add(&mut self, lanes: &mut [u32]) {
        match self {
            Self::Narrow(table) => fold(lanes, table.as_mut(), |c, n| *c += n),
            Self::Wide(table) => fold(lanes, table.as_mut(), |c, n| *c += u64::from(n)),
        }
    }
}

/// Adds the four tables of `lanes` to `counters`, leaving zeros.
fn fold<C>(lanes: &mut [u32], counters: &mut [C], add: impl Fn(&mut C, u32)) {
    let width = lanes.len() / 4;
    let (ab, cd) = lanes.split_at_mut(2 * width);
    let ((a, b), (c, d)) = (ab.split_at_mut(width), cd.split_at_mut(width));
    for ((((a, b), c), d), counter) in a.iter_mut().zip(b).zip(c).zip(d).zip(counters) {
        add(counter, *a + *b + *c + *d);
        (*a, *b, *c, *d) = (0, 0, 0, 0);
    }
}

impl Accumulator for Counts {
    fn update(
        &mut self,
        args: &[ArrayRef],
        groups: &Groups,
        total: usize,
    ) -> Result<(), StateError> {
        if groups.rows() == 0 {
            return Ok(());
        }
        self.reserve(groups, total, groups.rows() as u64);
        if !self.argument {
            self.count_rows(groups);
            return Ok(());
        }
        let argument = any_column(args, 0, "arguments of count")?;
        crate::error::same("rows of count", groups.rows(), argument.len())?;
        match argument.logical_nulls().filter(|nulls| nulls.null_count() > 0) {
            None => self.count_rows(groups),
            Some(nulls) => {
                for (id, valid) in groups.iter().zip(nulls.iter()) {
                    match &mut self.counters {
                        Counters::Narrow(table) => table.as_mut()[id as usize] += u32::from(valid),
                        Counters::Wide(table) => table.as_mut()[id as usize] += u64::from(valid),
                    }
                }
            }
        }
        Ok(())
    }

    fn update_near(&mut self, args: &[ArrayRef], near: &DenseRows<'_>) -> Option<ConsumedRows> {
        let (total, rows) = (near.total_of::<u32>()?, near.rows());
        let few = self.are_few(total - 1, rows);
        let is_wide = matches!(self.counters, Counters::Wide(_));
        if !args.is_empty() || (is_wide && !few) {
            return None;
        }
        self.reserve_len(total, rows as u64);
        let folded = match &mut self.counters {
            counters if few => {
                let lanes = lanes(&mut self.lanes, total);
                let folded = fused::count(lanes, 4, near);
                counters.add(lanes);
                folded
            }
            Counters::Narrow(table) => fused::count(table.as_mut(), 1, near),
            // It has just become so.
            Counters::Wide(_) => ConsumedRows::default(),
        };
        self.counted -= (rows - folded.passed) as u64;
        Some(folded)
    }

    fn merge(
        &mut self,
        states: &[ArrayRef],
        groups: &Groups,
        total: usize,
    ) -> Result<(), StateError> {
        let counts = column::<Int64Type>(states, 0, "state of count")?;
        crate::error::same("rows of the state of count", groups.rows(), counts.len())?;
        if groups.rows() == 0 {
            return Ok(());
        }
        // A count is not negative; a peer that says so wraps around and harms nothing but its own
        // query.
        let more = counts.values().iter().fold(0u64, |sum, &c| sum.saturating_add(c as u64));
        self.reserve(groups, total, more);
        match &mut self.counters {
            Counters::Narrow(table) => {
                kernel::scatter(table.as_mut(), groups, counts.values(), |slot, c| {
                    *slot += c as u32
                });
            }
            Counters::Wide(table) => {
                kernel::scatter(table.as_mut(), groups, counts.values(), |slot, c| {
                    *slot = slot.wrapping_add(c as u64);
                })
            }
        }
        Ok(())
    }

    fn state(&mut self, part: &Part) -> Result<Vec<ArrayRef>, StateError> {
        Ok(vec![self.values(part)?])
    }

    fn values(&mut self, part: &Part) -> Result<ArrayRef, StateError> {
        let counts: Vec<i64> = match &self.counters {
            Counters::Narrow(table) => part.each(table.as_ref(), |&count| i64::from(count)),
            Counters::Wide(table) => part.each(table.as_ref(), |&count| count as i64),
        };
        Ok(Arc::new(Int64Array::from(counts)))
    }

    fn copied(&self, ids: Range<usize>) -> Option<Box<dyn Accumulator>> {
        let counters = match &self.counters {
            Counters::Narrow(table) => Counters::Narrow(table.copied(ids)),
            Counters::Wide(table) => Counters::Wide(table.copied(ids)),
        };
        let Self { argument, counted, turns, .. } = *self;
        Some(Box::new(Self { argument, counters, counted, lanes: vec![], turns }))
    }

    fn clear(&mut self, total: usize) {
        match &mut self.counters {
            Counters::Narrow(table) => table.clear(total),
            // The next epoch starts narrow again.
            Counters::Wide(_) => self.counters = Counters::Narrow(ZeroedTable::new()),
        }
        self.counted = 0;
    }

    fn forget(&mut self, part: &Part) {
        match &mut self.counters {
            Counters::Narrow(table) => part.each_entry(table.as_mut(), |counter, is_read| {
                self.counted -= u64::from(if is_read { *counter } else { 0 });
                *counter = if is_read { 0 } else { *counter };
            }),
            Counters::Wide(table) => table.forget(part),
        }
    }

    fn keep_unreplicated(&mut self) {
        self.turns = false;
    }

    fn bytes(&self) -> usize {
        let counters = match &self.counters {
            Counters::Narrow(table) => table.bytes(),
            Counters::Wide(table) => table.bytes(),
        };
        counters + self.lanes.capacity() * size_of::<u32>()
    }

    fn occupied(&self, ids: Range<usize>) -> Option<BooleanBuffer> {
        Some(match &self.counters {
            Counters::Narrow(table) => table.not_zero(ids),
            Counters::Wide(table) => table.not_zero(ids),
        })
    }
}
