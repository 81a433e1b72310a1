//! Where the values of an array lie, and how they are copied one behind the other.

use std::ops::Range;

use arrow::array::types::ByteViewType;
use arrow::array::{Array, AsArray, ByteView, GenericByteViewArray, OffsetSizeTrait};
use arrow::array::{downcast_primitive_array, types::ByteArrayType};
use arrow::buffer::Buffer;
use arrow::datatypes::{
    BinaryType, BinaryViewType, DataType, LargeBinaryType, LargeUtf8Type, StringViewType, Utf8Type,
};

use super::rows::{ABSENT, Rows};

/// Bytes of a word.
const WORD_BYTES: usize = size_of::<u64>();

/// Bytes that are copied at once of a short text.
const STRIDE: usize = 16;

/// Bytes of a text that stands within its view, at most.
const INLINE_BYTES: u32 = 12;

/// The bytes of an array whose values have the same width, from its first row on.
pub(super) fn fixed(array: &dyn Array) -> &[u8] {
    downcast_primitive_array! {
        array => array.values().inner().as_slice(),
        DataType::FixedSizeBinary(_) => array.as_fixed_size_binary().value_data(),
        _ => &[],
    }
}

/// Copies values of `width` bytes; those of absent rows are zero.
pub(super) fn copy_fixed(values: &[u8], width: usize, rows: &Rows<'_>, out: &mut [u8]) {
    match rows {
        Rows::Range(range) => {
            out.copy_from_slice(&values[range.start * width..range.end * width]);
        }
        Rows::Numbers(numbers) => match width {
            1 => scatter::<1>(values, numbers, out),
            2 => scatter::<2>(values, numbers, out),
            4 => scatter::<4>(values, numbers, out),
            8 => scatter::<8>(values, numbers, out),
            16 => scatter::<16>(values, numbers, out),
            32 => scatter::<32>(values, numbers, out),
            0 => {}
            _ => {
                for (&row, out) in numbers.iter().zip(out.chunks_exact_mut(width)) {
                    match row {
                        ABSENT => out.fill(0),
                        row => out.copy_from_slice(&values[row as usize * width..][..width]),
                    }
                }
            }
        },
    }
}

fn scatter<const WIDTH: usize>(values: &[u8], numbers: &[u32], out: &mut [u8]) {
    let (values, out) = (values.as_chunks::<WIDTH>().0, out.as_chunks_mut::<WIDTH>().0);
    for (out, &row) in out.iter_mut().zip(numbers) {
        // An absent row is behind all others.
        *out = values.get(row as usize).copied().unwrap_or([0; WIDTH]);
    }
}

/// Copies numbers of an array as numbers of `width` bytes, which are no fewer, and adds `shift` to
/// each. The sum wraps, also that of a number that is none.
pub(super) fn copy_words(
    array: &dyn Array,
    shift: u64,
    rows: &Rows<'_>,
    width: usize,
    out: &mut [u8],
) {
    let (values, from) = (fixed(array), array.data_type().primitive_width().unwrap_or(0));
    if from == width && shift == 0 {
        return copy_fixed(values, width, rows, out);
    }
    match (from, width) {
        (1, 1) => shifted::<1, 1>(values, shift, rows, out),
        (1, 2) => shifted::<1, 2>(values, shift, rows, out),
        (1, 4) => shifted::<1, 4>(values, shift, rows, out),
        (1, _) => shifted::<1, 8>(values, shift, rows, out),
        (2, 2) => shifted::<2, 2>(values, shift, rows, out),
        (2, 4) => shifted::<2, 4>(values, shift, rows, out),
        (2, _) => shifted::<2, 8>(values, shift, rows, out),
        (4, 4) => shifted::<4, 4>(values, shift, rows, out),
        (4, _) => shifted::<4, 8>(values, shift, rows, out),
        (_, _) => shifted::<8, 8>(values, shift, rows, out),
    }
}

fn shifted<const FROM: usize, const TO: usize>(
    values: &[u8],
    shift: u64,
    rows: &Rows<'_>,
    out: &mut [u8],
) {
    let (values, out) = (values.as_chunks::<FROM>().0, out.as_chunks_mut::<TO>().0);
    let put = |out: &mut [u8; TO], value: &[u8; FROM]| {
        let mut word = [0; WORD_BYTES];
        word[..FROM].copy_from_slice(value);
        let word = u64::from_le_bytes(word).wrapping_add(shift).to_le_bytes();
        out.copy_from_slice(&word[..TO]);
    };
    match rows {
        Rows::Range(range) => {
            out.iter_mut().zip(&values[range.clone()]).for_each(|(out, value)| put(out, value));
        }
        Rows::Numbers(_) => {
            let rows = rows.iter().map(|row| row.and_then(|row| values.get(row)));
            out.iter_mut().zip(rows).for_each(|(out, value)| put(out, value.unwrap_or(&[0; FROM])));
        }
    }
}

/// The words of some rows of an array of them.
pub(super) fn words(array: &dyn Array, rows: Range<usize>) -> impl Iterator<Item = i64> {
    fixed(array).as_chunks().0[rows].iter().map(|word| i64::from_le_bytes(*word))
}

