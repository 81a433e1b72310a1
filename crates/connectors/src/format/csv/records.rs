//! Bytes cut into records.

use std::borrow::Cow;

use csv_core::ReadRecordResult;
use dataflow::error::ConnectorError;

use super::plain::{Come, FieldAt, PlainScan, Span};
use super::{Dialect, QUOTED_BYTES_MAX, RECORD_BYTES_MAX};
use crate::format::input::{BATCH_BYTES_MAX, ByteInput, Filled};
use crate::format::rows::{RefusedRow, RowOrigin};
use crate::format::{RecordStart, seek};

/// Bytes that are kept of a record that is too long.
const KEPT_BYTES: usize = 1 << 10;

/// Where a record begins, and in which line.
#[derive(Clone, Copy)]
struct RecordAt {
    from: usize,
    line: u64,
}

/// The record that is being read, as far as it has arrived.
#[derive(Clone, Copy)]
struct Begun {
    from: usize,
    line: u64,
    /// Where its text begins in `data`.
    used: usize,
    /// Its fields that have ended.
    fields: usize,
}

/// Bytes cut into records, a batch at a time.
pub(super) struct Records {
    pub(super) input: ByteInput,
    parser: csv_core::Reader,
    pub(super) dialect: Dialect,
    /// Fields that a record must have; 0 until known.
    pub(super) width: usize,
    /// Unquoted text of fields, one after the other.
    pub(super) data: Vec<u8>,
    /// Bytes of `data` in use.
    pub(super) used: usize,
    /// Where the text of each field stands: `width` per record.
    pub(super) fields: Vec<FieldAt>,
    pub(super) spans: Vec<Span>,
    /// Those of `spans` that could not be told apart.
    pub(super) refused: Vec<RefusedRow>,
    /// The record that has not arrived as a whole.
    begun: Option<Begun>,
    /// The ends of its fields, counted from its beginning.
    ends_of_record: Vec<usize>,
    /// Whether the mark of an encoding may still stand ahead.
    at_start: bool,
    /// The line whose rest is ahead, which is too long to be a record.
    in_rest: Option<u64>,
    /// Whether the end of the input ended the record read last.
    ended_by_input: bool,
    /// Where no record begins any more that is read.
    pub(super) end: u64,
    plain: PlainScan,
    /// Whether the library reads each record, for a comparison.
    #[cfg(test)]
    pub(super) by_library: bool,
}

/// The state of the header before the first record.
pub(super) enum Header {
    Names(Vec<String>),
    /// It has not arrived yet.
    Later,
    /// There is nothing at all.
    Nothing,
}

/// The outcome of an attempt to read a record.
enum Attempt {
    Record {
        fields: usize,
    },
    /// One that is longer than a record may be. It has passed, and is not kept.
    Long,
    /// One whose end was not found.
    Endless,
    Later,
    End,
}

/// Why no more records were read.
pub(super) enum Stop {
    /// The batch is as large as it may be.
    Full,
    /// Nothing more has arrived.
    Later,
    /// That was the last.
    End,
}

impl Records {
    pub(super) fn new(input: ByteInput, dialect: Dialect) -> Self {
        let parser = csv_core::ReaderBuilder::new()
            .delimiter(dialect.delimiter)
            .quote(dialect.quote)
            .comment(dialect.comment)
            .build();
        let mut records = Self {
            input,
            parser,
            dialect,
            width: 0,
            data: vec![0; 64 << 10],
            used: 0,
            fields: Vec::new(),
            spans: Vec::new(),
            refused: Vec::new(),
            begun: None,
            ends_of_record: vec![0; 64],
            at_start: true,
            in_rest: None,
            ended_by_input: false,
            end: u64::MAX,
            plain: PlainScan::default(),
            #[cfg(test)]
            by_library: false,
        };
        records.restart(1);
        records
    }

    /// Passes the mark of the encoding; whether it can be told that there is none.
    fn pass_mark(&mut self) -> Result<bool, ConnectorError> {
        self.at_start = self.at_start && self.input.pass_mark()? == Filled::Later;
        Ok(!self.at_start)
    }

    /// Where the next record begins: its offset, its line, and whether the rest of a line that is
    /// too long stands there.
    pub(super) fn place(&self) -> RecordStart {
        let rest = self.in_rest.is_some();
        match &self.begun {
            Some(begun) => {
                RecordStart { offset: self.input.offset(begun.from), record: begun.line, rest }
            }
            None => {
                let line = self.in_rest.unwrap_or(self.parser.line());
                RecordStart { offset: self.offset(), record: line, rest }
            }
        }
    }

    fn offset(&self) -> u64 {
        self.input.offset(self.input.position())
    }

    /// Whether the next record is one that is not read any more.
    fn is_behind(&self) -> bool {
        self.begun.is_none() && self.offset() >= self.end
    }

