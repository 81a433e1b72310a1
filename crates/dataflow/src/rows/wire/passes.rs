//! Bytes of rows that are copied between an operator and a slot, as tests count them: a copy that
//! is added on the way shows in `exchange/conformance/passes.rs`.

use std::cell::Cell;

/// Bytes that this thread has copied.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowCopies {
    /// Of rows, into memory that is no slot.
    pub(crate) elsewhere: usize,
    /// Of payloads, into slots.
    pub(crate) into_slots: usize,
    /// Of these, those that a relay copied into its region.
    pub(crate) into_region_again: usize,
    /// Of rows that are kept, out of memory that others need.
    pub(crate) detached: usize,
}

/// Nothing was copied.
const NONE: RowCopies =
    RowCopies { elsewhere: 0, into_slots: 0, into_region_again: 0, detached: 0 };

thread_local! {
    static COPIED: Cell<RowCopies> = const { Cell::new(NONE) };
}

/// Counts rows that were copied into memory that is no slot.
pub(crate) fn count_elsewhere(bytes: usize) {
    let copied = COPIED.get();
    COPIED.set(RowCopies { elsewhere: copied.elsewhere + bytes, ..copied });
}

/// Counts a payload that was written into a slot.
pub(crate) fn count_into_slot(bytes: usize) {
    let copied = COPIED.get();
    COPIED.set(RowCopies { into_slots: copied.into_slots + bytes, ..copied });
}

/// Counts a payload that a relay copied into its region.
pub(crate) fn count_into_region_again(bytes: usize) {
    count_into_slot(bytes);
    let copied = COPIED.get();
    COPIED.set(RowCopies { into_region_again: copied.into_region_again + bytes, ..copied });
}

/// Counts rows that are kept in memory of their own.
pub(crate) fn count_detached(bytes: usize) {
    let copied = COPIED.get();
    COPIED.set(RowCopies { detached: copied.detached + bytes, ..copied });
}

/// What was counted since the last call.
pub(crate) fn take_copied() -> RowCopies {
    COPIED.replace(NONE)
}
