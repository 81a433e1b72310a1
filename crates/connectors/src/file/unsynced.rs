//! What is staged and not durable: a thread of the checkpoint brings it to the disk, for the worker
//! has other things to do.

use std::fmt;
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use dataflow::error::ConnectorError;
use dataflow::sink::UnsyncedOutput;

use super::encoder::Output;
use super::paths::io_error;
use super::staged;

/// Parts that a worker has staged.
pub(super) struct UnsyncedParts {
    /// The directory that has their names, if it is one of files.
    directory: Option<PathBuf>,
    /// Those that are not durable; none once this was done.
    parts: Mutex<Vec<Box<dyn Output>>>,
}

impl UnsyncedParts {
    pub(super) fn new(directory: Option<PathBuf>, parts: Vec<Box<dyn Output>>) -> Self {
        Self { directory, parts: Mutex::new(parts) }
    }

    /// Whether all parts are durable. It does not wait for them.
    pub(super) fn is_synced(&self) -> bool {
        self.parts.try_lock().is_ok_and(|parts| parts.is_empty())
    }
}

impl UnsyncedOutput for UnsyncedParts {
    fn sync(&self) -> Result<(), ConnectorError> {
        {
            let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
            parts.drain(..).try_for_each(|part| part.commit())?;
        }
        // The names of all of them, at once.
        self.directory.as_deref().map_or(Ok(()), staged::sync)
    }
}

impl fmt::Debug for UnsyncedParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnsyncedParts").field("directory", &self.directory).finish_non_exhaustive()
    }
}

/// A file whose rows are kept up to a length.
#[derive(Debug)]
pub(super) struct UnsyncedSpool {
    /// The file for messages.
    pub(super) path: PathBuf,
    /// The same open file as that of the writer: it hears of a write that failed.
    pub(super) file: File,
}

impl UnsyncedOutput for UnsyncedSpool {
    fn sync(&self) -> Result<(), ConnectorError> {
        self.file.sync_data().map_err(|error| io_error(&self.path, &error))
    }
}
