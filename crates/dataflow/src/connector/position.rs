//! Positions: how far a split was read, as a value that can be kept and read on from.
//!
//! A connector puts numbers of its own into a position, such as a byte offset and a record, and
//! names them by a format and its version. Nobody else looks into it. A position knows the split
//! that it is of, so that it is refused where it does not belong.

use crate::error::ConnectorError;

/// Numbers of a position at most.
pub const POSITION_NUMBERS_MAX: usize = 16;

/// Bytes of a [note](Position::with_note) at most.
pub const NOTE_BYTES_MAX: usize = 16 << 20;

/// The first byte of an encoded position: how the rest is encoded.
const ENCODING: u8 = 1;
/// The first byte of one behind whose numbers are those of the steps of its scan, and a note.
const ENCODING_MORE: u8 = 2;

/// How far a split was read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Position {
    /// The meaning of the numbers; empty if the split cannot be read again.
    format: String,
    version: u32,
    split: String,
    numbers: Vec<u64>,
    /// The numbers that steps of the scan remember of the rows before.
    steps: Vec<u64>,
    /// Bytes of the connector that are no numbers; mostly empty.
    note: Vec<u8>,
}

impl Position {
    /// A position in the split of this name. `format` and `version` say what the `numbers` mean.
    ///
    /// # Panics
    /// When there are more than [`POSITION_NUMBERS_MAX`] numbers.
    pub fn new(format: &str, version: u32, split: &str, numbers: &[u64]) -> Self {
        assert!(numbers.len() <= POSITION_NUMBERS_MAX, "too many numbers");
        let (format, split, numbers) = (format.into(), split.into(), numbers.to_vec());
        Self { format, version, split, numbers, steps: vec![], note: vec![] }
    }

    /// The same with what the steps of the scan remember of the rows before it, a number of each
    /// that remembers one.
    ///
    /// # Panics
    /// When there are more than [`POSITION_NUMBERS_MAX`] numbers.
    pub(crate) fn with_steps(self, steps: Vec<u64>) -> Self {
        assert!(steps.len() <= POSITION_NUMBERS_MAX, "too many numbers");
        Self { steps, ..self }
    }

    /// The numbers of the steps.
    pub(crate) fn steps(&self) -> &[u64] {
        &self.steps
    }

    /// The same with bytes that belong to the numbers, such as a list.
    pub fn with_note(self, note: Vec<u8>) -> Self {
        Self { note, ..self }
    }

    /// The bytes that belong to the numbers.
    pub fn note(&self) -> &[u8] {
        &self.note
    }

    /// The position in a split that gives its rows once: a socket, a pipe. Nothing can be read on
    /// from it.
    pub fn none(split: &str) -> Self {
        Self::new("", 0, split, &[])
    }

    /// The name of the split that it is of.
    pub fn split(&self) -> &str {
        &self.split
    }

    /// Whether a reader can go on from here.
    pub fn can_be_replayed(&self) -> bool {
        !self.format.is_empty()
    }

    /// The numbers of a position that is of this format, version and split.
    ///
    /// # Errors
    /// [`ConnectorError::Io`] when it is of another one.
    pub fn numbers<const N: usize>(
        &self,
        format: &str,
        version: u32,
        split: &str,
    ) -> Result<[u64; N], ConnectorError> {
        if !self.can_be_replayed() {
            return Err(replayed(&self.split));
        }
        if self.split != split {
            return Err(refused(split, format!("the position is one of '{}'", self.split)));
        }
        if (self.format.as_str(), self.version) != (format, version) {
            let (own, of) = (&self.format, self.version);
            let message = format!("the position is of '{own}', version {of}");
            return Err(refused(split, format!("{message}, and not of '{format}', {version}")));
        }
        self.numbers.as_slice().try_into().map_err(|_| {
            let count = self.numbers.len();
            refused(split, format!("the position has {count} numbers in place of {N}"))
        })
    }

    /// The position as bytes that may be kept.
    pub fn to_bytes(&self) -> Vec<u8> {
        let has_more = !self.steps.is_empty() || !self.note.is_empty();
        let mut bytes = vec![if has_more { ENCODING_MORE } else { ENCODING }];
        for text in [&self.format, &self.split] {
            bytes.extend((text.len() as u32).to_le_bytes());
            bytes.extend(text.as_bytes());
        }
        bytes.extend(self.version.to_le_bytes());
        bytes.push(self.numbers.len() as u8);
        self.numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        if has_more {
            bytes.push(self.steps.len() as u8);
            self.steps.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
            bytes.extend(&self.note);
        }
        bytes
    }

