//! Messages of the protocol, as bytes. The server is hostile: every length is bounded, and what is
//! cut off or unknown is an error.
//!
//! ```text
//! tag, 1 byte │ length, 4 bytes, with itself │ body
//! ```

use std::io::{self, Read, Write};

use crate::errors::{PgError, ServerError};

/// Bytes of a message at most: a value has 1 GB at most, but a row that large is read by nobody.
pub(crate) const FRAME_BYTES_MAX: usize = 256 << 20;

/// Fields of an error of the server at most.
const FIELDS_MAX: usize = 64;

/// Bytes that are asked of the connection at once.
const READ_BYTES: usize = 64 << 10;

/// A message of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PgFrame {
    pub(crate) tag: u8,
    pub(crate) body: Vec<u8>,
}

/// The bytes that were received and are not consumed.
#[derive(Debug, Default)]
pub(crate) struct FrameReader {
    bytes: Vec<u8>,
    /// Where the next message begins.
    at: usize,
}

impl FrameReader {
    /// The next message; `None` if the time of the connection is over before it is there. Nothing
    /// is lost then.
    ///
    /// # Errors
    /// When the connection is gone, or the bytes are no message.
    pub(crate) fn next(&mut self, from: &mut impl Read) -> Result<Option<PgFrame>, PgError> {
        loop {
            if let Some(frame) = self.take()? {
                return Ok(Some(frame));
            }
            self.bytes.drain(..self.at);
            self.at = 0;
            let before = self.bytes.len();
            self.bytes.resize(before + READ_BYTES, 0);
            let read = from.read(&mut self.bytes[before..]);
            self.bytes.truncate(before + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => return Err(PgError::Away("the server has closed the connection".into())),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_timeout(&error) => return Ok(None),
                Err(error) => return Err(PgError::of_io(&error)),
            }
        }
    }

    /// Whether the next message is there whole.
    pub(crate) fn has_whole(&self) -> bool {
        let rest = &self.bytes[self.at..];
        let length = rest.get(1..5).and_then(|bytes| bytes.try_into().ok());
        length.is_some_and(|length| rest.len() > u32::from_be_bytes(length) as usize)
    }

    /// A message that is there whole.
    fn take(&mut self) -> Result<Option<PgFrame>, PgError> {
        let Some((head, behind)) = self.bytes[self.at..].split_first_chunk::<5>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let Some(length) = length.checked_sub(4).filter(|length| *length <= FRAME_BYTES_MAX) else {
            let message = format!("a message of {length} bytes, and {FRAME_BYTES_MAX} is the most");
            return Err(PgError::Breach(message));
        };
        let Some(body) = behind.get(..length) else { return Ok(None) };
        let frame = PgFrame { tag: head[0], body: body.to_vec() };
        self.at += head.len() + length;
        Ok(Some(frame))
    }
}

/// Whether the time of a call is over, and the connection stands.
pub(crate) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Sends a message.
///
/// # Errors
/// When the connection is gone, or the message is too large.
pub(crate) fn send(to: &mut impl Write, tag: Option<u8>, body: &[u8]) -> Result<(), PgError> {
    let length = u32::try_from(body.len() + 4).ok().filter(|length| *length < 1 << 30);
    let Some(length) = length else {
        return Err(PgError::Breach(format!("a message of {} bytes", body.len())));
    };
    let mut head = tag.map_or_else(Vec::new, |tag| vec![tag]);
    head.extend(length.to_be_bytes());
    to.write_all(&head).and_then(|()| to.write_all(body)).map_err(|error| PgError::of_io(&error))
}

/// The parts of a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FieldCursor<'a>(pub(crate) &'a [u8]);

