//! Flat objects, read in one pass over their lines: each value goes straight into its column.
//!
//! The library makes a tape of all values of a batch first, and looks up the fields of each object
//! by name. Here a line is read once: the fields of a line mostly stand in the order of the line
//! before, and are recognized by comparing words; a value in its common form (`quick`) is read
//! where it stands, by the column that takes it; a string that nobody reads is passed.
//!
//! Any line that is not plainly right is *declined*, and the library decides about it: so a reader
//! of fields never refuses a row, and gives only values that the library would give. Tables with a
//! nested column are left to the library altogether.

use std::ops::Range;

use arrow::array::ArrayRef;
use arrow::datatypes::Schema;

use super::columns::{Cells, Value, unescape};
use super::syntax::Scan;
use super::text::{DEPTH_MAX, is_deeper_than};
use crate::format::quick::{string, word};

/// Fields of a line whose names are remembered for the next one.
const REMEMBERED_MAX: usize = 1024;

/// Bytes of a name that is remembered, with the space around it.
const NAME_BYTES_MAX: usize = 4096;

/// Reads the declared columns of flat objects.
pub(super) struct FieldReader {
    names: Vec<String>,
    columns: Vec<Filled>,
    /// The fields of the line before, in their order.
    remembered: Vec<Remembered>,
}

/// A column that is being filled.
struct Filled {
    cells: Cells,
    /// The line in which it had a value last.
    seen: u32,
}

/// A field of the line before.
struct Remembered {
    /// Its name with the quotation marks, the colon and the space around them.
    name: Box<[u8]>,
    /// The first and the last eight bytes of the name, where it has as many; else all of it, and
    /// which bits of a word it takes.
    words: [u64; 2],
    /// Its column; `None` if it is not declared.
    column: Option<usize>,
}

impl Remembered {
    fn new(name: &[u8], column: Option<usize>) -> Self {
        let words = match name.len() {
            length @ 0..8 => {
                let mut padded = [0; 8];
                padded[..length].copy_from_slice(name);
                [u64::from_le_bytes(padded), (1 << (8 * length)) - 1]
            }
            length => [0, length - 8].map(|at| word(name, at).unwrap_or_default()),
        };
        Self { name: name.into(), words, column }
    }

