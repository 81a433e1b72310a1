//! Ctrl-C: the first one ends the job in good order, the second one at once. And a file that meets
//! its limit of size fails to be written, instead of killing the process.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::flag;
use signal_hook::low_level::{exit, pipe};

use crate::failure::{Failure, INTERRUPTED};
use crate::supervised;

/// A flag that the first Ctrl-C or SIGTERM sets; the second one removes `temporary` and ends the
/// process. A thread waits for them, because a signal's handler must not do so much.
pub(crate) fn cancel_flag(temporary: Option<PathBuf>) -> Result<Arc<AtomicBool>, Failure> {
    let (mut came, comes) = UnixStream::pair().map_err(refused)?;
    for signal in [SIGINT, SIGTERM] {
        comes.try_clone().and_then(|comes| pipe::register(signal, comes)).map_err(refused)?;
    }
    let cancel = Arc::new(AtomicBool::new(false));
    // A supervisor asks by a signal of its own, for the same SIGTERM may have reached both.
    if supervised::is_supervised() {
        flag::register(SIGUSR1, Arc::clone(&cancel)).map_err(refused)?;
    }
    let flag = Arc::clone(&cancel);
    let wait = move || {
        // One byte for each signal.
        if came.read_exact(&mut [0]).is_err() {
            return;
        }
        flag.store(true, Ordering::Release);
        if came.read_exact(&mut [0]).is_err() {
            return;
        }
        if let Some(temporary) = temporary {
            // It may have been given its name already.
            let _ = std::fs::remove_file(temporary);
        }
        exit(i32::from(INTERRUPTED));
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait).map_err(refused)?;
    Ok(cancel)
}

/// A flag that each Ctrl-C sets, and nothing else happens. Its reader clears it.
pub(crate) fn interrupt_flag() -> Result<Arc<AtomicBool>, Failure> {
    let interrupted = Arc::new(AtomicBool::new(false));
    flag::register(SIGINT, Arc::clone(&interrupted)).map_err(refused)?;
    Ok(interrupted)
}

/// Leaves Ctrl-C to node 0, which hears of it too and tells the others.
pub(crate) fn ignore_interrupts() -> Result<(), Failure> {
    flag::register(SIGINT, Arc::default()).map(|_| ()).map_err(refused)
}

/// The same, and a flag that SIGTERM sets: it ends the job in good order, whichever node it meets.
pub(crate) fn member_flag() -> Result<Arc<AtomicBool>, Failure> {
    ignore_interrupts()?;
    let cancel = Arc::new(AtomicBool::new(false));
    flag::register(SIGTERM, Arc::clone(&cancel)).map_err(refused)?;
    Ok(cancel)
}

/// Leaves it to the write that exceeds the limit of a file's size to fail.
pub(crate) fn survive_large_files() -> Result<(), Failure> {
    flag::register(SIGXFSZ, Arc::default()).map(|_| ()).map_err(refused)
}

fn refused(error: std::io::Error) -> Failure {
    Failure::runtime(&format!("cannot listen for signals: {error}"), None)
}
