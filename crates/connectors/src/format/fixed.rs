//! `fixed`: records of one length, as packed C structures and NumPy's structured arrays lie in
//! memory.
//!
//! ```text
//! TIMESTAMP(3)   BIGINT     VARCHAR, 'fixed.lengths' = 'name:5'
//! │ 8 bytes      │ 8 bytes  │ 5 bytes │ 3 passed over │          'fixed.record_bytes' = '24'
//! ```
//!
//! Columns stand in the declared order without gaps; numbers and times are little-endian, a time in
//! ticks of its declared type, a boolean is a byte. Texts are padded with zeros. There is no place
//! for NULL but in a time, where it is the least number (NumPy's NaT).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, AsArray, BinaryBuilder, BooleanArray, make_array};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow::compute::cast;
use arrow::datatypes::{ArrowNativeType, DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use dataflow::connector::OptionSpec;
use dataflow::error::ConnectorError;
use dataflow::position::refused;

use super::input::{ByteInput, Filled};
use super::rows::{Refuser, is_text, unfit};
use super::typed::Mapping;
use super::{Decoded, RecordDecoder, RecordStart};
use crate::options::{OptionReader, nearest, refuse, sql_type};

/// Bytes of a record at most.
const RECORD_BYTES_MAX: usize = 1 << 20;

/// Bytes of records that are decoded column by column before the next ones are looked at: they stay
/// in a first-level cache meanwhile.
const CHUNK_BYTES: usize = 16 << 10;

/// NumPy's "not a time".
const NOT_A_TIME: i64 = i64::MIN;

pub(crate) const OPTIONS: [OptionSpec; 2] = [
    OptionSpec {
        key: "fixed.lengths",
        values: "column:bytes, separated by commas",
        default: "",
        doc: "How long each text of a record of fixed length is; shorter ones end with zeros.",
    },
    OptionSpec {
        key: "fixed.record_bytes",
        values: "integer",
        default: "the columns and nothing else",
        doc: "How long a record of fixed length is; bytes behind its columns are ignored, and \
              written as zeros.",
    },
];

/// The options of fixed-length records.
#[derive(Debug, Clone)]
pub(crate) struct FixedOptions {
    lengths: BTreeMap<String, usize>,
    record_bytes: Option<usize>,
}

impl FixedOptions {
    pub(crate) fn new(options: OptionReader<'_>) -> Result<Self, ConnectorError> {
        let [lengths, record_bytes] = OPTIONS.map(|option| option.key);
        let most = RECORD_BYTES_MAX;
        let fits = |bytes: usize| (1..=most).contains(&bytes);
        let mut given = BTreeMap::new();
        let texts = options.text(lengths).unwrap_or_default();
        for text in texts.split(',').map(str::trim).filter(|text| !text.is_empty()) {
            let parts = text.rsplit_once(':').map(|(name, bytes)| (name.trim(), bytes.trim()));
            let parts = parts.and_then(|(name, bytes)| Some((name, bytes.parse().ok()?)));
            match parts.filter(|(name, bytes)| !name.is_empty() && fits(*bytes)) {
                Some((name, bytes)) => given.insert(name.to_owned(), bytes),
                None => {
                    let message = format!("'{text}' is no column with its bytes, {most} at most");
                    let hint = format!("write '{lengths}' = 'name:16, city:32'");
                    return Err(refuse(lengths, message, Some(hint)));
                }
            };
        }
        let bytes = options.integer(record_bytes, 1)?;
        let bytes = bytes.map(|bytes| match usize::try_from(bytes) {
            Ok(bytes) if fits(bytes) => Ok(bytes),
            _ => Err(refuse(record_bytes, format!("a record has {most} bytes at most"), None)),
        });
        Ok(Self { lengths: given, record_bytes: bytes.transpose()? })
    }
}

/// Where the columns of a record stand.
#[derive(Debug, Clone)]
pub(crate) struct FixedLayout {
    places: Vec<Place>,
    record_bytes: usize,
}

#[derive(Debug, Clone)]
struct Place {
    field: Field,
    bytes: Range<usize>,
}

impl FixedLayout {
    /// # Errors
    /// When a column cannot stand in a record, or the options do not fit the columns.
    pub(crate) fn new(schema: &Schema, given: &FixedOptions) -> Result<Self, ConnectorError> {
        let [lengths, record_bytes] = OPTIONS.map(|option| option.key);
        for name in given.lengths.keys() {
            let texts = schema.fields().iter().filter(|field| is_text(field.data_type()));
            let texts: Vec<&str> = texts.map(|field| field.name().as_str()).collect();
            if !texts.contains(&name.as_str()) {
                let hint = nearest(name, texts).map(|near| format!("did you mean '{near}'?"));
                return Err(refuse(lengths, format!("there is no text column '{name}'"), hint));
            }
        }
        let mut places: Vec<Place> = Vec::with_capacity(schema.fields().len());
        for field in schema.fields() {
            let begin = places.last().map_or(0, |place| place.bytes.end);
            let bytes = begin..begin + width(field, given)?;
            places.push(Place { field: field.as_ref().clone(), bytes });
        }
        let needed = places.last().map_or(0, |place| place.bytes.end);
        if needed > RECORD_BYTES_MAX {
            let message = format!("the columns take {needed} bytes; {RECORD_BYTES_MAX} at most");
            return Err(refuse(lengths, message, None));
        }
        let bytes = given.record_bytes.unwrap_or(needed);
        if bytes < needed || bytes == 0 {
            let message = format!("the columns take {needed} bytes, and a record has {bytes}");
            let hint = format!("write '{record_bytes}' = '{}'", needed.max(1));
            return Err(refuse(record_bytes, message, Some(hint)));
        }
        Ok(Self { places, record_bytes: bytes })
    }

    pub(crate) fn record_bytes(&self) -> usize {
        self.record_bytes
    }

    /// The columns as [`decode`](Self::decode) gives them.
    fn decoded(&self) -> SchemaRef {
        let fields = self.places.iter().map(|place| {
            // Whether it is text turns out where it becomes some.
            let data_type = if is_text(place.field.data_type()) {
                DataType::Binary
            } else {
                place.field.data_type().clone()
            };
            Field::new(place.field.name(), data_type, true)
        });
        Arc::new(Schema::new(fields.collect::<Vec<_>>()))
    }

    /// Some of the columns of whole records. Texts come out as bytes.
    ///
    /// # Errors
    /// When texts are longer together than a column may be.
    pub(crate) fn decode(
        &self,
        records: &[u8],
        columns: &[usize],
    ) -> Result<Vec<ArrayRef>, ArrowError> {
        let rows = records.len() / self.record_bytes;
        let places = columns.iter().map(|column| &self.places[*column]);
        let mut values: Vec<Values> =
            places.clone().map(|place| Values::new(place, rows)).collect();
        let chunk = (CHUNK_BYTES / self.record_bytes).max(1) * self.record_bytes;
        for chunk in records.chunks(chunk) {
            for (place, values) in places.clone().zip(&mut values) {
                values.extend(chunk, self.record_bytes, place.bytes.clone());
            }
        }
        places.zip(values).map(|(place, values)| values.finish(&place.field)).collect()
    }

    /// Appends the rows as records.
    ///
    /// # Errors
    /// When a value has no place in a record: NULL, or a text that is too long. Then nothing was
    /// appended.
    pub(crate) fn encode(
        &self,
        columns: &[ArrayRef],
        rows: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        let begin = out.len();
        out.resize(begin + rows * self.record_bytes, 0);
        for (place, column) in self.places.iter().zip(columns) {
            let written = place.write(column, &mut out[begin..], self.record_bytes);
            if let Err(error) = written {
                out.truncate(begin);
                return Err(format!("column '{}': {error}", place.field.name()));
            }
        }
        Ok(())
    }
}

/// Bytes of a column in a record.
fn width(field: &Field, given: &FixedOptions) -> Result<usize, ConnectorError> {
    let refused = |message: String, hint: String| ConnectorError::Column {
        column: field.name().clone(),
        message,
        hint: Some(hint),
    };
    let data_type = field.data_type();
    match data_type {
        _ if is_text(data_type) => given.lengths.get(field.name()).copied().ok_or_else(|| {
            let hint = format!("write 'fixed.lengths' = '{}:16'", field.name());
            refused("a text in a record of fixed length needs one".into(), hint)
        }),
        DataType::Boolean => Ok(1),
        DataType::Float32 | DataType::Float64 | DataType::Date32 | DataType::Timestamp(..) => {
            Ok(data_type.primitive_width().unwrap_or(8))
        }
        _ if data_type.is_integer() => Ok(data_type.primitive_width().unwrap_or(8)),
        _ => {
            let message = format!("records of fixed length cannot carry {}", sql_type(data_type));
            Err(refused(message, "write 'format' = 'arrow' or 'parquet'".into()))
        }
    }
}

/// The values of a column that were read so far.
enum Values {
    Flags(Vec<u8>),
    One(Vec<u8>),
    Two(Vec<u16>),
    Four(Vec<u32>),
    Eight(Vec<u64>),
    Texts(BinaryBuilder),
}

impl Values {
    fn new(place: &Place, rows: usize) -> Self {
        match (place.field.data_type(), place.bytes.len()) {
            (DataType::Boolean, _) => Self::Flags(Vec::with_capacity(rows)),
            (text, bytes) if is_text(text) => {
                Self::Texts(BinaryBuilder::with_capacity(rows, rows.saturating_mul(bytes)))
            }
            (_, 1) => Self::One(Vec::with_capacity(rows)),
            (_, 2) => Self::Two(Vec::with_capacity(rows)),
            (_, 4) => Self::Four(Vec::with_capacity(rows)),
            _ => Self::Eight(Vec::with_capacity(rows)),
        }
    }

    /// Reads on, from whole records.
    fn extend(&mut self, records: &[u8], record_bytes: usize, bytes: Range<usize>) {
        let at = bytes.start;
        match self {
            Self::Flags(out) | Self::One(out) => {
                strided(records, record_bytes, at, out, u8::from_le_bytes);
            }
            Self::Two(out) => strided(records, record_bytes, at, out, u16::from_le_bytes),
            Self::Four(out) => strided(records, record_bytes, at, out, u32::from_le_bytes),
            Self::Eight(out) => strided(records, record_bytes, at, out, u64::from_le_bytes),
            Self::Texts(out) => records.chunks_exact(record_bytes).for_each(|record| {
                let text = &record[bytes.clone()];
                let length = text.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
                out.append_value(&text[..length]);
            }),
        }
    }

    fn finish(self, field: &Field) -> Result<ArrayRef, ArrowError> {
        let (rows, buffer) = match self {
            Self::Flags(flags) => {
                let bits = BooleanBuffer::collect_bool(flags.len(), |row| flags[row] != 0);
                return Ok(Arc::new(BooleanArray::new(bits, None)));
            }
            Self::Texts(mut texts) => return Ok(Arc::new(texts.finish())),
            Self::One(values) => (values.len(), Buffer::from_vec(values)),
            Self::Two(values) => (values.len(), Buffer::from_vec(values)),
            Self::Four(values) => (values.len(), Buffer::from_vec(values)),
            Self::Eight(values) => (values.len(), Buffer::from_vec(values)),
        };
        let times = match field.data_type() {
            DataType::Timestamp(..) => buffer.typed_data::<i64>(),
            _ => &[],
        };
        // Every value is looked at, so that no branch depends on one.
        let nulls = times.iter().fold(false, |any, time| any | (*time == NOT_A_TIME)).then(|| {
            let valid = BooleanBuffer::collect_bool(rows, |row| times[row] != NOT_A_TIME);
            NullBuffer::new(valid)
        });
        let data = ArrayData::builder(field.data_type().clone()).len(rows).nulls(nulls);
        Ok(make_array(data.add_buffer(buffer).build()?))
    }
}

/// Appends the number at a place of each record.
#[inline(always)]
fn strided<T: ArrowNativeType, const BYTES: usize>(
    records: &[u8],
    record_bytes: usize,
    at: usize,
    out: &mut Vec<T>,
    number: impl Fn([u8; BYTES]) -> T,
) {
    out.extend(records.chunks_exact(record_bytes).map(|record| {
        let mut bytes = [0; BYTES];
        bytes.copy_from_slice(&record[at..at + BYTES]);
        number(bytes)
    }));
}

impl Place {
    /// Writes a column to its place in each of as many records.
    fn write(
        &self,
        column: &ArrayRef,
        records: &mut [u8],
        record_bytes: usize,
    ) -> Result<(), String> {
        let (data_type, width) = (self.field.data_type(), self.bytes.len());
        let records = records.chunks_exact_mut(record_bytes).map(|record| {
            // Checked once for each record: the bytes of a column lie within it.
            &mut record[self.bytes.clone()]
        });
        let is_time = matches!(data_type, DataType::Timestamp(..));
        if column.null_count() > 0 && !is_time {
            return Err("NULL has no place in a record of fixed length: write coalesce(…)".into());
        }
        if is_text(data_type) {
            let texts = cast(column, &DataType::Utf8).map_err(|error| error.to_string())?;
            for (text, to) in texts.as_string::<i32>().iter().flatten().zip(records) {
                if text.len() > width || text.ends_with('\0') {
                    let why = if text.len() > width { "is longer" } else { "ends with a zero" };
                    return Err(format!("'{text}' {why}; its place has {width} bytes"));
                }
                to[..text.len()].copy_from_slice(text.as_bytes());
            }
            return Ok(());
        }
        if let Some(flags) = column.as_boolean_opt() {
            records.zip(flags.values()).for_each(|(to, flag)| to[0] = u8::from(flag));
            return Ok(());
        }
        let data = column.to_data();
        let bytes = &data.buffers()[0].as_slice()[data.offset() * width..];
        for (row, (to, value)) in records.zip(bytes.chunks_exact(width)).enumerate() {
            if is_time && column.is_null(row) {
                to.copy_from_slice(&NOT_A_TIME.to_le_bytes())
            } else {
                to.copy_from_slice(value)
            }
        }
        Ok(())
    }
}

/// Records that are being read.
pub(crate) struct FixedDecoder {
    input: ByteInput,
    given: FixedOptions,
    /// Where the columns stand, and which of them are read.
    known: Option<(FixedLayout, Mapping)>,
    /// The number of the record to be read next.
    record: u64,
    /// Where to go on.
    resume: Option<RecordStart>,
    refuser: Refuser,
}

impl FixedDecoder {
    pub(crate) fn new(input: ByteInput, given: FixedOptions, refuser: Refuser) -> Self {
        Self { input, given, known: None, record: 1, resume: None, refuser }
    }

    /// Behind the last whole record.
    fn end(&mut self, record_bytes: usize) -> Result<Decoded, ConnectorError> {
        let rest = self.input.ahead();
        if !rest.is_empty() {
            let place = format!("{}:{}", self.input.name(), self.record);
            let reason = format!("cut off: {} of {record_bytes} bytes", rest.len());
            self.refuser.refuse(place, reason, rest)?;
            self.input.pass(rest.len());
        }
        Ok(Decoded::End)
    }
}

impl RecordDecoder for FixedDecoder {
    fn place(&self) -> RecordStart {
        let offset = self.input.offset(self.input.position());
        self.resume.unwrap_or(RecordStart { offset, record: self.record, rest: false })
    }

    fn go_to(&mut self, place: RecordStart) {
        self.resume = (place.offset > 0).then_some(place);
    }

    fn start(&mut self) -> Result<bool, ConnectorError> {
        if self.known.is_none() {
            let target = &self.refuser.target;
            let layout = FixedLayout::new(&target.declared, &self.given)?;
            let mapping = Mapping::new(target, &layout.decoded(), self.input.name())?;
            self.known = Some((layout, mapping));
        }
        Ok(true)
    }

    fn decode(&mut self, rows_max: usize) -> Result<Decoded, ConnectorError> {
        self.start()?;
        if let (Some(place), Some((layout, _))) = (self.resume, &self.known) {
            let before = place.record.saturating_sub(1).checked_mul(layout.record_bytes as u64);
            if before != Some(place.offset) {
                let RecordStart { offset, record, .. } = place;
                let message = format!("record {record} does not begin at byte {offset}");
                return Err(refused(self.input.name(), message));
            }
            if !self.input.skip_to(place.offset, place.record)? {
                return Ok(Decoded::Later);
            }
            (self.record, self.resume) = (place.record, None);
        }
        loop {
            let Some((layout, mapping)) = &self.known else { return Ok(Decoded::Later) };
            let ahead = self.input.ahead();
            let rows = (ahead.len() / layout.record_bytes).min(rows_max);
            if rows == 0 {
                let record_bytes = layout.record_bytes;
                match self.input.fill(self.record)? {
                    Filled::More => continue,
                    Filled::Later => return Ok(Decoded::Later),
                    Filled::End => return self.end(record_bytes),
                }
            }
            let (bytes, read) = (rows * layout.record_bytes, mapping.columns_read());
            let columns = layout.decode(&ahead[..bytes], &read);
            let options = RecordBatchOptions::new().with_row_count(Some(rows));
            let batch = columns.and_then(|columns| {
                let schema = Arc::new(layout.decoded().project(&read)?);
                RecordBatch::try_new_with_options(schema, columns, &options)
            });
            let batch = batch.map_err(|error| unfit(self.input.name(), &error))?;
            let batch = mapping.rows(&self.refuser, &batch, self.input.name(), &self.record)?;
            self.record += rows as u64;
            self.input.pass(bytes);
            self.input.begin_batch(self.input.position());
            if batch.num_rows() > 0 {
                return Ok(Decoded::Batch(batch));
            }
        }
    }
}

#[cfg(test)]
mod tests;
