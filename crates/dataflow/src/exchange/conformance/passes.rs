//! How often a byte of a row is copied between the operator that gives it and the slot that it
//! leaves in. No row stays with its worker, and each batch has rows for two others.

use std::sync::Arc;

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use arrow::record_batch::RecordBatch;
use channel::Transfer;
use channel::broadcast::Shape as TreeShape;

use super::bed::{BASE, SHAPE, Shape, TAG, text_schema};
use super::{Case, EXCHANGES, PLAIN, SHUFFLE, leader, of_rows, port_of, ran};
use crate::error::DataflowError;
use crate::exchange::{Inputs, Port};
use crate::job::{Distribution, Exchange, RowPartitioner, TreeChoice};
use crate::rows::wire::{RowCopies, take_copied};
use crate::runtime::place::WorkerContext;

/// Rows of each worker go to all along a chain.
pub(super) const BROADCAST: Case = Case {
    name: "broadcast along a tree",
    inputs: |place| of_rows(place, Distribution::Broadcast, None, None),
    goes_to: |_, _, workers| (0..workers).collect(),
    takes: &[2, 6, 12, 13, 16, 17, 18, 19, 20, 21],
    tree: Some(TreeChoice::Fixed(TreeShape::Capped(1))),
    ..PLAIN
};

/// The same from a region that all read.
pub(super) const FROM_REGION: Case = Case {
    name: "broadcast from a region that all read",
    tree: Some(TreeChoice::Fixed(TreeShape::Sequential)),
    transfer: Transfer::Region,
    ..BROADCAST
};

/// Bytes of a number.
const ROW_BYTES: usize = 8;

/// Leads every nth number of a worker to the others, in turn, and the rest to the worker itself.
struct ToOthers {
    nth: i64,
}

/// All numbers travel.
const ALL: ToOthers = ToOthers { nth: 1 };

impl RowPartitioner for ToOthers {
    fn partition(
        &self,
        batch: &RecordBatch,
        of: u32,
        to: &mut Vec<u32>,
    ) -> Result<(), DataflowError> {
        let numbers = batch.column(0).as_primitive::<Int64Type>().values();
        let leader = |&number: &i64| {
            let (worker, turn) = (number / BASE, number % (i64::from(of) - 1));
            let travels = number % self.nth == 0;
            (if travels { (worker + 1 + turn) % i64::from(of) } else { worker }) as u32
        };
        to.extend(numbers.iter().map(leader));
        Ok(())
    }
}

/// A port whose rows `partitioner` leads.
fn port_by(partitioner: ToOthers) -> Port {
    Port { partitioner: Some(Arc::new(partitioner)), ..port_of(Distribution::Hash) }
}

/// Copies that three processes of this shape make, and the bytes of the rows of the senders.
fn copied_by(case: &Case, senders: usize, shape: Shape) -> (RowCopies, usize) {
    let shape = Shape { processes: 3, ..shape };
    take_copied();
    drop(ran(case, shape));
    (take_copied(), senders * shape.batches * shape.rows * ROW_BYTES)
}

fn copied(case: &Case, senders: usize) -> (RowCopies, usize) {
    copied_by(case, senders, SHAPE)
}

#[test]
fn a_shuffle_writes_rows_into_slots_and_copies_them_nowhere_else() {
    let case = Case {
        name: "shuffle to others",
        inputs: |place| of_rows(place, Distribution::Hash, Some(Arc::new(ALL)), None),
        ..PLAIN
    };
    let (copied, bytes) = copied(&case, 3);
    assert_eq!(copied.elsewhere, 0);
    assert!(copied.into_slots >= bytes, "{copied:?} of {bytes}");
}

#[test]
fn a_gather_writes_rows_into_slots_and_copies_them_nowhere_else() {
    let gather = EXCHANGES.iter().find(|case| case.gathers).expect("there is one");
    let (copied, bytes) = copied(gather, 2);
    assert_eq!(copied.elsewhere, 0);
    assert!(copied.into_slots >= bytes, "{copied:?} of {bytes}");
}

/// Copies of a late merge of rows, and the bytes of all rows.
fn merged(inputs: fn(&WorkerContext) -> Inputs) -> (RowCopies, usize) {
    let case = Case { name: "merge of rows for others", inputs, merges: true, ..PLAIN };
    copied_by(&case, 3, LARGE)
}

fn late(place: &WorkerContext, partitioner: ToOthers) -> Inputs {
    Inputs::of_rows(TAG, vec![port_by(partitioner)], Exchange::Merge, place, SHUFFLE)
}

#[test]
fn a_merge_writes_rows_into_slots_and_copies_them_nowhere_else() {
    let (copied, bytes) = merged(|place| late(place, ALL));
    assert_eq!(copied.elsewhere, 0);
    assert!(copied.into_slots >= bytes, "{copied:?} of {bytes}");
    let (copied, bytes) = merged(|place| late(place, ToOthers { nth: 4 }));
    assert_eq!(copied.elsewhere, bytes / 4 * 3, "the rows that stay");
    assert!(copied.into_slots >= bytes / 4, "{copied:?} of {bytes}");
}

#[test]
fn a_merge_copies_rows_of_others_where_they_would_hold_many_that_stay() {
    let (copied, bytes) = merged(|place| late(place, ToOthers { nth: 16 }));
    assert_eq!(copied.elsewhere, bytes);
    assert!(copied.into_slots >= bytes / 16, "{copied:?} of {bytes}");
}

