//! The parts of a record batch: which nodes and buffers belong to which column, and their bytes
//! unpacked.
//!
//! The library unpacks a buffer to its end, whatever length it states. So packed batches are
//! unpacked here, to what they state and no byte more, and only the columns that are read; the
//! library gets a batch that is not packed.

use std::collections::VecDeque;

use arrow::buffer::{Buffer, MutableBuffer};
use arrow::datatypes::{DataType, Field, UnionMode};
use arrow::ipc::{self, MetadataVersion};
use flatbuffers::{FlatBufferBuilder, WIPOffset};

use crate::format::unpack::{Packing, Unpacker};

/// Bytes of a record batch at most, unpacked.
const UNPACKED_BYTES_MAX: u64 = 1 << 30;

/// Buffers begin at multiples of this number of bytes.
const ALIGNMENT: usize = 64;

/// The header of a packed buffer: its length, or -1 for one that is not packed after all.
const LENGTH_BYTES: usize = 8;

/// A batch that was packed.
pub(super) struct Unpacked {
    /// A message's metadata, which [`message`](super::message) reads.
    pub(super) metadata: Vec<u8>,
    pub(super) body: Buffer,
}

/// A walk over the nodes and buffers of a batch, in the order of the columns.
struct Walk {
    version: MetadataVersion,
    nodes: usize,
    buffers: usize,
    views: VecDeque<i64>,
}

impl Walk {
    fn new(batch: ipc::RecordBatch<'_>, version: MetadataVersion) -> Self {
        let views = batch.variadicBufferCounts().into_iter().flatten().collect();
        Self { version, nodes: 0, buffers: 0, views }
    }

    /// Passes a column with what is in it.
    fn pass(&mut self, of: &DataType) {
        use DataType::{
            Binary, BinaryView, FixedSizeList, LargeBinary, LargeList, LargeListView, LargeUtf8,
            List, ListView, Map, Null, RunEndEncoded, Struct, Union, Utf8, Utf8View,
        };
        self.nodes += 1;
        self.buffers += match of {
            Null | RunEndEncoded(..) => 0,
            Struct(_) | FixedSizeList(..) => 1,
            Utf8 | LargeUtf8 | Binary | LargeBinary | ListView(_) | LargeListView(_) => 3,
            Utf8View | BinaryView => {
                2 + self
                    .views
                    .pop_front()
                    .and_then(|parts| usize::try_from(parts).ok())
                    .unwrap_or(0)
            }
            Union(_, mode) => {
                let nulls = usize::from(self.version < MetadataVersion::V5);
                nulls + if *mode == UnionMode::Dense { 2 } else { 1 }
            }
            _ => 2,
        };
        match of {
            List(field)
            | LargeList(field)
            | ListView(field)
            | LargeListView(field)
            | FixedSizeList(field, _)
            | Map(field, _) => self.pass(field.data_type()),
            Struct(fields) => fields.iter().for_each(|field| self.pass(field.data_type())),
            Union(fields, _) => fields.iter().for_each(|(_, field)| self.pass(field.data_type())),
            RunEndEncoded(ends, values) => {
                self.pass(ends.data_type());
                self.pass(values.data_type());
            }
            // The values of a dictionary come by themselves.
            _ => {}
        }
    }
}

/// Refuses a batch whose columns state another number of rows than it does, or are not there.
pub(super) fn check_rows(
    batch: ipc::RecordBatch<'_>,
    fields: &[&Field],
    version: MetadataVersion,
) -> Result<(), String> {
    let nodes = batch.nodes().unwrap_or_default();
    let mut walk = Walk::new(batch, version);
    for field in fields {
        let rows = if walk.nodes < nodes.len() {
            nodes.get(walk.nodes).length()
        } else {
            return Err(format!("a batch without its column '{}'", field.name()));
        };
        if rows != batch.length() {
            let (name, stated) = (field.name(), batch.length());
            return Err(format!("a batch states {stated} rows, and {rows} of column '{name}'"));
        }
        walk.pass(field.data_type());
    }
    Ok(())
}

