//! Where text of rows goes: standard output, or a file that appears when all is well.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use millstream::{AtomicFile, ConnectorError};
use unicode_width::UnicodeWidthChar;

use crate::failure::Failure;
use crate::pipe::Pipe;
use crate::screen::Screen;
use crate::terminal;

/// Standard output or a file.
pub(crate) struct OutputFile {
    file: Option<Shared>,
    writer: OutputWriter,
}

impl OutputFile {
    /// Opens the file, so that a place that cannot be written fails early.
    pub(crate) fn open(
        path: Option<&Path>,
        screen: &Screen,
    ) -> Result<(Self, OutputWriter), Failure> {
        let (file, writer) = match path {
            None => (None, OutputWriter::stdout(screen)),
            Some(path) => {
                let file = Shared::new(AtomicFile::create(path).map_err(|e| cannot_write(&e))?);
                (Some(file.clone()), OutputWriter::new(file, screen))
            }
        };
        Ok((Self { file, writer: writer.clone() }, writer))
    }

    /// The file's name until it is complete, where it needs one.
    pub(crate) fn temporary(&self) -> Option<PathBuf> {
        self.file.as_ref()?.lock().as_ref()?.hidden().map(Path::to_owned)
    }

    /// True when the reader at the other end of a pipe has gone: `… | head`.
    pub(crate) fn reader_is_gone(&self) -> bool {
        self.writer.reader_is_gone()
    }

    /// Waits only so long for the reader of a pipe when `cancel` is set.
    pub(crate) fn heed(&self, cancel: &Arc<AtomicBool>) {
        self.writer.heed(cancel);
    }

    /// Gives the file its name.
    pub(crate) fn publish(self) -> Result<(), Failure> {
        match self.file.and_then(|file| file.lock().take()) {
            Some(file) => file.commit().map_err(|error| cannot_write(&error)),
            None => Ok(()),
        }
    }
}

/// The file, until it is published.
#[derive(Clone)]
struct Shared(Arc<Mutex<Option<AtomicFile>>>);

impl Shared {
    fn new(file: AtomicFile) -> Self {
        Self(Arc::new(Mutex::new(Some(file))))
    }

    fn lock(&self) -> MutexGuard<'_, Option<AtomicFile>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut *self.lock() {
            Some(file) => file.write(bytes),
            None => Err(ErrorKind::NotConnected.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The end that takes rows. Clones write to the same place.
#[derive(Clone)]
pub(crate) struct OutputWriter {
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
    /// The flag that a Ctrl-C sets.
    cancel: Arc<OnceLock<Arc<AtomicBool>>>,
}

impl OutputWriter {
    /// The standard output of this process, written beside the progress line of `screen`.
    pub(crate) fn stdout(screen: &Screen) -> Self {
        let state = State::default();
        let pipe = Pipe::stdout(Arc::clone(&state.cancel));
        Self { state: Arc::new(state), ..Self::new(pipe, screen) }
    }

    fn new(inner: impl Write + Send + 'static, screen: &Screen) -> Self {
        let inner = Arc::new(Mutex::new(inner));
        Self { inner, state: Arc::default(), screen: screen.clone() }
    }

    /// Waits only so long for the reader of a pipe while `cancel` is set.
    pub(crate) fn heed(&self, cancel: &Arc<AtomicBool>) {
        // Each command has one flag.
        let _ = self.state.cancel.set(Arc::clone(cancel));
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

    fn remember<T>(&self, result: io::Result<T>) -> io::Result<T> {
        if result.as_ref().is_err_and(|error| error.kind() == ErrorKind::BrokenPipe) {
            self.state.broken.store(true, Ordering::Relaxed);
        }
        result
    }
}

impl Write for OutputWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut cut = None;
        if self.state.clips.load(Ordering::Relaxed) {
            cut = clipped(&String::from_utf8_lossy(bytes), terminal::size().0);
            self.state.clipped.fetch_or(cut.is_some(), Ordering::Relaxed);
        }
        let shown = cut.as_ref().map_or(bytes, |text| text.as_bytes());
        let mut inner = self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let result =
            self.screen.without_progress(|| inner.write_all(shown).and_then(|()| inner.flush()));
        self.remember(result.map(|()| bytes.len()))
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

fn cannot_write(error: &ConnectorError) -> Failure {
    let hint = match error {
        ConnectorError::Option { hint, .. }
        | ConnectorError::Column { hint, .. }
        | ConnectorError::Io { hint, .. } => hint.as_deref(),
        _ => None,
    };
    Failure::runtime(&format!("cannot write {error}"), hint)
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
