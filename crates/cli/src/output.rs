//! Where rows of a bare `SELECT` go: standard output, or a file that appears when all is well.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::Failure;

/// Standard output or a file.
pub(crate) struct Output {
    target: Target,
    broken: Arc<AtomicBool>,
}

enum Target {
    Stdout,
    /// Written under a name of its own first.
    File {
        path: PathBuf,
        temporary: PathBuf,
    },
}

impl Output {
    /// Opens the file, so that a place that cannot be written fails early.
    pub(crate) fn open(path: Option<&Path>) -> Result<(Self, Writer), Failure> {
        let broken = Arc::new(AtomicBool::new(false));
        let (target, inner): (_, Box<dyn Write + Send>) = match path {
            None => (Target::Stdout, Box::new(io::stdout())),
            Some(path) => {
                let mut name = path.file_name().unwrap_or_default().to_owned();
                name.push(format!(".{}.part", std::process::id()));
                let temporary = path.with_file_name(name);
                let file = File::create_new(&temporary).map_err(|e| cannot_write(path, &e))?;
                (Target::File { path: path.to_owned(), temporary }, Box::new(file))
            }
        };
        Ok((Self { target, broken: Arc::clone(&broken) }, Writer { inner, broken }))
    }

    /// What the file is called until it is complete.
    pub(crate) fn temporary(&self) -> Option<&Path> {
        match &self.target {
            Target::Stdout => None,
            Target::File { temporary, .. } => Some(temporary),
        }
    }

    /// True when the reader at the other end of a pipe has gone: `… | head`.
    pub(crate) fn reader_is_gone(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Gives the file its name.
    pub(crate) fn publish(mut self) -> Result<(), Failure> {
        let target = std::mem::replace(&mut self.target, Target::Stdout);
        match target {
            Target::Stdout => Ok(()),
            Target::File { path, temporary } => {
                std::fs::rename(&temporary, &path).map_err(|error| cannot_write(&path, &error))
            }
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Target::File { temporary, .. } = &self.target
            && let Err(error) = std::fs::remove_file(temporary)
        {
            tracing::warn!(%error, file = %temporary.display(), "cannot remove");
        }
    }
}

/// The end that takes rows.
pub(crate) struct Writer {
    inner: Box<dyn Write + Send>,
    broken: Arc<AtomicBool>,
}

impl Writer {
    fn note<T>(&self, result: io::Result<T>) -> io::Result<T> {
        if result.as_ref().is_err_and(|error| error.kind() == ErrorKind::BrokenPipe) {
            self.broken.store(true, Ordering::Relaxed);
        }
        result
    }
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let result = self.inner.write(bytes);
        self.note(result)
    }

    fn flush(&mut self) -> io::Result<()> {
        let result = self.inner.flush();
        self.note(result)
    }
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    let hint = match error.kind() {
        ErrorKind::NotFound => Some("the directory has to exist"),
        _ => None,
    };
    Failure::runtime(&format!("cannot write {}: {error}", path.display()), hint)
}
