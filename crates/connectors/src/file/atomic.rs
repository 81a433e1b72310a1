//! A file that appears whole or not at all.
//!
//! Bytes go to a file of the same directory that has no name, and so is gone with the process,
//! whatever ends that; [`commit`](AtomicFile::commit) brings them to the disk and gives them the
//! name. What stands under the name until then is not touched, and what replaces it may be read by
//! the same users: owner and permissions are kept. A link stays a link: the file that it points to
//! is replaced. A device or pipe cannot be replaced: it is written directly, as
//! is a file that the process has open already and that is named by its handle, like `/dev/stdout`.
//!
//! Some file systems know no files without a name, and on none can one replace another without
//! getting a hidden name first, `.NAME.tmp-…`. Its writer holds a lock on it, by which the next
//! writer of NAME tells what a killed one left behind, and removes that. On file systems of several
//! machines a lock may be known to one of them alone: there it has to be old as well.

use std::fs::{self, File, Metadata, OpenOptions, Permissions, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use dataflow::error::ConnectorError;
use rustix::fs::{AtFlags, CWD, OFlags, fstatfs, linkat};

use super::paths::io_error;

/// Names that are tried before giving up on finding a free one.
const NAMES_TRIED_MAX: u32 = 16;
/// Links that are followed from one to the next; as many as the kernel does.
const LINKS_MAX: u32 = 40;
/// How long nothing was written to a file that is taken for left behind where locks tell nothing.
const LEFT_AFTER: Duration = Duration::from_secs(24 * 60 * 60);
/// File systems of several machines, as the kernel numbers them: NFS, SMB, CIFS, AFS, Ceph, Lustre,
/// 9P, and those of user space.
const SHARED_SYSTEMS: [u32; 9] = [
    0x6969,
    0x517b,
    0xfe53_4d42,
    0xff53_4d42,
    0x5346_414f,
    0x00c3_6400,
    0x0bd0_0bd0,
    0x0102_1997,
    0x6573_5546,
];

/// A file that appears under its name when it is committed; dropped before, it never was.
#[derive(Debug)]
pub struct AtomicFile {
    path: PathBuf,
    file: File,
    standing: Standing,
}

#[derive(Debug)]
enum Standing {
    /// It is what the name stands for.
    Named,
    Unnamed,
    Hidden(PathBuf),
}

impl AtomicFile {
    /// Begins the file that `path` will be.
    ///
    /// # Errors
    /// Where no file can be made.
    pub fn create(path: &Path) -> Result<Self, ConnectorError> {
        let refused = |error: io::Error| io_error(path, &error);
        let replaced = match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => {
                return Err(ConnectorError::Io {
                    place: path.display().to_string(),
                    message: "is a directory".into(),
                    hint: Some("add the name of a file, or a slash to write parts into it".into()),
                });
            }
            Ok(metadata) if !is_replaced(path, &metadata) => {
                let mut options = OpenOptions::new();
                options.write(true).append(metadata.is_file());
                let file = options.open(path).map_err(refused)?;
                return Ok(Self { path: path.to_owned(), file, standing: Standing::Named });
            }
            Ok(metadata) => Some(metadata),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(refused(error)),
        };
        let path = resolve(path).map_err(refused)?;
        let name = path.file_name().ok_or_else(|| ConnectorError::Io {
            place: path.display().to_string(),
            message: "is not the name of a file".into(),
            hint: None,
        })?;
        let parent = directory_of(&path);
        if !parent.is_dir() {
            return Err(ConnectorError::Io {
                place: path.display().to_string(),
                message: format!("there is no directory '{}'", parent.display()),
                hint: Some(format!("make it first: mkdir -p '{}'", parent.display())),
            });
        }
        let hidden = Hidden { parent, prefix: format!(".{}.tmp-", name.to_string_lossy()) };
        hidden.remove_left();
        let mode = if replaced.is_some() { 0o600 } else { 0o666 };
        let (file, standing) = match unnamed(parent, mode) {
            Some(file) => (file, Standing::Unnamed),
            None => {
                let (file, name) = hidden.create(mode).map_err(|error| io_error(&path, &error))?;
                (file, Standing::Hidden(name))
            }
        };
        let made = Self { path: path.clone(), file, standing };
        if let Some(replaced) = replaced {
            belong_as(&made.file, &replaced).map_err(|error| io_error(&path, &error))?;
        }
        Ok(made)
    }

    /// Makes the bytes durable and gives the file its name.
    ///
    /// # Errors
    /// Where they are not durable, or the name cannot be given.
    pub fn commit(mut self) -> Result<(), ConnectorError> {
        if !self.appear()? {
            return Ok(());
        }
        // The rename has happened; that it survives a loss of power is as good as we can make it.
        let directory = File::open(directory_of(&self.path));
        if let Err(error) = directory.and_then(|directory| directory.sync_all()) {
            tracing::warn!(file = %self.path.display(), %error, "its name may not be on the disk");
        }
        Ok(())
    }

    /// The same, but for the directory, which the caller brings to the disk.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn commit_without_directory(mut self) -> Result<(), ConnectorError> {
        self.appear().map(drop)
    }

    /// Makes the bytes durable and gives the file its name. Gives whether it did: a file that is
    /// what the name stands for stays as it is.
    fn appear(&mut self) -> Result<bool, ConnectorError> {
        if matches!(self.standing, Standing::Named) {
            return Ok(false);
        }
        let named = self.file.sync_all().and_then(|()| self.name());
        named.map_err(|error| io_error(&self.path, &error))?;
        Ok(true)
    }

    /// Its temporary name until it is committed, where it needs one.
    pub fn hidden(&self) -> Option<&Path> {
        match &self.standing {
            Standing::Hidden(hidden) => Some(hidden),
            Standing::Named | Standing::Unnamed => None,
        }
    }

    fn name(&mut self) -> io::Result<()> {
        if matches!(self.standing, Standing::Unnamed) {
            match link(&self.file, &self.path) {
                Ok(()) => {
                    self.standing = Standing::Named;
                    return Ok(());
                }
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
                Err(_) => {}
            }
            let name = self.path.file_name().unwrap_or_default().to_string_lossy();
            let prefix = format!(".{name}.tmp-");
            let hidden = Hidden { parent: directory_of(&self.path), prefix };
            self.standing = Standing::Hidden(hidden.link(&self.file)?);
        }
        if let Standing::Hidden(hidden) = &self.standing {
            fs::rename(hidden, &self.path)?;
            self.standing = Standing::Named;
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
        if let Standing::Hidden(hidden) = &self.standing
            && let Err(error) = fs::remove_file(hidden)
        {
            tracing::warn!(file = %hidden.display(), %error, "a temporary file stays behind");
        }
    }
}

