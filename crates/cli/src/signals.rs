//! Ctrl-C: the first one ends the job in good order, the second one at once. And a file that meets
//! its limit of size fails to be written, instead of killing the process.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

use crate::failure::Failure;

/// The exit code after Ctrl-C.
pub(crate) const INTERRUPTED: u8 = 130;

/// A flag that the first Ctrl-C or SIGTERM sets; the second one ends the process.
pub(crate) fn cancel_flag() -> Result<Arc<AtomicBool>, Failure> {
    let cancel = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order: the shutdown looks at the flag before it is set.
        flag::register_conditional_shutdown(signal, i32::from(INTERRUPTED), Arc::clone(&cancel))
            .and_then(|_| flag::register(signal, Arc::clone(&cancel)))
            .map_err(refused)?;
    }
    Ok(cancel)
}

/// Leaves Ctrl-C to node 0, which hears of it too and tells the others.
pub(crate) fn ignore_interrupts() -> Result<(), Failure> {
    flag::register(SIGINT, Arc::default()).map(|_| ()).map_err(refused)
}

/// Leaves it to the write that exceeds the limit of a file's size to fail.
pub(crate) fn survive_large_files() -> Result<(), Failure> {
    flag::register(SIGXFSZ, Arc::default()).map(|_| ()).map_err(refused)
}

fn refused(error: std::io::Error) -> Failure {
    Failure::runtime(&format!("cannot listen for signals: {error}"), None)
}
