//! Rows of any types there and back; what a stranger may send.

mod random;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, StringArray};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use arrow::util::display::array_value_to_string;
use bytes::Bytes;
use proptest::prelude::*;

use self::random::Random;
use super::*;

/// Batches of a schema, and which of their rows are picked, by batch.
struct Case {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
    picked: Vec<Vec<u32>>,
}

impl Case {
    fn of(seed: u64) -> Self {
        let mut random = Random(seed);
        let schema = random.schema();
        let lengths: Vec<usize> =
            (0..1 + random.below(3)).map(|_| [0, 1, 7, 70, 200][random.below(5)]).collect();
        let batches: Vec<_> = lengths.iter().map(|&rows| random.batch(&schema, rows)).collect();
        let picked = lengths.iter().map(|&rows| match (rows, random.below(3)) {
            (0, _) => vec![],
            (_, 0) => (0..rows as u32).collect(),
            _ => (0..random.below(150)).map(|_| random.below(rows) as u32).collect(),
        });
        let picked = picked.collect();
        Self { schema, batches, picked }
    }

    fn picks(&self) -> Picks {
        let mut picks = Picks::default();
        for (batch, numbers) in self.batches.iter().zip(&self.picked) {
            if numbers.iter().copied().eq(0..batch.num_rows() as u32) {
                picks.add_all(batch.clone());
            } else {
                picks.add(batch.clone(), numbers);
            }
        }
        picks
    }

