//! Where text of rows goes: standard output, or a file that appears when all is well.

use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use unicode_width::UnicodeWidthChar;

use crate::failure::Failure;
use crate::screen::Screen;
use crate::terminal;

/// Standard output or a file.
pub(crate) struct Output {
    target: Target,
    writer: Writer,
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
    pub(crate) fn open(path: Option<&Path>, screen: &Screen) -> Result<(Self, Writer), Failure> {
        let (target, writer) = match path {
            None => (Target::Stdout, Writer::stdout(screen)),
            Some(path) => {
                let mut name = path.file_name().unwrap_or_default().to_owned();
                name.push(format!(".{}.part", std::process::id()));
                let temporary = path.with_file_name(name);
                let file = File::create_new(&temporary).map_err(|e| cannot_write(path, &e))?;
                (Target::File { path: path.to_owned(), temporary }, Writer::new(file, screen))
            }
        };
        Ok((Self { target, writer: writer.clone() }, writer))
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
        self.writer.reader_is_gone()
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

/// The end that takes rows. Clones write to the same place.
#[derive(Clone)]
pub(crate) struct Writer {
    inner: Arc<Mutex<dyn Write + Send>>,
    state: Arc<State>,
    screen: Screen,
}

#[derive(Default)]
struct State {
    broken: AtomicBool,
    /// Lines that are wider than the terminal are cut.
    clips: AtomicBool,
    clipped: AtomicBool,
}

impl Writer {
    /// The standard output of this process, written beside the progress line of `screen`.
    pub(crate) fn stdout(screen: &Screen) -> Self {
        Self::new(io::stdout(), screen)
    }

    fn new(inner: impl Write + Send + 'static, screen: &Screen) -> Self {
        let inner = Arc::new(Mutex::new(inner));
        Self { inner, state: Arc::default(), screen: screen.clone() }
    }

    /// Whether lines that are wider than the terminal are cut from now on. There has to be a
    /// terminal, and each write has to be of whole lines.
    pub(crate) fn clip(&self, clip: bool) {
        self.state.clips.store(clip && io::stdout().is_terminal(), Ordering::Relaxed);
    }

    /// Whether a line was cut since this was asked last.
    pub(crate) fn was_clipped(&self) -> bool {
        self.state.clipped.swap(false, Ordering::Relaxed)
    }

    /// True when the reader at the other end of a pipe has gone.
    pub(crate) fn reader_is_gone(&self) -> bool {
        self.state.broken.load(Ordering::Relaxed)
    }

    fn note<T>(&self, result: io::Result<T>) -> io::Result<T> {
        if result.as_ref().is_err_and(|error| error.kind() == ErrorKind::BrokenPipe) {
            self.state.broken.store(true, Ordering::Relaxed);
        }
        result
    }
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut cut = None;
        if self.state.clips.load(Ordering::Relaxed) {
            cut = clipped(&String::from_utf8_lossy(bytes), terminal::size().0);
            self.state.clipped.fetch_or(cut.is_some(), Ordering::Relaxed);
        }
        let shown = cut.as_ref().map_or(bytes, |text| text.as_bytes());
        let mut inner = self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let result = self.screen.aside(|| inner.write_all(shown).and_then(|()| inner.flush()));
        self.note(result.map(|()| bytes.len()))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The lines cut at a width; `None` if all of them fit.
fn clipped(text: &str, width_max: usize) -> Option<String> {
    let mut cut = false;
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let mut width = 0;
        // The end of what fits beside the sign that more follows.
        let mut at = 0;
        for (index, c) in line.char_indices() {
            width += c.width().unwrap_or(0);
            if width < width_max {
                at = index + c.len_utf8();
            }
        }
        if width <= width_max {
            out.push_str(line);
        } else {
            out.push_str(&line[..at]);
            out.push('…');
            cut = true;
        }
        out.push('\n');
    }
    cut.then_some(out)
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    let hint = match error.kind() {
        ErrorKind::NotFound => Some("the directory has to exist"),
        _ => None,
    };
    Failure::runtime(&format!("cannot write {}: {error}", path.display()), hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_where_the_terminal_ends() {
        assert_eq!(clipped("abcd\nab\n", 4), None);
        assert_eq!(clipped("abcde\nab\n", 4), Some("abc…\nab\n".into()));
        // A character of two columns does not fit into one.
        assert_eq!(clipped("ab日本語\n", 5), Some("ab日…\n".into()));
        assert_eq!(clipped("ab日本語\n", 6), Some("ab日…\n".into()));
    }
}
