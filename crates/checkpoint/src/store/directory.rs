//! A store in a directory, of a local disk or of a file system that several machines share.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::{Created, LISTED_MAX, ObjectName, ObjectWriter, Store, StoredObject};
use crate::error::StoreError;
use crate::process;

/// How names of temporary files begin: no object has such a name.
const TEMPORARY: &str = ".tmp-";
/// Folders within each other at most: a name has fewer parts.
const DEPTH_MAX: usize = 256;
/// A temporary file of a process that cannot be asked is removed after a day.
const LEFT_AFTER_MS: i64 = 24 * 3600 * 1000;

/// Objects as files. Folders appear with their first object, for the user alone (0700), as its
/// files are (0600).
///
/// An object is written under a temporary name, brought to the disk, and then gets its name: by
/// `link`, which fails if the name is there, or by `rename`. The folder is brought to the disk
/// before the call ends. Over NFS `link` decides between two machines too.
#[derive(Debug)]
pub struct DirectoryStore {
    root: PathBuf,
    /// The middle of the names of temporary files: machine, process, its start.
    owner: String,
    next: AtomicU64,
}

impl DirectoryStore {
    /// A store in a directory, which need not be there yet.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        let pid = std::process::id();
        let started = process::started(pid).unwrap_or(0);
        let owner = format!("{}-{pid}-{started}", process::machine().replace('-', "."));
        Self { root: root.into(), owner, next: AtomicU64::new(0) }
    }

    fn path(&self, name: &ObjectName) -> PathBuf {
        self.root.join(name.as_str())
    }

    /// Begins a new temporary file in the folder of `path`.
    fn temporary(&self, path: &Path) -> io::Result<Temporary> {
        let folder = folder_of(path);
        make_folder(folder)?;
        // Counts only; nothing else is ordered by it.
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let temporary = folder.join(format!("{TEMPORARY}{}-{number}", self.owner));
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(&temporary)?;
        Ok(Temporary { path: temporary, file })
    }

    /// Writes bytes to a new temporary file in the folder of `path`, and brings them to the disk.
    fn write_temporary(&self, path: &Path, parts: &[Bytes]) -> io::Result<Temporary> {
        let mut temporary = self.temporary(path)?;
        for part in parts {
            temporary.file.write_all(part)?;
        }
        temporary.file.sync_data()?;
        Ok(temporary)
    }

    fn link(&self, temporary: &Path, path: &Path) -> Result<Created, StoreError> {
        let Err(error) = fs::hard_link(temporary, path) else { return Ok(Created::New) };
        if error.kind() == ErrorKind::AlreadyExists {
            return Ok(Created::Exists);
        }
        // NFS repeats a request whose answer was lost: the file then has its second name.
        if fs::metadata(temporary).is_ok_and(|metadata| metadata.nlink() == 2) {
            return Ok(Created::New);
        }
        let place = path.display().to_string();
        let errno = Errno::from_io_error(&error);
        if matches!(errno, Some(Errno::IO | Errno::TIMEDOUT | Errno::STALE)) {
            return Err(StoreError::unknown(place, error.to_string()));
        }
        if matches!(errno, Some(Errno::PERM | Errno::NOTSUP | Errno::NOSYS)) {
            let message = format!(
                "this file system has no hard links, by which two runs of a job are kept apart: \
                 use another directory ({error})"
            );
            return Err(StoreError::refused(place, message));
        }
        Err(StoreError::refused(place, error.to_string()))
    }

    /// Calls `each` with the files below a folder.
    fn walk(
        folder: &Path,
        depth: usize,
        each: &mut dyn FnMut(&Path, &fs::Metadata) -> io::Result<()>,
    ) -> io::Result<()> {
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if is_absent(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            // A file that goes away meanwhile is not there; a link is no object.
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() {
                if depth == DEPTH_MAX {
                    return Err(io::Error::other("too many folders within each other"));
                }
                Self::walk(&entry.path(), depth + 1, each)?;
            } else if metadata.is_file() {
                each(&entry.path(), &metadata)?;
            }
        }
        Ok(())
    }
}

