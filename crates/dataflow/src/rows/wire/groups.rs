//! Groups as they are kept until they are acknowledged, and how they are written into slots.
//!
//! Words, which are integers of 8 bytes, are copied once, out of the columns of the operator, by
//! leader and as narrow as they can be: their distances from the least one of these columns. What
//! is no word is kept as it is. A payload has groups of several such parts: its words are written
//! as distances from the least one of all of them, straight into the slot.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanBufferBuilder, Int64Array, PrimitiveArray,
};
use arrow::buffer::NullBuffer;
use arrow::compute::{max, min};
use arrow::datatypes::{UInt8Type, UInt16Type, UInt32Type};
use state::RowsByOwner;

use super::RowsLayout;
use super::gather::Column;
use super::memory::{bytes_of_array, own_view};
use super::rows::{Part, Rows};
use super::values::words;
use crate::error::DataflowError;
use crate::rows::narrow::{MARKS, Marks, NarrowBase, RUN, RUN_ROWS_MAX, as_words, is_word};

/// Bytes of a word.
const WORD_BYTES: usize = 8;
/// Bytes of an array beside its values.
const ARRAY_BYTES: usize = 128;

/// How the words of a column are kept.
#[derive(Debug, Clone, Copy)]
struct WordForm {
    /// The number that is added to each to have the word.
    from: i64,
    /// Bytes of a number.
    width: usize,
    /// The least and the greatest word, if there are any.
    ends: Option<(i64, i64)>,
}

/// Some columns of groups of several leaders, looked at once for all of them.
#[derive(Debug)]
pub(crate) struct GroupPart {
    columns: Vec<WideColumn>,
    /// Whether the words of the first column ascend.
    ascends: bool,
}

#[derive(Debug)]
struct WideColumn {
    array: ArrayRef,
    words: Option<(Int64Array, WordForm)>,
}

impl WideColumn {
    /// The words, if they are to be copied.
    fn to_narrow(&self) -> Option<(&Int64Array, WordForm)> {
        let (words, form) = self.words.as_ref()?;
        (form.width < WORD_BYTES).then_some((words, *form))
    }
}

impl GroupPart {
    /// Of columns of the same length.
    ///
    /// # Errors
    /// Arrow's, for a column that cannot be read as words.
    pub(crate) fn of(columns: impl Iterator<Item = ArrayRef>) -> Result<Self, DataflowError> {
        let column = |array: ArrayRef| {
            let words = is_word(array.data_type()).then(|| as_words(&array)).transpose()?;
            let words = words.map(|words| (words.clone(), form_of(&words)));
            Ok::<_, DataflowError>(WideColumn { array, words })
        };
        let columns = columns.map(column).collect::<Result<Vec<_>, _>>()?;
        // Of unsigned ones those that are negative here are not in order, and stay as they are.
        let ascends =
            columns.first().and_then(|first| first.words.as_ref()).is_some_and(|(words, _)| {
                words.null_count() == 0 && words.values().is_sorted_by(|a, b| a < b)
            });
        Ok(Self { columns, ascends })
    }

    /// The groups of one leader, to be kept.
    ///
    /// # Errors
    /// Arrow's, for a column that cannot be built.
    fn narrow(&self, split: &RowsByOwner, leader: u32) -> Result<NarrowPart, DataflowError> {
        let (runs, rows) = (split.runs(leader), split.rows(leader));
        let wide = self.columns.iter().filter(|column| column.to_narrow().is_none());
        let wide: Vec<ArrayRef> = wide.map(|column| column.array.clone()).collect();
        let mut selected = split.select_columns(leader, &wide)?.into_iter().zip(&wide);
        let columns = self.columns.iter().map(|column| match column.to_narrow() {
            Some((words, form)) => Some(distances(words, form, runs, rows)),
            None => selected.next().map(|(selected, all)| own(selected, all)),
        });
        let columns: Vec<ArrayRef> = columns.flatten().collect();
        let forms = self.columns.iter().map(|column| column.words.as_ref().map(|(_, form)| *form));
        let forms = forms.collect();
        Ok(NarrowPart { columns, forms, ascends: self.ascends, rows, before: 0 })
    }
}

fn form_of(words: &Int64Array) -> WordForm {
    let ends = min(words).zip(max(words));
    let (least, most) = ends.unwrap_or((0, 0));
    match width_of(least, most) {
        WORD_BYTES => WordForm { from: 0, width: WORD_BYTES, ends },
        width => WordForm { from: least, width, ends },
    }
}

/// Bytes of a number that is a distance from `least`, up to that of `most`.
fn width_of(least: i64, most: i64) -> usize {
    match most.wrapping_sub(least) as u64 {
        0..=0xFF => 1,
        0x100..=0xFFFF => 2,
        0x1_0000..=0xFFFF_FFFF => 4,
        _ => WORD_BYTES,
    }
}

