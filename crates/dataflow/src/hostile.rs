//! Entrances for fuzz targets and the replay of their corpora: bytes of a peer are read as this
//! crate reads them (`fuzz/`, `tests/frames.rs`).

mod rows;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array, StringViewArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use channel::Header;
use state::{GroupBy, GroupColumns, Partitioner, RowsByOwner, StateOptions};

use crate::exchange::{Delta, Deltas, part_of};
use crate::job::worker_set::WorkerSet;
use crate::rows::wire::{Decoder, Picks, RowsLayout};
use crate::runtime::frame::payload::{Placeholder, decode_children, encode_children};
use crate::runtime::frame::{Envelope, Frame};

pub use self::rows::{rows, rows_seeds};

/// Workers of the job.
const WORKERS: u32 = 9;

/// Bytes of a header: kind, flags, colour, operator, port and three words.
const HEADER_BYTES: usize = 36;

/// Columns of rows: a text and a number.
fn schema() -> SchemaRef {
    let field = |name: &str, data_type| Field::new(name, data_type, true);
    Arc::new(Schema::new(vec![field("text", DataType::Utf8View), field("n", DataType::Int64)]))
}

/// Groups of the same, with a count of each.
fn deltas() -> Deltas {
    Deltas::new(&GroupBy {
        keys: vec![DataType::Utf8View, DataType::Int64],
        aggregates: vec![state::aggregates::count()],
        options: StateOptions::default(),
    })
}

fn columns() -> Vec<ArrayRef> {
    let texts: StringViewArray =
        [Some("a"), None, Some("a text that is longer than a view")].into_iter().collect();
    vec![Arc::new(texts), Arc::new(Int64Array::from(vec![Some(1), Some(2), None]))]
}

/// Reads a header, in 36 bytes, and the payload behind it: gives the kind of the frame.
///
/// # Errors
/// When it is no frame, or its payload is not one of the kind.
///
/// # Panics
/// When what was read is not what was written, or arrays are broken.
pub fn frame(bytes: &[u8]) -> Result<u8, String> {
    let (header, payload) =
        bytes.split_first_chunk::<HEADER_BYTES>().ok_or("it is shorter than a header")?;
    let header = read_header(header);
    let envelope = Envelope::decode(&header, payload.len())?;
    assert_eq!(envelope.encode(), header, "{envelope:?}");
    let payload = Bytes::copy_from_slice(payload);
    match envelope.frame {
        // A part is put together with others before it is read.
        _ if envelope.more => {}
        Frame::Rows { .. }
        | Frame::Gather
        | Frame::BroadcastCopy { .. }
        | Frame::Repair { .. }
        | Frame::Broadcast { placeholder: false, .. } => read_rows(payload)?,
        Frame::BroadcastList { .. } => {
            let (set, used) = WorkerSet::decode(WORKERS, &payload)?;
            assert!(set.end() <= WORKERS);
            read_rows(payload.slice(used..))?;
        }
        Frame::Broadcast { placeholder: true, .. } => {
            let placeholder = Placeholder::decode(&payload)?;
            assert_eq!(placeholder.encode(), payload[..]);
        }
        // Which of them, the operator tells.
        Frame::Delta { .. } if !payload.is_empty() => {
            read_groups(&payload).or_else(|_| read_rows(payload))?;
        }
        Frame::Groups if !payload.is_empty() => read_groups(&payload)?,
        Frame::TreeUpdate { .. } => {
            let children = decode_children(&payload, WORKERS)?;
            assert_eq!(encode_children(&children), payload);
        }
        _ => {}
    }
    Ok(envelope.frame.kind())
}

fn read_header(bytes: &[u8; HEADER_BYTES]) -> Header {
    let number = |at: usize, bytes_of: usize| {
        bytes[at..at + bytes_of].iter().rev().fold(0, |all, &byte| all << 8 | u64::from(byte))
    };
    Header {
        kind: bytes[0],
        flags: bytes[1],
        colour: number(2, 2) as u16,
        operator: number(4, 4) as u32,
        port: number(8, 4) as u32,
        words: [number(12, 8), number(20, 8), number(28, 8)],
    }
}

fn read_rows(payload: Bytes) -> Result<(), String> {
    let (batch, _) = Decoder::new(&schema()).decode(payload)?;
    check(batch.columns())
}

fn read_groups(payload: &Bytes) -> Result<(), String> {
    for (_, groups) in deltas().read(payload)?.runs() {
        check(&groups.keys)?;
        check(&groups.states)?;
    }
    Ok(())
}

