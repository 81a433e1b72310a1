//! Memory of rows: how much they take, and rows in memory of their own.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Capacities, MutableArrayData};
use arrow::datatypes::DataType;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};

/// So many bytes of an array are never too many to be held in vain.
const SMALL_BYTES: usize = 1 << 12;

/// Bytes of a batch's rows, wherever their arrays lie.
pub(crate) fn bytes_of(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(bytes_of_array).sum()
}

/// Bytes of an array's rows, wherever they lie.
pub(crate) fn bytes_of_array(array: &ArrayRef) -> usize {
    // Arrow counts of views what does not lie elsewhere, and of lists all of their values.
    if let Some(list) = array.as_list_opt::<i32>() {
        let (offsets, values) = (list.offsets(), list.values());
        let (first, end) = (offsets[0] as usize, offsets[list.len()] as usize);
        return size_of_val(&offsets[..]) + bytes_of_array(&values.slice(first, end - first));
    }
    let elsewhere = match array.data_type() {
        DataType::Utf8View => array.as_string_view().total_buffer_bytes_used(),
        DataType::BinaryView => array.as_binary_view().total_buffer_bytes_used(),
        _ => 0,
    };
    let bytes = array.to_data().get_slice_memory_size();
    bytes.map_or_else(|_| array.get_array_memory_size(), |bytes| bytes + elsewhere)
}

/// The batch, in memory of its own if it is a small part of larger arrays: who keeps it would hold
/// these.
pub(crate) fn compact(batch: RecordBatch) -> RecordBatch {
    if batch.get_array_memory_size() > 2 * (bytes_of(&batch) + SMALL_BYTES) {
        detach(&batch)
    } else {
        batch
    }
}

/// The rows of a batch in pieces of about `bytes_max` bytes at most, or of one row, each in memory
/// of its own where it is a small part of larger arrays: a batch is written with all of the texts
/// that its views point into.
pub fn pieces(batch: &RecordBatch, bytes_max: usize) -> impl Iterator<Item = RecordBatch> {
    let rows = batch.num_rows();
    let step = match bytes_of(batch) {
        bytes if bytes <= bytes_max => rows.max(1),
        bytes => (rows * bytes_max / bytes).max(1),
    };
    (0..rows).step_by(step).map(move |from| compact(batch.slice(from, step.min(rows - from))))
}

/// A copy of the batch in memory of its own, for who keeps rows beyond the life of a slot.
pub fn detach(batch: &RecordBatch) -> RecordBatch {
    #[cfg(test)]
    super::passes::count_detached(bytes_of(batch));
    let columns = batch.columns().iter().map(|column| detach_array(column)).collect();
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(batch.schema(), columns, &options)
        .unwrap_or_else(|_| batch.clone())
}

fn detach_array(array: &ArrayRef) -> ArrayRef {
    if let Some(own) = own_view(array) {
        return own;
    }
    let data = array.to_data();
    let texts = |offsets: &[i32]| {
        let ends = offsets.first().zip(offsets.last());
        Capacities::Binary(data.len(), ends.map(|(first, end)| (end - first) as usize))
    };
    // Memory that grows while rows are copied is copied itself.
    let room = match array.data_type() {
        DataType::Utf8 => texts(array.as_string::<i32>().value_offsets()),
        DataType::Binary => texts(array.as_binary::<i32>().value_offsets()),
        _ => Capacities::Array(data.len()),
    };
    let mut copy = MutableArrayData::with_capacities(vec![&data], false, room);
    match copy.try_extend(0, 0, data.len()) {
        Ok(()) => arrow::array::make_array(copy.freeze()),
        Err(_) => array.clone(),
    }
}

/// A batch whose rows were taken from another one: views still point into that one's memory, and do
/// not any more then.
pub(crate) fn own_views(batch: RecordBatch) -> RecordBatch {
    let is_view = |t: &DataType| matches!(t, DataType::Utf8View | DataType::BinaryView);
    if !batch.columns().iter().any(|column| is_view(column.data_type())) {
        return batch;
    }
    let own = |column: &ArrayRef| own_view(column).unwrap_or_else(|| column.clone());
    let columns = batch.columns().iter().map(own).collect();
    RecordBatch::try_new(batch.schema(), columns).unwrap_or(batch)
}

