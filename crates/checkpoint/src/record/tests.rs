use super::*;

fn manifest() -> CheckpointManifest {
    CheckpointManifest {
        number: 12,
        parent: Some(11),
        nodes: 2,
        workers: 4,
        fingerprint: "f".into(),
        operators: vec![OperatorEntry {
            id: "count by page".into(),
            text: "count(*) \"by\" page".into(),
            watermark: Some(-5),
        }],
        segments: vec![SegmentEntry { file: "g1-n0-000012.seg".into(), bytes: 9, crc: u32::MAX }],
        referred: vec![SegmentEntry { file: "g1-n0-000007.seg".into(), bytes: 90, crc: 5 }],
        sources: vec![SourceEntry {
            id: "clicks".into(),
            splits: vec![SplitEntry {
                name: "0".into(),
                position: vec![0, 255, 16],
                greatest: Some(i64::MIN),
                ended: true,
            }],
        }],
        sinks: vec![SinkEntry {
            id: "out".into(),
            parts: vec![StagedPart { part: 1, staged: b"rows".to_vec() }],
            mark: Some([3, u64::MAX]),
        }],
        tables: vec![TableEntry { table: "pages".into(), version: 3 }],
        counters: [("late".to_owned(), u64::MAX)].into(),
        settled: None,
    }
}

fn records() -> Vec<Record> {
    let base = BaseCheckpoint { record: 4, number: 12, kept: Some("friday".into()) };
    let begin = Begin {
        holder: Holder {
            host: "host3".into(),
            machine: "boot-1".into(),
            pid: 812,
            started: 5,
            nonce: u64::MAX,
        },
        nodes: 2,
        workers: 4,
        release: "0.1.0".into(),
        fingerprint: "f".into(),
        sql: "SELECT 'ä\n'".into(),
        round: 13,
        base: Some(base.clone()),
    };
    let bodies = [
        RecordBody::Begin(Begin { base: None, ..begin.clone() }),
        RecordBody::Begin(begin),
        RecordBody::Manifest(manifest()),
        RecordBody::Manifest(CheckpointManifest::default()),
        RecordBody::Settled(base.clone()),
        RecordBody::Done(base),
    ];
    let record =
        |body| Record { job: "clicks".into(), record: 5, generation: 7, run: 9, kept: None, body };
    bodies.into_iter().map(record).collect()
}

fn summed(json: &str) -> Vec<u8> {
    let crc = crc32c::crc32c(json.as_bytes());
    format!("{MAGIC} 1 {crc:08x} {}\n{json}", json.len()).into_bytes()
}

#[test]
fn a_record_is_read_as_it_was_written() {
    for record in records() {
        let bytes = record.encode().unwrap();
        assert_eq!(Record::decode("x", &bytes).unwrap(), record);
    }
}

#[test]
fn a_changed_or_cut_record_names_its_file_and_byte() {
    for record in records() {
        let bytes = record.encode().unwrap().to_vec();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << (at % 8);
            let error = Record::decode("job/chain/5", &changed).unwrap_err();
            match &error {
                CheckpointError::Damaged { file, .. } => assert_eq!(file, "job/chain/5"),
                CheckpointError::Version { file, .. } => assert_eq!(file, "job/chain/5"),
                other => panic!("{other}"),
            }
            assert!(Record::decode("x", &bytes[..at]).is_err(), "cut at {at}");
        }
        assert!(Record::decode("x", &[&bytes[..], b" "].concat()).is_err());
    }
}

#[test]
fn what_is_out_of_bounds_or_missing_is_named() {
    let good = String::from_utf8(records()[2].encode().unwrap().to_vec()).unwrap();
    let json = good.split_once('\n').unwrap().1;
    let cases = [
        ("\"generation\":7", "\"generation\":0", "'generation' of record is 0"),
        ("\"generation\":7", "\"generation\":-1", "'generation' of record is no number"),
        ("\"kind\":\"manifest\"", "\"kind\":\"x\"", "'kind' of record is \"x\""),
        ("g1-n0", "../n0", "'file' of segment is"),
        ("\"00ff10\"", "\"00ff1\"", "'position' of split is no hexadecimal number"),
        ("\"nodes\":2", "\"nodes\":4294967296", "'nodes' of record is more than 32 bits"),
        ("\"ended\":true", "\"ended\":1", "'ended' of split"),
        ("\"operators\":[", "\"operations\":[", "'operators' of record is missing"),
        ("{", "[", "it is no JSON"),
    ];
    for (from, to, reason) in cases {
        assert!(json.contains(from), "{from}");
        let error = Record::decode("x", &summed(&json.replacen(from, to, 1))).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
    let deep = "[".repeat(100_000);
    assert!(Record::decode("x", &summed(&deep)).is_err());
}

#[test]
fn a_record_that_could_not_be_read_is_not_written() {
    let mut record = records()[2].clone();
    let RecordBody::Manifest(manifest) = &mut record.body else { unreachable!() };
    manifest.sinks[0].parts[0].staged = vec![0; STAGED_BYTES_MAX + 1];
    let error = record.encode().unwrap_err().to_string();
    assert_eq!(error, "'staged' of part is longer than 1048576 bytes");
}

#[test]
fn a_record_of_a_later_release_is_told_as_such() {
    let error = Record::decode("x", b"millstream-chain 2 00000000 0\n").unwrap_err();
    assert_eq!(
        error,
        CheckpointError::Version { file: "x".into(), version: 2, newest: RECORD_VERSION }
    );
}
