//! Rows on the wire: how a batch lies in a slot.
//!
//! ```text
//! ┌ 64-byte aligned ────────────────────────────────────────────────┐
//! │ message bytes │ extra bytes │ record batch message │ extra │ 0 … │ buffers, 64-byte aligned │
//! └──────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Both sides know the schema from the plan, so only buffers and their lengths travel. The
//! receiver's arrays point into the slot; its credit returns when the last of them is dropped.
//! Dictionaries and views travel as plain values and are turned back on arrival. What arrives is
//! validated like a file from a stranger.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::buffer::Buffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::ipc::reader::RecordBatchDecoder;
use arrow::ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions};
use arrow::ipc::{self, MessageHeader, root_as_message};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use bytes::Bytes;

use crate::error::DataflowError;
use crate::error::panics::caught;
use crate::rows::narrow::Widen;

/// Buffers lie at multiples of this, and so does the first one in its slot.
const ALIGNMENT: usize = 64;

/// So many bytes of an array are never too many to be held in vain.
const SMALL_BYTES: usize = 1 << 12;

/// Rows of a payload, at most: a column of NULLs states its length and has no bytes.
const ROWS_MAX: i64 = 1 << 28;

/// Bytes before the message: its length and that of the extra.
const PREFIX: usize = 8;

/// Turns batches of one schema into payloads.
pub(crate) struct Encoder {
    wire_schema: SchemaRef,
    options: IpcWriteOptions,
    context: IpcWriteContext,
}

impl Encoder {
    pub(crate) fn new(schema: &SchemaRef) -> Self {
        let options = IpcWriteOptions::default()
            .try_with_compression(None)
            .unwrap_or_else(|_| IpcWriteOptions::default());
        Self { wire_schema: wire_schema(schema), options, context: IpcWriteContext::default() }
    }

    /// The batch as it will travel.
    ///
    /// # Errors
    /// When a column cannot be turned into its wire type.
    pub(crate) fn prepare(&self, batch: &RecordBatch) -> Result<RecordBatch, DataflowError> {
        convert(batch.columns(), batch.num_rows(), &self.wire_schema)
    }

    /// Rows of `batch` that are likely to fit `bytes_max`, at least one.
    pub(crate) fn rows_fitting(batch: &RecordBatch, bytes_max: usize) -> usize {
        Self::rows_fitting_beside(batch, 0, bytes_max)
    }

    /// The same where `beside` bytes travel beside all the rows.
    pub(crate) fn rows_fitting_beside(
        batch: &RecordBatch,
        beside: usize,
        bytes_max: usize,
    ) -> usize {
        let (bytes, rows) = (Self::bytes(batch) + beside, batch.num_rows());
        let room = bytes_max.saturating_sub(Self::head_bytes(batch));
        if bytes <= room {
            return rows.max(1);
        }
        (rows as u128 * room as u128 / bytes as u128).max(1) as usize
    }

    /// Bytes of the rows of `batch`, and of its buffers' padding.
    pub(crate) fn bytes(batch: &RecordBatch) -> usize {
        let bytes = |column: &ArrayRef| column.to_data().get_slice_memory_size().unwrap_or(0);
        batch.columns().iter().map(|column| bytes(column) + 3 * ALIGNMENT).sum()
    }

    /// Bytes that a payload has beside its rows, generously.
    pub(crate) fn head_bytes(batch: &RecordBatch) -> usize {
        512 + ALIGNMENT * batch.num_columns()
    }

    /// Encodes a batch of the wire schema.
    ///
    /// # Errors
    /// When a column's type cannot travel.
    pub(crate) fn encode(&mut self, batch: &RecordBatch) -> Result<Encoded, DataflowError> {
        let mut tracker = DictionaryTracker::new(false);
        let (dictionaries, data) = IpcDataGenerator::default().encode(
            batch,
            &mut tracker,
            &self.options,
            &mut self.context,
        )?;
        if !dictionaries.is_empty() {
            let message = "a dictionary inside of a nested type cannot travel between workers";
            return Err(DataflowError::Expression(message.into()));
        }
        Ok(Encoded { message: data.ipc_message, extra: Vec::new(), buffers: data.arrow_data })
    }
}

/// A batch, ready to be copied into a slot.
pub(crate) struct Encoded {
    message: Vec<u8>,
    extra: Vec<u8>,
    buffers: Vec<u8>,
}

