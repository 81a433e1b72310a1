//! Keys of groups that a small table has for the words of rows: what a join with such a table does
//! for who groups by a column of it.

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;

use crate::index::array::Span;
use crate::kernel::FAR_BYTES;
use crate::{StateError, words};

/// For each word at most one key, both of them numbers that lie close together.
#[derive(Debug)]
pub struct KeyMap {
    /// The least word that has a key.
    pub(crate) first: u64,
    /// By the distance of a word from that: of its key the distance from `least`, plus one; 0 where
    /// there is none. The last stands for all words behind the greatest.
    pub(crate) keys: Vec<u32>,
    /// The least key.
    least: u64,
    /// The greatest of `keys`.
    pub(crate) reach: u32,
}

impl KeyMap {
    /// The map of a table that has these words, and beside each its key. A word that is NULL is
    /// nobody's. `None` where a word comes twice, a key is NULL, or a column is not of numbers
    /// without fractions that lie so close together that a cache holds all.
    ///
    /// # Errors
    /// None, as long as both columns have one length.
    pub fn of(words: &ArrayRef, keys: &ArrayRef) -> Result<Option<Self>, StateError> {
        crate::error::same("keys beside words", words.len(), keys.len())?;
        if !Self::suits(words.data_type(), keys.data_type()) || keys.null_count() > 0 {
            return Ok(None);
        }
        let nulls = words.nulls().filter(|nulls| nulls.null_count() > 0);
        let (mut of_words, mut of_keys) = (vec![], vec![]);
        let words = words::words(words, &mut of_words)?;
        let keys = words::words(keys, &mut of_keys)?;
        let spans = Span::of(words, nulls).zip(Span::of(keys, None));
        let most = (FAR_BYTES / size_of::<u32>()) as u64;
        let Some((from, to)) = spans.filter(|(from, to)| from.len().max(to.len()) < most) else {
            return Ok(None);
        };
        let (first, least) = (from.min as u64, to.min as u64);
        let mut map = vec![0; from.len() as usize + 1];
        for (row, (word, key)) in words.iter().zip(keys).enumerate() {
            if nulls.is_some_and(|nulls| nulls.is_null(row)) {
                continue;
            }
            let entry = &mut map[word.wrapping_sub(first) as usize];
            if *entry != 0 {
                return Ok(None);
            }
            *entry = key.wrapping_sub(least) as u32 + 1;
        }
        let reach = map.iter().max().copied().unwrap_or(0);
        Ok(Some(Self { first, keys: map, least, reach }))
    }

    /// Whether there may be a map of columns of these types.
    pub fn suits(word: &DataType, key: &DataType) -> bool {
        [word, key].into_iter().all(words::is_integer_like)
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.keys.len() * size_of::<u32>()
    }

    /// The distance of the least key from a base, if all lie less than `limit` above that.
    pub(crate) fn shift(&self, base: u64, limit: u64) -> Option<u32> {
        let shift = self.least.wrapping_sub(base);
        let end = shift.checked_add(self.reach.into())?;
        u32::try_from(shift).ok().filter(|_| end <= limit)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Float64Array, Int32Array, Int64Array, StringArray, UInt64Array};

    use super::*;

    fn map(words: &[Option<i64>], keys: &[i32]) -> Option<KeyMap> {
        let words: ArrayRef = Arc::new(Int64Array::from(words.to_vec()));
        let keys: ArrayRef = Arc::new(Int32Array::from(keys.to_vec()));
        KeyMap::of(&words, &keys).expect("columns of one length")
    }

    fn get(map: &KeyMap, word: u64) -> u32 {
        let distance = word.wrapping_sub(map.first).min(map.keys.len() as u64 - 1);
        map.keys[distance as usize]
    }

    #[test]
    fn words_have_the_keys_beside_them() {
        let map = map(&[Some(7), None, Some(-3), Some(4)], &[-20, 9, 30, -20]).expect("a map");
        let get = |word: i64| get(&map, word as u64);
        for (word, expected) in [(7, 1), (-3, 51), (4, 1), (0, 0), (8, 0), (-4, 0), (i64::MIN, 0)] {
            assert_eq!(get(word), expected, "{word}");
        }
        assert_eq!(map.reach, 51);
        let base = |base: i64| base as u64;
        assert_eq!(map.shift(base(-20), 64), Some(0));
        assert_eq!(map.shift(base(-32), 64), Some(12));
        assert_eq!(map.shift(base(-34), 64), None);
        assert_eq!(map.shift(base(-19), 64), None);
    }

    #[test]
    fn the_ends_of_the_numbers_are_words_as_others() {
        let words: ArrayRef = Arc::new(UInt64Array::from(vec![u64::MAX, 0, 1]));
        let keys: ArrayRef = Arc::new(UInt64Array::from(vec![u64::MAX, u64::MAX - 1, 5]));
        // Words are compared as signed numbers: these keys are -1, -2 and 5.
        let map = KeyMap::of(&words, &keys).unwrap().expect("a map");
        let got = [u64::MAX - 1, u64::MAX, 0, 1, 2].map(|word| get(&map, word));
        assert_eq!(got, [0, 2, 1, 8, 0]);
    }

    #[test]
    fn other_tables_have_no_map() {
        assert!(map(&[], &[]).is_none());
        assert!(map(&[None, None], &[1, 2]).is_none());
        assert!(map(&[Some(1), Some(1)], &[1, 1]).is_none());
        assert!(map(&[Some(0), Some(1 << 40)], &[1, 2]).is_none());
        assert!(map(&[Some(i64::MIN), Some(i64::MAX)], &[1, 2]).is_none());
        assert!(map(&[Some(0), Some(1)], &[i32::MIN, i32::MAX]).is_none());
        let words: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["a", "b"]));
        let floats: ArrayRef = Arc::new(Float64Array::from(vec![1.0, 2.0]));
        let null: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None]));
        for other in [&texts, &floats, &null] {
            assert!(KeyMap::of(&words, other).unwrap().is_none());
        }
        assert!(KeyMap::of(&texts, &words).unwrap().is_none());
        assert!(KeyMap::of(&words, &words.slice(0, 1)).is_err());
    }
}
