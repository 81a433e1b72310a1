use arrow::array::{
    Float64Array, IntervalDayTimeArray, StringArray, StringViewArray, TimestampMillisecondArray,
    UInt32Array, UInt64Array,
};
use arrow::compute::{concat_batches, take_record_batch};
use arrow::datatypes::IntervalDayTime;
use arrow::record_batch::RecordBatch;
use proptest::prelude::*;
use state::{GroupColumns, Partitioner};

use super::super::{Decoder, take_copied};
use super::*;

fn batch_of(columns: Vec<ArrayRef>) -> RecordBatch {
    let named = columns.into_iter().enumerate().map(|(i, c)| (format!("{i}"), c, true));
    RecordBatch::try_from_iter_with_nullable(named).unwrap()
}

/// The rows of each of `leaders` leaders.
fn split_of(batch: &RecordBatch, leaders: u32) -> RowsByOwner {
    let mut split = RowsByOwner::default();
    let keys = vec![batch.column(0).clone()];
    let groups = GroupColumns { keys, states: vec![] };
    Partitioner::new(leaders).split(&groups, &mut split).unwrap();
    split
}

/// Groups of a leader as they are kept, and as they were.
fn kept(batches: &[RecordBatch], leaders: u32, leader: u32) -> (NarrowGroups, RecordBatch) {
    let (mut groups, mut wanted) = (NarrowGroups::default(), vec![]);
    for batch in batches {
        let split = split_of(batch, leaders);
        let part = GroupPart::of(batch.columns().iter().cloned()).unwrap();
        groups.add(&part, &split, leader).unwrap();
        let rows: UInt32Array = split.runs(leader).iter().cloned().flatten().collect();
        wanted.push(take_record_batch(batch, &rows).unwrap());
    }
    (groups, concat_batches(&batches[0].schema(), &wanted).unwrap())
}

/// Sends some groups; they must come back.
fn travel(groups: &NarrowGroups, rows: Range<usize>, wanted: &RecordBatch) -> (GroupForm, usize) {
    let form = groups.form(&rows);
    let head = groups.head(&rows, &form);
    assert_eq!(head.len(), form.head_bytes());
    let layout = groups.layout(&rows, &form, head.len() + 3).unwrap();
    let bytes = layout.len();
    let layout = layout.beside([&head[..], b"end"].concat().into());
    let payload = layout.payload();
    assert_eq!(payload.len(), bytes);
    let (back, rest) = Decoder::new(&wanted.schema()).decode_narrow(&payload).unwrap();
    assert_eq!(back, wanted.slice(rows.start, rows.len()));
    assert_eq!(&rest[..], b"end");
    (form, bytes)
}

fn there_and_back(columns: Vec<ArrayRef>) -> GroupForm {
    let batch = batch_of(columns);
    let (groups, wanted) = kept(&[batch], 1, 0);
    travel(&groups, 0..groups.rows(), &wanted).0
}

#[test]
fn keys_have_the_form_with_the_fewest_bytes() {
    let form = |values: Vec<i64>| {
        let form = there_and_back(vec![Arc::new(Int64Array::from(values))]);
        (form.bases[0].width, form.head_bytes() - NarrowBase::BYTES)
    };
    assert_eq!(form((-5..1_000).collect()), (RUN, 0));
    assert_eq!(form(vec![i64::MAX]), (RUN, 0));
    assert_eq!(form((0..1_000).map(|i| i * 2).collect()), (MARKS, 4 + 250));
    assert_eq!(form((0..100_000).map(|i| i * 63).collect()).0, 4);
    assert_eq!(form((0..100_000).map(|i| i * 8).collect()).0, MARKS);
    assert_eq!(form((0..100).map(|i| 99 - i).collect()), (1, 0));
    assert_eq!(form(vec![1, 1]), (1, 0));
    assert_eq!(form(vec![i64::MIN, 0, i64::MAX]).0, 0);
}

#[test]
fn columns_come_back_and_are_as_narrow_as_they_can_be() {
    let column = |values: Vec<Option<i64>>| Arc::new(Int64Array::from(values)) as ArrayRef;
    let form = there_and_back(vec![
        column(vec![Some(1_000_000), None, Some(1_000_255)]),
        column(vec![Some(-1), Some(255), None]),
        column(vec![Some(0), Some(1 << 32), Some((1 << 32) - 1)]),
        column(vec![Some(i64::MIN), Some(i64::MAX), None]),
        column(vec![Some(i64::MAX), Some(i64::MAX - 70_000), Some(i64::MAX)]),
        column(vec![None, None, None]),
        Arc::new(UInt64Array::from(vec![u64::MAX, u64::MAX - 1, u64::MAX])),
        Arc::new(UInt64Array::from(vec![0, u64::MAX, 5])),
        Arc::new(TimestampMillisecondArray::from(vec![Some(5), None, Some(300)])),
        Arc::new(Float64Array::from(vec![1.0, 2.0, 3.0])),
        Arc::new(StringArray::from(vec![Some("a"), None, Some("")])),
        Arc::new(IntervalDayTimeArray::from(vec![IntervalDayTime::new(1, 2); 3])),
    ]);
    let widths: Vec<u8> = form.bases.iter().map(|base| base.width).collect();
    assert_eq!(widths, [1, 2, 0, 0, 4, 1, 1, 1, 2, 0, 0, 0]);
}

