//! A program behind a terminal, as a user sits before it: keys go in, the screen comes out.
//!
//! The pseudo-terminal is that of `script` (util-linux), so that nothing here has to be unsafe.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::command::{Dir, program};

/// After this a program that shows nothing is taken for stuck; nothing is measured by it.
const PATIENCE: Duration = Duration::from_secs(60);

const TICK: Duration = Duration::from_millis(5);

/// Ctrl-C.
pub const INTERRUPT: &str = "\x03";
/// The arrow up.
pub const UP: &str = "\x1b[A";
/// Tab.
pub const TAB: &str = "\t";
/// Enter.
pub const ENTER: &str = "\r";

/// A running program and its screen.
#[derive(Debug)]
pub struct Terminal {
    child: Child,
    keys: ChildStdin,
    screen: Arc<Screen>,
    reader: Option<JoinHandle<()>>,
    /// What was looked at already.
    seen: usize,
}

#[derive(Debug, Default)]
struct Screen {
    text: Mutex<(String, bool)>,
    changed: Condvar,
}

impl Terminal {
    /// Starts `millstream` with arguments that need no quotes, in a directory, before a terminal of
    /// that many columns. Its state lies in the directory too.
    pub fn start(dir: &Dir, args: &str, columns: u16) -> Self {
        let program = program();
        let line = format!("stty cols {columns} rows 40; exec {} {args}", program.display());
        let mut child = Command::new("script")
            .args(["-q", "-e", "-c", &line, "/dev/null"])
            .current_dir(dir.path())
            .env("SHELL", "/bin/sh")
            .env("TERM", "xterm")
            .env("LANG", "C.UTF-8")
            .env("NO_COLOR", "1")
            .env("XDG_STATE_HOME", dir.path().join("state"))
            .env_remove("LC_ALL")
            .env_remove("MILLSTREAM_LOG")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script(1) of util-linux starts");
        let keys = child.stdin.take().expect("its input");
        let mut output = child.stdout.take().expect("its output");
        let screen = Arc::<Screen>::default();
        let reader = std::thread::spawn({
            let screen = Arc::clone(&screen);
            move || {
                let mut bytes = [0; 4096];
                let mut pending = Vec::new();
                loop {
                    let count = output.read(&mut bytes).unwrap_or(0);
                    pending.extend_from_slice(&bytes[..count]);
                    let whole = match std::str::from_utf8(&pending) {
                        Ok(text) => text.len(),
                        Err(error) => error.valid_up_to(),
                    };
                    let text: Vec<u8> = pending.drain(..whole).collect();
                    let mut shown = screen.text.lock().unwrap_or_else(PoisonError::into_inner);
                    shown.0.push_str(&String::from_utf8_lossy(&text));
                    shown.1 = count == 0;
                    screen.changed.notify_all();
                    if count == 0 {
                        return;
                    }
                }
            }
        });
        Self { child, keys, screen, reader: Some(reader), seen: 0 }
    }

    /// Presses keys.
    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("the terminal takes keys");
        self.keys.flush().expect("the terminal takes keys");
    }

    /// Waits until a text is shown behind what was waited for before; gives back what was shown up
    /// to its end.
    ///
    /// # Panics
    /// When it is not shown.
    #[track_caller]
    pub fn shows(&mut self, text: &str) -> String {
        let start = Instant::now();
        let mut shown = self.screen.text.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(at) = shown.0[self.seen..].find(text) {
                let (from, to) = (self.seen, self.seen + at + text.len());
                self.seen = to;
                return shown.0[from..to].to_owned();
            }
            let left = PATIENCE.saturating_sub(start.elapsed());
            let tail = &shown.0[self.seen..];
            assert!(!shown.1 && !left.is_zero(), "{text:?} is not shown behind:\n{tail:?}");
            let waited = self.screen.changed.wait_timeout(shown, left);
            shown = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Presses Ctrl-D at the next prompt, and sees the program end well.
    ///
    /// # Panics
    /// When it does not.
    #[track_caller]
    pub fn leave(mut self) {
        // Before the prompt, the terminal would take the key for itself.
        self.shows("millstream> ");
        self.press("\x04");
        assert_eq!(self.ends().0, Some(0));
    }

    /// Waits for the end; gives back the exit code and what was shown last.
    pub fn ends(mut self) -> (Option<i32>, String) {
        let start = Instant::now();
        while self.child.try_wait().expect("its state").is_none() {
            assert!(start.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(TICK);
        }
        if let Some(reader) = self.reader.take() {
            reader.join().expect("the screen was read");
        }
        let code = self.child.wait().expect("the end").code();
        let shown = self.screen.text.lock().unwrap_or_else(PoisonError::into_inner);
        (code, shown.0[self.seen..].to_owned())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Of a test that failed; one that ended well has waited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
