//! The file by which clients of the same user find the token of a service.
//!
//! It stands in `$XDG_RUNTIME_DIR/millstream`, else in `$XDG_STATE_HOME/millstream`, else in
//! `~/.local/state/millstream`, and is named after the address. Clients look into all three: the
//! environments of two shells of a user may differ.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::OFlags;

use crate::error::ClusterError;
use crate::mesh::JobToken;

/// Bytes of a token file: the digits of a token, and the end of the line.
const TOKEN_FILE_BYTES: u64 = 2 * JobToken::BYTES as u64 + 1;

/// The token of a service, and its file, which goes with the service.
#[derive(Debug)]
pub(super) struct TokenFile {
    pub(super) token: JobToken,
    path: PathBuf,
}

impl TokenFile {
    /// Leaves a new token for the clients of the service at this address. The port is ours: a file
    /// that is there was left by a service that has ended.
    ///
    /// # Errors
    /// When there is no directory for it, or it cannot be written.
    pub(super) fn publish(at: SocketAddr) -> std::result::Result<Self, ClusterError> {
        let token = JobToken::random()?;
        let Some(directory) = directories().into_iter().next() else {
            let path = PathBuf::from("$XDG_RUNTIME_DIR/millstream");
            let source = Error::new(ErrorKind::NotFound, "neither it nor $HOME is set");
            return Err(ClusterError::TokenFile { path, source });
        };
        let path = directory.join(name(at));
        match write(&directory, &path, &token) {
            Ok(()) => Ok(Self { token, path }),
            Err(source) => Err(ClusterError::TokenFile { path, source }),
        }
    }

    /// Leaves a token for readers in a file that is not there yet. Its group may read it: the
    /// directory says which group that is, and who gets there.
    ///
    /// # Errors
    /// When it is there, or cannot be written.
    pub(super) fn of_readers(path: &Path) -> std::result::Result<Self, ClusterError> {
        let token = JobToken::random()?;
        let path = path.to_owned();
        let opened = OpenOptions::new().write(true).create_new(true).mode(0o640).open(&path);
        let written =
            opened.and_then(|mut file| file.write_all(format!("{}\n", token.hex()).as_bytes()));
        match written {
            Ok(()) => Ok(Self { token, path }),
            Err(source) => Err(ClusterError::TokenFile { path, source }),
        }
    }

    /// The token of a file that a service has left for readers.
    ///
    /// # Errors
    /// When there is none, or everybody may read it or others may have written it.
    pub(super) fn read_of_readers(path: &Path) -> std::result::Result<JobToken, ClusterError> {
        read_where(path, |metadata| metadata.mode() & 0o027 == 0)
            .map(|(_, token)| token)
            .map_err(|source| ClusterError::TokenFile { path: path.to_owned(), source })
    }

    /// The token of the service at this address: the newest, where a service that was killed has
    /// left another one in another directory.
    ///
    /// # Errors
    /// When there is no file of it, or only ones that others may have written.
    pub(super) fn read(at: SocketAddr) -> std::result::Result<JobToken, ClusterError> {
        read_newest(directories().iter().map(|directory| directory.join(name(at))))
            .map_err(|(path, source)| ClusterError::TokenFile { path, source })?
            .ok_or(ClusterError::NoToken { addr: at })
    }
}

/// The token of the newest file; `None` when there is none.
///
/// # Errors
/// That of a file that cannot be used, when none can.
fn read_newest(
    paths: impl Iterator<Item = PathBuf>,
) -> std::result::Result<Option<JobToken>, (PathBuf, Error)> {
    let (mut newest, mut unusable): (Option<(SystemTime, JobToken)>, _) = (None, None);
    for path in paths {
        match read(&path) {
            Ok((written, token)) => {
                if newest.as_ref().is_none_or(|(before, _)| written > *before) {
                    newest = Some((written, token));
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => unusable = Some((path, error)),
        }
    }
    match (newest, unusable) {
        (None, Some(unusable)) => Err(unusable),
        (newest, _) => Ok(newest.map(|(_, token)| token)),
    }
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        let own = |metadata: &Metadata| metadata.uid() == user();
        if read_where(&self.path, own).is_ok_and(|(_, token)| token.same(&self.token)) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn name(at: SocketAddr) -> String {
    format!("service-{at}.token")
}

/// Where it may stand, the first choice first.
fn directories() -> Vec<PathBuf> {
    let absolute =
        |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = absolute("HOME").map(|home| home.join(".local/state"));
    let all = [absolute("XDG_RUNTIME_DIR"), absolute("XDG_STATE_HOME"), home];
    all.into_iter().flatten().map(|path| path.join("millstream")).collect()
}

fn write(directory: &Path, path: &Path, token: &JobToken) -> Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary);
    let written =
        opened.and_then(|mut file| file.write_all(format!("{}\n", token.hex()).as_bytes()));
    let renamed = written.and_then(|()| std::fs::rename(&temporary, path));
    renamed.inspect_err(|_| {
        let _ = std::fs::remove_file(&temporary);
    })
}

/// Reads a file that belongs to this user and is open to nobody else; tells when it was written.
fn read(path: &Path) -> Result<(SystemTime, JobToken)> {
    read_where(path, |metadata| metadata.uid() == user() && metadata.mode() & 0o077 == 0)
}

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Reads a file of which this holds. A link or a pipe in its place is not followed or waited for.
fn read_where(path: &Path, holds: impl Fn(&Metadata) -> bool) -> Result<(SystemTime, JobToken)> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let file: File = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() || !holds(&metadata) {
        let what = "it is not a file of this user that is open to nobody else (mode 0600; one for \
                    readers 0640)";
        return Err(Error::new(ErrorKind::PermissionDenied, what));
    }
    let written = metadata.modified()?;
    let mut text = String::new();
    file.take(TOKEN_FILE_BYTES).read_to_string(&mut text)?;
    let token = JobToken::parse(text.trim_end())
        .ok_or_else(|| Error::new(ErrorKind::InvalidData, "it holds no token"))?;
    Ok((written, token))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_token_that_was_left_does_not_hide_a_newer_one() {
        let root = std::env::temp_dir().join(format!("millstream-tokens-{}", std::process::id()));
        let paths = ["first", "second", "third"].map(|name| root.join(name).join("service"));
        let tokens = [JobToken::random().unwrap(), JobToken::random().unwrap()];
        let newest = || read_newest(paths.iter().cloned());
        let is = |token: &JobToken| newest().unwrap().is_some_and(|newest| newest.same(token));
        assert!(newest().unwrap().is_none(), "there is none");
        for (path, token) in paths.iter().zip(&tokens) {
            write(path.parent().unwrap(), path, token).unwrap();
        }
        let age = |path: &Path, seconds| {
            let written = SystemTime::now() - Duration::from_secs(seconds);
            File::options().write(true).open(path).unwrap().set_modified(written).unwrap();
        };
        age(&paths[0], 100);
        age(&paths[1], 50);
        assert!(is(&tokens[1]));
        age(&paths[1], 200);
        assert!(is(&tokens[0]));
        // One that anybody can read counts for nothing, and hides nothing.
        write(paths[2].parent().unwrap(), &paths[2], &tokens[1]).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        std::fs::set_permissions(&paths[2], mode).unwrap();
        assert!(is(&tokens[0]));
        paths[..2].iter().for_each(|path| std::fs::remove_file(path).unwrap());
        assert!(newest().is_err_and(|(path, _)| path == paths[2]));
        std::fs::remove_dir_all(root).unwrap();
    }
}
