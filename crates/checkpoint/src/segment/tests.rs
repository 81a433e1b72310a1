use super::*;
use crate::record::SegmentEntry;
use crate::store::{MemoryStore, ObjectName, Store};

fn name() -> ObjectName {
    ObjectName::new("job/seg/g1-n0-000001.seg").unwrap()
}

/// Sections of these lengths, and the segment of them.
fn segment(lengths: &[usize]) -> (EncodedSegment, SegmentEntry, Vec<Vec<u8>>) {
    let mut writer = SegmentWriter::default();
    let mut contents = Vec::new();
    for (at, &length) in lengths.iter().enumerate() {
        let bytes: Vec<u8> = (0..length).map(|i| (i * 7 + at) as u8).collect();
        let (front, back) = bytes.split_at(length / 3);
        let parts = [front, back].map(Bytes::copy_from_slice).to_vec();
        writer.section(&format!("operator {at}"), at as u32, length as u64, parts).unwrap();
        contents.push(bytes);
    }
    let segment = writer.finish().unwrap();
    let entry =
        SegmentEntry { file: "g1-n0-000001.seg".into(), bytes: segment.bytes, crc: segment.crc };
    (segment, entry, contents)
}

/// Reads all of a segment that consists of `bytes`.
fn read(bytes: &[u8], entry: &SegmentEntry) -> Result<Vec<Vec<u8>>, CheckpointError> {
    let store = MemoryStore::default();
    store.put(&name(), &[Bytes::copy_from_slice(bytes)]).unwrap();
    let reader = SegmentReader::open(&store, name(), entry)?;
    reader.verify()?;
    let contents = reader.sections().iter().map(|section| reader.read(section));
    contents.map(|bytes| bytes.map(|bytes| bytes.to_vec())).collect()
}

#[test]
fn sections_are_read_as_they_were_written() {
    for lengths in [&[][..], &[0], &[1], &[64, 0, 63, 65], &[200_000, 3]] {
        let (segment, entry, contents) = segment(lengths);
        let bytes = segment.parts.concat();
        assert_eq!(bytes.len() as u64, segment.bytes);
        assert_eq!(read(&bytes, &entry).unwrap(), contents);
    }
}

#[test]
fn a_footer_longer_than_the_first_read_is_read() {
    let lengths = vec![1; 3000];
    let (segment, entry, contents) = segment(&lengths);
    assert_eq!(read(&segment.parts.concat(), &entry).unwrap(), contents);
}

#[test]
fn every_flipped_bit_and_every_cut_is_found() {
    let (segment, entry, _) = segment(&[70, 0, 10]);
    let bytes = segment.parts.concat();
    let file = MemoryStore::default().place(&name());
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        match read(&changed, &entry).unwrap_err() {
            CheckpointError::Damaged { file: named, offset, .. } => {
                assert_eq!(named, file);
                assert!(offset <= at as u64, "{offset} for {at}");
                let section = if at < 192 { 64 } else { 8 };
                assert!(at as u64 - offset < section.max(300), "{offset} for {at}");
            }
            CheckpointError::Version { file: named, .. } => assert_eq!(named, file),
            other => panic!("{other}"),
        }
        match read(&bytes[..at], &entry).unwrap_err() {
            CheckpointError::Damaged { offset, .. } => assert!(offset <= at as u64),
            other => panic!("{other}"),
        }
    }
    let longer = [&bytes[..], b"x"].concat();
    let error = read(&longer, &entry).unwrap_err().to_string();
    assert!(error.contains("it goes on here"), "{error}");
}

#[test]
fn another_segment_is_not_taken_for_this_one() {
    let (_, entry, _) = segment(&[70, 10]);
    let (other, ..) = segment(&[71, 10]);
    assert_eq!(other.bytes, entry.bytes);
    let error = read(&other.parts.concat(), &entry).unwrap_err().to_string();
    assert!(error.contains("not that of the checkpoint's record"), "{error}");
    let store = MemoryStore::default();
    let error = SegmentReader::open(&store, name(), &entry).err().unwrap();
    assert_eq!(error, CheckpointError::Missing { file: store.place(&name()) });
}

#[test]
fn names_have_a_bound() {
    let mut writer = SegmentWriter::default();
    let long = "x".repeat(OPERATOR_BYTES_MAX + 1);
    assert!(writer.section(&long, 0, 0, Vec::new()).is_err());
}
