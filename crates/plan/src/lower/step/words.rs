//! A predicate over one column of words: asked once per word of the dictionary, not once per row.
//!
//! `event_type = 'view'` over a column with a dictionary of three words is three comparisons of
//! strings; a row costs a look at its key. The answers are kept until a batch has another
//! dictionary. Where the predicate fails on a word, which no row may have, the rows are asked.

use std::sync::{Arc, Mutex};

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, DictionaryArray, PrimitiveArray, RecordBatch,
};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::{DataType, Int8Type, Schema, SchemaRef};
use datafusion::common::DFSchema;
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::Expr;

use state::recycled;
use state::vector::equal;

use super::compiled::Compiled;

/// Keys of a byte: from 0 to 127.
const WORDS_MAX: usize = 128;

/// A predicate over one column with a dictionary of at most 128 words.
pub(super) struct WordPredicate {
    column: usize,
    schema: SchemaRef,
    predicate: Compiled,
    known: Mutex<Option<Cached>>,
}

/// The predicate's answers for the words of a dictionary.
struct Cached {
    /// The dictionary. While it is held, no other has its address.
    words: ArrayRef,
    answers: Answers,
}

#[derive(Clone, Copy)]
struct Answers {
    /// One for each key that passes.
    passes: [u8; WORDS_MAX],
    /// The only key that passes, if it is the only one.
    only: Option<i8>,
    null_passes: bool,
}

impl WordPredicate {
    /// `None` for a predicate of another form.
    pub(super) fn new(input: &Schema, predicate: &Expr) -> DfResult<Option<Self>> {
        let columns = predicate.column_refs();
        let mut columns = columns.iter().filter_map(|column| input.index_of(&column.name).ok());
        let (Some(column), None) = (columns.next(), columns.next()) else { return Ok(None) };
        let field = input.field(column).clone();
        let fits =
            matches!(field.data_type(), DataType::Dictionary(key, _) if **key == DataType::Int8);
        if !fits || predicate.is_volatile() {
            return Ok(None);
        }
        let schema = Schema::new(vec![field.with_nullable(true)]);
        let scope = DFSchema::try_from(schema.clone())?;
        let predicate = Compiled::expression(predicate, &scope)?;
        let (schema, known) = (Arc::new(schema), Mutex::new(None));
        Ok(Some(Self { column, schema, predicate, known }))
    }

    /// The rows that pass; `None` if that has to be asked row by row.
    pub(super) fn mask(&self, batch: &RecordBatch) -> Option<BooleanArray> {
        let mut bits = recycled::take();
        self.bits(batch, &mut bits).then(|| {
            let bits = BooleanBuffer::new(recycled::into_buffer(bits), 0, batch.num_rows());
            BooleanArray::new(bits, None)
        })
    }

    /// Replaces `bits` by one for each row, the lowest first: whether it passes; behind the last
    /// none is set. False if that has to be asked row by row.
    pub(super) fn bits(&self, batch: &RecordBatch, bits: &mut Vec<u64>) -> bool {
        let Some(column) = batch.column(self.column).as_dictionary_opt::<Int8Type>() else {
            return false;
        };
        let Some(answers) = self.answers(column.values()) else { return false };
        let keys = column.keys().values();
        match answers.only {
            Some(only) => equal(keys, only, bits),
            None => pack(keys, |key| answers.passes[key as usize % WORDS_MAX], bits),
        }
        if let Some(nulls) = column.keys().nulls() {
            // A NULL has any key, and bits behind the last row stay as they are.
            let last = u64::MAX >> ((64 - keys.len() % 64) % 64);
            let words = keys.len().div_ceil(64);
            for (at, (bits, valid)) in
                bits.iter_mut().zip(nulls.inner().bit_chunks().iter_padded()).enumerate()
            {
                let rows = if at + 1 == words { last } else { u64::MAX };
                *bits = if answers.null_passes { *bits | (!valid & rows) } else { *bits & valid };
            }
        }
        true
    }

    fn answers(&self, words: &ArrayRef) -> Option<Answers> {
        let mut known = self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(known) = known.as_ref().filter(|known| Arc::ptr_eq(&known.words, words)) {
            return Some(known.answers);
        }
        let answers = self.ask(words)?;
        *known = Some(Cached { words: Arc::clone(words), answers });
        Some(answers)
    }