    /// Goes on at a place that [`place`](Self::place) gave; `false` if its bytes have not come yet.
    pub(super) fn go_to(&mut self, place: RecordStart) -> Result<bool, ConnectorError> {
        if place.offset > 0 {
            self.at_start = false;
        }
        if !seek(&mut self.input, place)? {
            return Ok(false);
        }
        self.begun = None;
        self.plain = PlainScan::default();
        self.restart(place.record);
        self.in_rest = place.rest.then_some(place.record);
        Ok(true)
    }

    /// The names of the columns.
    pub(super) fn header(&mut self) -> Result<Header, ConnectorError> {
        if !self.pass_mark()? {
            return Ok(Header::Later);
        }
        let begun = self.begin();
        let fields = match self.attempt()? {
            Attempt::Record { fields } => fields,
            Attempt::Later => return Ok(Header::Later),
            Attempt::End => return Ok(Header::Nothing),
            Attempt::Long | Attempt::Endless => {
                return Err(too_long(self.input.name().to_owned()));
            }
        };
        self.begun = None;
        self.width = fields;
        let text = &self.data[begun.used..self.used];
        let mut start = 0;
        let names = self.ends_of_record[..fields].iter().map(|end| {
            let name = String::from_utf8_lossy(&text[start..*end]);
            start = *end;
            name.trim().to_owned()
        });
        Ok(Header::Names(names.collect()))
    }

    /// How many fields the first record has, which is to be read again; 0 where there is none.
    pub(super) fn first_width(&mut self) -> Result<usize, ConnectorError> {
        self.pass_mark()?;
        let Begun { from, .. } = self.begin();
        if let Attempt::Record { fields } = self.attempt()? {
            self.begun = None;
            self.width = fields;
            self.input.rewind(from);
            self.restart(1);
        }
        Ok(self.width)
    }

    /// The record that is being read; a new one where none is.
    fn begin(&mut self) -> Begun {
        *self.begun.get_or_insert(Begun {
            from: self.input.position(),
            line: self.parser.line(),
            used: self.used,
            fields: 0,
        })
    }

    /// Forgets all records but the one that is being read.
    fn begin_batch(&mut self) {
        self.fields.clear();
        self.spans.clear();
        self.refused.clear();
        match &mut self.begun {
            Some(begun) => {
                self.input.begin_batch(begun.from);
                self.data.copy_within(begun.used..self.used, 0);
                self.used -= begun.used;
                begun.from = 0;
                begun.used = 0;
            }
            None => {
                self.input.begin_batch(self.input.position());
                self.used = 0;
            }
        }
    }

    /// Reads up to `rows_max` records. One that cannot be told apart is refused, and stands among
    /// the others without text.
    pub(super) fn read(&mut self, rows_max: usize) -> Result<Stop, ConnectorError> {
        if !self.pass_mark()? {
            return Ok(Stop::Later);
        }
        self.begin_batch();
        if self.is_behind() {
            return Ok(Stop::End);
        }
        if !self.pass_rest()? {
            return Ok(Stop::Later);
        }
        while self.spans.len() < rows_max
            && self.input.position() < BATCH_BYTES_MAX
            && self.in_rest.is_none()
            && !self.is_behind()
        {
            if self.begun.is_none() && self.plain_records(rows_max) {
                continue;
            }
            let Begun { from, line, used, .. } = self.begin();
            let attempt = self.attempt()?;
            if matches!(attempt, Attempt::Later) {
                return Ok(Stop::Later);
            }
            self.begun = None;
            let refusal = match attempt {
                Attempt::Later | Attempt::End => return Ok(Stop::End),
                Attempt::Endless => Some(if self.has_lines(from, line) {
                    format!("a quoted value does not end within {QUOTED_BYTES_MAX} bytes")
                } else {
                    format!("the line is longer than {RECORD_BYTES_MAX} bytes")
                }),
                Attempt::Long if !self.has_lines(from, line) => {
                    self.refuse_whole("line", RecordAt { from, line }, used);
                    continue;
                }
                Attempt::Record { .. } | Attempt::Long if self.is_torn(from) => {
                    Some("a quoted value does not end as it should".into())
                }
                Attempt::Long => {
                    self.refuse_whole("record", RecordAt { from, line }, used);
                    continue;
                }
                Attempt::Record { fields } if fields != self.width => {
                    Some(format!("expected {} fields, found {fields}", self.width))
                }
                Attempt::Record { fields } => {
                    let mut begin = used;
                    self.fields.extend(self.ends_of_record[..fields].iter().map(|end| {
                        let from = std::mem::replace(&mut begin, used + end);
                        FieldAt::unquoted(from, used + end)
                    }));
                    self.push(from, self.input.position(), line);
                    None
                }
            };
            if let Some(reason) = refusal {
                self.refuse(reason, used);
                self.pass_line(from, line)?;
            }
        }
        Ok(Stop::Full)
    }

