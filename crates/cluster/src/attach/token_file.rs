//! The file by which clients of the same user find the token of a service.
//!
//! It stands in `$XDG_RUNTIME_DIR/millstream`, else in `$XDG_STATE_HOME/millstream`, else in
//! `~/.local/state/millstream`, and is named after the address. Clients look into all three: the
//! environments of two shells of a user may differ.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

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

    /// The token of the service at this address.
    ///
    /// # Errors
    /// When there is no file of it, or one that others may have written.
    pub(super) fn read(at: SocketAddr) -> std::result::Result<JobToken, ClusterError> {
        for directory in directories() {
            let path = directory.join(name(at));
            match read(&path) {
                Ok(token) => return Ok(token),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(source) => return Err(ClusterError::TokenFile { path, source }),
            }
        }
        Err(ClusterError::NoToken { addr: at })
    }
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        if read(&self.path).is_ok_and(|token| token.same(&self.token)) {
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

/// Reads a file that belongs to this user and is open to nobody else.
fn read(path: &Path) -> Result<JobToken> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let file: File = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    let own = metadata.uid() == rustix::process::geteuid().as_raw();
    if !metadata.is_file() || !own || metadata.mode() & 0o077 != 0 {
        let what = "it is not a file of this user that is open to nobody else (mode 0600)";
        return Err(Error::new(ErrorKind::PermissionDenied, what));
    }
    let mut text = String::new();
    file.take(TOKEN_FILE_BYTES).read_to_string(&mut text)?;
    JobToken::parse(text.trim_end())
        .ok_or_else(|| Error::new(ErrorKind::InvalidData, "it holds no token"))
}
