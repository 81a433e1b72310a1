//! The rows of a row group that are read, as runs of consecutive rows.

use std::ops::Range;

use arrow::buffer::BooleanBuffer;
use arrow::util::bit_iterator::BitSliceIterator;
use parquet::arrow::arrow_reader::RowSelection;

/// The average number of rows of a run and the gap behind it, below which the library reads the
/// gaps too: twice the library's own number, since the library counts runs and gaps separately.
const ROWS_OF_RUN: u64 = 64;

/// Runs of rows, in order, none of them empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RowRuns(Vec<Range<u64>>);

impl RowRuns {
    /// The rows of these ranges, which are in order.
    pub(super) fn new(ranges: impl IntoIterator<Item = Range<u64>>) -> Self {
        let mut runs: Vec<Range<u64>> = vec![];
        for range in ranges.into_iter().filter(|range| !range.is_empty()) {
            match runs.last_mut() {
                Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
                _ => runs.push(range),
            }
        }
        Self(runs)
    }

    pub(super) fn rows(&self) -> u64 {
        self.0.iter().map(|run| run.end - run.start).sum()
    }

    /// The rows from `first` on.
    pub(super) fn behind(&self, first: u64) -> Self {
        Self::new(self.0.iter().map(|run| run.start.max(first)..run.end))
    }

    /// Whether one of `rows` is in a run.
    pub(super) fn overlaps(&self, rows: &Range<u64>) -> bool {
        let at = self.0.partition_point(|run| run.end <= rows.start);
        self.0.get(at).is_some_and(|run| run.start < rows.end)
    }

    /// From the first row to the last.
    pub(super) fn span(&self) -> Range<u64> {
        let first = self.0.first().map_or(0, |run| run.start);
        first..self.0.last().map_or(first, |run| run.end)
    }

    /// Whether the library reads the gaps between the runs too.
    pub(super) fn are_short(&self) -> bool {
        let span = self.span();
        (self.0.len() as u64).saturating_mul(ROWS_OF_RUN) > span.end - span.start
    }

    /// The rows whose bit is set: there is one bit for each row.
    pub(super) fn only(&self, bits: &BooleanBuffer) -> Self {
        let mut kept = vec![];
        let mut first = 0;
        for run in &self.0 {
            let length = (run.end - run.start) as usize;
            let bits = bits.slice(first, length);
            let set = BitSliceIterator::new(bits.values(), bits.offset(), length);
            kept.extend(set.map(|(from, to)| run.start + from as u64..run.start + to as u64));
            first += length;
        }
        Self::new(kept)
    }

    /// The runs as the library's type.
    pub(super) fn selection(&self, rows: u64) -> RowSelection {
        let ranges = self.0.iter().map(|run| run.start as usize..run.end as usize);
        RowSelection::from_consecutive_ranges(ranges, rows as usize)
    }

    /// Removes the first `count` rows, and gives their numbers.
    pub(super) fn take(&mut self, mut count: u64) -> Vec<u64> {
        let mut numbers = Vec::with_capacity(count as usize);
        let mut done = 0;
        for run in &mut self.0 {
            let rows = count.min(run.end - run.start);
            numbers.extend(run.start..run.start + rows);
            run.start += rows;
            count -= rows;
            if !run.is_empty() {
                break;
            }
            done += 1;
        }
        self.0.drain(..done);
        numbers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_cut_taken_and_narrowed() {
        let mut runs = RowRuns::new([0..3, 3..5, 7..7, 10..12]);
        assert_eq!(runs, RowRuns(vec![0..5, 10..12]));
        assert_eq!((runs.rows(), runs.span()), (7, 0..12));
        assert!(runs.overlaps(&(11..20)) && !runs.overlaps(&(5..10)));
        let bits = BooleanBuffer::from(vec![true, false, true, true, false, false, true]);
        assert_eq!(runs.only(&bits), RowRuns(vec![0..1, 2..4, 11..12]));
        assert_eq!(runs.behind(4), RowRuns(vec![4..5, 10..12]));
        assert_eq!(runs.take(6), [0, 1, 2, 3, 4, 10]);
        assert_eq!(runs.take(6), [11]);
        assert_eq!(runs.rows(), 0);
    }
}
