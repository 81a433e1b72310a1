//! From `'path' = '…'` to files: a file, a directory or a glob, in an order that is the same on
//! every node.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use dataflow::error::ConnectorError;

use super::atomic::resolve;
use super::{delta, walk};
use crate::format::Kind;
use crate::options::{nearest, refuse};

/// The files that `path` names, sorted, and their format.
///
/// A directory stands for the files directly in it, or that its log names if it is a table of Delta
/// Lake; hidden ones (`.name`, `_name`) and, where no
/// format is given, those with an extension of no format are passed over.
pub(super) fn expand(
    path: &str,
    kind: Option<Kind>,
) -> Result<(Vec<PathBuf>, Kind), ConnectorError> {
    if delta::is_table(Path::new(path)) {
        return of_delta(path, kind);
    }
    let files = list(path, kind)?;
    if files.is_empty() {
        let directory = Path::new(path).is_dir();
        let (message, hint) = if directory {
            (
                "the directory has no csv, json, parquet, arrow or avro files",
                "'format' says what files of other names have; directories below it are read \
                 through a glob: '…/**/*.csv'",
            )
        } else {
            ("no file matches", "'*' stands for a part of a name, '**' for directories")
        };
        return Err(ConnectorError::Io {
            place: path.to_owned(),
            message: message.into(),
            hint: Some(hint.into()),
        });
    }
    let kind = match kind {
        Some(kind) => kind,
        None => common_format(&files)?,
    };
    Ok((files, kind))
}

/// The files of a table of Delta Lake.
fn of_delta(path: &str, kind: Option<Kind>) -> Result<(Vec<PathBuf>, Kind), ConnectorError> {
    if kind.is_some_and(|kind| kind != Kind::Parquet) {
        let message = "a table of Delta Lake has files of Parquet";
        return Err(refuse("format", message, Some("leave it out".into())));
    }
    let files = delta::files(Path::new(path))?;
    if files.is_empty() {
        let message = format!("the table of Delta Lake '{path}' has no rows");
        return Err(refuse("path", message, None));
    }
    Ok((files, Kind::Parquet))
}

/// The files that `path` names, sorted; none is no error where it is a directory or a glob.
pub(super) fn list(path: &str, kind: Option<Kind>) -> Result<Vec<PathBuf>, ConnectorError> {
    let literal = Path::new(path);
    let mut files = if literal.is_dir() {
        from_directory(literal, kind)?
    } else if literal.exists() {
        vec![literal.to_path_buf()]
    } else if path.contains(['*', '?', '[']) {
        from_glob(path)?
    } else {
        return Err(missing(literal));
    };
    files.sort();
    let (mut seen, mut directories) = (HashSet::new(), HashMap::new());
    // A link may lead to where another name leads, or round in a circle: each file once.
    files.retain(|file| real_name(file, &mut directories).is_none_or(|name| seen.insert(name)));
    Ok(files)
}

/// The name of a file without links. Those of directories are kept: there may be many files in one.
fn real_name(file: &Path, directories: &mut HashMap<PathBuf, Option<PathBuf>>) -> Option<PathBuf> {
    let name = file.file_name()?;
    if fs::symlink_metadata(file).ok()?.is_symlink() {
        return fs::canonicalize(file).ok();
    }
    let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    let known = match directories.get(directory) {
        Some(known) => known,
        None => {
            let real = fs::canonicalize(directory).ok();
            directories.entry(directory.to_owned()).or_insert(real)
        }
    };
    Some(known.as_ref()?.join(name))
}

/// The same name for a file however it is spelled, whether there is one already or not: a link may
/// lead to where the file will be.
pub(super) fn one_name(path: &Path) -> PathBuf {
    let path = &resolve(path).unwrap_or_else(|_| path.to_owned());
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    fs::canonicalize(path).unwrap_or_else(|_| {
        match (fs::canonicalize(directory), path.file_name()) {
            (Ok(directory), Some(name)) => directory.join(name),
            _ => path.to_path_buf(),
        }
    })
}

/// A path that is the same wherever a process runs.
pub(crate) fn absolute(path: &str) -> String {
    std::path::absolute(path).map_or_else(|_| path.to_owned(), |path| path.display().to_string())
}

/// Whether a file is not for others yet.
pub(super) fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(['.', '_']))
}

/// The format that the extension of a file tells.
pub(super) fn kind_of(path: &Path) -> Option<Kind> {
    Kind::of(path.file_name()?.to_str()?)
}

fn from_glob(pattern: &str) -> Result<Vec<PathBuf>, ConnectorError> {
    let mut files = walk::files(pattern)?;
    files.retain(|file| !is_hidden_from(file, pattern));
    Ok(files)
}