impl Encoded {
    /// Adds bytes that travel beside the batch.
    pub(crate) fn with_extra(mut self, extra: &[u8]) -> Self {
        self.extra = extra.to_vec();
        self
    }

    /// Bytes of the payload.
    pub(crate) fn len(&self) -> usize {
        self.head() + self.buffers.len()
    }

    fn head(&self) -> usize {
        (PREFIX + self.message.len() + self.extra.len()).next_multiple_of(ALIGNMENT)
    }

    /// The payload in memory of its own.
    pub(crate) fn payload(&self) -> Bytes {
        let mut payload = vec![0; self.len()];
        self.write_to(&mut payload);
        payload.into()
    }

    /// Copies the payload to the beginning of `out`, which is large enough.
    pub(crate) fn write_to(&self, out: &mut [u8]) {
        let (head, buffers) = out.split_at_mut(self.head());
        let (prefix, rest) = head.split_at_mut(PREFIX);
        prefix[..4].copy_from_slice(&(self.message.len() as u32).to_le_bytes());
        prefix[4..].copy_from_slice(&(self.extra.len() as u32).to_le_bytes());
        let (message, rest) = rest.split_at_mut(self.message.len());
        message.copy_from_slice(&self.message);
        let (extra, padding) = rest.split_at_mut(self.extra.len());
        extra.copy_from_slice(&self.extra);
        padding.fill(0);
        buffers[..self.buffers.len()].copy_from_slice(&self.buffers);
    }
}

/// Turns payloads back into batches of one schema.
pub(crate) struct Decoder {
    schema: SchemaRef,
    wire_schema: SchemaRef,
}

impl Decoder {
    pub(crate) fn new(schema: &SchemaRef) -> Self {
        Self { schema: schema.clone(), wire_schema: wire_schema(schema) }
    }

    /// The batch in `payload`, and the extra beside it; both keep the payload alive.
    ///
    /// # Errors
    /// What is malformed.
    pub(crate) fn decode(&self, payload: Bytes) -> Result<(RecordBatch, Bytes), String> {
        let parts = Parts::of(&payload)?;
        let decoded = parts.read(&self.wire_schema)?;
        let batch = convert(decoded.columns(), decoded.num_rows(), &self.schema);
        Ok((batch.map_err(|e| e.to_string())?, parts.extra))
    }

    /// As [`Decoder::decode`], of a batch that was narrowed and whose extra begins with its head;
    /// the extra is what follows.
    ///
    /// # Errors
    /// What is malformed.
    pub(crate) fn decode_narrow(&self, payload: &Bytes) -> Result<(RecordBatch, Bytes), String> {
        let parts = Parts::of(payload)?;
        let widen = Widen::new(self.wire_schema.clone());
        let schema = widen.schema(&parts.extra).ok_or("its columns are unlike")?;
        let wide = widen.widen(&parts.extra, &parts.read(&schema)?)?;
        let batch = convert(wide.columns(), wide.num_rows(), &self.schema);
        let head = widen.head_bytes(&parts.extra).ok_or("its head is cut off")?;
        Ok((batch.map_err(|e| e.to_string())?, parts.extra.slice(head..)))
    }
}

/// A payload taken apart.
struct Parts {
    message: Bytes,
    extra: Bytes,
    buffers: Bytes,
}

impl Parts {
    fn of(payload: &Bytes) -> Result<Self, String> {
        let length = |at: usize| {
            let bytes = payload.get(at..at + 4).and_then(|b| b.try_into().ok());
            bytes.map(|b| u32::from_le_bytes(b) as usize).ok_or("it is shorter than its prefix")
        };
        let extra_at = PREFIX + length(0)?;
        let end = extra_at + length(4)?;
        if end > payload.len() {
            return Err("the message is longer than the payload".into());
        }
        let head = end.next_multiple_of(ALIGNMENT).min(payload.len());
        Ok(Self {
            message: payload.slice(PREFIX..extra_at),
            extra: payload.slice(extra_at..end),
            buffers: payload.slice(head..),
        })
    }