    /// Checks that rows are those that were picked, from one on.
    fn check(&self, from: usize, rows: &RecordBatch) {
        let picked = self.batches.iter().zip(&self.picked);
        let places = picked
            .flat_map(|(batch, numbers)| numbers.iter().map(move |&row| (batch, row as usize)));
        let places: Vec<_> = places.skip(from).take(rows.num_rows()).collect();
        assert_eq!(places.len(), rows.num_rows());
        for (at, field) in self.schema.fields().iter().enumerate() {
            rows.column(at).to_data().validate_full().expect("a sound array");
            for (row, (batch, of)) in places.iter().enumerate() {
                let asked = batch.column(at).slice(*of, 1);
                let found = rows.column(at).slice(row, 1);
                // A NULL of a dictionary may be one of its keys or of its values.
                let shown = |array: &ArrayRef| array_value_to_string(array, 0).expect("a value");
                let same = found.as_ref() == asked.as_ref() || shown(&found) == shown(&asked);
                assert!(same, "row {row} of {field}: {found:?}, not {asked:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// Rows that are picked from any batches of any schema come back, in as many payloads as they
    /// need.
    #[test]
    fn rows_that_are_picked_come_back(seed in any::<u64>()) {
        let case = Case::of(seed);
        let (picks, decoder) = (case.picks(), Decoder::new(&case.schema));
        let (cutter, room) = (Cutter::default(), [200, 2_000, 60_000][seed as usize % 3]);
        let mut done = 0;
        while done < picks.rows() {
            let layout = cutter.cut(&picks, done, room).expect("a layout");
            prop_assert!(layout.len() <= room || layout.rows() == 1);
            // Bytes that were in a slot before show through nowhere.
            let mut slot = vec![0xee; layout.len()];
            layout.write_to(&mut slot);
            prop_assert_eq!(&slot[..], &layout.payload()[..]);
            let (rows, extra) = decoder.decode(slot.into()).expect("rows");
            prop_assert!(extra.is_empty());
            case.check(done, &rows);
            done += layout.rows();
        }
        if let Some(rows) = picks.batch().expect("a batch") {
            case.check(0, &rows);
        }
    }

    /// A payload in which bits were changed is refused, or its arrays are sound.
    #[test]
    fn damaged_payloads_are_refused_or_sound(
        seed in any::<u64>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let case = Case::of(seed);
        let mut payload = whole(&case.picks()).to_vec();
        for (at, bits) in damage {
            let at = at.index(payload.len());
            payload[at] ^= bits;
        }
        if let Some(cut) = cut {
            payload.truncate(cut.index(payload.len()));
        }
        if let Ok((rows, _)) = Decoder::new(&case.schema).decode(payload.into()) {
            for column in rows.columns() {
                column.to_data().validate_full().expect("a sound array");
            }
        }
    }
}

fn whole(picks: &Picks) -> Bytes {
    RowsLayout::of(picks, 0..picks.rows(), &[]).expect("a layout").payload()
}

fn numbers(rows: i64) -> RecordBatch {
    let texts: StringArray = (0..rows).map(|row| Some(format!("row {row}"))).collect();
    let columns: [(&str, ArrayRef); 2] =
        [("number", Arc::new(Int64Array::from_iter_values(0..rows))), ("text", Arc::new(texts))];
    RecordBatch::try_from_iter(columns).expect("a batch")
}

#[test]
fn rows_without_columns_come_back() {
    let options = RecordBatchOptions::new().with_row_count(Some(5));
    let schema = Arc::new(Schema::empty());
    let batch = RecordBatch::try_new_with_options(schema.clone(), vec![], &options).expect("rows");
    let rows = Decoder::new(&schema).decode(whole(&Picks::of(batch))).expect("rows").0;
    assert_eq!(rows.num_rows(), 5);
}

#[test]
fn the_extra_comes_back_beside_the_rows() {
    let picks = Picks::of(numbers(3));
    for extra in [&b""[..], b"e", b"an extra of some length"] {
        let payload = RowsLayout::of(&picks, 0..3, extra).expect("a layout").payload();
        let (rows, found) = Decoder::new(&numbers(0).schema()).decode(payload).expect("rows");
        assert_eq!((rows, &found[..]), (numbers(3), extra));
    }
}

#[test]
fn arrays_lie_in_the_payload_wherever_it_begins() {
    let picks = Picks::of(numbers(100));
    let payload = whole(&picks);
    let decoder = Decoder::new(&numbers(0).schema());
    for shift in 0..16 {
        let memory: Bytes = [&vec![0; shift][..], &payload].concat().into();
        let payload = memory.slice(shift..);
        let rows = decoder.decode(payload.clone()).expect("rows").0;
        assert_eq!(rows, numbers(100));
        let values = rows.column(0).as_primitive::<Int64Type>().values().inner().as_ptr();
        let lies_there = payload.as_ptr_range().contains(&values);
        // Values that are not aligned for their type are copied.
        assert_eq!(lies_there, (payload.as_ptr() as usize).is_multiple_of(8), "shifted by {shift}");
    }
}

#[test]
fn payloads_are_filled() {
    let picks = Picks::of(numbers(100_000));
    for room in [4 << 10, 64 << 10] {
        let (cutter, mut done, mut lengths) = (Cutter::default(), 0, vec![]);
        while done < picks.rows() {
            let layout = cutter.cut(&picks, done, room).expect("a layout");
            lengths.push(layout.len());
            done += layout.rows();
        }
        lengths.pop();
        let least = lengths.iter().min().expect("several payloads");
        assert!(*least > room * 3 / 4, "{least} of {room}");
    }
}

#[test]
fn what_is_stated_is_not_believed() {
    let field = |of| Schema::new(vec![Field::new("0", of, true)]);
    let refused = |of: DataType, payload: &[u8]| {
        let decoder = Decoder::new(&Arc::new(field(of)));
        decoder.decode(Bytes::copy_from_slice(payload)).expect_err("a refusal")
    };
    let words =
        |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
    // Rows, bytes of the extra, then the words of the column.
    let many = refused(DataType::Null, &words(&[1 << 29, 0, 0]));
    assert!(many.contains("it states 536870912 rows"), "{many}");
    let lists = DataType::List(Arc::new(Field::new("item", DataType::Null, true)));
    let elements = [words(&[1, 0, 0, 1 << 29, 0, 0, 0, 0]), vec![0; 8]].concat();
    assert!(refused(lists, &elements).contains("it states 536870912 rows"));
    assert!(refused(DataType::Int64, &words(&[1 << 28, 0, 0])).contains("outside of its payload"));
    assert!(refused(DataType::Int64, &words(&[1, 9, 0])).contains("the extra is longer"));
    assert!(refused(DataType::Int64, &words(&[1, 0])).contains("its words are cut off"));
    let nulls = refused(DataType::Null, &words(&[1, 0, 1]));
    assert!(nulls.contains("does not say which"), "{nulls}");
    let nulls = refused(DataType::Boolean, &words(&[1, 0, 1 << 31 | 1, 0, 1, 0, 0, 0, 1]));
    assert!(nulls.contains("states 1 NULLs and has 0"), "{nulls}");
    let behind = refused(DataType::Null, &words(&[1, 0, 0, 0]));
    assert!(behind.contains("4 bytes behind"), "{behind}");
    let offsets = refused(DataType::Utf8, &words(&[1, 0, 0, 2, 1, 2, 0, 0, 0]));
    assert!(offsets.contains("offsets"), "{offsets}");
}
