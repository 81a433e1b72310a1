//! Which groups are read of a slice: a large slice is drained part by part, so that what is
//! built of a part stays in the cache and its memory is used again for the next.

use std::ops::Range;

use arrow::buffer::BooleanBuffer;

use crate::kernel;
use crate::table::Plain;

/// Consecutive groups, or those of them that are marked.
#[derive(Debug, Clone)]
pub struct Part<'a> {
    ids: Range<usize>,
    total: usize,
    rows: usize,
    /// A bit per id; never all set.
    marks: Option<&'a BooleanBuffer>,
}

impl<'a> Part<'a> {
    /// All groups of `ids`, where there are `total`.
    ///
    /// # Panics
    /// If `ids` are not within `0..total`.
    pub fn all(ids: Range<usize>, total: usize) -> Self {
        assert!(ids.start <= ids.end && ids.end <= total, "{ids:?} are not groups below {total}");
        Self { rows: ids.len(), ids, total, marks: None }
    }

    /// The groups of `ids` whose bit is set.
    ///
    /// # Panics
    /// If there is not a bit per id, or `ids` are not within `0..total`.
    pub(crate) fn marked(ids: Range<usize>, total: usize, marks: &'a BooleanBuffer) -> Self {
        assert_eq!(ids.len(), marks.len(), "a bit per id");
        let rows = marks.count_set_bits();
        let marks = (rows < ids.len()).then_some(marks);
        Self { rows, marks, ..Self::all(ids, total) }
    }

    /// The range of ids; not all of them need be read.
    pub fn ids(&self) -> Range<usize> {
        self.ids.clone()
    }

    /// How many groups the slice has.
    pub fn total(&self) -> usize {
        self.total
    }

    /// How many groups are read: the length of each column.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The ids that are read, as runs that do not touch, ascending.
    pub(crate) fn each_run(&self, mut each: impl FnMut(Range<usize>)) {
        match self.marks {
            None => each(self.ids()),
            Some(marks) => {
                let start = self.ids.start;
                marks.set_slices().for_each(|(from, to)| each(start + from..start + to));
            }
        }
    }

    /// Calls `with` for each group's entry in `table`, as far as there are any, and may call it for
    /// entries of other groups between them; tells whether the group is read.
    ///
    /// Of scattered groups, hardly two follow each other: what is called for each run of them, or
    /// depends on a branch, takes longer than to go through all entries, some at once.
    pub(crate) fn each_entry<S>(&self, table: &mut [S], mut with: impl FnMut(&mut S, bool)) {
        let end = self.ids.end.min(table.len());
        let own = table.get_mut(self.ids.start..end).unwrap_or_default();
        let Some(marks) = self.marks else {
            return own.iter_mut().for_each(|entry| with(entry, true));
        };
        for (word, entries) in marks.bit_chunks().iter_padded().zip(own.chunks_mut(64)) {
            if word == 0 {
                continue;
            }
            let (eights, rest) = entries.as_chunks_mut::<8>();
            let mut bytes = word.to_le_bytes().into_iter();
            for (eight, byte) in eights.iter_mut().zip(&mut bytes) {
                let entries = eight.iter_mut().enumerate();
                entries.for_each(|(bit, entry)| with(entry, byte & 1 << bit != 0));
            }
            let byte = bytes.next().unwrap_or(0);
            let entries = rest.iter_mut().enumerate();
            entries.for_each(|(bit, entry)| with(entry, byte & 1 << bit != 0));
        }
    }

    /// Whether the group of the first id is read.
    pub(crate) fn has_first(&self) -> bool {
        !self.ids.is_empty() && self.marks.is_none_or(|marks| marks.value(0))
    }

    /// `of` each group's entry in `table`; what lies beyond its end is zero.
    pub(crate) fn each<S: Plain, V: Copy + Default>(
        &self,
        table: &[S],
        of: impl Fn(&S) -> V,
    ) -> Vec<V> {
        let end = self.ids.end.min(table.len());
        let own = table.get(self.ids.start..end).unwrap_or(&[]);
        let zero = S::new_zeroed();
        match self.marks {
            None => {
                let mut out: Vec<V> = Vec::with_capacity(self.rows);
                out.extend(own.iter().map(&of));
                out.resize_with(self.rows, || of(&zero));
                out
            }
            Some(marks) => kernel::select(marks, self.rows, |at| of(own.get(at).unwrap_or(&zero))),
        }
    }

    /// `of` the id of each group.
    pub(crate) fn each_id<V: Copy + Default>(&self, of: impl Fn(usize) -> V) -> Vec<V> {
        let start = self.ids.start;
        match self.marks {
            None => self.ids().map(of).collect(),
            Some(marks) => kernel::select(marks, self.rows, |at| of(start + at)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marked_groups_are_read_in_order_and_beyond_the_table_is_zero() {
        let table: Vec<u32> = (1..=150).collect();
        for step in [1, 2, 3, 7, 64, 100] {
            let ids = 10..200;
            let marks = BooleanBuffer::collect_bool(190, |at| at % step == 0);
            let part = Part::marked(ids.clone(), 500, &marks);
            let read: Vec<usize> = ids.clone().step_by(step).collect();
            assert_eq!(part.rows(), read.len());
            assert_eq!(part.each_id(|id| id), read);
            let entry = |&id: &usize| table.get(id).copied().unwrap_or(0);
            let expected: Vec<u32> = read.iter().map(entry).collect();
            assert_eq!(part.each(&table, |&entry| entry), expected, "every {step}");
            let mut left = table.clone();
            part.each_entry(&mut left, |entry, is_read| *entry *= u32::from(!is_read));
            let stays = |id: usize| !ids.contains(&id) || !(id - ids.start).is_multiple_of(step);
            let kept = |(id, &entry): (usize, &u32)| if stays(id) { entry } else { 0 };
            assert_eq!(left, table.iter().enumerate().map(kept).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_part_of_nothing_has_no_rows() {
        let none = BooleanBuffer::new_unset(70);
        let part = Part::marked(0..70, 70, &none);
        assert_eq!((part.rows(), part.has_first()), (0, false));
        assert!(part.each(&[7u64; 70], |&entry| entry).is_empty());
        assert!(!Part::all(5..5, 5).has_first() && Part::all(5..6, 6).has_first());
    }
}
