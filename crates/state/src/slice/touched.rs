//! For which groups rows have come since groups were given away last. A short epoch touches few of
//! a large array: then the others need not be looked at, most of which no cache may have.

use std::ops::Range;

use arrow::buffer::{BooleanBuffer, Buffer};

use super::PART_IDS;

/// Ids that are remembered; with more, or with larger batches, any group may have been touched.
const IDS_MAX: usize = 1 << 10;
/// One id in this many must have been touched at most for it to be worth anything.
const FEW_PART: usize = 8;

/// A range of ids, and which of them are meant if not all.
type Few = (Range<usize>, Option<BooleanBuffer>);

/// Its state.
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

    /// Whether ids of this many rows more would be remembered.
    pub(super) fn remembers(&self, rows: usize) -> bool {
        !self.others && self.ids.len() + rows <= IDS_MAX
    }

    /// Rows have come for groups of these ids.
    pub(super) fn add(&mut self, ids: &[u32]) {
        if self.remembers(ids.len()) { self.ids.extend_from_slice(ids) } else { self.add_any() }
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

    /// The state when the groups have other ids.
    pub(super) fn renumbered(&self) -> Self {
        Self { ids: vec![], others: self.is_any() }
    }

    /// Ranges of ids, ascending, and which of them were touched if not all, where these are few of
    /// `total`.
    pub(super) fn few_of(&self, total: usize) -> Option<Vec<Few>> {
        if self.others || self.ids.is_empty() || self.ids.len() > total / FEW_PART {
            return None;
        }
        let mut ids = self.ids.clone();
        ids.sort_unstable();
        ids.dedup();
        // What lies far apart is not of one range: that would be as long as the array.
        let near = |a: &u32, b: &u32| *a as usize / PART_IDS == *b as usize / PART_IDS;
        Some(ids.chunk_by(near).map(few).collect())
    }
}

/// These ids, ascending, as a range.
fn few(ids: &[u32]) -> Few {
    let (first, last) = (ids[0] as usize, ids[ids.len() - 1] as usize);
    let range = first..last + 1;
    if range.len() == ids.len() {
        return (range, None);
    }
    let mut words = vec![0u64; range.len().div_ceil(64)];
    for &id in ids {
        let at = id as usize - first;
        words[at / 64] |= 1 << (at % 64);
    }
    let marks = BooleanBuffer::new(Buffer::from_vec(words), 0, range.len());
    (range, Some(marks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_groups_of_many_are_marked() {
        let mut touched = Touched::default();
        assert!(!touched.is_any() && touched.few_of(1_000).is_none());
        touched.add(&[70, 7, 70]);
        assert!(touched.is_any() && touched.few_of(20).is_none(), "not few of 20");
        let marks = |few: &Few| few.1.as_ref().map(|marks| marks.set_indices().collect::<Vec<_>>());
        let few = touched.few_of(1_000).unwrap();
        assert_eq!((few.len(), &few[0].0, marks(&few[0])), (1, &(7..71), Some(vec![0, 63])));
        touched.add(&[90_000_000]);
        let few = touched.few_of(100_000_000).unwrap();
        assert_eq!((few.len(), &few[1]), (2, &(90_000_000..90_000_001, None)));
        touched.clear();
        touched.add(&[8, 9]);
        assert_eq!(touched.few_of(1_000), Some(vec![(8..10, None)]));
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