    /// The position that became these bytes.
    ///
    /// # Errors
    /// [`ConnectorError::Io`] when none did.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ConnectorError> {
        decoded(bytes).ok_or_else(|| refused("position", "its bytes are damaged".into()))
    }
}

fn decoded(bytes: &[u8]) -> Option<Position> {
    let (&encoding, mut rest) = bytes.split_first()?;
    let mut text = || {
        let (length, behind) = rest.split_first_chunk::<4>()?;
        let (text, behind) = behind.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        rest = behind;
        String::from_utf8(text.to_vec()).ok()
    };
    let (format, split) = (text()?, text()?);
    let (version, rest) = rest.split_first_chunk::<4>()?;
    let version = u32::from_le_bytes(*version);
    let (numbers, rest) = decoded_numbers(rest)?;
    let (steps, note) = match encoding {
        ENCODING if rest.is_empty() => (vec![], rest),
        ENCODING_MORE => decoded_numbers(rest)?,
        _ => return None,
    };
    let says_more = !steps.is_empty() || !note.is_empty();
    if says_more != (encoding == ENCODING_MORE) || note.len() > NOTE_BYTES_MAX {
        return None;
    }
    let note = note.to_vec();
    Some(Position { format, version, split, numbers, steps, note })
}

/// Numbers behind their count, and the bytes behind them.
fn decoded_numbers(bytes: &[u8]) -> Option<(Vec<u64>, &[u8])> {
    let (&count, rest) = bytes.split_first()?;
    let count = usize::from(count);
    let (numbers, rest) = rest.split_at_checked(count * size_of::<u64>())?;
    let (numbers, _) = numbers.as_chunks::<8>();
    let numbers = numbers.iter().map(|number| u64::from_le_bytes(*number)).collect();
    (count <= POSITION_NUMBERS_MAX).then_some((numbers, rest))
}

/// The error that a split gives its rows once.
pub fn replayed(split: &str) -> ConnectorError {
    let hint = "it can only be read from its beginning, by a job that begins";
    ConnectorError::Io {
        place: split.to_owned(),
        message: "its rows cannot be replayed from a position".into(),
        hint: Some(hint.into()),
    }
}

/// The error that a position does not belong to a split.
pub fn refused(split: &str, message: String) -> ConnectorError {
    let hint = "a position is of one split of one table, as long as its data stay the same";
    ConnectorError::Io { place: split.to_owned(), message, hint: Some(hint.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(result: Result<[u64; 2], ConnectorError>) -> String {
        result.map_or_else(|error| error.to_string(), |numbers| format!("{numbers:?}"))
    }

    #[test]
    fn a_position_is_read_where_it_belongs_and_refused_elsewhere() {
        let position = Position::new("csv", 1, "a.csv", &[7, u64::MAX]);
        let position = Position::from_bytes(&position.to_bytes()).unwrap();
        assert_eq!(position.numbers("csv", 1, "a.csv").unwrap(), [7, u64::MAX]);
        assert!(text_of(position.numbers("csv", 1, "b.csv")).contains("one of 'a.csv'"));
        assert!(text_of(position.numbers("json", 1, "a.csv")).contains("of 'csv', version 1"));
        assert!(text_of(position.numbers("csv", 2, "a.csv")).contains("version 1"));
        let error = position.numbers::<3>("csv", 1, "a.csv").unwrap_err().to_string();
        assert!(error.contains("2 numbers in place of 3"), "{error}");
        assert!(text_of(Position::none("socket").numbers("", 0, "socket")).contains("be replayed"));
    }

    #[test]
    fn damaged_bytes_are_refused() {
        let position = Position::new("csv", 1, "a.csv", &[7, 9]);
        let with_steps = position.clone().with_steps(vec![3]);
        for bytes in [position.to_bytes(), with_steps.to_bytes()] {
            for end in 0..bytes.len() {
                assert!(Position::from_bytes(&bytes[..end]).is_err(), "{end} bytes");
            }
        }
        assert!(Position::from_bytes(&[&position.to_bytes()[..], &[0]].concat()).is_err());
        let noted = Position::new("watch", 1, "in/", &[7]).with_note(vec![1, 2, 3]);
        for position in [noted.clone(), noted.clone().with_steps(vec![9])] {
            assert_eq!(Position::from_bytes(&position.to_bytes()).unwrap(), position);
        }
        let long = noted.with_note(vec![0; NOTE_BYTES_MAX + 1]);
        assert!(Position::from_bytes(&long.to_bytes()).is_err());
        let many = vec![0; POSITION_NUMBERS_MAX];
        assert!(Position::from_bytes(&Position::new("", 0, "", &many).to_bytes()).is_ok());
    }
}
