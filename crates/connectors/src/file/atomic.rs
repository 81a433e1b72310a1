//! A file that appears whole or not at all.
//!
//! Bytes go to a hidden name in the same directory; [`commit`](AtomicFile::commit) brings them to
//! the disk and renames. Dropped before, the hidden file is removed. What stands under the name
//! until then is not touched. A device or pipe under the name cannot be replaced: it is written
//! directly.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use dataflow::error::ConnectorError;

use super::paths::io_error;

/// Names that are tried before giving up on finding a free one.
const NAMES_TRIED_MAX: u32 = 16;

#[derive(Debug)]
pub(super) struct AtomicFile {
    path: PathBuf,
    file: File,
    /// The hidden name, until it was given its own.
    hidden: Option<PathBuf>,
}

impl AtomicFile {
    pub(super) fn create(path: &Path) -> Result<Self, ConnectorError> {
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => Err(ConnectorError::Io {
                place: path.display().to_string(),
                message: "is a directory".into(),
                hint: Some("a sink writes a single file: add its name".into()),
            }),
            Ok(metadata) if !metadata.is_file() => {
                let file = OpenOptions::new().write(true).open(path);
                let file = file.map_err(|error| io_error(path, &error))?;
                Ok(Self { path: path.to_path_buf(), file, hidden: None })
            }
            _ => Self::create_hidden(path),
        }
    }

    fn create_hidden(path: &Path) -> Result<Self, ConnectorError> {
        let name = path.file_name().ok_or_else(|| ConnectorError::Io {
            place: path.display().to_string(),
            message: "is not the name of a file".into(),
            hint: None,
        })?;
        let parent = directory_of(path);
        if !parent.is_dir() {
            return Err(ConnectorError::Io {
                place: path.display().to_string(),
                message: format!("there is no directory '{}'", parent.display()),
                hint: Some(format!("make it first: mkdir -p '{}'", parent.display())),
            });
        }
        let mut error = io::Error::from(ErrorKind::AlreadyExists);
        for _ in 0..NAMES_TRIED_MAX {
            let random = RandomState::new().hash_one(std::process::id());
            let hidden = parent.join(format!(".{}.tmp-{random:016x}", name.to_string_lossy()));
            match OpenOptions::new().write(true).create_new(true).open(&hidden) {
                Ok(file) => {
                    return Ok(Self { path: path.to_path_buf(), file, hidden: Some(hidden) });
                }
                Err(refused) => error = refused,
            }
            if error.kind() != ErrorKind::AlreadyExists {
                break;
            }
        }
        Err(io_error(path, &error))
    }

    /// Makes the bytes durable and gives the file its name.
    pub(super) fn commit(mut self) -> Result<(), ConnectorError> {
        let Some(hidden) = &self.hidden else { return Ok(()) };
        self.file
            .sync_all()
            .and_then(|()| fs::rename(hidden, &self.path))
            .map_err(|error| io_error(&self.path, &error))?;
        self.hidden = None;
        // The rename has happened; that it survives a loss of power is as good as we can make it.
        if let Ok(directory) = File::open(directory_of(&self.path)) {
            let _ = directory.sync_all();
        }
        Ok(())
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if let Some(hidden) = &self.hidden
            && let Err(error) = fs::remove_file(hidden)
        {
            tracing::warn!(file = %hidden.display(), %error, "a temporary file stays behind");
        }
    }
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}