/// The distances of some words from the least one.
fn distances(words: &Int64Array, form: WordForm, runs: &[Range<u32>], rows: usize) -> ArrayRef {
    #[cfg(test)]
    super::passes::count_elsewhere(rows * form.width);
    let from = form.from;
    match form.width {
        1 => picked::<UInt8Type>(words, runs, rows, |word| word.wrapping_sub(from) as u8),
        2 => picked::<UInt16Type>(words, runs, rows, |word| word.wrapping_sub(from) as u16),
        _ => picked::<UInt32Type>(words, runs, rows, |word| word.wrapping_sub(from) as u32),
    }
}

fn picked<T: ArrowPrimitiveType>(
    words: &Int64Array,
    runs: &[Range<u32>],
    rows: usize,
    of: impl Fn(i64) -> T::Native,
) -> ArrayRef {
    let runs = || runs.iter().map(|run| run.start as usize..run.end as usize);
    let mut values: Vec<T::Native> = Vec::with_capacity(rows);
    for run in runs() {
        values.extend(words.values()[run].iter().map(|&word| of(word)));
    }
    let nulls = words.nulls().filter(|nulls| nulls.null_count() > 0).map(|nulls| {
        let mut bits = BooleanBufferBuilder::new(rows);
        runs().for_each(|run| bits.append_buffer(&nulls.inner().slice(run.start, run.len())));
        NullBuffer::new(bits.finish())
    });
    Arc::new(PrimitiveArray::<T>::new(values.into(), nulls))
}

/// Selected rows in memory of their own; a column of which all rows were selected stays as it is.
fn own(selected: ArrayRef, all: &ArrayRef) -> ArrayRef {
    if selected.len() == all.len() {
        return selected;
    }
    #[cfg(test)]
    super::passes::count_elsewhere(bytes_of_array(&selected));
    own_view(&selected).unwrap_or(selected)
}

/// Groups of a leader as they are kept.
#[derive(Debug)]
struct NarrowPart {
    columns: Vec<ArrayRef>,
    /// Of each column, if it has words.
    forms: Vec<Option<WordForm>>,
    ascends: bool,
    rows: usize,
    /// How many groups are in parts before this one.
    before: usize,
}

impl NarrowPart {
    fn bytes(&self) -> usize {
        self.columns.iter().map(|column| bytes_of_array(column) + ARRAY_BYTES).sum()
    }

    /// Tells the words of the first column of some groups, which has words without NULLs.
    fn each_key(&self, rows: Range<usize>, mut each: impl FnMut(i64)) {
        let (Some(column), Some(Some(form))) = (self.columns.first(), self.forms.first()) else {
            return;
        };
        let mut tell = |distance: i64| each(form.from.wrapping_add(distance));
        match form.width {
            1 => numbers::<UInt8Type>(column, rows).iter().for_each(|&n| tell(n.into())),
            2 => numbers::<UInt16Type>(column, rows).iter().for_each(|&n| tell(n.into())),
            4 => numbers::<UInt32Type>(column, rows).iter().for_each(|&n| tell(n.into())),
            _ => words(column, rows).for_each(tell),
        }
    }

    /// The first and the last key of some groups, of which there are some, if keys ascend.
    fn ends(&self, rows: Range<usize>) -> Option<(i64, i64)> {
        let key = |row: usize| {
            let mut key = None;
            self.each_key(row..row + 1, |word| key = Some(word));
            key
        };
        if self.ascends { key(rows.start).zip(key(rows.end - 1)) } else { None }
    }
}

fn numbers<T: ArrowPrimitiveType>(column: &ArrayRef, rows: Range<usize>) -> &[T::Native] {
    &column.as_primitive::<T>().values()[rows]
}

/// Groups of a leader, in the order in which they travel.
#[derive(Debug, Default)]
pub(crate) struct NarrowGroups {
    parts: Vec<NarrowPart>,
    rows: usize,
    bytes: usize,
}

/// How the words of some groups travel.
#[derive(Debug)]
pub(crate) struct GroupForm {
    bases: Vec<NarrowBase>,
    /// The first key, and the bytes of the marks, where keys are marked.
    marks: Option<(i64, usize)>,
}

impl GroupForm {
    /// Bytes of what a receiver has to know beside the columns.
    pub(crate) fn head_bytes(&self) -> usize {
        let marks = self.marks.map_or(0, |(_, bytes)| size_of::<u32>() + bytes);
        self.bases.len() * NarrowBase::BYTES + marks
    }
}

impl NarrowGroups {
    /// Adds the groups of a leader.
    ///
    /// # Errors
    /// Arrow's, for a column that cannot be built.
    pub(crate) fn add(
        &mut self,
        part: &GroupPart,
        split: &RowsByOwner,
        leader: u32,
    ) -> Result<(), DataflowError> {
        if split.rows(leader) == 0 {
            return Ok(());
        }
        let part = NarrowPart { before: self.rows, ..part.narrow(split, leader)? };
        self.rows += part.rows;
        self.bytes += part.bytes();
        self.parts.push(part);
        Ok(())
    }

