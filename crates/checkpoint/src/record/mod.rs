//! Records of a chain.
//!
//! ```text
//! millstream-chain 1 <crc32c of the JSON, 8 hex digits> <bytes of the JSON>\n
//! {"kind":"manifest","generation":7,"number":412, …}
//! ```
//!
//! A record is read as a stranger's: every length is bounded, and what it says is checked before it
//! is believed.

mod holder;
mod json;

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::error::CheckpointError;

/// The version of the format that is written.
pub const RECORD_VERSION: u64 = 1;
/// Bytes of a record at most, with its header.
pub const RECORD_BYTES_MAX: usize = 64 << 20;
/// Bytes of a text in a record at most: plans and SQL are the longest.
pub const TEXT_BYTES_MAX: usize = 1 << 20;
/// Bytes of the position of a split at most.
pub const POSITION_BYTES_MAX: usize = 64 << 10;
/// Bytes that a part of a sink stages in a record at most.
pub const STAGED_BYTES_MAX: usize = 1 << 20;
/// Entries of a list in a record at most.
pub const ENTRIES_MAX: usize = 1 << 20;

/// The first word of a header.
const MAGIC: &str = "millstream-chain";
/// Bytes of a header at most.
const HEADER_BYTES_MAX: usize = 64;

/// A record: what a generation says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The job: a record that was moved to another chain is found.
    pub job: String,
    /// Its number in the chain: a record in the place of another one is found.
    pub record: u64,
    /// The run of the job that wrote it. The first one is 1.
    pub generation: u64,
    /// The nonce of its holder: two runs of one generation, before and behind a drop of the job, do
    /// not write equal records.
    pub run: u64,
    /// The name under which this copy is kept; `None` in the chain.
    pub kept: Option<String>,
    /// Its contents.
    pub body: RecordBody,
}

/// The kinds of records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordBody {
    /// A generation begins.
    Begin(Begin),
    /// A checkpoint is complete.
    Manifest(CheckpointManifest),
    /// The output of a checkpoint was published, and the job was stopped.
    Settled(BaseCheckpoint),
    /// The job has ended, and the output of its last checkpoint was published.
    Done(BaseCheckpoint),
}

/// The first record of a generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begin {
    /// The process that leads it.
    pub holder: Holder,
    /// Nodes of the job.
    pub nodes: u32,
    /// Workers of the job, on all nodes.
    pub workers: u32,
    /// The release of the program.
    pub release: String,
    /// Equal for jobs whose state is the same.
    pub fingerprint: String,
    /// The text of the job, without secrets ([`mask`](crate::secrets::mask)).
    pub sql: String,
    /// Its first round.
    pub round: u64,
    /// The checkpoint that it goes on from; `None` if it begins anew.
    pub base: Option<BaseCheckpoint>,
}

/// The process that leads a generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The host's name, for people.
    pub host: String,
    /// The boot of its machine and its PID namespace: there `pid` and `started` name a process.
    pub machine: String,
    /// The process.
    pub pid: u32,
    /// When it started, in clock ticks since its machine did: tells two processes of one number
    /// apart.
    pub started: u64,
    /// A random number, by which two processes of two hosts with one name differ.
    pub nonce: u64,
}

/// A reference to a checkpoint of the same chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseCheckpoint {
    /// The number of its record in the chain.
    pub record: u64,
    /// Its own number: the round that it ends.
    pub number: u64,
    /// The name under which it was kept, if the record is read there.
    pub kept: Option<String>,
}

/// A complete checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CheckpointManifest {
    /// Its number: the round that it ends. Numbers of a chain grow.
    pub number: u64,
    /// The number of the checkpoint before it, if there is one.
    pub parent: Option<u64>,
    /// Nodes of the job.
    pub nodes: u32,
    /// Workers of the job, on all nodes.
    pub workers: u32,
    /// Equal for jobs whose state is the same.
    pub fingerprint: String,
    /// The operators with state, or whose text is compared when the job goes on.
    pub operators: Vec<OperatorEntry>,
    /// The files with their state.
    pub segments: Vec<SegmentEntry>,
    /// The files of earlier checkpoints with a part of that state.
    pub referred: Vec<SegmentEntry>,
    /// How far the sources were read.
    pub sources: Vec<SourceEntry>,
    /// The output that is staged and has to be published.
    pub sinks: Vec<SinkEntry>,
    /// The versions of tables that it reads.
    pub tables: Vec<TableEntry>,
    /// Totals since the job began: rows that came late, bad rows.
    pub counters: BTreeMap<String, u64>,
    /// The last checkpoint whose output is known to be published.
    pub settled: Option<u64>,
}

/// An operator of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorEntry {
    /// Its name, which outlives edits of the SQL.
    pub id: String,
    /// Its description, as EXPLAIN has it: operators of one id and another text do not fit.
    pub text: String,
    /// The watermark up to which its results were emitted, in milliseconds since 1970.
    pub watermark: Option<i64>,
}

/// A file with state.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentEntry {
    /// Its name below `<job>/seg`.
    pub file: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// The CRC32C of its footer, which has those of its sections: the file is this one.
    pub crc: u32,
}

/// How far a source was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceEntry {
    /// Its name, which outlives edits of the SQL.
    pub id: String,
    /// Its splits.
    pub splits: Vec<SplitEntry>,
}

/// How far a split was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitEntry {
    /// Its name.
    pub name: String,
    /// Behind the last row that is part of the checkpoint. Its meaning is the connector's.
    pub position: Vec<u8>,
    /// The greatest event time of its rows.
    pub greatest: Option<i64>,
    /// Whether it was read to its end.
    pub ended: bool,
}

