//! Columns gathered: their rows are written from where they lie straight into a slot.
//!
//! A column is looked at twice. First is found how many bytes it takes ([`Column::of`]), so that a
//! sender knows how many rows fit; then it is [written](Column::write), each byte once. Columns
//! within others are gathered by the rows that these have of them.

use std::ops::Range;

use arrow::array::{
    Array, AsArray, OffsetSizeTrait, UnionArray, downcast_dictionary_array, downcast_run_array,
};
use arrow::datatypes::{DataType, UnionMode};

use super::bits::BitWriter;
use super::form::{HAS_VALIDITY, LARGE_OFFSET_BYTES, OFFSET_BYTES, cannot_travel, region_at};
use super::rows::{Part, Rows};
use super::values::{Texts, copy_fixed, copy_words, fixed};
use crate::error::DataflowError;

/// Rows of several arrays of one type, as a column.
pub(super) struct Column<'a> {
    parts: Vec<Part<'a>>,
    rows: usize,
    /// Whether validity bits travel.
    has_validity: bool,
    content: Content<'a>,
}

/// The regions of a column beside its validity.
enum Content<'a> {
    /// NULLs alone.
    Nothing,
    Bits,
    /// Values of this number of bytes each.
    Fixed(usize),
    /// Numbers of `width` bytes each: those of a part and its shift.
    Words {
        shifts: Vec<u64>,
        width: usize,
    },
    /// Offsets of this number of bytes each, and bytes.
    Texts {
        offset: usize,
        bytes: usize,
    },
    /// Offsets of this number of bytes each, and elements.
    Lists {
        offset: usize,
        elements: Box<Column<'a>>,
    },
    /// As many rows of other columns, or a multiple of them.
    Columns(Vec<Column<'a>>),
    /// The type of each row, and the values.
    Union {
        first: i8,
        columns: Vec<Column<'a>>,
    },
}

impl<'a> Column<'a> {
    /// Looks at the rows.
    ///
    /// # Errors
    /// When columns of the type cannot travel.
    pub(super) fn of(parts: Vec<Part<'a>>) -> Result<Self, DataflowError> {
        let parts = parts.into_iter().map(plain).collect::<Result<Vec<_>, _>>()?;
        let rows = parts.iter().map(|part| part.rows.len()).sum();
        let Some(first) = parts.first() else {
            return Err(DataflowError::Expression("there are no rows to send".into()));
        };
        let data_type = first.array.data_type();
        let content = Content::of(data_type, &parts)?;
        let bare = matches!(content, Content::Nothing | Content::Union { .. });
        let has_validity = !bare && parts.iter().any(Part::has_nulls);
        Ok(Self { parts, rows, has_validity, content })
    }

    /// Of rows that have no bytes.
    pub(super) fn without_values(rows: usize) -> Self {
        Self { parts: vec![], rows, has_validity: false, content: Content::Nothing }
    }

    /// Of numbers of `width` bytes at most, as numbers of `width` bytes: to those of a part its
    /// shift is added.
    pub(super) fn of_words(parts: Vec<Part<'a>>, shifts: Vec<u64>, width: usize) -> Self {
        let rows = parts.iter().map(|part| part.rows.len()).sum();
        let has_validity = parts.iter().any(Part::has_nulls);
        Self { parts, rows, has_validity, content: Content::Words { shifts, width } }
    }

    /// Where the column ends that begins behind `at`.
    pub(super) fn end(&self, at: usize) -> usize {
        let behind = |at: usize, bytes: usize| region_at(at) + bytes;
        let bits = self.rows.div_ceil(8);
        let at = if self.has_validity { behind(at, bits) } else { at };
        match &self.content {
            Content::Nothing => at,
            Content::Bits => behind(at, bits),
            Content::Fixed(width) | Content::Words { width, .. } => behind(at, self.rows * width),
            Content::Texts { offset, bytes } => {
                behind(behind(at, (self.rows + 1) * offset), *bytes)
            }
            Content::Lists { offset, elements } => {
                elements.end(behind(at, (self.rows + 1) * offset))
            }
            Content::Columns(columns) => columns.iter().fold(at, |at, column| column.end(at)),
            Content::Union { columns, .. } => {
                columns.iter().fold(behind(at, self.rows), |at, column| column.end(at))
            }
        }
    }

