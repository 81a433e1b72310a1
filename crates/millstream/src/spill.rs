//! Groups that do not fit memory, in files of a folder.
//!
//! A file has a name that no other process uses, is open only while it is written, and is removed
//! when nobody needs it any more: when it was read, and when the job ends, well or not. Only a
//! process that is killed leaves files behind, `millstream-spill-…`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use state::{Disk, DiskFile};

/// A folder of this machine, for the workers of one node.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// What the names of this node's files begin with.
    prefix: String,
    files: AtomicU64,
}

impl Folder {
    /// The folder `path` for node `rank`; it is made if it is not there.
    ///
    /// # Errors
    /// [`io::Error`] if it cannot be made.
    pub(crate) fn new(path: &str, rank: u32) -> io::Result<Arc<Self>> {
        fs::create_dir_all(path)?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (process, started) = (std::process::id(), since.as_nanos());
        let prefix = format!("millstream-spill-{process}-{rank}-{started:x}");
        Ok(Arc::new(Self { path: path.into(), prefix, files: AtomicU64::new(0) }))
    }
}

impl Disk for Folder {
    fn create(&self) -> io::Result<Box<dyn DiskFile>> {
        let number = self.files.fetch_add(1, Ordering::Relaxed);
        let path = self.path.join(format!("{}-{number}", self.prefix));
        let file = OpenOptions::new().write(true).create_new(true).open(&path);
        let file = file.map_err(|error| named(error, &path))?;
        Ok(Box::new(SpillFile { path, file: Some(file) }))
    }
}

struct SpillFile {
    path: PathBuf,
    /// While it is written: there may be more runs than a process may have open files.
    file: Option<File>,
}

impl DiskFile for SpillFile {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.file {
            Some(file) => file.write_all(bytes),
            None => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        self.file = None;
        Ok(())
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(bytes)
    }
}

impl Drop for SpillFile {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(%error, file = %self.path.display(), "spilled state");
        }
    }
}

fn named(error: io::Error, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_back_and_go() {
        let path = std::env::temp_dir().join(format!("millstream-folder-{}", std::process::id()));
        let folder = Folder::new(&path.display().to_string(), 3).expect("a folder");
        let mut file = folder.create().expect("a file");
        file.append(b"some bytes").expect("room");
        file.append(b" and more").expect("room");
        file.finish().expect("room");
        let mut bytes = [0; 8];
        file.read(5, &mut bytes).expect("they are there");
        assert_eq!(&bytes, b"bytes an");
        assert!(file.read(15, &mut bytes).is_err(), "there are not so many");
        assert_eq!(fs::read_dir(&path).expect("it is there").count(), 1);
        drop(file);
        assert_eq!(fs::read_dir(&path).expect("it is there").count(), 0);
        fs::remove_dir(&path).expect("it is empty");
        assert!(folder.create().is_err(), "a folder that has gone");
    }
}
