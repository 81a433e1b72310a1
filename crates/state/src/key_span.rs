//! Keys that lie close together, found by their distance from the least of them: who has all rows
//! in hand before the first is looked for, as joins have, needs no hash table for such keys.

use std::borrow::Cow;

use arrow::array::ArrayRef;
use arrow::compute::cast;
use arrow::datatypes::DataType;

use crate::index::UNKNOWN;
use crate::index::array::Span;
use crate::key_table::without_dictionary;
use crate::{StateError, vector, words};

/// The ids of keys of one number each: distances from the least, with holes where no key is. A
/// NULL is equal to nothing.
///
/// A dictionary is as good as its values.
#[derive(Debug)]
pub struct KeySpan {
    key: DataType,
    /// The word of distance 0.
    least: u64,
    len: u32,
}

impl KeySpan {
    /// The span of the values of these columns, if they are numbers without fractions of at most 64
    /// bits and it is not longer than `most`.
    ///
    /// # Errors
    /// [`StateError::Type`] if columns are of several types.
    pub fn of(columns: &[&ArrayRef], most: usize) -> Result<Option<Self>, StateError> {
        let Some(first) = columns.first() else { return Ok(None) };
        let key = without_dictionary(first.data_type());
        if !words::is_integer_like(&key) {
            return Ok(None);
        }
        let (mut span, mut scratch) = (None, vec![]);
        for column in columns {
            let column = plain(column, &key)?;
            let words = words::words(&column, &mut scratch)?;
            let nulls = column.nulls().filter(|nulls| nulls.null_count() > 0);
            span = Span::of(words, nulls).map(|own| own.union(span)).or(span);
        }
        let most = most.min(UNKNOWN as usize) as u64;
        let span = span.filter(|span: &Span| span.len() <= most);
        Ok(span.map(|span| Self { key, least: span.min as u64, len: span.len() as u32 }))
    }

    /// Replaces `ids` by the id of each row of a column, [`KeyTable::UNKNOWN`] where its key lies
    /// outside or is NULL.
    ///
    /// [`KeyTable::UNKNOWN`]: crate::KeyTable::UNKNOWN
    ///
    /// # Errors
    /// [`StateError::Type`] if the column is of another type.
    pub fn find(&self, column: &ArrayRef, ids: &mut Vec<u32>) -> Result<(), StateError> {
        let column = plain(column, &self.key)?;
        ids.clear();
        ids.resize(column.len(), 0);
        let mut scratch = vec![];
        vector::near(words::words(&column, &mut scratch)?, self.least, self.len, ids);
        if let Some(nulls) = column.nulls().filter(|nulls| nulls.null_count() > 0) {
            ids.iter_mut()
                .zip(nulls)
                .for_each(|(id, valid)| *id |= if valid { 0 } else { UNKNOWN });
        }
        Ok(())
    }

    /// Ids are below this.
    pub fn end(&self) -> usize {
        self.len as usize
    }
}

/// The column without dictionaries, if it is of that type then.
fn plain<'a>(column: &'a ArrayRef, key: &DataType) -> Result<Cow<'a, ArrayRef>, StateError> {
    match column.data_type() {
        own if own == key => Ok(Cow::Borrowed(column)),
        own if without_dictionary(own) == *key => Ok(Cow::Owned(cast(column, key)?)),
        own => {
            let (expected, got) = (key.clone(), own.clone());
            Err(StateError::Type { what: "a key", expected, got })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Float64Array, Int64Array, StringArray};
    use proptest::prelude::*;

    use super::*;

    fn column(values: &[Option<i64>], key: &DataType) -> ArrayRef {
        let numbers: ArrayRef = Arc::new(values.iter().copied().collect::<Int64Array>());
        cast(&numbers, key).expect("numbers of that type")
    }

    fn some_keys() -> impl Strategy<Value = Vec<Option<i64>>> {
        prop::collection::vec(prop::option::weighted(0.9, -100..100i64), 0..70)
    }

    proptest! {
        #[test]
        fn equal_keys_have_equal_ids(
            sides in prop::collection::vec(some_keys(), 1..4),
            probed in some_keys(),
        ) {
            let packed = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Int16));
            for key in [DataType::Int64, DataType::Int16, DataType::Date32, packed] {
                let columns: Vec<ArrayRef> = sides.iter().map(|side| column(side, &key)).collect();
                let columns: Vec<&ArrayRef> = columns.iter().collect();
                let all = || sides.iter().flatten().flatten();
                let Some((&least, &most)) = all().min().zip(all().max()) else {
                    prop_assert!(KeySpan::of(&columns, usize::MAX).unwrap().is_none());
                    continue;
                };
                let len = (most - least + 1) as usize;
                prop_assert!(KeySpan::of(&columns, len - 1).unwrap().is_none());
                let span = KeySpan::of(&columns, len).unwrap().expect("a span");
                prop_assert_eq!(span.end(), len);
                let mut ids = vec![7];
                for values in sides.iter().chain([&probed]) {
                    span.find(&column(values, &key), &mut ids).unwrap();
                    let expected = values.iter().map(|value| match *value {
                        Some(value) if (least..=most).contains(&value) => (value - least) as u32,
                        _ => UNKNOWN,
                    });
                    prop_assert_eq!(&ids, &expected.collect::<Vec<_>>());
                }
            }
        }
    }

    #[test]
    fn keys_at_both_ends_of_the_numbers_have_no_span() {
        let ends = column(&[Some(i64::MIN), Some(i64::MAX)], &DataType::Int64);
        assert!(KeySpan::of(&[&ends], usize::MAX).unwrap().is_none());
        let last = column(&[Some(i64::MAX - 1), Some(i64::MAX)], &DataType::Int64);
        let span = KeySpan::of(&[&last], 2).unwrap().expect("a span");
        let mut ids = vec![];
        span.find(&ends, &mut ids).unwrap();
        assert_eq!(ids, [UNKNOWN, 1]);
    }

    #[test]
    fn keys_of_other_types_are_refused() {
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["a"]));
        let floats: ArrayRef = Arc::new(Float64Array::from(vec![1.0]));
        for refused in [&texts, &floats] {
            assert!(KeySpan::of(&[refused], usize::MAX).unwrap().is_none());
        }
        let numbers = column(&[Some(1)], &DataType::Int64);
        assert!(matches!(KeySpan::of(&[&numbers, &texts], 9), Err(StateError::Type { .. })));
        let span = KeySpan::of(&[&numbers], 9).unwrap().expect("a span");
        assert!(matches!(span.find(&floats, &mut vec![]), Err(StateError::Type { .. })));
    }
}
