//! Bytes that arrive in pieces give the same rows and the same bad rows as the whole.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Cursor, ErrorKind, Read, Write};
use std::sync::Arc;

use arrow::array::AsArray;
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use dataflow::bad::BadRows;
use dataflow::connector::TableDef;

use super::*;

/// Gives one piece at a time, and nothing in between.
struct Pieces {
    pieces: VecDeque<Vec<u8>>,
    turn: bool,
}

impl Read for Pieces {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.turn = !self.turn;
        if self.turn {
            return Err(ErrorKind::WouldBlock.into());
        }
        let Some(piece) = self.pieces.front_mut() else { return Ok(0) };
        let bytes = piece.len().min(into.len());
        into[..bytes].copy_from_slice(&piece[..bytes]);
        piece.drain(..bytes);
        if piece.is_empty() {
            self.pieces.pop_front();
        }
        Ok(bytes)
    }
}

/// Rows as `a|b`, bad rows as `place: reason`, and how often there was nothing.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    rows: Vec<String>,
    bad: Vec<String>,
}

fn decode(kind: Kind, reader: Box<dyn Read + Send>, rows_max: usize) -> (Seen, usize) {
    let schema = Arc::new(Schema::new(vec![
        Field::new("a", DataType::Int64, false),
        Field::new("b", DataType::Utf8, true),
    ]));
    let table = TableDef {
        name: "t".into(),
        schema,
        options: BTreeMap::new(),
        metadata: BTreeMap::new(),
        buckets: vec![],
    };
    let bad = Arc::new(BadRows::default());
    let target = Arc::new(TargetColumns::new(&table, &[0, 1]).unwrap());
    let refuser = Refuser { target, bad: Arc::clone(&bad), origins: Arc::default() };
    let format = Format::new(kind, OptionReader(&table.options), "peer").unwrap().unwrap();
    let mut decoder = format.decoder(ByteInput::new(reader, "peer"), refuser);
    let (mut rows, mut later) = (Vec::new(), 0);
    loop {
        match decoder.decode(rows_max).unwrap() {
            Decoded::Batch(batch) => {
                assert!((1..=rows_max).contains(&batch.num_rows()));
                let (a, b) = (batch.column(0), batch.column(1));
                let (a, b) = (a.as_primitive::<Int64Type>(), b.as_string::<i32>());
                rows.extend((0..batch.num_rows()).map(|row| {
                    format!("{}|{}", a.value(row), b.iter().nth(row).flatten().unwrap_or("NULL"))
                }));
            }
            Decoded::Later => later += 1,
            Decoded::End => break,
        }
    }
    let bad = bad.kept();
    let bad = bad.into_iter().map(|row| format!("{}: {}: {}", row.place, row.reason, row.text));
    (Seen { rows, bad: bad.collect() }, later)
}

const CSV: &str = "a,b\r\n1,\"two\nlines\"\r\nx,y\n\n2,\"open\n3,c\n4,\"d \"\" d\"\n5\n6,f";
const JSON: &str = "{\"a\":1,\"b\":\"x\"}\n\n{\"a\":\n{\"a\":2}\r\n{\"b\":\"no a\"}\n{\"a\":3}";

#[test]
fn pieces_of_any_size_are_the_whole() {
    for (kind, text, rows, bad) in [(Kind::Csv, CSV, 4, 3), (Kind::Json, JSON, 3, 2)] {
        let whole = decode(kind, Box::new(Cursor::new(text)), 100).0;
        assert_eq!((whole.rows.len(), whole.bad.len()), (rows, bad), "{whole:?}");
        for size in 1..=text.len() {
            for rows_max in [1, 100] {
                let pieces = text.as_bytes().chunks(size).map(<[u8]>::to_vec).collect();
                let pieces = Box::new(Pieces { pieces, turn: false });
                let (seen, later) = decode(kind, pieces, rows_max);
                assert_eq!(seen, whole, "{kind:?} in pieces of {size}");
                assert!(later > 0);
            }
        }
    }
}

/// Gives a byte, or a few, after having had nothing for forty times.
struct Slow {
    packed: Cursor<Vec<u8>>,
    bytes: usize,
    asked: usize,
}

