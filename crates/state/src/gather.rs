//! Values gathered from several arrays.
//!
//! What is put together of whole texts is text: it is not looked through again, which is all that
//! is `unsafe` here.
#![allow(unsafe_code)]

use std::sync::Arc;

use arrow::array::types::{ArrowDictionaryKeyType, BinaryType, ByteArrayType, Utf8Type};
use arrow::array::{
    Array, ArrayRef, AsArray, DictionaryArray, GenericByteArray, downcast_dictionary_array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::compute::interleave;
use arrow::datatypes::DataType;
use arrow::error::ArrowError;

use crate::kernel::prefetch;

/// Bytes of a value that are copied at once, also where it has fewer.
const SHORT: usize = 32;

/// How many values ahead memory is asked for.
const AHEAD: usize = 16;

/// Bytes of a cache line.
const LINE: usize = 64;

/// The values at these places, each an array and a row of it, of arrays of one type.
///
/// # Errors
/// When together they are larger than an Arrow array may be.
///
/// # Panics
/// When there is no such place.
pub fn gather(parts: &[&dyn Array], places: &[(usize, usize)]) -> Result<ArrayRef, ArrowError> {
    let Some(&first) = parts.first() else { return interleave(parts, places) };
    downcast_dictionary_array! {
        first => dictionary(first, parts, places),
        DataType::Utf8 => texts::<Utf8Type>(parts, places),
        DataType::Binary => texts::<BinaryType>(parts, places),
        _ => interleave(parts, places),
    }
}

/// Values of a dictionary: where all parts have the same one, only their keys.
fn dictionary<K: ArrowDictionaryKeyType>(
    first: &DictionaryArray<K>,
    parts: &[&dyn Array],
    places: &[(usize, usize)],
) -> Result<ArrayRef, ArrowError> {
    let values = first.values();
    let data = values.to_data();
    let mut keys: Vec<&dyn Array> = Vec::with_capacity(parts.len());
    for part in parts {
        match part.as_dictionary_opt::<K>() {
            Some(part) if part.values().to_data().ptr_eq(&data) => keys.push(part.keys()),
            _ => return interleave(parts, places),
        }
    }
    let keys = interleave(&keys, places)?.as_primitive::<K>().clone();
    Ok(Arc::new(DictionaryArray::try_new(keys, values.clone())?))
}

/// Values of any lengths: many are short, and to call a function for each copy takes longer than to
/// copy more than there is.
fn texts<T: ByteArrayType<Offset = i32>>(
    parts: &[&dyn Array],
    places: &[(usize, usize)],
) -> Result<ArrayRef, ArrowError> {
    let parts: Vec<&GenericByteArray<T>> = parts.iter().map(|part| part.as_bytes::<T>()).collect();
    let slices: Vec<(&[i32], &[u8])> =
        parts.iter().map(|part| (part.value_offsets(), part.value_data())).collect();
    let (mut ends, mut starts) =
        (Vec::with_capacity(places.len() + 1), Vec::with_capacity(places.len()));
    ends.push(0);
    let mut end = 0;
    for (at, &(part, row)) in places.iter().enumerate() {
        if let Some(&(part, row)) = places.get(at + AHEAD) {
            prefetch(slices[part].0, row);
        }
        let (offsets, _) = slices[part];
        let (from, to) = (offsets[row], offsets[row + 1]);
        end += (to - from) as usize;
        starts.push(from as usize);
        ends.push(end as i32);
    }
    if i32::try_from(end).is_err() {
        return Err(ArrowError::OffsetOverflowError(end));
    }
    let mut values = Vec::with_capacity(end + SHORT);
    for (at, (&(part, _), &start)) in places.iter().zip(&starts).enumerate() {
        if let (Some(&(part, _)), Some(&start)) = (places.get(at + AHEAD), starts.get(at + AHEAD)) {
            prefetch(slices[part].1, start);
            prefetch(slices[part].1, start + LINE);
        }
        append(&mut values, slices[part].1, start, ends[at + 1] as usize);
    }
    let has_nulls = parts.iter().any(|part| part.null_count() > 0);
    let nulls = has_nulls.then(|| {
        places.iter().map(|&(part, row)| parts[part].is_valid(row)).collect::<NullBuffer>()
    });
    let offsets = OffsetBuffer::new(ScalarBuffer::from(ends));
    // SAFETY: the values are whole values of arrays of this type, one behind the other, and each
    // ends where the next begins.
    let array = unsafe { GenericByteArray::<T>::new_unchecked(offsets, values.into(), nulls) };
    Ok(Arc::new(array))
}

/// Appends what lies at `start`, until there are `end` bytes.
#[inline(always)]
fn append(values: &mut Vec<u8>, from: &[u8], start: usize, end: usize) {
    let bytes = end - values.len();
    match from[start..].first_chunk::<SHORT>().filter(|_| bytes <= SHORT) {
        Some(short) => {
            values.extend_from_slice(short);
            values.truncate(end);
        }
        None => values.extend_from_slice(&from[start..start + bytes]),
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{BinaryArray, Int64Array, StringArray};
    use arrow::datatypes::{Int8Type, Int32Type};
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;

    /// Values of every length around those where the way of copying changes.
    fn value() -> impl Strategy<Value = Option<String>> {
        prop_oneof![
            1 => Just(None),
            8 => prop::collection::vec(any::<char>(), 0..80)
                .prop_map(|chars| Some(chars.into_iter().collect())),
        ]
    }

    fn parts() -> impl Strategy<Value = Vec<Vec<Option<String>>>> {
        prop::collection::vec(prop::collection::vec(value(), 1..20), 1..5)
    }

    /// Checks that what is gathered is what Arrow gathers.
    fn check(parts: &[ArrayRef], places: &[(usize, usize)]) {
        let parts: Vec<&dyn Array> = parts.iter().map(AsRef::as_ref).collect();
        let gathered = gather(&parts, places).expect("gathered");
        gathered.to_data().validate_full().expect("a valid array");
        assert_eq!(&gathered, &interleave(&parts, places).expect("interleaved"));
    }

    proptest! {
        #[test]
        fn values_are_those_at_the_places(
            parts in parts(),
            places in prop::collection::vec((any::<Index>(), any::<Index>()), 0..200),
            skipped in 0usize..2,
        ) {
            let places: Vec<(usize, usize)> = places.iter().map(|(part, row)| {
                let part = part.index(parts.len());
                (part, row.index(parts[part].len()))
            }).collect();
            let of = |array: &dyn Fn(&[Option<String>]) -> ArrayRef| -> Vec<ArrayRef> {
                // Slices, whose first offset is not zero.
                let array = |part: &Vec<Option<String>>| {
                    let padded: Vec<_> = part[..skipped].iter().chain(part).cloned().collect();
                    array(&padded).slice(skipped, part.len())
                };
                parts.iter().map(array).collect()
            };
            check(&of(&|part| Arc::new(StringArray::from(part.to_vec()))), &places);
            check(&of(&|part| {
                let bytes = part.iter().map(|text| text.as_ref().map(|text| text.as_bytes()));
                Arc::new(BinaryArray::from_iter(bytes))
            }), &places);
            check(&of(&|part| {
                let lengths = part.iter().map(|text| text.as_ref().map(|text| text.len() as i64));
                Arc::new(Int64Array::from_iter(lengths))
            }), &places);
            // Each part has a dictionary of its own, then all have the same one.
            check(&of(&|part| {
                let texts = part.iter().map(|text| text.as_deref());
                Arc::new(texts.collect::<DictionaryArray<Int32Type>>())
            }), &places);
            let values: ArrayRef = Arc::new(StringArray::from(vec!["a", "b", "c"]));
            check(&of(&|part| {
                let keys = part.iter().map(|text| text.as_ref().map(|text| (text.len() % 3) as i8));
                Arc::new(DictionaryArray::<Int8Type>::new(keys.collect(), values.clone()))
            }), &places);
        }
    }
}