#[test]
fn groups_are_copied_once_narrow_to_where_they_are_kept_and_once_into_slots() {
    let merge = EXCHANGES.iter().find(|case| case.groups).expect("there is one");
    let shape = Shape { processes: 3, ..SHAPE };
    let led_elsewhere = |worker: u32| {
        let numbers = (0..shape.batches).flat_map(move |batch| shape.numbers(worker, batch));
        numbers.filter(|&number| leader(number, shape.total()) != worker).count()
    };
    let groups: usize = (0..shape.total()).map(led_elsewhere).sum();
    let (copied, _) = copied(merge, 3);
    // A byte of the key, or two, and one of the count; as the operator gives them, sixteen.
    let narrow = 2 * groups..=3 * groups;
    assert!(narrow.contains(&copied.elsewhere), "{copied:?} of {groups} groups");
    assert!(copied.into_slots >= copied.elsewhere, "{copied:?} of {groups} groups");
}

#[test]
fn a_row_larger_than_a_slot_is_copied_once_more_before_it_is_cut() {
    let case = Case {
        name: "shuffle of long rows to others",
        inputs: |place| {
            let port = Port { schema: text_schema(), ..port_by(ALL) };
            Inputs::of_rows(TAG, vec![port], Exchange::Shuffle, place, SHUFFLE)
        },
        ..PLAIN
    };
    let shape = Shape { processes: 3, batches: 4, text_bytes: 3_000, ..SHAPE };
    take_copied();
    drop(ran(&case, shape));
    let copied = take_copied();
    let rows = 3 * shape.batches * shape.rows;
    // The rows, and beside each its head and what aligns it.
    let bytes = rows * (ROW_BYTES + shape.text_bytes);
    assert!((bytes..bytes + 64 * rows).contains(&copied.elsewhere), "{copied:?} of {bytes}");
    assert!(copied.into_slots >= copied.elsewhere, "{copied:?} of {bytes}");
}

/// The copies that processes make while each worker broadcasts rows, and the bytes of all rows.
fn broadcast(tree: TreeShape, transfer: Transfer, shape: Shape) -> (RowCopies, usize) {
    let case =
        Case { name: "broadcast", tree: Some(TreeChoice::Fixed(tree)), transfer, ..BROADCAST };
    take_copied();
    drop(ran(&case, shape));
    let senders = shape.total() as usize;
    (take_copied(), senders * shape.batches * shape.rows * ROW_BYTES)
}

/// Batches that are sent as they come.
const LARGE: Shape = Shape { processes: 3, rows: 96, region_slots: 64, ..SHAPE };

#[test]
fn a_broadcast_encodes_rows_once_and_keeps_them_where_they_are() {
    let (copied, bytes) = broadcast(TreeShape::Sequential, Transfer::Write, LARGE);
    // Once into the queue, from where they go to both.
    assert!((bytes..bytes * 5 / 4).contains(&copied.elsewhere), "{copied:?} of {bytes}");
    assert!((2 * bytes..bytes * 5 / 2).contains(&copied.into_slots), "{copied:?} of {bytes}");
    // Once in each process that receives them.
    assert_eq!(copied.detached, 2 * bytes, "{copied:?}");
}

#[test]
fn a_broadcast_puts_small_batches_together_by_one_copy() {
    let small = Shape { processes: 3, ..SHAPE };
    let (copied, bytes) = broadcast(TreeShape::Sequential, Transfer::Write, small);
    let (large, all) = broadcast(TreeShape::Sequential, Transfer::Write, LARGE);
    let of = |copies: usize, bytes: usize| copies as f64 / bytes as f64;
    let more = of(copied.elsewhere, bytes) - of(large.elsewhere, all);
    assert!((0.5..1.5).contains(&more), "{copied:?} of {bytes}, {large:?} of {all}");
    assert_eq!(copied.detached, 2 * bytes, "{copied:?}");
}

#[test]
fn a_broadcast_through_a_region_writes_rows_once_for_all() {
    let (region, bytes) = broadcast(TreeShape::Sequential, Transfer::Region, LARGE);
    let (rings, _) = broadcast(TreeShape::Sequential, Transfer::Write, LARGE);
    // The rest are frames of control, and of rows their heads.
    assert!((bytes..bytes * 5 / 4).contains(&region.into_slots), "{region:?} of {bytes}");
    assert_eq!((region.elsewhere, region.detached), (0, 2 * bytes), "{region:?}");
    assert!(rings.into_slots >= region.into_slots + bytes, "{rings:?}, {region:?} of {bytes}");
}

#[test]
fn a_relay_of_several_copies_once_into_its_region_and_one_of_one_not_at_all() {
    // 0 sends to 1 and 2, 1 to 3 and 4, 2 to 5, 3 to 6.
    let tree = TreeShape::Capped(2);
    // The own rows of a relay take less than half of its region.
    let seven = Shape { processes: 7, batches: 20, ..LARGE };
    let (region, bytes) = broadcast(tree, Transfer::Region, seven);
    let (rings, _) = broadcast(tree, Transfer::Write, seven);
    assert_eq!(region.elsewhere, 0, "{region:?}");
    let once = region.into_region_again;
    assert!((bytes..bytes * 5 / 4).contains(&once), "{region:?} of {bytes}");
    // The source and 1 into their regions, 2 and 3 into the slot of their child.
    assert!((4 * bytes..5 * bytes).contains(&region.into_slots), "{region:?} of {bytes}");
    // 0 and 1 into the slots of both children.
    assert!((6 * bytes..bytes * 15 / 2).contains(&rings.into_slots), "{rings:?} of {bytes}");
    assert_eq!(rings.into_region_again, 0, "{rings:?}");
    let chain = Shape { processes: 4, ..LARGE };
    let (chain, bytes) = broadcast(TreeShape::Capped(1), Transfer::Region, chain);
    assert_eq!(chain.into_region_again, 0, "{chain:?} of {bytes}");
    assert!((3 * bytes..bytes * 15 / 4).contains(&chain.into_slots), "{chain:?} of {bytes}");
}