/// Names of a directory that only writers of one file give.
struct Hidden<'a> {
    parent: &'a Path,
    prefix: String,
}

impl Hidden<'_> {
    fn path(&self) -> PathBuf {
        let random = RandomState::new().hash_one(std::process::id());
        self.parent.join(format!("{}{random:016x}", self.prefix))
    }

    fn create(&self, mode: u32) -> io::Result<(File, PathBuf)> {
        self.tried(|path| {
            let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
            // Another writer may have taken it for left behind before it was locked.
            let ours = !matches!(file.try_lock(), Err(TryLockError::WouldBlock));
            if ours && file.metadata()?.nlink() > 0 {
                Ok(file)
            } else {
                Err(ErrorKind::AlreadyExists.into())
            }
        })
    }

    fn link(&self, file: &File) -> io::Result<PathBuf> {
        // Locked before it can be found. Where there are no locks nothing is removed either.
        let _ = file.try_lock();
        self.tried(|path| link(file, path)).map(|((), path)| path)
    }

    /// Tries names until one is free.
    fn tried<T>(&self, make: impl Fn(&Path) -> io::Result<T>) -> io::Result<(T, PathBuf)> {
        let mut last = io::Error::from(ErrorKind::AlreadyExists);
        for _ in 0..NAMES_TRIED_MAX {
            let path = self.path();
            match make(&path) {
                Ok(made) => return Ok((made, path)),
                Err(error) => last = error,
            }
            if last.kind() != ErrorKind::AlreadyExists {
                break;
            }
        }
        Err(last)
    }

    /// Removes what writers have left behind that do not live any more.
    fn remove_left(&self) {
        let Ok(entries) = fs::read_dir(self.parent) else { return };
        let of_a_writer = |name: &str| {
            let random = name.strip_prefix(&self.prefix);
            random.is_some_and(|r| r.len() == 16 && r.bytes().all(|b| b.is_ascii_hexdigit()))
        };
        for entry in entries.flatten() {
            if !entry.file_name().to_str().is_some_and(of_a_writer) {
                continue;
            }
            let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
            let opened = OpenOptions::new().read(true).custom_flags(flags).open(entry.path());
            let Ok(file) = opened else { continue };
            let Ok(metadata) = file.metadata() else { continue };
            let kind = fstatfs(&file).map_or(SHARED_SYSTEMS[0], |system| system.f_type as u32);
            let left = metadata.is_file() && file.try_lock().is_ok() && is_left(kind, &metadata);
            if left && fs::remove_file(entry.path()).is_ok() {
                tracing::info!(file = %entry.path().display(), "removed what a killed job left");
            }
        }
    }
}

