//! A file as stored bytes.
//!
//! A file is held to the version that was listed: one that was replaced, cut or written over since
//! is an error that names it, since nobody could tell which rows came from which version. One that
//! has only grown is read to the length that it had. It is opened anew for each flow and for each
//! piece, and not kept open, since there may be more files than handles.

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use bytes::Bytes;
use dataflow::error::ConnectorError;

use super::paths::io_error;
use crate::format::{InputVersion, fnv};
use crate::stored::Blob;

/// Bytes at the beginning and at the end of a file by which its positions know it again.
const MARK_BYTES: usize = 4096;

/// The attributes that tell versions of a file apart.
#[derive(Debug, Clone, Copy)]
struct Version {
    bytes: u64,
    inode: (u64, u64),
    /// When it was written last, in seconds and nanoseconds.
    written: (i64, i64),
    /// When it or what is said of it changed last.
    changed: (i64, i64),
    /// Whether it has a length: pipes, devices and the files of `/proc` end where they end.
    is_held: bool,
}

impl Version {
    fn of(metadata: &Metadata) -> Self {
        Self {
            bytes: metadata.len(),
            inode: (metadata.dev(), metadata.ino()),
            written: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            is_held: metadata.is_file() && metadata.len() > 0,
        }
    }

    /// The reason why the file cannot be read as this version any more.
    fn lost_to(&self, metadata: &Metadata) -> Option<&'static str> {
        let now = Self::of(metadata);
        // Some file systems of user space give a file another number each time.
        let is_same =
            (now.bytes, now.written, now.changed) == (self.bytes, self.written, self.changed);
        match () {
            () if !self.is_held || is_same => None,
            () if now.inode != self.inode => Some("replaced"),
            () if now.bytes < self.bytes => Some("cut"),
            () if now.bytes == self.bytes && now.written != self.written => Some("written over"),
            () => None,
        }
    }
}

/// A file that is there.
#[derive(Debug)]
pub(super) struct FileBlob {
    path: PathBuf,
    version: Version,
    /// A checksum of its first and last bytes, once it was asked for: before any of its rows is
    /// given.
    mark: OnceLock<u64>,
}

impl FileBlob {
    pub(super) fn open(path: &Path) -> Result<Arc<dyn Blob>, ConnectorError> {
        let metadata = fs::metadata(path).map_err(|error| io_error(path, &error))?;
        let (path, mark) = (path.to_path_buf(), OnceLock::new());
        Ok(Arc::new(Self { path, version: Version::of(&metadata), mark }))
    }

    fn checksum(&self) -> Option<u64> {
        if !self.version.is_held {
            return None;
        }
        let last = self.version.bytes.saturating_sub(MARK_BYTES as u64);
        let ends = [0, last].map(|offset| self.read_at(offset, MARK_BYTES));
        let [first, last] = ends.map(Result::ok);
        Some(InputVersion::mark_of(first?.iter().chain(&last?)))
    }
}

/// Checks that an open file is still the version that was listed.
fn check(path: &Path, version: &Version, file: &File) -> Result<(), ConnectorError> {
    let metadata = file.metadata().map_err(|error| io_error(path, &error))?;
    match version.lost_to(&metadata) {
        None => Ok(()),
        Some(what) => Err(ConnectorError::Io {
            place: path.display().to_string(),
            message: format!("it was {what} while the query ran"),
            hint: Some("run the query again, and replace files by renaming a new one".into()),
        }),
    }
}

impl Blob for FileBlob {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn bytes(&self) -> u64 {
        self.version.bytes
    }

    fn version(&self) -> InputVersion {
        let mark = *self.mark.get_or_init(|| self.checksum().unwrap_or(0));
        InputVersion { bytes: self.version.bytes, mark }
    }

    fn stamp(&self) -> u64 {
        let (seconds, nanoseconds) = self.version.written;
        fnv(&[seconds.to_le_bytes(), nanoseconds.to_le_bytes()].concat())
    }

    fn read(&self, _: &Waker) -> Result<Box<dyn Read + Send>, ConnectorError> {
        let file = File::open(&self.path).map_err(|error| io_error(&self.path, &error))?;
        check(&self.path, &self.version, &file)?;
        let (path, version) = (self.path.clone(), self.version);
        Ok(Box::new(Reading { file, path, version, left: version.bytes }))
    }

    fn read_from(&self, offset: u64) -> Option<Result<Box<dyn Read + Send>, ConnectorError>> {
        if !self.version.is_held {
            return None;
        }
        let open = || {
            let mut file = File::open(&self.path).map_err(|error| io_error(&self.path, &error))?;
            check(&self.path, &self.version, &file)?;
            let at = SeekFrom::Start(offset);
            file.seek(at).map_err(|error| io_error(&self.path, &error))?;
            let (path, version) = (self.path.clone(), self.version);
            let left = version.bytes.saturating_sub(offset);
            Ok(Box::new(Reading { file, path, version, left }) as Box<dyn Read + Send>)
        };
        Some(open())
    }