    /// Reads records as most are, as far as they are ahead as a whole: of as many fields as there
    /// must be, whose quotes are around whole fields, on one line. What the library would read is
    /// the same. `false`: the next one is none of them.
    fn plain_records(&mut self, rows_max: usize) -> bool {
        #[cfg(test)]
        if self.by_library {
            return false;
        }
        let (from, mut line) = (self.input.position(), self.parser.line());
        let offset = self.input.offset(0);
        let begin_max = usize::try_from(self.end.saturating_sub(offset)).unwrap_or(usize::MAX);
        let come = Come {
            bytes: self.input.come(),
            offset,
            begin_max: begin_max.min(BATCH_BYTES_MAX),
            rows_max,
            dialect: &self.dialect,
            width: self.width,
        };
        let into = (&mut self.spans, &mut self.fields, &mut line);
        let to = self.plain.read(&come, from, into);
        self.input.pass(to - from);
        self.parser.set_line(line);
        to > from
    }

    /// Adds a record. A batch and its last record have less than 4 GiB.
    fn push(&mut self, from: usize, to: usize, line: u64) {
        self.spans.push(Span { from: from as u32, to: to as u32, line });
    }

    /// Refuses the record whose span comes next.
    fn refuse(&mut self, reason: String, used: usize) {
        self.used = used;
        let nothing = FieldAt::unquoted(0, 0);
        self.fields.extend(std::iter::repeat_n(nothing, self.width));
        self.refused.push(RefusedRow { row: self.spans.len(), reason });
    }

    /// Refuses a record that is too long but ends as it should, and keeps its beginning.
    fn refuse_whole(&mut self, what: &str, at: RecordAt, used: usize) {
        let RecordAt { from, line } = at;
        self.refuse(format!("the {what} is longer than {RECORD_BYTES_MAX} bytes"), used);
        let raw = self.input.bytes(from, self.input.position());
        let (_, text) = skip_blank(raw, line, self.dialect.comment);
        let to = from + raw.len() - text.len() + KEPT_BYTES.min(text.len());
        self.push(from, to, line);
    }

    /// Whether the record read last goes on behind its first line.
    fn has_lines(&self, from: usize, line: u64) -> bool {
        let raw = self.input.bytes(from, self.input.position());
        let (_, text) = skip_blank(raw, line, self.dialect.comment);
        text.trim_ascii_end().contains(&b'\n')
    }

    /// Reads on in the record that is being read, into `data` and `ends_of_record`.
    fn attempt(&mut self) -> Result<Attempt, ConnectorError> {
        let mut begun = self.begin();
        loop {
            if self.input.ahead().is_empty() && self.input.fill(begun.line)? == Filled::Later {
                self.begun = Some(begun);
                return Ok(Attempt::Later);
            }
            self.ended_by_input = self.input.ahead().is_empty();
            let (result, passed, written, ended) = self.parser.read_record(
                self.input.ahead(),
                &mut self.data[self.used..],
                &mut self.ends_of_record[begun.fields..],
            );
            self.input.pass(passed);
            self.used += written;
            begun.fields += ended;
            let length = self.input.position() - begun.from;
            if length > RECORD_BYTES_MAX {
                // It is read on to know where it ends.
                (self.used, begun.fields) = (begun.used, 0);
            }
            match result {
                ReadRecordResult::Record if length > RECORD_BYTES_MAX => return Ok(Attempt::Long),
                ReadRecordResult::Record => return Ok(Attempt::Record { fields: begun.fields }),
                ReadRecordResult::End => return Ok(Attempt::End),
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::OutputFull => self.data.resize(self.data.len() * 2, 0),
                ReadRecordResult::OutputEndsFull => {
                    self.ends_of_record.resize(self.ends_of_record.len() * 2, 0);
                }
            }
            if length > QUOTED_BYTES_MAX {
                return Ok(Attempt::Endless);
            }
        }
    }

    /// Whether the record read last spans lines, or the end of the file, without its quotes being
    /// closed. Nothing but its own bytes decides, so that a reader from another place on agrees.
    fn is_torn(&self, from: usize) -> bool {
        let raw = self.input.bytes(from, self.input.position());
        let (_, text) = skip_blank(raw, 0, self.dialect.comment);
        let is_one_line = !text.strip_suffix(b"\n").unwrap_or(text).contains(&b'\n');
        if is_one_line && !self.ended_by_input {
            return false;
        }
        !quotes_close(text, self.dialect.delimiter, self.dialect.quote)
    }

