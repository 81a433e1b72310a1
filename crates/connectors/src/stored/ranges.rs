//! Ranges of a blob that are read side by side.
//!
//! ```text
//! │ split.bytes │ split.bytes │ split.bytes │ rest │
//! ├─ records ───┴─┬───────────┴──┬──────────┴────┬─┤   a record is in the range where it begins
//! ```
//!
//! Where a range begins, and the number of its first record, follows from all bytes before it. A
//! process goes over those once, faster than they are decoded, as far as it is asked.

use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};

use dataflow::connector::OptionSpec;
use dataflow::error::ConnectorError;

use super::{Blob, unpacked};
use crate::format::cut::SeekableBytes;
use crate::format::json::{HEAD_BYTES, is_document};
use crate::format::{ByteInput, Compression, RecordCut, RecordRange, RecordStart};
use crate::options::OptionReader;

/// Bytes of a range where the table does not say: large beside what opening one costs, and small
/// enough for many workers.
const SPLIT_BYTES_DEFAULT: u64 = 16 << 20;

/// The option.
pub(crate) const SPLIT_BYTES: OptionSpec = OptionSpec {
    key: "split.bytes",
    values: "integer",
    default: "16777216",
    doc: "Bytes of a larger file of CSV or JSON that one worker reads while others read the next \
          ones.",
};

/// The value of the option.
pub(super) fn split_bytes(options: OptionReader<'_>) -> Result<u64, ConnectorError> {
    Ok(options.integer(SPLIT_BYTES.key, 1)?.unwrap_or(SPLIT_BYTES_DEFAULT))
}

/// A blob that is cut into ranges.
pub(super) struct Ranges {
    blob: SeekableBlob,
    cut: RecordCut,
    split_bytes: u64,
    /// Where the first record of each range begins, as far as that is known.
    begins: Mutex<Vec<RecordStart>>,
}

impl Ranges {
    /// `None` where the blob is one range: it is small, or cannot be read from any offset.
    pub(super) fn new(
        blob: &Arc<dyn Blob>,
        (cut, is_json): (RecordCut, bool),
        split_bytes: u64,
    ) -> Option<Self> {
        if blob.bytes() <= split_bytes || blob.read_from(0).is_none() {
            return None;
        }
        // A blob that cannot be read is refused when a range of it is opened.
        let head = || blob.read_at(0, HEAD_BYTES).is_ok_and(|head| is_document(&head));
        if is_json && head() {
            return None;
        }
        let first = RecordStart { offset: 0, record: 1, rest: false };
        let (blob, begins) = (SeekableBlob(Arc::clone(blob)), Mutex::new(vec![first]));
        Some(Self { blob, cut, split_bytes, begins })
    }

    /// How many ranges there are.
    pub(super) fn count(&self) -> usize {
        self.blob.0.bytes().div_ceil(self.split_bytes) as usize
    }

    /// The name of a range, and how many bytes it has but for those of a record.
    pub(super) fn name_and_bytes(&self, range: usize) -> (String, u64) {
        let (blob, from) = (&self.blob.0, range as u64 * self.split_bytes);
        let bytes = self.split_bytes.min(blob.bytes().saturating_sub(from));
        (format!("{} from byte {from}", blob.name()), bytes)
    }

    /// The records of a range.
    ///
    /// # Errors
    /// When the bytes before its end cannot be read.
    pub(super) fn range(&self, range: usize) -> Result<RecordRange, ConnectorError> {
        let mut begins = self.begins.lock().unwrap_or_else(PoisonError::into_inner);
        let last = range + 1 == self.count();
        let needed = if last { range } else { range + 1 };
        while let Some(from) = begins.last().filter(|_| begins.len() <= needed).copied() {
            let least = begins.len() as u64 * self.split_bytes;
            begins.push(self.cut.next(&self.blob, from, least)?);
        }
        let end = if last { u64::MAX } else { begins[range + 1].offset };
        Ok(RecordRange { begin: begins[range], end })
    }
}

struct SeekableBlob(Arc<dyn Blob>);

impl SeekableBytes for SeekableBlob {
    fn name(&self) -> String {
        self.0.name()
    }

    fn from(&self, offset: u64) -> Result<Box<dyn Read + Send>, ConnectorError> {
        self.0.read_from(offset).unwrap_or_else(|| {
            let (place, message) = (self.0.name(), "it cannot be read from an offset".to_owned());
            Err(ConnectorError::Io { place, message, hint: None })
        })
    }

    fn input(&self) -> Result<ByteInput, ConnectorError> {
        let blob = Arc::clone(&self.0);
        let input = unpacked(self.name(), self.from(0)?, Some(Compression::None))?;
        Ok(input.seeking(Box::new(move |offset| blob.read_from(offset))))
    }
}