/// Arrays that were taken from a peer can be read.
fn check(columns: &[ArrayRef]) -> Result<(), String> {
    for column in columns {
        column.to_data().validate_full().expect("an array that was accepted is sound");
    }
    Ok(())
}

/// A frame of each kind with a payload, as [`frame`] reads it, by name; the first part of the name
/// is the number of the kind. Behind them frames that are none, whose names begin with `bad`.
///
/// # Panics
/// When one cannot be made.
#[must_use]
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let mut seeds = vec![];
    for frame in Frame::KINDS {
        let envelope = Envelope { operator: 3, port: 1, ..Envelope::of_link(frame) };
        let header = envelope.encode();
        let name = format!("{frame:?}").to_lowercase();
        let name: String = name.chars().take_while(|c| c.is_alphanumeric()).collect();
        let bytes = [write_header(&header), payload_of(frame)].concat();
        seeds.push((format!("{}-{name}", frame.kind()), bytes.clone()));
        // A field that the kind does not use; a payload that is cut off or none.
        let unused = write_header(&Header { flags: header.flags | 128, ..header });
        seeds.push((
            format!("bad-{}-flag", frame.kind()),
            [&unused, &bytes[HEADER_BYTES..]].concat(),
        ));
        let cut = match bytes.len() {
            HEADER_BYTES => [&bytes[..], &[1]].concat(),
            length if length < 2 * HEADER_BYTES => bytes[..length - 1].to_vec(),
            length => bytes[..length / 2].to_vec(),
        };
        seeds.push((format!("bad-{}-payload", frame.kind()), cut));
    }
    let placeholder = Frame::Broadcast { source: 1, number: 2, version: 3, placeholder: true };
    let header = write_header(&Envelope::of_link(placeholder).encode());
    let bytes = Placeholder { bytes: 70_000 }.encode();
    seeds.push(("12-placeholder".into(), [&header[..], &bytes].concat()));
    seeds.push(("bad-12-placeholder".into(), [&header[..], &[0; 4]].concat()));
    for kind in [0, Frame::KINDS.len() as u8 + 1] {
        let header = Header { kind, ..Header::default() };
        seeds.push((format!("bad-kind-{kind}"), write_header(&header)));
    }
    seeds.push(("bad-short".into(), vec![1; HEADER_BYTES - 1]));
    seeds
}

fn write_header(header: &Header) -> Vec<u8> {
    let Header { kind, flags, colour, operator, port, words } = *header;
    let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let small = [operator.to_le_bytes(), port.to_le_bytes()].concat();
    [&[kind, flags][..], &colour.to_le_bytes(), &small, &words].concat()
}

fn payload_of(frame: Frame) -> Vec<u8> {
    match frame {
        Frame::Rows { .. }
        | Frame::Gather
        | Frame::BroadcastCopy { .. }
        | Frame::Repair { .. }
        | Frame::Broadcast { .. } => two_columns(),
        Frame::BroadcastList { .. } => {
            let set: WorkerSet = [1, 4, 5].into_iter().collect();
            let mut list = vec![0; WorkerSet::bytes_max(WORKERS)];
            let bytes = set.encode(WORKERS, &mut list);
            [&list[..bytes], &two_columns()].concat()
        }
        Frame::Delta { .. } | Frame::Groups => groups(),
        Frame::TreeUpdate { .. } => encode_children(&[2, 7]),
        _ => vec![],
    }
}

fn two_columns() -> Vec<u8> {
    let batch = RecordBatch::try_new(schema(), columns()).expect("two columns");
    payload(&Picks::of(batch))
}

fn payload(picks: &Picks) -> Vec<u8> {
    let layout = RowsLayout::of(picks, 0..picks.rows(), &[]).expect("columns that travel");
    layout.payload().to_vec()
}

fn groups() -> Vec<u8> {
    let states: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(vec![5, 6, 7]))];
    let groups = GroupColumns { keys: columns(), states };
    let (mut delta, mut split) = (Delta::default(), RowsByOwner::default());
    Partitioner::new(1).split(&groups, &mut split).expect("all groups are one leader's");
    delta.add(10, &part_of(&groups).expect("groups"), &split, 0).expect("groups");
    let chunk = delta.cut(1 << 16).expect("groups that travel").remove(0);
    chunk.layout().expect("groups that travel").payload().to_vec()
}
