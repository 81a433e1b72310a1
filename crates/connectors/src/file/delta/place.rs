//! Where a table lies: a directory of this machine, or objects below a path of a store.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use dataflow::error::ConnectorError;
use parquet::arrow::arrow_reader::ArrowReaderOptions;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder as ReaderBuilder;

use super::log::{CHECKPOINT_BYTES_MAX, LogState, apply_checkpoint, damaged};
use super::{LOG, PATH_HINT};
use crate::file::atomic::AtomicFile;
use crate::file::paths::{io_error, one_name};
use crate::file::{FileBlob, staged};
use crate::object::{self, ObjectDirectory};
use crate::options::{OptionReader, refuse};
use crate::stored::Blob;

/// Where a table lies.
#[derive(Clone)]
pub(super) enum TablePlace {
    /// A directory.
    Files(PathBuf),
    /// Objects whose names begin with a path.
    Objects(ObjectDirectory),
}

impl TablePlace {
    /// The place of a path, which may be a URL.
    ///
    /// # Errors
    /// When it is empty, or a URL is none of a store that can tell what is in it.
    pub(super) fn open(path: &str, options: OptionReader<'_>) -> Result<Self, ConnectorError> {
        if path.is_empty() {
            return Err(refuse("path", "it names no directory", Some(PATH_HINT.into())));
        }
        if !object::is_url(path) {
            return Ok(Self::Files(PathBuf::from(path)));
        }
        let path = format!("{}/", path.trim_end_matches('/'));
        Ok(Self::Objects(ObjectDirectory::open(&path, options)?.0))
    }

    /// The address of a name below the table, for messages; of the table itself if it is empty.
    pub(super) fn display(&self, name: &str) -> String {
        match self {
            Self::Files(directory) if name.is_empty() => directory.display().to_string(),
            Self::Files(directory) => directory.join(name).display().to_string(),
            Self::Objects(objects) => objects.place(name),
        }
    }

    /// A name that is the same however the place is spelled.
    pub(super) fn one_name(&self) -> String {
        match self {
            Self::Files(directory) => one_name(directory).display().to_string(),
            Self::Objects(objects) => objects.place(""),
        }
    }

