//! Messages one behind the other, each behind its length.
//!
//! ```text
//! ( length, a varint │ message )*
//! ```
//!
//! So Java's `writeDelimitedTo`, Go's `protodelim` and ClickHouse's format `Protobuf` write them. A
//! message that is none takes no other with it, since its length is known. A length that cannot be
//! ends the reading: nothing tells where the next message begins.

use dataflow::error::ConnectorError;
use prost_reflect::prost::{decode_length_delimiter, encode_length_delimiter};

use super::{ProtoFormat, ProtoRows};
use crate::format::input::{BATCH_BYTES_MAX, ByteInput, Filled};
use crate::format::rows::{Refuser, unfit};
use crate::format::typed::shown_bytes;
use crate::format::{Decoded, RecordDecoder, RecordStart};

/// Bytes of a message of a stream at most.
pub(super) const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// Bytes of a length at most.
const LENGTH_BYTES_MAX: usize = 10;

/// A message that has come, as it lies in a stream.
struct Frame<'a> {
    message: &'a [u8],
    /// With its length.
    bytes: usize,
}

/// The message at the beginning of some bytes; `None` where it goes on behind them.
///
/// # Errors
/// Why its length cannot be.
fn frame(bytes: &[u8]) -> Result<Option<Frame<'_>>, String> {
    let mut behind = bytes;
    let length = match decode_length_delimiter(&mut behind) {
        Ok(length) => length,
        // The rest of it has not come yet.
        Err(_) if bytes.len() < LENGTH_BYTES_MAX => return Ok(None),
        Err(_) => {
            return Err(format!("the length of a message has more than {LENGTH_BYTES_MAX} bytes"));
        }
    };
    if length > MESSAGE_BYTES_MAX {
        return Err(format!("a message of {length} bytes; {MESSAGE_BYTES_MAX} at most"));
    }
    let message = behind.get(..length);
    let bytes = bytes.len() - behind.len() + length;
    Ok(message.map(|message| Frame { message, bytes }))
}

/// Appends a message behind its length.
///
/// # Errors
/// When it has more bytes than are read.
pub(super) fn write_frame(message: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
    let length = message.len();
    if length > MESSAGE_BYTES_MAX {
        return Err(format!("a row is a message of {length} bytes; {MESSAGE_BYTES_MAX} at most"));
    }
    encode_length_delimiter(length, out).map_err(|error| error.to_string())?;
    out.extend_from_slice(message);
    Ok(())
}

/// A stream that is being read.
pub(crate) struct ProtoDecoder {
    input: ByteInput,
    format: ProtoFormat,
    rows: Option<ProtoRows>,
    /// The numbers of the rows that were read.
    numbers: Vec<u64>,
    /// The number of the message to be read next.
    record: u64,
    /// Where to go on.
    resume: Option<RecordStart>,
    refuser: Refuser,
}

impl ProtoDecoder {
    pub(crate) fn new(input: ByteInput, format: ProtoFormat, refuser: Refuser) -> Self {
        let (rows, numbers, record, resume) = (None, vec![], 1, None);
        Self { input, format, rows, numbers, record, resume, refuser }
    }

    /// Reads messages until there are `rows_max` rows, or many bytes ([`Filled::More`]).
    fn read(&mut self, rows_max: usize) -> Result<Filled, ConnectorError> {
        while self.numbers.len() < rows_max && self.input.position() < BATCH_BYTES_MAX {
            let Some(rows) = &mut self.rows else { return Ok(Filled::Later) };
            let found = frame(self.input.ahead()).map_err(|reason| ConnectorError::Io {
                place: format!("{}:{}", self.input.name(), self.record),
                message: format!("not a stream of Protobuf: {reason}"),
                hint: Some("each message stands behind its length: check 'format'".into()),
            })?;
            let Some(Frame { message, bytes }) = found else {
                match self.input.fill(self.record)? {
                    Filled::More => continue,
                    Filled::Later => return Ok(Filled::Later),
                    Filled::End => return self.end(),
                }
            };
            match rows.push(message) {
                Ok(()) => self.numbers.push(self.record),
                Err(reason) => {
                    let place = format!("{}:{}", self.input.name(), self.record);
                    self.refuser.refuse(place, reason, &shown_bytes(message))?;
                }
            }
            self.record += 1;
            self.input.pass(bytes);
        }
        Ok(Filled::More)
    }

    /// Behind the last whole message.
    fn end(&mut self) -> Result<Filled, ConnectorError> {
        let rest = self.input.ahead();
        if !rest.is_empty() {
            let place = format!("{}:{}", self.input.name(), self.record);
            let reason = format!("cut off: {} bytes of a message and its length", rest.len());
            self.refuser.refuse(place, reason, &shown_bytes(rest))?;
            self.input.pass(rest.len());
            self.record += 1;
        }
        Ok(Filled::End)
    }
}