/// Texts or bytes of an array.
#[derive(Clone, Copy)]
pub(super) enum Texts<'a> {
    Small(Behind<'a, i32>),
    Large(Behind<'a, i64>),
    Views(Views<'a>),
}

/// Values that lie one behind the other.
#[derive(Clone, Copy)]
pub(super) struct Behind<'a, O> {
    offsets: &'a [O],
    data: &'a [u8],
}

/// Values that lie in their views, or where these point.
#[derive(Clone, Copy)]
pub(super) struct Views<'a> {
    views: &'a [u8],
    buffers: &'a [Buffer],
}

/// The bytes of the value of a row: those from which it is read, and from where to where in them.
trait Find {
    fn find(&self, row: usize) -> (&[u8], usize, usize);
}

impl<O: OffsetSizeTrait> Find for Behind<'_, O> {
    fn find(&self, row: usize) -> (&[u8], usize, usize) {
        (self.data, self.offsets[row].as_usize(), self.offsets[row + 1].as_usize())
    }
}

impl Find for Views<'_> {
    fn find(&self, row: usize) -> (&[u8], usize, usize) {
        let at = row * size_of::<u128>();
        let view = ByteView::from(self.view(row));
        if view.length <= INLINE_BYTES {
            let from = at + size_of::<u32>();
            return (self.views, from, from + view.length as usize);
        }
        let from = view.offset as usize;
        (&self.buffers[view.buffer_index as usize], from, from + view.length as usize)
    }
}

impl Views<'_> {
    fn view(&self, row: usize) -> u128 {
        u128::from_le_bytes(self.views.as_chunks().0[row])
    }
}

impl<'a> Texts<'a> {
    /// Of an array of texts or bytes.
    pub(super) fn of(array: &'a dyn Array) -> Self {
        match array.data_type() {
            DataType::Utf8 => Self::Small(behind::<Utf8Type>(array)),
            DataType::Binary => Self::Small(behind::<BinaryType>(array)),
            DataType::LargeUtf8 => Self::Large(behind::<LargeUtf8Type>(array)),
            DataType::LargeBinary => Self::Large(behind::<LargeBinaryType>(array)),
            DataType::Utf8View => Self::Views(views::<StringViewType>(array.as_string_view())),
            _ => Self::Views(views::<BinaryViewType>(array.as_binary_view())),
        }
    }

    /// Bytes of some rows.
    pub(super) fn bytes(&self, rows: &Rows<'_>) -> usize {
        match self {
            Texts::Small(behind) => behind.bytes(rows),
            Texts::Large(behind) => behind.bytes(rows),
            Texts::Views(views) => {
                let length = |row| ByteView::from(views.view(row)).length as usize;
                rows.iter().flatten().map(length).sum()
            }
        }
    }

    /// Copies the values of some rows to `out` from `at` on, and tells `ended` where each ends.
    pub(super) fn copy(
        &self,
        rows: &Rows<'_>,
        out: &mut [u8],
        at: &mut usize,
        mut ended: impl FnMut(usize),
    ) {
        match self {
            Texts::Small(behind) => behind.copy(rows, out, at, ended),
            Texts::Large(behind) => behind.copy(rows, out, at, ended),
            Texts::Views(views) => each(views, rows, out, at, &mut ended),
        }
    }
}

impl<O: OffsetSizeTrait> Behind<'_, O> {
    fn bytes(&self, rows: &Rows<'_>) -> usize {
        let between =
            |from: usize, to: usize| self.offsets[to].as_usize() - self.offsets[from].as_usize();
        match rows {
            Rows::Range(range) => between(range.start, range.end),
            Rows::Numbers(_) => rows.iter().flatten().map(|row| between(row, row + 1)).sum(),
        }
    }

    fn copy(&self, rows: &Rows<'_>, out: &mut [u8], at: &mut usize, mut ended: impl FnMut(usize)) {
        let Rows::Range(range) = rows else { return each(self, rows, out, at, &mut ended) };
        let offsets = &self.offsets[range.start..=range.end];
        let (first, last) = (offsets[0].as_usize(), offsets[range.len()].as_usize());
        out[*at..*at + last - first].copy_from_slice(&self.data[first..last]);
        offsets[1..].iter().for_each(|end| ended(*at + end.as_usize() - first));
        *at += last - first;
    }
}

fn each(
    values: &impl Find,
    rows: &Rows<'_>,
    out: &mut [u8],
    at: &mut usize,
    ended: &mut impl FnMut(usize),
) {
    for row in rows.iter() {
        if let Some(row) = row {
            let (bytes, from, to) = values.find(row);
            copy_text(bytes, from, to, out, *at);
            *at += to - from;
        }
        ended(*at);
    }
}

/// Copies a value. To copy a stride takes less time than to call a function for a short text: what
/// comes behind it in `out` is written later.
#[inline]
fn copy_text(bytes: &[u8], from: usize, to: usize, out: &mut [u8], at: usize) {
    let strides = bytes.get(from..from + STRIDE).zip(out.get_mut(at..at + STRIDE));
    match strides {
        Some((stride, out)) if to - from <= STRIDE => out.copy_from_slice(stride),
        _ => out[at..at + to - from].copy_from_slice(&bytes[from..to]),
    }
}

fn behind<T: ByteArrayType>(array: &dyn Array) -> Behind<'_, T::Offset> {
    let array = array.as_bytes::<T>();
    Behind { offsets: array.value_offsets(), data: array.value_data() }
}

fn views<T: ByteViewType>(array: &GenericByteViewArray<T>) -> Views<'_> {
    Views { views: array.views().inner().as_slice(), buffers: array.data_buffers() }
}
