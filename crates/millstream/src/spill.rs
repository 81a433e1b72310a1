//! Groups that do not fit memory, in files without a name.
//!
//! Spilled data are of use to this process alone. So no file has a name by which another could
//! open it, only this user may read it, and the kernel takes it away with the process, whatever
//! ends that. A node keeps one file open, not one for each run: there may be more runs than a
//! process may have open files. The bytes of a run that nobody needs any more go back to the disk
//! at once, by a hole in the file; where a file system knows no holes, when the file is full and
//! none of its runs is needed.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FallocateFlags, OFlags, fallocate};
use state::{Disk, DiskFile};

/// Bytes after which a node begins another file: well below what file systems can address.
const FILE_BYTES_MAX: u64 = 64 << 30;

/// A folder of this machine, for the workers of one node.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    rank: u32,
    /// Where new runs go.
    file: Mutex<Option<Arc<Unnamed>>>,
}

impl Folder {
    /// The folder `path` for node `rank`; it is made, for this user alone, if it is not there.
    ///
    /// # Errors
    /// [`io::Error`] if it cannot be made.
    pub(crate) fn new(path: &str, rank: u32) -> io::Result<Arc<Self>> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        Ok(Arc::new(Self { path: path.into(), rank, file: Mutex::new(None) }))
    }
}

impl Disk for Folder {
    fn create(&self) -> io::Result<Box<dyn DiskFile>> {
        let mut current = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let open = current.as_ref().filter(|file| file.end() < FILE_BYTES_MAX);
        let file = match open {
            Some(file) => Arc::clone(file),
            None => Arc::clone(current.insert(Arc::new(Unnamed::new(&self.path, self.rank)?))),
        };
        Ok(Box::new(Run { file, pieces: Vec::new(), bytes: 0 }))
    }
}

/// A file that is open and has no name.
#[derive(Debug)]
struct Unnamed {
    file: File,
    folder: PathBuf,
    /// The bytes written so far.
    end: AtomicU64,
}

impl Unnamed {
    fn new(folder: &Path, rank: u32) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600);
        let unnamed = options.clone().custom_flags(OFlags::TMPFILE.bits() as i32).open(folder);
        let file = match unnamed {
            Ok(file) => file,
            // Not every file system can; one without a folder cannot either, and says so now.
            Err(_) => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let (process, now) = (std::process::id(), since.as_nanos());
                let path = folder.join(format!("millstream-spill-{process}-{rank}-{now:x}"));
                let file = options.create_new(true).open(&path);
                let file = file.map_err(|error| named(error, &path))?;
                fs::remove_file(&path).map_err(|error| named(error, &path))?;
                file
            }
        };
        Ok(Self { file, folder: folder.to_owned(), end: AtomicU64::new(0) })
    }

    fn end(&self) -> u64 {
        self.end.load(Ordering::Relaxed)
    }
}

/// Bytes of a run that lie together.
#[derive(Debug, Clone, Copy)]
struct Piece {
    /// Where in the run.
    from: u64,
    /// Where in the file.
    at: u64,
    bytes: u64,
}

struct Run {
    file: Arc<Unnamed>,
    /// By their place in the run.
    pieces: Vec<Piece>,
    bytes: u64,
}