impl<'a> FieldCursor<'a> {
    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], PgError> {
        let Some((taken, rest)) = self.0.split_at_checked(count) else {
            return Err(PgError::Breach("a message is cut off".into()));
        };
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], PgError> {
        let bytes = self.bytes(N)?;
        bytes.try_into().map_err(|_| PgError::Breach("a message is cut off".into()))
    }

    pub(crate) fn u8(&mut self) -> Result<u8, PgError> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16, PgError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, PgError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, PgError> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// A text that ends with a zero.
    pub(crate) fn text(&mut self) -> Result<String, PgError> {
        let Some(end) = self.0.iter().position(|byte| *byte == 0) else {
            return Err(PgError::Breach("a text of a message has no end".into()));
        };
        let text = text_of(self.bytes(end)?)?;
        self.bytes(1)?;
        Ok(text)
    }
}

/// Bytes as text.
pub(crate) fn text_of(bytes: &[u8]) -> Result<String, PgError> {
    let text = std::str::from_utf8(bytes);
    text.map(str::to_owned).map_err(|_| PgError::Breach("a text is not UTF-8".into()))
}

/// The values of a row (`DataRow`), each as text.
pub(crate) fn row_of(body: &[u8]) -> Result<Vec<Option<String>>, PgError> {
    let mut cursor = FieldCursor(body);
    let count = cursor.u16()?;
    let value = |_| {
        let length = cursor.u32()?;
        if length == u32::MAX {
            return Ok(None);
        }
        text_of(cursor.bytes(length as usize)?).map(Some)
    };
    (0..count).map(value).collect()
}

/// The fields of an error of the server.
///
/// # Errors
/// When the message is damaged.
pub(crate) fn error_of(body: &[u8]) -> Result<ServerError, PgError> {
    let (mut cursor, mut error) = (FieldCursor(body), ServerError::default());
    for _ in 0..FIELDS_MAX {
        let field = cursor.u8()?;
        if field == 0 {
            break;
        }
        let text = cursor.text()?;
        match field {
            b'C' => error.code = text,
            b'M' => error.message = text,
            b'D' => error.detail = Some(text),
            b'H' => error.hint = Some(text),
            b'W' => error.context = Some(text),
            _ => {}
        }
    }
    Ok(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives bytes in pieces of this size, and then no more.
    struct Pieces<'a>(&'a [u8], usize);

    impl Read for Pieces<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let count = self.1.min(self.0.len()).min(into.len());
            into[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }

    #[test]
    fn messages_come_whole_however_they_are_cut() {
        let mut bytes = vec![];
        send(&mut bytes, Some(b'Z'), b"I").unwrap();
        send(&mut bytes, Some(b'd'), &[7; 1000]).unwrap();
        for size in 1..20 {
            let (mut from, mut reader) = (Pieces(&bytes, size), FrameReader::default());
            let frame = reader.next(&mut from).unwrap().unwrap();
            assert_eq!(frame, PgFrame { tag: b'Z', body: b"I".to_vec() });
            let frame = reader.next(&mut from).unwrap().unwrap();
            assert_eq!((frame.tag, frame.body.len()), (b'd', 1000));
            assert_eq!(reader.next(&mut from).unwrap(), None);
        }
    }

    #[test]
    fn lengths_that_are_none_are_refused() {
        for head in [[b'Z', 0, 0, 0, 3], [b'D', 0xff, 0xff, 0xff, 0xff], [b'D', 0x7f, 0, 0, 0]] {
            let mut reader = FrameReader::default();
            assert!(matches!(reader.next(&mut Pieces(&head, 5)), Err(PgError::Breach(_))));
        }
        assert!(row_of(&[0, 2, 0, 0, 0, 1, b'a']).is_err());
        assert!(row_of(&[0, 1, 0, 0, 0, 9, b'a']).is_err());
        let row = row_of(&[0, 2, 0, 0, 0, 1, b'a', 255, 255, 255, 255]).unwrap();
        assert_eq!(row, [Some("a".to_owned()), None]);
        assert!(FieldCursor(b"no end").text().is_err());
        let error = error_of(b"SERROR\0C42P01\0Mno table\0P15\0\0").unwrap();
        assert_eq!((error.code.as_str(), error.message.as_str()), ("42P01", "no table"));
        assert!(error_of(b"C42").is_err());
    }
}
