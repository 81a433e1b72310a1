//! A file as stored bytes.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use dataflow::error::ConnectorError;

use super::paths::io_error;
use crate::stored::Blob;

/// A file that is there.
#[derive(Debug)]
pub(super) struct FileBlob {
    path: PathBuf,
    bytes: u64,
}

impl FileBlob {
    pub(super) fn open(path: &Path) -> Result<Arc<dyn Blob>, ConnectorError> {
        let metadata = fs::metadata(path).map_err(|error| io_error(path, &error))?;
        Ok(Arc::new(Self { path: path.to_path_buf(), bytes: metadata.len() }))
    }
}

impl Blob for FileBlob {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self) -> Result<Box<dyn Read + Send>, ConnectorError> {
        Ok(Box::new(File::open(&self.path).map_err(|error| io_error(&self.path, &error))?))
    }

    fn read_at(&self, offset: u64, length: usize) -> io::Result<Bytes> {
        // Said in words: what the reader of a format says of a file that is not there is long.
        let file = File::open(&self.path)
            .map_err(|error| io::Error::other(io_error(&self.path, &error)))?;
        let mut bytes = vec![0; length];
        let mut filled = 0;
        while filled < length {
            match file.read_at(&mut bytes[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        bytes.truncate(filled);
        Ok(bytes.into())
    }
}
