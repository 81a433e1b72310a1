//! Entrances for fuzz targets and the replay of their corpora: bytes of a store are read as this
//! crate reads them (`fuzz/`, `tests/corpus.rs`).
//!
//! Each function reads bytes that anybody may have made, and checks what holds whatever they are.

use bytes::Bytes;

use crate::record::{Record, SegmentEntry};
use crate::segment::{self, SegmentReader, SegmentWriter};
use crate::store::{MemoryStore, ObjectName, Store};

/// Whether this JSON, behind the right header, is a record; else the reason.
///
/// # Errors
/// The reason why it is none.
///
/// # Panics
/// When it is another record behind being written again.
pub fn record(json: &[u8]) -> Result<(), String> {
    let header = format!("millstream-chain 1 {:08x} {}\n", crc32c::crc32c(json), json.len());
    let bytes = [header.as_bytes(), json].concat();
    let record = Record::decode("record", &bytes).map_err(|error| error.to_string())?;
    let again = record.encode().expect("what was read can be written");
    assert_eq!(Record::decode("record", &again).expect("what was written can be read"), record);
    // As a stored record, with whatever header it has.
    let _ = Record::decode("record", json);
    Ok(())
}

/// Whether these bytes, with the right checksum of the footer, are a segment; else the reason.
///
/// # Errors
/// The reason why they are none.
///
/// # Panics
/// When sections of it overlap, or when it is another one behind being written again.
pub fn segment(bytes: &[u8]) -> Result<(), String> {
    let (bytes, crc) = segment::with_checksum(bytes);
    let name = ObjectName::new("segment").expect("a name");
    let store = MemoryStore::default();
    store.put(&name, &[Bytes::from(bytes.clone())]).expect("memory does not fail");
    let entry = SegmentEntry { file: "segment".into(), bytes: bytes.len() as u64, crc };
    let reader = SegmentReader::open(&store, name, &entry).map_err(|error| error.to_string())?;
    let mut writer = SegmentWriter::default();
    let mut at = 0;
    for section in reader.sections() {
        assert!(section.offset >= at, "sections overlap");
        at = section.offset + section.bytes;
        assert!(at <= bytes.len() as u64, "a section is outside");
        let rows = reader.read(section).map_err(|error| error.to_string())?;
        writer
            .section(&section.operator, section.part, section.rows, vec![rows])
            .expect("what was read can be written");
    }
    reader.verify().map_err(|error| error.to_string())?;
    let again = writer.finish().expect("what was read can be written");
    assert_eq!(again.parts.concat(), bytes);
    Ok(())
}