/// A file that has not got its name yet. It is removed when this is dropped.
struct Temporary {
    path: PathBuf,
    file: File,
}

impl Temporary {
    /// Gives the file its name, in place of another one that has it.
    fn rename(self, path: &Path) -> Result<(), StoreError> {
        fs::rename(&self.path, path).map_err(|error| unknown(path, &error))?;
        sync_folder(folder_of(path)).map_err(|error| unknown(path, &error))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// An object that is being written under a temporary name.
struct FileWriter {
    temporary: Temporary,
    path: PathBuf,
}

impl ObjectWriter for FileWriter {
    fn write(&mut self, bytes: Bytes) -> Result<(), StoreError> {
        let written = self.temporary.file.write_all(&bytes);
        written.map_err(|error| refused(&self.path, &error))
    }

    fn finish(self: Box<Self>) -> Result<(), StoreError> {
        let Self { temporary, path } = *self;
        temporary.file.sync_data().map_err(|error| refused(&path, &error))?;
        temporary.rename(&path)
    }
}

impl Store for DirectoryStore {
    fn create(&self, name: &ObjectName, bytes: &Bytes) -> Result<Created, StoreError> {
        let path = self.path(name);
        let refused = |error: &io::Error| refused(&path, error);
        let temporary =
            self.write_temporary(&path, std::slice::from_ref(bytes)).map_err(|e| refused(&e))?;
        let linked = self.link(&temporary.path, &path);
        drop(temporary);
        let created = linked?;
        // Also where the object was there: a call before this one may have failed behind its link.
        sync_folder(folder_of(&path)).map_err(|error| unknown(&path, &error))?;
        Ok(created)
    }

    fn put(&self, name: &ObjectName, parts: &[Bytes]) -> Result<(), StoreError> {
        let path = self.path(name);
        let temporary =
            self.write_temporary(&path, parts).map_err(|error| refused(&path, &error))?;
        temporary.rename(&path)
    }

    fn writer<'a>(&'a self, name: &ObjectName) -> Result<Box<dyn ObjectWriter + 'a>, StoreError> {
        let path = self.path(name);
        let temporary = self.temporary(&path).map_err(|error| refused(&path, &error))?;
        Ok(Box::new(FileWriter { temporary, path }))
    }