impl Read for Slow {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.asked += 1;
        match self.asked % 41 {
            0 => {
                let bytes = self.bytes.min(into.len());
                self.packed.read(&mut into[..bytes])
            }
            _ => Err(ErrorKind::WouldBlock.into()),
        }
    }
}

#[test]
fn packed_bytes_may_come_slowly_and_in_several_parts() {
    let text: String = (0..5_000).map(|row| format!("{row},{}\n", row * 7_919 % 1_013)).collect();
    for name in ["t.gz", "t.zst", "t.bz2", "t.xz"] {
        let packing = Compression::of(name);
        let packed = |text: &str| {
            let mut packer = packing.pack(Vec::new()).unwrap();
            packer.write_all(text.as_bytes()).unwrap();
            packer.finish().unwrap()
        };
        let (first, second) = text.split_at(text.len() / 3);
        let both = [packed(first), packed(second)].concat();
        for bytes in [1, 1_000, 1 << 20] {
            let slow = Slow { packed: Cursor::new(both.clone()), bytes, asked: 0 };
            let mut reader = packing.unpack(Box::new(slow)).unwrap();
            let (mut seen, mut into) = (Vec::new(), [0; 700]);
            loop {
                match reader.read(&mut into) {
                    Ok(0) => break,
                    Ok(bytes) => seen.extend_from_slice(&into[..bytes]),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
                }
            }
            assert!(seen == text.as_bytes(), "{packing} by {bytes} bytes");
        }
        let cut = both[..both.len() - 3].to_vec();
        let mut reader = packing.unpack(Box::new(Cursor::new(cut))).unwrap();
        let error = reader.read_to_end(&mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("ends too early"), "{packing}: {error}");
        let mut nothing = packing.unpack(Box::new(io::empty())).unwrap();
        assert_eq!(nothing.read_to_end(&mut Vec::new()).unwrap(), 0, "{packing}");
        let mut begun = packing.unpack(Box::new(Cursor::new(vec![both[0]]))).unwrap();
        assert!(begun.read_to_end(&mut Vec::new()).is_err(), "{packing} of one byte");
    }
}

#[test]
fn a_record_is_given_out_when_its_line_has_ended() {
    for (kind, text) in [(Kind::Csv, "a,b\n1,x\n2,"), (Kind::Json, "{\"a\":1}\n{\"a\":2")] {
        struct Silent(Cursor<&'static str>);
        impl Read for Silent {
            fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
                match self.0.read(into)? {
                    0 => Err(ErrorKind::WouldBlock.into()),
                    bytes => Ok(bytes),
                }
            }
        }
        let schema = Schema::new(vec![Field::new("a", DataType::Int64, false)]);
        let refuser = Refuser::ignoring(Arc::new(schema));
        let options = BTreeMap::new();
        let format = Format::new(kind, OptionReader(&options), "peer").unwrap().unwrap();
        let input = ByteInput::new(Box::new(Silent(Cursor::new(text))), "peer");
        let mut decoder = format.decoder(input, refuser);
        let Decoded::Batch(batch) = decoder.decode(10).unwrap() else { panic!("no row") };
        assert_eq!(batch.num_rows(), 1);
        assert!(matches!(decoder.decode(10).unwrap(), Decoded::Later));
    }
}

#[test]
fn an_error_of_the_reader_names_the_record_and_its_own_stands_for_itself() {
    struct Broken(Cursor<&'static str>, Option<io::Error>);
    impl Read for Broken {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            match self.0.read(into)? {
                0 => Err(self.1.take().unwrap()),
                bytes => Ok(bytes),
            }
        }
    }
    let own = ConnectorError::Io { place: "elsewhere".into(), message: "gone".into(), hint: None };
    let errors = [
        (io::Error::from(ErrorKind::ConnectionReset), "peer:3"),
        (io::Error::other(own), "elsewhere"),
    ];
    for (error, expected) in errors {
        let schema = Schema::new(vec![Field::new("a", DataType::Int64, false)]);
        let reader = Box::new(Broken(Cursor::new("{\"a\":1}\n{\"a\":2}\n{"), Some(error)));
        let input = ByteInput::new(reader, "peer");
        let mut decoder = json::JsonDecoder::new(input, Refuser::ignoring(Arc::new(schema)));
        let error = decoder.decode(10).unwrap_err();
        assert!(matches!(error, ConnectorError::Io { place, .. } if place == expected));
    }
}
