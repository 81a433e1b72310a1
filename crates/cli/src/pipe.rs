//! Standard output, for which nobody waits for ever.
//!
//! A reader may take nothing for as long as it likes, and then the job waits. But after a Ctrl-C it
//! has [`TIMEOUT`] to take the rest; later output is dropped, so that the job ends.

use std::io::{self, ErrorKind, Stdout, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Stat, fstat};
use rustix::io::Errno;

/// How long the reader may take after a Ctrl-C.
const TIMEOUT: Duration = Duration::from_secs(2);
/// How often a writer that waits looks for a Ctrl-C.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// Bytes that a pipe which says that it has room takes without waiting (`PIPE_BUF`).
const BYTES_AT_ONCE: usize = 4096;

/// Writes go to `to` at once.
pub(crate) struct Pipe<T> {
    to: T,
    /// Bytes that it takes without waiting when it has room.
    at_once: usize,
    /// Set by a Ctrl-C, once there may be one.
    cancel: Arc<OnceLock<Arc<AtomicBool>>>,
    until: Option<Instant>,
}

impl Pipe<Stdout> {
    /// The standard output of this process.
    pub(crate) fn stdout(cancel: Arc<OnceLock<Arc<AtomicBool>>>) -> Self {
        let to = io::stdout();
        let is_file = |stat: Stat| FileType::from_raw_mode(stat.st_mode).is_file();
        let at_once = if fstat(&to).is_ok_and(is_file) { usize::MAX } else { BYTES_AT_ONCE };
        Self { to, at_once, cancel, until: None }
    }
}

impl<T: AsFd> Pipe<T> {
    /// Whether the reader has had its time.
    fn gives_up(&mut self) -> bool {
        if !self.cancel.get().is_some_and(|cancel| cancel.load(Ordering::Acquire)) {
            // A shell goes on after a Ctrl-C.
            self.until = None;
            return false;
        }
        let now = Instant::now();
        now >= *self.until.get_or_insert(now + TIMEOUT)
    }
}

impl<T: AsFd> Write for Pipe<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            if self.gives_up() {
                tracing::debug!(bytes = bytes.len(), "nobody reads standard output");
                return Ok(bytes.len());
            }
            let mut ready = [PollFd::new(&self.to, PollFlags::OUT)];
            match poll(&mut ready, Some(&LOOK_EVERY)) {
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(errno) => return Err(errno.into()),
            }
            let some = &bytes[..bytes.len().min(self.at_once)];
            match rustix::io::write(&self.to, some) {
                Ok(0) if !some.is_empty() => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => return Ok(written),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_reader_that_takes_nothing_is_left_after_a_ctrl_c_and_a_slow_one_has_all_before() {
        let (mut reader, writer) = io::pipe().unwrap();
        let (cancel, flag) = (Arc::new(OnceLock::new()), Arc::new(AtomicBool::new(false)));
        let mut pipe =
            Pipe { to: writer, at_once: BYTES_AT_ONCE, cancel: Arc::clone(&cancel), until: None };
        let slow = std::thread::spawn(move || {
            let mut text = vec![0; 1 << 20];
            text.chunks_mut(1000).for_each(|part| reader.read_exact(part).unwrap());
            (reader, text)
        });
        let bytes: Vec<u8> = (0..1 << 20).map(|at: u32| at as u8).collect();
        pipe.write_all(&bytes).unwrap();
        let (_reader, text) = slow.join().unwrap();
        assert!(text == bytes);
        cancel.set(Arc::clone(&flag)).unwrap();
        let writer = std::thread::spawn(move || pipe.write_all(&bytes).map(|()| pipe));
        flag.store(true, Ordering::Release);
        // More than a pipe holds, and nobody reads.
        writer.join().unwrap().unwrap();
    }
}
