//! A file as a sliding window of bytes, for the text formats.
//!
//! ```text
//! buffer:  … │ the batch being read │ not looked at │ room
//!            begin                  at              filled
//! ```
//!
//! The bytes from `begin` on stay where they are while a batch is read, so that a bad record can be
//! shown, and read again from its second line.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use dataflow::error::ConnectorError;

use super::paths::io_error;

/// Bytes asked of the file at a time.
const READ_BYTES: usize = 1 << 20;

/// Bytes of a batch after which no further record is begun: bounds the memory of a flow together
/// with the bound on a record.
pub(super) const BATCH_BYTES_MAX: usize = 8 << 20;

/// A file that is being read.
pub(super) struct Input {
    file: File,
    pub(super) path: PathBuf,
    buffer: Vec<u8>,
    begin: usize,
    at: usize,
    filled: usize,
    ended: bool,
}

impl Input {
    pub(super) fn open(path: &Path) -> Result<Self, ConnectorError> {
        let file = File::open(path).map_err(|error| io_error(path, &error))?;
        Ok(Self {
            file,
            path: path.to_path_buf(),
            buffer: Vec::new(),
            begin: 0,
            at: 0,
            filled: 0,
            ended: false,
        })
    }

    /// Bytes that were read and not passed yet.
    pub(super) fn ahead(&self) -> &[u8] {
        &self.buffer[self.at..self.filled]
    }

    /// Passes `bytes` of [`ahead`](Self::ahead).
    pub(super) fn pass(&mut self, bytes: usize) {
        self.at += bytes;
        debug_assert!(self.at <= self.filled);
    }

    /// The position, counted from the beginning of the batch.
    pub(super) fn position(&self) -> usize {
        self.at - self.begin
    }

    /// Goes back to a position of this batch.
    pub(super) fn rewind(&mut self, position: usize) {
        self.at = self.begin + position;
    }

    /// The bytes of this batch between two positions.
    pub(super) fn bytes(&self, from: usize, to: usize) -> &[u8] {
        &self.buffer[self.begin + from..self.begin + to]
    }

    /// Forgets what was passed: a new batch begins here.
    pub(super) fn begin_batch(&mut self) {
        self.begin = self.at;
    }

    /// Whether the file has been read to its end, though not all of it is passed.
    pub(super) fn is_whole(&self) -> bool {
        self.ended
    }

    /// Reads on.
    pub(super) fn fill(&mut self) -> Result<(), ConnectorError> {
        if self.ended {
            return Ok(());
        }
        if self.buffer.len() - self.filled < READ_BYTES {
            self.buffer.copy_within(self.begin..self.filled, 0);
            self.filled -= self.begin;
            self.at -= self.begin;
            self.begin = 0;
            let wanted = (self.filled * 2).max(2 * READ_BYTES);
            if self.buffer.len() < wanted {
                self.buffer.resize(wanted, 0);
            }
        }
        loop {
            match self.file.read(&mut self.buffer[self.filled..]) {
                Ok(0) => {
                    self.ended = true;
                    return Ok(());
                }
                Ok(bytes) => {
                    self.filled += bytes;
                    return Ok(());
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(io_error(&self.path, &error)),
            }
        }
    }
}