    /// Takes the first line of a record for all of it and goes on behind it.
    fn pass_line(&mut self, from: usize, line: u64) -> Result<(), ConnectorError> {
        let to = self.input.position();
        let raw = self.input.bytes(from, to);
        let (first, text) = skip_blank(raw, line, self.dialect.comment);
        let skipped = raw.len() - text.len();
        let to = match text.iter().position(|byte| *byte == b'\n') {
            Some(end) => {
                let behind = from + skipped + end + 1;
                self.input.rewind(behind);
                self.restart(first + 1);
                behind
            }
            None if to - from > RECORD_BYTES_MAX => {
                self.in_rest = Some(first);
                from + skipped + KEPT_BYTES.min(text.len())
            }
            None => to,
        };
        self.push(from, to, line);
        Ok(())
    }

    /// Passes the rest of a line that is too long; whether all of it has come.
    fn pass_rest(&mut self) -> Result<bool, ConnectorError> {
        let Some(line) = self.in_rest else { return Ok(true) };
        loop {
            let ahead = self.input.ahead();
            let end = ahead.iter().position(|byte| *byte == b'\n');
            self.input.pass(end.map_or(ahead.len(), |end| end + 1));
            self.input.begin_batch(self.input.position());
            if end.is_none() {
                match self.input.fill(line)? {
                    Filled::More => continue,
                    Filled::Later => return Ok(false),
                    Filled::End => {}
                }
            }
            self.in_rest = None;
            self.restart(line + 1);
            return Ok(true);
        }
    }

    /// Begins a record in a line.
    fn restart(&mut self, line: u64) {
        self.parser.reset();
        // The library takes the mark of an encoding for none in front of the first byte alone.
        self.parser.read_record(b"\n", &mut [0], &mut [0]);
        self.parser.set_line(line);
    }

    /// Which fields of this batch stand between quotes: `width` per record.
    pub(super) fn quoted(&self) -> Vec<bool> {
        let (delimiter, quote) = (self.dialect.delimiter, self.dialect.quote);
        let mut quoted = vec![false; self.spans.len() * self.width];
        for (row, fields) in quoted.chunks_mut(self.width.max(1)).enumerate() {
            let (_, mut rest) = self.source_of(row);
            if !rest.contains(&quote) {
                continue;
            }
            for field in fields {
                *field = rest.first() == Some(&quote);
                let mut inside = false;
                let end = rest.iter().position(|byte| {
                    // A doubled quote ends and begins at once.
                    inside ^= *field && *byte == quote;
                    *byte == delimiter && !inside
                });
                rest = end.map_or(&[], |end| &rest[end + 1..]);
            }
        }
        quoted
    }

    /// The bytes of the batch, and the unquoted text.
    pub(super) fn texts(&self) -> [&[u8]; 2] {
        [self.input.bytes(0, self.input.position()), &self.data[..self.used]]
    }

    /// Line and text of a record of this batch.
    fn source_of(&self, row: usize) -> (u64, &[u8]) {
        let span = &self.spans[row];
        let raw = self.input.bytes(span.from as usize, span.to as usize);
        let (line, text) = skip_blank(raw, span.line, self.dialect.comment);
        (line, text.trim_ascii_end())
    }
}

impl RowOrigin for Records {
    fn name(&self) -> &str {
        self.input.name()
    }

    fn record(&self, row: usize) -> u64 {
        self.source_of(row).0
    }

    fn text(&self, row: usize) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.source_of(row).1)
    }
}

/// Blank and comment lines before a record belong to its bytes: passes them.
fn skip_blank(raw: &[u8], mut line: u64, comment: Option<u8>) -> (u64, &[u8]) {
    let mut rest = raw;
    loop {
        match rest {
            [b'\n', tail @ ..] => {
                line += 1;
                rest = tail;
            }
            [b'\r', tail @ ..] => rest = tail,
            [first, ..] if Some(*first) == comment => {
                let end = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
                rest = &rest[end..];
            }
            _ => return (line, rest),
        }
    }
}

/// Whether every quoted field of a record ends with a quote before a delimiter or the end.
fn quotes_close(text: &[u8], delimiter: u8, quote: u8) -> bool {
    let mut rest = text;
    loop {
        if let [first, tail @ ..] = rest
            && *first == quote
        {
            rest = tail;
            loop {
                let Some(end) = rest.iter().position(|byte| *byte == quote) else { return false };
                rest = &rest[end + 1..];
                match rest {
                    [next, tail @ ..] if *next == quote => rest = tail,
                    [next, ..] if *next != delimiter && !matches!(next, b'\r' | b'\n') => {
                        return false;
                    }
                    _ => break,
                }
            }
        }
        match rest.iter().position(|byte| *byte == delimiter) {
            Some(end) => rest = &rest[end + 1..],
            None => return true,
        }
    }
}

fn too_long(place: String) -> ConnectorError {
    ConnectorError::Io {
        place,
        message: format!("its header does not end within {RECORD_BYTES_MAX} bytes"),
        hint: Some("is it a CSV file? check 'format' and 'csv.quote'".into()),
    }
}
