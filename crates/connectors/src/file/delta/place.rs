//! Where a table lies: a directory of this machine, or objects below a path of a store.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use dataflow::error::ConnectorError;
use parquet::arrow::arrow_reader::ArrowReaderOptions;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder as ReaderBuilder;

use super::log::{
    CHECKPOINT_BYTES_MAX, LogState, VERSION_DIGITS, apply_checkpoint, damaged, unread,
};
use super::{LOG, PATH_HINT};
use crate::file::atomic::AtomicFile;
use crate::file::paths::{io_error, one_name};
use crate::file::{FileBlob, staged};
use crate::object::{self, AgedName, ObjectDirectory};
use crate::options::{OptionReader, refuse};
use crate::stored::Blob;

/// Files and directories below a table at most.
const LISTED_MAX: usize = 1_000_000;
/// How long a commit that was begun stays: its writer may be slow.
const BEGUN_STAY: Duration = Duration::from_secs(24 * 60 * 60);

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
            let linked = match fs::hard_link(&hidden, &path) {
                Ok(()) => Ok(true),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
                Err(error) => Err(link_error(&path, &error)),
            };
            Ok(linked)
        };
        let made = made().map_err(|error| io_error(&path, &error)).flatten();
        if let Err(error) = fs::remove_file(&hidden) {
            tracing::debug!(file = %hidden.display(), %error, "it stays");
        }
        if made? {
            staged::sync(parent)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// The names in the log, with their times.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub(super) fn aged_log(&self) -> Result<Vec<AgedName>, ConnectorError> {
        let directory = match self {
            Self::Files(directory) => directory.join(LOG),
            Self::Objects(objects) => {
                let names = objects.aged(LOG)?.into_iter();
                return Ok(names.filter(|of| !of.name.contains('/')).collect());
            }
        };
        let failed = |error: std::io::Error| io_error(&directory, &error);
        let mut names = vec![];
        for entry in fs::read_dir(&directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            // Another writer may remove it meanwhile.
            let Ok(metadata) = entry.metadata() else { continue };
            let name = entry.file_name().to_string_lossy().into_owned();
            names.extend(AgedName::of(name, &metadata));
        }
        Ok(names)
    }

    /// All files below the table, with their times. Links are not followed, and are none.
    ///
    /// # Errors
    /// When they cannot be listed, or are too many.
    pub(super) fn aged_files(&self) -> Result<Vec<AgedName>, ConnectorError> {
        let directory = match self {
            Self::Files(directory) => directory,
            Self::Objects(objects) => return objects.aged(""),
        };
        let (mut files, mut listed, mut todo) = (vec![], 0, vec![String::new()]);
        while let Some(below) = todo.pop() {
            let path = directory.join(&below);
            let failed = |error: std::io::Error| io_error(&path, &error);
            let entries = match fs::read_dir(&path) {
                // Somebody has removed it meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound && !below.is_empty() => continue,
                entries => entries.map_err(failed)?,
            };
            for entry in entries {
                let entry = entry.map_err(failed)?;
                listed += 1;
                if listed > LISTED_MAX {
                    let message = format!("more than {LISTED_MAX} files are below it");
                    return Err(damaged(&self.display(""), message));
                }
                // A name that is no text is in no log.
                let Ok(name) = entry.file_name().into_string() else { continue };
                let Ok(metadata) = entry.metadata() else { continue };
                let name = if below.is_empty() { name } else { format!("{below}/{name}") };
                if metadata.is_dir() {
                    todo.push(name);
                } else if metadata.is_file() {
                    files.extend(AgedName::of(name, &metadata));
                }
            }
        }
        Ok(files)
    }

    /// Removes files of the table. One that is not there is no error.
    ///
    /// # Errors
    /// When one cannot be removed.
    pub(super) fn remove(&self, names: &[String]) -> Result<(), ConnectorError> {
        let directory = match self {
            Self::Files(directory) => directory,
            Self::Objects(objects) => return objects.remove(names),
        };
        for name in names {
            let path = directory.join(name);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(io_error(&path, &error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes files of the log that a writer has begun, and whose process was ended then. A store
    /// has none.
    pub(super) fn sweep_log(&self) {
        let Self::Files(directory) = self else { return };
        let Ok(entries) = fs::read_dir(directory.join(LOG)) else { return };
        for entry in entries.flatten().filter(|entry| is_begun(&entry.file_name())) {
            let age = entry.metadata().ok().and_then(|of| of.modified().ok()?.elapsed().ok());
            if age.is_some_and(|age| age >= BEGUN_STAY)
                && let Err(error) = fs::remove_file(entry.path())
            {
                tracing::debug!(file = %entry.path().display(), %error, "it stays");
            }
        }
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

/// Whether a name is that of a commit that [`TablePlace::create`] has begun.
fn is_begun(name: &OsStr) -> bool {
    let name = name.to_str().and_then(|name| name.strip_prefix('.')?.split_once(".json.tmp-"));
    let is_all = |text: &str, digit: fn(&u8) -> bool| text.as_bytes().iter().all(digit);
    name.is_some_and(|(version, number)| {
        let fits = version.len() == VERSION_DIGITS && number.len() == 16;
        fits && is_all(version, u8::is_ascii_digit) && is_all(number, u8::is_ascii_hexdigit)
    })
}

/// A link that could not be made: some file systems have none.
fn link_error(path: &Path, error: &std::io::Error) -> ConnectorError {
    if !matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::PermissionDenied) {
        return io_error(path, error);
    }
    let message = format!("cannot link it to its name: {error}");
    let hint = "the file system has to allow hard links, as those of Linux do, and exFAT, SMB and \
                some others do not: put the table elsewhere, or into a bucket";
    unread(&path.display().to_string(), message, hint)
}

/// Milliseconds since 1970.
pub(super) fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}

/// A number that nobody else draws.
pub(super) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_that_was_begun_long_ago_is_swept_and_nothing_else() {
        let directory = std::env::temp_dir().join(format!("millstream-begun-{:016x}", random()));
        let log = directory.join(LOG);
        fs::create_dir_all(&log).unwrap();
        let version = "00000000000000000007";
        let names = [
            format!(".{version}.json.tmp-0123456789abcdef"),
            format!(".{version}.json.tmp-fedcba9876543210"),
            format!("{version}.json"),
            format!(".{version}.json.tmp-0123"),
            format!(".{version}.json.crc"),
        ];
        let two_days = SystemTime::now() - 2 * BEGUN_STAY;
        for (number, name) in names.iter().enumerate() {
            let file = File::create(log.join(name)).unwrap();
            if number != 1 {
                file.set_modified(two_days).unwrap();
            }
        }
        TablePlace::Files(directory.clone()).sweep_log();
        let there = names.map(|name| log.join(name).exists());
        fs::remove_dir_all(directory).unwrap();
        assert_eq!(there, [false, true, true, true, true]);
    }

    #[test]
    fn a_file_system_without_links_is_named() {
        let error = |kind: ErrorKind| link_error(Path::new("t/0.json"), &kind.into());
        for kind in [ErrorKind::Unsupported, ErrorKind::PermissionDenied] {
            let ConnectorError::Io { place, hint, .. } = error(kind) else { panic!() };
            assert!(place == "t/0.json" && hint.unwrap().contains("hard links"), "{kind:?}");
        }
        let ConnectorError::Io { hint, .. } = error(ErrorKind::StorageFull) else { panic!() };
        assert!(!hint.unwrap_or_default().contains("hard links"));
    }
}