/// Whether a wildcard of a pattern has matched a name that is hidden: those are given in full, or
/// at least with their first letter.
fn is_hidden_from(file: &Path, pattern: &str) -> bool {
    let names = |path: &Path| -> Vec<String> {
        let parts = path.components().filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
            _ => None,
        });
        parts.collect()
    };
    let special = pattern.find(['*', '?', '[']).unwrap_or(pattern.len());
    let plain = pattern[..special].rfind('/').map_or(0, |slash| slash + 1);
    let given = names(Path::new(&pattern[..plain])).len();
    let first = |name: &str| name.bytes().next();
    names(file)
        .iter()
        .skip(given)
        .filter(|name| name.starts_with(['.', '_']))
        .any(|name| !pattern[plain..].split('/').any(|part| first(part) == first(name)))
}

fn from_directory(directory: &Path, kind: Option<Kind>) -> Result<Vec<PathBuf>, ConnectorError> {
    let entries = fs::read_dir(directory).map_err(|error| io_error(directory, &error))?;
    let mut files = Vec::new();
    for entry in entries {
        let file = entry.map_err(|error| io_error(directory, &error))?.path();
        let known = kind.is_some() || kind_of(&file).is_some();
        if known && !is_hidden(&file) && file.is_file() {
            files.push(file);
        }
    }
    Ok(files)
}

/// The format that the extensions of all files agree on.
pub(super) fn common_format(files: &[PathBuf]) -> Result<Kind, ConnectorError> {
    let mut common = None;
    for file in files {
        let hint = || Some("write 'format' = 'csv', 'json', 'parquet' or 'arrow'".to_owned());
        let name = file.display();
        let Some(format) = kind_of(file) else {
            return Err(refuse("format", format!("the name of {name} does not tell it"), hint()));
        };
        if *common.get_or_insert(format) != format {
            return Err(refuse(
                "format",
                format!("{name} is not of one format with the others"),
                hint(),
            ));
        }
    }
    common.ok_or_else(|| refuse("path", "names no file", None))
}

/// An error about a file that does not exist, with the name that may have been meant.
pub(super) fn missing(path: &Path) -> ConnectorError {
    if let Ok(to) = fs::read_link(path) {
        return ConnectorError::Io {
            place: path.display().to_string(),
            message: format!("is a link to '{}', and there is no such file", to.display()),
            hint: None,
        };
    }
    let parent = parent_of(path);
    let hint = match (nearest_in(parent, path), parent.is_dir()) {
        (Some(near), _) => format!("did you mean '{}'?", path.with_file_name(near).display()),
        (None, true) if fs::read_dir(parent).is_err() => {
            format!("'{}' cannot be listed", parent.display())
        }
        (None, true) => format!("'{}' has no file of such a name", parent.display()),
        (None, false) => {
            let there = |directory: &&Path| directory.as_os_str().is_empty() || directory.is_dir();
            let gone = parent.ancestors().take_while(|at| !there(at)).last().unwrap_or(parent);
            let near = nearest_in(parent_of(gone), gone).map(|near| gone.with_file_name(near));
            let near = near.filter(|near| near.is_dir());
            let near = near.map(|near| format!("; did you mean '{}'?", near.display()));
            format!("there is no directory '{}'{}", gone.display(), near.unwrap_or_default())
        }
    };
    ConnectorError::Io {
        place: path.display().to_string(),
        message: "no such file".into(),
        hint: Some(hint),
    }
}

/// The directory that a path lies in, which of a name alone is the current one.
fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// The name in `directory` that the last one of `path` was probably meant to be. Names without
/// their extensions are compared if no whole name is near.
fn nearest_in(directory: &Path, path: &Path) -> Option<String> {
    let name = path.file_name()?.to_string_lossy();
    let entries = fs::read_dir(directory).ok()?.flatten();
    let names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    let stem = |name: &str| Path::new(name).file_stem().map(|stem| stem.to_string_lossy().into());
    let whole = || nearest(&name, names.iter().map(String::as_str)).map(str::to_owned);
    whole().or_else(|| {
        let stems: Vec<String> = names.iter().filter_map(|name| stem(name)).collect();
        let near = nearest(&stem(&name)?, stems.iter().map(String::as_str))?;
        names.iter().find(|name| stem(name).as_deref() == Some(near)).cloned()
    })
}

/// The error of the operating system about `path`, or of an object store.
pub(super) fn io_error(path: &Path, error: &std::io::Error) -> ConnectorError {
    use std::io::ErrorKind;
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<ConnectorError>());
    if let Some(inner) = inner {
        return inner.clone();
    }
    let hint = match error.kind() {
        ErrorKind::NotFound => return missing(path),
        ErrorKind::PermissionDenied => Some("check the permissions of the file"),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            Some("make room or write elsewhere; nothing half-written was left behind")
        }
        _ => None,
    };
    ConnectorError::Io {
        place: path.display().to_string(),
        message: error.to_string(),
        hint: hint.map(str::to_owned),
    }
}