#[test]
fn a_slice_is_narrowed_alone() {
    let all: ArrayRef = Arc::new(Int64Array::from_iter_values([1 << 60, 9, 8, 7, -(1 << 60)]));
    let form = there_and_back(vec![all.slice(1, 3)]);
    assert_eq!(form.bases[0], NarrowBase { least: 7, width: 1 });
}

/// A column for each width, and of words that are missing.
fn part(seed: i64, rows: usize) -> impl Strategy<Value = RecordBatch> {
    let width = prop_oneof![Just(0u32), Just(3), Just(8), Just(20), Just(40), Just(63)];
    let words = move |shift: u32, all: bool| {
        prop::collection::vec(prop::option::weighted(0.8, any::<i64>()), rows).prop_map(
            move |words| {
                let word = |word: i64| (word & ((1 << shift) - 1)).wrapping_add(seed);
                let words = words.into_iter().map(|w| w.or(all.then_some(0)).map(word));
                Arc::new(words.collect::<Int64Array>()) as ArrayRef
            },
        )
    };
    let columns = (width.clone(), width).prop_flat_map(move |(a, b)| {
        (words(a, true), words(b, false), words(0, false), prop::bool::ANY)
    });
    columns.prop_map(move |(keys, states, more, sorted)| {
        let ascending = (0..keys.len() as i64).map(|i| seed.wrapping_add(i * 3));
        let ascending = Arc::new(Int64Array::from_iter_values(ascending)) as ArrayRef;
        let keys = if sorted { ascending } else { keys };
        let texts: StringViewArray = (0..keys.len())
            .map(|i| (i % 4 > 0).then(|| "a text longer than a view ".repeat(i % 3)))
            .collect();
        batch_of(vec![keys, states, more, Arc::new(texts)])
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Keys of any density, signed or not, come back, whole and in parts.
    #[test]
    fn ascending_keys_come_back(
        steps in prop::collection::vec(prop_oneof![Just(1u64), 1u64..9, 1u64..1 << 40], 1..300),
        first in any::<i64>(),
        cut in 0usize..300,
        unsigned in any::<bool>(),
    ) {
        let mut at = first;
        let keys: Vec<i64> = steps.iter().map(|&step| {
            at = at.wrapping_add(step as i64);
            at
        }).collect();
        let column: ArrayRef = if unsigned {
            let keys = keys.iter().map(|&key| key as u64);
            Arc::new(UInt64Array::from_iter_values(keys))
        } else {
            Arc::new(Int64Array::from(keys.clone()))
        };
        let states: ArrayRef = Arc::new(Int64Array::from_iter_values(0..keys.len() as i64));
        let (groups, wanted) = kept(&[batch_of(vec![column, states])], 1, 0);
        let cut = cut.min(keys.len());
        for rows in [0..cut, cut..keys.len()].into_iter().filter(|rows| !rows.is_empty()) {
            travel(&groups, rows, &wanted);
        }
    }

    /// Parts of any widths travel together, whole and cut anywhere, to each of several leaders.
    #[test]
    fn parts_of_other_widths_travel_together(
        batches in prop::collection::vec(
            (prop_oneof![Just(0), any::<i64>(), -300i64..300], 1usize..40)
                .prop_flat_map(|(seed, rows)| part(seed, rows)),
            1..5,
        ),
        leaders in 1u32..4,
        cut in any::<prop::sample::Index>(),
    ) {
        for leader in 0..leaders {
            let (groups, wanted) = kept(&batches, leaders, leader);
            prop_assert_eq!(groups.rows(), wanted.num_rows());
            if groups.rows() == 0 {
                continue;
            }
            let cut = cut.index(groups.rows());
            for rows in [0..groups.rows(), 0..cut, cut..groups.rows(), cut..cut + 1] {
                if !rows.is_empty() {
                    travel(&groups, rows, &wanted);
                }
            }
        }
    }
}

/// Bytes that are copied to keep groups, and these groups.
fn copied(batches: &[RecordBatch], leaders: u32) -> (usize, NarrowGroups) {
    take_copied();
    let (groups, _) = kept(batches, leaders, 0);
    (take_copied().elsewhere, groups)
}

#[test]
fn words_are_copied_once_as_narrow_as_they_are_and_nothing_else_of_one_leader_is() {
    let keys: ArrayRef = Arc::new(Int64Array::from_iter_values((0..1_000).map(|i| 999 - i)));
    let states: ArrayRef = Arc::new(Int64Array::from_iter_values((0..1_000).map(|i| i % 7)));
    let floats: ArrayRef =
        Arc::new(Float64Array::from_iter_values((0..1_000).map(|i| f64::from(i) / 3.0)));
    let batch = batch_of(vec![keys, states, floats]);
    let batches = [batch];
    let (bytes, groups) = copied(&batches, 1);
    assert_eq!((bytes, groups.rows()), ((2 + 1) * 1_000, 1_000));
    // Of several leaders what is no word is copied as well.
    let (bytes, groups) = copied(&batches, 3);
    assert!((200..500).contains(&groups.rows()), "{}", groups.rows());
    assert_eq!(bytes, (2 + 1 + 8) * groups.rows());
}
