//! A value for each key in each window.

use std::collections::VecDeque;

use arrow::array::AsArray;
use arrow::datatypes::{DataType, Float32Type};
use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;

use super::{TableRows, has_word, numbers, times};
use crate::checksums::ChecksumTotals;
use crate::task::{WorkloadAggregate, WorkloadGroups};

/// Sums over the groups of the rows.
pub(super) fn sums(
    shape: WorkloadGroups,
    rows: &mut TableRows,
) -> Result<ChecksumTotals, ConnectorError> {
    let mut oracle = Oracle::new(shape);
    while let Some(batch) = rows.next()? {
        oracle.take(&batch);
    }
    Ok(oracle.finish())
}

/// Bytes of the sums of this many keys, at most.
pub(super) fn bytes(shape: WorkloadGroups, keys: u64) -> u64 {
    let groups = keys.div_ceil(shape.key.1 as u64).next_power_of_two();
    groups * size_of::<Group>() as u64 * slides(shape) as u64
}

/// Slides of a window.
fn slides(shape: WorkloadGroups) -> usize {
    shape.window.map_or(1, |window| (window.size_ms / window.slide_ms) as usize)
}

/// The state of a key in a slide.
#[derive(Debug, Clone, Copy, Default)]
struct Group {
    count: u32,
    max: i64,
    sum: f64,
}

/// One row after the other.
pub(crate) struct Oracle {
    shape: WorkloadGroups,
    /// Slides of a window.
    slides: usize,
    /// The slide of the last row.
    now: i64,
    /// The latest slides, as many as a window has, the current one last: by key, which are small
    /// numbers.
    recent: VecDeque<Vec<Group>>,
    sums: ChecksumTotals,
}

impl Oracle {
    pub(crate) fn new(shape: WorkloadGroups) -> Self {
        let slides = slides(shape);
        let recent = std::iter::repeat_with(Vec::new).take(slides).collect();
        Self { shape, slides, now: i64::MIN, recent, sums: ChecksumTotals::default() }
    }

    /// Takes the columns of [`WorkloadGroups::columns`].
    pub(crate) fn take(&mut self, batch: &RecordBatch) {
        let shape = self.shape;
        let mut columns = batch.columns().iter();
        let mut next = || columns.next().unwrap_or(batch.column(0));
        let keys = numbers(next());
        let times = shape.window.map(|window| (times(next()), window.slide_ms));
        let retained = shape.filter.map(|(_, word)| has_word(next(), word));
        let value = shape.value.map(|_| next());
        for row in 0..batch.num_rows() {
            if let Some((times, slide)) = times {
                self.turn_to(times[row].div_euclid(slide));
            }
            if retained.as_ref().is_some_and(|retained| !retained[row]) {
                continue;
            }
            let key = (keys[row] / shape.key.1) as usize;
            let groups = &mut self.recent[self.slides - 1];
            if key >= groups.len() {
                groups.resize((key + 1).next_power_of_two(), Group::default());
            }
            let group = &mut groups[key];
            group.count += 1;
            match value.map(|value| (value, value.data_type())) {
                Some((value, DataType::Float32)) => {
                    group.sum += f64::from(value.as_primitive::<Float32Type>().value(row));
                }
                Some((value, _)) => {
                    let value = numbers(value)[row];
                    group.sum += value as f64;
                    group.max = if group.count == 1 { value } else { group.max.max(value) };
                }
                None => {}
            }
        }
    }

    /// Emits the rest.
    pub(crate) fn finish(mut self) -> ChecksumTotals {
        self.pass(self.slides);
        self.sums
    }

    fn turn_to(&mut self, slide: i64) {
        if slide != self.now {
            // Before the first row, and after a long pause, all slides are empty.
            let passed = slide.saturating_sub(self.now).min(self.slides as i64);
            self.pass(passed as usize);
            self.now = slide;
        }
    }

    /// This many slides end: a window ends with each.
    fn pass(&mut self, slides: usize) {
        for _ in 0..slides {
            let keys = self.recent.iter().map(Vec::len).max().unwrap_or(0);
            for key in 0..keys {
                let mut all = Group::default();
                for group in self.recent.iter().filter_map(|groups| groups.get(key)) {
                    if group.count > 0 {
                        all.max = if all.count == 0 { group.max } else { all.max.max(group.max) };
                        all.count += group.count;
                        all.sum += group.sum;
                    }
                }
                if all.count > 0 {
                    self.give_out(key as i64, all);
                }
            }
            let mut oldest = self.recent.pop_front().unwrap_or_default();
            oldest.fill(Group::default());
            self.recent.push_back(oldest);
        }
    }

    fn give_out(&mut self, key: i64, group: Group) {
        match self.shape.answer {
            WorkloadAggregate::Count => self.sums.add_whole(key, group.count.into()),
            WorkloadAggregate::Max => self.sums.add_whole(key, group.max),
            WorkloadAggregate::Mean => self.sums.add_real(key, group.sum / f64::from(group.count)),
        }
    }
}
