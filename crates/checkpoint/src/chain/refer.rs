//! Sections that a checkpoint refers to, in place of writing their rows again.
//!
//! State that was spilled to a disk never changes, so that a later checkpoint can use the sections
//! that an earlier one has stored. It names the segments that it refers to, and collection keeps
//! them like its own (rule C8).
//!
//! ```text
//! 31  g7-n2-31.seg  a b c d
//! 32  g7-n2-32.seg  e         refers to a b c of 31
//! 33  g7-n2-33.seg  a b e f   refers to nothing: most of segment 31 is not needed any more
//! ```
//!
//! A node refers only to sections of the last checkpoint in the chain: the segments of that
//! checkpoint stay until three later ones are there. Nothing keeps the segment of a round that was
//! given up.

use std::collections::{BTreeMap, BTreeSet};

use crate::record::SegmentEntry;
use crate::segment::SectionEntry;

/// The greatest number of segments that the segment of a node refers to.
pub const REFERRED_MAX: usize = 64;
/// A segment is referred to if one in this number of its bytes is needed: its other bytes are kept
/// too.
const USED_PART: u64 = 2;

/// A section with the segment in which it lies.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SectionPlace {
    /// The segment.
    pub segment: SegmentEntry,
    /// The section.
    pub section: SectionEntry,
}

/// A section that was stored, with the rows in it; `R` names some rows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoredSection<R> {
    /// Its place in the store.
    pub place: SectionPlace,
    /// The rows in it.
    pub rows: Vec<R>,
}

/// The sections that a node may refer to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct References<R> {
    /// The sections of the last checkpoint in the chain.
    recorded: Vec<StoredSection<R>>,
    /// The sections of later checkpoints, by their number. They may not come into the chain.
    stored: BTreeMap<u64, Vec<StoredSection<R>>>,
}

impl<R> Default for References<R> {
    fn default() -> Self {
        Self { recorded: Vec::new(), stored: BTreeMap::new() }
    }
}

impl<R: Ord + Clone> References<R> {
    /// Notes that the node has stored its segment for checkpoint `number`: `sections` are those in
    /// it, and those that it refers to.
    pub fn stored(&mut self, number: u64, sections: Vec<StoredSection<R>>) {
        self.stored.insert(number, sections);
    }

    /// Notes that `number` is the last checkpoint in the chain.
    pub fn recorded(&mut self, number: u64) {
        if let Some(sections) = self.stored.remove(&number) {
            self.recorded = sections;
        }
        self.stored.retain(|of, _| *of > number);
    }

    /// The sections of the last checkpoint in the chain.
    pub fn recorded_sections(&self) -> &[StoredSection<R>] {
        &self.recorded
    }

    /// The sections to refer to for a checkpoint of the rows `needed`. Each has only such rows, and
    /// the sections of one segment are at least half of it.
    #[must_use]
    pub fn usable(&self, needed: &BTreeSet<R>) -> Vec<StoredSection<R>> {
        let is_needed = |of: &&StoredSection<R>| of.rows.iter().all(|rows| needed.contains(rows));
        let whole: Vec<&StoredSection<R>> = self.recorded.iter().filter(is_needed).collect();
        let mut used: BTreeMap<&SegmentEntry, u64> = BTreeMap::new();
        for StoredSection { place, .. } in &whole {
            *used.entry(&place.segment).or_default() += place.section.bytes;
        }
        let mut segments: Vec<(u64, &SegmentEntry)> = used
            .into_iter()
            .filter(|(segment, bytes)| bytes.saturating_mul(USED_PART) >= segment.bytes)
            .map(|(segment, bytes)| (bytes, segment))
            .collect();
        segments.sort_unstable_by(|a, b| b.cmp(a));
        segments.truncate(REFERRED_MAX);
        let is_used = |of: &&&StoredSection<R>| {
            segments.iter().any(|(_, segment)| *segment == &of.place.segment)
        };
        whole.iter().filter(is_used).map(|of| (*of).clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(file: &str, bytes: u64, at: u64, own: u64, rows: &[u32]) -> StoredSection<u32> {
        let segment = SegmentEntry { file: file.to_owned(), bytes, crc: 1 };
        let (operator, part) = ("rows".to_owned(), 0);
        let section = SectionEntry { operator, part, rows: 9, offset: at, bytes: own, crc: 2 };
        StoredSection { place: SectionPlace { segment, section }, rows: rows.to_vec() }
    }

    fn usable(of: &References<u32>, needed: &[u32]) -> Vec<u64> {
        let needed = needed.iter().copied().collect();
        of.usable(&needed).iter().map(|of| of.place.section.offset).collect()
    }

    #[test]
    fn what_is_in_the_chain_and_needed_as_a_whole_is_referred_to() {
        let mut references = References::default();
        let first = [section("a", 100, 0, 40, &[1, 2]), section("a", 100, 64, 40, &[3])];
        references.stored(5, first.to_vec());
        assert!(usable(&references, &[1, 2, 3]).is_empty(), "it may not come into the chain");
        references.recorded(5);
        assert_eq!(usable(&references, &[1, 2, 3, 4]), [0, 64]);
        assert!(usable(&references, &[1, 3]).is_empty(), "40 of 100 bytes are of use");
        references.stored(6, vec![section("b", 50, 128, 40, &[7])]);
        references.stored(7, [&first[..], &[section("c", 40, 192, 30, &[7])]].concat());
        references.recorded(7);
        assert_eq!(usable(&references, &[1, 2, 3, 7]), [0, 64, 192]);
        assert_eq!(usable(&references, &[2, 3, 7]), [192]);
        references.recorded(7);
        assert_eq!(usable(&references, &[7]), [192]);
    }

    #[test]
    fn segments_that_are_referred_to_are_few() {
        let mut references = References::default();
        let many =
            |at: u32| section(&format!("s{at}"), 100, at.into(), 60 + u64::from(at) % 2, &[at]);
        let all: Vec<u32> = (0..2 * REFERRED_MAX as u32).collect();
        references.stored(1, all.iter().map(|&at| many(at)).collect());
        references.recorded(1);
        let used = usable(&references, &all);
        assert!(used.len() == REFERRED_MAX && used.iter().all(|at| at % 2 == 1), "{used:?}");
    }
}
