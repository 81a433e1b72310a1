//! Values gathered from several arrays.
//!
//! What is put together of whole texts is text: it is not looked through again, which is all that
//! is `unsafe` here.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ptr;
use std::sync::Arc;

use arrow::array::types::{
    ArrowDictionaryKeyType, ArrowPrimitiveType, BinaryType, ByteArrayType, Utf8Type,
};
use arrow::array::{
    Array, ArrayRef, AsArray, DictionaryArray, GenericByteArray, PrimitiveArray,
    downcast_dictionary_array, downcast_primitive_array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::compute::interleave;
use arrow::datatypes::{ArrowNativeType, DataType};
use arrow::error::ArrowError;
use multiversion::multiversion;

use crate::kernel::prefetch_at;

/// Bytes of a value that are copied at once, also where it has fewer: a cache line.
const STRIDE: usize = 64;

/// How many values ahead memory is asked for.
const AHEAD: usize = 16;

/// The values at these places, each an array and a row of it, of arrays of one type.
///
/// # Errors
/// When together they are larger than an Arrow array may be.
///
/// # Panics
/// When there is no such place.
pub fn gather(parts: &[&dyn Array], places: &[(usize, usize)]) -> Result<ArrayRef, ArrowError> {
    let Some(&first) = parts.first() else { return interleave(parts, places) };
    downcast_primitive_array! {
        first => Ok(Arc::new(numbers(first, parts, places))),
        DataType::Utf8 => texts::<Utf8Type>(parts, places),
        DataType::Binary => texts::<BinaryType>(parts, places),
        DataType::Dictionary(..) => downcast_dictionary_array! {
            first => dictionary(first, parts, places),
            _ => interleave(parts, places),
        },
        _ => interleave(parts, places),
    }
}

fn numbers<T: ArrowPrimitiveType>(
    first: &PrimitiveArray<T>,
    parts: &[&dyn Array],
    places: &[(usize, usize)],
) -> PrimitiveArray<T> {
    let slices: Vec<&[T::Native]> =
        parts.iter().map(|part| &part.as_primitive::<T>().values()[..]).collect();
    let values: Vec<T::Native> = places.iter().map(|&(part, row)| slices[part][row]).collect();
    PrimitiveArray::new(values.into(), nulls(parts, places))
        .with_data_type(first.data_type().clone())
}

/// Values of a dictionary: where all parts have the same one, only their keys.
fn dictionary<K: ArrowDictionaryKeyType>(
    first: &DictionaryArray<K>,
    parts: &[&dyn Array],
    places: &[(usize, usize)],
) -> Result<ArrayRef, ArrowError> {
    let values = first.values();
    let dictionaries: Vec<&DictionaryArray<K>> =
        parts.iter().map(|part| part.as_dictionary::<K>()).collect();
    if dictionaries.iter().all(|part| is_same(part.values(), values)) {
        let keys: Vec<&dyn Array> = dictionaries.iter().map(|part| part.keys() as _).collect();
        let keys = numbers(first.keys(), &keys, places);
        // SAFETY: the keys are those of arrays with these values.
        let array = unsafe { DictionaryArray::new_unchecked(keys, values.clone()) };
        return Ok(Arc::new(array));
    }
    let one = match values.data_type() {
        DataType::Utf8 => one_dictionary(&dictionaries, places, |values| {
            let values = values.as_string::<i32>();
            move |at| values.value(at).as_bytes()
        }),
        DataType::Binary => one_dictionary(&dictionaries, places, |values| {
            let values = values.as_binary::<i32>();
            move |at| values.value(at)
        }),
        _ => Ok(None),
    };
    one?.map_or_else(|| interleave(parts, places), Ok)
}

/// Values of dictionaries that differ, as those that rows of different frames have: each value that
/// is used is once in a new one. `None` if they are more than its keys can name, or if NULL is one.
///
/// Arrow does the same in a time of parts times places.
fn one_dictionary<'a, K: ArrowDictionaryKeyType, V: Fn(usize) -> &'a [u8]>(
    parts: &[&'a DictionaryArray<K>],
    places: &[(usize, usize)],
    values_of: impl Fn(&'a ArrayRef) -> V,
) -> Result<Option<ArrayRef>, ArrowError> {
    let mut known: HashMap<*const dyn Array, usize> = HashMap::new();
    let mut dictionaries: Vec<&ArrayRef> = vec![];
    let of: Vec<usize> = parts
        .iter()
        .map(|part| {
            *known.entry(Arc::as_ptr(part.values())).or_insert_with(|| {
                dictionaries.push(part.values());
                dictionaries.len() - 1
            })
        })
        .collect();
    if dictionaries.iter().any(|values| values.null_count() > 0) {
        return Ok(None);
    }
    let values: Vec<V> = dictionaries.iter().map(|values| values_of(values)).collect();
    // By dictionary and its key: the key of the new one.
    let mut keys_of: Vec<Vec<Option<K::Native>>> =
        dictionaries.iter().map(|values| vec![None; values.len()]).collect();
    let mut all: HashMap<&[u8], K::Native> = HashMap::new();
    let mut used = vec![];
    let mut keys = Vec::with_capacity(places.len());
    for &(part, row) in places {
        let old = parts[part].keys();
        if old.is_null(row) {
            keys.push(K::Native::default());
            continue;
        }
        let (of, at) = (of[part], old.value(row).as_usize());
        let key = match keys_of[of][at] {
            Some(key) => key,
            None => {
                let Some(next) = K::Native::from_usize(used.len()) else { return Ok(None) };
                *keys_of[of][at].insert(*all.entry(values[of](at)).or_insert_with(|| {
                    used.push((of, at));
                    next
                }))
            }
        };
        keys.push(key);
    }
    let dictionaries: Vec<&dyn Array> = dictionaries.iter().map(|values| &***values).collect();
    let values = gather(&dictionaries, &used)?;
    let olds: Vec<&dyn Array> = parts.iter().map(|part| part.keys() as _).collect();
    let keys = PrimitiveArray::<K>::new(keys.into(), nulls(&olds, places));
    // SAFETY: each key is the number of a value when it was found.
    let array = unsafe { DictionaryArray::new_unchecked(keys, values) };
    Ok(Some(Arc::new(array)))
}

/// Whether two arrays lie at the same place.
fn is_same(one: &ArrayRef, other: &ArrayRef) -> bool {
    Arc::ptr_eq(one, other) || one.to_data().ptr_eq(&other.to_data())
}

/// Which of the values are there, if not all are.
fn nulls(parts: &[&dyn Array], places: &[(usize, usize)]) -> Option<NullBuffer> {
    let has_nulls = parts.iter().any(|part| part.null_count() > 0);
    has_nulls.then(|| places.iter().map(|&(part, row)| parts[part].is_valid(row)).collect())
}

/// Where a value of several bytes lies.
struct Value {
    from: *const u8,
    bytes: u32,
    /// Whether it is copied in strides: it has at most two of them, and its array has as many bytes
    /// from there on.
    strides: bool,
}

/// Values of any lengths: many are short, and to call a function for each copy takes longer than to
/// copy more than there is. First is found where each lies, and how long all are together.
fn texts<T: ByteArrayType<Offset = i32>>(
    parts: &[&dyn Array],
    places: &[(usize, usize)],
) -> Result<ArrayRef, ArrowError> {
    let slices: Vec<(&[i32], &[u8])> = parts
        .iter()
        .map(|part| part.as_bytes::<T>())
        .map(|part| (part.value_offsets(), part.value_data()))
        .collect();
    let find = |&(part, row): &(usize, usize)| {
        let (offsets, values): (&[i32], &[u8]) = slices[part];
        assert!(row < offsets.len() - 1);
        // SAFETY: there is one offset more than there are rows.
        let (from, to) = unsafe { (*offsets.get_unchecked(row), *offsets.get_unchecked(row + 1)) };
        let bytes = (to - from) as u32;
        let strides = bytes as usize <= 2 * STRIDE && values.len() - from as usize >= 2 * STRIDE;
        Value { from: values.as_ptr().wrapping_add(from as usize), bytes, strides }
    };
    let found: Vec<Value> = places.iter().map(find).collect();
    let bytes = found.iter().map(|value| value.bytes as usize).sum();
    if i32::try_from(bytes).is_err() {
        return Err(ArrowError::OffsetOverflowError(bytes));
    }
    let (mut values, mut offsets) = (Vec::with_capacity(bytes + STRIDE), vec![0; found.len() + 1]);
    // SAFETY: the values lie in arrays that are still there; there is room for all and a stride,
    // and this many bytes are written.
    let array = unsafe {
        copy(&found, values.as_mut_ptr(), &mut offsets[1..]);
        values.set_len(bytes);
        // They are whole values of arrays of this type, one behind the other, and each ends where
        // the next begins.
        let offsets = OffsetBuffer::new_unchecked(ScalarBuffer::from(offsets));
        GenericByteArray::<T>::new_unchecked(offsets, values.into(), nulls(parts, places))
    };
    Ok(Arc::new(array))
}

/// Copies values to `out`, one behind the other, and where each ends to `ends`.
///
/// # Safety
/// Each value may be read, and two strides where it is copied in strides. There is room for all and
/// a stride.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
unsafe fn copy(values: &[Value], out: *mut u8, ends: &mut [i32]) {
    let mut end = 0;
    for (at, (&Value { from, bytes, strides }, to)) in values.iter().zip(ends).enumerate() {
        if let Some(next) = values.get(at + AHEAD) {
            prefetch_at(next.from);
            prefetch_at(next.from.wrapping_add(STRIDE));
        }
        let bytes = bytes as usize;
        // SAFETY: the caller's. The second stride begins within the value.
        unsafe {
            let out = out.add(end);
            if strides {
                ptr::copy_nonoverlapping(from, out, STRIDE);
                if bytes > STRIDE {
                    ptr::copy_nonoverlapping(from.add(STRIDE), out.add(STRIDE), STRIDE);
                }
            } else {
                ptr::copy_nonoverlapping(from, out, bytes);
            }
        }
        end += bytes;
        *to = end as i32;
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{BinaryArray, Int64Array, StringArray, TimestampMicrosecondArray};
    use arrow::datatypes::{Int8Type, Int16Type, Int32Type};
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
            check(&of(&|part| {
                let lengths = part.iter().map(|text| text.as_ref().map(|text| text.len() as i64));
                let times = TimestampMicrosecondArray::from_iter(lengths);
                Arc::new(times.with_timezone("+02:00"))
            }), &places);
            // Each part has a dictionary of its own, then all have the same one.
            check(&of(&|part| {
                let texts = part.iter().map(|text| text.as_deref());
                Arc::new(texts.collect::<DictionaryArray<Int32Type>>())
            }), &places);
            // NULL may be the value of a key, too.
            check(&of(&|part| {
                let texts: StringArray = part.iter().map(|text| text.as_deref()).collect();
                let keys = (0..part.len() as i16).rev().map(Some);
                Arc::new(DictionaryArray::<Int16Type>::new(keys.collect(), Arc::new(texts)))
            }), &places);
            let values: ArrayRef = Arc::new(StringArray::from(vec!["a", "b", "c"]));
            check(&of(&|part| {
                let keys = part.iter().map(|text| text.as_ref().map(|text| (text.len() % 3) as i8));
                Arc::new(DictionaryArray::<Int8Type>::new(keys.collect(), values.clone()))
            }), &places);
        }
    }

    #[test]
    fn values_of_many_dictionaries_are_once_in_one() {
        let words = |from: usize| -> ArrayRef {
            let words = (from..from + 100).map(|at| format!("word {}", at % 120));
            let words: Vec<String> = words.collect();
            Arc::new(
                words.iter().map(|word| Some(&word[..])).collect::<DictionaryArray<Int16Type>>(),
            )
        };
        let parts: Vec<ArrayRef> = (0..40).map(words).collect();
        let places: Vec<_> = (0..4000).map(|at| (at % 40, at / 40)).collect();
        check(&parts, &places);
        let all: Vec<&dyn Array> = parts.iter().map(AsRef::as_ref).collect();
        let gathered = gather(&all, &places).unwrap();
        assert_eq!(gathered.as_dictionary::<Int16Type>().values().len(), 120);
    }

    #[test]
    fn more_values_than_keys_can_name_are_an_error_as_of_arrow() {
        let words = |from: usize| -> ArrayRef {
            let words: Vec<String> = (from..from + 100).map(|at| format!("word {at}")).collect();
            Arc::new(
                words.iter().map(|word| Some(&word[..])).collect::<DictionaryArray<Int8Type>>(),
            )
        };
        let parts = [words(0), words(100)];
        let parts: Vec<&dyn Array> = parts.iter().map(AsRef::as_ref).collect();
        let places: Vec<_> = (0..200).map(|at| (at / 100, at % 100)).collect();
        let (gathered, interleaved) = (gather(&parts, &places), interleave(&parts, &places));
        assert_eq!(gathered.is_err(), interleaved.is_err());
        if let (Ok(gathered), Ok(interleaved)) = (gathered, interleaved) {
            assert_eq!(&gathered, &interleaved);
        }
    }
}
