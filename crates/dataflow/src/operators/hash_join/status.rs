//! The status of a worker's inputs, as it is announced to the other workers.
//!
//! It travels as the watermark of the operator, which never goes back: a worker announces its build
//! when that has ended, and its probe side after that.

use crate::job::hash_join::Variant;
use crate::operators::probe_stage::EmittedRows;

/// The status of the inputs of a worker, or of several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct InputStatus(i64);

/// The build has ended; all of its rows have come; it has rows; some have NULL in their key.
const BUILT: i64 = 1;
const WHOLE_BUILD: i64 = 2;
const ROWS: i64 = 4;
const NULL_KEY: i64 = 8;
/// All rows of the probe side have come.
const WHOLE_PROBE: i64 = 16;

/// The flags that hold for all workers together only if each worker announces them.
const OF_ALL: i64 = BUILT | WHOLE_BUILD | WHOLE_PROBE;

impl InputStatus {
    /// The status that a watermark announces.
    pub(super) fn of(watermark: i64) -> Self {
        Self(watermark.max(0))
    }

    /// The watermark that announces the complete status.
    pub(super) fn watermark(self) -> i64 {
        self.0
    }

    /// The watermark that announces the status of the build alone.
    pub(super) fn build_watermark(self) -> i64 {
        self.0 & !WHOLE_PROBE
    }

    /// The build has rows; some may have NULL in their key.
    pub(super) fn with_rows(self, null_key: bool) -> Self {
        Self(self.0 | ROWS | if null_key { NULL_KEY } else { 0 })
    }

    /// The build has ended.
    pub(super) fn with_build(self, whole: bool) -> Self {
        Self(self.0 | BUILT | if whole { WHOLE_BUILD } else { 0 })
    }

    /// The probe side has ended.
    pub(super) fn with_probe(self, whole: bool) -> Self {
        Self(self.0 | if whole { WHOLE_PROBE } else { 0 })
    }

    /// The status of this worker and another one together.
    pub(super) fn and(self, other: Self) -> Self {
        Self((self.0 & other.0 & OF_ALL) | ((self.0 | other.0) & !OF_ALL))
    }

    pub(super) fn is_whole_build(self) -> bool {
        self.0 & WHOLE_BUILD != 0
    }

    pub(super) fn is_whole_probe(self) -> bool {
        self.0 & WHOLE_PROBE != 0
    }

    pub(super) fn has_rows(self) -> bool {
        self.0 & ROWS != 0
    }

    pub(super) fn has_null_key(self) -> bool {
        self.0 & NULL_KEY != 0
    }
}

/// The rows of the probe side that a join of this variant may emit, when the build of all workers
/// has this status.
pub(super) fn passes_of(variant: Variant, build: InputStatus) -> EmittedRows {
    match variant {
        Variant::NullAware if build.has_null_key() => EmittedRows::None,
        Variant::NullAware if build.has_rows() => EmittedRows::WithKey,
        _ => EmittedRows::All,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_needs_all_workers_and_a_row_needs_one() {
        let empty = InputStatus::default().with_build(true);
        let null = InputStatus::default().with_rows(true).with_build(true).with_probe(true);
        let both = empty.and(null);
        assert!(both.is_whole_build() && !both.is_whole_probe());
        assert!(both.has_rows() && both.has_null_key());
        assert!(!empty.and(InputStatus::default().with_build(false)).is_whole_build());
        assert!(!empty.and(empty).has_rows());
        assert_eq!(InputStatus::of(i64::MIN), InputStatus::default());
    }

    #[test]
    fn a_later_status_is_a_later_watermark() {
        for first in [InputStatus::default(), InputStatus::default().with_rows(true)] {
            for (build, probe) in [(true, true), (false, true), (true, false)] {
                let status = first.with_build(build);
                assert!(status.build_watermark() > 0);
                let later = status.with_probe(probe);
                assert_eq!(later.build_watermark(), status.build_watermark());
                assert!(later.watermark() >= status.build_watermark());
            }
        }
    }
}