    /// Words of the column, and of the columns within it.
    pub(super) fn words(&self) -> usize {
        match &self.content {
            Content::Nothing | Content::Bits | Content::Fixed(_) | Content::Words { .. } => 1,
            Content::Texts { .. } => 2,
            Content::Lists { elements, .. } => 2 + elements.words(),
            Content::Columns(columns) | Content::Union { columns, .. } => {
                1 + columns.iter().map(Column::words).sum::<usize>()
            }
        }
    }

    /// Writes the column.
    pub(super) fn write(&self, to: &mut Writer<'_>) {
        let nulls = if self.has_validity { self.write_validity(to) } else { 0 };
        to.word(nulls);
        match &self.content {
            Content::Nothing => {}
            Content::Bits => {
                let mut bits = BitWriter::new(to.region(self.rows.div_ceil(8)));
                for part in &self.parts {
                    bits.write(Some(part.array.as_boolean().values()), &part.rows);
                }
                bits.finish();
            }
            Content::Fixed(width) => {
                let mut out = to.region(self.rows * width);
                for part in &self.parts {
                    let (of_part, rest) = out.split_at_mut(part.rows.len() * width);
                    copy_fixed(fixed(part.array), *width, &part.rows, of_part);
                    out = rest;
                }
            }
            Content::Words { shifts, width } => {
                let mut out = to.region(self.rows * width);
                for (part, shift) in self.parts.iter().zip(shifts) {
                    let (of_part, rest) = out.split_at_mut(part.rows.len() * width);
                    copy_words(part.array, *shift, &part.rows, *width, of_part);
                    out = rest;
                }
            }
            Content::Texts { offset, bytes } => {
                to.word(*bytes as u32);
                self.write_texts(*offset, *bytes, to);
            }
            Content::Lists { offset, elements } => {
                to.word(elements.rows as u32);
                let mut ends = Ends::new(to.region((self.rows + 1) * offset), *offset);
                let mut end = 0;
                for part in &self.parts {
                    for span in spans(part) {
                        end += span.len();
                        ends.push(end);
                    }
                }
                elements.write(to);
            }
            Content::Columns(columns) => columns.iter().for_each(|column| column.write(to)),
            Content::Union { first, columns } => {
                let out = to.region(self.rows).iter_mut();
                let types = self.parts.iter().flat_map(|part| types(part, *first));
                out.zip(types).for_each(|(out, of)| *out = of.cast_unsigned());
                columns.iter().for_each(|column| column.write(to));
            }
        }
    }

    /// Writes which rows have a value; gives the word that says how many have none.
    fn write_validity(&self, to: &mut Writer<'_>) -> u32 {
        let mut bits = BitWriter::new(to.region(self.rows.div_ceil(8)));
        for part in &self.parts {
            bits.write(part.array.nulls().map(|nulls| nulls.inner()), &part.rows);
        }
        HAS_VALIDITY | (self.rows - bits.finish()) as u32
    }

    fn write_texts(&self, offset: usize, bytes: usize, to: &mut Writer<'_>) {
        let (ends, out) = to.regions((self.rows + 1) * offset, bytes);
        let (mut ends, mut at) = (Ends::new(ends, offset), 0);
        for part in &self.parts {
            Texts::of(part.array).copy(&part.rows, out, &mut at, |end| ends.push(end));
        }
    }
}