    /// The batch; it keeps the payload alive.
    fn read(&self, schema: &SchemaRef) -> Result<RecordBatch, String> {
        let message = root_as_message(&self.message).map_err(|e| e.to_string())?;
        if message.header_type() != MessageHeader::RecordBatch {
            return Err("it is not a record batch".into());
        }
        let batch = message.header_as_record_batch().ok_or("it has no record batch")?;
        check(&batch, self.buffers.len())?;
        let buffers = Buffer::from(self.buffers.clone());
        let none = HashMap::new();
        let version = message.version();
        let read = || {
            RecordBatchDecoder::try_new(&buffers, batch, schema.clone(), &none, &version)?
                .read_record_batch()
        };
        // The library checks most of what it reads, and stops with a panic at some of the rest.
        match caught(read) {
            Ok(read) => read.map_err(|error| error.to_string()),
            Err(panicked) => Err(format!("it cannot be read: {}", panicked.message)),
        }
    }
}

/// Refuses lengths beyond the `bytes` of the buffers, which the library does not check, and
/// compression, which is not used here.
fn check(batch: &ipc::RecordBatch<'_>, bytes: usize) -> Result<(), String> {
    if batch.compression().is_some() {
        return Err("it is compressed".into());
    }
    let is_length = |rows: i64| (0..=ROWS_MAX).contains(&rows);
    let nodes = || batch.nodes().into_iter().flatten();
    if !is_length(batch.length()) || !nodes().all(|node| is_length(node.length())) {
        return Err(format!("it states {} rows", batch.length()));
    }
    if !nodes().all(|node| (0..=node.length()).contains(&node.null_count())) {
        return Err("a column states more nulls than rows".into());
    }
    let is_inside = |buffer: &ipc::Buffer| {
        let (from, length) = (u64::try_from(buffer.offset()), u64::try_from(buffer.length()));
        let end = from.ok().zip(length.ok()).and_then(|(from, length)| from.checked_add(length));
        buffer.offset() % ALIGNMENT as i64 == 0 && end.is_some_and(|end| end <= bytes as u64)
    };
    let buffers = || batch.buffers().into_iter().flatten();
    if !buffers().all(is_inside) {
        return Err("a column lies outside of its payload".into());
    }
    let (most, parts) = (buffers().count() as i64, batch.variadicBufferCounts());
    if parts.into_iter().flatten().all(|parts| (0..=most).contains(&parts)) {
        Ok(())
    } else {
        Err("a column states more parts than there are".into())
    }
}

/// Bytes of a batch's rows, wherever their arrays lie.
pub(crate) fn bytes_of(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(bytes_of_array).sum()
}

/// Bytes of an array's rows, wherever they lie.
pub(crate) fn bytes_of_array(array: &ArrayRef) -> usize {
    // Arrow counts of views what does not lie elsewhere, and of lists all of their values.
    if let Some(list) = array.as_list_opt::<i32>() {
        let (offsets, values) = (list.offsets(), list.values());
        let (first, end) = (offsets[0] as usize, offsets[list.len()] as usize);
        return size_of_val(&offsets[..]) + bytes_of_array(&values.slice(first, end - first));
    }
    let elsewhere = match array.data_type() {
        DataType::Utf8View => array.as_string_view().total_buffer_bytes_used(),
        DataType::BinaryView => array.as_binary_view().total_buffer_bytes_used(),
        _ => 0,
    };
    let bytes = array.to_data().get_slice_memory_size();
    bytes.map_or_else(|_| array.get_array_memory_size(), |bytes| bytes + elsewhere)
}

/// The batch, in memory of its own if it is a small part of larger arrays: who keeps it would hold
/// these.
pub(crate) fn compact(batch: RecordBatch) -> RecordBatch {
    if batch.get_array_memory_size() > 2 * (bytes_of(&batch) + SMALL_BYTES) {
        detach(&batch)
    } else {
        batch
    }
}

/// The rows of a batch in pieces of about `bytes_max` bytes at most, or of one row, each in memory
/// of its own where it is a small part of larger arrays: a batch is written with all of the texts
/// that its views point into.
pub fn pieces(batch: &RecordBatch, bytes_max: usize) -> impl Iterator<Item = RecordBatch> {
    let rows = batch.num_rows();
    let step = match bytes_of(batch) {
        bytes if bytes <= bytes_max => rows.max(1),
        bytes => (rows * bytes_max / bytes).max(1),
    };
    (0..rows).step_by(step).map(move |from| compact(batch.slice(from, step.min(rows - from))))
}

/// A copy of the batch in memory of its own, for who keeps rows beyond the life of a slot.
pub fn detach(batch: &RecordBatch) -> RecordBatch {
    let columns = batch.columns().iter().map(|column| detach_array(column)).collect();
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(batch.schema(), columns, &options)
        .unwrap_or_else(|_| batch.clone())
}