    /// The names in the log, of a store only those behind `from`; `None` if there are none.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub(super) fn log_names(
        &self,
        from: Option<&str>,
    ) -> Result<Option<Vec<String>>, ConnectorError> {
        let directory = match self {
            Self::Files(directory) => directory.join(LOG),
            Self::Objects(objects) => {
                let names = objects.names_in(LOG, from)?;
                return Ok((!names.is_empty()).then_some(names));
            }
        };
        let entries = match fs::read_dir(&directory) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            entries => entries.map_err(|error| io_error(&directory, &error))?,
        };
        let name = |entry: std::io::Result<fs::DirEntry>| match entry {
            Ok(entry) => Ok(entry.file_name().to_string_lossy().into_owned()),
            Err(error) => Err(io_error(&directory, &error)),
        };
        entries.map(name).collect::<Result<_, _>>().map(Some)
    }

    /// All bytes of a name below the table; `None` if it is not there.
    ///
    /// # Errors
    /// When it has more than `bytes_max`, or cannot be read.
    pub(super) fn read(&self, name: &str, bytes_max: u64) -> Result<Option<Bytes>, ConnectorError> {
        let too_long = |length: u64| damaged(&self.display(name), format!("it has {length} bytes"));
        let path = match self {
            Self::Files(directory) => directory.join(name),
            Self::Objects(objects) => {
                let Some(blob) = objects.blob(name)? else { return Ok(None) };
                if blob.bytes() > bytes_max {
                    return Err(too_long(blob.bytes()));
                }
                return objects.get(name);
            }
        };
        let length = match fs::metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            metadata => metadata.map_err(|error| io_error(&path, &error))?.len(),
        };
        if length > bytes_max {
            return Err(too_long(length));
        }
        fs::read(&path).map(|bytes| Some(bytes.into())).map_err(|error| io_error(&path, &error))
    }

    /// Applies a part of a checkpoint.
    ///
    /// # Errors
    /// When it cannot be read, or `state` refuses an action.
    pub(super) fn read_checkpoint(
        &self,
        name: &str,
        state: &mut dyn LogState,
        actions: &mut usize,
    ) -> Result<(), ConnectorError> {
        let place = self.display(name);
        // Types that its writer had, such as dictionaries, would hide how much the values are.
        let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
        let unfit = |error: parquet::errors::ParquetError| damaged(&place, error.to_string());
        match self {
            Self::Files(directory) => {
                let path = directory.join(name);
                let file = File::open(&path).map_err(|error| io_error(&path, &error))?;
                let builder = ReaderBuilder::try_new_with_options(file, options).map_err(unfit)?;
                apply_checkpoint(&place, builder, state, actions)
            }
            Self::Objects(_) => {
                let bytes = self.read(name, CHECKPOINT_BYTES_MAX)?;
                let bytes = bytes.ok_or_else(|| damaged(&place, "it is gone"))?;
                let builder = ReaderBuilder::try_new_with_options(bytes, options).map_err(unfit)?;
                apply_checkpoint(&place, builder, state, actions)
            }
        }
    }

    /// Makes a name below the table, whole and durable, unless it is there. Gives whether it was
    /// made.
    ///
    /// # Errors
    /// When it cannot be made; of a store nobody knows then whether it was.
    pub(super) fn create(&self, name: &str, bytes: &Bytes) -> Result<bool, ConnectorError> {
        let path = match self {
            Self::Files(directory) => directory.join(name),
            Self::Objects(objects) => return objects.create(name, bytes),
        };
        let parent = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(parent).map_err(|error| io_error(parent, &error))?;
        let file_name = path.file_name().unwrap_or_default().to_string_lossy();
        let hidden = parent.join(format!(".{file_name}.tmp-{:016x}", random()));
        let made = || {
            let mut file = OpenOptions::new().write(true).create_new(true).open(&hidden)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            match fs::hard_link(&hidden, &path) {
                Ok(()) => Ok(true),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
                Err(error) => Err(error),
            }
        };
        let made = made().map_err(|error| io_error(&path, &error));
        if let Err(error) = fs::remove_file(&hidden) {
            tracing::debug!(file = %hidden.display(), %error, "it stays");
        }
        if made? {
            staged::sync(parent)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Writes a name below the table, whole; what was there is replaced.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn replace(&self, name: &str, bytes: Bytes) -> Result<(), ConnectorError> {
        match self {
            Self::Files(directory) => {
                let path = directory.join(name);
                let mut file = AtomicFile::create(&path)?;
                file.write_all(&bytes).map_err(|error| io_error(&path, &error))?;
                file.commit()
            }
            Self::Objects(objects) => {
                let mut upload = objects.upload(name)?;
                upload
                    .write_all(&bytes)
                    .map_err(|error| io_error(Path::new(&objects.place(name)), &error))?;
                upload.commit()
            }
        }
    }

    /// The files of the table with these names.
    ///
    /// # Errors
    /// When one is not there.
    pub(super) fn blobs(&self, names: &[String]) -> Result<Vec<Arc<dyn Blob>>, ConnectorError> {
        match self {
            Self::Files(directory) => {
                names.iter().map(|name| FileBlob::open(&directory.join(name))).collect()
            }
            Self::Objects(objects) => objects.blobs(names),
        }
    }

    /// Whether a file of the table is there.
    ///
    /// # Errors
    /// When nobody can tell.
    pub(super) fn has(&self, name: &str) -> Result<bool, ConnectorError> {
        match self {
            Self::Files(directory) => Ok(directory.join(name).exists()),
            Self::Objects(objects) => Ok(objects.blob(name)?.is_some()),
        }
    }
}

/// A number that nobody else draws.
pub(super) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
