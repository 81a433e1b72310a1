//! Leaves out strips if the directory says that none of their rows can match.
//!
//! A strip is left out by the least and the greatest value of its blocks, and by its partition: a
//! value has one bucket.

use std::sync::Arc;

use arrow::array::ArrayRef;
use dataflow::predicate::{ColumnPredicate, ColumnSummary, Membership};
use pool::manifest::{Buckets, Manifest};

use super::columns::numbers;
use super::decode::BlockType;
use super::index::KeyLookup;
use super::partition::{bucket, bucket_in};

/// The bounds of a scan's columns, by strip.
pub(super) struct Directory<'a> {
    pub(super) manifest: &'a Manifest,
    /// The columns of the table that are read.
    pub(super) projection: &'a [usize],
    pub(super) types: &'a [BlockType],
}

impl Directory<'_> {
    /// Those of `strips` that may have a row that matches.
    pub(super) fn may_match(&self, strips: &[u32], kept: &ColumnPredicate) -> Vec<u32> {
        let columns = kept.columns();
        let may_match = |strip: &u32| {
            let partition = self.partition_of(*strip);
            kept.may_match(&|column| {
                let known =
                    columns.contains(&column).then(|| self.summary(*strip, partition, column));
                known.unwrap_or_default()
            })
        };
        strips.iter().copied().filter(may_match).collect()
    }

    fn partition_of(&self, strip: u32) -> u32 {
        let behind = self.manifest.partitions.partition_point(|first| *first <= strip);
        behind.saturating_sub(1) as u32
    }

    fn summary(&self, strip: u32, partition: u32, column: usize) -> ColumnSummary {
        let (at, of) = (self.projection[column], &self.types[column]);
        let strip = &self.manifest.strips[strip as usize];
        let block = &strip.blocks[at];
        let end = |value: i64| {
            let is_known =
                numbers(&of.data_type).is_some() && value != i64::MIN && value != i64::MAX;
            is_known.then(|| of.constant(value, 1)).flatten()
        };
        ColumnSummary {
            least: end(block.least),
            greatest: end(block.greatest),
            nulls: Some(u64::from(block.nulls)),
            rows: Some(u64::from(strip.rows)),
            members: self.members(partition, at),
        }
    }

    /// The values of a column that a partition may have.
    fn members(&self, partition: u32, column: usize) -> Option<Membership> {
        let buckets = &self.manifest.definition.buckets;
        let at = buckets.iter().position(|by| usize::from(by.column) == column)?;
        let (by, own): (Buckets, u32) = (buckets[at], bucket_in(partition, buckets, at));
        let may_have = move |value: &ArrayRef| bucket(value, &by).is_none_or(|of| of == own);
        Some(Membership::new(may_have))
    }
}

/// The strips that are left out of a source.
#[derive(Clone)]
pub(super) struct Pruned {
    pub(super) by: ColumnPredicate,
    /// The strips that may match.
    pub(super) kept: Arc<[u32]>,
    /// Whether the others are left out wherever they are; otherwise splits without any of `kept`.
    pub(super) within_splits: bool,
    /// Keys by which readers leave out more, each within its own split.
    pub(super) keys: Option<Arc<KeyLookup>>,
}