    /// Asks for every word, and for NULL.
    fn ask(&self, words: &ArrayRef) -> Option<Answers> {
        if words.len() > WORDS_MAX {
            return None;
        }
        let keys = (0..words.len()).map(|key| Some(key as i8)).chain([None]);
        let keys = PrimitiveArray::<Int8Type>::from_iter(keys);
        let each: ArrayRef = Arc::new(DictionaryArray::try_new(keys, Arc::clone(words)).ok()?);
        let each = RecordBatch::try_new(Arc::clone(&self.schema), vec![each]).ok()?;
        let passes = self.predicate.array(&each).ok()?;
        let passes = passes.as_boolean_opt()?;
        let pass = |row: usize| passes.is_valid(row) && passes.value(row);
        let mut answers =
            Answers { passes: [0; WORDS_MAX], only: None, null_passes: pass(words.len()) };
        let mut passing = (0..words.len()).filter(|&word| pass(word));
        if let (Some(only), None) = (passing.next(), passing.next()) {
            answers.only = Some(only as i8);
        }
        (0..words.len()).for_each(|word| answers.passes[word] = u8::from(pass(word)));
        Some(answers)
    }
}

/// Replaces `bits` by one for each key: what `pass` says, which is 0 or 1.
fn pack(keys: &[i8], pass: impl Fn(i8) -> u8, bits: &mut Vec<u64>) {
    let (lines, rest) = keys.as_chunks::<64>();
    let word = |line: &[i8; 64]| {
        let eights = line.as_chunks::<8>().0.iter().enumerate();
        eights.fold(0, |bits, (at, &eight)| bits | u64::from(gather(eight.map(&pass))) << (8 * at))
    };
    bits.clear();
    bits.extend(lines.iter().map(word));
    if !rest.is_empty() {
        let mut last = [0; 64];
        last[..rest.len()].copy_from_slice(rest);
        bits.push(word(&last) & ((1 << rest.len()) - 1));
    }
}

/// The lowest bit of each of eight bytes, of which no other is set.
fn gather(eight: [u8; 8]) -> u8 {
    (u64::from_le_bytes(eight).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8
}

#[cfg(test)]
mod tests {
    use arrow::array::StringArray;
    use arrow::datatypes::Field;
    use datafusion::logical_expr::{col, lit};

    use super::*;

    fn batch(keys: Vec<Option<i8>>, words: &ArrayRef) -> RecordBatch {
        let column = DictionaryArray::new(keys.into(), Arc::clone(words));
        let schema = Schema::new(vec![Field::new("w", column.data_type().clone(), true)]);
        RecordBatch::try_new(Arc::new(schema), vec![Arc::new(column)]).unwrap()
    }

    #[test]
    fn rows_pass_as_their_words_do() {
        let first: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), Some("b"), None]));
        let other: ArrayRef = Arc::new(StringArray::from(vec!["b", "a", "c"]));
        let keys: Vec<Option<i8>> =
            (0..200).map(|row| (row % 7 != 3).then_some((row % 3) as i8)).collect();
        let word = |words: &ArrayRef, key: Option<i8>| {
            let words = words.as_string::<i32>().clone();
            key.filter(|&key| words.is_valid(key as usize))
                .map(|key| words.value(key as usize).to_owned())
        };
        type Pass = fn(Option<String>) -> bool;
        let cases: [(Expr, Pass); 4] = [
            (col("w").eq(lit("b")), |w| w.as_deref() == Some("b")),
            (col("w").not_eq(lit("b")), |w| w.is_some_and(|w| w != "b")),
            (col("w").is_null(), |w| w.is_none()),
            (col("w").eq(lit("z")), |_| false),
        ];
        for (predicate, pass) in cases {
            let schema = batch(keys.clone(), &first).schema();
            let compiled = WordPredicate::new(&schema, &predicate).unwrap().unwrap();
            for words in [&first, &other, &first] {
                let mask = compiled.mask(&batch(keys.clone(), words)).unwrap();
                let expected: Vec<bool> = keys.iter().map(|&key| pass(word(words, key))).collect();
                assert_eq!(mask, BooleanArray::from(expected), "{predicate}");
                // A part that begins within a byte.
                let part = batch(keys.clone(), words).slice(5, 90);
                assert_eq!(compiled.mask(&part).unwrap(), mask.slice(5, 90));
                let mut bits = vec![7; 9];
                assert!(compiled.bits(&part, &mut bits));
                let set: u32 = bits.iter().map(|bits| bits.count_ones()).sum();
                let passing = mask.slice(5, 90).true_count();
                assert_eq!((bits.len(), set as usize), (2, passing), "none behind the last row");
            }
        }
    }

    #[test]
    fn other_predicates_are_left_alone() {
        let words: ArrayRef = Arc::new(StringArray::from(vec!["a"]));
        let schema = batch(vec![Some(0)], &words).schema();
        for predicate in [lit(true), col("w").eq(lit("a")).and(col("w").eq(col("w")))] {
            let compiled = WordPredicate::new(&schema, &predicate).unwrap();
            assert_eq!(compiled.is_some(), predicate.column_refs().len() == 1, "{predicate}");
        }
        let plain = Schema::new(vec![Field::new("w", DataType::Utf8, true)]);
        assert!(WordPredicate::new(&plain, &col("w").eq(lit("a"))).unwrap().is_none());
    }
}