fn detach_array(array: &ArrayRef) -> ArrayRef {
    if let Some(own) = own_view(array) {
        return own;
    }
    let data = array.to_data();
    let mut copy = arrow::array::MutableArrayData::new(vec![&data], false, data.len());
    match copy.try_extend(0, 0, data.len()) {
        Ok(()) => arrow::array::make_array(copy.freeze()),
        Err(_) => array.clone(),
    }
}

/// A batch whose rows were taken from another one: views still point into that one's memory, and do
/// not any more then.
pub(crate) fn own_views(batch: RecordBatch) -> RecordBatch {
    let is_view = |t: &DataType| matches!(t, DataType::Utf8View | DataType::BinaryView);
    if !batch.columns().iter().any(|column| is_view(column.data_type())) {
        return batch;
    }
    let own = |column: &ArrayRef| own_view(column).unwrap_or_else(|| column.clone());
    let columns = batch.columns().iter().map(own).collect();
    RecordBatch::try_new(batch.schema(), columns).unwrap_or(batch)
}

/// The copy of a view array with what it points at.
fn own_view(array: &ArrayRef) -> Option<ArrayRef> {
    match array.data_type() {
        DataType::Utf8View => Some(Arc::new(array.as_string_view().gc())),
        DataType::BinaryView => Some(Arc::new(array.as_binary_view().gc())),
        _ => None,
    }
}

/// The schema as it travels: views and dictionaries as plain values.
fn wire_schema(schema: &SchemaRef) -> SchemaRef {
    let fields: Vec<Field> = schema
        .fields()
        .iter()
        .map(|field| Field::new(field.name(), wire_type(field.data_type()), true))
        .collect();
    Arc::new(Schema::new(fields))
}

fn wire_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        DataType::Dictionary(_, values) => wire_type(values),
        other => other.clone(),
    }
}