    /// Whether the name stands at `at`.
    #[inline(always)]
    fn is_at(&self, text: &[u8], at: usize) -> bool {
        let (length, [first, last]) = (self.name.len(), self.words);
        match word(text, at) {
            Some(word) if length < 8 => (word ^ first) & last == 0,
            Some(begin) if length <= 16 => {
                begin == first && word(text, at + length - 8) == Some(last)
            }
            _ => text.get(at..).is_some_and(|text| text.starts_with(&self.name)),
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Null,
    Boolean(bool),
    Text,
    Escaped,
}

impl FieldReader {
    /// For the declared columns, of which those at `read` are output; `None` if one of them is
    /// nested, or of a type that has no text.
    pub(super) fn new(declared: &Schema, read: &[usize]) -> Option<Self> {
        let columns = declared.fields().iter().enumerate();
        let columns = columns.map(|(at, field)| {
            Cells::of(field, read.contains(&at)).map(|cells| Filled { cells, seen: 0 })
        });
        let columns = columns.collect::<Option<_>>()?;
        let names = declared.fields().iter().map(|field| field.name().clone()).collect();
        Some(Self { names, columns, remembered: vec![] })
    }

    /// Reads lines of a text up to the first that it declines. Gives the columns of those before
    /// it, and how many these are.
    pub(super) fn read(
        &mut self,
        text: &str,
        lines: impl Iterator<Item = Range<usize>>,
    ) -> (Vec<ArrayRef>, usize) {
        self.columns.iter_mut().for_each(|column| column.seen = 0);
        let mut rows = 0;
        for line in lines {
            if self.line(text, line, rows as u32 + 1).is_none() {
                break;
            }
            rows += 1;
        }
        let columns = self.columns.iter_mut().map(|column| column.cells.finish(rows, text));
        (columns.collect(), rows)
    }

    /// Reads a line, an object; `None` if it is declined. Some columns may have taken a value then.
    fn line(&mut self, all: &str, line: Range<usize>, number: u32) -> Option<()> {
        let (text, line_end) = (all.as_bytes(), line.end);
        let all = &all[..line_end];
        let begin = after(all.as_bytes(), line.start, b'{')?;
        let mut read = Run { at: begin, place: 0, found: 0, is_closed: false };
        if let Some(end) = after(all.as_bytes(), begin, b'}') {
            (read.at, read.is_closed) = (end, true);
        }
        while !read.is_closed {
            self.read_known(text, number, &mut read)?;
            if !read.is_closed {
                self.read_field(all, number, &mut read)?;
            }
        }
        if read.at != line_end && space(all.as_bytes(), read.at) != line_end {
            return None;
        }
        if read.found < self.columns.len() {
            for column in self.columns.iter_mut().filter(|column| column.seen != number) {
                column.cells.push(Value::Null, 0);
            }
        }
        Some(())
    }

    /// Reads fields that stand as they did in the line before, with values in the common form, as
    /// far as there are such; `None` if the line is declined.
    ///
    /// `text` is that of all lines, so that also the last value of a line is read by words. What is
    /// read may reach into the lines behind: then the object does not end with its line.
    #[inline(never)]
    fn read_known(&mut self, text: &[u8], number: u32, read: &mut Run) -> Option<()> {
        let Self { columns, remembered, .. } = self;
        let Run { mut at, mut found, .. } = *read;
        let mut place = read.place;
        for field in remembered.get(place..).unwrap_or_default() {
            let from = at + field.name.len();
            if !field.is_at(text, at) {
                break;
            }
            let end = match field.column {
                Some(column) => {
                    let column = &mut columns[column];
                    if column.seen == number {
                        break;
                    }
                    let Some(end) = column.cells.read(text, from) else { break };
                    column.seen = number;
                    found += 1;
                    end
                }
                None => match string(text, from) {
                    Some(end) => end,
                    None => break,
                },
            };
            place += 1;
            match text.get(end)? {
                b',' => at = end + 1,
                b'}' => {
                    *read = Run { at: end + 1, place, found, is_closed: true };
                    return Some(());
                }
                _ => {
                    (read.place, read.found) = (place, found);
                    return read.go_on(text, end);
                }
            }
        }
        *read = Run { at, place, found, is_closed: false };
        Some(())
    }

    /// Reads a field of any name and form; `None` if the line is declined.
    fn read_field(&mut self, all: &str, number: u32, read: &mut Run) -> Option<()> {
        let text = all.as_bytes();
        let (column, at) = self.field(text, read.at, read.place)?;
        let end = match column {
            Some(column) => {
                read.found += 1;
                self.value(all, at, (column, number))?
            }
            None => passed(all, at)?,
        };
        read.place += 1;
        read.go_on(text, end)
    }

    /// Reads the value of a column at `at`; gives where it ends.
    fn value(&mut self, all: &str, at: usize, (column, line): (usize, u32)) -> Option<usize> {
        // Of a name that comes twice, the library decides which value counts.
        let Filled { cells, seen } = &mut self.columns[column];
        if std::mem::replace(seen, line) == line {
            return None;
        }
        if let Some(end) = cells.read(all.as_bytes(), at) {
            return Some(end);
        }
        let (found, behind) = value(all, at)?;
        let (kind, from, to) = found?;
        let value = match kind {
            Kind::Null => Value::Null,
            Kind::Boolean(value) => Value::Boolean(value),
            Kind::Text => Value::Text(&all[from..to]),
            Kind::Escaped => Value::Escaped(&all[from..to]),
        };
        cells.push(value, from).then_some(behind)
    }

    /// The column of the field that begins at `at`, and where its value begins.
    fn field(&mut self, text: &[u8], at: usize, place: usize) -> Option<(Option<usize>, usize)> {
        if let Some(remembered) = self.remembered.get(place)
            && remembered.is_at(text, at)
        {
            return Some((remembered.column, at + remembered.name.len()));
        }
        let from = space(text, at);
        let end = string(text, from)?;
        let name = &text[from + 1..end - 1];
        let column = self.names.iter().position(|of| of.as_bytes() == name);
        let behind = space(text, after(text, end, b':')?);
        if behind - at <= NAME_BYTES_MAX {
            let remembered = Remembered::new(&text[at..behind], column);
            if let Some(before) = self.remembered.get_mut(place) {
                *before = remembered;
            } else if place == self.remembered.len() && place < REMEMBERED_MAX {
                self.remembered.push(remembered);
            }
        }
        Some((column, behind))
    }
}

/// How far a line was read.
struct Run {
    /// Where the next field begins; or where the object ends.
    at: usize,
    /// How many fields were read.
    place: usize,
    /// How many columns have a value.
    found: usize,
    /// Whether the object has ended.
    is_closed: bool,
}

impl Run {
    /// Goes on behind a value that ends at `end`; `None` if neither a field follows nor the end.
    fn go_on(&mut self, text: &[u8], end: usize) -> Option<()> {
        let at = space(text, end);
        self.at = at + 1;
        match text.get(at)? {
            b',' => Some(()),
            b'}' => {
                self.is_closed = true;
                Some(())
            }
            _ => None,
        }
    }
}

/// Where a value of a field that is not declared ends.
fn passed(all: &str, at: usize) -> Option<usize> {
    string(all.as_bytes(), at).or_else(|| value(all, at).map(|(_, behind)| behind))
}

/// Where the space at `at` ends.
#[inline(always)]
fn space(text: &[u8], at: usize) -> usize {
    let mut at = at;
    while matches!(text.get(at), Some(b' ' | b'\t' | b'\r' | b'\n')) {
        at += 1;
    }
    at
}

/// Where `token` ends, which is the next one.
#[inline(always)]
fn after(text: &[u8], at: usize, token: u8) -> Option<usize> {
    let at = space(text, at);
    (text.get(at) == Some(&token)).then_some(at + 1)
}

/// A scalar and its place, or `None` for an array or object; and where it ends.
type Found = (Option<(Kind, usize, usize)>, usize);

/// The value that begins at `at`.
fn value(line: &str, at: usize) -> Option<Found> {
    let text = line.as_bytes();
    let word = |word: &str, kind: Kind| {
        let end = at + word.len();
        text[at..].starts_with(word.as_bytes()).then_some((Some((kind, at, end)), end))
    };
    match text.get(at)? {
        b'"' => {
            let (end, escaped) = string_end(text, at + 1)?;
            let kind = if escaped { Kind::Escaped } else { Kind::Text };
            if escaped {
                unescape(&line[at + 1..end], &mut |_| {})?;
            }
            Some((Some((kind, at + 1, end)), end + 1))
        }
        b'-' | b'0'..=b'9' => {
            let end = number_end(text, at)?;
            Some((Some((Kind::Text, at, end)), end))
        }
        b't' => word("true", Kind::Boolean(true)),
        b'f' => word("false", Kind::Boolean(false)),
        b'n' => word("null", Kind::Null),
        b'{' | b'[' => {
            let mut scan = Scan::new(text, at);
            scan.value().ok()?;
            // Escapes in it are for the library to check; how deep it may nest, which is a level
            // less than the line, is checked before that.
            let end = scan.at();
            let found = &text[at..end];
            let is_plain = !found.contains(&b'\\') && !is_deeper_than(found, DEPTH_MAX - 1);
            is_plain.then_some((None, end))
        }
        _ => None,
    }
}

/// Where a string ends whose text begins at `from`, and whether it has escapes.
fn string_end(text: &[u8], from: usize) -> Option<(usize, bool)> {
    let (mut at, mut escaped) = (from, false);
    loop {
        at += memchr::memchr2(b'"', b'\\', text.get(at..)?)?;
        if text[at] == b'"' {
            return Some((at, escaped));
        }
        escaped = true;
        at += 2;
    }
}

/// Where a number ends that is one by the rules of JSON.
fn number_end(text: &[u8], from: usize) -> Option<usize> {
    let digits = |at: usize| {
        let mut end = at;
        while text.get(end).is_some_and(u8::is_ascii_digit) {
            end += 1;
        }
        (end > at).then_some(end)
    };
    let first = if text[from] == b'-' { from + 1 } else { from };
    let mut at = digits(first)?;
    if text[first] == b'0' && at > first + 1 {
        return None;
    }
    if text.get(at) == Some(&b'.') {
        at = digits(at + 1)?;
    }
    if matches!(text.get(at), Some(b'e' | b'E')) {
        at += 1;
        if matches!(text.get(at), Some(b'+' | b'-')) {
            at += 1;
        }
        at = digits(at)?;
    }
    // The library takes all of these together for one number.
    let goes_on = matches!(text.get(at), Some(b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E'));
    (!goes_on).then_some(at)
}