    /// How many there are.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes that they take.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Some groups, by part.
    fn parts(&self, rows: &Range<usize>) -> impl Iterator<Item = (&NarrowPart, Range<usize>)> {
        let first = self.parts.partition_point(|part| part.before + part.rows <= rows.start);
        let (start, end) = (rows.start, rows.end);
        self.parts[first..].iter().take_while(move |part| part.before < end).map(move |part| {
            let within = |row: usize| row.saturating_sub(part.before).min(part.rows);
            (part, within(start)..within(end))
        })
    }

    /// The form in which the words of some groups have the fewest bytes.
    pub(crate) fn form(&self, rows: &Range<usize>) -> GroupForm {
        let columns = self.parts.first().map_or(0, |part| part.columns.len());
        let mut bases: Vec<NarrowBase> = (0..columns).map(|at| self.base(at, rows)).collect();
        let mut marks = None;
        if let (Some(first), Some((least, most))) = (bases.first_mut(), self.ascending(rows)) {
            // They are a run if there are as many as there are from the first to the last.
            let span = most.wrapping_sub(least) as u64;
            let width = if first.width == 0 { WORD_BYTES as u64 } else { u64::from(first.width) };
            if span == rows.len() as u64 - 1 && rows.len() <= RUN_ROWS_MAX {
                *first = NarrowBase { least, width: RUN };
            } else if span / 8 + 5 < width * rows.len() as u64 {
                *first = NarrowBase { least, width: MARKS };
                marks = Some((least, (span / 8 + 1) as usize));
            }
        }
        GroupForm { bases, marks }
    }

    /// The narrowest form in which a column of some groups travels without a look at its values.
    fn base(&self, at: usize, rows: &Range<usize>) -> NarrowBase {
        let mut ends: Option<(i64, i64)> = None;
        for (part, _) in self.parts(rows) {
            let Some(form) = part.forms[at] else { return NarrowBase::AS_IT_WAS };
            ends = match (ends, form.ends) {
                (Some((least, most)), Some((l, m))) => Some((least.min(l), most.max(m))),
                (ends, of_part) => ends.or(of_part),
            };
        }
        let (least, most) = ends.unwrap_or((0, 0));
        match width_of(least, most) {
            WORD_BYTES => NarrowBase::AS_IT_WAS,
            width => NarrowBase { least, width: width as u8 },
        }
    }

    /// The first and the last key of some groups, if each is greater than the one before.
    fn ascending(&self, rows: &Range<usize>) -> Option<(i64, i64)> {
        let mut ends: Option<(i64, i64)> = None;
        for (part, rows) in self.parts(rows) {
            let (first, last) = part.ends(rows)?;
            ends = match ends {
                Some((_, before)) if before >= first => return None,
                Some((least, _)) => Some((least, last)),
                None => Some((first, last)),
            };
        }
        ends
    }

    /// The form of the columns of some groups, which a receiver is told beside them.
    pub(crate) fn head(&self, rows: &Range<usize>, form: &GroupForm) -> Vec<u8> {
        let mut head = Vec::with_capacity(form.head_bytes());
        form.bases.iter().for_each(|base| base.put(&mut head));
        if let Some((least, bytes)) = form.marks {
            let mut marks = Marks::new(least, bytes, &mut head);
            for (part, rows) in self.parts(rows) {
                part.each_key(rows, |key| marks.set(key));
            }
        }
        head
    }

    /// Some groups as a payload with room for `extra_bytes` beside them.
    ///
    /// # Errors
    /// When a column's type cannot travel.
    pub(crate) fn layout<'a>(
        &'a self,
        rows: &Range<usize>,
        form: &GroupForm,
        extra_bytes: usize,
    ) -> Result<RowsLayout<'a>, DataflowError> {
        let columns = form.bases.iter().enumerate();
        let columns = columns.map(|(at, base)| self.column(at, *base, rows));
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        Ok(RowsLayout::with(columns, rows.len(), extra_bytes))
    }

    fn column(
        &self,
        at: usize,
        base: NarrowBase,
        rows: &Range<usize>,
    ) -> Result<Column<'_>, DataflowError> {
        if matches!(base.width, RUN | MARKS) {
            return Ok(Column::without_values(rows.len()));
        }
        let (mut parts, mut shifts) = (vec![], vec![]);
        for (part, rows) in self.parts(rows) {
            let array = part.columns[at].as_ref();
            parts.push(Part { array, rows: Rows::Range(rows), absent: false });
            shifts.extend(part.forms[at].map(|form| form.from.wrapping_sub(base.least) as u64));
        }
        if shifts.is_empty() {
            return Column::of(parts);
        }
        let width = if base.width == 0 { WORD_BYTES } else { base.width.into() };
        Ok(Column::of_words(parts, shifts, width))
    }
}

#[cfg(test)]
mod tests;
