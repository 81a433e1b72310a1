//! The directory of a server that keeps its tables: its files, its lock, and its permissions.
//!
//! ```text
//!   lock               of the server that uses it; the system frees it when that ends
//!   identity           the number by which other servers know it, and its starts
//!   00000007.extent    the used bytes of extent 7
//!   3.table            the newest version of a table: see `pool::record`
//!   01ab….part         what is held for the server with the directory of this identity
//!   *.tmp              was being written when the server ended
//! ```
//!
//! All files are of this user and open to nobody else (mode 0600).

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};

/// A directory that this process alone uses.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    /// To have changes of names written.
    names: File,
    /// See [`pool::wire::Welcome::identity`].
    identity: u64,
    /// How often a server has been started with it.
    starts: u32,
    /// Locked until it is closed.
    _lock: File,
}

/// The meaning of a name in the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    Extent(u32),
    Table(u64),
    Part(u64),
    Unfinished,
}

/// The beginning of the file of an identity; the identity, the starts and a CRC-32C of all follow.
const IDENTITY: &[u8; 8] = b"MSIDENT1";
const IDENTITY_BYTES: usize = IDENTITY.len() + 8 + 4 + 4;

impl Directory {
    /// Opens a directory, and makes it where it is not there.
    ///
    /// # Errors
    /// When another server uses it, or others may change it, or the system refuses.
    pub(super) fn open(path: &Path) -> Result<Self> {
        make(path)?;
        let names = File::open(path)?;
        let metadata = names.metadata()?;
        let own = metadata.uid() == rustix::process::geteuid().as_raw();
        if !own || metadata.mode() & 0o022 != 0 {
            let what = "it is not a directory of this user that nobody else may change (chmod 700)";
            return Err(Error::new(ErrorKind::PermissionDenied, what));
        }
        let lock = own_file(&path.join("lock"), OpenOptions::new().write(true).create(true))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            let what = "another memory server uses it";
            return Err(Error::new(ErrorKind::ResourceBusy, what));
        }
        let directory = Self { path: path.to_owned(), names, identity: 0, starts: 0, _lock: lock };
        let (identity, starts) = directory.identified()?;
        Ok(Self { identity, starts, ..directory })
    }

    /// The number by which other servers know this directory, and how often a server has been
    /// started with it, this time too.
    pub(super) fn identity(&self) -> (u64, u32) {
        (self.identity, self.starts)
    }

    /// Reads the identity, draws one where there is none, and counts a start.
    fn identified(&self) -> Result<(u64, u32)> {
        const NAME: &str = "identity";
        let read = own_file(&self.path.join(NAME), OpenOptions::new().read(true));
        let (identity, starts) = match read {
            Err(error) if error.kind() == ErrorKind::NotFound => (crate::pool::random()?, 0),
            read => decode_identity(read?)?,
        };
        let starts = starts.checked_add(1).ok_or_else(damaged_identity)?;
        let temporary = format!("{NAME}.tmp");
        self.write(&temporary, |file| file.write_all(&encode_identity(identity, starts)))?;
        std::fs::rename(self.path.join(temporary), self.path.join(NAME))?;
        self.sync()?;
        Ok((identity, starts))
    }

    /// The files that are known, by what they are.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub(super) fn entries(&self) -> Result<Vec<(Entry, String)>> {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let Ok(name) = entry?.file_name().into_string() else { continue };
            if let Some(of) = Entry::of(&name) {
                entries.push((of, name));
            }
        }
        Ok(entries)
    }

    /// Opens a file to be read.
    ///
    /// # Errors
    /// When it is not there, or not a file of this user alone.
    pub(super) fn read(&self, entry: Entry) -> Result<(File, u64)> {
        let file = own_file(&self.path.join(entry.name()), OpenOptions::new().read(true))?;
        let bytes = file.metadata()?.len();
        Ok((file, bytes))
    }

    /// The bytes of a file of at most `most` bytes.
    ///
    /// # Errors
    /// As [`Directory::read`], and when it is longer.
    pub(super) fn bytes(&self, entry: Entry, most: u64) -> Result<Vec<u8>> {
        let (file, length) = self.read(entry)?;
        if length > most {
            return Err(Error::new(ErrorKind::InvalidData, "the file is longer than it may be"));
        }
        let mut bytes = Vec::new();
        file.take(most).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Writes a file, and has its bytes on the disk when this returns. Its name is there for good
    /// after [`Directory::sync`].
    ///
    /// # Errors
    /// When the system refuses; no file of the name is left then.
    pub(super) fn write(
        &self,
        name: &str,
        write: impl FnOnce(&mut File) -> Result<()>,
    ) -> Result<()> {
        let path = self.path.join(name);
        let mut options = OpenOptions::new();
        let opened = own_file(&path, options.write(true).create(true).truncate(true));
        let written = opened.and_then(|mut file| {
            write(&mut file)?;
            file.sync_data()
        });
        written.inspect_err(|_| {
            let _ = std::fs::remove_file(&path);
        })
    }

    /// Puts a file in the place of another, or of none: all of it or nothing of it.
    ///
    /// # Errors
    /// When the system refuses; then the old one is there.
    pub(super) fn replace(&self, entry: Entry, bytes: &[u8]) -> Result<()> {
        let temporary = format!("{}.tmp", entry.name());
        self.write(&temporary, |file| file.write_all(bytes))?;
        // The extents that the file names have to be there before it.
        self.sync()?;
        std::fs::rename(self.path.join(temporary), self.path.join(entry.name()))
    }

    /// Has all changes of names on the disk when this returns.
    ///
    /// # Errors
    /// When the system refuses.
    pub(super) fn sync(&self) -> Result<()> {
        self.names.sync_all()
    }

    /// Removes a file; one that is not there is no error.
    ///
    /// # Errors
    /// When the system refuses.
    pub(super) fn remove(&self, name: &str) -> Result<()> {
        match std::fs::remove_file(self.path.join(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

impl Entry {
    fn of(name: &str) -> Option<Self> {
        let (stem, kind) = name.rsplit_once('.')?;
        let entry = match kind {
            "extent" => Entry::Extent(u32::from_str_radix(stem, 16).ok()?),
            "table" => Entry::Table(stem.parse().ok()?),
            "part" => Entry::Part(u64::from_str_radix(stem, 16).ok()?),
            "tmp" => return Some(Entry::Unfinished),
            _ => return None,
        };
        (entry.name() == name).then_some(entry)
    }

    /// The file's name.
    pub(super) fn name(self) -> String {
        match self {
            Entry::Extent(number) => format!("{number:08x}.extent"),
            Entry::Table(number) => format!("{number}.table"),
            Entry::Part(identity) => format!("{identity:016x}.part"),
            Entry::Unfinished => "unfinished.tmp".into(),
        }
    }
}

fn encode_identity(identity: u64, starts: u32) -> Vec<u8> {
    let mut bytes = IDENTITY.to_vec();
    bytes.extend(identity.to_le_bytes());
    bytes.extend(starts.to_le_bytes());
    let sum = crc32c::crc32c(&bytes);
    bytes.extend(sum.to_le_bytes());
    bytes
}

/// The identity and the starts that a file says.
fn decode_identity(file: File) -> Result<(u64, u32)> {
    let mut bytes = Vec::new();
    file.take(IDENTITY_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    let fields = bytes.strip_prefix(IDENTITY).and_then(|rest| rest.split_first_chunk::<8>());
    let fields = fields.and_then(|(identity, rest)| Some((identity, rest.first_chunk::<4>()?)));
    let (identity, starts) = fields.ok_or_else(damaged_identity)?;
    let (identity, starts) = (u64::from_le_bytes(*identity), u32::from_le_bytes(*starts));
    let is_whole = encode_identity(identity, starts) == bytes;
    if is_whole { Ok((identity, starts)) } else { Err(damaged_identity()) }
}

fn damaged_identity() -> Error {
    Error::new(ErrorKind::InvalidData, "its file 'identity' is damaged")
}

/// Makes a directory and those above it, and has their names on the disk when this returns.
fn make(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let above = path
        .parent()
        .map(|above| if above.as_os_str().is_empty() { Path::new(".") } else { above });
    let Some(above) = above else { return Err(ErrorKind::NotFound.into()) };
    make(above)?;
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    File::open(above)?.sync_all()
}

/// Opens a file of this user that is open to nobody else. A pipe or a link in its place is not
/// followed or waited for.
fn own_file(path: &Path, options: &mut OpenOptions) -> Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let file = options.mode(0o600).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    let own = metadata.uid() == rustix::process::geteuid().as_raw();
    if !metadata.is_file() || !own || metadata.mode() & 0o077 != 0 {
        let what = "it is not a file of this user that is open to nobody else (mode 0600)";
        return Err(Error::new(ErrorKind::PermissionDenied, what));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_mean_what_was_written_and_others_nothing() {
        let extents = [Entry::Extent(7), Entry::Extent(u32::MAX)];
        let others = [Entry::Table(0), Entry::Table(12), Entry::Part(7), Entry::Part(u64::MAX)];
        for entry in extents.into_iter().chain(others) {
            assert_eq!(Entry::of(&entry.name()), Some(entry));
        }
        assert_eq!(Entry::of("3.table.tmp"), Some(Entry::Unfinished));
        for name in
            ["lock", "7.extent", "00000007.EXTENT", "+3.table", "03.table", "x.table", "7.part", ""]
        {
            assert_eq!(Entry::of(name), None, "{name}");
        }
    }
}