impl<'a> Content<'a> {
    fn of(data_type: &DataType, parts: &[Part<'a>]) -> Result<Self, DataflowError> {
        let texts = |offset| {
            let bytes = parts.iter().map(|part| Texts::of(part.array).bytes(&part.rows)).sum();
            Ok(Content::Texts { offset, bytes })
        };
        let lists = |offset| {
            let elements = parts.iter().map(elements).collect::<Result<_, _>>()?;
            Ok(Content::Lists { offset, elements: Box::new(Column::of(elements)?) })
        };
        match data_type {
            DataType::Null => Ok(Content::Nothing),
            DataType::Boolean => Ok(Content::Bits),
            DataType::Utf8 | DataType::Binary | DataType::Utf8View | DataType::BinaryView => {
                texts(OFFSET_BYTES)
            }
            DataType::LargeUtf8 | DataType::LargeBinary => texts(LARGE_OFFSET_BYTES),
            DataType::List(_) | DataType::ListView(_) | DataType::Map(..) => lists(OFFSET_BYTES),
            DataType::LargeList(_) | DataType::LargeListView(_) => lists(LARGE_OFFSET_BYTES),
            DataType::FixedSizeList(_, length) => {
                let length = *length as usize;
                let elements = parts.iter().map(|part| of_fixed_lists(part, length));
                let elements = Column::of(elements.collect::<Result<_, _>>()?)?;
                Ok(Content::Columns(vec![elements]))
            }
            DataType::Struct(fields) => {
                let column = |at: usize| {
                    let of_part = |part: &Part<'a>| Part {
                        array: part.array.as_struct().column(at).as_ref(),
                        ..part.clone()
                    };
                    Column::of(parts.iter().map(of_part).collect())
                };
                Ok(Content::Columns((0..fields.len()).map(column).collect::<Result<_, _>>()?))
            }
            DataType::Union(fields, mode) => {
                let Some(first) = fields.iter().next().map(|(of, _)| of) else {
                    return Err(cannot_travel(data_type));
                };
                let column = |(of, _)| {
                    let values = parts.iter().map(|part| values_of(part, of, first, *mode));
                    Column::of(values.collect::<Result<_, _>>()?)
                };
                let columns = fields.iter().map(column).collect::<Result<_, _>>()?;
                Ok(Content::Union { first, columns })
            }
            DataType::FixedSizeBinary(bytes) => Ok(Content::Fixed(*bytes as usize)),
            fixed => {
                fixed.primitive_width().map(Content::Fixed).ok_or_else(|| cannot_travel(data_type))
            }
        }
    }
}

/// The same rows, of an array that has its values itself.
fn plain(part: Part<'_>) -> Result<Part<'_>, DataflowError> {
    let rows = || part.rows.iter();
    let (array, whole) = (part.array, part.array);
    let picked = downcast_dictionary_array! {
        array => Part::picked(
            array.values().as_ref(),
            rows().map(|row| row.and_then(|row| array.key(row))),
        ),
        _ => downcast_run_array! {
            whole => Part::picked(
                whole.values().as_ref(),
                rows().map(|row| row.map(|row| whole.get_physical_index(row))),
            ),
            _ => return Ok(part),
        },
    };
    plain(picked?)
}

/// The elements of lists.
fn elements<'a>(part: &Part<'a>) -> Result<Part<'a>, DataflowError> {
    let array = part.array;
    let (values, offsets): (&dyn Array, Option<Range<usize>>) = match array.data_type() {
        DataType::List(_) => (
            array.as_list::<i32>().values(),
            of_run(array.as_list::<i32>().value_offsets(), &part.rows),
        ),
        DataType::LargeList(_) => (
            array.as_list::<i64>().values(),
            of_run(array.as_list::<i64>().value_offsets(), &part.rows),
        ),
        DataType::Map(..) => {
            (array.as_map().entries(), of_run(array.as_map().value_offsets(), &part.rows))
        }
        DataType::ListView(_) => (array.as_list_view::<i32>().values(), None),
        _ => (array.as_list_view::<i64>().values(), None),
    };
    match offsets {
        Some(range) => Ok(Part { array: values, rows: Rows::Range(range), absent: false }),
        None => Part::picked(values, spans(part).flatten().map(Some)),
    }
}

/// The elements of lists that follow one another.
fn of_run<O: OffsetSizeTrait>(offsets: &[O], rows: &Rows<'_>) -> Option<Range<usize>> {
    let Rows::Range(range) = rows else { return None };
    Some(offsets[range.start].as_usize()..offsets[range.end].as_usize())
}

/// Where the elements of each list are.
fn spans<'b>(part: &'b Part<'_>) -> Box<dyn Iterator<Item = Range<usize>> + 'b> {
    let array = part.array;
    match array.data_type() {
        DataType::List(_) => between(array.as_list::<i32>().value_offsets(), &part.rows),
        DataType::LargeList(_) => between(array.as_list::<i64>().value_offsets(), &part.rows),
        DataType::Map(..) => between(array.as_map().value_offsets(), &part.rows),
        DataType::ListView(_) => {
            let lists = array.as_list_view::<i32>();
            viewed(lists.value_offsets(), lists.value_sizes(), &part.rows)
        }
        _ => {
            let lists = array.as_list_view::<i64>();
            viewed(lists.value_offsets(), lists.value_sizes(), &part.rows)
        }
    }
}