impl DiskFile for Run {
    fn name(&self) -> String {
        format!("a file of {}", self.file.folder.display())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let length = bytes.len() as u64;
        let at = self.file.end.fetch_add(length, Ordering::Relaxed);
        match self.pieces.last_mut() {
            Some(last) if last.at + last.bytes == at => last.bytes += length,
            _ => self.pieces.push(Piece { from: self.bytes, at, bytes: length }),
        }
        self.bytes += length;
        self.file.file.write_all_at(bytes, at)
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn read(&self, mut at: u64, mut bytes: &mut [u8]) -> io::Result<()> {
        let first = self.pieces.partition_point(|piece| piece.from + piece.bytes <= at);
        for piece in &self.pieces[first..] {
            let skipped = at - piece.from;
            let length = (piece.bytes - skipped).min(bytes.len() as u64);
            let (now, later) = bytes.split_at_mut(length as usize);
            self.file.file.read_exact_at(now, piece.at + skipped)?;
            (bytes, at) = (later, at + length);
            if bytes.is_empty() {
                return Ok(());
            }
        }
        if bytes.is_empty() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        for piece in &self.pieces {
            if let Err(error) = fallocate(&self.file.file, hole, piece.at, piece.bytes) {
                tracing::debug!(%error, file = %self.name(), "its space comes back later");
                return;
            }
        }
    }
}

fn named(error: io::Error, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    struct Temporary(PathBuf);

    impl Temporary {
        fn new(name: &str) -> Self {
            let name = format!("millstream-folder-{name}-{}", std::process::id());
            Self(std::env::temp_dir().join(name))
        }

        fn folder(&self) -> Arc<Folder> {
            Folder::new(&self.0.display().to_string(), 3).expect("a folder")
        }
    }

    impl Drop for Temporary {
        fn drop(&mut self) {
            let _ = fs::remove_dir(&self.0);
        }
    }

    #[test]
    fn bytes_come_back_and_no_file_is_ever_seen() {
        let temporary = Temporary::new("bytes");
        let folder = temporary.folder();
        let mut file = folder.create().expect("a file");
        let mut other = folder.create().expect("a file");
        file.append(b"some bytes").expect("room");
        other.append(b"of another run").expect("room");
        file.append(b" and more").expect("room");
        file.finish().expect("room");
        let mut bytes = [0; 8];
        file.read(5, &mut bytes).expect("they are there");
        assert_eq!(&bytes, b"bytes an");
        file.read(11, &mut bytes).expect("they are there");
        assert_eq!(&bytes, b"and more");
        other.read(3, &mut bytes[..7]).expect("they are there");
        assert_eq!(&bytes[..7], b"another");
        assert!(file.read(15, &mut bytes).is_err(), "there are not so many");
        assert!(file.read(19, &mut bytes[..1]).is_err(), "there is none");
        file.read(19, &mut []).expect("nothing is always there");
        assert_eq!(fs::read_dir(&temporary.0).expect("it is there").count(), 0);
    }

    #[test]
    fn only_this_user_may_read() {
        let temporary = Temporary::new("mode");
        let folder = temporary.folder();
        let mode = |metadata: fs::Metadata| metadata.permissions().mode() & 0o777;
        assert_eq!(mode(fs::metadata(&temporary.0).expect("it is there")), 0o700);
        let _run = folder.create().expect("a file");
        let file = folder.file.lock().expect("no panic").clone().expect("it is open");
        let metadata = file.file.metadata().expect("it is open");
        assert_eq!((metadata.nlink(), mode(metadata)), (0, 0o600));
    }

    #[test]
    fn space_comes_back_with_its_run() {
        let temporary = Temporary::new("space");
        let folder = temporary.folder();
        let (mut one, mut two) = (folder.create().expect("a file"), folder.create().expect("one"));
        for _ in 0..8 {
            one.append(&[1; 64 << 10]).expect("room");
            two.append(&[2; 64 << 10]).expect("room");
        }
        let file = folder.file.lock().expect("no panic").clone().expect("it is open");
        file.file.sync_all().expect("room");
        let taken = || file.file.metadata().expect("it is open").blocks() * 512;
        let before = taken();
        drop(one);
        // A file system may know no holes.
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if fallocate(&file.file, hole, 0, 1).is_ok() {
            assert!(taken() <= before - (256 << 10), "{} of {before}", taken());
        }
        let mut bytes = [0; 2];
        two.read((512 << 10) - 2, &mut bytes).expect("they are there");
        assert_eq!(bytes, [2, 2]);
    }

    #[test]
    fn a_folder_that_has_gone_is_named() {
        let temporary = Temporary::new("gone");
        let folder = temporary.folder();
        fs::remove_dir(&temporary.0).expect("it is empty");
        let Err(error) = folder.create() else { panic!("there is no folder") };
        assert!(error.to_string().contains(&temporary.0.display().to_string()), "{error}");
    }
}
