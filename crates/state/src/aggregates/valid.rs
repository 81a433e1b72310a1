//! Which groups have had a value.

use std::ops::Range;

use arrow::buffer::NullBuffer;

use crate::{Groups, Part};

/// Which groups have had a value: tracked per group only from the first null on. Until then each id
/// that was ever within `total` has had one, because ids are dense or, where they are not, the
/// slice leaves that mode as soon as a null appears ([`crate::SparseIds::Allowed`]).
#[derive(Debug, Default)]
pub(super) struct Valid {
    /// Groups that existed after the last batch.
    known: usize,
    /// Per group of `known`, if a null has appeared.
    marks: Option<Vec<bool>>,
}

impl Valid {
    /// A batch without nulls.
    pub(super) fn all(&mut self, groups: &Groups, total: usize) {
        if groups.rows() == 0 {
            return;
        }
        if let Some(marks) = self.marked(total) {
            groups.iter().for_each(|id| marks[id as usize] = true);
        }
    }

    /// Rows without nulls of groups below `total`, where ids may have holes.
    pub(super) fn below(&mut self, total: usize) {
        debug_assert!(self.marks.is_none(), "a null ends holes");
        self.known = self.known.max(total);
    }

    /// A batch with nulls. Calls `each(row, group)` for the rows that are not.
    pub(super) fn some(
        &mut self,
        groups: &Groups,
        nulls: &NullBuffer,
        total: usize,
        mut each: impl FnMut(usize, usize),
    ) {
        self.marks.get_or_insert_with(|| vec![true; self.known]);
        let Some(marks) = self.marked(total) else { return };
        for (row, (id, valid)) in groups.iter().zip(nulls.iter()).enumerate() {
            if valid {
                marks[id as usize] = true;
                each(row, id as usize);
            }
        }
    }

    /// The nulls of a part.
    pub(super) fn nulls(&self, part: &Part) -> Option<NullBuffer> {
        let valid: Vec<bool> = match &self.marks {
            Some(marks) => part.each_id(|id| marks.get(id).copied().unwrap_or(false)),
            None if self.known >= part.ids().end => return None,
            None => part.each_id(|id| id < self.known),
        };
        Some(NullBuffer::from(valid)).filter(|nulls| nulls.null_count() > 0)
    }

    /// The same of the groups `ids`, which are numbered from 0.
    pub(super) fn copied(&self, ids: Range<usize>) -> Self {
        let within = |marks: &Vec<bool>| {
            let end = ids.end.min(marks.len());
            marks.get(ids.start..end).unwrap_or(&[]).to_vec()
        };
        let known = self.known.saturating_sub(ids.start).min(ids.len());
        Self { known, marks: self.marks.as_ref().map(within) }
    }

    /// Forgets all groups.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        self.marks.as_ref().map_or(0, Vec::capacity)
    }

    fn marked(&mut self, total: usize) -> Option<&mut Vec<bool>> {
        self.known = self.known.max(total);
        if let Some(marks) = &mut self.marks {
            marks.resize(self.known, false);
        }
        self.marks.as_mut()
    }
}