/// The copy of a view array with what it points at.
pub(super) fn own_view(array: &ArrayRef) -> Option<ArrayRef> {
    match array.data_type() {
        DataType::Utf8View => Some(Arc::new(array.as_string_view().gc())),
        DataType::BinaryView => Some(Arc::new(array.as_binary_view().gc())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{
        BooleanArray, DictionaryArray, Float64Array, Int64Array, ListArray, StringArray,
        StringViewArray, StructArray,
    };
    use arrow::datatypes::{Field, Int32Type, Int64Type};

    use super::*;

    fn everything(rows: i64) -> RecordBatch {
        let text = |i: i64| (i % 3 != 0).then(|| format!("text number {i} of some length"));
        let strings: StringArray = (0..rows).map(text).collect();
        let views: StringViewArray = (0..rows).map(text).collect();
        let words: Vec<_> = (0..rows).map(|i| ["view", "click"][i as usize % 2]).collect();
        let words: DictionaryArray<Int32Type> = words.into_iter().collect();
        let list = ListArray::from_iter_primitive::<Int64Type, _, _>(
            (0..rows).map(|i| Some((0..i % 4).map(Some).collect::<Vec<_>>())),
        );
        let inner = Arc::new(Int64Array::from_iter_values(0..rows)) as ArrayRef;
        let field = Arc::new(Field::new("inner", DataType::Int64, true));
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("int", Arc::new((0..rows).map(|i| (i % 5 != 0).then_some(i)).collect::<Int64Array>())),
            ("float", Arc::new(Float64Array::from_iter_values((0..rows).map(|i| i as f64 / 3.0)))),
            ("bool", Arc::new((0..rows).map(|i| Some(i % 2 == 0)).collect::<BooleanArray>())),
            ("string", Arc::new(strings)),
            ("view", Arc::new(views)),
            ("word", Arc::new(words)),
            ("list", Arc::new(list)),
            ("struct", Arc::new(StructArray::from(vec![(field, inner)]))),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true)))
            .unwrap()
    }

    #[test]
    fn detached_rows_are_equal_and_elsewhere() {
        let batch = everything(20).slice(3, 10);
        let copy = detach(&batch);
        assert_eq!(copy, batch);
        for (of_copy, of_batch) in copy.columns().iter().zip(batch.columns()) {
            let places = |of: &ArrayRef| -> Vec<*const u8> {
                of.to_data().buffers().iter().map(|buffer| buffer.as_ptr()).collect()
            };
            let places = [places(of_copy), places(of_batch)];
            assert!(places[0].iter().all(|place| !places[1].contains(place)));
        }
    }

    #[test]
    fn a_small_part_is_copied_and_a_large_one_is_not() {
        let batch = everything(10_000);
        let bytes = |batch: &RecordBatch| batch.get_array_memory_size();
        let large = batch.slice(1_000, 8_000);
        let kept = compact(large.clone());
        assert_eq!((&kept, bytes(&kept)), (&large, bytes(&batch)));
        let small = batch.slice(1_000, 80);
        let copy = compact(small.clone());
        assert_eq!(copy, small);
        assert!(bytes(&copy) < bytes(&batch) / 50, "{} of {}", bytes(&copy), bytes(&batch));
        // Rows count as much as a copy of them takes, but for room to grow.
        for part in [large, small] {
            let (counted, taken) = (bytes_of(&part), bytes(&detach(&part)));
            assert!((taken / 3..taken * 3 / 2).contains(&counted), "{counted} counted of {taken}");
        }
    }

    #[test]
    fn rows_that_stay_hold_no_memory_of_a_slot() {
        let batch = everything(20);
        let held = |kept: &RecordBatch| {
            let pointers = |batch: &RecordBatch| -> Vec<*const u8> {
                let buffers = |column: &ArrayRef| column.to_data().buffers().to_vec();
                batch.columns().iter().flat_map(buffers).map(|buffer| buffer.as_ptr()).collect()
            };
            let (own, others) = (pointers(kept), pointers(&batch));
            own.iter().any(|pointer| others.contains(pointer))
        };
        assert!(!held(&detach(&batch)));
        let rows = arrow::array::UInt32Array::from_iter_values(0..20);
        let taken = arrow::compute::take_record_batch(&batch, &rows).unwrap();
        assert!(held(&taken), "views are taken without what they point at");
        let own = own_views(taken);
        assert!(!held(&own));
        assert_eq!(own, batch);
    }
}