impl RecordDecoder for ProtoDecoder {
    fn start(&mut self) -> Result<bool, ConnectorError> {
        if self.rows.is_none() {
            self.rows = Some(self.format.rows(&self.refuser.target)?);
        }
        Ok(true)
    }

    fn place(&self) -> RecordStart {
        let offset = self.input.offset(self.input.position());
        self.resume.unwrap_or(RecordStart { offset, record: self.record, rest: false })
    }

    fn go_to(&mut self, place: RecordStart) {
        self.resume = (place.offset > 0).then_some(place);
    }

    fn decode(&mut self, rows_max: usize) -> Result<Decoded, ConnectorError> {
        self.start()?;
        if let Some(place) = self.resume {
            if !self.input.skip_to(place.offset, place.record)? {
                return Ok(Decoded::Later);
            }
            (self.record, self.resume) = (place.record, None);
        }
        loop {
            let filled = self.read(rows_max.max(1))?;
            self.input.begin_batch(self.input.position());
            let numbers = std::mem::take(&mut self.numbers);
            let Some(rows) = &mut self.rows else { return Ok(Decoded::Later) };
            if !numbers.is_empty() {
                let name = self.input.name();
                let batch = rows.finish().map_err(|error| unfit(name, &error))?;
                let batch = rows.mapping().rows(&self.refuser, &batch, name, &numbers)?;
                if batch.num_rows() > 0 {
                    return Ok(Decoded::Batch(batch));
                }
            }
            match filled {
                Filled::More => {}
                Filled::Later => return Ok(Decoded::Later),
                Filled::End => return Ok(Decoded::End),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, ErrorKind, Read};
    use std::sync::Arc;

    use dataflow::bad::BadRows;
    use prost_reflect::prost::Message;
    use prost_reflect::{DynamicMessage, MessageDescriptor, Value};

    use super::*;
    use crate::format::protobuf::{columns_of, compiled};

    const TEXT: &str = "syntax = \"proto3\"; message M { optional int64 a = 1; string b = 2; }";

    fn descriptor() -> MessageDescriptor {
        compiled(TEXT, &[]).unwrap().messages().next().unwrap()
    }

    /// A message, as the library writes it behind its length.
    fn delimited(a: i64, b: &str) -> Vec<u8> {
        let mut message = DynamicMessage::new(descriptor());
        message.set_field_by_number(1, Value::I64(a));
        message.set_field_by_number(2, Value::String(b.to_owned()));
        message.encode_length_delimited_to_vec()
    }

    fn decoder(input: impl Read + Send + 'static) -> (ProtoDecoder, Arc<BadRows>) {
        let message = descriptor();
        let target = Refuser::ignoring(Arc::new(columns_of(&message))).target;
        let bad = Arc::new(BadRows::collecting());
        let refuser = Refuser { target, bad: Arc::clone(&bad), origins: Arc::default() };
        let format = ProtoFormat::of(message);
        (ProtoDecoder::new(ByteInput::new(Box::new(input), "s"), format, refuser), bad)
    }

    /// The rows, and the places of bad ones.
    fn read(
        decoder: &mut ProtoDecoder,
        bad: &BadRows,
    ) -> Result<(Vec<String>, Vec<String>), ConnectorError> {
        let mut rows = vec![];
        loop {
            match decoder.decode(3)? {
                Decoded::Batch(batch) => {
                    assert!((1..=3).contains(&batch.num_rows()));
                    for row in 0..batch.num_rows() {
                        let text =
                            |at: usize| dataflow::calendar::text_of(batch.column(at), row).unwrap();
                        rows.push(format!("{}|{}", text(0), text(1)));
                    }
                }
                Decoded::Later => {}
                Decoded::End => break,
            }
        }
        let bad = bad.take().into_iter().map(|bad| format!("{} {}", bad.place, bad.reason));
        Ok((rows, bad.collect()))
    }

    /// Gives a byte, and then nothing once.
    struct Hesitant(Cursor<Vec<u8>>, bool);

    impl Read for Hesitant {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            self.1 = !self.1;
            if self.1 { Err(ErrorKind::WouldBlock.into()) } else { self.0.read(&mut into[..1]) }
        }
    }

    #[test]
    fn streams_of_another_writer_are_read_in_whatever_pieces_they_come() {
        for count in [0, 1, 2, 3, 4, 50] {
            let long = "x".repeat(300);
            let row = |n: i64| (n - 7, if n % 5 == 3 { long.as_str() } else { "" });
            let stream: Vec<u8> = (0..count).flat_map(|n| delimited(row(n).0, row(n).1)).collect();
            let expected: Vec<String> =
                (0..count).map(|n| format!("{}|{}", row(n).0, row(n).1)).collect();
            let (mut whole, bad) = decoder(Cursor::new(stream.clone()));
            assert_eq!(read(&mut whole, &bad).unwrap(), (expected.clone(), vec![]));
            let (mut pieces, bad) = decoder(Hesitant(Cursor::new(stream), false));
            assert_eq!(read(&mut pieces, &bad).unwrap(), (expected, vec![]));
        }
    }

    #[test]
    fn a_message_that_is_none_takes_no_other_with_it() {
        // A text that is not UTF-8, a field that is cut off, a group that does not begin.
        let broken: [&[u8]; 3] = [&[3, 18, 1, 0xff], &[2, 18, 9], &[1, 12]];
        let mut stream = delimited(1, "x");
        for bytes in broken {
            stream.extend(bytes);
            // An empty message is one, too.
            stream.push(0);
        }
        let (mut decoder, bad) = decoder(Cursor::new(stream));
        let (rows, bad) = read(&mut decoder, &bad).unwrap();
        assert_eq!(rows, ["1|x", "NULL|", "NULL|", "NULL|"]);
        let places: Vec<_> = bad.iter().filter_map(|bad| bad.split(' ').next()).collect();
        assert_eq!(places, ["s:2", "s:4", "s:6"], "{bad:?}");
    }

    #[test]
    fn what_is_cut_off_is_one_bad_row() {
        let two = [delimited(1, "x"), delimited(2, &"y".repeat(200))];
        let first = two[0].len();
        let stream = two.concat();
        for end in 0..=stream.len() {
            let (mut decoder, bad) = decoder(Cursor::new(stream[..end].to_vec()));
            let (rows, bad) = read(&mut decoder, &bad).unwrap();
            let whole = usize::from(end >= first) + usize::from(end == stream.len());
            assert_eq!(rows.len(), whole, "{end}");
            let is_whole = [0, first, stream.len()].contains(&end);
            let place = format!("s:{} cut off", whole + 1);
            let is_bad = bad.len() == 1 && bad[0].starts_with(&place);
            assert_eq!(bad.is_empty(), is_whole, "{end}: {bad:?}");
            assert_ne!(is_bad, is_whole, "{end}: {bad:?}");
            assert!(matches!(decoder.decode(1), Ok(Decoded::End)), "the end stays");
        }
    }

    #[test]
    fn a_length_that_cannot_be_is_an_error_at_its_place() {
        let lengths: [&[u8]; 4] = [
            &[0x81, 0x80, 0x80, 8],
            &[0xff, 0xff, 0xff, 0xff, 15],
            &[0xff; 10],
            &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 2],
        ];
        for length in lengths {
            let (mut decoder, bad) = decoder(Cursor::new([&delimited(1, "x"), length].concat()));
            let error = read(&mut decoder, &bad).unwrap_err().to_string();
            assert!(error.starts_with("s:2") && error.contains("message"), "{error}");
        }
        // The greatest that is read, and one with zeros in front.
        let (mut most, bad) = decoder(Cursor::new(vec![0x80, 0x80, 0x80, 8]));
        assert!(read(&mut most, &bad).unwrap().1[0].contains("cut off"));
        let (mut padded, bad) = decoder(Cursor::new(vec![0x80, 0x80, 0]));
        assert_eq!(read(&mut padded, &bad).unwrap(), (vec!["NULL|".to_owned()], vec![]));
    }

    #[test]
    fn reading_goes_on_at_every_position() {
        let stream: Vec<u8> = (0..20).flat_map(|n| delimited(n, "text")).collect();
        let (mut first, bad) = decoder(Cursor::new(stream.clone()));
        let mut places = vec![(0, first.place())];
        let mut rows = 0;
        while let Decoded::Batch(batch) = first.decode(3).unwrap() {
            rows += batch.num_rows() as i64;
            places.push((rows, first.place()));
        }
        assert!(rows == 20 && bad.count() == 0);
        for (rows, place) in places {
            assert_eq!(place.record, rows as u64 + 1);
            let (mut again, bad) = decoder(Hesitant(Cursor::new(stream.clone()), false));
            again.go_to(place);
            let expected: Vec<String> = (rows..20).map(|n| format!("{n}|text")).collect();
            assert_eq!(read(&mut again, &bad).unwrap(), (expected, vec![]));
        }
        let (mut behind, bad) = decoder(Cursor::new(stream.clone()));
        let offset = stream.len() as u64 + 1;
        behind.go_to(RecordStart { offset, record: 21, rest: false });
        let error = read(&mut behind, &bad).unwrap_err().to_string();
        assert!(error.contains("behind the end"), "{error}");
    }
}