    fn get(
        &self,
        name: &ObjectName,
        range: Option<Range<u64>>,
    ) -> Result<Option<Bytes>, StoreError> {
        let path = self.path(name);
        match read(&path, range) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(refused(&path, &error)),
        }
    }

    fn list(&self, prefix: Option<&ObjectName>) -> Result<Vec<StoredObject>, StoreError> {
        let folder = prefix.map_or_else(|| self.root.clone(), |prefix| self.path(prefix));
        let mut objects = Vec::new();
        let mut each = |path: &Path, metadata: &fs::Metadata| {
            let name = path.strip_prefix(&self.root).ok().and_then(Path::to_str);
            let Some(name) = name.and_then(|name| ObjectName::new(name).ok()) else {
                return Ok(());
            };
            if objects.len() == LISTED_MAX {
                return Err(io::Error::other(format!("it has more than {LISTED_MAX} files")));
            }
            let (bytes, modified_ms) = (metadata.len(), modified_ms(metadata));
            objects.push(StoredObject { name, bytes, modified_ms });
            Ok(())
        };
        Self::walk(&folder, 0, &mut each).map_err(|error| refused(&folder, &error))?;
        objects.sort();
        Ok(objects)
    }

    fn children(&self, prefix: Option<&ObjectName>) -> Result<Vec<String>, StoreError> {
        let folder = prefix.map_or_else(|| self.root.clone(), |prefix| self.path(prefix));
        let entries = match fs::read_dir(&folder) {
            Err(error) if is_absent(&error) => return Ok(Vec::new()),
            entries => entries.map_err(|error| refused(&folder, &error))?,
        };
        let mut parts = Vec::new();
        for entry in entries {
            let name = entry.map_err(|error| refused(&folder, &error))?.file_name();
            let part = name.to_str().filter(|part| ObjectName::new(*part).is_ok());
            parts.extend(part.map(str::to_owned));
        }
        parts.sort_unstable();
        Ok(parts)
    }

    fn delete(&self, name: &ObjectName) -> Result<(), StoreError> {
        let path = self.path(name);
        match fs::remove_file(&path) {
            Ok(()) => sync_folder(folder_of(&path)).map_err(|error| unknown(&path, &error)),
            Err(error) if is_absent(&error) => Ok(()),
            Err(error) => Err(unknown(&path, &error)),
        }
    }

    fn remove_folder(&self, name: &ObjectName) -> Result<(), StoreError> {
        fn remove(folder: &Path) {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            for entry in entries.filter(|entry| entry.file_type().is_ok_and(|of| of.is_dir())) {
                remove(&entry.path());
            }
            // One that is not empty stays.
            let _ = fs::remove_dir(folder);
        }
        remove(&self.path(name));
        Ok(())
    }

    fn clean(&self, prefix: &ObjectName) -> Result<u64, StoreError> {
        let folder = self.path(prefix);
        let machine = process::machine().replace('-', ".");
        let (mut left, mut newest_ms) = (Vec::new(), i64::MIN);
        let mut each = |path: &Path, metadata: &fs::Metadata| {
            let written_ms = modified_ms(metadata);
            newest_ms = newest_ms.max(written_ms);
            let name = path.file_name().and_then(|name| name.to_str());
            if let Some(owner) = name.and_then(|name| name.strip_prefix(TEMPORARY)) {
                let is_dead = owner_of(owner)
                    .filter(|(of, ..)| *of == machine)
                    .map(|(_, pid, started)| !process::is_running(pid, started));
                left.push((path.to_owned(), is_dead, written_ms));
            }
            Ok(())
        };
        Self::walk(&folder, 0, &mut each).map_err(|error| refused(&folder, &error))?;
        let mut removed = 0;
        for (path, is_dead, written_ms) in left {
            let is_old = newest_ms.saturating_sub(written_ms) > LEFT_AFTER_MS;
            if is_dead.unwrap_or(is_old) && fs::remove_file(path).is_ok() {
                removed += 1;
            }
        }
        Ok(removed)
    }

    fn place(&self, name: &ObjectName) -> String {
        self.path(name).display().to_string()
    }
}

/// Machine, process and start in the name of a temporary file.
fn owner_of(name: &str) -> Option<(&str, u32, u64)> {
    let mut words = name.split('-');
    let (machine, pid, started) = (words.next()?, words.next()?, words.next()?);
    Some((machine, pid.parse().ok()?, started.parse().ok()?))
}

fn read(path: &Path, range: Option<Range<u64>>) -> io::Result<Bytes> {
    // A link or a pipe that somebody put there is neither followed nor waited for.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let length = metadata.len();
    let range = range.unwrap_or(0..length);
    let start = range.start.min(length);
    let bytes = range.end.min(length).saturating_sub(start);
    let mut read = vec![0; usize::try_from(bytes).map_err(io::Error::other)?];
    file.read_exact_at(&mut read, start)?;
    Ok(read.into())
}

fn modified_ms(metadata: &fs::Metadata) -> i64 {
    let since = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since.map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// The folder of a file.
fn folder_of(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}

/// Makes a folder and those above it, and brings their names to the disk.
fn make_folder(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Ok(()) => sync_folder(folder_of(folder)),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound && folder_of(folder) != folder => {
            make_folder(folder_of(folder))?;
            match DirBuilder::new().mode(0o700).create(folder) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
                _ => sync_folder(folder_of(folder)),
            }
        }
        Err(error) => Err(error),
    }
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    // The folder of a path of one part is this one.
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    File::open(folder)?.sync_all()
}

/// Whether there is no such file, nor a folder where it could be.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

fn refused(path: &Path, error: &io::Error) -> StoreError {
    StoreError::refused(path.display().to_string(), error.to_string())
}

fn unknown(path: &Path, error: &io::Error) -> StoreError {
    StoreError::unknown(path.display().to_string(), error.to_string())
}