/// The staged output of a sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SinkEntry {
    /// Its name, which outlives edits of the SQL.
    pub id: String,
    /// The output that its writers have staged.
    pub parts: Vec<StagedPart>,
    /// Two numbers of the connector, by which it knows whether the output was published; `None`
    /// where the staged output has names that show it.
    pub mark: Option<[u64; 2]>,
}

/// The output that a writer of a sink has staged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagedPart {
    /// The writer: the worker's number.
    pub part: u32,
    /// The bytes by which the connector publishes it.
    pub staged: Vec<u8>,
}

impl CheckpointManifest {
    /// All files with state of this checkpoint: its own, and those that it refers to.
    pub fn all_segments(&self) -> impl Iterator<Item = &SegmentEntry> {
        self.segments.iter().chain(&self.referred)
    }
}

/// The version of a table that the job reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableEntry {
    /// The table, by the name that its connector has for it.
    pub table: String,
    /// Its version.
    pub version: u64,
}

impl Record {
    /// The record as it is stored.
    ///
    /// # Errors
    /// When a text, a list or the whole exceeds its bound.
    pub fn encode(&self) -> Result<Bytes, CheckpointError> {
        let json = json::encode(self).map_err(CheckpointError::invalid)?;
        let header = format!(
            "{MAGIC} {RECORD_VERSION} {:08x} {}\n",
            crc32c::crc32c(json.as_bytes()),
            json.len()
        );
        let bytes = header.len() + json.len();
        if bytes > RECORD_BYTES_MAX {
            return Err(CheckpointError::invalid(format!(
                "a record of {bytes} bytes exceeds {RECORD_BYTES_MAX}: it has too many splits, or \
                 its sinks stage too much"
            )));
        }
        Ok(Bytes::from(header + &json))
    }

    /// Reads the record that `file` holds.
    ///
    /// # Errors
    /// The file and the byte at which it is not a record of this format.
    pub fn decode(file: &str, bytes: &[u8]) -> Result<Self, CheckpointError> {
        if bytes.len() > RECORD_BYTES_MAX {
            let reason = format!("a record has {RECORD_BYTES_MAX} bytes at most");
            return Err(CheckpointError::damaged(file, RECORD_BYTES_MAX as u64, reason));
        }
        let head = &bytes[..bytes.len().min(HEADER_BYTES_MAX)];
        let Some(end) = head.iter().position(|&byte| byte == b'\n') else {
            return Err(CheckpointError::damaged(file, 0, "it has no header line"));
        };
        let (crc, length) = header(file, &bytes[..end])?;
        let (start, json) = (end as u64 + 1, &bytes[end + 1..]);
        if json.len() as u64 != length {
            let reason = format!("{length} bytes were written here, and {} are", json.len());
            return Err(CheckpointError::damaged(file, start, reason));
        }
        if crc32c::crc32c(json) != crc {
            return Err(CheckpointError::damaged(file, start, "its checksum is another one"));
        }
        json::decode(json)
            .map_err(|(at, reason)| CheckpointError::damaged(file, start + at, reason))
    }

    /// Refuses a record of another job, a copy under another name, or a record of another number
    /// unless that is `None`.
    pub(crate) fn belongs(
        self,
        file: &str,
        job: &str,
        record: Option<u64>,
        kept: Option<&str>,
    ) -> Result<Self, CheckpointError> {
        let is_there = record.is_none_or(|record| self.record == record);
        if self.job == job && is_there && self.kept.as_deref() == kept {
            return Ok(self);
        }
        let Self { job, record, kept, .. } = self;
        let copy = kept.map_or_else(String::new, |kept| format!(", kept as '{kept}'"));
        let reason = format!("it is record {record} of job '{job}'{copy}, which belongs elsewhere");
        Err(CheckpointError::damaged(file, 0, reason))
    }

    /// The checkpoint that a job goes on from if this is the last record of its chain.
    #[must_use]
    pub fn checkpoint(&self) -> Option<BaseCheckpoint> {
        match &self.body {
            RecordBody::Begin(begin) => begin.base.clone(),
            RecordBody::Manifest(manifest) => {
                let (record, number) = (self.record, manifest.number);
                Some(BaseCheckpoint { record, number, kept: None })
            }
            RecordBody::Settled(of) | RecordBody::Done(of) => Some(of.clone()),
        }
    }
}

/// The checksum and the length that a header line names.
fn header(file: &str, line: &[u8]) -> Result<(u32, u64), CheckpointError> {
    let damaged = |reason: &str| CheckpointError::damaged(file, 0, reason);
    let line = std::str::from_utf8(line).map_err(|_| damaged("its header is not text"))?;
    let mut words = line.split(' ');
    if words.next() != Some(MAGIC) {
        return Err(damaged("it is no record of a chain"));
    }
    let version = number(words.next(), 10).ok_or_else(|| damaged("its version is no number"))?;
    if version == 0 || version > RECORD_VERSION {
        let file = file.to_owned();
        return Err(CheckpointError::Version { file, version, newest: RECORD_VERSION });
    }
    let crc = number(words.next().filter(|word| word.len() == 8), 16);
    let crc = crc.and_then(|crc| u32::try_from(crc).ok());
    match (crc, number(words.next(), 10), words.next()) {
        (Some(crc), Some(length), None) => Ok((crc, length)),
        _ => Err(damaged("its header is malformed")),
    }
}

/// A number as [`Record::encode`] writes it, and no other spelling of it.
fn number(word: Option<&str>, radix: u32) -> Option<u64> {
    let word = word?;
    let value = u64::from_str_radix(word, radix).ok()?;
    let canonical = if radix == 16 { format!("{value:08x}") } else { value.to_string() };
    (canonical == word).then_some(value)
}

#[cfg(test)]
mod tests;
