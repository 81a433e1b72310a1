//! For which groups rows have come since groups were given away last. A short epoch touches few of
//! a large array: then the others need not be looked at, most of which no cache may have.

use std::ops::Range;

use arrow::buffer::{BooleanBuffer, Buffer};

/// Ids that are remembered; with more, or with larger batches, any group may have been touched.
const IDS_MAX: usize = 1 << 10;
/// One id in so many must have been touched at most for it to be worth anything.
const FEW_PART: usize = 8;

/// What is known of it.
#[derive(Debug, Default)]
pub(super) struct Touched {
    /// These were, some of them several times, if no others were.
    ids: Vec<u32>,
    others: bool,
}

impl Touched {
    pub(super) fn is_any(&self) -> bool {
        self.others || !self.ids.is_empty()
    }

    /// Whether ids of so many rows more would be remembered.
    pub(super) fn remembers(&self, rows: usize) -> bool {
        !self.others && self.ids.len() + rows <= IDS_MAX
    }

    /// Rows have come for groups of these ids.
    pub(super) fn add(&mut self, ids: &[u32]) {
        match self.remembers(ids.len()) {
            true => self.ids.extend_from_slice(ids),
            false => self.add_any(),
        }
    }

    /// Rows have come for any groups.
    pub(super) fn add_any(&mut self) {
        self.others = true;
        self.ids.clear();
    }

    /// None were from here on.
    pub(super) fn clear(&mut self) {
        self.others = false;
        self.ids.clear();
    }

    /// What is known when the groups have other ids.
    pub(super) fn renumbered(&self) -> Self {
        Self { ids: vec![], others: self.is_any() }
    }

    /// A range of ids, and which of them were touched if not all, where these are few of `total`.
    pub(super) fn few_of(&self, total: usize) -> Option<(Range<usize>, Option<BooleanBuffer>)> {
        if self.others || self.ids.len() > total / FEW_PART {
            return None;
        }
        let (&first, &last) = (self.ids.iter().min()?, self.ids.iter().max()?);
        let ids = first as usize..last as usize + 1;
        let mut words = vec![0u64; ids.len().div_ceil(64)];
        for id in &self.ids {
            let at = (id - first) as usize;
            words[at / 64] |= 1 << (at % 64);
        }
        let marks = BooleanBuffer::new(Buffer::from_vec(words), 0, ids.len());
        let all = marks.count_set_bits() == ids.len();
        Some((ids, Some(marks).filter(|_| !all)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_groups_of_many_are_told() {
        let mut touched = Touched::default();
        assert!(!touched.is_any() && touched.few_of(1_000).is_none());
        touched.add(&[70, 7, 70]);
        assert!(touched.is_any() && touched.few_of(20).is_none(), "not few of 20");
        let (ids, marks) = touched.few_of(1_000).unwrap();
        assert_eq!((ids, marks.unwrap().set_indices().collect()), (7..71, vec![0, 63]));
        touched.clear();
        touched.add(&[8, 9]);
        assert_eq!(touched.few_of(1_000), Some((8..10, None)));
        let moved = touched.renumbered();
        assert!(moved.is_any() && moved.few_of(1_000).is_none());
        touched.add(&[0; IDS_MAX]);
        assert!(touched.is_any() && touched.few_of(1 << 20).is_none());
        touched.add(&[1]);
        assert!(touched.few_of(1 << 20).is_none(), "others were, too");
        touched.clear();
        assert!(!touched.is_any() && !touched.renumbered().is_any());
    }
}