fn between<'b, O: OffsetSizeTrait>(
    offsets: &'b [O],
    rows: &'b Rows<'_>,
) -> Box<dyn Iterator<Item = Range<usize>> + 'b> {
    let span = |row: usize| offsets[row].as_usize()..offsets[row + 1].as_usize();
    Box::new(rows.iter().map(move |row| row.map_or(0..0, span)))
}

fn viewed<'b, O: OffsetSizeTrait>(
    offsets: &'b [O],
    sizes: &'b [O],
    rows: &'b Rows<'_>,
) -> Box<dyn Iterator<Item = Range<usize>> + 'b> {
    let span = |row: usize| {
        let from = offsets[row].as_usize();
        from..from + sizes[row].as_usize()
    };
    Box::new(rows.iter().map(move |row| row.map_or(0..0, span)))
}

/// The elements of lists that all have `length` of them.
fn of_fixed_lists<'a>(part: &Part<'a>, length: usize) -> Result<Part<'a>, DataflowError> {
    let lists = part.array.as_fixed_size_list();
    let (values, first) = (lists.values().as_ref(), lists.value_offset(0) as usize);
    if let Rows::Range(range) = &part.rows {
        let rows = Rows::Range(first + range.start * length..first + range.end * length);
        return Ok(Part { array: values, rows, absent: false });
    }
    let element =
        |row: Option<usize>| (0..length).map(move |at| row.map(|row| first + row * length + at));
    Part::picked(values, part.rows.iter().flat_map(element))
}

/// The types of the rows of a union; that of an absent one is the first.
fn types<'b>(part: &'b Part<'_>, first: i8) -> impl Iterator<Item = i8> + 'b {
    let types = union_of(part).type_ids();
    part.rows.iter().map(move |row| row.map_or(first, |row| types[row]))
}

/// The values of one type of a union: of all rows, or of the rows that have it.
fn values_of<'a>(
    part: &Part<'a>,
    of: i8,
    first: i8,
    mode: UnionMode,
) -> Result<Part<'a>, DataflowError> {
    let union = union_of(part);
    let values: &'a dyn Array = union.child(of).as_ref();
    let Some(offsets) = union.offsets().filter(|_| mode == UnionMode::Dense) else {
        return Ok(Part { array: values, ..part.clone() });
    };
    let rows = part.rows.iter().zip(types(part, first));
    let place = |row: Option<usize>| row.map(|row| offsets[row] as usize);
    Part::picked(values, rows.filter(|(_, its)| *its == of).map(|(row, _)| place(row)))
}

fn union_of<'a>(part: &Part<'a>) -> &'a UnionArray {
    part.array.as_union()
}

/// Writes the places where values end, behind a zero.
struct Ends<'a> {
    out: std::slice::ChunksExactMut<'a, u8>,
}

impl<'a> Ends<'a> {
    fn new(out: &'a mut [u8], bytes: usize) -> Self {
        let mut ends = Self { out: out.chunks_exact_mut(bytes) };
        ends.push(0);
        ends
    }

    #[inline]
    fn push(&mut self, end: usize) {
        if let Some(out) = self.out.next() {
            let bytes = out.len();
            out.copy_from_slice(&(end as u64).to_le_bytes()[..bytes]);
        }
    }
}

/// Writes regions one behind the other.
pub(super) struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
    words: Vec<u32>,
}

impl<'a> Writer<'a> {
    /// Writes to `out` from `at` on.
    pub(super) fn new(out: &'a mut [u8], at: usize) -> Self {
        Self { out, at, words: vec![] }
    }

    /// The words, and where the last region ends.
    pub(super) fn finish(self) -> (Vec<u32>, usize) {
        (self.words, self.at)
    }

    fn word(&mut self, word: u32) {
        self.words.push(word);
    }

    /// The next region. What lies before it is zero.
    fn region(&mut self, bytes: usize) -> &mut [u8] {
        let from = region_at(self.at);
        self.out[self.at..from].fill(0);
        self.at = from + bytes;
        &mut self.out[from..self.at]
    }

    /// The next two regions.
    fn regions(&mut self, first: usize, second: usize) -> (&mut [u8], &mut [u8]) {
        let gap = region_at(first) - first;
        let (region, rest) = self.region(region_at(first) + second).split_at_mut(first);
        let (between, next) = rest.split_at_mut(gap);
        between.fill(0);
        (region, next)
    }
}