/// A batch without its packing; `None` where it has none. `wanted` says which of the columns are
/// read: the others are left empty.
pub(super) fn unpack(
    batch: ipc::RecordBatch<'_>,
    fields: &[&Field],
    wanted: impl Fn(usize) -> bool,
    version: MetadataVersion,
    body: &[u8],
    dictionary: Option<(i64, bool)>,
) -> Result<Option<Unpacked>, String> {
    let Some(compression) = batch.compression() else { return Ok(None) };
    let packing = match compression.codec() {
        ipc::CompressionType::LZ4_FRAME => Packing::Lz4Frame,
        ipc::CompressionType::ZSTD => Packing::Zstd,
        other => return Err(format!("columns packed as {other:?}")),
    };
    let buffers = batch.buffers().unwrap_or_default();
    let mut read = vec![true; buffers.len()];
    let mut walk = Walk::new(batch, version);
    for (index, field) in fields.iter().enumerate() {
        let from = walk.buffers;
        walk.pass(field.data_type());
        let of_column = read.get_mut(from..walk.buffers);
        of_column.ok_or("a batch without all of its columns")?.fill(wanted(index));
    }
    let mut unpacker = Unpacker::default();
    let (mut out, mut places) = (MutableBuffer::new(0), Vec::with_capacity(buffers.len()));
    let mut plain = Vec::new();
    for (buffer, read) in buffers.iter().zip(read) {
        plain.clear();
        if read {
            let from = usize::try_from(buffer.offset()).unwrap_or(usize::MAX);
            let length = usize::try_from(buffer.length()).unwrap_or(usize::MAX);
            let packed = body.get(from..from.saturating_add(length));
            unpack_buffer(&mut unpacker, packing, packed.unwrap_or_default(), &mut plain)?;
            if (out.len() + plain.len()) as u64 > UNPACKED_BYTES_MAX {
                return Err(format!("a batch of more than {UNPACKED_BYTES_MAX} bytes, unpacked"));
            }
        }
        places.push(ipc::Buffer::new(out.len() as i64, plain.len() as i64));
        out.extend_from_slice(&plain);
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
    }
    let metadata = metadata(batch, &places, version, dictionary);
    Ok(Some(Unpacked { metadata, body: out.into() }))
}

fn unpack_buffer(
    unpacker: &mut Unpacker,
    packing: Packing,
    packed: &[u8],
    plain: &mut Vec<u8>,
) -> Result<(), String> {
    if packed.is_empty() {
        return Ok(());
    }
    let Some((stated, packed)) = packed.split_first_chunk::<LENGTH_BYTES>() else {
        return Err("a packed column without its length".into());
    };
    let bytes = match i64::from_le_bytes(*stated) {
        -1 => {
            plain.extend_from_slice(packed);
            return Ok(());
        }
        stated => u64::try_from(stated).map_err(|_| "a packed column of less than nothing")?,
    };
    if bytes > UNPACKED_BYTES_MAX {
        return Err(format!("a packed column states {bytes} bytes"));
    }
    match bytes {
        0 => Ok(()),
        bytes => unpacker
            .unpack(packing, packed, bytes as usize, plain)
            .map_err(|message| format!("a packed column: {message}")),
    }
}

/// The metadata of the same batch with its buffers at other places.
fn metadata(
    batch: ipc::RecordBatch<'_>,
    places: &[ipc::Buffer],
    version: MetadataVersion,
    dictionary: Option<(i64, bool)>,
) -> Vec<u8> {
    let mut builder = FlatBufferBuilder::new();
    let nodes: Vec<ipc::FieldNode> = batch.nodes().into_iter().flatten().copied().collect();
    let nodes = Some(builder.create_vector(&nodes));
    let buffers = Some(builder.create_vector(places));
    let views: Option<Vec<i64>> =
        batch.variadicBufferCounts().map(|counts| counts.iter().collect());
    let views = views.map(|counts| builder.create_vector(&counts));
    let (length, compression) = (batch.length(), None);
    let args =
        ipc::RecordBatchArgs { length, nodes, buffers, compression, variadicBufferCounts: views };
    let batch = ipc::RecordBatch::create(&mut builder, &args);
    let (header_type, header): (_, WIPOffset<flatbuffers::UnionWIPOffset>) = match dictionary {
        None => (ipc::MessageHeader::RecordBatch, batch.as_union_value()),
        Some((id, is_delta)) => {
            let args = ipc::DictionaryBatchArgs { id, data: Some(batch), isDelta: is_delta };
            let dictionary = ipc::DictionaryBatch::create(&mut builder, &args);
            (ipc::MessageHeader::DictionaryBatch, dictionary.as_union_value())
        }
    };
    let args = ipc::MessageArgs {
        version,
        header_type,
        header: Some(header),
        bodyLength: 0,
        custom_metadata: None,
    };
    let message = ipc::Message::create(&mut builder, &args);
    builder.finish(message, None);
    builder.finished_data().to_vec()
}