    fn read_at(&self, offset: u64, length: usize) -> io::Result<Bytes> {
        // Said in words: what the reader of a format says of a file that is not there is long.
        let file = File::open(&self.path)
            .map_err(|error| io::Error::other(io_error(&self.path, &error)))?;
        let left = self.version.bytes.saturating_sub(offset);
        let length = if self.version.is_held {
            length.min(usize::try_from(left).unwrap_or(usize::MAX))
        } else {
            length
        };
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
        // Afterwards, so that no change is missed.
        check(&self.path, &self.version, &file).map_err(io::Error::other)?;
        bytes.truncate(filled);
        Ok(bytes.into())
    }
}

/// A file that is being read, to the length that it had.
struct Reading {
    file: File,
    path: PathBuf,
    version: Version,
    /// Bytes that are to come.
    left: u64,
}

impl Read for Reading {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if !self.version.is_held {
            return self.file.read(into);
        }
        let length = into.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let bytes = self.file.read(&mut into[..length])?;
        self.left -= bytes as u64;
        // Each time, for the reader of a range does not come to the end.
        check(&self.path, &self.version, &self.file).map_err(io::Error::other)?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn file(name: &str) -> PathBuf {
        let directory =
            std::env::temp_dir().join(format!("millstream-blob-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        directory.join(name)
    }

    /// The bytes read from a file of 1,000 bytes that is changed when 100 of them have been read;
    /// in order, and at places.
    fn read_while(name: &str, change: impl Fn(&Path)) -> [Result<usize, String>; 2] {
        let in_order = {
            let path = file(name);
            fs::write(&path, [b'x'; 1_000]).unwrap();
            let blob = FileBlob::open(&path).unwrap();
            let mut reader = blob.read(Waker::noop()).unwrap();
            reader.read_exact(&mut [0; 100]).unwrap();
            change(&path);
            let rest = reader.read_to_end(&mut Vec::new());
            rest.map(|bytes| bytes + 100).map_err(|error| error.to_string())
        };
        let path = file(name);
        fs::write(&path, [b'x'; 1_000]).unwrap();
        let blob = FileBlob::open(&path).unwrap();
        blob.read_at(0, 100).unwrap();
        change(&path);
        let rest = blob.read_at(100, 5_000);
        let at_places = rest.map(|bytes| bytes.len() + 100).map_err(|error| error.to_string());
        fs::remove_file(&path).unwrap();
        [in_order, at_places]
    }

    #[test]
    fn a_range_of_a_file_that_changes_is_an_error() {
        let path = file("range");
        fs::write(&path, [b'x'; 1_000]).unwrap();
        let blob = FileBlob::open(&path).unwrap();
        let mut range = blob.read_from(500).unwrap().unwrap();
        range.read_exact(&mut [0; 100]).unwrap();
        let over = File::options().write(true).open(&path).unwrap();
        // The clock of a file system may stand still for some milliseconds.
        let later = over.metadata().unwrap().modified().unwrap();
        over.set_modified(later + std::time::Duration::from_secs(1)).unwrap();
        let error = range.read_exact(&mut [0; 100]).unwrap_err().to_string();
        assert!(error.contains("it was written over while the query ran"), "{error}");
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_file_that_changes_is_an_error_or_the_version_that_was_listed() {
        assert_eq!(read_while("same", |_| {}), [Ok(1_000), Ok(1_000)]);
        let grown = read_while("grown", |path| {
            File::options().append(true).open(path).unwrap().write_all(b"more").unwrap();
        });
        assert_eq!(grown, [Ok(1_000), Ok(1_000)]);
        let cut = read_while("cut", |path| {
            File::options().write(true).open(path).unwrap().set_len(500).unwrap();
        });
        for read in cut {
            assert!(read.unwrap_err().ends_with("cut: it was cut while the query ran"));
        }
        let [in_order, at_places] = read_while("replaced", |path| {
            fs::write(path.with_extension("new"), [b'y'; 1_000]).unwrap();
            // The clock of a file system may stand still for some milliseconds.
            let new = File::options().write(true).open(path.with_extension("new")).unwrap();
            let later = new.metadata().unwrap().modified().unwrap();
            new.set_modified(later + std::time::Duration::from_secs(1)).unwrap();
            fs::rename(path.with_extension("new"), path).unwrap();
        });
        // What is open stays what it was.
        assert_eq!(in_order, Ok(1_000));
        assert!(at_places.unwrap_err().contains("it was replaced while the query ran"));
        let over = read_while("over", |path| {
            let file = File::options().write(true).open(path).unwrap();
            (&file).write_all(b"yy").unwrap();
            // The clock of a file system may stand still for some milliseconds.
            let later = file.metadata().unwrap().modified().unwrap();
            file.set_modified(later + std::time::Duration::from_secs(1)).unwrap();
        });
        for read in over {
            assert!(read.unwrap_err().contains("it was written over while the query ran"));
        }
    }
}