fn convert(
    columns: &[ArrayRef],
    rows: usize,
    schema: &SchemaRef,
) -> Result<RecordBatch, DataflowError> {
    let columns = columns
        .iter()
        .zip(schema.fields())
        .map(|(column, field)| {
            if column.data_type() == field.data_type() {
                Ok(column.clone())
            } else {
                cast(column, field.data_type())
            }
        })
        .collect::<Result<Vec<_>, _>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(schema.clone(), columns, &options)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{
        BooleanArray, DictionaryArray, Float64Array, Int64Array, ListArray, StringArray,
        StringViewArray, StructArray,
    };
    use arrow::datatypes::{Int32Type, Int64Type};

    fn everything(rows: i64) -> RecordBatch {
        let text = |i: i64| (i % 3 != 0).then(|| format!("text number {i} of some length"));
        let strings: StringArray = (0..rows).map(text).collect();
        let views: StringViewArray = (0..rows).map(text).collect();
        let words: Vec<_> = (0..rows).map(|i| ["view", "click"][i as usize % 2]).collect();
        let words: DictionaryArray<Int32Type> = words.into_iter().collect();
        let list = ListArray::from_iter_primitive::<Int64Type, _, _>(
            (0..rows).map(|i| Some((0..i % 4).map(Some).collect::<Vec<_>>())),
        );
        let inner = Arc::new(Int64Array::from_iter_values(0..rows)) as ArrayRef;
        let field = Arc::new(Field::new("inner", DataType::Int64, true));
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("int", Arc::new((0..rows).map(|i| (i % 5 != 0).then_some(i)).collect::<Int64Array>())),
            ("float", Arc::new(Float64Array::from_iter_values((0..rows).map(|i| i as f64 / 3.0)))),
            ("bool", Arc::new((0..rows).map(|i| Some(i % 2 == 0)).collect::<BooleanArray>())),
            ("string", Arc::new(strings)),
            ("view", Arc::new(views)),
            ("word", Arc::new(words)),
            ("list", Arc::new(list)),
            ("struct", Arc::new(StructArray::from(vec![(field, inner)]))),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true)))
            .unwrap()
    }

    fn travel(batch: &RecordBatch) -> RecordBatch {
        let mut encoder = Encoder::new(&batch.schema());
        let encoded = encoder.encode(&encoder.prepare(batch).unwrap()).unwrap();
        let mut payload = vec![0xEE; encoded.len()];
        encoded.write_to(&mut payload);
        Decoder::new(&batch.schema()).decode(Bytes::from(payload)).unwrap().0
    }

    #[test]
    fn every_type_comes_back() {
        for rows in [0, 1, 7, 100] {
            let batch = everything(rows);
            assert_eq!(travel(&batch), batch);
        }
    }

    #[test]
    fn a_slice_comes_back_as_its_rows() {
        let batch = everything(100).slice(13, 50);
        assert_eq!(travel(&batch), batch);
    }

    #[test]
    fn rows_without_columns_come_back() {
        let options = RecordBatchOptions::new().with_row_count(Some(5));
        let schema = Arc::new(Schema::empty());
        let batch = RecordBatch::try_new_with_options(schema, vec![], &options).unwrap();
        assert_eq!(travel(&batch).num_rows(), 5);
    }

    #[test]
    fn the_estimate_fits() {
        let batch = everything(10_000);
        let mut encoder = Encoder::new(&batch.schema());
        let batch = encoder.prepare(&batch).unwrap();
        for room in [4 << 10, 64 << 10] {
            let rows = Encoder::rows_fitting(&batch, room);
            let encoded = encoder.encode(&batch.slice(0, rows)).unwrap();
            assert!(encoded.len() <= room, "{rows} rows need {} of {room}", encoded.len());
            assert!(encoded.len() > room / 2, "{rows} rows need only {} of {room}", encoded.len());
        }
    }

    #[test]
    fn detached_rows_are_equal_and_elsewhere() {
        let batch = everything(20).slice(3, 10);
        let copy = detach(&batch);
        assert_eq!(copy, batch);
        for (of_copy, of_batch) in copy.columns().iter().zip(batch.columns()) {
            let places = |of: &ArrayRef| -> Vec<*const u8> {
                of.to_data().buffers().iter().map(|buffer| buffer.as_ptr()).collect()
            };
            let places = [places(of_copy), places(of_batch)];
            assert!(places[0].iter().all(|place| !places[1].contains(place)));
        }
    }

    #[test]
    fn a_small_part_is_copied_and_a_large_one_is_not() {
        let batch = everything(10_000);
        let bytes = |batch: &RecordBatch| batch.get_array_memory_size();
        let large = batch.slice(1_000, 8_000);
        let kept = compact(large.clone());
        assert_eq!((&kept, bytes(&kept)), (&large, bytes(&batch)));
        let small = batch.slice(1_000, 80);
        let copy = compact(small.clone());
        assert_eq!(copy, small);
        assert!(bytes(&copy) < bytes(&batch) / 50, "{} of {}", bytes(&copy), bytes(&batch));
        // What is counted of rows is what a copy of them takes, but for room to grow.
        for part in [large, small] {
            let (counted, taken) = (bytes_of(&part), bytes(&detach(&part)));
            assert!((taken / 3..taken * 3 / 2).contains(&counted), "{counted} counted of {taken}");
        }
    }

    #[test]
    fn rows_that_stay_hold_no_memory_of_a_slot() {
        let batch = everything(20);
        let held = |kept: &RecordBatch| {
            let pointers = |batch: &RecordBatch| -> Vec<*const u8> {
                let buffers = |column: &ArrayRef| column.to_data().buffers().to_vec();
                batch.columns().iter().flat_map(buffers).map(|buffer| buffer.as_ptr()).collect()
            };
            let (own, others) = (pointers(kept), pointers(&batch));
            own.iter().any(|pointer| others.contains(pointer))
        };
        assert!(!held(&detach(&batch)));
        let rows = arrow::array::UInt32Array::from_iter_values(0..20);
        let taken = arrow::compute::take_record_batch(&batch, &rows).unwrap();
        assert!(held(&taken), "views are taken without what they point at");
        let own = own_views(taken);
        assert!(!held(&own));
        assert_eq!(own, batch);
    }

    #[test]
    fn damaged_payloads_are_refused_without_panic() {
        let batch = everything(50);
        let mut encoder = Encoder::new(&batch.schema());
        let encoded = encoder.encode(&encoder.prepare(&batch).unwrap()).unwrap();
        let mut payload = vec![0; encoded.len()];
        encoded.write_to(&mut payload);
        let decoder = Decoder::new(&batch.schema());
        for cut in [0, 3, 8, 60, 300] {
            assert!(decoder.decode(Bytes::copy_from_slice(&payload[..cut])).is_err());
        }
        let mut long = payload.clone();
        long[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(decoder.decode(Bytes::from(long)).is_err());
    }
}
