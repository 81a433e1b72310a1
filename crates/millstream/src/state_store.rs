//! Where the checkpoints of jobs lie: a directory, or a bucket.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use checkpoint::{DirectoryStore, Store};
use connectors::BucketStore;
use dataflow::connector::Options;
use dataflow::error::ConnectorError;

/// The store at a location: a directory, which need not be there yet, or `s3://bucket/path`, with
/// credentials from the environment. Nothing is read or written yet.
///
/// # Errors
/// When the location is a URL of something else.
pub fn open(location: &str) -> Result<Arc<dyn Store>, ConnectorError> {
    if connectors::is_url(location) {
        return Ok(Arc::new(BucketStore::open(location, &Options::default())?));
    }
    Ok(Arc::new(DirectoryStore::new(location)))
}

/// As [`open`], for a location that must be there.
///
/// # Errors
/// As [`open`], or that there is no such directory.
pub fn open_existing(location: &str) -> Result<Arc<dyn Store>, ConnectorError> {
    if !connectors::is_url(location) && !Path::new(location).is_dir() {
        return Err(ConnectorError::Io {
            place: location.to_owned(),
            message: "there is no such directory".into(),
            hint: Some("--state takes the directory or URL that a job was run with".into()),
        });
    }
    open(location)
}

/// The directory of states where none is named: `$XDG_STATE_HOME/millstream/jobs`, or
/// `~/.local/state/millstream/jobs`. `None` without a home.
#[must_use]
pub fn default_directory() -> Option<PathBuf> {
    let absolute = |name: &str| {
        let path = PathBuf::from(std::env::var_os(name)?);
        path.is_absolute().then_some(path)
    };
    let state =
        absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
    Some(state.join("millstream/jobs"))
}
