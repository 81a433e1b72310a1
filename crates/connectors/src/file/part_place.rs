//! Where the parts of a sink lie: a directory, or the objects below a path of a store.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dataflow::error::ConnectorError;
use dataflow::sink::{RunId, UnsyncedOutput};

use super::atomic::AtomicFile;
use super::encoder::Output;
use super::paths::{io_error, one_name};
use super::staged::{self, Part};
use super::unsynced::UnsyncedParts;
use crate::object::{self, ObjectDirectory};
use crate::options::OptionReader;

/// Files that are whole and not durable at most.
const UNSYNCED_FILES_MAX: usize = 64;
/// The beginning of the visible names of parts.
pub(super) const VISIBLE: &str = "part-";

/// Where parts lie.
pub(super) enum PartPlace {
    /// Hidden parts lie in the directory itself, and get visible names by links.
    Files(PathBuf),
    /// Parts are staged below, and get visible names by copies that the store makes.
    Objects(ObjectDirectory),
}

impl PartPlace {
    pub(super) fn of(path: &str, options: OptionReader<'_>) -> Result<Self, ConnectorError> {
        if !object::is_url(path) {
            return Ok(Self::Files(PathBuf::from(path)));
        }
        Ok(Self::Objects(ObjectDirectory::open(path, options)?.0))
    }

    /// A name that is the same however the place is spelled.
    pub(super) fn one_name(&self) -> String {
        match self {
            Self::Files(directory) => one_name(directory).display().to_string(),
            Self::Objects(objects) => objects.place(""),
        }
    }

    /// Bytes that a part may have, where that is bounded.
    pub(super) fn part_bytes_max(&self) -> Option<u64> {
        match self {
            Self::Files(_) => None,
            Self::Objects(_) => Some(ObjectDirectory::OBJECT_BYTES_MAX),
        }
    }

    /// The name of a hidden part below the place.
    pub(super) fn hidden(&self, name: String) -> String {
        match self {
            Self::Files(_) => name,
            Self::Objects(_) => ObjectDirectory::staged(&name),
        }
    }

    /// Makes a directory that is not there; refuses a place that has parts of others, if the job
    /// `is_new`.
    pub(super) fn prepare(&self, is_new: bool, partitioned: bool) -> Result<(), ConnectorError> {
        self.make()?;
        if !is_new {
            return Ok(());
        }
        let is_part =
            |name: &String| name.starts_with(VISIBLE) || partitioned && name.contains('=');
        match self.entries()?.into_iter().find(is_part) {
            None => Ok(()),
            Some(name) => Err(ConnectorError::Io {
                place: self.display(),
                message: format!("it has rows already, such as '{name}'"),
                hint: Some("name another directory, or remove its parts".into()),
            }),
        }
    }

    /// Makes a directory that is not there.
    pub(super) fn make(&self) -> Result<(), ConnectorError> {
        match self {
            Self::Files(directory) => make(directory),
            Self::Objects(_) => Ok(()),
        }
    }

    /// Whether there are visible parts, of whichever checkpoint.
    fn has_parts(&self) -> Result<bool, ConnectorError> {
        let is_part = |name: &String| name.starts_with(VISIBLE) || name.contains('=');
        Ok(self.entries()?.iter().any(is_part))
    }

    /// The names directly in it.
    fn entries(&self) -> Result<Vec<String>, ConnectorError> {
        let directory = match self {
            Self::Files(directory) => directory,
            Self::Objects(objects) => return objects.entries(),
        };
        let entries = fs::read_dir(directory).map_err(|error| io_error(directory, &error))?;
        let name = |entry: std::io::Result<fs::DirEntry>| match entry {
            Ok(entry) => Ok(entry.file_name().to_string_lossy().into_owned()),
            Err(error) => Err(io_error(directory, &error)),
        };
        entries.map(name).collect()
    }

    /// Its address, for messages.
    fn display(&self) -> String {
        match self {
            Self::Files(directory) => directory.display().to_string(),
            Self::Objects(objects) => objects.place(""),
        }
    }

    /// Begins a part of this name; one that is not staged may lie in a directory that is new.
    pub(super) fn create(
        &self,
        name: &str,
        staged: bool,
    ) -> Result<Box<dyn Output>, ConnectorError> {
        let path = match self {
            Self::Files(directory) => directory.join(name),
            Self::Objects(objects) => return Ok(Box::new(objects.upload(name)?)),
        };
        if staged {
            return Ok(Box::new(StagedFile(AtomicFile::create(&path)?)));
        }
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|error| io_error(parent, &error))?;
        }
        Ok(Box::new(AtomicFile::create(&path)?))
    }

    /// Parts of a worker that are whole and not durable at most, between two checkpoints: each
    /// holds a file open. Those of a store hold memory.
    pub(super) fn unsynced_max(&self) -> usize {
        match self {
            Self::Files(_) => UNSYNCED_FILES_MAX,
            Self::Objects(_) => 0,
        }
    }

    /// Parts that are staged, of which these are to be committed.
    pub(super) fn unsynced(&self, parts: Vec<Box<dyn Output>>) -> Arc<dyn UnsyncedOutput> {
        let directory = match self {
            Self::Files(directory) => Some(directory.clone()),
            Self::Objects(_) => None,
        };
        Arc::new(UnsyncedParts::new(directory, parts))
    }

    /// Gives parts their visible names, as [`staged::publish`] says.
    pub(super) fn publish(&self, parts: &[Part], again: bool) -> Result<(), ConnectorError> {
        match self {
            Self::Files(directory) => {
                if again && staged::are_all_gone(directory, parts) && !self.has_parts()? {
                    return Err(staged::unmounted(directory, parts.len()));
                }
                staged::publish(directory, parts, again)
            }
            Self::Objects(objects) => {
                let names = parts.iter().map(|part| (part.hidden.clone(), part.visible.clone()));
                objects.publish(&names.collect::<Vec<_>>(), again)
            }
        }
    }

    /// Removes what earlier runs of a job have staged and is not `kept`.
    pub(super) fn sweep(
        &self,
        prefix: &str,
        run: RunId,
        kept: &[String],
    ) -> Result<(), ConnectorError> {
        match self {
            Self::Files(directory) => {
                staged::sweep(directory, prefix, run, |name| kept.iter().any(|kept| kept == name))
            }
            Self::Objects(objects) => staged::sweep_objects(objects, prefix, run, kept),
        }
    }
}

/// A part that a checkpoint will name. Its directory is brought to the disk with those of all
/// [`UnsyncedParts`].
struct StagedFile(AtomicFile);

impl Write for StagedFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

impl Output for StagedFile {
    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        self.0.commit_without_directory()
    }
}

/// Makes a directory, in one that is there.
fn make(directory: &Path) -> Result<(), ConnectorError> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let parent = directory.parent().unwrap_or(Path::new(".")).display();
            Err(ConnectorError::Io {
                place: directory.display().to_string(),
                message: format!("there is no directory '{parent}'"),
                hint: Some(format!("make it first: mkdir -p '{parent}'")),
            })
        }
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(io_error(directory, &error)),
        _ => Ok(()),
    }
}