/// Whether a file on a file system of some kind is left behind, though nobody holds it here.
fn is_left(kind: u32, metadata: &Metadata) -> bool {
    let age = metadata.modified().ok().and_then(|at| at.elapsed().ok()).unwrap_or_default();
    !SHARED_SYSTEMS.contains(&kind) || age > LEFT_AFTER
}

/// A file of a directory that has no name, where there can be one that is named later.
fn unnamed(parent: &Path, mode: u32) -> Option<File> {
    let flags = OFlags::TMPFILE.bits() as i32;
    let file = OpenOptions::new().write(true).mode(mode).custom_flags(flags).open(parent).ok()?;
    of_process(&file).exists().then_some(file)
}

/// The name by which an open file can be linked.
fn of_process(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

fn link(file: &File, path: &Path) -> io::Result<()> {
    Ok(linkat(CWD, of_process(file), CWD, path, AtFlags::SYMLINK_FOLLOW)?)
}

/// Gives a file the owner and the permissions of the one that it will replace. Where it cannot
/// have the owner or the group, these may do no more than everybody.
fn belong_as(file: &File, replaced: &Metadata) -> io::Result<()> {
    let _ = fchown(file, Some(replaced.uid()), None);
    let _ = fchown(file, None, Some(replaced.gid()));
    let kept = file.metadata()?;
    let mut mode = replaced.mode() & 0o777;
    if kept.gid() != replaced.gid() {
        mode &= 0o707 | ((mode & 0o007) << 3);
    }
    file.set_permissions(Permissions::from_mode(mode))
}

/// Whether a file that is there is replaced, and not written to where it is: devices, pipes and
/// what the process has open, such as `/dev/stdout`, are not.
pub(super) fn is_replaced(path: &Path, metadata: &Metadata) -> bool {
    metadata.is_file() && !is_open(path)
}

/// Whether a path leads to a file by way of a handle that this process has.
fn is_open(path: &Path) -> bool {
    let own = format!("/proc/{}/fd", std::process::id());
    let handles = ["/dev/fd", "/proc/self/fd", "/proc/thread-self/fd", &own].map(Path::new);
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        if handles.contains(&directory_of(&path)) {
            return true;
        }
        match fs::read_link(&path) {
            Ok(to) => path = directory_of(&path).join(to),
            Err(_) => return false,
        }
    }
    false
}

/// Where a path leads by links, whether there is a file or not.
///
/// # Errors
/// When links lead to themselves, or are too many.
pub(super) fn resolve(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        match fs::read_link(&path) {
            Ok(to) => path = directory_of(&path).join(to),
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::other("is a link that leads to itself"))
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn a_file_that_is_named_by_its_handle_is_written_where_it_is() {
        let name = format!("millstream-atomic-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, "before ").unwrap();
        let file = File::open(&path).unwrap();
        let handle = format!("/dev/fd/{}", file.as_raw_fd());
        let mut written = AtomicFile::create(Path::new(&handle)).unwrap();
        written.write_all(b"after").unwrap();
        written.commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"before after");
        assert_eq!(fs::metadata(&path).unwrap().ino(), file.metadata().unwrap().ino());
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn where_a_lock_tells_nothing_a_file_has_to_be_old_to_be_left_behind() {
        let name = format!("millstream-left-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let file = File::create(&path).unwrap();
        let (ext4, nfs) = (0xef53, 0x6969);
        let is_left = |kind| is_left(kind, &file.metadata().unwrap());
        assert!(is_left(ext4) && !is_left(nfs));
        file.set_modified(SystemTime::now() - 2 * LEFT_AFTER).unwrap();
        assert!(is_left(ext4) && is_left(nfs));
        fs::remove_file(&path).unwrap();
    }
}
